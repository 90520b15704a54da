"""A token leads to its agent, for as long as the agent is there, and to what it may do now."""

from __future__ import annotations

import asyncio
import contextlib
import stat
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parts.shaky_store import Shaky
from toolcrib.catalog.snapshot import Catalog
from toolcrib.catalog.tool import Tool
from toolcrib.errors import NotFound, StoreError, UsageError
from toolcrib.events import AgentEnded, AuditedChange, Bus, Event, PermissionChanged
from toolcrib.identity.agent import DEEPEST, TOKEN_PREFIX, checked_name
from toolcrib.identity.records import load_records
from toolcrib.identity.registry import AgentRegistry, digest_of
from toolcrib.policy import Verdict
from toolcrib.policy.profile import profile_from
from toolcrib.policy.rule import Rule, RuleOrigin
from toolcrib.store.database import Store
from toolcrib.store.identity import ProfileRow, add_rule, all_agents, put_profile, version

pytestmark = pytest.mark.req("KSI-5")


def tool(name: str, *, server: str = "git") -> Tool:
    catalog = Catalog.build({server: (b'{"name": "%s"}' % name.encode(),)}, version=1)
    return catalog.tools[0]


LOG = tool("log")
RESET = tool("reset")


def allow(tools: str, **more: Any) -> Rule:
    return Rule(effect=Verdict.ALLOW, tools=tools, origin=RuleOrigin.AGENT, **more)


def deny(tools: str) -> Rule:
    return Rule(effect=Verdict.DENY, tools=tools, origin=RuleOrigin.AGENT)


def ask(tools: str) -> Rule:
    return Rule(effect=Verdict.ASK, tools=tools, origin=RuleOrigin.AGENT)


class World:
    """A registry, its store, and whatever it told."""

    def __init__(self, store: Store, folder: Path) -> None:
        self.store = Shaky(store)
        self.folder = folder
        self.bus = Bus()
        self.noted: list[AuditedChange] = []
        self.audit_log_fails = False
        self.told: list[Event] = []
        self.bus.subscribe(self.told.append, AgentEnded, PermissionChanged)
        self.open: list[AgentRegistry] = []

    async def registry(self) -> AgentRegistry:
        made = await AgentRegistry.open(cast(Store, self.store), bus=self.bus, note=self._note, folder=self.folder)
        self.open.append(made)
        return made

    async def _note(self, change: AuditedChange) -> None:
        self.noted.append(change)
        if self.audit_log_fails:
            raise StoreError("The audit log cannot be written.", remedy="Make room.")

    def events(self) -> list[tuple[str, str]]:
        """What was told since the last time."""
        told, self.told[:] = list(self.told), []
        return [(type(event).__name__, cast(Any, event).agent) for event in told]


@contextlib.asynccontextmanager
async def world_at(url: str, folder: Path) -> AsyncIterator[World]:
    store = await Store.open(url)
    world = World(store, folder)
    try:
        yield world
    finally:
        for registry in world.open:
            await registry.close()
        await store.close()


@pytest.fixture
async def world(store_url: str, tmp_path: Path) -> AsyncIterator[World]:
    async with world_at(store_url, tmp_path / "agents") as made:
        yield made


