"""What an agent that a run leases may do by its own hands.

In: an agent. Out: `OwnTools`. A program's own tools do not pass our door, so for an agent below another they are no
more than the one above may do: its profile's, and only as far as it may use the workspace's tools as it likes. In a job
that is not the owner's they are less: only what the program keeps to its folder. `run:lease` tells the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from toolcrib.agents.agent import Agent
from toolcrib.catalog.tool import Tool
from toolcrib.config.model import WORKSPACE
from toolcrib.crib.crib import Crib
from toolcrib.crib.project import Project
from toolcrib.policy import Effect, Permission, Verdict
from toolcrib.policy.own_tools import OwnTools
from toolcrib.workspace.settings.load import load_settings
from toolcrib.workspace.tools import TOOLS

_IN_JOBS: Mapping[str, OwnTools] = MappingProxyType({"claude": OwnTools.EDIT})
"""By program: the most in a job that is not the owner's; none for all others. Claude Code's file tools stay in the
folder; the commands of Codex may read whatever the person may."""


def own_tools_of(crib: Crib, project: Project, agent: Agent, *, job_with: str = "") -> OwnTools:
    """`job_with`: the program, where it is a job that the owner did not submit."""
    line = tuple(_line(crib, agent))
    bounds = [crib.roster.profile(one.profile).own_tools for one in line]
    if job_with:
        bounds.append(_IN_JOBS.get(job_with, OwnTools.NONE))
    judged = line if job_with else line[1:]
    if judged:
        bounds.append(_as_free_as(judged, crib, project))
    return min(bounds, key=list(OwnTools).index)


def _line(crib: Crib, agent: Agent) -> Iterator[Agent]:
    yield agent
    while agent.parent is not None:
        agent = crib.roster.find(agent.parent)
        yield agent


def _as_free_as(agents: Sequence[Agent], crib: Crib, project: Project) -> OwnTools:
    """The most that does not go beyond what all of them may do with the workspace's tools."""
    if load_settings(project.root, environ=crib.environ).settings.hidden:
        # A program knows nothing of what is hidden there.
        return OwnTools.NONE
    offered = {tool.name: tool for tool in project.catalog.of_server(WORKSPACE)}
    unfree = [
        tool
        for tool in TOOLS
        if tool.name not in offered or not all(_free(one.permission, offered[tool.name]) for one in agents)
    ]
    if not unfree:
        return OwnTools.ALL
    reads = any(offered[tool.name].reads_only if tool.name in offered else tool.reads_only for tool in unfree)
    return OwnTools.NONE if reads else OwnTools.READ


def _free(permission: Permission, tool: Tool) -> bool:
    """Allowed, and whatever the arguments: no rule refuses some of them, or lets a person be asked."""
    rules = [match.rule for match in permission.matching(tool, None)]
    limited = any(rule.effect is not Effect.ALLOW or rule.when for rule in rules)
    return not limited and permission.by_itself(tool, None).verdict is Verdict.ALLOW
