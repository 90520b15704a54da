"""agent:servers — how the servers do that an agent may use, told to the program that is this agent.

In: the agent's token. Out: an event with all of them, and another whenever one of them changes, for as long as the
connection stands. What a server wrote or failed with is not in it: other agents' doings may stand there.
`crib.daemon_states` is at the other end.
"""

from __future__ import annotations

import asyncio
from typing import Any

from toolcrib.commands.registry import Context, Effect, Parameters, Reach, registry
from toolcrib.config.project import project_of
from toolcrib.crib.project import Project, most_harmless
from toolcrib.errors import Denied
from toolcrib.events import CatalogChanged, PermissionChanged, ServerStateChanged
from toolcrib.policy import Caller, Verdict, decide


class Whose(Parameters):
    token: str


@registry.command("agent:servers", parameters=Whose, effect=Effect.READS, reach=Reach.SOCKET)
async def servers(context: Context, params: Whose) -> dict[str, Any]:
    """Tell a program how the servers do that its agent may use, and tell it again when that changes."""
    roster = context.crib.roster
    agent = roster.authenticate(params.token)
    if agent is None:
        raise Denied("This token is nobody's.", remedy="`toolcrib agent list` shows the agents.")
    changed = asyncio.Event()
    leave = context.crib.bus.subscribe(lambda _: changed.set(), ServerStateChanged, CatalogChanged, PermissionChanged)
    root = context.project.root if agent.workdir is None else project_of(agent.workdir)
    told: list[dict[str, Any]] | None = None
    try:
        async with context.crib.working_in(root) as project:
            while True:
                changed.clear()
                caller = Caller(agent=agent.name, permission=roster.find(agent.name).permission)
                seen = _seen(project, caller)
                if seen != told:
                    await context.emit({"servers": seen})
                    told = seen
                await changed.wait()
    finally:
        leave()


def _seen(project: Project, caller: Caller) -> list[dict[str, Any]]:
    """The servers of which the caller may use a tool, or could, were it known."""
    found = []
    for name, server in sorted(project.servers.items()):
        tools = project.catalog.of_server(name) if server.tools is not None else (most_harmless(name, name),)
        if any(decide(caller, tool).verdict is not Verdict.DENY for tool in tools):
            found.append({"name": name, "state": server.status.state.value})
    return found