@pytest.fixture
async def quick(tmp_path: Path) -> AsyncIterator[World]:
    """On SQLite alone, for what the engine has no part in."""
    async with world_at(str(tmp_path / "crib.db"), tmp_path / "agents") as made:
        yield made


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Moves the time that agents live by."""
    moved = 0.0
    real = time.time

    def forward(seconds: float) -> None:
        nonlocal moved
        moved += seconds

    monkeypatch.setattr(time, "time", lambda: real() + moved)
    return forward


# --- tokens ----------------------------------------------------------------------------------------------------------


async def test_a_token_leads_to_its_agent_now_and_after_a_restart(world: World, tmp_path: Path) -> None:
    registry = await world.registry()
    minted = await registry.add("reviewer", profile="read-only", workdir=tmp_path, lives=3600)
    for one in (registry, await world.registry()):
        agent = one.authenticate(minted.token)
        assert agent is not None
        assert (agent.name, agent.profile, agent.workdir) == ("reviewer", "read-only", tmp_path.resolve())
        assert agent.expires_at == pytest.approx(time.time() + 3600, abs=60)
        assert agent.permission.profile == "read-only"
        assert one.version == 1


async def test_the_token_is_nowhere_but_in_the_private_file(world: World, tmp_path: Path) -> None:
    registry = await world.registry()
    minted = await registry.add("reviewer", profile="developer")
    assert minted.token.startswith(TOKEN_PREFIX)
    assert minted.token not in repr((minted, minted.agent, world.noted))
    assert minted.token_file == world.folder / "reviewer" / "token"
    assert minted.token_file.read_text().strip() == minted.token
    assert stat.S_IMODE(minted.token_file.stat().st_mode) == 0o600
    assert stat.S_IMODE(minted.token_file.parent.stat().st_mode) == 0o700
    (row,) = await world.store.read(all_agents)
    assert row.digest == digest_of(minted.token)
    for file in tmp_path.rglob("*"):
        if file.is_file() and file != minted.token_file:
            assert minted.token.encode() not in file.read_bytes()


@pytest.mark.parametrize("token", ["", "tcb_", "x" * 10_000, "tcb_\udcff", "owner", "reviewer"])
async def test_any_other_token_leads_nowhere(quick: World, token: str) -> None:
    registry = await quick.registry()
    minted = await registry.add("reviewer", profile="developer")
    assert registry.authenticate(token) is None
    assert registry.authenticate(minted.token[:-1]) is None
    assert registry.authenticate(minted.token + " ") is None


async def test_a_rotated_token_is_void_and_the_children_keep_theirs(world: World) -> None:
    registry = await world.registry()
    first = await registry.add("lead", profile="developer")
    child = await registry.add("scout", profile="developer", parent="lead")
    world.events()
    second = await registry.rotate("lead")
    assert world.events() == [("AgentEnded", "lead")]
    assert second.token_file.read_text().strip() == second.token
    assert {file.name for file in second.token_file.parent.iterdir()} == {"store", "token"}
    for one in (registry, await world.registry()):
        assert one.authenticate(first.token) is None
        assert (found := one.authenticate(second.token)) is not None and found.name == "lead"
        assert (found := one.authenticate(child.token)) is not None and found.name == "scout"
    assert [change.what for change in world.noted] == ["agent added", "agent added", "token rotated"]


async def test_what_a_rotation_says_is_that_the_agent_returns(quick: World) -> None:
    registry = await quick.registry()
    await registry.add("lead", profile="developer")
    await registry.rotate("lead")
    await registry.remove("lead")
    assert [event.returns for event in quick.told if isinstance(event, AgentEnded)] == [True, False]


# --- names, folders, profiles ----------------------------------------------------------------------------------------


@given(name=st.from_regex(r"[a-z0-9][a-z0-9_.-]{0,47}", fullmatch=True))
def test_a_plain_name_can_be_had_unless_it_is_ours(name: str) -> None:
    if name in {"owner", "client"}:
        with pytest.raises(UsageError, match="reserved by Toolcrib"):
            checked_name(name)
    else:
        assert checked_name(name) == name
        assert Path("/x", name).parent == Path("/x")


@given(name=st.one_of(st.text(), st.from_regex(r"[a-z0-9_.-]{1,60}\n?", fullmatch=True)))
def test_no_other_name_can_be_had(name: str) -> None:
    plain = 0 < len(name) <= 48 and set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789_.-")
    if not plain or not name[0].isalnum():
        with pytest.raises(UsageError, match="cannot be an agent's name"):
            checked_name(name)


async def test_a_name_is_had_once(world: World) -> None:
    registry = await world.registry()
    await registry.add("reviewer", profile="developer")
    with pytest.raises(UsageError, match="already") as caught:
        await registry.add("reviewer", profile="nothing")
    assert "rotate reviewer" in caught.value.remedy
    assert registry.find("reviewer").profile == "developer"
    assert (world.folder / "reviewer" / "token").exists()


async def test_unknown_names_are_told_with_the_nearest(quick: World) -> None:
    registry = await quick.registry()
    await registry.add("reviewer", profile="developer")
    with pytest.raises(NotFound) as caught:
        registry.find("reviwer")
    assert "reviewer" in caught.value.remedy
    with pytest.raises(NotFound) as caught:
        await registry.add("other", profile="reed-only")
    assert "read-only" in caught.value.remedy
    for change in (registry.rotate("x"), registry.remove("x"), registry.add_rule("x", allow("*"))):
        with pytest.raises(NotFound, match="no agent 'x'"):
            await change
    assert not (quick.folder / "other").exists()


async def test_the_owners_profile_is_for_no_agent(quick: World) -> None:
    registry = await quick.registry()
    with pytest.raises(UsageError, match="only for you"):
        await registry.add("boss", profile="owner")


@pytest.mark.parametrize("workdir", [Path("relative"), Path("/does/not/exist"), Path(__file__)])
async def test_a_workdir_is_a_folder_that_exists(quick: World, workdir: Path) -> None:
    registry = await quick.registry()
    with pytest.raises(UsageError, match="is not a folder"):
        await registry.add("reviewer", profile="developer", workdir=workdir)


@pytest.mark.parametrize("lives", [0, -1, float("nan"), float("inf"), 1e12])
async def test_a_life_is_a_time_ahead(quick: World, lives: float) -> None:
    registry = await quick.registry()
    with pytest.raises(UsageError, match="ten years"):
        await registry.add("reviewer", profile="developer", lives=lives)


# --- children --------------------------------------------------------------------------------------------------------


async def test_a_child_may_do_what_both_may(world: World) -> None:
    registry = await world.registry()
    await registry.add("lead", profile="developer", rules=[deny("git:reset")])
    await registry.add("scout", profile="trusted", parent="lead")
    for one in (registry, await world.registry()):
        permission = one.find("scout").permission
        assert permission.decide(LOG, {}).verdict is Verdict.ALLOW
        assert permission.decide(RESET, {}).verdict is Verdict.DENY
    world.events()
    await registry.add_rule("lead", deny("git:log"))
    assert sorted(world.events()) == [("PermissionChanged", "lead"), ("PermissionChanged", "scout")]
    assert registry.find("scout").permission.decide(LOG, {}).verdict is Verdict.DENY


async def test_a_child_has_no_more_folder_and_time_than_its_parent(quick: World, tmp_path: Path) -> None:
    (tmp_path / "in" / "deep").mkdir(parents=True)
    (tmp_path / "in-not").mkdir()
    (tmp_path / "in" / "out").symlink_to(tmp_path)
    registry = await quick.registry()
    lead = await registry.add("lead", profile="developer", workdir=tmp_path / "in", lives=100)
    for outside in (tmp_path, tmp_path / "in-not", tmp_path / "in" / "out", tmp_path / "in" / ".."):
        with pytest.raises(UsageError, match="outside"):
            await registry.add("scout", profile="developer", parent="lead", workdir=outside)
    with pytest.raises(UsageError, match="ends earlier"):
        await registry.add("scout", profile="developer", parent="lead", lives=200)
    same = await registry.add("same", profile="developer", parent="lead")
    assert (same.agent.workdir, same.agent.expires_at) == (lead.agent.workdir, lead.agent.expires_at)
    less = await registry.add("less", profile="developer", parent="same", workdir=tmp_path / "in" / "deep", lives=50)
    assert less.agent.expires_at is not None and lead.agent.expires_at is not None
    assert less.agent.expires_at < lead.agent.expires_at
    with pytest.raises(NotFound):
        await registry.add("orphan", profile="developer", parent="nobody")


async def test_agents_do_not_stand_above_one_another_without_end(quick: World) -> None:
    registry = await quick.registry()
    await registry.add("a0", profile="developer")
    for depth in range(1, DEEPEST):
        await registry.add(f"a{depth}", profile="developer", parent=f"a{depth - 1}")
    with pytest.raises(UsageError, match="levels of parents"):
        await registry.add("last", profile="developer", parent=f"a{DEEPEST - 1}")
    assert await registry.remove("a1") == tuple(f"a{depth}" for depth in range(1, DEEPEST))


async def test_removing_an_agent_ends_its_children_and_their_folders(world: World) -> None:
    registry = await world.registry()
    minted = [
        await registry.add("lead", profile="developer"),
        await registry.add("other", profile="developer"),
    ]
    minted.append(await registry.add("scout", profile="developer", parent="lead"))
    minted.append(await registry.add("scouts-own", profile="developer", parent="scout"))
    (world.folder / "scout" / "clients").mkdir()
    (world.folder / "scout" / "clients" / "mcp.json").write_text("{}")
    assert registry.children("lead") == ("scout", "scouts-own")
    world.events()
    assert await registry.remove("lead") == ("lead", "scout", "scouts-own")
    assert sorted(world.events()) == [("AgentEnded", name) for name in ("lead", "scout", "scouts-own")]
    assert [folder.name for folder in world.folder.iterdir()] == ["other"]
    for one in (registry, await world.registry()):
        assert [one.authenticate(mint.token) is not None for mint in minted] == [False, True, False, False]
        assert [agent.name for agent in one.agents] == ["other"]
    assert [(change.agent, change.detail) for change in world.noted if change.what == "agent removed"] == [
        ("lead", {}),
        ("scout", {"with": "lead"}),
        ("scouts-own", {"with": "lead"}),
    ]
    with pytest.raises(NotFound):
        await registry.remove("lead")


# --- time ------------------------------------------------------------------------------------------------------------


async def test_an_agent_whose_time_is_over_is_nobody_at_once(quick: World, clock: Callable[[float], None]) -> None:
    registry = await quick.registry()
    minted = await registry.add("guest", profile="developer", lives=60)
    child = await registry.add("guests-own", profile="developer", parent="guest")
    clock(61)
    assert registry.authenticate(minted.token) is None
    assert registry.authenticate(child.token) is None
    assert registry.agents == ()
    assert not registry.knows("guest")
    with pytest.raises(NotFound):
        registry.find("guest")
    again = await registry.add("guest", profile="nothing")
    assert registry.authenticate(again.token) is again.agent
    assert registry.authenticate(minted.token) is None
    assert not registry.knows("guests-own")
    assert [change.what for change in quick.noted][2:] == ["agent expired", "agent expired", "agent added"]


async def test_the_time_ends_an_agent_without_anybody_asking(world: World) -> None:
    registry = await world.registry()
    ended = asyncio.Event()
    await registry.add("stays", profile="developer", lives=3600)
    await registry.add("guest", profile="developer", lives=0.2)
    await registry.add("guests-own", profile="developer", parent="guest")
    world.bus.subscribe(lambda _: ended.set(), AgentEnded)
    async with asyncio.timeout(60):
        await ended.wait()
        await registry.close()
    assert world.events() == [("AgentEnded", "guest"), ("AgentEnded", "guests-own")]
    assert [row.name for row in await world.store.read(all_agents)] == ["stays"]
    assert [folder.name for folder in world.folder.iterdir()] == ["stays"]


@pytest.mark.req("KSI-2")
async def test_a_sweep_clears_what_a_crash_and_the_time_left(world: World, clock: Callable[[float], None]) -> None:
    registry = await world.registry()
    await registry.add("guest", profile="developer", lives=60)
    stays = await registry.add("stays", profile="developer")
    (world.folder / "half-made").mkdir()
    (world.folder / "half-made" / "token").write_text("tcb_x")
    clock(61)
    late = await world.registry()
    assert [agent.name for agent in late.agents] == ["stays"]
    assert (world.folder / "half-made").exists(), "opening alone takes nothing that another process may be making"
    await late.sweep()
    assert [folder.name for folder in world.folder.iterdir()] == ["stays"]
    assert [row.name for row in await world.store.read(all_agents)] == ["stays"]
    assert [(change.what, change.agent) for change in world.noted[2:]] == [("agent expired", "guest")]
    assert late.authenticate(stays.token) is not None
    await late.sweep()
    assert len(world.noted) == 3


@pytest.mark.parametrize("stored", [True, False])
async def test_a_rotation_that_was_cut_short_leaves_the_token_that_counts(quick: World, *, stored: bool) -> None:
    registry = await quick.registry()
    first = await registry.add("lead", profile="developer")
    other = await registry.add("other", profile="developer")
    # As after a crash: the new token lies beside the old one, and the store has its digest or not.
    staged = first.token if stored else other.token
    registry.folder.stage("lead", staged)
    if stored:
        first.token_file.write_text("tcb_old\n")
    await (await quick.registry()).sweep()
    assert {file.name for file in first.token_file.parent.iterdir()} == {"store", "token"}
    assert first.token_file.read_text().strip() == first.token


# --- rules and profiles ----------------------------------------------------------------------------------------------


async def test_a_rule_holds_from_the_next_decision_on_and_after_a_restart(world: World) -> None:
    registry = await world.registry()
    await registry.add("reviewer", profile="nothing")
    before = registry.version
    assert await registry.add_rule("reviewer", allow("git:*")) is True
    assert await registry.add_rule("reviewer", deny("git:reset")) is True
    assert await registry.add_rule("reviewer", deny("git:reset")) is False
    for one in (registry, await world.registry()):
        permission = one.find("reviewer").permission
        assert permission.decide(LOG, {}).rule == "agent reviewer: allow git:*"
        assert permission.decide(RESET, {}).rule == "agent reviewer: deny git:reset"
        assert [rule.text for rule in one.rules("reviewer")] == [
            "agent reviewer: allow git:*",
            "agent reviewer: deny git:reset",
        ]
        assert one.version == before + 2
    assert world.events() == [("PermissionChanged", "reviewer")] * 2
    assert await registry.drop_rule("reviewer", allow("git:*")) is True
    assert await registry.drop_rule("reviewer", allow("git:*")) is False
    assert registry.find("reviewer").permission.decide(LOG, {}).verdict is Verdict.DENY
    assert [rule.text for rule in (await world.registry()).rules("reviewer")] == ["agent reviewer: deny git:reset"]


async def test_a_rule_is_dropped_whoever_put_it_there(quick: World) -> None:
    registry = await quick.registry()
    await registry.add("reviewer", profile="nothing")
    await registry.add_rule("reviewer", allow("git:log"))
    await registry.add_rule("reviewer", Rule(effect=Verdict.ALLOW, tools="git:log", origin=RuleOrigin.APPROVAL))
    assert len(registry.rules("reviewer")) == 2
    await registry.drop_rule("reviewer", allow("git:log"))
    assert registry.rules("reviewer") == ()


async def test_an_edited_profile_changes_every_agent_that_has_it_and_their_children(world: World) -> None:
    registry = await world.registry()
    await registry.put_profile(profile_from("gitter", {"rules": [{"allow": "git:*"}]}))
    await registry.add("a", profile="gitter")
    await registry.add("b", profile="gitter")
    await registry.add("b-child", profile="developer", parent="b")
    await registry.add("apart", profile="developer")
    world.events()
    edited = profile_from("gitter", {"rules": [{"allow": "git:*"}, {"deny": "git:reset"}]})
    assert await registry.put_profile(edited) is True
    assert sorted(world.events()) == [("PermissionChanged", name) for name in ("a", "b", "b-child")]
    for one in (registry, await world.registry()):
        assert one.find("b-child").permission.decide(RESET, {}).verdict is Verdict.DENY
        assert one.find("apart").permission.decide(RESET, {}).verdict is Verdict.ALLOW
        assert one.profile("gitter").rules == edited.rules
    assert await registry.put_profile(edited) is False
    assert world.events() == []


async def test_a_profile_goes_only_when_nobody_has_it(world: World) -> None:
    registry = await world.registry()
    await registry.put_profile(profile_from("gitter", {"rules": []}))
    await registry.add("a", profile="gitter")
    with pytest.raises(UsageError, match="in use: a"):
        await registry.drop_profile("gitter")
    with pytest.raises(UsageError, match="built in"):
        await registry.drop_profile("developer")
    await registry.remove("a")
    await registry.drop_profile("gitter")
    for one in (registry, await world.registry()):
        with pytest.raises(NotFound):
            one.profile("gitter")
    with pytest.raises(NotFound):
        await registry.drop_profile("gitter")


async def test_what_did_not_change_keeps_the_very_permission_it_had(quick: World) -> None:
    registry = await quick.registry()
    await registry.add("a", profile="developer")
    await registry.add("b", profile="developer")
    kept = registry.find("b")
    await registry.add_rule("a", deny("git:*"))
    await registry.remove("a")
    assert registry.find("b") is kept


async def test_rules_that_cannot_be_read_allow_nothing(world: World) -> None:
    registry = await world.registry()
    await registry.put_profile(profile_from("mine", {"rules": [{"allow": "*"}]}))
    first = await registry.add("a", profile="developer")
    await registry.add("b", profile="mine")
    await registry.add("c", profile="developer", parent="a")
    await world.store.write(add_rule, "a", origin="agent", rule='{"deny": {}}', added_at=0.0)
    await world.store.write(put_profile, ProfileRow(name="mine", content="{", changed_at=0.0))
    late = await world.registry()
    for name in ("a", "b", "c"):
        assert late.find(name).permission.decide(LOG, {}).verdict is Verdict.DENY
    assert "rule" in late.find("a").fault
    assert "mine" in late.find("b").fault
    assert late.authenticate(first.token) is not None


# --- a store or an audit log that fails
# ------------------------------------------------------------------------------------


@pytest.mark.parametrize("fails", ["before", "after"])
async def test_a_narrowing_holds_although_the_store_fails_and_can_be_repeated(world: World, fails: str) -> None:
    registry = await world.registry()
    lead = await registry.add("lead", profile="developer")
    child = await registry.add("scout", profile="developer", parent="lead")
    await registry.add("reviewer", profile="developer")
    await registry.add_rule("reviewer", ask("git:*"))
    rotated = await registry.add("rotated", profile="developer")
    world.events()
    before = registry.version
    world.store.fails = fails
    for change in (
        registry.remove("lead"),
        registry.add_rule("reviewer", deny("git:reset")),
        registry.rotate("rotated"),
    ):
        with pytest.raises(StoreError, match="until a restart, because that could not be stored") as caught:
            await change
        assert caught.value.remedy.endswith("repeat the command.")
    assert world.events() == [
        ("AgentEnded", "lead"),
        ("AgentEnded", "scout"),
        ("PermissionChanged", "reviewer"),
        ("AgentEnded", "rotated"),
    ]
    assert [registry.authenticate(one.token) for one in (lead, child, rotated)] == [None, None, None]
    assert registry.find("reviewer").permission.decide(RESET, {}).verdict is Verdict.DENY
    world.store.fails = ""
    assert (await registry.remove("lead"))[0] == "lead"
    await registry.add_rule("reviewer", deny("git:reset"))
    new = await registry.rotate("rotated")
    late = await world.registry()
    assert [agent.name for agent in late.agents] == ["reviewer", "rotated"]
    assert late.authenticate(new.token) is not None
    assert late.authenticate(rotated.token) is None
    assert late.find("reviewer").permission.decide(RESET, {}).verdict is Verdict.DENY
    assert late.version == registry.version > before
    assert new.token_file.read_text().strip() == new.token


@pytest.mark.parametrize("fails", ["before", "after"])
async def test_what_could_not_be_stored_is_stored_with_the_next_change(world: World, fails: str) -> None:
    registry = await world.registry()
    await registry.add("lead", profile="developer")
    await registry.add("reviewer", profile="developer", rules=[allow("git:log"), allow("git:reset")])
    world.store.fails = fails
    for change in (
        registry.remove("lead"),
        registry.add_rule("reviewer", deny("git:show")),
        registry.drop_rule("reviewer", allow("git:reset")),
    ):
        with pytest.raises(StoreError):
            await change
    world.store.fails = ""
    again = await registry.add("lead", profile="nothing")
    late = await world.registry()
    assert [rule.text for rule in late.rules("reviewer")] == [
        "agent reviewer: allow git:log",
        "agent reviewer: deny git:show",
    ]
    assert (found := late.authenticate(again.token)) is not None
    assert found.profile == "nothing"


@pytest.mark.parametrize("fails", ["before", "after"])
async def test_a_widening_that_cannot_be_stored_changes_nothing(world: World, fails: str) -> None:
    registry = await world.registry()
    await registry.add("reviewer", profile="nothing")
    world.events()
    world.store.fails = fails
    for change in (
        registry.add("late", profile="developer"),
        registry.add_rule("reviewer", allow("*")),
        registry.put_profile(profile_from("gitter", {"rules": [{"allow": "git:*"}]})),
    ):
        with pytest.raises(StoreError):
            await change
    world.store.fails = ""
    assert world.events() == []
    assert [agent.name for agent in registry.agents] == ["reviewer"]
    assert registry.find("reviewer").permission.decide(LOG, {}).verdict is Verdict.DENY
    assert [folder.name for folder in world.folder.iterdir()] == ["reviewer"]
    await registry.add_rule("reviewer", allow("git:log"))
    late = await world.registry()
    assert [agent.name for agent in late.agents] == ["reviewer"]
    assert [rule.text for rule in late.rules("reviewer")] == ["agent reviewer: allow git:log"]
    assert "gitter" not in late.profiles
    minted = await registry.add("late", profile="developer")
    assert (await world.registry()).authenticate(minted.token) is not None


@pytest.mark.req("KSI-8")
async def test_without_the_audit_log_nothing_is_given_but_everything_can_be_taken(world: World) -> None:
    registry = await world.registry()
    reviewer = await registry.add("reviewer", profile="developer")
    world.audit_log_fails = True
    for change in (registry.add("late", profile="developer"), registry.add_rule("reviewer", allow("*"))):
        with pytest.raises(StoreError, match="Nothing was changed"):
            await change
    late = await world.registry()
    assert ([agent.name for agent in late.agents], late.rules("reviewer")) == (["reviewer"], ())
    assert [folder.name for folder in world.folder.iterdir()] == ["reviewer"]
    with pytest.raises(StoreError, match="now and after a restart, but the audit log could not be written"):
        await registry.remove("reviewer")
    assert registry.authenticate(reviewer.token) is None
    assert (await world.registry()).agents == ()


async def test_a_profile_that_became_narrower_holds_although_the_store_fails(quick: World) -> None:
    registry = await quick.registry()
    await registry.put_profile(profile_from("gitter", {"rules": [{"allow": "git:*"}]}))
    await registry.add("a", profile="gitter")
    quick.store.fails = "before"
    with pytest.raises(StoreError, match="until a restart, because that could not be stored"):
        await registry.put_profile(profile_from("gitter", {"rules": []}))
    assert registry.find("a").permission.decide(LOG, {}).verdict is Verdict.DENY
    with pytest.raises(StoreError, match="disk is full"):
        await registry.put_profile(profile_from("gitter", {"rules": [{"allow": "*"}]}))
    assert registry.find("a").permission.decide(LOG, {}).verdict is Verdict.DENY


async def test_a_change_is_finished_although_whoever_asked_for_it_left(world: World) -> None:
    registry = await world.registry()
    asked = asyncio.create_task(registry.add("reviewer", profile="developer"))
    await asyncio.sleep(0)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    await registry.close()
    register, _ = await world.store.read(load_records)
    assert list(register.agents) == ["reviewer"]
    assert [agent.name for agent in registry.agents] == ["reviewer"]
    token = registry.folder.token_file("reviewer").read_text().strip()
    assert registry.authenticate(token) is not None


async def test_many_changes_at_once_all_come_about(world: World) -> None:
    registry = await world.registry()
    names = [f"agent{number}" for number in range(20)]
    minted = await asyncio.gather(*(registry.add(name, profile="nothing") for name in names))
    await asyncio.gather(
        *(registry.add_rule(name, allow(f"git:{name}")) for name in names),
        *(registry.remove(name) for name in names[:5]),
        return_exceptions=True,
    )
    late = await world.registry()
    assert {agent.name for agent in late.agents} == set(names[5:])
    for name, one in zip(names[5:], minted[5:], strict=True):
        assert [rule.tools for rule in late.rules(name)] == [f"git:{name}"]
        assert late.authenticate(one.token) is not None
    assert await world.store.read(version, "permissions") == registry.version


async def unwritten(change: AuditedChange) -> None: ...


async def test_a_name_that_is_taken_in_another_database_costs_that_agent_nothing(tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        rosters = []
        for name in ("one.db", "two.db"):
            store = await Store.open(tmp_path / name)
            stack.push_async_callback(store.close)
            registry = await AgentRegistry.open(store, bus=Bus(), note=unwritten, folder=tmp_path / "agents")
            stack.push_async_callback(registry.close)
            rosters.append(registry)
        minted = await rosters[0].add("a", profile="developer")
        with pytest.raises(StoreError, match="Another of your databases"):
            await rosters[1].add("a", profile="developer")
        assert minted.token_file.read_text().strip() == minted.token
        assert not rosters[1].knows("a")
