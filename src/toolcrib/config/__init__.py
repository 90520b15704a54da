"""Files, environment and flags → one frozen `Config`.

In: the JSON and YAML files of a user and of a trusted project, `TOOLCRIB_*` variables, `--mcp-server`; `layers` reads
them. Out: `Config` (`model`) with its servers, settings and problems; `edit` changes a user's file. Below: `events` and
`errors`. Above: `store` records which files are trusted, and every package reads `Config`. This file imports nothing,
so that `toolcrib.config.paths` stays cheap to import.
"""
