"""task:* — calls that servers work on as tasks."""

from __future__ import annotations

from typing import Any

from toolcrib.calls import CallRequest
from toolcrib.commands.registry import Availability, CommandContext, CommandEffect, CommandScope, Parameters, registry
from toolcrib.config.paths import project_of
from toolcrib.errors import NotFound, UsageError
from toolcrib.events import AuditedChange
from toolcrib.identity.principal import OWNER, Principal, RequestContext
from toolcrib.identity.tasks import described
from toolcrib.servers.tasks import CANCEL, ENDED, GET
from toolcrib.servers.wire import error_in


@registry.command("task:list", CommandEffect.REVEALS, Availability.SOCKET, scope=CommandScope.DAEMON)
async def list_tasks(context: CommandContext, _params: Parameters) -> dict[str, Any]:
    """List the tasks of all agents, with server, tool, status and age."""
    return {"tasks": list(map(described, context.services.tasks.all()))}


class CancelTask(Parameters):
    id: str


@registry.command("task:cancel", CommandEffect.CHANGES, Availability.SOCKET, scope=CommandScope.DAEMON)
async def cancel(context: CommandContext, params: CancelTask) -> dict[str, Any]:
    """Ask a task's server to cancel it."""
    task = context.services.tasks.find(params.id)
    if task.status in ENDED:
        raise UsageError(f"The task {task.id} has ended: {task.status}.")
    places = [one for one in context.crib.projects if one.instance(task.server, task.agent) is not None]
    agents = context.services.agents
    if agents.knows(task.agent):
        # Another project may have another server of this name.
        workdir = agents.find(task.agent).workdir
        root = context.crib.projects.home.root if workdir is None else project_of(workdir)
        places = [one for one in places if one.root == root]
    if not places:
        raise NotFound(f"The server '{task.server}' of the task {task.id} is no longer used.")
    # The task may be known only to the instance of the server that belongs to its agent.
    caller = Principal.fixed(task.agent, OWNER.permission())
    door, request = context.services.door, RequestContext(caller, places[0])
    name = f"{task.server}:{task.tool}"
    made = await door.call(request, CallRequest(tool=name, method=CANCEL, task=task.task))
    if made.answer.error is not None:
        raise UsageError(f"The task {task.id} could not be cancelled: {error_in(made.answer.error).message}")
    detail = {"task": task.id, "tool": name}
    await context.services.record(AuditedChange(what="task cancelled", agent=task.agent, detail=detail))
    # Some servers only promise to stop, so look at what became of it.
    await door.call(request, CallRequest(tool=name, method=GET, task=task.task))
    return {"task": dict(described(task))}
