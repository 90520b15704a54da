"""What the tools of a conversation cost its model: tokens by kind, and how well its searches work.

In: the bytes that an agent got or sent; the tools that a search showed, best first; the tools that were called. Out: a
`SessionUsage`, which `sessions` stores with its session. Tokens are counted in a thread, after the answer was sent: for
lists and repairs here, for calls in the audit log's writer.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import msgspec

Counted = tuple[int, bool]
"""Tokens, and whether they are an estimate."""


class TokenKind(enum.StrEnum):
    LISTS = "lists"
    SEARCHES = "searches"
    DESCRIPTIONS = "descriptions"
    """Definitions that the agent asked for after a search."""
    REPAIRS = "repairs"
    """Answers to calls with invalid arguments or of unknown tools."""
    ARGUMENTS = "arguments"
    RESULTS = "results"


KIND_BY_TOOL: Mapping[str, TokenKind] = MappingProxyType(
    {"crib:find": TokenKind.SEARCHES, "crib:describe": TokenKind.DESCRIPTIONS}
)
"""The kind of the results of our own tools, which are not calls of a server's tool."""


ANSWER_KINDS = (TokenKind.SEARCHES, TokenKind.DESCRIPTIONS, TokenKind.REPAIRS)
"""The kinds of answers that are counted besides lists and calls."""


class SessionUsage(msgspec.Struct, kw_only=True, omit_defaults=True):
    tokens: dict[TokenKind, int] = {}
    estimated: bool = False
    """Whether some of them are estimates."""
    answers: dict[TokenKind, int] = {}
    """How many there were, of `ANSWER_KINDS`."""
    ranks: dict[int, int] = {}
    """How often the tool with this rank in a search was the one that was called; the first is 1."""

    @property
    def total(self) -> int:
        return sum(self.tokens.values())

    @property
    def mean_rank(self) -> float | None:
        """None if no tool was called that a search had shown."""
        calls = sum(self.ranks.values())
        return sum(rank * times for rank, times in self.ranks.items()) / calls if calls else None

    def add_tokens(self, kind: TokenKind, counted: Counted) -> None:
        tokens, estimated = counted
        self.tokens[kind] = self.tokens.get(kind, 0) + tokens
        self.estimated |= estimated

    def add_answer(self, kind: TokenKind) -> None:
        self.answers[kind] = self.answers.get(kind, 0) + 1


_MOST_SHOWN = 64


class ShownTools:
    """The tools that a conversation's latest searches showed, each with its rank."""

    __slots__ = ("_ranks",)

    def __init__(self) -> None:
        self._ranks: dict[str, int] = {}

    def add(self, tools: Sequence[str]) -> None:
        for rank, tool in enumerate(tools[:_MOST_SHOWN], start=1):
            # Moves it to the end.
            self._ranks.pop(tool, None)
            self._ranks[tool] = rank
        while len(self._ranks) > _MOST_SHOWN:
            del self._ranks[next(iter(self._ranks))]

    def chosen(self, tool: str) -> int | None:
        """Its rank at the first call after the search. Later calls say nothing about the search."""
        return self._ranks.pop(tool, None)


_MOST_WAITING = 16 * 1024 * 1024
"""Bytes that may wait to be counted; beyond it their tokens are taken to be a quarter of the bytes."""


class TokenCounter:
    def __init__(self, count: Callable[[bytes], Counted]) -> None:
        self._count = count
        self._waiting: list[tuple[Callable[[Counted], None], bytes]] = []
        self._size = 0
        self._busy = asyncio.Lock()

    def add(self, report: Callable[[Counted], None], data: bytes) -> None:
        """`report` gets the tokens during a later `run`."""
        if self._size + len(data) > _MOST_WAITING:
            report((len(data) // 4, True))
            return
        self._waiting.append((report, data))
        self._size += len(data)

    @property
    def is_needed(self) -> bool:
        return bool(self._waiting) and not self._busy.locked()

    async def run(self) -> None:
        """Counts what waits."""
        async with self._busy:
            waiting, self._waiting, self._size = self._waiting, [], 0
            if waiting:
                counts = await asyncio.to_thread(lambda: [self._count(data) for _, data in waiting])
                for (report, _), counted in zip(waiting, counts, strict=True):
                    report(counted)
