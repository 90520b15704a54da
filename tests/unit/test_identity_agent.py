"""Random changes to agents, rules and profiles: the registry agrees with a simple model."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from parts.shaky_store import Shaky
from parts.sizes import sized
from toolcrib.catalog.snapshot import Catalog
from toolcrib.errors import ToolcribError
from toolcrib.events import AuditedChange, Bus
from toolcrib.identity.registry import AgentRegistry
from toolcrib.policy import Verdict
from toolcrib.policy.profile import profile_from
from toolcrib.policy.rule import Rule, RuleOrigin
from toolcrib.store.database import Store

NAMES = ("a", "b", "c")
TOOLS = {one.name: one for one in Catalog.build({"git": (b'{"name": "log"}', b'{"name": "reset"}')}, version=1).tools}
Rules = frozenset[tuple[str, str]]
"""Pairs of effect and tool."""


@dataclass
class Known:
    profile: str
    parent: str | None
    token: str | None
    rules: Rules = frozenset()


@dataclass
class Model:
    agents: dict[str, Known] = field(default_factory=dict)
    mine: Rules | None = None
    """The person's own profile."""

    def family(self, name: str) -> set[str]:
        found = {name}
        while more := {n for n, known in self.agents.items() if known.parent in found} - found:
            found |= more
        return found

    def may(self, name: str, tool: str) -> bool:
        known = self.agents[name]
        of_profile = {"developer": {("allow", "log"), ("allow", "reset")}, "nothing": set(), "mine": self.mine or set()}
        rules = known.rules | of_profile[known.profile]
        own = ("allow", tool) in rules and ("deny", tool) not in rules
        return own and (known.parent is None or self.may(known.parent, tool))


async def not_audited(_: AuditedChange) -> None: ...


class Both:
    """Makes the same changes to the registry and to the model, and compares them."""

    def __init__(self, store: Store, folder: Path) -> None:
        self.store = Shaky(store)
        self.folder = folder
        self.model = Model()
        self.tokens: list[str] = []

    async def open(self) -> None:
        self.registry = await AgentRegistry.open(
            cast(Store, self.store), bus=Bus(), note=not_audited, folder=self.folder
        )

    async def add(self, name: str, profile: str, parent: str | None) -> None:
        fits = (
            name not in self.model.agents
            and (parent is None or parent in self.model.agents)
            and (profile != "mine" or self.model.mine is not None)
        )
        minted = await self._tried(
            self.registry.add(name, profile=profile, parent=parent), fits and not self.store.fails
        )
        if minted is not None:
            self.tokens.append(minted.token)
            self.model.agents[name] = Known(profile, parent, minted.token)

    async def rotate(self, name: str) -> None:
        known = self.model.agents.get(name)
        minted = await self._tried(self.registry.rotate(name), known is not None and not self.store.fails)
        if known is not None:
            known.token = None if minted is None else minted.token
        if minted is not None:
            self.tokens.append(minted.token)

    async def remove(self, name: str) -> None:
        there = name in self.model.agents
        if not there and self.store.fails:
            return
        await self._tried(self.registry.remove(name), there and not self.store.fails if there else None)
        for gone in self.model.family(name):
            self.model.agents.pop(gone, None)

    async def add_rule(self, name: str, effect: str, tool: str) -> None:
        known = self.model.agents.get(name)
        if known is None or (effect, tool) in known.rules:
            return
        await self._tried(self.registry.add_rule(name, rule(effect, tool)), not self.store.fails)
        if effect == "deny" or not self.store.fails:
            known.rules |= {(effect, tool)}

    async def drop_rule(self, name: str, effect: str, tool: str) -> None:
        known = self.model.agents.get(name)
        if known is None or (effect, tool) not in known.rules:
            return
        await self._tried(self.registry.drop_rule(name, rule(effect, tool)), not self.store.fails)
        if effect == "allow" or not self.store.fails:
            known.rules -= {(effect, tool)}

    async def put_profile(self, rules: Rules) -> None:
        before = self.model.mine
        if rules == before:
            return
        data = {"rules": [{effect: f"git:{tool}"} for effect, tool in sorted(rules)]}
        await self._tried(self.registry.put_profile(profile_from("mine", data)), not self.store.fails)
        narrower = before is not None and of("allow", rules) <= of("allow", before)
        narrower = narrower and of("deny", rules) >= of("deny", before or frozenset())
        if narrower or not self.store.fails:
            self.model.mine = rules

    async def drop_profile(self) -> None:
        used = any(known.profile == "mine" for known in self.model.agents.values())
        done = self.model.mine is not None and not used and not self.store.fails
        await self._tried(self.registry.drop_profile("mine"), done)
        if done:
            self.model.mine = None

    async def fail(self, when: str) -> None:
        self.store.fails = when

    async def reopen(self) -> None:
        """Unstored changes are stored with the next successful one."""
        self.store.fails = ""
        await self.registry.add("z", profile="nothing")
        await self.registry.remove("z")
        await self.registry.close()
        await self.open()

    async def _tried(self, change: Any, succeeds: bool | None) -> Any:
        try:
            done = await change
        except ToolcribError as error:
            assert succeeds is not True, error
            return None
        assert succeeds is not False
        return done

    def agree(self) -> None:
        holders = {known.token: name for name, known in self.model.agents.items()}
        for token in self.tokens:
            found = self.registry.authenticate(token)
            assert (found and found.name) == holders.get(token)
        assert {agent.name for agent in self.registry.agents} == self.model.agents.keys()
        for name in self.model.agents:
            permission = self.registry.find(name).permission
            for word, tool in TOOLS.items():
                verdict = permission.decide(tool, {}).verdict
                assert (verdict is Verdict.ALLOW) == self.model.may(name, word), (name, word)
        assert ("mine" in self.registry.profiles) == (self.model.mine is not None)


