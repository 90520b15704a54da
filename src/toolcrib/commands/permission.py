"""permission:* and profile:* — an agent's own rules, the reason for a decision, and shared sets of rules.

`PermissionCase` finds which rules apply to a tool, and what would let the agent use it: each line of `ways` is a
complete alternative, and following it allows the tool.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from pydantic import Field

from toolcrib.catalog.offers import resource_or_prompt
from toolcrib.catalog.snapshot import Catalog
from toolcrib.catalog.tool import OfferKind, Tool
from toolcrib.commands.pins import pin_status
from toolcrib.commands.registry import (
    VERBATIM,
    Availability,
    CommandContext,
    CommandEffect,
    CommandScope,
    Parameters,
    ServersNeeded,
    registry,
)
from toolcrib.config.model import ListingMode
from toolcrib.config.paths import project_of
from toolcrib.core.project import Project
from toolcrib.errors import ConfigError, NotFound, ToolcribError, UnknownOffer, UsageError
from toolcrib.identity.agent import Agent
from toolcrib.identity.principal import CLIENT, OWNER
from toolcrib.policy import (
    BUILTIN,
    Decision,
    OwnTools,
    Permission,
    Profile,
    Rule,
    RuleOrigin,
    Verdict,
    profile_data,
    profile_from,
    rule_from,
)
from toolcrib.policy.permission import NO_RULE, OWNER_ONLY, RAW_RESTRICTED, RuleMatch
from toolcrib.policy.rule import kind_and_glob

_FIXED_DENIALS = {
    OWNER_ONLY.rule: "Not possible: only the owner can use it, on the command line or with the owner's token.",
    RAW_RESTRICTED.rule: "Create a new agent with the profile `trusted`: an agent's profile can't be changed.",
}


def fixed_denial(permission: Permission, tool: Tool) -> Decision | None:
    """The decision for the agent or one of its ancestors that no rule can change."""
    above = permission.parent
    return permission.fixed_denial(tool) or (None if above is None else fixed_denial(above, tool))


def unjudged(agent: str, permission: Permission, rules: Iterable[Rule]) -> list[str]:
    """A message for each rule that needs the agent's folder, if it has none."""
    if permission.folder is not None:
        return []
    return [
        f"{agent} has no folder, so `{condition}` can't be checked: "
        f"{rule} {_unjudged_effect(rule, condition.argument)}."
        for rule in rules
        for condition in rule.from_folder
    ]


def _unjudged_effect(rule: Rule, argument: str) -> str:
    match rule.effect:
        case Verdict.ALLOW:
            return "never applies"
        case Verdict.ASK:
            return "allows nothing"
        case Verdict.DENY:
            return f"may apply to every call with {argument}"


