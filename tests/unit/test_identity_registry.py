"""A token identifies its agent as long as the agent exists, with its current permission."""

from __future__ import annotations

import asyncio
import contextlib
import re
import stat
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from parts.shaky_store import Shaky
from toolcrib.catalog.snapshot import Catalog
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

LOG, RESET = Catalog.build({"git": (b'{"name": "log"}', b'{"name": "reset"}')}, version=1).tools


def rule(effect: str, tools: str) -> Rule:
    return Rule(effect=Verdict(effect), tools=tools, origin=RuleOrigin.AGENT)


def verdicts(registry: AgentRegistry, agent: str) -> tuple[str, str]:
    """On `git:log` and `git:reset`."""
    permission = registry.find(agent).permission
    return str(permission.decide(LOG, {}).verdict), str(permission.decide(RESET, {}).verdict)


def names(registry: AgentRegistry) -> list[str]:
    return [agent.name for agent in registry.agents]


def rules(registry: AgentRegistry, agent: str) -> list[str]:
    return [one.text.removeprefix(f"agent {agent}: ") for one in registry.rules(agent)]


class Registries:
    """Opens registries on one store, and records their events and audited changes."""

    def __init__(self, store: Store, folder: Path) -> None:
        self.store = Shaky(store)
        self.folder = folder
        self.bus = Bus()
        self.audited: list[AuditedChange] = []
        self.audit_log_fails = False
        self.published: list[Event] = []
        self.bus.subscribe(self.published.append, AgentEnded, PermissionChanged)
        self.opened: list[AgentRegistry] = []

    async def open(self) -> AgentRegistry:
        registry = await AgentRegistry.open(cast(Store, self.store), bus=self.bus, note=self._note, folder=self.folder)
        self.opened.append(registry)
        return registry

    async def _note(self, change: AuditedChange) -> None:
        self.audited.append(change)
        if self.audit_log_fails:
            raise StoreError("The audit log cannot be written.", remedy="Make room.")

    def events(self) -> list[tuple[str, str]]:
        """The events since the last call; `TokenReplaced` is an end of an agent that returns."""
        published: list[Any] = list(self.published)
        self.published.clear()
        replaced = {id(event) for event in published if getattr(event, "returns", False)}
        return [
            ("TokenReplaced" if id(event) in replaced else type(event).__name__, event.agent) for event in published
        ]

    def folders(self) -> list[str]:
        return [folder.name for folder in self.folder.iterdir()]


@contextlib.asynccontextmanager
async def registries_at(url: str | Path, folder: Path) -> AsyncIterator[Registries]:
    store = await Store.open(url)
    registries = Registries(store, folder)
    try:
        yield registries
    finally:
        for registry in registries.opened:
            await registry.close()
        await store.close()


@pytest.fixture
async def registries(store_url: str, tmp_path: Path) -> AsyncIterator[Registries]:
    async with registries_at(store_url, tmp_path / "agents") as made:
        yield made


@pytest.fixture
async def sqlite(tmp_path: Path) -> AsyncIterator[Registries]:
    """For behaviours that do not depend on the database."""
    async with registries_at(tmp_path / "crib.db", tmp_path / "agents") as made:
        yield made


