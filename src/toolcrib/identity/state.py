"""The permissions in force, and the stored ones.

In: the wanted `AgentRecords`, and the change behind them. Out: before a change returns, a frozen `PermissionSnapshot`
is in force, stored and in the audit log, and subscribers are notified. A change that narrows takes effect in memory
first, so that it applies even if the store fails; a change that widens is stored and audited first. Invalid stored
data allows nothing. `registry` makes the changes; `records` writes them.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from toolcrib.config.model import ListingMode
from toolcrib.errors import ConfigError, StoreError, ToolcribError
from toolcrib.events import AgentEnded, AuditedChange, Bus, PermissionChanged
from toolcrib.identity.agent import Agent, ErrorForm
from toolcrib.identity.records import AgentRecords, StoredRule, store_records
from toolcrib.policy.permission import Permission
from toolcrib.policy.profile import BUILTIN, Profile, profile_data, profile_from
from toolcrib.policy.rule import Rule, RuleOrigin, Verdict, rule_data, rule_from
from toolcrib.store.database import Store
from toolcrib.store.identity import AgentRow

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, eq=False)
class PermissionSnapshot:
    records: AgentRecords
    profiles: Mapping[str, Profile]
    """The built-in profiles and the person's own."""
    agents: Mapping[str, Agent]
    by_digest: Mapping[bytes, Agent]

    @classmethod
    def of(cls, records: AgentRecords, *, version: int, before: PermissionSnapshot | None = None) -> PermissionSnapshot:
        profiles = _profiles(records, before)
        agents: dict[str, Agent] = {}
        for name in records.agents:
            for one in reversed(records.lineage(name)):
                if one not in agents:
                    agents[one] = _agent(records, records.agents[one], profiles, agents, version, before)
        return cls(
            records=records,
            profiles=MappingProxyType(profiles),
            agents=MappingProxyType({name: agents[name] for name in records.agents}),
            by_digest={agent.digest: agent for agent in agents.values()},
        )


def _profiles(records: AgentRecords, before: PermissionSnapshot | None) -> dict[str, Profile]:
    found = dict(BUILTIN)
    for name, text in records.profiles.items():
        if before is not None and before.records.profiles.get(name) == text and name in before.profiles:
            found[name] = before.profiles[name]
            continue
        try:
            found[name] = profile_from(name, _decoded(text))
        except ConfigError as error:
            log.warning("the profile %s is invalid; its agents have no permissions: %s", name, error.text())
    return found


def _agent(
    records: AgentRecords,
    row: AgentRow,
    profiles: Mapping[str, Profile],
    made: Mapping[str, Agent],
    version: int,
    before: PermissionSnapshot | None,
) -> Agent:
    parent = None if row.parent is None else made[row.parent]
    if before is not None and (same := before.agents.get(row.name)) is not None:
        unchanged = (
            before.records.agents[row.name] == row
            and before.records.rules.get(row.name) == records.rules.get(row.name)
            and before.profiles.get(row.profile) is profiles.get(row.profile)
            and (parent is None or before.agents.get(parent.name) is parent)
        )
        if unchanged:
            return same
    profile, rules, fault = profiles.get(row.profile), tuple[Rule, ...](), ""
    workdir = None if row.workdir is None else Path(row.workdir)
    try:
        rules = read_rules(row.name, records.rules.get(row.name, ()))
        if profile is None:
            fault = f"its profile {row.profile} is missing or invalid"
    except ConfigError as error:
        # Skipping one rule could skip a deny.
        fault = f"one of its rules is invalid: {error.message}"
    if profile is None or fault:
        log.warning("agent %s has no permissions: %s", row.name, fault)
        profile, rules = BUILTIN["nothing"], ()
    listing = ListingMode(row.listing) if row.listing in tuple(ListingMode) else None
    return Agent(
        name=row.name,
        profile=row.profile,
        workdir=workdir,
        parent=row.parent,
        created_at=row.created_at,
        expires_at=row.expires_at,
        errors=ErrorForm.HTTP if row.errors == ErrorForm.HTTP else ErrorForm.RESULT,
        listing=listing,
        permission=Permission(
            profile,
            agent=row.name,
            rules=rules,
            workdir=workdir,
            parent=None if parent is None else parent.permission,
            version=version,
            listing=listing,
        ),
        digest=row.digest,
        fault=fault,
    )


def read_rules(agent: str, written: tuple[StoredRule, ...]) -> tuple[Rule, ...]:
    return tuple(_rule(agent, origin, text) for origin, text in written)


def _rule(agent: str, origin: str, text: str) -> Rule:
    try:
        known = RuleOrigin(origin)
    except ValueError:
        raise ConfigError(f"unknown rule origin {origin!r}") from None
    return rule_from(_decoded(text), where=f"agent {agent}", origin=known, holder=agent)


def _decoded(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"invalid JSON: {error}") from None


def stored_rule(rule: Rule) -> StoredRule:
    return str(rule.origin), json.dumps(rule_data(rule), sort_keys=True)


def stored_profile(profile: Profile) -> str:
    return json.dumps(profile_data(profile), sort_keys=True)