@dataclass(frozen=True, kw_only=True)
class PermissionCase:
    """A tool and its arguments, judged for an agent or one of its ancestors."""

    agent: str
    permission: Permission
    tool: Tool
    arguments: dict[str, Any] | None
    label: str = ""
    """The ancestor that has the rules, as a prefix; empty for the agent itself."""

    def rules(self) -> Iterator[dict[str, Any]]:
        """All rules that match the tool; those of its ancestors come after the agent's own."""
        for case in self._line():
            for match in case._matches():
                yield {"agent": case.agent, "rule": f"{case.label}{match.rule}", "applies": match.applies}

    def unjudged(self) -> list[str]:
        return [
            line
            for case in self._line()
            for line in unjudged(case.agent, case.permission, (match.rule for match in case._matches()))
        ]

    def ways(self) -> Iterator[str]:
        """The alternatives that would allow the tool."""
        floor = fixed_denial(self.permission, self.tool)
        if floor is not None:
            yield _FIXED_DENIALS[floor.rule]
            return
        held = [case for case in self._line() if case._decision().verdict is not Verdict.ALLOW]
        trusted_tool = dataclasses.replace(self.tool, trusted=True)
        if all(dataclasses.replace(case, tool=trusted_tool)._decision().verdict is Verdict.ALLOW for case in held):
            yield f"`toolcrib trust --server {shlex.quote(self.tool.server)}`: its server's annotations would count."
        if len(held) == 1:
            yield from held[0]._other_arguments()
        steps = dict.fromkeys(step for case in held for step in case._steps())
        if steps:
            way = ", then ".join(steps)
            yield way[0].upper() + way[1:] + ("" if way.endswith("`") else ".")

    def _line(self) -> tuple[PermissionCase, ...]:
        """The agent and its ancestors."""
        parent = self.permission.parent
        if parent is None:
            return (self,)
        label = f"{self.label}its parent {parent.agent}: "
        return self, *dataclasses.replace(self, agent=parent.agent, permission=parent, label=label)._line()

    def _decision(self) -> Decision:
        return self.permission.by_itself(self.tool, self.arguments)

    def _matches(self) -> tuple[RuleMatch, ...]:
        return self.permission.matching(self.tool, self.arguments)

    def _other_arguments(self) -> Iterator[str]:
        if self._decision() != NO_RULE:
            return
        for match in self._matches():
            rule = match.rule
            judged = self.permission.folder is not None or not rule.from_folder
            if not match.applies and rule.effect is Verdict.ALLOW and judged:
                yield f"Arguments that match: {rule}."

    def _steps(self) -> Iterator[str]:
        """The steps for this agent, in order."""
        matches, gone = self._matches(), list[Rule]()
        while True:
            decision = self.permission.by_itself(self.tool, self.arguments, without=gone)
            if decision.verdict is Verdict.ALLOW:
                return
            decides = [match.rule for match in matches if str(match.rule) == decision.rule]
            if not decides or (decision.verdict is Verdict.ASK and decides[0].origin is RuleOrigin.PROFILE):
                # An allow rule of its own is enough.
                if self.agent not in (OWNER.name, CLIENT.name):
                    yield f"`toolcrib allow {self.agent} {shlex.quote(self.tool.display)}`"
                return
            yield self._without(decides[0])
            if decides[0].holder in BUILTIN and decides[0].origin is RuleOrigin.PROFILE:
                return
            gone += decides

    def _without(self, rule: Rule) -> str:
        if rule.origin is not RuleOrigin.PROFILE:
            return f"`{_removal(self.agent, rule)}`"
        if rule.holder in BUILTIN:
            return (
                f"create a new agent with another profile: {rule.holder} is built in, and an agent's profile can't be "
                "changed"
            )
        return f"`toolcrib profile edit {rule.holder}`: delete {str(rule).partition(': ')[2]}"


def _removal(agent: str, rule: Rule) -> str:
    """The command line that removes the rule."""
    words = ["toolcrib", "deny" if rule.effect is Verdict.DENY else "allow", agent, rule.tools]
    for name, value in rule.annotations.items():
        words += ["--where", name if value else f"not {name}"]
    for condition in rule.when:
        words += ["--when", str(condition)]
    words += ["--ask"] if rule.effect is Verdict.ASK else []
    return shlex.join([*words, "--remove"])


_SHOWN = 5
"""The number of tools or rules that an answer lists."""


