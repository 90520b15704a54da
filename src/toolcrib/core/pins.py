"""What a server's tools look like now, compared with the definitions that were accepted.

In: a server's listed definitions; the accepted digests. Out: a `PinReview`: the new, changed, removed and flagged
tools, and a digest of exactly these differences. `trust` stores what is accepted; `project` leaves out the
tools that are kept out. A definition is read once, and in a thread if a server lists many new ones.
"""

from __future__ import annotations

import asyncio
import enum
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import msgspec

from toolcrib.catalog.flags import inspect
from toolcrib.catalog.tool import BadDefinition, decode_definition, digest_of
from toolcrib.config.masking import storable
from toolcrib.store.pins import PinChange, PinRow

_MANY = 50
"""More new definitions than this are read in a thread."""


PinKey = tuple[str, Path | None]
"""A server's identity, and the root of the project that it lists its tools for; None if it is the same for all."""


class PinStatus(enum.StrEnum):
    """Why a tool awaits review."""

    NEW = "new"
    CHANGED = "changed"
    REMOVED = "removed"
    """For information: it is not listed any more."""
    FLAGGED = "flagged"
    """Its definition was remembered at first use, and looks deceptive."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedTool:
    name: str
    """As the database stores it."""
    sha256: str
    flags: tuple[str, ...]
    ordered: frozenset[str] = field(repr=False)
    """Names of tools that it says when to use."""
    definition: bytes = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class PinnedServer:
    """What was accepted of one server."""

    tools: Mapping[str, str]
    """The tools' names by the digests of their accepted definitions."""
    reviewed: frozenset[str] = frozenset()
    """The digests that a person accepted. The others were remembered at first use."""
    kept_out: frozenset[str] = frozenset()
    """Tools that are left out while their definition is not an accepted one."""

    @cached_property
    def names(self) -> frozenset[str]:
        return frozenset(self.tools.values())

    @cached_property
    def digests(self) -> frozenset[str]:
        return frozenset(self.tools)

    @classmethod
    def of(cls, rows: Iterable[PinRow], kept_out: frozenset[str] = frozenset()) -> PinnedServer:
        found = tuple(rows)
        return cls(
            tools={row.sha256: row.tool for row in found},
            reviewed=frozenset(row.sha256 for row in found if row.accepted_by),
            kept_out=kept_out,
        )

    def after(self, change: PinChange) -> PinnedServer:
        added = PinnedServer.of(change.add)
        gone = frozenset(change.drop)
        return PinnedServer(
            tools={**{one: tool for one, tool in self.tools.items() if one not in gone}, **added.tools},
            reviewed=self.reviewed - gone | added.reviewed,
            kept_out=frozenset(change.kept_out),
        )


@dataclass(frozen=True, kw_only=True)
class PinReview:
    tools: Mapping[str, ListedTool]
    """What the server lists."""
    pinned: PinnedServer
    status: Mapping[str, PinStatus]
    """The tools that await review, in alphabetical order."""

    def differing(self) -> frozenset[str]:
        """The listed tools that have not been accepted."""
        return frozenset(tool for tool, why in self.status.items() if why in (PinStatus.NEW, PinStatus.CHANGED))

    def held(self, *, all_differing: bool) -> frozenset[str]:
        """The tools that are left out."""
        return self.differing() if all_differing else self.differing() & self.pinned.kept_out

    def digest(self, tools: Iterable[str]) -> str:
        """Stands for the present definitions of these tools, so that a person accepts exactly what was shown."""
        now = {name: self.tools[name].sha256 if name in self.tools else "" for name in sorted(tools)}
        state = [(name, self.status[name], sha256) for name, sha256 in now.items()]
        return hashlib.sha256(msgspec.json.encode(state)).hexdigest()


class PinReader:
    """Reads definitions, and remembers those that each server lists now."""

    def __init__(self) -> None:
        self._read: dict[PinKey, dict[bytes, ListedTool | None]] = {}
        """By definition. None for an unreadable one, which is in no catalog."""
        self._reviews: dict[PinKey, tuple[tuple[bytes, ...], PinnedServer, PinReview]] = {}

    def is_large(self, key: PinKey, definitions: tuple[bytes, ...]) -> bool:
        """Whether so many definitions are new that `prepare` reads them in a thread."""
        known = self._read.get(key, {})
        return len(definitions) > _MANY and sum(one not in known for one in definitions) > _MANY

    async def prepare(self, key: PinKey, definitions: tuple[bytes, ...]) -> None:
        """Reads the definitions, so that `listed` and `review` need not."""
        if self.is_large(key, definitions):
            known = self._read.get(key, {})
            self._read[key] = await asyncio.to_thread(read_tools, definitions, known)

    def listed(self, key: PinKey, definitions: tuple[bytes, ...]) -> dict[str, ListedTool]:
        """By name."""
        known = self._read.get(key, {})
        if len(known) != len(definitions) or any(one not in known for one in definitions):
            self._read[key] = known = read_tools(definitions, known)
        found: dict[str, ListedTool] = {}
        for definition in definitions:
            if (tool := known[definition]) is not None:
                found.setdefault(tool.name, tool)
        return found

    def forget(self, key: PinKey) -> None:
        self._read.pop(key, None)
        self._reviews.pop(key, None)

    def review(self, key: PinKey, definitions: tuple[bytes, ...], pinned: PinnedServer) -> PinReview:
        held = self._reviews.get(key)
        if held is not None and held[1] is pinned and held[0] == definitions:
            return held[2]
        made = review_of(self.listed(key, definitions), pinned)
        self._reviews[key] = definitions, pinned, made
        return made


def review_of(listed: Mapping[str, ListedTool], pinned: PinnedServer) -> PinReview:
    status: dict[str, PinStatus] = dict.fromkeys(pinned.names - listed.keys(), PinStatus.REMOVED)
    for name, tool in listed.items():
        if tool.sha256 not in pinned.tools:
            status[name] = PinStatus.CHANGED if name in pinned.names else PinStatus.NEW
        elif tool.flags and tool.sha256 not in pinned.reviewed:
            status[name] = PinStatus.FLAGGED
    return PinReview(tools=listed, pinned=pinned, status=dict(sorted(status.items())))


def read_tools(
    definitions: Iterable[bytes], known: Mapping[bytes, ListedTool | None]
) -> dict[bytes, ListedTool | None]:
    return {one: known[one] if one in known else _read(one) for one in definitions}


def _read(definition: bytes) -> ListedTool | None:
    try:
        name, fields = decode_definition(definition)
    except BadDefinition:
        return None
    texts = inspect(definition)
    return ListedTool(
        name=storable(name),
        sha256=digest_of(fields),
        flags=texts.flags,
        ordered=texts.ordered,
        definition=definition,
    )
