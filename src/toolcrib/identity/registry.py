"""The registry of agents, with their tokens and permissions.

In: the owner's changes. Out: the current `Agent` of a token. `gateway` authenticates here, `calls` reads the current
permissions, `commands` change them; `state` enforces and stores each change.
"""

from __future__ import annotations

import asyncio
import difflib
import functools
import hashlib
import hmac
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from toolcrib.config.model import ListingMode
from toolcrib.errors import NotFound, StoreError, UsageError
from toolcrib.events import AuditedChange, Bus, TokenReplaced
from toolcrib.identity.agent import RESERVED_NAMES, Agent, ErrorForm, MintedAgent, mint_token, new_agent_row
from toolcrib.identity.agent_folders import AgentFolders
from toolcrib.identity.records import AgentRecords, load_records
from toolcrib.identity.state import (
    Note,
    PermissionState,
    narrows,
    narrows_profile,
    read_rules,
    stored_profile,
    stored_rule,
)
from toolcrib.policy.profile import BUILTIN, Profile, profile_data, profile_from
from toolcrib.policy.rule import Rule
from toolcrib.store.clock import ExpiryClock
from toolcrib.store.database import Store

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

_LONGEST_TOKEN = 256
_LOOK_AGAIN = 60.0
"""Seconds between checks of the clock, which can be set, or jump after sleep."""


