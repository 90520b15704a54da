"""run:lease — an agent that exists as long as the connection that requested it, and the events of that agent.

In: the client, conversation, folder and profile of a run. Out: events: `lease` (with its token and endpoint), then
`listed`, `call` and `question` as they happen, and `ended` if the agent ends before its run. When the connection
closes, for any reason, the agent ends. Only if the daemon stops does it stay, so that the next daemon can continue it
(`resume`). `daemon_client.lease` is the client.

A program's own tools bypass the door, so its profile and the `workspace.yml` of its folder limit them. For an agent
with a parent, the parent's profile limits them too, and they are allowed only as far as the parent may use the
workspace's tools without conditions. In a job that the owner did not submit, only the tools that the program confines
to its folder remain.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterator, Sequence
from functools import partial, reduce
from operator import and_
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from toolcrib.catalog.tool import Tool
from toolcrib.commands.registry import Availability, CommandContext, CommandEffect, Parameters, PathText, registry
from toolcrib.commands.watch import AgentWatch, event_json, offered_names
from toolcrib.config.model import WORKSPACE, Config, ListingMode
from toolcrib.config.paths import project_of
from toolcrib.config.settings import JOB_PROGRAMS, JobProgram
from toolcrib.config.values import references
from toolcrib.core.crib import Crib
from toolcrib.core.project import Project
from toolcrib.daemon_client.lifetime import DaemonLifetime
from toolcrib.errors import DaemonNotRunning, Denied, NotFound, StoreError, ToolcribError, UsageError
from toolcrib.identity.agent import Agent
from toolcrib.identity.principal import OWNER
from toolcrib.identity.registry import AgentRegistry
from toolcrib.policy import Permission, Rule, RuleOrigin, Verdict
from toolcrib.policy.profile import OwnTools, OwnToolsLimit, own_tools_limit
from toolcrib.servers.model import ServerState
from toolcrib.store.jobs import JobRow
from toolcrib.workspace.settings.load import load_settings
from toolcrib.workspace.settings.model import SHELL_TOOLS, WorkspaceSettings, in_ci
from toolcrib.workspace.tools import TOOLS


async def settings_in(crib: Crib, folder: Path) -> WorkspaceSettings:
    """The effective settings of the folder, including trusted files."""
    trusted = await crib.trust.files()
    load = partial(
        load_settings, folder, environ=crib.environment.variables, is_trusted=lambda _, digest: digest in trusted
    )
    return (await asyncio.to_thread(load)).settings


def own_tools_of(
    crib: Crib, project: Project, agent: Agent, settings: WorkspaceSettings, *, ci: str = "", job_with: str = ""
) -> OwnToolsLimit:
    """`settings`: of the agent's folder. `ci`: the variable that shows that the run is in CI. `job_with`: the program,
    for a job that the owner did not submit."""
    line = tuple(_with_parents(crib, agent))
    bounds = [OwnToolsLimit(tools=crib.services.agents.profile(one.profile).own_tools) for one in line]
    if job_with:
        edits = JOB_PROGRAMS.get(job_with, JobProgram()).edits
        bounds.append(OwnToolsLimit(tools=OwnTools.EDIT if edits else OwnTools.NONE))
    judged = line if job_with else line[1:]
    if judged:
        bounds.append(_bounded_by(judged, project))
    bounds.append(own_tools_limit(settings, ci=ci or in_ci(crib.environment.variables)))
    return reduce(and_, bounds)


def own_tools_warnings(limit: OwnToolsLimit, agent: Agent, crib: Crib, program: str) -> Iterator[str]:
    """A warning if the settings deny the program something that its profile allows."""
    profile = crib.services.agents.profile(agent.profile).own_tools
    runs_commands = profile is OwnTools.ALL or JOB_PROGRAMS.get(program, JobProgram()).runs_commands
    shell = runs_commands and not limit.shell
    if limit.why and (profile.exceeds(limit.tools) or (shell and limit.tools is not OwnTools.NONE)):
        without = ", without a shell" if not limit.shell and limit.tools is not OwnTools.NONE else ""
        yield (
            f"{program}'s own tools are limited to {limit.tools}{without}, instead of {profile} "
            f"({'; '.join(limit.why)}). workspace.yml decides which workspace tools are available."
        )


def _with_parents(crib: Crib, agent: Agent) -> Iterator[Agent]:
    yield agent
    while agent.parent is not None:
        agent = crib.services.agents.find(agent.parent)
        yield agent


def _bounded_by(agents: Sequence[Agent], project: Project) -> OwnToolsLimit:
    """The highest limit that does not exceed what all of them may do with the workspace's tools."""
    offered = {tool.name: tool for tool in project.catalog.of_server(WORKSPACE)}
    unfree = [
        tool
        for tool in TOOLS
        if tool.name not in offered
        or not all(_unconditionally_allowed(one.permission, offered[tool.name]) for one in agents)
    ]
    if not unfree:
        return OwnToolsLimit()
    reads = any(offered[tool.name].reads_only if tool.name in offered else tool.reads_only for tool in unfree)
    shell = not any(tool.name in SHELL_TOOLS for tool in unfree)
    return OwnToolsLimit(tools=OwnTools.NONE if reads else OwnTools.READ, shell=shell)


