"""A tool's public name in each style.

In: all known (server, tool) pairs. Out: `Names` for each pair, legal for every model provider and unique across all
styles. `snapshot` and `core.daemon_catalog` build catalogs with it.

A name that is too long, or that several tools would share, ends in a hash of its (server, tool). The result depends
only on the set of tools, never on their order: every tool with a contested name gets a hash, so adding a server
changes only the names that it contests. Names that differ only in case count as equal, because some clients fold case.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from toolcrib.config.model import RESERVED_SERVER_NAMES, NameStyle

LIMITS: Mapping[NameStyle, int] = {NameStyle.PLAIN: 64, NameStyle.MCP: 64, NameStyle.SERVER: 48}
"""The maximum length of a name. Providers accept 64 characters, and clients prefix `server` names."""

GATEWAY_LIMIT = 48
"""The maximum in every style at the gateway."""

MIN_LIMIT = 40
"""Room for the longest hash, its underscore and a few readable letters."""

_ILLEGAL = re.compile(r"[^a-zA-Z0-9_-]")
_HASH_LENGTHS = (0, 8, 16, 32)
"""Hexadecimal digits after each collision. A determined server can forge eight, but not 32."""

ToolKey = tuple[str, str]
"""A server's configured name and its own name for the tool."""

SHORT_NAMES: Mapping[ToolKey, str] = {
    ("crib", "job_submit"): "submit_job",
    ("crib", "job_list"): "list_jobs",
    ("crib", "job_result"): "get_job_result",
    ("crib", "job_cancel"): "cancel_job",
}
"""Toolcrib's own tools with one name in every style. It yields to any other tool; the usual names always work."""


@dataclass(frozen=True, slots=True)
class Names:
    """All names of one tool."""

    plain: str
    mcp: str
    server: str
    display: str
    """`server:tool`, for people; both parts unchanged."""
    also: tuple[str, ...] = ()
    """Names that are not listed but also find this tool."""

    def of(self, style: NameStyle) -> str:
        match style:
            case NameStyle.PLAIN:
                return self.plain
            case NameStyle.MCP:
                return self.mcp
            case NameStyle.SERVER:
                return self.server


folded_name = str.lower
"""The key under which a public name is unique."""


COMPARED = 100
"""Characters of a name that are compared for suggestions; a longer name is not a typo."""
_FIRST = 50


def similar(wanted: str, names: Iterable[str]) -> Iterator[int]:
    """The positions of the names that resemble this one, best first.

    rapidfuzz compares 10,000 names in under a millisecond. difflib takes 20 times as long and suggests no better
    names, and the index of trigrams that pure Python would need takes longer to build than all comparisons."""
    from rapidfuzz import fuzz, process  # noqa: PLC0415 - 6 ms and 6 MB, and most names are known

    folded = [name[:COMPARED].lower() for name in names]
    given = 0
    # Usually the first few are enough, and thousands of results cost more than the comparisons.
    for limit in (_FIRST, None):
        found = process.extract(wanted[:COMPARED].lower(), folded, scorer=fuzz.ratio, limit=limit, score_cutoff=60)
        yield from (position for _, _, position in found[given:])
        given = len(found)
        if given != limit:
            return


def is_legal(name: str) -> bool:
    """Whether every model provider accepts it."""
    return 0 < len(name) <= LIMITS[NameStyle.PLAIN] and not _ILLEGAL.search(name)


def shortened(name: str, pair: ToolKey) -> str:
    """The name, cut to the length that every provider accepts, with a hash of its tool if it was cut."""
    limit = LIMITS[NameStyle.PLAIN]
    return name if len(name) <= limit else _hashed(name, pair, digits=_HASH_LENGTHS[1], limit=limit)


def name_tools(
    pairs: Iterable[ToolKey], *, limit: int | None = None, called: Mapping[ToolKey, str] = MappingProxyType({})
) -> dict[ToolKey, Names]:
    """Names for every pair. `limit` lowers the limit of every style; `called` has names that replace the servers'."""
    if limit is not None and limit < MIN_LIMIT:
        raise ValueError(f"names need at least {MIN_LIMIT} characters, got a limit of {limit}")
    tools = {pair: _Naming(pair, limit, called.get(pair, pair[1])) for pair in pairs}
    slots = [slot for tool in tools.values() for slot in tool.slots()]
    while contested := _contested(slots):
        for slot in contested:
            slot.give_way()
    return {pair: tool.names() for pair, tool in tools.items()}