class RuleParameters(Parameters):
    agent: str
    tools: str
    """A glob over server and tool: `git:*`."""
    when: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Conditions on arguments, as in a profile: `{"path": {"under": "src"}}`."""
    annotations: dict[str, bool] = Field(default_factory=dict)
    remove: bool = False
    """Remove exactly this rule."""

    def rule(self, effect: Verdict) -> Rule:
        data = {str(effect): self.tools, "when": self.when, "annotations": self.annotations}
        try:
            return rule_from(data, where=f"rule for {self.agent}", origin=RuleOrigin.AGENT, holder=self.agent)
        except ConfigError as error:
            # The rule comes from the parameters, not from a file.
            raise UsageError(error.message, remedy=error.remedy) from None


class AllowParameters(RuleParameters):
    ask: bool = False
    """Ask the owner before each call."""


@registry.command(
    "permission:allow", CommandEffect.CHANGES, Availability.EVERYWHERE, scope=CommandScope.DAEMON, cached=True
)
async def allow(context: CommandContext, params: AllowParameters) -> dict[str, Any]:
    """Allow an agent the tools that match a glob, or remove such a rule."""
    return await _change(context, params, params.rule(Verdict.ASK if params.ask else Verdict.ALLOW))


@registry.command(
    "permission:deny", CommandEffect.CHANGES, Availability.EVERYWHERE, scope=CommandScope.DAEMON, cached=True
)
async def deny(context: CommandContext, params: RuleParameters) -> dict[str, Any]:
    """Deny an agent the tools that match a glob, or remove such a rule; a deny always wins."""
    return await _change(context, params, params.rule(Verdict.DENY))


async def _change(context: CommandContext, params: RuleParameters, rule: Rule) -> dict[str, Any]:
    agents = context.services.agents
    found = {"agent": params.agent, "rule": str(rule), "removed": params.remove}
    if params.remove:
        if not await agents.drop_rule(params.agent, rule):
            own = [str(one) for one in agents.rules(params.agent)]
            raise NotFound(
                f"There is no such rule: {rule}.",
                remedy=f"Its rules: {'; '.join(own[:_SHOWN]) or 'none'}.",
                data={"rules": own},
            )
        return {**found, "changed": True}
    _refuse_unjudged(agents.find(params.agent), rule)
    changed = await agents.add_rule(params.agent, rule)
    return {**found, "changed": changed, **_coverage(context.project, agents.find(params.agent).permission, rule)}


def _refuse_unjudged(agent: Agent, rule: Rule) -> None:
    if agent.workdir is None and rule.from_folder:
        raise UsageError(
            f"{agent.name} has no folder, so `{rule.from_folder[0]}` can't be checked.",
            remedy="Write an absolute path, or use an agent with a folder: `toolcrib agent add NAME --workdir DIR`.",
        )


def _coverage(project: Project, permission: Permission, rule: Rule) -> dict[str, Any]:
    """The known tools, resources and prompts that the rule matches, and those of them that are still denied."""
    known = {name for name, server in project.servers.items() if server.tools is not None}
    enabled = {name for name, config in project.config.servers.items() if config.enabled}
    offers = (offer.tool for offer in project.offers.everything())
    covered = [tool for tool in (*project.catalog.tools, *offers) if rule.covers(tool)]
    denied: list[dict[str, str]] = []
    never: Counter[str] = Counter()
    for tool in covered if rule.effect is not Verdict.DENY else ():
        decision = permission.decide(tool, None)
        if decision.verdict is not Verdict.DENY:
            continue
        if floor := fixed_denial(permission, tool):
            never[floor.rule] += 1
        else:
            denied.append({"tool": tool.display, "rule": decision.rule})
    return {
        "kind": rule.kind,
        "covers": len(covered),
        "unknown_servers": sorted(name for name in enabled - known if rule.reaches(name)),
        "still_denied": denied[:_SHOWN],
        "still_denied_in_all": len(denied),
        "never_allowed": [{"rule": floor, "tools": count} for floor, count in never.items()],
    }


class WhyParameters(Parameters):
    agent: str
    tool: str
    """`server:tool`, or any of its full names; `resource:server:uri`, `prompt:server:name`."""
    arguments: Annotated[dict[str, Any] | None, VERBATIM] = None
    """Without them, conditions on arguments count as met in rules that allow something."""


@registry.command("permission:why", CommandEffect.REVEALS, Availability.EVERYWHERE, servers=ServersNeeded.NAMED)
async def why(context: CommandContext, params: WhyParameters) -> dict[str, Any]:
    """Show whether an agent may use a tool, which rule decides, and how to change that."""
    permission = _permission(context, params.agent)
    async with _project_of(context, params.agent) as project:
        tool, unknown = await _find_tool(context, project, params.tool)
    arguments = None if params.arguments is None else tool.taken(params.arguments)
    if tool.kind is OfferKind.RESOURCE:
        arguments = {"uri": tool.name}
    decision = permission.decide(tool, arguments)
    case = PermissionCase(agent=params.agent, permission=permission, tool=tool, arguments=arguments)
    return {
        "agent": params.agent,
        "profile": permission.profile,
        "tool": tool.display,
        "server": tool.server,
        "kind": tool.kind,
        "known": unknown is None,
        "unknown": unknown or "",
        "verdict": decision.verdict,
        "rule": decision.rule,
        "arguments": arguments,
        "rules": list(case.rules()),
        "unjudged": case.unjudged(),
        "folder": permission.folder_of(tool),
        "trusted": tool.trusted,
        "pin": pin_status(project, tool),
        "claimed": tool.annotations,
        "counts_as": tool.claims,
        "remedies": [] if decision.verdict is Verdict.ALLOW else list(case.ways()),
    }


def _permission(context: CommandContext, agent: str) -> Permission:
    for always in (OWNER, CLIENT):
        if agent == always.name:
            return always.permission()
    return context.services.agents.find(agent).permission


@contextlib.asynccontextmanager
async def _project_of(context: CommandContext, agent: str) -> AsyncIterator[Project]:
    """The project of the agent's folder."""
    agents = context.services.agents
    workdir = agents.find(agent).workdir if agents.knows(agent) else None
    if workdir is None or not workdir.is_dir():
        yield context.project
        return
    async with context.crib.projects.working_in(project_of(workdir)) as project:
        yield project


