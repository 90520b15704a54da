"""The compiled permission of one agent: its profile's rules, its own rules and its parent's.

In: a profile, rules, the agent's folder, the parent's permission; a `Tool`, with a call's arguments if known. Out: a
`Permission` that decides on a tool and a call's arguments, and caches its work per tool. Listing, searching and calling
all use `decide`, so the listed and the callable tools never differ. `identity` creates a new permission at every
change.

Precedence, whatever the order of the rules: a deny; then an "always" approval; then the agent's own asks and allows;
then the profile's. Without a match, the call is denied. A child gets the stricter of its own and its parent's decision.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from toolcrib.catalog.tool import OfferKind, Tool
from toolcrib.config.model import RESERVED_SERVER_NAMES, WORKSPACE, ListingMode
from toolcrib.policy.condition import Under
from toolcrib.policy.paths import PathContext, PathResolver
from toolcrib.policy.profile import BUILTIN, Profile
from toolcrib.policy.rule import Rule, RuleOrigin, Verdict, is_glob

OWNER_MARK = "toolcrib/owner"
"""The annotation of a command that only the owner may use."""
RAW_COMMAND = "raw_command"
_MAY_RAW = frozenset({"owner", "trusted"})


@dataclass(frozen=True, slots=True)
class Decision:
    verdict: Verdict
    rule: str
    """The text of the rule that decided."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RuleMatch:
    """A rule that covers a tool, and whether it applies to the arguments."""

    rule: Rule
    applies: bool


NO_RULE = Decision(Verdict.DENY, "no rule allows it")
OWNER_ONLY = Decision(Verdict.DENY, "built-in: only the owner may manage Toolcrib")
RAW_RESTRICTED = Decision(Verdict.DENY, "built-in: only the profiles owner and trusted may use raw commands")

_RANKS = {
    (RuleOrigin.APPROVAL, Verdict.ALLOW): 1,
    (RuleOrigin.APPROVAL, Verdict.ASK): 2,
    (RuleOrigin.AGENT, Verdict.ASK): 2,
    (RuleOrigin.AGENT, Verdict.ALLOW): 3,
    (RuleOrigin.PROFILE, Verdict.ASK): 4,
    (RuleOrigin.PROFILE, Verdict.ALLOW): 5,
}
_SEVERITY = {Verdict.ALLOW: 0, Verdict.ASK: 1, Verdict.DENY: 2}


class Permission:
    """Immutable and compared by identity."""

    __slots__ = (
        "__weakref__",
        "_index",
        "_plans",
        "agent",
        "folder",
        "key",
        "listing",
        "parent",
        "profile",
        "rules",
        "version",
    )

    def __init__(
        self,
        profile: Profile,
        *,
        agent: str = "",
        rules: Sequence[Rule] = (),
        workdir: Path | None = None,
        parent: Permission | None = None,
        version: int = 0,
        listing: ListingMode | None = None,
    ) -> None:
        if BUILTIN.get(profile.name, profile) is not profile:
            raise ValueError(f"{profile.name} is the name of a built-in profile")
        self.profile = profile.name
        self.agent = agent
        self.rules: tuple[Rule, ...] = (*profile.rules, *rules)
        self.parent = parent
        self.version = version
        self.listing = listing or profile.listing
        """How the tools are listed; None: as the configuration says. No part of the key: it permits nothing."""
        self.folder = None if workdir is None else os.path.abspath(workdir)  # noqa: PTH100 - links stay as they are
        """Where its rules' relative folders start. If None, they cannot be checked."""
        self.key = self._digest()
        self._index: _Index | None = None
        self._plans: WeakKeyDictionary[Tool, Decision | _Plan] = WeakKeyDictionary()

    def decide(self, tool: Tool, arguments: Mapping[str, Any] | None) -> Decision:
        """The decision on a call with these arguments. With None, as in a listing, an allow or ask with conditions
        applies, because a call may fulfil them; a deny with conditions does not."""
        plan = self._plans.get(tool) or self._plan(tool)
        return plan if isinstance(plan, Decision) else plan.decide(arguments, PathResolver(self.folder_of(tool)))

    def shows(self, tool: Tool) -> bool:
        """Whether to list the tool: with some arguments, a call is allowed or needs approval."""
        return self.decide(tool, None).verdict is not Verdict.DENY

    def folder_of(self, tool: Tool) -> str | None:
        """The folder the tool works in for this caller: the workspace uses each agent's own folder."""
        own = self.folder if tool.server == WORKSPACE else None
        return own or tool.folder

    @property
    def allows_nothing(self) -> bool:
        """Whether it denies every possible tool."""
        above = self.parent is not None and self.parent.allows_nothing
        return above or all(rule.effect is Verdict.DENY for rule in self.rules)

    def by_itself(self, tool: Tool, arguments: Mapping[str, Any] | None, *, without: Collection[Rule] = ()) -> Decision:
        """The decision without the parent and without the rules in `without`."""
        plan = self.fixed_denial(tool) or self._ruled(tool, without)
        return plan if isinstance(plan, Decision) else plan.decide(arguments, PathResolver(self.folder_of(tool)))

    def matching(self, tool: Tool, arguments: Mapping[str, Any] | None) -> tuple[RuleMatch, ...]:
        """Every rule that covers this tool, the strongest first."""
        steps = sorted(map(_Step, self._indexed().covering(tool)), key=_Step.order)
        paths = PathContext(self.folder, PathResolver(self.folder_of(tool)))
        return tuple(RuleMatch(rule=step.rule, applies=step.applies(arguments, paths)) for step in steps)

    def fixed_denial(self, tool: Tool) -> Decision | None:
        """A built-in denial that rules cannot change."""
        if tool.server not in RESERVED_SERVER_NAMES or self.profile == "owner":
            return None
        if tool.annotations.get(OWNER_MARK) is True:
            return OWNER_ONLY
        return RAW_RESTRICTED if tool.name == RAW_COMMAND and self.profile not in _MAY_RAW else None

    def _plan(self, tool: Tool) -> Decision | _Plan:
        plan = self._plans.get(tool)
        if plan is None:
            plan = self._plans[tool] = self._made_plan(tool)
        return plan

    def _made_plan(self, tool: Tool) -> Decision | _Plan:
        own = self.fixed_denial(tool) or self._ruled(tool)
        if self.parent is None or (isinstance(own, Decision) and own.verdict is Verdict.DENY):
            return own
        above = self.parent._plan(tool)
        if isinstance(own, Decision) and isinstance(above, Decision):
            return _stricter(own, above, self.parent)
        return _Bound(own, above, self.parent)

    def _ruled(self, tool: Tool, without: Collection[Rule] = ()) -> Decision | _Plan:
        steps = []
        rules = (rule for rule in self._indexed().covering(tool) if rule not in without)
        for step in sorted(map(_Step, rules), key=_Step.order):
            steps.append(step)
            if not step.rule.when:
                break
        if not steps:
            return NO_RULE
        return _Steps(steps, self.folder) if steps[0].rule.when else steps[0].decision

    def _indexed(self) -> _Index:
        if self._index is None:
            self._index = _Index(self.rules)
        return self._index

    def _digest(self) -> str:
        looks_at_paths = any(isinstance(condition.test, Under) for rule in self.rules for condition in rule.when)
        meaning = [
            self.profile if self.profile in _MAY_RAW else "",
            sorted({rule.meaning for rule in self.rules}),
            self.folder if looks_at_paths else None,
            self.parent.key if self.parent else None,
        ]
        return hashlib.sha256(json.dumps(meaning).encode("utf-8", "surrogatepass")).hexdigest()


