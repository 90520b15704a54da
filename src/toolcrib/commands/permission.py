"""permission:* — an agent's own rules, and why it may or may not use a tool."""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
from pydantic import Field

from toolcrib.catalog.snapshot import Catalog
from toolcrib.catalog.tool import Tool
from toolcrib.commands.registry import Context, Effect, Parameters, Reach, registry
from toolcrib.config.project import project_of
from toolcrib.crib import Project
from toolcrib.errors import NotFound, ToolcribError
from toolcrib.policy import BUILTIN, CLIENT, OWNER, Origin, Permission, Rule, Verdict, rule_from
from toolcrib.policy import Effect as RuleEffect
from toolcrib.policy.permission import OWNERS_ALONE, RAW_ALONE, Match
from toolcrib.policy.rule import claims

_TOLD = 5
"""Tools and rules that are named one by one."""

_FLOORS = {
    OWNERS_ALONE.rule: "Nothing: only the owner may, at the command line or with the owner's token.",
    RAW_ALONE.rule: "Another profile: `trusted` may, and agents keep the profile they were made with.",
}


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
        return rule_from(data, where=f"rule for {self.agent}", origin=Origin.AGENT, holder=self.agent)


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
    if params.remove:
        if not await roster.drop_rule(params.agent, rule):
            own = [str(one) for one in roster.rules(params.agent)]
            raise NotFound(
                f"There is no such rule: {rule}.",
                remedy=f"Its rules: {'; '.join(own[:_TOLD]) or 'none'}.",
                data={"rules": own},
            )
        changed = True
    else:
        changed = await roster.add_rule(params.agent, rule)
    found = {"agent": params.agent, "rule": str(rule), "removed": params.remove, "changed": changed}
    return found | _reach(context.project, roster.find(params.agent).permission, rule)


def _reach(project: Project, permission: Permission, rule: Rule) -> dict[str, Any]:
    """Which tools the rule speaks of, and which of them stay denied; nothing where not all tools are known."""
    expected = {name for name, config in project.config.servers.items() if config.enabled}
    if any(server.tools is None for server in project.servers.values()) or expected - project.servers.keys():
        return {}
    covered = [tool for tool in project.catalog.tools if rule.covers(tool)]
    denied = []
    if rule.effect is not RuleEffect.DENY:
        decisions = ((tool, permission.decide(tool, None)) for tool in covered)
        denied = [
            {"tool": tool.display, "rule": decision.rule}
            for tool, decision in decisions
            if decision.verdict is Verdict.DENY
        ]
    return {"covers": len(covered), "still_denied": denied[:_TOLD], "still_denied_in_all": len(denied)}


class Asked(Parameters):
    agent: str
    tool: str
    """`server:tool`, or any full name of it."""
    arguments: dict[str, Any] | None = None
    """Of the call; without them, conditions on arguments are taken to hold where they allow something."""


@registry.command("permission:why", parameters=Asked, effect=Effect.REVEALS, reach=Reach.EVERYWHERE)
async def why(context: Context, params: Asked) -> dict[str, Any]:
    """Say whether an agent may use a tool, which rule decides, and what would change that."""
    permission = _permission(context, params.agent)
    async with _project_of(context, params.agent) as project:
        tool, unknown = await _named(context, project, params.tool)
    decision = permission.decide(tool, params.arguments)
    case = _Case(agent=params.agent, permission=permission, tool=tool, arguments=params.arguments)
    return {
        "agent": params.agent,
        "profile": permission.profile,
        "tool": tool.display,
        "known": unknown is None,
        "unknown": unknown or "",
        "verdict": decision.verdict,
        "rule": decision.rule,
        "arguments": params.arguments,
        "rules": list(case.rules()),
        "believed": tool.believed,
        "claimed": tool.annotations,
        "counts_as": claims(tool),
        "remedies": [] if decision.verdict is Verdict.ALLOW else list(dict.fromkeys(case.remedies())),
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
        believed = frozenset({server} if config is not None and context.crib.believes(config) else ())
        listing = {server: (msgspec.json.encode({"name": tool}),)}
        (made,) = Catalog.build(listing, version=0, believed=believed).tools
        return made, error.text()


@dataclass(frozen=True, kw_only=True)
class _Case:
    """One question about an agent, or about one above it."""

    agent: str
    permission: Permission
    tool: Tool
    arguments: dict[str, Any] | None

    def rules(self) -> Iterator[dict[str, Any]]:
        """All that speak of the tool; those of the agents above come after its own."""
        for match in self._matches():
            yield {"agent": self.agent, "rule": str(match.rule), "applies": match.applies}
        if self.permission.parent is not None:
            yield from self._above(self.permission.parent).rules()

    def remedies(self) -> Iterator[str]:
        """What would make it allowed; where several rules stand in the way, a line for each."""
        floor = self.permission.floor(self.tool)
        if floor is not None:
            yield _FLOORS[floor.rule]
            return
        yield from self._own_remedies()
        if self.permission.parent is not None:
            above = self._above(self.permission.parent)
            if above.permission.decide(self.tool, self.arguments).verdict is not Verdict.ALLOW:
                yield from above.remedies()

    def _own_remedies(self) -> Iterator[str]:
        decision = self.permission.by_itself(self.tool, self.arguments)
        if decision.verdict is Verdict.ALLOW:
            return
        if self._would_be_better_believed(decision.verdict):
            yield f"`toolcrib trust --server {shlex.quote(self.tool.server)}`: what its server says of it would count."
        matches = self._matches()
        denies = [match.rule for match in matches if match.applies and match.rule.effect is RuleEffect.DENY]
        for rule in denies:
            yield self._without(rule)
        if denies:
            return
        for match in matches:
            if str(match.rule) == decision.rule and match.rule.origin is not Origin.PROFILE:
                yield self._without(match.rule)
                return
            if not match.applies and match.rule.effect is RuleEffect.ALLOW:
                yield f"Arguments that fulfil it: {match.rule}."
        if self.agent not in (OWNER.agent, CLIENT.agent):
            yield f"`toolcrib allow {self.agent} {shlex.quote(self.tool.display)}`"

    def _matches(self) -> tuple[Match, ...]:
        return self.permission.matching(self.tool, self.arguments)

    def _above(self, parent: Permission) -> _Case:
        return dataclasses.replace(self, agent=parent.agent, permission=parent)

    def _would_be_better_believed(self, verdict: Verdict) -> bool:
        if self.tool.believed:
            return False
        believed = dataclasses.replace(self.tool, believed=True)
        after = self.permission.by_itself(believed, self.arguments).verdict
        return after is not verdict and after is not Verdict.DENY

    def _without(self, rule: Rule) -> str:
        if rule.origin is not Origin.PROFILE:
            return f"`{_removal(self.agent, rule)}`"
        if rule.holder in BUILTIN:
            return f"Another profile: {rule.holder} is built in, and agents keep the profile they were made with."
        return f"`toolcrib profile edit {rule.holder}`: take out {str(rule).partition(': ')[2]}."


def _removal(agent: str, rule: Rule) -> str:
    """The command line that takes the rule away."""
    words = ["toolcrib", "deny" if rule.effect is RuleEffect.DENY else "allow", agent, rule.tools]
    for name, value in rule.annotations.items():
        words += ["--where", name if value else f"not {name}"]
    for condition in rule.when:
        words += ["--when", str(condition)]
    words += ["--ask"] if rule.effect is RuleEffect.ASK else []
    return shlex.join([*words, "--remove"])