def _unconditionally_allowed(permission: Permission, tool: Tool) -> bool:
    """Whether it is allowed with any arguments: no rule denies some of them or asks the owner."""
    rules = [match.rule for match in permission.matching(tool, None)]
    limited = any(rule.effect is not Verdict.ALLOW or rule.when for rule in rules)
    return not limited and permission.by_itself(tool, None).verdict is Verdict.ALLOW


log = logging.getLogger(__name__)

RUN_MARK = "run"
"""A file in an agent's private folder, which marks the agent of a run."""
_MINTING_TIME = 60.0
"""The longest time, in seconds, that creating an agent may take."""
_NO_JOBS = Rule(effect=Verdict.DENY, tools="crib:job_submit", origin=RuleOrigin.AGENT)
"""Jobs that wait for their own jobs could fill the queue, and none would ever end."""
_NO_SHELL = Rule(effect=Verdict.DENY, tools=f"{WORKSPACE}:run_shell_safe", origin=RuleOrigin.AGENT)
"""For a run in CI, because the daemon itself may have started outside CI."""
_LAST_EVENTS = 2.0
"""Seconds that a reader may take for the last events."""


class ResumeLease(Parameters):
    agent: str
    token: str


class LeaseParameters(Parameters):
    client: str = Field(default="", description="the program to run")
    conversation: str = Field(default="", description="its conversation; only one run at a time may use it")
    profile: str = "developer"
    workdir: PathText = Field(default="", description="absolute path of its working folder")
    lives: float = Field(default=0, description="seconds after which the agent ends in any case")
    parent: str = Field(default="", description="the parent: its limits and end also apply")
    job: str = Field(default="", description="the job of the run; its agent submits no jobs and ends with it")
    ci: str = Field(default="", description="the variable that shows that the run is in CI")
    listing: ListingMode | Literal[""] = Field(default="", description="how tools are listed; empty: as its agent's")
    continues: bool = Field(default=False, description="the program continues a session of its own")
    answers: bool = Field(default=False, description="what servers ask waits for the owner, unless its program answers")
    resume: ResumeLease | None = Field(
        default=None, description="instead of all others but `answers`: the agent of an earlier daemon"
    )

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if self.resume is None and not (self.client and self.conversation and self.workdir and self.lives > 0):
            raise ValueError("client, conversation, workdir and lives are required, or resume")
        return self


@registry.command("run:lease", CommandEffect.CHANGES, Availability.SOCKET)
async def lease(context: CommandContext, params: LeaseParameters) -> dict[str, Any]:
    """Lend a run an agent for as long as its connection is open, and report what the agent does."""
    if context.host.describe()["endpoint"] is None:
        raise DaemonNotRunning("A lease needs a daemon.", remedy="Run `toolcrib up` to start one.")
    name = params.resume.agent if params.resume else f"{params.client}-{params.conversation}"
    job = context.host.jobs.running(params.job) if params.job else None
    if params.resume is None:
        await _end_orphan(context, name)
        _refuse_second(context, name, params)
    with context.host.leases.held(name):
        agent, token = _resumed(context, params.resume) if params.resume else await _minted(context, name, params, job)
        with AgentWatch(context.crib.bus, name) as watch, _unattended(context, name, params):
            try:
                # If it ended before the watch began, no event reports its end.
                context.services.agents.find(name)
                if params.resume is None:
                    # Some clients list the tools only once. Each server has its own time to connect.
                    await context.project.wait_for_new_servers(None)
                await context.emit({"lease": await _lease(context, agent, token, job, params)})
                why = await _until_its_end(context, watch, agent)
            finally:
                # A job is never resumed, so neither is its agent.
                if params.job or not context.host.leases.agents_stay:
                    await end_run_agent(context.crib, agent)
                    await _send_remaining_events(context, watch)
            # A client that does not read must not block the daemon.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LAST_EVENTS):
                    await context.emit({"ended": {"why": why}})
    return {"agent": name, "why": why}


