"""Files, environment and flags → one frozen `Config`.

In: JSON and YAML of a user and of a trusted project, `TOOLCRIB_*` variables, `--mcp-server`; `layers` reads them.
Out: `Config` (`model`) with its servers, settings and problems; `edit` changes a user's file. Below: `events` and
`errors`. Above: `store` keeps what is trusted, everybody reads `Config`. Nothing is imported here: who only asks for a
path pays only for `paths`.
"""
