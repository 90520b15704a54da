"""All agents, their rules, and the person's own profiles, as stored.

In: rows. Out: a frozen `AgentRecords`; `store_records` writes the difference between two of them. The state in force
and the stored state are both records, so the pending difference is always known. `state` holds them and parses the
rules.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from toolcrib.errors import StoreError
from toolcrib.store.identity import (
    AgentRow,
    ProfileRow,
    add_agent,
    add_rule,
    all_agents,
    all_profiles,
    all_rules,
    change_token,
    drop_profile,
    drop_rules,
    next_version,
    put_profile,
    remove_agents,
    version,
)

if TYPE_CHECKING:
    from sqlalchemy import Connection

COUNTER = "permissions"

StoredRule = tuple[str, str]
"""A rule: its origin and its text."""


@dataclass(frozen=True, kw_only=True)
class AgentRecords:
    agents: Mapping[str, AgentRow] = field(default_factory=dict)
    rules: Mapping[str, tuple[StoredRule, ...]] = field(default_factory=dict)
    """By agent, without duplicates."""
    profiles: Mapping[str, str] = field(default_factory=dict)
    """The person's own profiles, by name."""

    def family(self, name: str) -> tuple[str, ...]:
        """The agent and all its descendants, parents first."""
        found = [name]
        for one in found:
            found += [child.name for child in self.agents.values() if child.parent == one and child.name not in found]
        return tuple(found)

    def lineage(self, name: str) -> tuple[str, ...]:
        """The agent, its parent, and so on."""
        found: list[str] = []
        at: str | None = name
        while at is not None and at in self.agents and at not in found:
            found.append(at)
            at = self.agents[at].parent
        return tuple(found)

    def with_agent(self, row: AgentRow, rules: Iterable[StoredRule]) -> AgentRecords:
        return replace(
            self, agents={**self.agents, row.name: row}, rules={**self.rules, row.name: tuple(dict.fromkeys(rules))}
        )

    def with_rules(self, agent: str, rules: Iterable[StoredRule]) -> AgentRecords:
        return replace(self, rules={**self.rules, agent: tuple(dict.fromkeys(rules))})

    def without(self, names: Collection[str]) -> AgentRecords:
        return replace(
            self,
            agents={name: row for name, row in self.agents.items() if name not in names},
            rules={name: rules for name, rules in self.rules.items() if name not in names},
        )

    def living(self, now: float) -> AgentRecords:
        """Without expired agents, and without descendants of missing or expired ones."""

        def lives(name: str) -> bool:
            lineage = self.lineage(name)
            rooted = self.agents[lineage[-1]].parent is None
            return rooted and all((end := self.agents[one].expires_at) is None or end > now for one in lineage)

        gone = [name for name in self.agents if not lives(name)]
        return self.without(gone) if gone else self

    def or_else(self, other: AgentRecords) -> AgentRecords:
        """The union: everything the store may hold after a write with an unknown outcome."""
        rules = {
            name: tuple(dict.fromkeys((*self.rules.get(name, ()), *other.rules.get(name, ()))))
            for name in (*self.rules, *other.rules)
        }
        return AgentRecords(
            agents={**self.agents, **other.agents}, rules=rules, profiles={**self.profiles, **other.profiles}
        )

    def known_to(self, other: AgentRecords) -> AgentRecords:
        """The part that `other` also has: rows that another process added are not ours to remove."""
        return AgentRecords(
            agents={name: row for name, row in self.agents.items() if name in other.agents},
            rules={
                name: tuple(rule for rule in rules if rule in other.rules.get(name, ()))
                for name, rules in self.rules.items()
            },
            profiles={name: text for name, text in self.profiles.items() if name in other.profiles},
        )


def load_records(connection: Connection) -> tuple[AgentRecords, int]:
    """The stored records and their permission version."""
    agents = {row.name: row for row in all_agents(connection)}
    rules: dict[str, list[StoredRule]] = {name: [] for name in agents}
    for row in all_rules(connection):
        rules[row.agent].append((row.origin, row.rule))
    profiles = {row.name: row.content for row in all_profiles(connection)}
    return (
        AgentRecords(agents=agents, rules={name: tuple(held) for name, held in rules.items()}, profiles=profiles),
        version(connection, COUNTER),
    )


def store_records(
    connection: Connection, stored: AgentRecords, wanted: AgentRecords, *, at_least: int, now: float, sure: bool
) -> int:
    """Writes the difference from `stored` to `wanted` and returns the new version. If not `sure`, it first checks which
    rows of `stored` exist."""
    if not sure:
        stored = load_records(connection)[0].known_to(stored)
    replaced = _keep_agents(connection, stored, wanted)
    _keep_rules(connection, stored.without(replaced), wanted, now)
    for name in stored.profiles.keys() - wanted.profiles.keys():
        drop_profile(connection, name)
    for name, text in wanted.profiles.items():
        if stored.profiles.get(name) != text:
            put_profile(connection, ProfileRow(name=name, content=text, changed_at=now))
    reached = next_version(connection, COUNTER)
    while reached < at_least:
        reached = next_version(connection, COUNTER)
    return reached


def _keep_agents(connection: Connection, stored: AgentRecords, wanted: AgentRecords) -> set[str]:
    """Returns the names of the removed or replaced agents, whose rules were deleted with them."""
    before = stored.agents
    gone = {name for name, row in before.items() if not _is_same(row, wanted.agents.get(name))}
    remove_agents(connection, sorted(gone))
    for name, row in wanted.agents.items():
        if name not in before or name in gone:
            if not add_agent(connection, row):
                raise StoreError(
                    f"The database already has an agent {name!r} that this process did not create.",
                    remedy="Another process created it: restart the daemon, or choose another name.",
                )
        elif row != before[name] and not change_token(connection, name, row.digest, row.expires_at):
            raise StoreError(
                f"The agent {name!r} is no longer in the database.",
                remedy="Another process removed it: restart the daemon.",
            )
    return gone


def _is_same(row: AgentRow, other: AgentRow | None) -> bool:
    """Whether `other` is the same agent, possibly with another token."""
    return other is not None and replace(row, digest=other.digest, expires_at=other.expires_at) == other


def _keep_rules(connection: Connection, stored: AgentRecords, wanted: AgentRecords, now: float) -> None:
    dropped, added = set[tuple[str, StoredRule]](), set[tuple[str, StoredRule]]()
    for name in wanted.agents:
        before, after = stored.rules.get(name, ()), wanted.rules.get(name, ())
        if before != after:
            dropped.update((name, rule) for rule in before if rule not in after)
            added.update((name, rule) for rule in after if rule not in before)
    if dropped:
        there = all_rules(connection)
        drop_rules(connection, [row.id for row in there if (row.agent, (row.origin, row.rule)) in dropped])
    for agent, (origin, text) in sorted(added):
        add_rule(connection, agent, origin=origin, rule=text, added_at=now)