@contextlib.contextmanager
def _unattended(context: CommandContext, name: str, params: LeaseParameters) -> Iterator[None]:
    agents = context.services.approvals.unattended
    agents[name] = params.answers
    try:
        yield
    finally:
        del agents[name]


async def _end_orphan(context: CommandContext, name: str) -> None:
    """Ends the agent of a run whose daemon died: a daemon that exists only for runs gets no resume requests."""
    leases, agents = context.host.leases, context.services.agents
    if leases.lasts is not DaemonLifetime.FOR_RUNS or name in leases.agents or not agents.knows(name):
        return
    if await asyncio.to_thread(agents.folder.get, name, RUN_MARK) is not None:
        await end_run_agent(context.crib, agents.find(name))


def _refuse_second(context: CommandContext, name: str, params: LeaseParameters) -> None:
    if name in context.host.leases.agents or context.services.agents.knows(name):
        raise UsageError(
            f"Another run is using the conversation {params.conversation[:80]} of {params.client[:80]}.",
            remedy=f"Wait for its end, start another conversation, or end it: `toolcrib agent remove {name[:160]}`.",
        )


async def _minted(context: CommandContext, name: str, params: LeaseParameters, job: JobRow | None) -> tuple[Agent, str]:
    agents, folder = context.services.agents, Path(params.workdir)
    if job is not None:
        _refuse_another(context, params, job)
    if folder.is_dir() and project_of(folder) != context.project.root:
        raise UsageError(
            f"{folder} is not in the project {context.project.root}.", remedy="Use the project that contains it."
        )

    rules = (_NO_JOBS,) if params.job else ()
    if params.ci and (await settings_in(context.crib, folder)).forbid_shell_in_ci:
        rules = (*rules, _NO_SHELL)

    async def minted() -> tuple[Agent, str]:
        made = await agents.add(
            name,
            profile=params.profile,
            workdir=folder,
            lives=_lifetime(agents, params),
            parent=params.parent or None,
            rules=rules,
        )
        try:
            if job is not None and made.agent.workdir != Path(job.workdir):
                raise _moved(job)
            await asyncio.to_thread(agents.folder.put, name, RUN_MARK, params.conversation)
        except ToolcribError:
            await end_run_agent(context.crib, made.agent)
            raise
        return made.agent, made.token

    minting = asyncio.create_task(minted())
    try:
        return await asyncio.shield(minting)
    except asyncio.CancelledError:
        # A change of the agents is completed even if the client has disconnected.
        await asyncio.wait({minting})
        if minting.exception() is None:
            await end_run_agent(context.crib, minting.result()[0])
        raise


def _refuse_another(context: CommandContext, params: LeaseParameters, job: JobRow) -> None:
    """A job gets exactly what it was submitted with, even if its folder was replaced since."""
    parent = job.submitter if job.submitter_since else ""
    if (params.workdir, params.parent, params.profile) != (job.workdir, parent, job.profile):
        raise Denied(
            f"The job {job.id} was submitted with another folder, parent or profile.", remedy="Submit it again."
        )
    if Path(job.workdir).resolve() != Path(job.workdir):
        raise _moved(job)
    if job.submitter != OWNER.name and context.project.root != Path(job.root):
        raise Denied(
            f"{job.workdir} was in the project {job.root} when the job was submitted, and is now in another.",
            remedy="Submit it again from there.",
        )


def _moved(job: JobRow) -> Denied:
    return Denied(
        f"{job.workdir} is now a link, or behind one, and no longer the folder that the job was submitted for.",
        remedy="Restore the folder and submit the job again.",
    )


def _lifetime(agents: AgentRegistry, params: LeaseParameters) -> float | None:
    """None means as long as the parent, which ends before the run's limit."""
    ends = agents.find(params.parent).expires_at if params.parent else None
    return None if ends is not None and ends <= time.time() + params.lives + _MINTING_TIME else params.lives


def _resumed(context: CommandContext, wanted: ResumeLease) -> tuple[Agent, str]:
    agent = context.services.agents.authenticate(wanted.token)
    if agent is None or agent.name != wanted.agent:
        raise Denied(f"The agent {wanted.agent[:80]!r} with this token no longer exists.", remedy="Start a new run.")
    return agent, wanted.token