def narrows(before: Iterable[Rule], after: Iterable[Rule]) -> bool:
    """Whether the change allows nothing new: it adds no allow and removes no deny and no ask."""

    def those(rules: Iterable[Rule], *effects: Verdict) -> set[str]:
        return {rule.meaning for rule in rules if rule.effect in effects}

    before, after = tuple(before), tuple(after)
    bounds = (Verdict.DENY, Verdict.ASK)
    return those(after, Verdict.ALLOW) <= those(before, Verdict.ALLOW) and those(after, *bounds) >= those(
        before, *bounds
    )


def narrows_profile(before: Profile, after: Profile) -> bool:
    return narrows(before.rules, after.rules) and not after.own_tools.exceeds(before.own_tools)


def nothing_changed(error: ToolcribError) -> StoreError:
    """For a change that was undone because it could not be audited."""
    return StoreError(
        f"Nothing was changed, because the audit log could not be written: {error.message}", remedy=error.remedy
    )


T = TypeVar("T")
Note = Callable[[AuditedChange], Awaitable[None]]
"""Writes a change into the audit log; returns when it is durable."""


class PermissionState:
    def __init__(
        self, store: Store, stored: AgentRecords, held: AgentRecords, *, version: int, bus: Bus, note: Note
    ) -> None:
        self.version = version
        self.now = PermissionSnapshot.of(held, version=version)
        """The state in force."""
        self.stored = stored
        self.sure = True
        """Whether `stored` is exactly what the store holds; otherwise it is everything the store may hold."""
        self._store = store
        self._bus = bus
        self._note = note
        self._changing = asyncio.Lock()
        self._work: set[asyncio.Task[Any]] = set()

    def begin(self, change: Coroutine[None, None, T]) -> asyncio.Task[T]:
        """Runs the change after all earlier ones, and to its end: cancelling the caller does not interrupt it."""

        async def alone() -> T:
            async with self._changing:
                return await change

        task = asyncio.get_running_loop().create_task(alone())
        self._work.add(task)
        task.add_done_callback(self._finished)
        return task

    async def settled(self) -> None:
        """Waits until no change is in progress."""
        await asyncio.gather(*self._work, return_exceptions=True)

    async def narrow(
        self,
        wanted: AgentRecords,
        *changes: AuditedChange,
        effect: str,
        before: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Makes a change that only takes permissions away. `before` runs after the change is in force and before it is
        stored, and may raise `StoreError`; `effect` describes the change in error messages."""
        self._enforce(wanted, self.version + 1)
        lost: StoreError | None = None
        try:
            if before is not None:
                await before()
            self.version = await self._store_records(wanted, at_least=self.version)
        except StoreError as error:
            lost = error
        try:
            await self._write_audit(changes)
        except StoreError as error:
            if lost is None:
                raise StoreError(
                    f"{effect}, now and after a restart, but the audit log could not be written: {error.message}",
                    remedy=error.remedy,
                ) from error
        if lost is not None:
            raise StoreError(
                f"{effect}, but only until a restart, because the change could not be stored: {lost.message}",
                remedy=f"{lost.remedy} Then repeat the command.".lstrip(),
            ) from lost

    async def widen(self, wanted: AgentRecords, *changes: AuditedChange) -> None:
        """Makes a change that adds permissions: it takes effect only after it is stored and audited."""
        version = await self._store_records(wanted, at_least=self.version + 1)
        try:
            await self._write_audit(changes)
        except ToolcribError as error:
            try:
                await self._store_records(self.now.records, at_least=version)
            except StoreError as worse:
                log.warning("an undone change may reappear after a restart: %s", worse.text())
            raise nothing_changed(error) from error
        self._enforce(wanted, version)

    async def store_pending(self) -> None:
        """Stores the state in force, if an earlier attempt failed."""
        if not self.sure or self.stored is not self.now.records:
            self.version = await self._store_records(self.now.records, at_least=self.version)

    async def _store_records(self, wanted: AgentRecords, *, at_least: int) -> int:
        """Returns the stored version."""
        try:
            reached = await self._store.write(
                store_records, self.stored, wanted, at_least=at_least, now=time.time(), sure=self.sure
            )
        except StoreError:
            self.stored, self.sure = self.stored.or_else(wanted), False
            raise
        self.stored, self.sure = wanted, True
        return reached

    async def _write_audit(self, changes: Iterable[AuditedChange]) -> None:
        # Started in this order, awaited together.
        results = await asyncio.gather(*(self._note(change) for change in changes), return_exceptions=True)
        for failure in results:
            if isinstance(failure, BaseException):
                raise failure

    def _enforce(self, records: AgentRecords, version: int) -> None:
        """Puts the records in force and notifies subscribers."""
        before = self.now.agents
        self.version = version
        self.now = PermissionSnapshot.of(records, version=self.version, before=self.now)
        for name, old in before.items():
            new = self.now.agents.get(name)
            if new is None:
                self._bus.publish(AgentEnded(agent=name))
            elif new.digest != old.digest:
                self._bus.publish(AgentEnded(agent=name, returns=True))
            elif (new.permission.key, new.permission.listing) != (old.permission.key, old.permission.listing):
                self._bus.publish(PermissionChanged(agent=name))

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._work.discard(task)
        if not task.cancelled() and (failure := task.exception()) is not None:
            log.debug("a change to the agents failed: %s", failure)
