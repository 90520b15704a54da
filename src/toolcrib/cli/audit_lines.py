"""The book's entries as lines for people: a call's intent and outcome are one.

In: entries as the commands give them. Out: the cells of each line. `audit_commands` draws them.
"""

from __future__ import annotations

import enum
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolcrib.cli.results import size_of

_WIDTHS = {
    "time": 19,
    "agent": 12,
    "conversation": 12,
    "tool": 28,
    "decision": 8,
    "outcome": 10,
    "took": 8,
    "size": 8,
    "tokens": 6,
    "note": 60,
}
"""Where lines come one by one, and nobody knows what will come."""
COLUMNS = tuple(_WIDTHS)


class Rules(enum.Enum):
    """Which rules are shown."""

    ALL = enum.auto()
    OF_DENIALS = enum.auto()


class Times(enum.Enum):
    WHOLE = enum.auto()
    SHORT = enum.auto()
    """Without what goes without saying: today's date, or the year and the seconds."""


@dataclass(frozen=True, kw_only=True)
class Lines:
    cut_off: frozenset[str] = frozenset()
    """Calls whose outcome can no longer come."""
    rules: Rules = Rules.OF_DENIALS
    times: Times = Times.WHOLE

    @property
    def widths(self) -> dict[str, int]:
        return _WIDTHS | ({"time": 11} if self.times is Times.SHORT else {})

    def joined(self, entries: Iterable[Mapping[str, Any]]) -> list[Sequence[Any]]:
        """A line for each call, where its newest entry stands, and one for everything else."""
        newest: dict[Any, Mapping[str, Any]] = {}
        for entry in entries:
            key = entry["call"] or entry["seq"]
            newest.pop(key, None)
            newest[key] = entry
        return [self.cells(entry) for entry in newest.values()]

    def cells(self, entry: Mapping[str, Any]) -> Sequence[Any]:
        over = entry["kind"] == "outcome"
        return (
            self._time(entry["at"]),
            entry["agent"],
            entry["conversation"],
            entry["tool"],
            entry["decision"],
            self._outcome(entry),
            _took(entry["duration"]) if over else None,
            size_of(entry["size"]) if over and entry["size"] else None,
            entry["tokens"],
            self._note(entry),
        )

    def _time(self, at: float) -> str:
        then = time.localtime(at)
        if self.times is Times.WHOLE:
            return _when(at)
        today = time.localtime()[:3] == then[:3]
        return time.strftime("%H:%M:%S" if today else "%m-%d %H:%M", then)

    def _outcome(self, entry: Mapping[str, Any]) -> str:
        match entry["kind"]:
            case "outcome":
                return str(entry["outcome"])
            case "intent":
                return "cut off" if entry["call"] in self.cut_off else "not over"
            case other:
                return str(other)

    def _note(self, entry: Mapping[str, Any]) -> str:
        detail = entry["detail"] if isinstance(entry["detail"], dict) else {}
        match entry["kind"]:
            case "outcome" if entry["outcome"] == "denied" or self.rules is Rules.ALL:
                return str(entry["rule"])
            case "intent" if entry["call"] in self.cut_off:
                return "it may have run"
            case "change":
                return _change(str(entry["outcome"]), str(entry["agent"]), detail)
            case "gap":
                begin, end = (time.strftime("%H:%M:%S", time.localtime(detail[name])) for name in ("from", "to"))
                return f"{entries_of(detail['entries'])} could not be written between {begin} and {end}"
            case "pruned":
                return f"{entries_of(detail['entries'])} up to number {detail['through']} were let go"
            case "unanchored" if "known" in detail:
                return f"number {detail['known']} had been written before, and was gone or another"
            case "unanchored":
                return f"the anchor was missing: what stood after number {detail['after']} is not known"
            case _:
                return ""


def entries_of(count: int) -> str:
    return "1 entry" if count == 1 else f"{count:,} entries"


def _change(what: str, agent: str, detail: Mapping[str, Any]) -> str:
    said = []
    for name, value in detail.items():
        if name.endswith("_at") and isinstance(value, int | float):
            said.append(f"{name.removesuffix('_at')} {_when(value)}")
            continue
        # The agent has a column of its own, and what changed stands before the colon.
        text = _plain(value, agent)
        said.append(text if name == what.partition(" ")[0] else f"{name} {text}")
    return f"{what}: {', '.join(said)}" if said else what


def _plain(value: Any, agent: str) -> str:
    if isinstance(value, str):
        return value.removeprefix(f"agent {agent}: ")
    if isinstance(value, list):
        return "; ".join(_plain(one, agent) for one in value)
    return json.dumps(value, ensure_ascii=False)


def _when(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def _took(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"