async def _lease(
    context: CommandContext, agent: Agent, token: str, job: JobRow | None, params: LeaseParameters
) -> dict[str, Any]:
    crib, project, host = context.crib, context.project, context.host.describe()
    job_with = "" if job is None or job.submitter == OWNER.name else job.runs
    settings = await settings_in(crib, agent.workdir or project.root)
    own = own_tools_of(crib, project, agent, settings, ci=params.ci, job_with=job_with)
    listings = project.listings
    names = offered_names(listings.tools(project.catalog, agent.permission), project.catalog.by_public(listings.style))
    return {
        "agent": agent.name,
        "token": token,
        "endpoint": host["endpoint"],
        "listing": crib.services.listing_for(
            agent.name,
            params.conversation,
            project.config.settings.listing,
            params.listing or None,
            continues=params.continues,
        ),
        "for_runs": host["for_runs"],
        "daemon": host["pid"],
        "folder": str(crib.services.agents.folder.of(agent.name)),
        "own_tools": str(own.tools),
        "own_shell": own.shell,
        "guarded": own.guarded,
        "withheld": _variables(project.config),
        "warnings": [
            *_warnings(project),
            *_broken_settings(settings),
            *own_tools_warnings(own, agent, crib, params.client),
        ],
        "broken": settings.broken,
        "unavailable": {name: why for name, why in _unavailable(project) if project.servers[name].tools is None},
        "tools": len(names),
        "names": names,
    }


def _warnings(project: Project) -> Iterator[str]:
    """Reasons why the run has fewer tools than the user may expect."""
    for problem in project.config.problems:
        yield f"Configuration: {problem}"
    for name, why in _unavailable(project):
        yield f"The server {name} is unavailable: {why}"


_USABLE = frozenset({ServerState.READY, ServerState.IDLE})


def _unavailable(project: Project) -> Iterator[tuple[str, str]]:
    for name, server in sorted(project.servers.items()):
        status = server.status
        if status.state not in _USABLE and (status.state is not ServerState.CONNECTING or server.tools is None):
            yield name, status.last_error or ("it is still installing." if status.installing else status.state)


def _broken_settings(settings: WorkspaceSettings) -> Iterator[str]:
    if settings.broken:
        yield f"All workspace tools will refuse calls. {settings.broken}"


def _variables(config: Config) -> list[str]:
    """The variables in servers' entries and jobs' API keys: they are for Toolcrib only, and mostly secret."""
    written = [text for server in config.servers.values() for text in server.spelled.values()]
    written += config.settings.jobs.spelled.values()
    return sorted({name for text in written for name, _ in references(text)})


async def _until_its_end(context: CommandContext, watch: AgentWatch, agent: Agent) -> str:
    sending = asyncio.create_task(_send_events(context, watch))
    overrun = asyncio.create_task(watch.overrun.wait())
    try:
        await asyncio.wait({sending, overrun}, return_when=asyncio.FIRST_COMPLETED)
        if not sending.done():
            log.warning("the run of %s does not read its events; its agent ends", agent.name)
            return "unread"
        await sending
    finally:
        for task in (sending, overrun):
            task.cancel()
        await asyncio.gather(sending, overrun, return_exceptions=True)
    if watch.ended is not None and watch.ended.returns:
        return "rotated"
    return "expired" if agent.expires_at is not None and agent.expires_at <= time.time() else "removed"


async def _send_events(context: CommandContext, watch: AgentWatch) -> None:
    redact = context.crib.environment.mask.known
    while (seen := await watch.next()) is not None:
        await context.emit(await event_json(seen, redact))


async def _send_remaining_events(context: CommandContext, watch: AgentWatch) -> None:
    """A run that returns its agent still reads the last events; one that is gone or does not read gets none."""
    if watch.ended is not None and not watch.overrun.is_set():
        with contextlib.suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(_LAST_EVENTS):
                await _send_events(context, watch)


async def end_run_agent(crib: Crib, agent: Agent) -> None:
    """Ends this agent, but not a newer one with the same name."""
    try:
        if crib.services.agents.find(agent.name).created_at == agent.created_at:
            await crib.services.agents.remove(agent.name)
    except NotFound:
        return
    except StoreError as error:
        log.warning("%s", error.text())


async def orphaned_agents(crib: Crib) -> tuple[Agent, ...]:
    """The agents of runs that were still open when an earlier daemon ended."""

    def marked() -> list[Agent]:
        return [
            agent
            for agent in crib.services.agents.agents
            if crib.services.agents.folder.get(agent.name, RUN_MARK) is not None
        ]

    return tuple(await asyncio.to_thread(marked))