def _is_trusted(context: CommandContext, project: Project, server: str) -> bool:
    config = project.config.servers.get(server)
    return config is not None and context.crib.trust.trusted(config) is not None


async def _find_tool(context: CommandContext, project: Project, name: str) -> tuple[Tool, str | None]:
    """The tool, or a placeholder with this name and the reason why the tool is unknown."""
    kind, rest = kind_and_glob(name)
    server, _, tool = rest.partition(":")
    if kind is not OfferKind.TOOL:
        await project.settled([server])
        try:
            return project.offers.displayed(name), None
        except UnknownOffer as error:
            return resource_or_prompt(kind, server, tool, {}), error.text()
    if not project.knows(name):
        # Its server may still be connecting.
        await project.settled([server] if tool else None)
    try:
        return project.find(name), None
    except ToolcribError as error:
        if not server or not tool:
            raise
        config = project.config.servers.get(server)
        trusted = frozenset({server} if _is_trusted(context, project, server) else ())
        folder = None if config is None else config.reads_from(project.root)
        folders = {} if folder is None else {server: str(folder)}
        listing = {server: (msgspec.json.encode({"name": tool}),)}
        (made,) = Catalog.build(listing, version=0, trusted=trusted, folders=folders).tools
        return made, error.text()


def _described_profile(context: CommandContext, profile: Profile) -> dict[str, Any]:
    return {
        "name": profile.name,
        "description": profile.description,
        "builtin": profile.builtin,
        "own_tools": str(profile.own_tools),
        "listing": profile.listing,
        "agents": sorted(agent.name for agent in context.services.agents.agents if agent.profile == profile.name),
    }


@registry.command("profile:list", CommandEffect.REVEALS, Availability.EVERYWHERE, scope=CommandScope.DAEMON)
async def list_profiles(context: CommandContext, _: Parameters) -> dict[str, Any]:
    """List the profiles: description, number of rules, and agents of each."""
    return {
        "profiles": [
            {**_described_profile(context, profile), "rules": len(profile.rules)}
            for profile in context.services.agents.profiles.values()
        ]
    }


class ProfileName(Parameters):
    name: str


@registry.command("profile:show", CommandEffect.REVEALS, Availability.EVERYWHERE, scope=CommandScope.DAEMON)
async def show_profile(context: CommandContext, params: ProfileName) -> dict[str, Any]:
    """Show a profile with all its rules."""
    profile = context.services.agents.profile(params.name)
    return {**_described_profile(context, profile), **profile_data(profile)}


class PutProfile(Parameters):
    name: str
    description: str = ""
    rules: list[Any] = Field(default_factory=list)
    """Each is `{"allow" | "deny" | "ask": "server:tool", "annotations"?: {…}, "when"?: {…}}`."""
    own_tools: str = Field(
        default=OwnTools.NONE, description="limit of a coding agent's own tools: none, read, edit or all"
    )
    listing: ListingMode | None = Field(default=None, description="how its agents' tools are listed")


@registry.command("profile:put", CommandEffect.CHANGES, Availability.EVERYWHERE, scope=CommandScope.DAEMON, cached=True)
async def put_profile(context: CommandContext, params: PutProfile) -> dict[str, Any]:
    """Create a profile, or replace the rules of an existing one; its agents get them immediately."""
    profile = profile_from(params.name, params.model_dump(exclude={"name"}))
    changed = await context.services.agents.put_profile(profile)
    return {**_described_profile(context, profile), "rules": len(profile.rules), "changed": changed}


@registry.command(
    "profile:remove", CommandEffect.CHANGES, Availability.EVERYWHERE, scope=CommandScope.DAEMON, cached=True
)
async def remove_profile(context: CommandContext, params: ProfileName) -> dict[str, Any]:
    """Remove an unused profile that is not built in."""
    await context.services.agents.drop_profile(params.name)
    return {"profile": params.name}
