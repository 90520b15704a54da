"""What saved answers to tools/list cost, and the search in them, without any server.

In: a JSON file with `server` and `tools`, an answer to tools/list itself, or a folder of such files. Out: the results
of `listing:cost` and `tool:find` for their tools, or an error that names the file. `listing_commands` imports it late.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Raw

from toolcrib.catalog.names import GATEWAY_LIMIT
from toolcrib.catalog.offers import OfferCatalog
from toolcrib.catalog.snapshot import Catalog
from toolcrib.cli.output import working
from toolcrib.cli.perform import paths
from toolcrib.commands.listing import FindParameters, described_cost, described_hits
from toolcrib.config.model import ListingMode, NameStyle
from toolcrib.core.tool_search import load_embeddings
from toolcrib.errors import ConfigError, NotFound
from toolcrib.listing.cost import cost_of
from toolcrib.listing.search import SearchIndex

log = logging.getLogger(__name__)

_MOST_FILES = 1_000
_MOST_BYTES = 64 * 1024 * 1024


class _Saved(msgspec.Struct):
    server: str = ""
    tools: list[Raw] | None = None
    result: _Saved | None = None
    next_cursor: str | None = msgspec.field(name="nextCursor", default=None)


def saved_cost(place: Path) -> dict[str, Any]:
    report = cost_of(read_saved(place).tools, OfferCatalog(), NameStyle.SERVER)
    return {**described_cost(report), "listing": str(ListingMode.AUTO), "used": []}


def saved_hits(place: Path, params: dict[str, Any]) -> dict[str, Any]:
    tools = read_saved(place).tools
    index = SearchIndex.build(tools)
    with working("comparing meanings …"):
        embeddings = load_embeddings(paths().search_cache)
        if embeddings is not None:
            index.meanings = embeddings.meanings(tools)
    return described_hits(index, tools, NameStyle.SERVER, FindParameters(**params), {})


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
        # Without the spaces and line breaks of the file, which agents would not get.
        saved = msgspec.json.decode(msgspec.json.format(content, indent=-1), type=_Saved)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{file} is not a saved list of tools: {error}.", remedy=_FORM) from None
    answer = saved if saved.result is None else saved.result
    if answer.tools is None:
        raise ConfigError(f"{file} has no `tools`.", remedy=_FORM)
    if answer.next_cursor:
        log.warning("%s is only a part of the list: it has `nextCursor`. Add the tools of the other pages to it.", file)
    return saved.server or file.stem, tuple(bytes(tool) for tool in answer.tools)


_FORM = 'Save {"server": "NAME", "tools": […]}, or the answer to tools/list as it is.'
