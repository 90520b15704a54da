"""permission:* — an agent's own rules, and why it may or may not use a tool."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from typing import Annotated, Any

import msgspec
from pydantic import Field

from toolcrib.agents.agent import Agent
from toolcrib.catalog.snapshot import Catalog
from toolcrib.catalog.tool import Tool
from toolcrib.commands.reasons import Case, floor_of
from toolcrib.commands.registry import VERBATIM, Context, Effect, Parameters, Reach, registry
from toolcrib.config.project import project_of
from toolcrib.crib.project import Project
from toolcrib.errors import ConfigError, NotFound, ToolcribError, UsageError
from toolcrib.policy import CLIENT, OWNER, Origin, Permission, Rule, Verdict, rule_from
from toolcrib.policy import Effect as RuleEffect
from toolcrib.policy.rule import claims

_TOLD = 5
"""Tools and rules that are named one by one."""


class Ruled(Parameters):
    agent: str
    tools: str
    """A glob over server and tool: `git:*`."""
    when: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Conditions on arguments, as in a profile: `{"path": {"under": "src"}}`."""
    annotations: dict[str, bool] = Field(default_factory=dict)
    remove: bool = False
    """Take this very rule away."""

    def rule(self, effect: RuleEffect) -> Rule:
        data = {str(effect): self.tools, "when": self.when, "annotations": self.annotations}
        try:
            return rule_from(data, where=f"rule for {self.agent}", origin=Origin.AGENT, holder=self.agent)
        except ConfigError as error:
            # It stands in no file: these are the words that were given.
            raise UsageError(error.message, remedy=error.remedy) from None


class Allowed(Ruled):
    ask: bool = False
    """A person is asked at each call."""


@registry.command("permission:allow", parameters=Allowed, effect=Effect.CHANGES, reach=Reach.EVERYWHERE)
async def allow(context: Context, params: Allowed) -> dict[str, Any]:
    """Allow an agent the tools of a glob, or take such a rule away."""
    return await _change(context, params, params.rule(RuleEffect.ASK if params.ask else RuleEffect.ALLOW))


@registry.command("permission:deny", parameters=Ruled, effect=Effect.CHANGES, reach=Reach.EVERYWHERE)
async def deny(context: Context, params: Ruled) -> dict[str, Any]:
    """Deny an agent the tools of a glob, or take such a rule away; a deny wins over every allow."""
    return await _change(context, params, params.rule(RuleEffect.DENY))


async def _change(context: Context, params: Ruled, rule: Rule) -> dict[str, Any]:
    roster = context.crib.roster
    found = {"agent": params.agent, "rule": str(rule), "removed": params.remove}
    if params.remove:
        if not await roster.drop_rule(params.agent, rule):
            own = [str(one) for one in roster.rules(params.agent)]
            raise NotFound(
                f"There is no such rule: {rule}.",
                remedy=f"Its rules: {'; '.join(own[:_TOLD]) or 'none'}.",
                data={"rules": own},
            )
        return {**found, "changed": True}
    _refuse_unjudged(roster.find(params.agent), rule)
    changed = await roster.add_rule(params.agent, rule)
    return {**found, "changed": changed, **_reach(context.project, roster.find(params.agent).permission, rule)}


def _refuse_unjudged(agent: Agent, rule: Rule) -> None:
    if agent.workdir is None and rule.from_folder:
        raise UsageError(
            f"{agent.name} has no folder, so `{rule.from_folder[0]}` can't be judged.",
            remedy="Write the whole path, or use an agent that has a folder: `toolcrib agent add NAME --workdir DIR`.",
        )