def rule(effect: str, tool: str) -> Rule:
    return Rule(effect=Verdict(effect), tools=f"git:{tool}", origin=RuleOrigin.AGENT)


def of(effect: str, rules: Rules) -> Rules:
    return frozenset(one for one in rules if one[0] == effect)


name = st.sampled_from(NAMES)
effect = st.sampled_from(["allow", "deny"])
tool = st.sampled_from(sorted(TOOLS))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), name, st.sampled_from(["developer", "nothing", "mine"]), st.none() | name),
        st.tuples(st.just("rotate"), name),
        st.tuples(st.just("remove"), name),
        st.tuples(st.just("add_rule"), name, effect, tool),
        st.tuples(st.just("drop_rule"), name, effect, tool),
        st.tuples(st.just("put_profile"), st.frozensets(st.tuples(effect, tool))),
        st.tuples(st.just("drop_profile")),
        st.tuples(st.just("fail"), st.sampled_from(["before", "after"])),
        st.tuples(st.just("reopen")),
    ),
    min_size=4,
    max_size=14,
)


def unstored(fails: str) -> list[tuple[Any, ...]]:
    """Narrowing changes that the store refuses; they are stored with the next change."""
    added = [("add", "c", "developer", None), ("add_rule", "c", "allow", "log"), ("add_rule", "c", "allow", "reset")]
    refused = [("remove", "a"), ("add_rule", "c", "deny", "log"), ("drop_rule", "c", "allow", "reset")]
    return [*added, ("fail", fails), *refused, ("reopen",), ("add", "a", "nothing", None)]


@pytest.mark.req("KSI-5")
@settings(max_examples=sized(25, 500), deadline=None)
@given(steps=steps)
@example(steps=unstored("before"))
@example(steps=unstored("after"))
def test_the_registry_agrees_with_a_simple_model(
    store_url: str, tmp_path: Path, steps: Sequence[tuple[Any, ...]]
) -> None:
    async def run() -> None:
        store = await Store.open(store_url)
        both = Both(store, tmp_path / "agents")
        await both.open()
        try:
            for agent in both.registry.agents:
                if agent.parent is None:
                    await both.registry.remove(agent.name)
            if "mine" in both.registry.profiles:
                await both.registry.drop_profile("mine")
            await both.put_profile(frozenset({("allow", "log"), ("deny", "reset")}))
            await both.add("a", "developer", None)
            await both.add("b", "mine", "a")
            await both.add_rule("b", "allow", "reset")
            for word, *given in steps:
                await getattr(both, word)(*given)
                both.agree()
            await both.reopen()
            both.agree()
            folders = {folder.name for folder in (tmp_path / "agents").iterdir()}
            assert folders == both.model.agents.keys()
        finally:
            await both.registry.close()
            await store.close()

    asyncio.run(run())
