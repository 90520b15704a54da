"""What the register comes to: every agent with its permission, found by its name or by its token's digest.

In: a `Register`. Out: a frozen `Standing`, which reuses what did not change, so that permissions keep what they have
worked out. What cannot be understood allows nothing. `roster` has one at a time.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from toolcrib.agents.agent import Agent
from toolcrib.agents.register import Register, Written
from toolcrib.errors import ConfigError
from toolcrib.policy.permission import permission
from toolcrib.policy.profile import BUILTIN, Profile, profile_data, profile_from
from toolcrib.policy.rule import Effect, Origin, Rule, rule_data, rule_from
from toolcrib.store.agents import AgentRow

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, eq=False)
class Standing:
    register: Register
    profiles: Mapping[str, Profile]
    """The built-in ones and the person's own."""
    agents: Mapping[str, Agent]
    by_digest: Mapping[bytes, Agent]

    @classmethod
    def of(cls, register: Register, *, version: int, before: Standing | None = None) -> Standing:
        profiles = _profiles(register, before)
        agents: dict[str, Agent] = {}
        for name in register.agents:
            for one in reversed(register.lineage(name)):
                if one not in agents:
                    agents[one] = _agent(register, register.agents[one], profiles, agents, version, before)
        return cls(
            register=register,
            profiles=MappingProxyType(profiles),
            agents=MappingProxyType({name: agents[name] for name in register.agents}),
            by_digest={agent.digest: agent for agent in agents.values()},
        )


def _profiles(register: Register, before: Standing | None) -> dict[str, Profile]:
    found = dict(BUILTIN)
    for name, text in register.profiles.items():
        if before is not None and before.register.profiles.get(name) == text and name in before.profiles:
            found[name] = before.profiles[name]
            continue
        try:
            found[name] = profile_from(name, _decoded(text))
        except ConfigError as error:
            log.warning("the profile %s cannot be used; its agents may do nothing: %s", name, error.text())
    return found


def _agent(
    register: Register,
    row: AgentRow,
    profiles: Mapping[str, Profile],
    made: Mapping[str, Agent],
    version: int,
    before: Standing | None,
) -> Agent:
    parent = None if row.parent is None else made[row.parent]
    if before is not None and (same := before.agents.get(row.name)) is not None:
        unchanged = (
            before.register.agents[row.name] == row
            and before.register.rules.get(row.name) == register.rules.get(row.name)
            and before.profiles.get(row.profile) is profiles.get(row.profile)
            and (parent is None or before.agents.get(parent.name) is parent)
        )
        if unchanged:
            return same
    profile, rules, fault = profiles.get(row.profile), tuple[Rule, ...](), ""
    workdir = None if row.workdir is None else Path(row.workdir)
    try:
        rules = read_rules(row.name, register.rules.get(row.name, ()))
        if profile is None:
            fault = f"its profile {row.profile} cannot be used"
    except ConfigError as error:
        # To leave out one rule might leave out a deny.
        fault = f"one of its rules cannot be read: {error.message}"
    if profile is None or fault:
        log.warning("agent %s may do nothing: %s", row.name, fault)
        profile, rules = BUILTIN["nothing"], ()
    return Agent(
        name=row.name,
        profile=row.profile,
        workdir=workdir,
        parent=row.parent,
        created_at=row.created_at,
        expires_at=row.expires_at,
        permission=permission(
            profile,
            agent=row.name,
            rules=rules,
            workdir=workdir,
            parent=None if parent is None else parent.permission,
            version=version,
        ),
        digest=row.digest,
        fault=fault,
    )


def read_rules(agent: str, written: tuple[Written, ...]) -> tuple[Rule, ...]:
    return tuple(_rule(agent, origin, text) for origin, text in written)


def _rule(agent: str, origin: str, text: str) -> Rule:
    try:
        known = Origin(origin)
    except ValueError:
        raise ConfigError(f"a rule of the unknown origin {origin!r}") from None
    return rule_from(_decoded(text), where=f"agent {agent}", origin=known, holder=agent)


def _decoded(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"it is no JSON: {error}") from None


def written(rule: Rule) -> Written:
    return str(rule.origin), json.dumps(rule_data(rule), sort_keys=True)


def written_profile(profile: Profile) -> str:
    return json.dumps(profile_data(profile), sort_keys=True)


def narrows(before: Iterable[Rule], after: Iterable[Rule]) -> bool:
    """Whether the change can give nobody more than a question to a person: no new allow, no deny and no ask lost."""

    def those(rules: Iterable[Rule], *effects: Effect) -> set[str]:
        return {rule.meaning for rule in rules if rule.effect in effects}

    before, after = tuple(before), tuple(after)
    bounds = (Effect.DENY, Effect.ASK)
    return those(after, Effect.ALLOW) <= those(before, Effect.ALLOW) and those(after, *bounds) >= those(before, *bounds)


def narrows_profile(before: Profile, after: Profile) -> bool:
    return narrows(before.rules, after.rules) and not after.own_tools.exceeds(before.own_tools)