@pytest.fixture
def forward(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Moves the clock forward."""
    moved = 0.0
    real = time.time

    def forward(seconds: float) -> None:
        nonlocal moved
        moved += seconds

    monkeypatch.setattr(time, "time", lambda: real() + moved)
    return forward


async def test_a_token_identifies_its_agent_also_after_a_restart_and_is_stored_only_in_the_private_file(
    registries: Registries, tmp_path: Path
) -> None:
    registry = await registries.open()
    minted = await registry.add("reviewer", profile="read-only", workdir=tmp_path, lives=3600)
    for one in (registry, await registries.open()):
        agent = one.authenticate(minted.token)
        assert agent is not None
        assert (agent.name, agent.profile, agent.workdir) == ("reviewer", "read-only", tmp_path.resolve())
        assert agent.expires_at == pytest.approx(time.time() + 3600, abs=60)
        assert agent.permission.profile == "read-only"
        assert one.version == 1
    assert minted.token.startswith(TOKEN_PREFIX)
    assert minted.token not in repr((minted, minted.agent, registries.audited))
    assert minted.token_file == registries.folder / "reviewer" / "token"
    assert minted.token_file.read_text().strip() == minted.token
    assert stat.S_IMODE(minted.token_file.stat().st_mode) == 0o600
    assert stat.S_IMODE(minted.token_file.parent.stat().st_mode) == 0o700
    (row,) = await registries.store.read(all_agents)
    assert row.digest == digest_of(minted.token)
    others = [file for file in tmp_path.rglob("*") if file.is_file() and file != minted.token_file]
    assert [file for file in others if minted.token.encode() in file.read_bytes()] == []
    for token in ("", "tcb_", "x" * 10_000, "tcb_\udcff", "owner", "reviewer", minted.token[:-1], minted.token + " "):
        assert registry.authenticate(token) is None


async def test_a_rotated_token_is_invalid_and_the_children_keep_theirs(registries: Registries) -> None:
    registry = await registries.open()
    first = await registry.add("lead", profile="developer")
    child = await registry.add("scout", profile="developer", parent="lead")
    registries.events()
    second = await registry.rotate("lead")
    assert registries.events() == [("TokenReplaced", "lead")]
    assert second.token_file.read_text().strip() == second.token
    assert {file.name for file in second.token_file.parent.iterdir()} == {"store", "token"}
    for one in (registry, await registries.open()):
        found = [one.authenticate(minted.token) for minted in (first, second, child)]
        assert [agent and agent.name for agent in found] == [None, "lead", "scout"]
    assert [change.what for change in registries.audited] == ["agent added", "agent added", "token rotated"]


NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,47}")


@given(name=st.one_of(st.text(), st.from_regex(NAME, fullmatch=True), st.from_regex(r"[a-z0-9_.-]{1,60}\n?")))
@example(name="owner")
@example(name="client")
def test_only_plain_names_that_are_not_reserved_are_accepted(name: str) -> None:
    if name in {"owner", "client"}:
        with pytest.raises(UsageError, match="reserved by Toolcrib"):
            checked_name(name)
    elif NAME.fullmatch(name):
        assert checked_name(name) == name
        assert Path("/x", name).parent == Path("/x")
    else:
        with pytest.raises(UsageError, match="cannot be an agent's name"):
            checked_name(name)


@pytest.mark.parametrize(
    ("wanted", "error", "message", "remedy"),
    [
        ({"name": "reviewer"}, UsageError, "already", "rotate reviewer"),
        ({"profile": "reed-only"}, NotFound, "no profile", "read-only"),
        ({"profile": "owner"}, UsageError, "only for you", "trusted"),
        *[({"workdir": Path(path)}, UsageError, "not a folder", "") for path in ("relative", "/not/there", __file__)],
        *[({"lives": time}, UsageError, "ten years", "") for time in (0, -1, float("nan"), float("inf"), 1e12)],
    ],
)
async def test_invalid_agents_are_refused(
    sqlite: Registries, wanted: Any, error: type[Exception], message: str, remedy: str
) -> None:
    registry = await sqlite.open()
    await registry.add("reviewer", profile="nothing")
    with pytest.raises(error, match=message) as caught:
        await registry.add(**{"name": "other", "profile": "developer", **wanted})
    assert remedy in cast(Any, caught.value).remedy
    assert [(agent.name, agent.profile) for agent in registry.agents] == [("reviewer", "nothing")]
    assert sqlite.folders() == ["reviewer"]
    assert (sqlite.folder / "reviewer" / "token").exists()


async def test_unknown_agents_are_refused_with_the_nearest_name(sqlite: Registries) -> None:
    registry = await sqlite.open()
    await registry.add("reviewer", profile="developer")
    with pytest.raises(NotFound) as caught:
        registry.find("reviwer")
    assert "reviewer" in caught.value.remedy
    for change in (registry.rotate("x"), registry.remove("x"), registry.add_rule("x", rule("allow", "*"))):
        with pytest.raises(NotFound, match="no agent 'x'"):
            await change


async def test_a_child_may_do_only_what_its_parent_may(registries: Registries) -> None:
    registry = await registries.open()
    await registry.add("lead", profile="developer", rules=[rule("deny", "git:reset")])
    await registry.add("scout", profile="trusted", parent="lead")
    for one in (registry, await registries.open()):
        assert verdicts(one, "scout") == ("allow", "deny")
    registries.events()
    await registry.add_rule("lead", rule("deny", "git:log"))
    assert sorted(registries.events()) == [("PermissionChanged", "lead"), ("PermissionChanged", "scout")]
    assert verdicts(registry, "scout") == ("deny", "deny")


async def test_a_child_stays_within_its_parents_folder_and_lifetime(sqlite: Registries, tmp_path: Path) -> None:
    (tmp_path / "in" / "deep").mkdir(parents=True)
    (tmp_path / "in-not").mkdir()
    (tmp_path / "in" / "out").symlink_to(tmp_path)
    registry = await sqlite.open()
    lead = (await registry.add("lead", profile="developer", workdir=tmp_path / "in", lives=100)).agent
    for outside in (tmp_path, tmp_path / "in-not", tmp_path / "in" / "out", tmp_path / "in" / ".."):
        with pytest.raises(UsageError, match="outside"):
            await registry.add("scout", profile="developer", parent="lead", workdir=outside)
    with pytest.raises(UsageError, match="ends earlier"):
        await registry.add("scout", profile="developer", parent="lead", lives=200)
    same = (await registry.add("same", profile="developer", parent="lead")).agent
    assert (same.workdir, same.expires_at) == (lead.workdir, lead.expires_at)
    deep = tmp_path / "in" / "deep"
    less = (await registry.add("less", profile="developer", parent="same", workdir=deep, lives=50)).agent
    assert less.expires_at is not None and lead.expires_at is not None and less.expires_at < lead.expires_at
    with pytest.raises(NotFound):
        await registry.add("orphan", profile="developer", parent="nobody")


async def test_the_depth_of_parents_is_limited(sqlite: Registries) -> None:
    registry = await sqlite.open()
    await registry.add("a0", profile="developer")
    for depth in range(1, DEEPEST):
        await registry.add(f"a{depth}", profile="developer", parent=f"a{depth - 1}")
    with pytest.raises(UsageError, match="levels of parents"):
        await registry.add("last", profile="developer", parent=f"a{DEEPEST - 1}")
    assert await registry.remove("a1") == tuple(f"a{depth}" for depth in range(1, DEEPEST))


async def test_removing_an_agent_ends_its_children_and_their_folders(registries: Registries) -> None:
    registry = await registries.open()
    parents = {"lead": None, "other": None, "scout": "lead", "scouts-own": "scout"}
    minted = [await registry.add(name, profile="developer", parent=parent) for name, parent in parents.items()]
    (registries.folder / "scout" / "clients").mkdir()
    (registries.folder / "scout" / "clients" / "mcp.json").write_text("{}")
    assert registry.children("lead") == ("scout", "scouts-own")
    registries.events()
    assert await registry.remove("lead") == ("lead", "scout", "scouts-own")
    assert sorted(registries.events()) == [("AgentEnded", name) for name in ("lead", "scout", "scouts-own")]
    assert registries.folders() == ["other"]
    for one in (registry, await registries.open()):
        assert [one.authenticate(mint.token) is not None for mint in minted] == [False, True, False, False]
        assert names(one) == ["other"]
    assert [(change.what, change.agent, change.detail) for change in registries.audited[4:]] == [
        ("agent removed", "lead", {}),
        ("agent removed", "scout", {"with": "lead"}),
        ("agent removed", "scouts-own", {"with": "lead"}),
    ]
    with pytest.raises(NotFound):
        await registry.remove("lead")


async def test_an_expired_agent_is_unknown_at_once(sqlite: Registries, forward: Callable[[float], None]) -> None:
    registry = await sqlite.open()
    minted = await registry.add("guest", profile="developer", lives=60)
    child = await registry.add("guests-own", profile="developer", parent="guest")
    forward(61)
    assert (registry.authenticate(minted.token), registry.authenticate(child.token)) == (None, None)
    assert (registry.agents, registry.knows("guest")) == ((), False)
    with pytest.raises(NotFound):
        registry.find("guest")
    again = await registry.add("guest", profile="nothing")
    assert registry.authenticate(again.token) is again.agent
    assert registry.authenticate(minted.token) is None
    assert not registry.knows("guests-own")
    assert [change.what for change in sqlite.audited][2:] == ["agent expired", "agent expired", "agent added"]


async def test_an_expired_agent_ends_without_a_request(registries: Registries) -> None:
    registry = await registries.open()
    ended = asyncio.Event()
    await registry.add("stays", profile="developer", lives=3600)
    await registry.add("guest", profile="developer", lives=0.2)
    await registry.add("guests-own", profile="developer", parent="guest")
    registries.bus.subscribe(lambda _: ended.set(), AgentEnded)
    async with asyncio.timeout(60):
        await ended.wait()
        await registry.close()
    assert registries.events() == [("AgentEnded", "guest"), ("AgentEnded", "guests-own")]
    assert [row.name for row in await registries.store.read(all_agents)] == ["stays"]
    assert registries.folders() == ["stays"]


@pytest.mark.req("KSI-2")
async def test_a_sweep_removes_expired_agents_and_leftover_folders(
    registries: Registries, forward: Callable[[float], None]
) -> None:
    registry = await registries.open()
    await registry.add("guest", profile="developer", lives=60)
    stays = await registry.add("stays", profile="developer")
    (registries.folder / "half-made").mkdir()
    (registries.folder / "half-made" / "token").write_text("tcb_x")
    forward(61)
    late = await registries.open()
    assert names(late) == ["stays"]
    assert (registries.folder / "half-made").exists(), "opening alone removes nothing that another process may create"
    for _ in range(2):
        await late.sweep()
        assert registries.folders() == ["stays"]
        assert [row.name for row in await registries.store.read(all_agents)] == ["stays"]
        assert [(change.what, change.agent) for change in registries.audited[2:]] == [("agent expired", "guest")]
        assert late.authenticate(stays.token) is not None


@pytest.mark.parametrize("stored", [True, False])
async def test_a_sweep_after_an_interrupted_rotation_keeps_the_valid_token(sqlite: Registries, *, stored: bool) -> None:
    registry = await sqlite.open()
    first = await registry.add("lead", profile="developer")
    other = await registry.add("other", profile="developer")
    # As after a crash: the new token is beside the old one, and its digest is stored or not.
    registry.folder.stage("lead", first.token if stored else other.token)
    if stored:
        first.token_file.write_text("tcb_old\n")
    await (await sqlite.open()).sweep()
    assert {file.name for file in first.token_file.parent.iterdir()} == {"store", "token"}
    assert first.token_file.read_text().strip() == first.token


async def test_a_rule_applies_from_the_next_decision_on_and_after_a_restart(registries: Registries) -> None:
    registry = await registries.open()
    await registry.add("reviewer", profile="nothing")
    before = registry.version
    assert await registry.add_rule("reviewer", rule("allow", "git:*")) is True
    assert await registry.add_rule("reviewer", rule("deny", "git:reset")) is True
    assert await registry.add_rule("reviewer", rule("deny", "git:reset")) is False
    for one in (registry, await registries.open()):
        permission = one.find("reviewer").permission
        assert permission.decide(LOG, {}).rule == "agent reviewer: allow git:*"
        assert permission.decide(RESET, {}).rule == "agent reviewer: deny git:reset"
        assert rules(one, "reviewer") == ["allow git:*", "deny git:reset"]
        assert one.version == before + 2
    assert registries.events() == [("PermissionChanged", "reviewer")] * 2
    approval = Rule(effect=Verdict.ALLOW, tools="git:*", origin=RuleOrigin.APPROVAL)
    assert await registry.add_rule("reviewer", approval) is True
    assert await registry.drop_rule("reviewer", rule("allow", "git:*")) is True, "of both origins"
    assert await registry.drop_rule("reviewer", rule("allow", "git:*")) is False
    assert verdicts(registry, "reviewer") == ("deny", "deny")
    assert rules(await registries.open(), "reviewer") == ["deny git:reset"]


async def test_an_edited_profile_changes_its_agents_and_their_children(registries: Registries) -> None:
    registry = await registries.open()
    await registry.put_profile(profile_from("gitter", {"rules": [{"allow": "git:*"}]}))
    await registry.add("a", profile="gitter")
    await registry.add("b", profile="gitter")
    await registry.add("b-child", profile="developer", parent="b")
    await registry.add("apart", profile="developer")
    registries.events()
    edited = profile_from("gitter", {"rules": [{"allow": "git:*"}, {"deny": "git:reset"}]})
    assert await registry.put_profile(edited) is True
    assert sorted(registries.events()) == [("PermissionChanged", name) for name in ("a", "b", "b-child")]
    for one in (registry, await registries.open()):
        assert (verdicts(one, "b-child"), verdicts(one, "apart")) == (("allow", "deny"), ("allow", "allow"))
        assert one.profile("gitter").rules == edited.rules
    assert await registry.put_profile(edited) is False
    assert registries.events() == []


async def test_only_an_unused_profile_of_the_persons_own_can_be_removed(registries: Registries) -> None:
    registry = await registries.open()
    await registry.put_profile(profile_from("gitter", {"rules": []}))
    await registry.add("a", profile="gitter")
    for name, message in (("gitter", "in use: a"), ("developer", "built in")):
        with pytest.raises(UsageError, match=message):
            await registry.drop_profile(name)
    await registry.remove("a")
    await registry.drop_profile("gitter")
    for one in (registry, await registries.open()):
        with pytest.raises(NotFound):
            one.profile("gitter")
    with pytest.raises(NotFound):
        await registry.drop_profile("gitter")


async def test_an_unchanged_agent_keeps_its_permission_object(sqlite: Registries) -> None:
    registry = await sqlite.open()
    await registry.add("a", profile="developer")
    await registry.add("b", profile="developer")
    kept = registry.find("b")
    await registry.add_rule("a", rule("deny", "git:*"))
    await registry.remove("a")
    assert registry.find("b") is kept


async def test_invalid_stored_rules_allow_nothing(registries: Registries) -> None:
    registry = await registries.open()
    await registry.put_profile(profile_from("mine", {"rules": [{"allow": "*"}]}))
    first = await registry.add("a", profile="developer")
    await registry.add("b", profile="mine")
    await registry.add("c", profile="developer", parent="a")
    await registries.store.write(add_rule, "a", origin="agent", rule='{"deny": {}}', added_at=0.0)
    await registries.store.write(put_profile, ProfileRow(name="mine", content="{", changed_at=0.0))
    late = await registries.open()
    assert {verdicts(late, name) for name in ("a", "b", "c")} == {("deny", "deny")}
    assert "rule" in late.find("a").fault
    assert "mine" in late.find("b").fault
    assert late.authenticate(first.token) is not None


@pytest.mark.parametrize("fails", ["before", "after"])
async def test_a_narrowing_applies_even_if_the_store_fails_and_can_be_repeated(
    registries: Registries, fails: str
) -> None:
    registry = await registries.open()
    lead = await registry.add("lead", profile="developer")
    child = await registry.add("scout", profile="developer", parent="lead")
    await registry.add("reviewer", profile="developer", rules=[rule("ask", "git:*")])
    await registry.put_profile(profile_from("gitter", {"rules": [{"allow": "git:*"}]}))
    await registry.add("gitter", profile="gitter")
    rotated = await registry.add("rotated", profile="developer")
    registries.events()
    before = registry.version
    registries.store.fails = fails
    for change in (
        registry.remove("lead"),
        registry.add_rule("reviewer", rule("deny", "git:reset")),
        registry.rotate("rotated"),
        registry.put_profile(profile_from("gitter", {"rules": []})),
    ):
        with pytest.raises(StoreError, match="until a restart, because the change could not be stored") as caught:
            await change
        assert caught.value.remedy.endswith("repeat the command.")
    assert registries.events() == [
        ("AgentEnded", "lead"),
        ("AgentEnded", "scout"),
        ("PermissionChanged", "reviewer"),
        ("TokenReplaced", "rotated"),
        ("PermissionChanged", "gitter"),
    ]
    assert [registry.authenticate(one.token) for one in (lead, child, rotated)] == [None, None, None]
    with pytest.raises(StoreError, match=r"disk is full|connection was lost"):
        await registry.put_profile(profile_from("gitter", {"rules": [{"allow": "*"}]}))
    assert (verdicts(registry, "reviewer"), verdicts(registry, "gitter")) == (("ask", "deny"), ("deny", "deny"))
    registries.store.fails = ""
    assert (await registry.remove("lead"))[0] == "lead"
    await registry.add_rule("reviewer", rule("deny", "git:reset"))
    new = await registry.rotate("rotated")
    late = await registries.open()
    assert names(late) == ["reviewer", "gitter", "rotated"]
    assert (late.authenticate(new.token) is not None, late.authenticate(rotated.token)) == (True, None)
    assert verdicts(late, "reviewer") == ("ask", "deny")
    assert late.version == registry.version > before
    assert new.token_file.read_text().strip() == new.token


@pytest.mark.parametrize("fails", ["before", "after"])
async def test_a_widening_that_cannot_be_stored_changes_nothing(registries: Registries, fails: str) -> None:
    registry = await registries.open()
    await registry.add("reviewer", profile="nothing")
    registries.events()
    registries.store.fails = fails
    for change in (
        registry.add("late", profile="developer"),
        registry.add_rule("reviewer", rule("allow", "*")),
        registry.put_profile(profile_from("gitter", {"rules": [{"allow": "git:*"}]})),
    ):
        with pytest.raises(StoreError):
            await change
    registries.store.fails = ""
    assert registries.events() == []
    assert (names(registry), registries.folders()) == (["reviewer"], ["reviewer"])
    assert verdicts(registry, "reviewer") == ("deny", "deny")
    await registry.add_rule("reviewer", rule("allow", "git:log"))
    late = await registries.open()
    assert (names(late), rules(late, "reviewer")) == (["reviewer"], ["allow git:log"])
    assert "gitter" not in late.profiles
    minted = await registry.add("late", profile="developer")
    assert (await registries.open()).authenticate(minted.token) is not None


@pytest.mark.req("KSI-8")
async def test_without_the_audit_log_permissions_can_only_be_removed(registries: Registries) -> None:
    registry = await registries.open()
    reviewer = await registry.add("reviewer", profile="developer")
    registries.audit_log_fails = True
    for change in (registry.add("late", profile="developer"), registry.add_rule("reviewer", rule("allow", "*"))):
        with pytest.raises(StoreError, match="Nothing was changed"):
            await change
    late = await registries.open()
    assert (names(late), late.rules("reviewer"), registries.folders()) == (["reviewer"], (), ["reviewer"])
    with pytest.raises(StoreError, match="now and after a restart, but the audit log could not be written"):
        await registry.remove("reviewer")
    assert registry.authenticate(reviewer.token) is None
    assert (await registries.open()).agents == ()


async def test_a_change_is_completed_even_if_its_caller_is_cancelled(registries: Registries) -> None:
    registry = await registries.open()
    adding = asyncio.create_task(registry.add("reviewer", profile="developer"))
    await asyncio.sleep(0)
    adding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await adding
    await registry.close()
    records, _ = await registries.store.read(load_records)
    assert (list(records.agents), names(registry)) == (["reviewer"], ["reviewer"])
    assert registry.authenticate(registry.folder.token_file("reviewer").read_text().strip()) is not None


async def test_many_simultaneous_changes_are_all_made(registries: Registries) -> None:
    registry = await registries.open()
    added = [f"agent{number}" for number in range(20)]
    minted = await asyncio.gather(*(registry.add(name, profile="nothing") for name in added))
    await asyncio.gather(
        *(registry.add_rule(name, rule("allow", f"git:{name}")) for name in added),
        *(registry.remove(name) for name in added[:5]),
        return_exceptions=True,
    )
    late = await registries.open()
    assert set(names(late)) == set(added[5:])
    for name, one in zip(added[5:], minted[5:], strict=True):
        assert rules(late, name) == [f"allow git:{name}"]
        assert late.authenticate(one.token) is not None
    assert await registries.store.read(version, "permissions") == registry.version


async def test_a_name_in_another_database_is_refused_and_that_agent_keeps_its_token(tmp_path: Path) -> None:
    folder = tmp_path / "agents"
    async with registries_at(tmp_path / "1.db", folder) as one, registries_at(tmp_path / "2.db", folder) as other:
        minted = await (await one.open()).add("a", profile="developer")
        second = await other.open()
        with pytest.raises(StoreError, match="Another of your databases"):
            await second.add("a", profile="developer")
        assert minted.token_file.read_text().strip() == minted.token
        assert not second.knows("a")
