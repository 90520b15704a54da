"""Whether a connected server still answers.

In: a link. Out: the link is lost, with the reason, if the server's process is stopped or the server does not answer.
Every message from the server counts as a sign of life; after a silence it is asked with a `ping` or, in the modern era,
`server/discover`. A single-threaded server cannot answer while it runs a call, so only the system's state of its
process counts then. `server` runs `watch` beside each connection; `processes_of` also serves the command `server:show`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from toolcrib.errors import CallTimeout, ServerFailure, ServerUnavailable
from toolcrib.servers.link import ServerLink
from toolcrib.servers.model import Era, ServerHealth
from toolcrib.servers.web import Refused

SILENCE = 30.0
"""Seconds without a message after which the server is asked."""
ANSWER_LIMIT = 10.0
"""Seconds that it gets to answer, in two attempts. Together with `SILENCE`, a dead server is noticed within 45 s."""
GATEWAY_ERRORS = frozenset({502, 503, 504})
"""HTTP statuses with which a proxy reports that the server behind it is down."""
_LOOK_AGAIN = 5.0
"""Seconds between two looks at a silent server that runs a call."""
STOPPED = "Its process is stopped (SIGSTOP). It is restarted."
_PROC = Path("/proc")
_PAGE = os.sysconf("SC_PAGE_SIZE")


async def watch(link: ServerLink) -> None:
    while not link.lost.done():
        seen = link.last_seen
        await _silent(link, seen)
        while link.last_seen == seen and not link.lost.done():
            why = await _fault(link)
            if link.last_seen != seen:
                break
            if why:
                link.silent = True
                link.lose(why)
                link.end_calls(why)
                return
            await asyncio.sleep(min(_LOOK_AGAIN, SILENCE))


async def _silent(link: ServerLink, seen: float) -> None:
    """Waits until the server has been silent for long, is heard again, or is stopped while it runs a call."""
    while link.last_seen == seen and (rest := _rest(seen)):
        await asyncio.sleep(min(rest, _LOOK_AGAIN))
        if link.is_busy and link.last_seen == seen and await _stopped(link):
            return


def _rest(seen: float) -> float:
    """Seconds until the server has been silent for long. The clock may have been set back."""
    return min(max(SILENCE - (time.time() - seen), 0.0), SILENCE)


async def _fault(link: ServerLink) -> str:
    """Why the silent server is unusable; empty if it is not, or if that cannot be known now."""
    if link.is_busy:
        return STOPPED if await _stopped(link) else ""
    if not (why := await _no_answer(link) and await _no_answer(link)):
        link.last_seen = time.time()
        link.excused_until = 0.0
    elif await _stopped(link):
        return STOPPED
    return why


async def _no_answer(link: ServerLink) -> str:
    """Why there was no answer. Even an error is one, but not that of a gateway whose server is down."""
    try:
        await ping(link, ANSWER_LIMIT / 2)
    except Refused as error:
        return error.reason if error.status in GATEWAY_ERRORS else ""
    except ServerUnavailable as error:
        return link.reason_in(error)
    except ServerFailure:
        return ""
    return ""


async def ping(link: ServerLink, limit: float) -> float:
    """Exchanges one small message that changes nothing: `server/discover` in the modern era, `ping` in the legacy one.

    Returns the seconds it took. Any valid answer counts, also an error: servers need not know `ping`. Raises
    ServerUnavailable, ProtocolViolation.
    """
    began = time.monotonic()
    method = "server/discover" if link.peer.era is Era.MODERN else "ping"
    try:
        await link.request(method, {}, meta={}, limit=limit)
    except CallTimeout:
        raise ServerUnavailable(f"Server '{link.name}': It did not answer {method} within {limit:g} s.") from None
    return time.monotonic() - began


async def examine(link: ServerLink, limit: float) -> ServerHealth:
    """The same, as a result that never raises."""
    try:
        return ServerHealth(ok=True, seconds=await ping(link, limit))
    except ServerFailure as error:
        return ServerHealth(ok=False, error=error.message)


async def _stopped(link: ServerLink) -> bool:
    return link.pid is not None and await asyncio.to_thread(is_stopped, link.pid)


@dataclass(frozen=True, kw_only=True)
class ProcessFacts:
    """What the system knows about a process."""

    pid: int
    parent: int
    state: str
    """A letter: `R` running, `S` sleeping, `T` stopped, `Z` ended but not collected."""
    resident: int
    """Bytes of memory in use, including memory shared with other processes."""


def processes_of(root: int) -> list[ProcessFacts]:
    """The process and all its descendants. Empty without /proc."""
    found: dict[int, list[ProcessFacts]] = {}
    for facts in _all():
        found.setdefault(facts.parent, []).append(facts)
        if facts.pid == root:
            found[-1] = [facts]
    tree = list(found.get(-1, ()))
    for facts in tree:
        tree += found.get(facts.pid, ())
    return tree


def _all() -> Iterator[ProcessFacts]:
    with contextlib.suppress(OSError):
        for entry in os.scandir(_PROC):
            if entry.name.isdigit():
                with contextlib.suppress(OSError, ValueError, IndexError):
                    text = (_PROC / entry.name / "stat").read_bytes().decode(errors="replace")
                    fields = text.rpartition(")")[2].split()
                    yield ProcessFacts(
                        pid=int(entry.name), parent=int(fields[1]), state=fields[0], resident=int(fields[21]) * _PAGE
                    )


def is_stopped(root: int) -> bool:
    """Whether the server's own process is stopped: below launchers such as `npx`, the last one that has their output.

    A stopped launcher does not matter, nor does a program that the server has started.
    """
    tree = [(facts, _output_of(facts.pid)) for facts in processes_of(root)]
    # The guard above the program has closed its output.
    output = next((output for _, output in tree if output not in {None, os.devnull}), None)
    ours = [facts for facts, its in tree if output is not None and its == output]
    parents = {facts.parent for facts in ours}
    last = [facts for facts in ours if facts.pid not in parents]
    return bool(last) and all(facts.state == "T" for facts in last)


def _output_of(pid: int) -> str | None:
    try:
        return os.readlink(_PROC / str(pid) / "fd" / "1")  # noqa: PTH115 - not a path: `pipe:[4711]`
    except OSError:
        return None
