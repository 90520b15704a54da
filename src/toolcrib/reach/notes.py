"""What the daemon tells a run of the agent that it leases.

In: an event of `run:lease`, as plain JSON. Out: a `Note`. `lease` hands them on in the order they came.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias


@dataclass(frozen=True, kw_only=True)
class Listed:
    """The agent was handed a list of tools."""

    tools: int
    bytes: int
    tokens: int
    names: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Server and tool by the names that the agent was offered."""
    at: float


@dataclass(frozen=True, kw_only=True)
class CallSeen:
    """A call at the daemon's door: one note when it is about to leave for its server, one when it is over.

    What never left (denied, invalid, unknown …) has only the second.
    """

    call: str
    """The same in both."""
    name: str
    """As the program called it."""
    tool: str
    """As its server calls it; as the program called it where there is no such tool."""
    server: str
    arguments: dict[str, Any] | None
    """Exact, but for secrets that Toolcrib knows; None where there were none, or they are too large to be told."""
    arguments_size: int = 0
    """Bytes."""
    over: bool
    outcome: str
    """ok, failed, tool_error, error, timeout, cancelled, away, denied, invalid, unknown or refused; empty while not
    over."""
    failure: str = ""
    """What the tool says of what it ran, where that failed."""
    duration_ms: float | None
    decision: str
    rule: str
    meta: Mapping[str, Any] = field(default_factory=dict)
    """The call's `_meta`."""
    at: float


@dataclass(frozen=True, kw_only=True)
class Ended:
    """The agent is no more, and not by our own word."""

    why: str
    """removed, expired, or unread: the notes were not read."""


@dataclass(frozen=True, kw_only=True)
class Lost:
    """The daemon is gone and did not come back."""

    why: str


Note: TypeAlias = Listed | CallSeen | Ended | Lost


def names_from(told: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    return {name: (server, tool) for name, (server, tool) in told.items()}


def note_from(event: Mapping[str, Any]) -> Note | None:
    """None: an event that a newer daemon may know of. Raises `ValueError` for one that lacks something."""
    try:
        return _read(event)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"the daemon tells of {next(iter(event), 'nothing')} in another way") from error


def _read(event: Mapping[str, Any]) -> Note | None:
    match event:
        case {"listed": dict(told)}:
            known = {one.name: told[one.name] for one in fields(Listed)}
            return Listed(**{**known, "names": names_from(told["names"])})
        case {"call": dict(told)}:
            return CallSeen(**{one.name: told[one.name] for one in fields(CallSeen)})
        case {"ended": {"why": str(why)}}:
            return Ended(why=why)
        case _:
            return None
