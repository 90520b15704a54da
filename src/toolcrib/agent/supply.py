"""The tools of a run: built-in ones, those of its servers, those of a crib.

In: counters that are open. Out: what the model is offered, by name, and the events about it: which servers are there,
which are not, whose tool gave way. `course` asks once, before the model is asked.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter as Count
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from toolcrib.agent.calling import Supplied
from toolcrib.agent.events import McpConnected, McpWarning, NameConflict
from toolcrib.agent.models.place import Format
from toolcrib.agent.options import CONNECT_LIMIT, AgentOptions
from toolcrib.agent.teller import Teller
from toolcrib.catalog.formats import Provider
from toolcrib.catalog.idle import Idle, common
from toolcrib.catalog.offer import Offer
from toolcrib.catalog.schema_check import Checker
from toolcrib.catalog.toolbox import Tools
from toolcrib.errors import UsageError
from toolcrib.events import Event, ServerStateChanged
from toolcrib.servers.model import ServerState

if TYPE_CHECKING:
    from toolcrib.agent.plan import Plan
    from toolcrib.crib.counter import Counter

log = logging.getLogger(__name__)

ABSENT = {
    ServerState.CONNECTING: "It is not connected yet.",
    ServerState.AWAY: "It is not connected.",
    ServerState.FAILED: "It could not be reached.",
}
"""What is said of a crib's server that is not there and gave no reason. One that is switched off is not missed."""


FORMS: Mapping[Format, Provider] = {
    Format.OPENAI_CHAT: "openai",
    Format.OPENAI_RESPONSES: "openai",
    Format.ANTHROPIC: "anthropic",
    Format.GOOGLE: "google",
}


@dataclass(frozen=True, kw_only=True)
class Shelf:
    tools: Tools
    check: Callable[[Offer, dict[str, Any]], dict[str, Any]]
    """The arguments that a tool is called with, once more; raises `InvalidArguments`."""


class Missing:
    """Servers that are not there: each is told once, as soon as it is known."""

    def __init__(self, teller: Teller) -> None:
        self._teller = teller
        self._told: set[str] = set()

    def tell(self, server: str, reason: str) -> None:
        if server not in self._told:
            self._told.add(server)
            self._teller.tell(McpWarning, server=server, reason=reason)

    @contextmanager
    def told_at_once(self, counter: Counter) -> Iterator[None]:
        leave = counter.subscribe(self._note, ServerStateChanged)
        try:
            yield
        finally:
            leave()

    def _note(self, event: ServerStateChanged) -> None:
        if event.state == ServerState.FAILED:
            self.tell(event.server, event.reason or ABSENT[ServerState.FAILED])


async def supplied(plan: Plan, own: Shelf | None, missing: Missing, teller: Teller) -> dict[str, Supplied]:
    """Built-in tools come first, then those of the run's own servers: who comes first keeps a name."""
    options, there = plan.options, list[str]()
    shaped: dict[Counter, Tools] = {}
    if plan.kit is not None:
        there += plan.kit.connected
        for server, reason in plan.kit.missing.items():
            missing.tell(server, reason)
        shaped[plan.kit] = _shaped(plan.kit, options, teller)
    if options.crib is not None:
        with missing.told_at_once(options.crib):
            await settled(options.crib, CONNECT_LIMIT)
        for server, one in options.crib.status().items():
            if one.state is ServerState.READY:
                there.append(server)
            elif one.state in ABSENT:
                missing.tell(server, one.last_error or ABSENT[one.state])
        shaped[options.crib] = _shaped(options.crib, options, teller)
    _refuse_idle(shaped)
    check = _checked(Checker())
    shelves = [*([own] if own else []), *(Shelf(tools=tools, check=check) for tools in shaped.values())]
    tools, conflicts = _merged(shelves, FORMS[plan.place.provider.format])
    if shaped:
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


def _shaped(counter: Counter, options: AgentOptions, teller: Teller) -> Tools:
    def left_out(offer: Offer, why: UsageError) -> None:
        # A server's tool must not be able to end the run of who changes another's.
        teller.tell(McpWarning, server=offer.server, reason=f"Its tool {offer.tool.name} is left out: {why.text()}")

    return counter.tools().shaped(
        keep=options.keep, drop=options.drop, transform=options.transform, idle=Idle.TAKEN, skipping=left_out
    )


def _refuse_idle(shaped: Mapping[Counter, Tools]) -> None:
    """A transformer may be meant for one of them alone, or for a server that is missing."""
    for error in common(tools.idle for tools in shaped.values()):
        if all(counter.all_known for counter in shaped):
            raise error
        log.warning("%s", error.text())


def _checked(checker: Checker) -> Callable[[Offer, dict[str, Any]], dict[str, Any]]:
    """Before anybody is asked to approve them. Those of a tool that was changed are checked as they are taken back."""

    def check(offer: Offer, arguments: dict[str, Any]) -> dict[str, Any]:
        return arguments if offer.undo else checker.check(offer.tool.shown, arguments)

    return check


def _merged(shelves: Sequence[Shelf], provider: Provider) -> tuple[dict[str, Supplied], list[tuple[Offer, Offer]]]:
    merged: dict[str, Supplied] = {}
    conflicts: list[tuple[Offer, Offer]] = []
    for shelf in shelves:
        for offer in shelf.tools:
            if offer.name in merged:
                conflicts.append((merged[offer.name].offer, offer))
            else:
                merged[offer.name] = _supplied(shelf, offer, provider)
    return merged, conflicts


def _supplied(shelf: Shelf, offer: Offer, provider: Provider) -> Supplied:
    def real(given: Mapping[str, Any]) -> dict[str, Any]:
        return shelf.check(offer, shelf.tools.real_arguments(offer.name, given, provider=provider))

    return Supplied(offer=offer, real=real, call=partial(shelf.tools.call_real, offer.name))
