"""What an agent that a run leases may do by its own hands.

In: an agent. Out: an `OwnLimit`. A program's own tools do not pass our door, so they are bounded by its profile and by
the `workspace.yml` of its folder; for an agent below another also by what the one above may do: its profile's, and only
as far as it may use the workspace's tools as it likes. In a job that is not the owner's they are less: only what the
program keeps to its folder. `run:lease` tells the run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from functools import partial, reduce
from operator import and_
from pathlib import Path
from types import MappingProxyType

from toolcrib.agents.agent import Agent
from toolcrib.catalog.tool import Tool
from toolcrib.config.model import WORKSPACE
from toolcrib.crib.crib import Crib
from toolcrib.crib.project import Project
from toolcrib.policy import Effect, Permission, Verdict
from toolcrib.policy.own_tools import OwnLimit, OwnTools, allowed_by
from toolcrib.workspace.ci import in_ci
from toolcrib.workspace.settings.load import load_settings
from toolcrib.workspace.settings.model import SHELL_TOOLS, Settings
from toolcrib.workspace.tools import TOOLS

_IN_JOBS: Mapping[str, OwnTools] = MappingProxyType({"claude": OwnTools.EDIT})
"""By program: the most in a job that is not the owner's; none for all others. Claude Code's file tools stay in the
folder; the commands of Codex may read whatever the person may."""


_RUNS_COMMANDS = frozenset({"codex"})
"""Programs that run commands below `all`, too: in a sandbox of their own."""


async def settings_in(crib: Crib, folder: Path) -> Settings:
    """What holds there now, with what the person trusts."""
    trusted = await crib.trust.files()
    load = partial(load_settings, folder, environ=crib.environ, is_trusted=lambda _, digest: digest in trusted)
    return (await asyncio.to_thread(load)).settings


def own_tools_of(
    crib: Crib, project: Project, agent: Agent, settings: Settings, *, ci: str = "", job_with: str = ""
) -> OwnLimit:
    """`settings`: of the agent's folder. `ci`: the variable that says that the run is in CI. `job_with`: the program,
    where it is a job that the owner did not submit."""
    line = tuple(_line(crib, agent))
    bounds = [OwnLimit(tools=crib.roster.profile(one.profile).own_tools) for one in line]
    if job_with:
        bounds.append(OwnLimit(tools=_IN_JOBS.get(job_with, OwnTools.NONE)))
    judged = line if job_with else line[1:]
    if judged:
        bounds.append(_as_free_as(judged, project))
    bounds.append(allowed_by(settings, ci=ci or in_ci(crib.environ)))
    return reduce(and_, bounds)


def said_of(limit: OwnLimit, agent: Agent, crib: Crib, program: str) -> Iterator[str]:
    """A line for the person where the settings take something from the program that its profile gives."""
    profile = crib.roster.profile(agent.profile).own_tools
    shell = not limit.shell and (program in _RUNS_COMMANDS or profile is OwnTools.ALL)
    if limit.why and (profile.exceeds(limit.tools) or (shell and limit.tools is not OwnTools.NONE)):
        without = ", without a shell" if not limit.shell and limit.tools is not OwnTools.NONE else ""
        yield (
            f"Own tools of {program}: {limit.tools}{without}, instead of {profile} ({'; '.join(limit.why)}). "
            "The workspace tools are there as far as workspace.yml allows."
        )


def _line(crib: Crib, agent: Agent) -> Iterator[Agent]:
    yield agent
    while agent.parent is not None:
        agent = crib.roster.find(agent.parent)
        yield agent


def _as_free_as(agents: Sequence[Agent], project: Project) -> OwnLimit:
    """The most that does not go beyond what all of them may do with the workspace's tools."""
    offered = {tool.name: tool for tool in project.catalog.of_server(WORKSPACE)}
    unfree = [
        tool
        for tool in TOOLS
        if tool.name not in offered or not all(_free(one.permission, offered[tool.name]) for one in agents)
    ]
    if not unfree:
        return OwnLimit()
    reads = any(offered[tool.name].reads_only if tool.name in offered else tool.reads_only for tool in unfree)
    shell = not any(tool.name in SHELL_TOOLS for tool in unfree)
    return OwnLimit(tools=OwnTools.NONE if reads else OwnTools.READ, shell=shell)


def _free(permission: Permission, tool: Tool) -> bool:
    """Allowed, and whatever the arguments: no rule refuses some of them, or lets a person be asked."""
    rules = [match.rule for match in permission.matching(tool, None)]
    limited = any(rule.effect is not Effect.ALLOW or rule.when for rule in rules)
    return not limited and permission.by_itself(tool, None).verdict is Verdict.ALLOW
