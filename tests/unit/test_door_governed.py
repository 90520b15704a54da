"""The door with all who watch it: the audit log, the agents, the person who is asked, the session that counts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType, SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from toolcrib.audit.entry import AuditEntry, EntryKind
from toolcrib.calls import CallRequest, Door
from toolcrib.catalog.snapshot import Catalog
from toolcrib.catalog.tool import Tool
from toolcrib.config.model import NameStyle
from toolcrib.errors import AuditUnwritable, Denied, NotFound, StoreError, UnknownTool
from toolcrib.events import AgentEnded, Bus, PermissionChanged
from toolcrib.identity.approvals import Approvals
from toolcrib.identity.principal import Principal, RequestContext
from toolcrib.policy import BUILTIN, Condition, OneOf, Permission, Profile, Rule, RuleOrigin, Verdict
from toolcrib.servers.model import ServerAnswer, ToolCall

pytestmark = pytest.mark.req("KSI-5", "KSI-8")

READ = b'{"name":"read","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":true}}'
WRITE = b'{"name":"write","inputSchema":{"type":"object","properties":{"path":{"type":"string"}}}}'
HIDDEN = b'{"name":"write_all","inputSchema":{"type":"object"}}'


def may(*rules: tuple[Verdict, str]) -> Permission:
    made = tuple(Rule(effect=effect, tools=tools, origin=RuleOrigin.AGENT, holder="a") for effect, tools in rules)
    return Permission(BUILTIN["nothing"], agent="a", rules=made)


BY_PATH = (Condition(argument="path", test=OneOf(("fine",))),)
EVERYTHING = may((Verdict.ALLOW, "files:*"))


@dataclass
class Workshop:
    """A door with one server behind it, and an audit log, registry and session whose doings a test sees."""

    allowed: Permission = EVERYTHING
    answer: Callable[[ToolCall], Any] = lambda call: ServerAnswer(result=b'{"content":[]}')
    steps: list[str] = field(default_factory=list)
    entries: list[AuditEntry] = field(default_factory=list)
    broken: StoreError | None = None
    durable: asyncio.Event = field(default_factory=asyncio.Event)
    noted: asyncio.Event = field(default_factory=asyncio.Event)
    limit: float = 5.0

    def __post_init__(self) -> None:
        self.durable.set()
        self.bus = Bus()
        self.agents = {"a": self.allowed}
        self.approvals = Approvals(self.bus, limit=self.limit, mask=lambda text: text)
        self.session = SimpleNamespace(id="s_1", mode="full", add_tokens=lambda tokens: None)
        self.counted: list[tuple[str, int]] = []
        self.door = Door(
            self.bus,
            audit=cast(Any, self),
            registry=cast(Any, self),
            approvals=self.approvals,
            sessions=cast(Any, SimpleNamespace(count=lambda _, outcome, size: self.counted.append((outcome, size)))),
        )
        self.list_anew(trusted=frozenset({"files"}))

    def list_anew(self, *, trusted: frozenset[str], **listings: tuple[bytes, ...]) -> None:
        self._catalog = Catalog.build({"files": (READ, WRITE, HIDDEN), **listings}, version=1, trusted=trusted)

    # The audit log.

    def note(self, entry: AuditEntry) -> None:
        self.entries.append(entry)
        self.steps.append(entry.kind)
        self.noted.set()

    async def flush(self) -> None:
        await self.durable.wait()
        if self.broken is not None:
            raise self.broken
        self.steps.append("durable")

    # The registry.

    def find(self, name: str, shown: Callable[[Tool], bool] | None = None, style: NameStyle | None = None) -> Any:
        if shown is not None:
            return self._catalog.find(name, shown=shown, style=style)
        if name not in self.agents:
            raise NotFound(name)
        return SimpleNamespace(permission=self.agents[name])

    # The server.

    def target(self, server: str, request: RequestContext[Any]) -> Workshop:
        return self

    async def call(self, call: ToolCall, **_: Any) -> ServerAnswer:
        self.steps.append("forward")
        told = self.answer(call)
        return await told if asyncio.iscoroutine(told) else told

    async def use(
        self, tool: str, arguments: str = "{}", meta: Mapping[str, Any] = MappingProxyType({}), **params: bytes
    ) -> Any:
        principal = Principal.fixed("a", self.agents["a"])
        context = RequestContext(principal, cast(Any, self), cast(Any, self.session), "c")
        sent = {"arguments": msgspec.Raw(arguments.encode()), **{key: msgspec.Raw(raw) for key, raw in params.items()}}
        return await self.door.call(context, CallRequest(tool=tool, params=sent, meta=meta))

    @property
    def outcomes(self) -> list[str]:
        return [entry.outcome for entry in self.entries if entry.kind is EntryKind.OUTCOME]


async def test_what_may_change_something_leaves_after_its_intent_and_answers_after_its_outcome_is_durable() -> None:
    shop = Workshop()
    await shop.use("files_write")
    assert shop.steps == [EntryKind.INTENT, "durable", "forward", EntryKind.OUTCOME, "durable"]


async def test_what_only_reads_waits_for_no_disk() -> None:
    shop = Workshop()
    await shop.use("files_read")
    assert shop.steps == [EntryKind.INTENT, "forward", EntryKind.OUTCOME]


async def test_a_line_says_who_what_where_and_why() -> None:
    shop = Workshop()
    await shop.use("files_write", '{"path": "x"}')
    intent, outcome = shop.entries
    for entry in (intent, outcome):
        assert (entry.agent, entry.session, entry.conversation) == ("a", "s_1", "c")
        assert (entry.tool, entry.server, entry.decision) == ("files:write", "files", "allow")
        assert entry.rule == "agent a: allow files:*"
        assert entry.mode == "full"
    assert intent.call == outcome.call
    assert (intent.arguments, outcome.arguments) == (b'{"path": "x"}', None), "they are not repeated"
    assert (outcome.outcome, outcome.size, outcome.result) == ("ok", 14, b'{"content":[]}')
    assert shop.counted == [("ok", 14)]


async def test_without_a_audit_log_that_can_be_written_only_reading_goes_on() -> None:
    shop = Workshop(broken=StoreError("There is no room.", remedy="Free some."))
    with pytest.raises(AuditUnwritable, match=r"did not run.*There is no room") as caught:
        await shop.use("files_write")
    assert caught.value.remedy == "Free some."
    assert "forward" not in shop.steps
    await shop.use("files_read")
    assert shop.outcomes == ["refused", "ok"]


async def test_a_call_that_ran_is_answered_also_if_its_outcome_must_wait_for_the_disk() -> None:
    shop = Workshop()

    def fill(_: ToolCall) -> ServerAnswer:
        shop.broken = StoreError("full")
        return ServerAnswer(result=b"{}")

    shop.answer = fill
    assert (await shop.use("files_write")).answer.result == b"{}"


async def test_a_name_that_no_tool_has_is_written_down_and_suggests_only_what_is_permitted() -> None:
    shop = Workshop(may((Verdict.ALLOW, "files:write")))
    with pytest.raises(UnknownTool) as caught:
        await shop.use("files_writ")
    assert caught.value.data["nearest"] == ["files:write"]
    assert [(entry.outcome, entry.tool) for entry in shop.entries] == [("unknown", "files_writ")]


@pytest.mark.parametrize("style", list(NameStyle))
async def test_a_suggestion_is_spelled_as_the_caller_knows_the_tools(style: NameStyle) -> None:
    shop = Workshop()
    context = RequestContext(Principal.fixed("a", shop.agents["a"]), cast(Any, shop))
    with pytest.raises(UnknownTool) as caught:
        await shop.door.call(context, CallRequest(tool="writ", style=style))
    (near, *_) = caught.value.data["nearest"]
    assert near == shop._catalog.find("files:write").public(style)
    assert f"Did you mean {near}" in caught.value.remedy


async def test_a_person_who_says_yes_lets_the_call_pass() -> None:
    shop = Workshop(may((Verdict.ASK, "files:*")))
    using = asyncio.create_task(shop.use("files_write", '{"path": "x"}'))
    (asked,) = await shop.approvals.next(5)
    assert (asked.agent, asked.tool, asked.arguments) == ("a", "files:write", b'{"path": "x"}')
    assert "forward" not in shop.steps
    shop.approvals.answer(asked.id, approved=True)
    await using
    assert shop.outcomes == ["ok"]
    assert shop.entries[-1].decision == "ask"
    assert "approved" in shop.entries[-1].rule


async def test_a_person_sees_what_is_sent_besides_the_arguments() -> None:
    sent: list[ToolCall] = []
    shop = Workshop(may((Verdict.ASK, "files:*")), answer=lambda call: sent.append(call) or ServerAnswer(result=b"{}"))
    answers = b'{"sure": {"action": "accept", "content": {"all": true}}}'
    using = asyncio.create_task(shop.use("files_write", '{"path": "x"}', {"to": "evil"}, inputResponses=answers))
    (asked,) = await shop.approvals.next(5)
    assert shop.approvals.shown(asked.besides, whole=False) == {
        "inputResponses": {"sure": {"action": "accept", "content": {"all": True}}},
        "_meta": {"to": "evil"},
    }
    shop.approvals.answer(asked.id, approved=True)
    await using
    [call] = sent
    assert (bytes(call.params["inputResponses"]), call.meta) == (answers, {"to": "evil"})


async def test_a_person_who_says_no_stops_it() -> None:
    shop = Workshop(may((Verdict.ASK, "files:*")))
    using = asyncio.create_task(shop.use("files_write"))
    (asked,) = await shop.approvals.next(5)
    shop.approvals.answer(asked.id, approved=False)
    with pytest.raises(Denied, match="files:write"):
        await using
    assert (shop.outcomes, "forward" in shop.steps) == (["denied"], False)


async def test_nobody_answers_and_that_is_a_no() -> None:
    shop = Workshop(may((Verdict.ASK, "files:*")), limit=0.01)
    with pytest.raises(Denied):
        await shop.use("files_write")
    assert shop.outcomes == ["denied"]


@pytest.mark.parametrize("change", ["narrowed", "ended"])
@pytest.mark.parametrize("waits", ["for a person", "for the audit log", "for the server"])
async def test_a_change_stops_what_is_under_way_wherever_it_waits(waits: str, change: str) -> None:
    shop = Workshop(may((Verdict.ASK if waits == "for a person" else Verdict.ALLOW, "files:*")))
    reached = asyncio.Event()

    async def hang() -> ServerAnswer:
        reached.set()
        await asyncio.Event().wait()
        raise AssertionError("nothing ends the wait")

    shop.answer = lambda call: hang()
    if waits == "for the audit log":
        shop.durable.clear()
    using = asyncio.create_task(shop.use("files_write"))
    match waits:
        case "for a person":
            await shop.approvals.next(5)
        case "for the audit log":
            await asyncio.wait_for(shop.noted.wait(), 60)
        case _:
            await asyncio.wait_for(reached.wait(), 60)
    if change == "ended":
        del shop.agents["a"]
        shop.bus.publish(AgentEnded(agent="a"))
    else:
        shop.agents["a"] = may((Verdict.DENY, "files:write"))
        shop.bus.publish(PermissionChanged(agent="a"))
    # Whatever it waited for may come in the very same turn: it must not matter any more.
    shop.durable.set()
    with pytest.raises(Denied) as caught:
        await using
    assert shop.outcomes == ["denied"]
    assert ("forward" in shop.steps) == (waits == "for the server")
    assert ("may have run" in caught.value.text()) == (waits == "for the server")


async def test_a_change_that_leaves_the_call_permitted_leaves_it_alone() -> None:
    shop = Workshop()
    reached, release = asyncio.Event(), asyncio.Event()

    async def wait() -> ServerAnswer:
        reached.set()
        await release.wait()
        return ServerAnswer(result=b"{}")

    shop.answer = lambda call: wait()
    using = asyncio.create_task(shop.use("files_write"))
    await asyncio.wait_for(reached.wait(), 60)
    shop.agents["a"] = may((Verdict.ALLOW, "files:write"))
    shop.bus.publish(PermissionChanged(agent="a"))
    release.set()
    assert (await using).answer.result == b"{}"


async def test_the_arguments_decide_where_a_rule_looks_at_them() -> None:
    profile = Profile(name="narrow", rules=())
    rule = Rule(effect=Verdict.ALLOW, tools="files:write", when=BY_PATH, origin=RuleOrigin.AGENT, holder="a")
    shop = Workshop(Permission(profile, agent="a", rules=(rule,)))
    await shop.use("files_write", '{"path": "fine"}')
    with pytest.raises(Denied):
        await shop.use("files_write", '{"path": "other"}')
    assert shop.outcomes == ["ok", "denied"]


async def test_a_rule_that_allows_meanwhile_lets_those_pass_whom_it_covers_and_no_other() -> None:
    shop = Workshop(may((Verdict.ASK, "files:*")))
    fine = asyncio.create_task(shop.use("files_write", '{"path": "fine"}'))
    other = asyncio.create_task(shop.use("files_write", '{"path": "other"}'))
    await shop.approvals.next(5)
    await asyncio.sleep(0)
    always = Rule(effect=Verdict.ALLOW, tools="files:write", when=BY_PATH, origin=RuleOrigin.APPROVAL, holder="a")
    shop.agents["a"] = Permission(BUILTIN["nothing"], agent="a", rules=(*shop.allowed.rules, always))
    shop.bus.publish(PermissionChanged(agent="a"))
    assert (await fine).answer.result == b'{"content":[]}'
    assert [one.arguments for one in shop.approvals.waiting()] == [b'{"path": "other"}']
    shop.approvals.close()
    with pytest.raises(Denied):
        await other


@pytest.mark.parametrize("arguments", ["{}", "null"])
async def test_a_call_without_arguments_is_judged_again_as_one(arguments: str) -> None:
    shop = Workshop(may((Verdict.ASK, "files:*")))
    using = asyncio.create_task(shop.use("files_write", arguments))
    await shop.approvals.next(5)
    by_path = Rule(effect=Verdict.ALLOW, tools="files:write", when=BY_PATH, origin=RuleOrigin.AGENT, holder="a")
    shop.agents["a"] = Permission(BUILTIN["nothing"], agent="a", rules=(by_path,))
    shop.bus.publish(PermissionChanged(agent="a"))
    with pytest.raises(Denied):
        await using


@pytest.mark.parametrize("waits", ["for a person", "for the audit log"])
async def test_a_tool_that_is_another_by_then_is_not_the_one_that_was_allowed(waits: str) -> None:
    shop = Workshop(may((Verdict.ASK if waits == "for a person" else Verdict.ALLOW, "files:*")))
    if waits == "for the audit log":
        shop.durable.clear()
    using = asyncio.create_task(shop.use("files_write"))
    if waits == "for the audit log":
        await asyncio.wait_for(shop.noted.wait(), 60)
    else:
        (asked,) = await shop.approvals.next(5)
    shop.list_anew(trusted=frozenset())
    if waits == "for a person":
        shop.approvals.answer(asked.id, approved=True)
    shop.durable.set()
    with pytest.raises(Denied, match="changed while the call waited"):
        await using
    assert "forward" not in shop.steps


@pytest.mark.parametrize("name", ["files_write", "files:write", "write"])
@pytest.mark.parametrize("waits", ["for a person", "for the audit log"])
async def test_a_tool_that_did_not_change_runs_whatever_happened_around_it(waits: str, name: str) -> None:
    shop = Workshop(may((Verdict.ASK if waits == "for a person" else Verdict.ALLOW, "files:*")))
    if waits == "for the audit log":
        shop.durable.clear()
    using = asyncio.create_task(shop.use(name))
    if waits == "for the audit log":
        await asyncio.wait_for(shop.noted.wait(), 5)
    else:
        (asked,) = await shop.approvals.next(5)
    # No object of the last catalog is left: another tool changed, and a tool of another server has the same name.
    changed = READ.replace(b"object", b"array")
    shop.list_anew(trusted=frozenset({"files"}), files=(WRITE, changed), other=(WRITE,))
    if waits == "for a person":
        shop.approvals.answer(asked.id, approved=True)
    shop.durable.set()
    await using
    assert "forward" in shop.steps


async def test_a_call_inside_a_call_is_stopped_once_for_both() -> None:
    shop = Workshop()
    reached = asyncio.Event()

    async def inner() -> ServerAnswer:
        reached.set()
        await asyncio.Event().wait()
        raise AssertionError("nothing ends the wait")

    async def outer() -> ServerAnswer:
        shop.answer = lambda call: inner()
        with pytest.raises(Denied):
            await shop.use("files_write")
        return ServerAnswer(result=b"{}")

    shop.answer = lambda call: outer()
    using = asyncio.create_task(shop.use("files_read"))
    await asyncio.wait_for(reached.wait(), 60)
    del shop.agents["a"]
    shop.bus.publish(AgentEnded(agent="a"))
    assert (await using).answer.result == b"{}"
    assert using.cancelling() == 0
