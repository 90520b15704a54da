"""Which rules speak of a tool for an agent, and what would let the agent use it.

In: an agent's permission, a tool and a call's arguments. Out: rows and lines for a person. `permission:why` asks it.
Every line of `ways` is a whole way: whoever does all that it says has allowed the tool.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from toolcrib.catalog.tool import Tool
from toolcrib.policy import BUILTIN, CLIENT, OWNER, Decision, Effect, Origin, Permission, Rule, Verdict
from toolcrib.policy.permission import NO_RULE, OWNERS_ALONE, RAW_ALONE, Match

_FLOORS = {
    OWNERS_ALONE.rule: "Nothing: only the owner may, at the command line or with the owner's token.",
    RAW_ALONE.rule: "Another profile: `trusted` may, and agents keep the profile they were made with.",
}


def floor_of(permission: Permission, tool: Tool) -> Decision | None:
    """The decision that no rule changes, of the agent or of one above it."""
    above = permission.parent
    return permission.floor(tool) or (None if above is None else floor_of(above, tool))


def unjudged(agent: str, permission: Permission, rules: Iterable[Rule]) -> list[str]:
    """What to say of rules that start at the agent's folder, where it has none."""
    if permission.folder is not None:
        return []
    return [
        f"{agent} has no folder, so `{condition}` can't be judged: {rule} {_unjudged_effect(rule, condition.argument)}."
        for rule in rules
        for condition in rule.from_folder
    ]


def _unjudged_effect(rule: Rule, argument: str) -> str:
    match rule.effect:
        case Effect.ALLOW:
            return "never applies"
        case Effect.ASK:
            return "opens nothing"
        case Effect.DENY:
            return f"may apply to every call that gives {argument}"


@dataclass(frozen=True, kw_only=True)
class Case:
    """One question about an agent, or about one above it."""

    agent: str
    permission: Permission
    tool: Tool
    arguments: dict[str, Any] | None
    label: str = ""
    """Whose the rules are, before each of them; nothing for the agent's own."""

    def rules(self) -> Iterator[dict[str, Any]]:
        """All that speak of the tool; those of the agents above come after its own."""
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
        """What would make it allowed, each line by itself."""
        floor = floor_of(self.permission, self.tool)
        if floor is not None:
            yield _FLOORS[floor.rule]
            return
        held = [case for case in self._line() if case._decision().verdict is not Verdict.ALLOW]
        believed = dataclasses.replace(self.tool, believed=True)
        if all(dataclasses.replace(case, tool=believed)._decision().verdict is Verdict.ALLOW for case in held):
            yield f"`toolcrib trust --server {shlex.quote(self.tool.server)}`: what its server says of it would count."
        if len(held) == 1:
            yield from held[0]._other_arguments()
        steps = dict.fromkeys(step for case in held for step in case._steps())
        if steps:
            way = ", then ".join(steps)
            yield way[0].upper() + way[1:] + ("" if way.endswith("`") else ".")

    def _line(self) -> tuple[Case, ...]:
        """The agent and all above it."""
        parent = self.permission.parent
        if parent is None:
            return (self,)
        label = f"{self.label}its parent {parent.agent}: "
        return self, *dataclasses.replace(self, agent=parent.agent, permission=parent, label=label)._line()

    def _decision(self) -> Decision:
        return self.permission.by_itself(self.tool, self.arguments)

    def _matches(self) -> tuple[Match, ...]:
        return self.permission.matching(self.tool, self.arguments)

    def _other_arguments(self) -> Iterator[str]:
        if self._decision() != NO_RULE:
            return
        for match in self._matches():
            rule = match.rule
            judged = self.permission.folder is not None or not rule.from_folder
            if not match.applies and rule.effect is Effect.ALLOW and judged:
                yield f"Arguments that fulfil it: {rule}."

    def _steps(self) -> Iterator[str]:
        """All that is to be done for this agent, one after the other."""
        matches, gone = self._matches(), list[Rule]()
        while True:
            decision = self.permission.by_itself(self.tool, self.arguments, without=gone)
            if decision.verdict is Verdict.ALLOW:
                return
            decides = [match.rule for match in matches if str(match.rule) == decision.rule]
            if not decides or (decision.verdict is Verdict.ASK and decides[0].origin is Origin.PROFILE):
                # An allow of its own is enough here.
                if self.agent not in (OWNER.agent, CLIENT.agent):
                    yield f"`toolcrib allow {self.agent} {shlex.quote(self.tool.display)}`"
                return
            yield self._without(decides[0])
            if decides[0].holder in BUILTIN and decides[0].origin is Origin.PROFILE:
                return
            gone += decides

    def _without(self, rule: Rule) -> str:
        if rule.origin is not Origin.PROFILE:
            return f"`{_removal(self.agent, rule)}`"
        if rule.holder in BUILTIN:
            return f"another profile: {rule.holder} is built in, and agents keep the profile they were made with"
        return f"`toolcrib profile edit {rule.holder}`: take out {str(rule).partition(': ')[2]}"


def _removal(agent: str, rule: Rule) -> str:
    """The command line that takes the rule away."""
    words = ["toolcrib", "deny" if rule.effect is Effect.DENY else "allow", agent, rule.tools]
    for name, value in rule.annotations.items():
        words += ["--where", name if value else f"not {name}"]
    for condition in rule.when:
        words += ["--when", str(condition)]
    words += ["--ask"] if rule.effect is Effect.ASK else []
    return shlex.join([*words, "--remove"])
