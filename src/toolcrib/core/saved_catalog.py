"""Saved answers to tools/list → a catalog, without any server.

In: a JSON file with `server` and `tools`, an answer to tools/list itself, or a folder of such files. Out: their tools
as one `Catalog`, or an error that names the file. Used by the command line.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import Raw

from toolcrib.catalog.names import GATEWAY_LIMIT
from toolcrib.catalog.snapshot import Catalog
from toolcrib.errors import ConfigError, NotFound

_MOST_FILES = 1_000
_MOST_BYTES = 64 * 1024 * 1024


class _Saved(msgspec.Struct):
    server: str = ""
    tools: list[Raw] | None = None
    result: _Saved | None = None


def read_saved(path: Path) -> Catalog:
    files = sorted(path.glob("*.json"))[:_MOST_FILES] if path.is_dir() else [path]
    if not files:
        raise NotFound(f"{path} has no .json files.", remedy="Save answers to tools/list there, one file per server.")
    listings: dict[str, tuple[bytes, ...]] = {}
    for file in files:
        server, tools = _read(file)
        if server in listings:
            raise ConfigError(f"{file} names the server {server!r}, like another file.", remedy="Rename one of them.")
        listings[server] = tools
    return Catalog.build(listings, version=1, limit=GATEWAY_LIMIT)


def _read(file: Path) -> tuple[str, tuple[bytes, ...]]:
    try:
        if file.stat().st_size > _MOST_BYTES:
            raise ConfigError(f"{file} is larger than {_MOST_BYTES // 1024**2} MB.", remedy="Save one server per file.")
        content = file.read_bytes()
    except OSError as error:
        raise NotFound(f"{file} cannot be read: {error.strerror}.") from error
    try:
        saved = msgspec.json.decode(content, type=_Saved)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{file} is not a saved list of tools: {error}.", remedy=_FORM) from None
    tools = saved.tools if saved.result is None else saved.result.tools
    if tools is None:
        raise ConfigError(f"{file} has no `tools`.", remedy=_FORM)
    return saved.server or file.stem, tuple(bytes(tool) for tool in tools)


_FORM = 'Save {"server": "NAME", "tools": […]}, or the answer to tools/list as it is.'
