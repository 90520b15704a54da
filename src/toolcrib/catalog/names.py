"""What a tool is called in public, in each style.

In: pairs (server, tool) of everything known. Out: `Names` for each pair, legal for every model
provider, and such that one public name means one tool, whichever style it is written in.
`snapshot` and `core.daemon_catalog` build catalogs with it.

A name that is too long, or that several tools would share, ends in a hash of its (server, tool).
Who gets a hash depends on the set of tools alone, never on their order: every tool at a contested
name gives way, so adding a server changes only the names that it contests. Names that differ only
by case are the same name, since some clients fold case.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from toolcrib.config.model import RESERVED_SERVER_NAMES, NameStyle

LIMITS: Mapping[NameStyle, int] = {NameStyle.PLAIN: 64, NameStyle.MCP: 64, NameStyle.SERVER: 48}
"""The most characters of a name; providers take 64, and clients put their own prefix before `server` names."""

GATEWAY_LIMIT = 48
"""What every style is held to at the gateway."""

SMALLEST_LIMIT = 40
"""Room for the longest hash, its underscore and a few letters that a person can read."""

_ILLEGAL = re.compile(r"[^a-zA-Z0-9_-]")
_HASH_LENGTHS = (0, 8, 16, 32)
"""Hexadecimal digits at each step of giving way. Eight can be forged by a patient server, 32 cannot."""

ToolKey = tuple[str, str]
"""A server's configured name and its own name of the tool."""

SHORT_NAMES: Mapping[ToolKey, str] = {
    ("crib", "job_submit"): "submit_job",
    ("crib", "job_list"): "list_jobs",
    ("crib", "job_result"): "get_job_result",
    ("crib", "job_cancel"): "cancel_job",
}
"""Tools of ours that are listed by one name in every style. It gives way to everybody; the usual ones work always."""


@dataclass(frozen=True, slots=True)
class Names:
    """All names of one tool."""

    plain: str
    mcp: str
    server: str
    display: str
    """`server:tool`, for people; both parts as they are."""
    also: tuple[str, ...] = ()
    """Names that are listed nowhere, but mean this tool."""

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


def is_legal(name: str) -> bool:
    """Whether every model provider takes it."""
    return 0 < len(name) <= LIMITS[NameStyle.PLAIN] and not _ILLEGAL.search(name)


def shortened(name: str, pair: ToolKey) -> str:
    """The name itself, or as much of it as every provider takes, with a hash of its tool."""
    limit = LIMITS[NameStyle.PLAIN]
    return name if len(name) <= limit else _hashed(name, pair, digits=_HASH_LENGTHS[1], limit=limit)


def name_tools(
    pairs: Iterable[ToolKey], *, limit: int | None = None, called: Mapping[ToolKey, str] = MappingProxyType({})
) -> dict[ToolKey, Names]:
    """Names for every pair; `limit` lowers the limit of every style, `called` are tools that are to be called
    otherwise than their servers do."""
    if limit is not None and limit < SMALLEST_LIMIT:
        raise ValueError(f"names need at least {SMALLEST_LIMIT} characters, got a limit of {limit}")
    tools = {pair: _Naming(pair, limit, called.get(pair, pair[1])) for pair in pairs}
    slots = [slot for tool in tools.values() for slot in tool.slots()]
    while contested := _contested(slots):
        for slot in contested:
            slot.give_way()
    return {pair: tool.names() for pair, tool in tools.items()}


class _Slot:
    """One style's name of one tool, and how often it gave way."""

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
    """A plain name gives way to everything, and is then the same as the tool's `server` name."""

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
    """The slots of one tool while names are settled: one for each style, and one for all of them."""

    __slots__ = ("_mcp", "_pair", "_plain", "_server", "_short")

    def __init__(self, pair: ToolKey, limit: int | None, called: str) -> None:
        room = {style: min(limit or most, most) for style, most in LIMITS.items()}
        # One character above the limit is enough to see that a stem is too long.
        server, tool = (_slug(part, max(LIMITS.values()) + 1) for part in (pair[0], called))
        reserved = pair[0] in RESERVED_SERVER_NAMES
        rank = 1 if reserved else 0
        self._pair = pair
        self._mcp = _Slot(pair, f"mcp_{server}_{tool}", room[NameStyle.MCP], rank=rank)
        self._server = _Slot(pair, f"{server}_{tool}", room[NameStyle.SERVER], rank=rank)
        short = SHORT_NAMES.get(pair)
        # It gives way before the plain names of others: theirs stay what they would be without us.
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
    """The slots that must give way now: of each name that several tools hold, those that yield most easily."""
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