def _one_at_a_time(
    change: Callable[Concatenate[AgentRegistry, P], Coroutine[None, None, T]],
) -> Callable[Concatenate[AgentRegistry, P], Coroutine[Any, Any, T]]:
    """Runs changes one at a time, and each to its end, even if its caller is cancelled."""

    @functools.wraps(change)
    async def begun(self: AgentRegistry, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.shield(self._state.begin(change(self, *args, **kwargs)))

    return begun


class AgentRegistry:
    """Created by `open`, ended by `close`."""

    def __init__(
        self, state: PermissionState, folder: AgentFolders, bus: Bus, overdue: Iterable[str], clock: ExpiryClock
    ) -> None:
        self.folder = folder
        self._bus = bus
        self._state = state
        self._clock = clock
        self._overdue = tuple(overdue)
        """Agents that expired before this process started."""
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._plan_end()

    @classmethod
    async def open(cls, store: Store, *, bus: Bus, note: Note, folder: Path, clock: ExpiryClock | None = None) -> Self:
        clock = clock or ExpiryClock()
        stored, version = await store.read(load_records)
        living = stored.living(clock.patient())
        state = PermissionState(store, stored, living, version=version, bus=bus, note=note)
        return cls(
            state,
            AgentFolders(folder, store=store.place),
            bus,
            [name for name in stored.agents if name not in living.agents],
            clock,
        )

    async def close(self) -> None:
        """Waits for the changes in progress."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        await self._state.settled()

    @property
    def version(self) -> int:
        """Increases with every change, and across restarts."""
        return self._state.version

    @property
    def agents(self) -> tuple[Agent, ...]:
        now = self._clock.strict()
        return tuple(agent for agent in self._state.now.agents.values() if not agent.expired(now))

    @property
    def profiles(self) -> Mapping[str, Profile]:
        """The built-in profiles and the person's own."""
        return self._state.now.profiles

    def holds(self, name: str) -> bool:
        """Whether the agent exists, even if it is unusable while the clock is ahead."""
        return name in self._records.agents

    def knows(self, name: str) -> bool:
        agent = self._state.now.agents.get(name)
        return agent is not None and not self._is_over(agent)

    def authenticate(self, token: str) -> Agent | None:
        """The token's agent; None for unknown tokens and expired agents."""
        if len(token) > _LONGEST_TOKEN:
            return None
        digest = digest_of(token)
        agent = self._state.now.by_digest.get(digest)
        if agent is None or not hmac.compare_digest(agent.digest, digest):
            return None
        return None if agent.expires_at is not None and self._is_over(agent) else agent

    def current(self, agent: Agent) -> Agent | None:
        """The current state of the agent; None if it ended or its token was replaced."""
        now = self._state.now.agents.get(agent.name)
        # The same name with another token is another agent.
        if now is None or now.digest != agent.digest:
            return None
        return None if now.expires_at is not None and self._is_over(now) else now

    def _is_over(self, agent: Agent) -> bool:
        return agent.expired(self._clock.strict())

    def find(self, name: str) -> Agent:
        agent = self._state.now.agents.get(name)
        if agent is None or self._is_over(agent):
            if name in RESERVED_NAMES:
                raise NotFound(f"{name!r} is not an agent with its own rules.", remedy=RESERVED_NAMES[name])
            raise _unknown("agent", name, (one.name for one in self.agents))
        return agent

    def profile(self, name: str) -> Profile:
        found = self.profiles.get(name)
        if found is None:
            raise _unknown("profile", name, self.profiles)
        return found

    def rules(self, name: str) -> tuple[Rule, ...]:
        """The agent's own rules, in the order in which they were added."""
        return read_rules(self.find(name).name, self._records.rules.get(name, ()))

    def children(self, name: str) -> tuple[str, ...]:
        """All descendants of the agent."""
        return self._records.family(self.find(name).name)[1:]

    @_one_at_a_time
    async def add(
        self,
        name: str,
        *,
        profile: str,
        workdir: Path | None = None,
        lives: float | None = None,
        parent: str | None = None,
        rules: Sequence[Rule] = (),
        errors: ErrorForm = ErrorForm.RESULT,
        listing: ListingMode | None = None,
    ) -> MintedAgent:
        """Creates an agent; `lives` is in seconds. A child stays within its parent's folder and lifetime."""
        await self._end_overdue()
        if self.knows(name):
            raise UsageError(
                f"An agent {name!r} already exists.",
                remedy=f"`toolcrib agent rotate {name}` gives it a new token, `toolcrib agent remove {name}` ends it.",
            )
        token = mint_token()
        above = () if parent is None else self._records.lineage(self.find(parent).name)
        row = new_agent_row(
            name,
            profile=self.profile(profile),
            workdir=workdir,
            lives=lives,
            above=tuple(map(self.find, above)),
            digest=digest_of(token),
            errors=errors,
            listing=listing,
        )
        own = _held_by(name, rules)
        detail = {
            "profile": row.profile,
            "workdir": row.workdir,
            "parent": row.parent,
            "expires_at": row.expires_at,
            "rules": [rule.text for rule in own],
        }
        detail = {word: value for word, value in detail.items() if value}
        await asyncio.to_thread(self.folder.make, name, token)
        try:
            await self._state.widen(
                self._records.with_agent(row, map(stored_rule, own)),
                AuditedChange(what="agent added", agent=name, detail=detail),
            )
        except BaseException:
            await self._remove_folders(name)
            raise
        self._plan_end()
        return self._minted(name, token)

    @_one_at_a_time
    async def set_listing(self, name: str, listing: ListingMode | None) -> Agent:
        """None: as its profile or the configuration says."""
        self.find(name)
        row = replace(self._records.agents[name], listing=listing or "")
        wanted = replace(self._records, agents={**self._records.agents, name: row})
        detail = {"listing": row.listing or "default"}
        await self._state.widen(wanted, AuditedChange(what="listing changed", agent=name, detail=detail))
        return self.find(name)

    @_one_at_a_time
    async def rotate(self, name: str) -> MintedAgent:
        """Replaces the token; the old one is invalid at once. Children keep theirs."""
        self.find(name)
        token = mint_token()
        row = replace(self._records.agents[name], digest=digest_of(token))
        wanted = replace(self._records, agents={**self._records.agents, name: row})

        async def stage() -> None:
            await asyncio.to_thread(self.folder.stage, name, token)

        try:
            await self._state.narrow(
                wanted,
                AuditedChange(what="token rotated", agent=name),
                effect=f"The old token of {name} is invalid",
                before=stage,
            )
        finally:
            kept = self._state.sure and self._state.stored is wanted
            await self._settle_folder(name, lambda staged: kept and staged == token)
            if kept:
                self._bus.publish(TokenReplaced(agent=name))
        return self._minted(name, token)

    @_one_at_a_time
    async def remove(self, name: str) -> tuple[str, ...]:
        """Removes the agent and its children. Returns their names, its own first."""
        if name not in self._records.agents and name in self._state.stored.agents:
            # Already removed, but that could not be stored.
            await self._state.store_pending()
            return (name,)
        family = self._records.family(self.find(name).name)
        children = [AuditedChange(what="agent removed", agent=child, detail={"with": name}) for child in family[1:]]
        await self._end(family, AuditedChange(what="agent removed", agent=name), *children)
        return family

    @_one_at_a_time
    async def add_rule(self, agent: str, rule: Rule) -> bool:
        """Returns False if the agent already has the rule."""
        (own,) = _held_by(self.find(agent).name, [rule])
        return await self._change_rules(agent, (*self.rules(agent), own), "rule added", own)

    @_one_at_a_time
    async def drop_rule(self, agent: str, rule: Rule) -> bool:
        """Drops every equal rule of the agent, of any origin. Returns False if there is none."""
        (own,) = _held_by(self.find(agent).name, [rule])
        rest = tuple(one for one in self.rules(agent) if stored_rule(one)[1] != stored_rule(own)[1])
        return await self._change_rules(agent, rest, "rule dropped", own)

    @_one_at_a_time
    async def put_profile(self, profile: Profile) -> bool:
        """Adds or replaces one of the person's own profiles. Returns False if nothing changes."""
        name = profile.name
        checked = profile_from(name, profile_data(profile))
        records = self._records
        if records.profiles.get(name) == stored_profile(checked):
            await self._state.store_pending()
            return False
        wanted = replace(records, profiles={**records.profiles, name: stored_profile(checked)})
        before = self.profiles.get(name)
        rules = [rule.text for rule in checked.rules]
        change = AuditedChange(
            what="profile changed" if name in records.profiles else "profile added",
            detail={"profile": name, "rules": rules, "own_tools": str(checked.own_tools)},
        )
        if before is not None and narrows_profile(before, checked):
            await self._state.narrow(wanted, change, effect=f"The profile {name} allows less")
        else:
            await self._state.widen(wanted, change)
        return True

    @_one_at_a_time
    async def drop_profile(self, name: str) -> None:
        """Removes one of the person's own profiles, if no agent uses it."""
        if name in BUILTIN:
            raise UsageError(f"The profile {name} is built in.", remedy="Built-in profiles cannot be removed.")
        records = self._records
        if name not in records.profiles:
            raise _unknown("profile", name, self.profiles)
        users = sorted(agent.name for agent in self.agents if agent.profile == name)
        if users:
            raise UsageError(
                f"The profile {name} is in use: {', '.join(users[:10])}.", remedy="Remove these agents first."
            )
        rest = {one: text for one, text in records.profiles.items() if one != name}
        await self._state.widen(
            replace(records, profiles=rest), AuditedChange(what="profile removed", detail={"profile": name})
        )

    @_one_at_a_time
    async def sweep(self) -> None:
        """Cleans up after a crash: expired agents, folders without an agent, half-replaced tokens. Only for the daemon
        that serves: it could delete what another process is creating."""
        await self._end_overdue()
        agents = self._records.agents
        try:
            strays = await asyncio.to_thread(self.folder.sweep, agents.keys())
        except StoreError as error:
            log.warning("could not clean up the agents' folders: %s", error.text())
            return
        if strays:
            log.info("removed the folders of agents that no longer exist: %s", ", ".join(strays))
        for name, row in agents.items():
            await self._settle_folder(name, functools.partial(_is_token_of, row.digest))

    @property
    def _records(self) -> AgentRecords:
        return self._state.now.records

    async def _change_rules(self, agent: str, rules: tuple[Rule, ...], what: str, rule: Rule) -> bool:
        wanted = self._records.with_rules(agent, map(stored_rule, rules))
        if wanted.rules[agent] == self._records.rules.get(agent, ()):
            await self._state.store_pending()
            return False
        change = AuditedChange(what=what, agent=agent, detail={"rule": rule.text})
        if narrows(self.rules(agent), rules):
            await self._state.narrow(wanted, change, effect=f"{what.capitalize()} ({rule.text})")
        else:
            await self._state.widen(wanted, change)
        return True

    async def _end_overdue(self) -> None:
        """Ends expired agents, including those that expired while the daemon was not running."""
        living = self._records.living(self._clock.patient())
        gone = (*self._overdue, *(name for name in self._records.agents if name not in living.agents))
        self._overdue = ()
        if gone:
            try:
                await self._end(gone, *(AuditedChange(what="agent expired", agent=name) for name in gone))
            except StoreError as error:
                log.warning("%s", error.text())

    async def _end(self, names: Sequence[str], *changes: AuditedChange) -> None:
        try:
            await self._state.narrow(self._records.without(names), *changes, effect=f"Removed: {', '.join(names)}")
        finally:
            await self._remove_folders(*names)

    async def _remove_folders(self, *names: str) -> None:
        for name in names:
            try:
                await asyncio.to_thread(self.folder.remove, name)
            except StoreError as error:
                log.warning("could not remove the folder of agent %s: %s", name, error.text())

    async def _settle_folder(self, name: str, is_current: Callable[[str], bool]) -> None:
        try:
            await asyncio.to_thread(self.folder.settle, name, is_current)
        except StoreError as error:
            log.warning("could not install the new token of agent %s: %s", name, error.text())

    def _minted(self, name: str, token: str) -> MintedAgent:
        return MintedAgent(agent=self._state.now.agents[name], token=token, token_file=self.folder.token_file(name))

    def _plan_end(self) -> None:
        """Schedules the end of the next agent to expire."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        ends = [row.expires_at for row in self._records.agents.values() if row.expires_at is not None]
        if ends and not self._closed:
            delay = min(max(0.0, min(ends) - self._clock.patient()), _LOOK_AGAIN)
            self._timer = asyncio.get_running_loop().call_later(delay, self._time_is_up)

    def _time_is_up(self) -> None:
        async def ended() -> None:
            await self._end_overdue()
            self._plan_end()

        self._state.begin(ended())


def digest_of(token: str) -> bytes:
    """A token has 256 random bits, so a salt or a slow hash would not make its digest harder to reverse."""
    return hashlib.sha256(token.encode(errors="surrogatepass")).digest()


def _is_token_of(digest: bytes, token: str) -> bool:
    return digest_of(token) == digest


def _held_by(agent: str, rules: Iterable[Rule]) -> tuple[Rule, ...]:
    return tuple(replace(rule, holder=agent) for rule in rules)


def _unknown(what: str, name: str, known: Iterable[str]) -> NotFound:
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=3)
    remedy = f"Did you mean {', '.join(near)}?" if near else f"Known: {', '.join(names[:20]) or 'none yet'}."
    return NotFound(f"There is no {what} {name[:80]!r}.", remedy=remedy)