class _Slot:
    """One tool's name in one style, and how often it has given way."""

    __slots__ = ("_limit", "_stem", "name", "pair", "rank", "step")

    def __init__(self, pair: ToolKey, stem: str, limit: int, *, rank: int) -> None:
        self.pair = pair
        self.rank = rank
        self.step = 0
        self._stem = stem
        self._limit = limit
        self.name = stem if len(stem) <= limit else _hashed(stem, pair, digits=_HASH_LENGTHS[1], limit=limit)

    def give_way(self) -> None:
        self.step += 1
        self.name = _hashed(self._stem, self.pair, digits=_HASH_LENGTHS[self.step], limit=self._limit)


class _PlainSlot(_Slot):
    """A plain name gives way to any other, and then equals the tool's `server` name."""

    __slots__ = ("_server",)

    def __init__(self, pair: ToolKey, stem: str, limit: int, server: _Slot, *, rank: int = -1) -> None:
        super().__init__(pair, stem, limit, rank=rank)
        self._server = server

    def give_way(self) -> None:
        self.rank = self._server.rank
        self.name = ""

    @property
    def settled(self) -> str:
        return self.name or self._server.name


class _Naming:
    """The slots of one tool while names are resolved: one per style, and a short name for all styles."""

    __slots__ = ("_mcp", "_pair", "_plain", "_server", "_short")

    def __init__(self, pair: ToolKey, limit: int | None, called: str) -> None:
        room = {style: min(limit or most, most) for style, most in LIMITS.items()}
        # One character above the limit is enough to detect a stem that is too long.
        server, tool = (_slug(part, max(LIMITS.values()) + 1) for part in (pair[0], called))
        reserved = pair[0] in RESERVED_SERVER_NAMES
        rank = 1 if reserved else 0
        self._pair = pair
        self._mcp = _Slot(pair, f"mcp_{server}_{tool}", room[NameStyle.MCP], rank=rank)
        self._server = _Slot(pair, f"{server}_{tool}", room[NameStyle.SERVER], rank=rank)
        short = SHORT_NAMES.get(pair)
        # It gives way before other tools' plain names, so those don't change because of it.
        self._short = short and _PlainSlot(pair, short, room[NameStyle.PLAIN], self._server, rank=-2)
        self._plain = _PlainSlot(pair, tool, room[NameStyle.PLAIN], self._server)
        if reserved:
            self._plain.give_way()

    def slots(self) -> tuple[_Slot, ...]:
        styles = self._plain, self._mcp, self._server
        return (self._short, *styles) if self._short else styles

    def names(self) -> Names:
        usual = self._plain.settled, self._mcp.name, self._server.name
        short = self._short.name if self._short else ""
        plain, mcp, server = (short or name for name in usual)
        also = tuple(dict.fromkeys(usual)) if short else ()
        return Names(plain=plain, mcp=mcp, server=server, display=":".join(self._pair), also=also)


def _hashed(stem: str, pair: ToolKey, *, digits: int, limit: int) -> str:
    digest = hashlib.sha256("\0".join(pair).encode("utf-8", "surrogatepass")).hexdigest()[:digits]
    return f"{stem[: limit - digits - 1]}_{digest}"


def _slug(part: str, most: int) -> str:
    return _ILLEGAL.sub("_", part[:most]) or "tool"


def _contested(slots: Iterable[_Slot]) -> list[_Slot]:
    """The slots that must give way: for each name that several tools hold, those with the lowest rank."""
    holders: dict[str, list[_Slot]] = {}
    for slot in slots:
        if slot.name:
            holders.setdefault(folded_name(slot.name), []).append(slot)
    contested = []
    for group in holders.values():
        if len(group) > 1 and any(slot.pair != group[0].pair for slot in group):
            weakest = min((slot.rank, slot.step) for slot in group)
            contested += [slot for slot in group if (slot.rank, slot.step) == weakest]
    return contested
