"""What an agent that a run leases may do by its own hands.

In: an agent. Out: `OwnTools`. A program's own tools do not pass our door, so for an agent below another they are no
more than the one above may do: its profile's, and only as far as it may use the workspace's tools as it likes.
`run:lease` tells the run.
"""

from __future__ import annotations

from collections.abc import Iterator

from toolcrib.agents.agent import Agent
from toolcrib.catalog.tool import Tool
from toolcrib.config.model import WORKSPACE
from toolcrib.crib.crib import Crib
from toolcrib.crib.project import Project
from toolcrib.policy import Effect, Permission, Verdict
from toolcrib.policy.own_tools import OwnTools


def own_tools_of(crib: Crib, project: Project, agent: Agent) -> OwnTools:
    line = tuple(_line(crib, agent))
    least = min((crib.roster.profile(one.profile).own_tools for one in line), key=list(OwnTools).index)
    above, tools = line[1:], project.catalog.of_server(WORKSPACE)
    if all(_free(one.permission, tool) for one in above for tool in tools):
        return least
    reads = all(_free(one.permission, tool) for one in above for tool in tools if tool.reads_only)
    bound = OwnTools.READ if reads else OwnTools.NONE
    return bound if least.exceeds(bound) else least


def _line(crib: Crib, agent: Agent) -> Iterator[Agent]:
    yield agent
    while agent.parent is not None:
        agent = crib.roster.find(agent.parent)
        yield agent


def _free(permission: Permission, tool: Tool) -> bool:
    """Allowed, and whatever the arguments: no rule refuses some of them, or lets a person be asked."""
    rules = [match.rule for match in permission.matching(tool, None)]
    limited = any(rule.effect is not Effect.ALLOW or rule.when for rule in rules)
    return not limited and permission.by_itself(tool, None).verdict is Verdict.ALLOW
