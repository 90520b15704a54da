"""The tools of a run: built-in ones, those of its servers, those of a crib.

In: counters that are open. Out: what the model is offered, by name, and the events about it: which servers are there,
which are not, whose tool gave way. `course` asks once, before the model is asked.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter as Count
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from toolcrib.agent.calling import Supplied
from toolcrib.agent.events import McpConnected, McpWarning, NameConflict
from toolcrib.agent.options import CONNECT_LIMIT, AgentOptions
from toolcrib.agent.teller import Teller
from toolcrib.catalog.idle import Idle, common
from toolcrib.catalog.offer import Offer
from toolcrib.catalog.toolbox import Tools
from toolcrib.events import Event, ServerStateChanged
from toolcrib.servers.model import ServerState

if TYPE_CHECKING:
    from toolcrib.crib.counter import Counter
    from toolcrib.crib.kit import Kit

log = logging.getLogger(__name__)

ABSENT = {
    ServerState.CONNECTING: "It is not connected yet.",
    ServerState.AWAY: "It is not connected.",
    ServerState.FAILED: "It could not be reached.",
}
"""What is said of a crib's server that is not there and gave no reason. One that is switched off is not missed."""


async def supplied(options: AgentOptions, own: Tools | None, kit: Kit | None, teller: Teller) -> dict[str, Supplied]:
    """Built-in tools come first, then those of the run's own servers: who comes first keeps a name."""
    shelves = [] if own is None else [own]
    shaped: dict[Counter, Tools] = {}
    there: list[str] = []
    missing: dict[str, str] = {}
    if kit is not None:
        there += kit.connected
        missing |= kit.missing
        shaped[kit] = _shaped(kit, options)
    if options.crib is not None:
        await settled(options.crib, CONNECT_LIMIT)
        status = options.crib.status()
        there += [name for name, one in status.items() if one.state is ServerState.READY]
        missing |= {name: one.last_error or ABSENT[one.state] for name, one in status.items() if one.state in ABSENT}
        shaped[options.crib] = _shaped(options.crib, options)
    _refuse_idle(shaped)
    tools, conflicts = _merged([*shelves, *shaped.values()])
    for server, reason in missing.items():
        teller.tell(McpWarning, server=server, reason=reason)
    if kit is not None or options.crib is not None:
        counted = Count(tool.offer.server for tool in tools.values() if tool.offer.server)
        teller.tell(McpConnected, servers=tuple(there), tools=dict(counted))
    for kept, left_out in conflicts:
        teller.tell(NameConflict, name=left_out.name, kept=kept.tool.display, left_out=left_out.tool.display)
    return tools


async def settled(counter: Counter, limit: float) -> None:
    """Returns when no server is about to connect any more, or the time is up."""
    changed = asyncio.Event()

    def note(_: Event) -> None:
        changed.set()

    leave: Callable[[], None] = counter.subscribe(note, ServerStateChanged)
    try:
        async with asyncio.timeout(limit):
            while any(one.state is ServerState.CONNECTING for one in counter.status().values()):
                changed.clear()
                await changed.wait()
    except TimeoutError:
        # Who is late is told as missing.
        return
    finally:
        leave()


def _shaped(counter: Counter, options: AgentOptions) -> Tools:
    return counter.tools().shaped(keep=options.keep, drop=options.drop, transform=options.transform, idle=Idle.TAKEN)


def _refuse_idle(shaped: Mapping[Counter, Tools]) -> None:
    """A transformer may be meant for one of them alone, or for a server that is missing."""
    for error in common(tools.idle for tools in shaped.values()):
        if all(counter.all_known for counter in shaped):
            raise error
        log.warning("%s", error.text())


def _merged(shelves: Sequence[Tools]) -> tuple[dict[str, Supplied], list[tuple[Offer, Offer]]]:
    merged: dict[str, Supplied] = {}
    conflicts: list[tuple[Offer, Offer]] = []
    for tools in shelves:
        for offer in tools:
            if offer.name in merged:
                conflicts.append((merged[offer.name].offer, offer))
            else:
                merged[offer.name] = Supplied(offer=offer, call=partial(tools.call, offer.name))
    return merged, conflicts