class _Plan(Protocol):
    """Decides on one tool if the decision depends on the arguments."""

    def decide(self, arguments: Mapping[str, Any] | None, resolver: PathResolver) -> Decision: ...


class _Step:
    """A rule that covers the tool."""

    __slots__ = ("decision", "rank", "rule")

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.rank = 0 if rule.effect is Verdict.DENY else _RANKS[rule.origin, rule.effect]
        self.decision = Decision(rule.effect, rule.text)

    def order(self) -> tuple[int, bool, str]:
        """The strongest first; among equals, rules without conditions, then by text: never by insertion order."""
        return self.rank, bool(self.rule.when), self.decision.rule

    def applies(self, arguments: Mapping[str, Any] | None, paths: PathContext) -> bool:
        if not self.rule.when:
            return True
        if arguments is None:
            return self.rule.effect is not Verdict.DENY
        if self.rule.effect is Verdict.DENY:
            return self.rule.maybe(arguments, paths)
        return self.rule.surely(arguments, paths)


class _Steps:
    """Tries rules, the strongest first, until one applies."""

    __slots__ = ("_base", "_steps")

    def __init__(self, steps: Iterable[_Step], base: str | None) -> None:
        self._steps = tuple(steps)
        self._base = base

    def decide(self, arguments: Mapping[str, Any] | None, resolver: PathResolver) -> Decision:
        paths = PathContext(self._base, resolver)
        doubtful: Decision | None = None
        for step in self._steps:
            if step.applies(arguments, paths):
                # An ask that may apply takes precedence over a weaker allow; denies came first.
                return doubtful or step.decision
            if doubtful is None and step.rule.effect is Verdict.ASK and step.rule.maybe(arguments, paths):
                doubtful = step.decision
        return NO_RULE


class _Bound:
    """A child's plan and its parent's."""

    __slots__ = ("_above", "_own", "_parent")

    def __init__(self, own: Decision | _Plan, above: Decision | _Plan, parent: Permission) -> None:
        self._own = own
        self._above = above
        self._parent = parent

    def decide(self, arguments: Mapping[str, Any] | None, resolver: PathResolver) -> Decision:
        own, above = (
            plan if isinstance(plan, Decision) else plan.decide(arguments, resolver)
            for plan in (self._own, self._above)
        )
        return _stricter(own, above, self._parent)


def _stricter(own: Decision, above: Decision, parent: Permission) -> Decision:
    if _SEVERITY[above.verdict] <= _SEVERITY[own.verdict]:
        return own
    return Decision(above.verdict, f"its parent {parent.agent}: {above.rule}")


class _Index:
    """Rules by server and tool name, so that a lookup does not try every rule."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._rules: dict[tuple[str | None, str | None], list[Rule]] = {}
        for rule in rules:
            for server, tool in rule.readings:
                # A resource's address has several spellings.
                name = None if rule.kind is OfferKind.RESOURCE else _literal(tool)
                self._rules.setdefault((_literal(server), name), []).append(rule)

    def covering(self, tool: Tool) -> list[Rule]:
        server, name = tool.server.casefold(), tool.name.casefold()
        keys = ((server, name), (server, None), (None, name), (None, None))
        # A rule with several readings may have several entries.
        found = {id(rule): rule for key in keys for rule in self._rules.get(key, ())}
        return [rule for rule in found.values() if rule.covers(tool)]


def _literal(pattern: str) -> str | None:
    """None for a glob."""
    return None if is_glob(pattern) else pattern.casefold()