def _reach(project: Project, permission: Permission, rule: Rule) -> dict[str, Any]:
    """Which tools that are known the rule speaks of, and which of them stay denied."""
    known = {name for name, server in project.servers.items() if server.tools is not None}
    enabled = {name for name, config in project.config.servers.items() if config.enabled}
    covered = [tool for tool in project.catalog.tools if rule.covers(tool)]
    denied: list[dict[str, str]] = []
    never: Counter[str] = Counter()
    for tool in covered if rule.effect is not RuleEffect.DENY else ():
        decision = permission.decide(tool, None)
        if decision.verdict is not Verdict.DENY:
            continue
        if floor := floor_of(permission, tool):
            never[floor.rule] += 1
        else:
            denied.append({"tool": tool.display, "rule": decision.rule})
    return {
        "covers": len(covered),
        "unknown_servers": sorted(name for name in enabled - known if rule.reaches(name)),
        "still_denied": denied[:_TOLD],
        "still_denied_in_all": len(denied),
        "never_allowed": [{"rule": floor, "tools": count} for floor, count in never.items()],
    }


class Asked(Parameters):
    agent: str
    tool: str
    """`server:tool`, or any full name of it."""
    arguments: Annotated[dict[str, Any] | None, VERBATIM] = None
    """Of the call; without them, conditions on arguments are taken to hold where they allow something."""


@registry.command("permission:why", parameters=Asked, effect=Effect.REVEALS, reach=Reach.EVERYWHERE)
async def why(context: Context, params: Asked) -> dict[str, Any]:
    """Say whether an agent may use a tool, which rule decides, and what would change that."""
    permission = _permission(context, params.agent)
    async with _project_of(context, params.agent) as project:
        tool, unknown = await _named(context, project, params.tool)
    arguments = None if params.arguments is None else tool.taken(params.arguments)
    decision = permission.decide(tool, arguments)
    case = Case(agent=params.agent, permission=permission, tool=tool, arguments=arguments)
    return {
        "agent": params.agent,
        "profile": permission.profile,
        "tool": tool.display,
        "known": unknown is None,
        "unknown": unknown or "",
        "verdict": decision.verdict,
        "rule": decision.rule,
        "arguments": arguments,
        "rules": list(case.rules()),
        "unjudged": case.unjudged(),
        "folder": permission.folder_of(tool),
        "believed": tool.believed,
        "new_or_changed": not tool.believed and _is_trusted(context, project, tool.server),
        "claimed": tool.annotations,
        "counts_as": claims(tool),
        "remedies": [] if decision.verdict is Verdict.ALLOW else list(case.ways()),
    }


def _permission(context: Context, agent: str) -> Permission:
    for always in (OWNER, CLIENT):
        if agent == always.agent:
            return always.permission
    return context.crib.roster.find(agent).permission


@contextlib.asynccontextmanager
async def _project_of(context: Context, agent: str) -> AsyncIterator[Project]:
    """Where the agent works."""
    roster = context.crib.roster
    workdir = roster.find(agent).workdir if roster.knows(agent) else None
    if workdir is None or not workdir.is_dir():
        yield context.project
        return
    async with context.crib.working_in(project_of(workdir)) as project:
        yield project


def _is_trusted(context: Context, project: Project, server: str) -> bool:
    config = project.config.servers.get(server)
    return config is not None and context.crib.trust.trusted(config) is not None


async def _named(context: Context, project: Project, name: str) -> tuple[Tool, str | None]:
    """The tool, or one that would have this name, and then why it is not known."""
    server, _, tool = name.partition(":")
    if not project.knows(name):
        # It may be the tool of a server that is still on its way.
        await project.settled([server] if tool else None)
    try:
        return project.find(name), None
    except ToolcribError as error:
        if not server or not tool:
            raise
        config = project.config.servers.get(server)
        believed = frozenset({server} if _is_trusted(context, project, server) else ())
        folder = None if config is None else config.reads_from(project.root)
        folders = {} if folder is None else {server: str(folder)}
        listing = {server: (msgspec.json.encode({"name": tool}),)}
        (made,) = Catalog.build(listing, version=0, believed=believed, folders=folders).tools
        return made, error.text()
