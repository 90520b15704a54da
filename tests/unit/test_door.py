"""The door: its steps in order, the audit entries of every outcome, approvals, and changes during a call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import MappingProxyType, SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from toolcrib.audit.entry import AuditEntry, EntryKind
from toolcrib.calls import CallRequest, Door
from toolcrib.catalog.snapshot import Catalog
from toolcrib.catalog.tool import Tool
from toolcrib.config.model import NameStyle
from toolcrib.errors import (
    AuditUnwritable,
    CallTimeout,
    Denied,
    InvalidArguments,
    NotFound,
    ProtocolViolation,
    ServerUnavailable,
    StoreError,
    UnknownTool,
)
from toolcrib.events import AgentEnded, Bus, CallFailed, CallFinished, CallIntended, Event, PermissionChanged
from toolcrib.identity.approvals import Approval, Approvals
from toolcrib.identity.principal import OWNER, Principal, RequestContext
from toolcrib.identity.usage import TokenKind
from toolcrib.policy import BUILTIN, Condition, OneOf, Permission, Rule, RuleOrigin, Verdict
from toolcrib.servers.model import ServerAnswer, ToolCall

pytestmark = pytest.mark.req("BNS-5", "ENG-3", "KSI-5", "KSI-8")

READ = b'{"name":"read","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":true}}'
WRITE = b'{"name":"write","inputSchema":{"type":"object","properties":{"path":{"type":"string"}}}}'
WRITE_ALL = b'{"name":"write_all","inputSchema":{"type":"object"}}'
OPEN = b'{"name":"open","inputSchema":{"type":"object","properties":{"path":{"type":"string"}},"required":["path"]}}'
EMPTY = b'{"content":[]}'


def rule(effect: str, tools: str = "files:*", origin: RuleOrigin = RuleOrigin.AGENT, path: str = "") -> Rule:
    when = (Condition(argument="path", test=OneOf((path,))),) if path else ()
    return Rule(effect=Verdict(effect), tools=tools, when=when, origin=origin, holder="a")


def permission(*rules: Rule) -> Permission:
    return Permission(BUILTIN["nothing"], agent="a", rules=rules)


ALLOW, ASK = permission(rule("allow")), permission(rule("ask"))


class ToolServer:
    """The tool source, and the server behind it. A test chooses its answers."""

    account = None

    def __init__(self, steps: list[str], answer: Callable[[ToolCall], Any]) -> None:
        self.answer = answer
        self.calls: list[tuple[ToolCall, float | None]] = []
        self._steps = steps
        self.list_tools(trusted=True)

    def list_tools(self, *, trusted: bool, **listings: tuple[bytes, ...]) -> None:
        servers = frozenset({"files"} if trusted else ())
        listings = {"files": (READ, WRITE, WRITE_ALL, OPEN), **listings}
        self.catalog = Catalog.build(listings, version=1, trusted=servers)

    def find(self, name: str, shown: Callable[[Tool], bool] | None = None, style: NameStyle | None = None) -> Tool:
        return self.catalog.find(name, shown=shown, style=style)

    def target(self, server: str, request: RequestContext[Any]) -> ToolServer:
        self._steps.append(f"target {server} for {request.principal.name}")
        return self

    async def call(self, call: ToolCall, *, timeout: float | None = None, on_progress: Any = None) -> ServerAnswer:
        self._steps.append("forward")
        self.calls.append((call, timeout))
        answer = self.answer(call)
        if isinstance(answer, BaseException):
            raise answer
        return await answer if asyncio.iscoroutine(answer) else answer


class DoorHarness:
    """A door with a server behind it, an audit log, an agent registry and a session that a test can inspect."""

    def __init__(
        self,
        allowed: Permission = ALLOW,
        answer: Callable[[ToolCall], Any] = lambda call: ServerAnswer(result=EMPTY),
        *,
        broken: StoreError | None = None,
        limit: float = 20.0,
    ) -> None:
        self.steps: list[str] = []
        self.entries: list[AuditEntry] = []
        self.broken = broken
        self.durable, self.noted = asyncio.Event(), asyncio.Event()
        self.durable.set()
        self.bus = Bus()
        self.agents = {"a": allowed}
        self.approvals = Approvals(self.bus, limit=limit)
        self.session = SimpleNamespace(id="s_1", mode="full", add_tokens=lambda kind, tokens: self.kinds.append(kind))
        self.kinds: list[TokenKind] = []
        self.counted: list[tuple[str, int]] = []
        self.server = ToolServer(self.steps, answer)
        self.door = Door(
            self.bus,
            audit=cast(Any, self),
            registry=cast(Any, self),
            approvals=self.approvals,
            sessions=cast(
                Any,
                SimpleNamespace(
                    count=lambda _, outcome, size, tool: self.counted.append((outcome, size)),
                    count_answer=lambda _, kind: self.counted.append((kind, 0)),
                ),
            ),
        )

    def note(self, entry: AuditEntry) -> None:
        self.entries.append(entry)
        self.steps.append(entry.kind)
        self.noted.set()

    async def flush(self) -> None:
        await self.durable.wait()
        if self.broken is not None:
            raise self.broken
        self.steps.append("durable")

    def find(self, agent: str) -> Any:
        if agent not in self.agents:
            raise NotFound(agent)
        return SimpleNamespace(permission=self.agents[agent])

    async def call(
        self, tool: str, arguments: str = "{}", meta: Mapping[str, Any] = MappingProxyType({}), **params: bytes
    ) -> Any:
        principal = Principal.fixed("a", self.agents["a"])
        context = RequestContext(principal, cast(Any, self.server), cast(Any, self.session), "c")
        sent = {"arguments": msgspec.Raw(arguments.encode()), **{key: msgspec.Raw(raw) for key, raw in params.items()}}
        return await self.door.call(context, CallRequest(tool=tool, params=sent, meta=meta))

    async def waiting_call(self, waits: str, tool: str = "files_write") -> tuple[asyncio.Task[Any], Approval | None]:
        """A call that waits for a person, the audit log or the server."""
        reached = self.noted
        if waits == "for the audit log":
            self.durable.clear()
        if waits == "for the server":
            reached = asyncio.Event()
            self.server.answer = lambda _: hang(reached)
        calling = asyncio.create_task(self.call(tool))
        if waits == "for a person":
            return calling, (await self.approvals.next(20))[0]
        await asyncio.wait_for(reached.wait(), 60)
        return calling, None

    def change(self, allowed: Permission | None) -> None:
        if allowed is None:
            del self.agents["a"]
            self.bus.publish(AgentEnded(agent="a"))
        else:
            self.agents["a"] = allowed
            self.bus.publish(PermissionChanged(agent="a"))

    @property
    def outcomes(self) -> list[str]:
        return [entry.outcome for entry in self.entries if entry.kind is EntryKind.OUTCOME]


async def hang(reached: asyncio.Event, cancelled: asyncio.Event | None = None) -> ServerAnswer:
    reached.set()
    try:
        await asyncio.Event().wait()
    finally:
        if cancelled is not None:
            cancelled.set()
    raise AssertionError("nothing ends the wait")


class PlainDoor:
    """A door without governance, as in a kit, and its events."""

    def __init__(self, answer: Callable[[ToolCall], Any] = lambda call: ServerAnswer(result=EMPTY)) -> None:
        self.steps: list[str] = []
        self.events: list[Any] = []
        bus = Bus()
        bus.subscribe(self._note, CallIntended, CallFinished, CallFailed)
        self.door = Door(bus)
        self.server = ToolServer(self.steps, answer)

    def _note(self, event: Event) -> None:
        self.events.append(event)
        self.steps.append("outcome" if isinstance(event, CallFinished) else "intent")

    async def call(self, arguments: str | None = '{"path":"x"}', *, caller: Principal = OWNER, **more: Any) -> Any:
        params = {} if arguments is None else {"arguments": msgspec.Raw(arguments.encode())}
        request = CallRequest(**{"tool": "files_open", "params": params, **more})
        return await self.door.call(RequestContext(caller, self.server), request)


async def test_a_call_passes_the_steps_in_order_and_publishes_caller_tool_and_rule() -> None:
    plain = PlainDoor()
    outcome = await plain.call(timeout=7.0)
    assert plain.steps == ["intent", "target files for owner", "forward", "outcome"]
    assert (outcome.answer.result, outcome.tool.display) == (EMPTY, "files:open")
    intended, finished = plain.events
    for event in (intended, finished):
        assert (event.call_id, event.caller, event.tool, event.server) == (
            intended.call_id,
            "owner",
            "files:open",
            "files",
        )
        assert (event.decision, event.rule) == ("allow", "profile owner: allow *:*")
    assert (finished.outcome, finished.result_size) == ("ok", len(EMPTY))
    await plain.call()
    assert plain.events[2].call_id != intended.call_id
    assert [timeout for _, timeout in plain.server.calls] == [7.0, None]


async def test_the_duration_of_a_call_is_measured() -> None:
    plain = PlainDoor(lambda _: asyncio.sleep(0.02, ServerAnswer(result=EMPTY)))
    await plain.call()
    assert 0.01 < plain.events[-1].duration < 60


async def test_params_are_forwarded_unchanged_under_the_servers_name() -> None:
    plain = PlainDoor()
    params = {"arguments": b'{ "path" : "x", "n":1.0 }', "future": b"[ 1]"}
    raw = {key: msgspec.Raw(value) for key, value in params.items()}
    await plain.call(tool="files:open", params=raw, meta={"k": 1})
    ((call, _),) = plain.server.calls
    assert (call.name, {key: bytes(value) for key, value in call.params.items()}, call.meta) == (
        "open",
        params,
        {"k": 1},
    )


async def test_a_denied_call_is_not_sent_and_its_arguments_are_not_checked() -> None:
    for arguments in ('{"path":"x"}', "[]"):
        plain = PlainDoor()
        with pytest.raises(Denied) as caught:
            await plain.call(arguments, caller=Principal.fixed("stranger", Permission(BUILTIN["nothing"])))
        assert plain.steps == ["outcome"], "a call that is not sent has no intent"
        assert plain.events[-1].outcome == "denied"
        assert caught.value.data == {"rule": "no rule allows it", "tool": "files:open"}


@pytest.mark.parametrize("arguments", [None, "null", "{}", "[]", '{"path":5}', "{", '{"path":1e999}'])
async def test_invalid_arguments_are_not_sent(arguments: str | None) -> None:
    plain = PlainDoor()
    with pytest.raises(InvalidArguments, match=r"(?s)arguments.*files:open|files:open.*arguments"):
        await plain.call(arguments)
    assert "forward" not in plain.steps
    assert plain.events[-1].outcome == "invalid"


async def test_an_unknown_tool_is_published_as_unknown() -> None:
    plain = PlainDoor()
    with pytest.raises(UnknownTool):
        await plain.call(tool="files_reed")
    (event,) = plain.events
    assert isinstance(event, CallFailed)
    assert (event.name, event.server, event.outcome) == ("files_reed", "", "unknown")


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (ServerAnswer(result=EMPTY), "ok"),
        (ServerAnswer(result=b'{"content":[],"isError":true}'), "tool_error"),
        (ServerAnswer(result=b'{ "isError" : true, "content":[]}'), "tool_error"),
        (ServerAnswer(result=b'{"content":[{"type":"text","text":"\\"isError\\":true"}]}'), "ok"),
        (ServerAnswer(result=b'{"isError":false}'), "ok"),
        (ServerAnswer(error=b'{"code":1,"message":"no"}'), "error"),
        (CallTimeout("slow"), "timeout"),
        (ServerUnavailable("gone"), "unavailable"),
        (ProtocolViolation("odd"), "unavailable"),
        (asyncio.CancelledError(), "cancelled"),
        (ValueError("a mistake of ours"), "error"),
    ],
)
async def test_each_end_of_a_call_has_its_outcome(answer: ServerAnswer | BaseException, outcome: str) -> None:
    plain = PlainDoor(lambda call: answer)
    if isinstance(answer, BaseException):
        with pytest.raises(type(answer)):
            await plain.call()
    else:
        assert (await plain.call()).answer is answer
    assert [getattr(event, "outcome", "") for event in plain.events] == ["", outcome]
    assert (plain.door.in_flight, plain.door.finished) == (0, 1)


def interrupted(seconds: float | None) -> ServerUnavailable:
    error = ServerUnavailable("It died. The call may have run.")
    error.repeat_after = seconds
    error.may_have_run = True
    return error


REPEATED = ["target files for a", "forward", "target files for a", "forward"]


@pytest.mark.parametrize(
    ("tool", "after", "trusted", "steps"),
    [
        ("files:read", 0.0, True, REPEATED),
        ("files:read", None, True, REPEATED[:2]),
        ("files:read", 0.0, False, REPEATED[:2]),
        ("files:write", 0.0, True, REPEATED[:2]),
    ],
)
async def test_only_a_harmless_call_is_repeated_and_the_audit_log_shows_it(
    tool: str, after: float | None, *, trusted: bool, steps: list[str]
) -> None:
    answers: list[Any] = [interrupted(after), ServerAnswer(result=EMPTY), None]
    held = DoorHarness(answer=lambda call: answers.pop(0))
    held.server.list_tools(trusted=trusted)
    if steps == REPEATED:
        assert (await held.call(tool)).answer.result == EMPTY
    else:
        with pytest.raises(ServerUnavailable, match="may have run"):
            await held.call(tool)
    assert [step for step in held.steps if step in REPEATED] == steps
    intent, outcome = held.entries
    assert (intent.kind, outcome.kind) == (EntryKind.INTENT, EntryKind.OUTCOME)
    assert outcome.rule == intent.rule + ("; sent twice" if steps == REPEATED else "")


@pytest.mark.parametrize("second", [interrupted(0.0), ServerUnavailable("It is gone. The call did not run.")])
async def test_a_harmless_call_is_repeated_once_only_and_may_have_run(second: ServerUnavailable) -> None:
    answers = [interrupted(0.0), second, interrupted(0.0)]
    held = DoorHarness(answer=lambda call: answers.pop(0))
    with pytest.raises(ServerUnavailable, match="may have run"):
        await held.call("files:read")
    assert len(answers) == 1


async def test_a_cancelled_call_is_cancelled_at_the_server() -> None:
    reached, cancelled = asyncio.Event(), asyncio.Event()
    plain = PlainDoor(lambda call: hang(reached, cancelled))
    calling = asyncio.create_task(plain.call())
    await asyncio.wait_for(reached.wait(), 60)
    assert plain.door.in_flight == 1
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert cancelled.is_set()
    assert (plain.events[-1].outcome, plain.door.in_flight) == ("cancelled", 0)


async def test_a_failing_subscriber_does_not_fail_the_call(caplog: pytest.LogCaptureFixture) -> None:
    def fail(event: Event) -> None:
        raise RuntimeError("the audit log is full")

    bus = Bus()
    bus.subscribe(fail, CallIntended, CallFinished, CallFailed)
    plain = PlainDoor()
    plain.door = Door(bus)
    assert (await plain.call()).answer.result == EMPTY
    assert "a subscriber failed" in caplog.text


@pytest.mark.parametrize("kind", ["input_required", "task"])
async def test_an_unfinished_result_fails_the_call(kind: str) -> None:
    unfinished = f'{{"resultType":"{kind}","inputRequests":{{}},"requestState":"s"}}'.encode()
    plain = PlainDoor(lambda call: ServerAnswer(result=unfinished))
    result = msgspec.json.decode((await plain.call()).answer.result)
    assert result["isError"] is True
    assert "files:open gave no result" in result["content"][0]["text"]
    assert plain.events[-1].outcome == "tool_error"


async def test_a_changing_call_waits_for_the_disk_and_a_read_only_call_does_not() -> None:
    harness = DoorHarness()
    await harness.call("files_write", '{"path": "x"}')
    forward = ["target files for a", "forward"]
    assert harness.steps == [EntryKind.INTENT, "durable", *forward, EntryKind.OUTCOME, "durable"]
    intent, outcome = harness.entries
    for entry in (intent, outcome):
        assert (entry.agent, entry.session, entry.conversation, entry.mode) == ("a", "s_1", "c", "full")
        assert (entry.tool, entry.server, entry.decision) == ("files:write", "files", "allow")
        assert (entry.rule, entry.call) == ("agent a: allow files:*", intent.call)
    assert (intent.arguments, outcome.arguments) == (b'{"path": "x"}', None), "they are not repeated"
    assert (outcome.outcome, outcome.size, outcome.result) == ("ok", 14, EMPTY)
    assert harness.counted == [("ok", 14)]
    for report in (intent.arguments_counted, outcome.counted):
        assert report is not None
        report((1, False))
    assert harness.kinds == ["arguments", "results"]
    harness.steps.clear()
    await harness.call("files_read")
    assert harness.steps == [EntryKind.INTENT, *forward, EntryKind.OUTCOME]


async def test_a_search_and_an_unknown_name_are_counted_as_such_and_not_as_calls() -> None:
    harness = DoorHarness(permission(rule("allow", "*")))
    harness.server.list_tools(trusted=True, crib=(b'{"name":"find","inputSchema":{"type":"object"}}',))
    await harness.call("crib_find")
    report = harness.entries[-1].counted
    assert report is not None
    report((1, False))
    assert harness.kinds == ["searches"]
    with pytest.raises(NotFound):
        await harness.call("files_nothing")
    assert harness.counted == [("searches", 0), ("repairs", 0)]


async def test_while_the_audit_log_fails_only_read_only_calls_continue() -> None:
    harness = DoorHarness(broken=StoreError("There is no room.", remedy="Free some."))
    with pytest.raises(AuditUnwritable, match=r"did not run.*There is no room") as caught:
        await harness.call("files_write")
    assert caught.value.remedy == "Free some."
    assert "forward" not in harness.steps
    await harness.call("files_read")
    assert harness.outcomes == ["refused", "ok"]


async def test_a_call_that_ran_is_answered_even_if_its_outcome_cannot_be_written() -> None:
    def fill(_: ToolCall) -> ServerAnswer:
        harness.broken = StoreError("full")
        return ServerAnswer(result=b"{}")

    harness = DoorHarness(answer=fill)
    assert (await harness.call("files_write")).answer.result == b"{}"


async def test_an_unknown_name_is_audited_and_suggests_only_permitted_tools() -> None:
    harness = DoorHarness(permission(rule("allow", "files:write")))
    with pytest.raises(UnknownTool) as caught:
        await harness.call("files_writ")
    assert caught.value.data["nearest"] == ["files:write"]
    assert [(entry.outcome, entry.tool) for entry in harness.entries] == [("unknown", "files_writ")]


@pytest.mark.parametrize("style", list(NameStyle))
async def test_a_suggestion_has_the_callers_naming_style(style: NameStyle) -> None:
    harness = DoorHarness()
    context = RequestContext(Principal.fixed("a", ALLOW), cast(Any, harness.server))
    with pytest.raises(UnknownTool) as caught:
        await harness.door.call(context, CallRequest(tool="writ", style=style))
    (near, *_) = caught.value.data["nearest"]
    assert near == harness.server.catalog.find("files:write").public(style)
    assert f"Did you mean {near}" in caught.value.remedy


async def test_an_approval_shows_everything_that_is_sent_and_lets_the_call_continue() -> None:
    harness = DoorHarness(ASK)
    responses = b'{"sure": {"action": "accept", "content": {"all": true}}}'
    calling = asyncio.create_task(
        harness.call("files_write", '{"path": "x"}', {"to": "evil"}, inputResponses=responses)
    )
    (approval,) = await harness.approvals.next(20)
    assert (approval.agent, approval.tool, approval.arguments) == ("a", "files:write", b'{"path": "x"}')
    assert harness.approvals.shown(approval.besides, whole=False) == {
        "inputResponses": {"sure": {"action": "accept", "content": {"all": True}}},
        "_meta": {"to": "evil"},
    }
    assert "forward" not in harness.steps
    harness.approvals.answer(approval.id, approved=True)
    await calling
    ((call, _),) = harness.server.calls
    assert (bytes(call.params["inputResponses"]), call.meta) == (responses, {"to": "evil"})
    assert (harness.outcomes, harness.entries[-1].decision) == (["ok"], "ask")
    assert "approved" in harness.entries[-1].rule


@pytest.mark.parametrize("limit", [20.0, 0.01])
async def test_a_refusal_or_no_answer_denies_the_call(limit: float) -> None:
    harness = DoorHarness(ASK, limit=limit)
    calling = asyncio.create_task(harness.call("files_write"))
    (approval,) = await harness.approvals.next(20)
    if limit > 1:
        harness.approvals.answer(approval.id, approved=False)
    with pytest.raises(Denied, match="files:write"):
        await calling
    assert (harness.outcomes, "forward" in harness.steps) == (["denied"], False)


@pytest.mark.parametrize("changed", [permission(rule("deny", "files:write")), None])
@pytest.mark.parametrize("waits", ["for a person", "for the audit log", "for the server"])
async def test_a_change_of_permission_stops_a_call_wherever_it_waits(waits: str, changed: Permission | None) -> None:
    harness = DoorHarness(ASK if waits == "for a person" else ALLOW)
    calling, _ = await harness.waiting_call(waits)
    harness.change(changed)
    # The event it waited for may come in the same turn of the loop, and must not matter any more.
    harness.durable.set()
    with pytest.raises(Denied) as caught:
        await calling
    assert harness.outcomes == ["denied"]
    assert ("forward" in harness.steps) == (waits == "for the server")
    assert ("may have run" in caught.value.text()) == (waits == "for the server")


async def test_a_change_that_still_permits_the_call_does_not_stop_it() -> None:
    harness = DoorHarness()
    reached, release = asyncio.Event(), asyncio.Event()

    async def wait() -> ServerAnswer:
        reached.set()
        await release.wait()
        return ServerAnswer(result=b"{}")

    harness.server.answer = lambda call: wait()
    calling = asyncio.create_task(harness.call("files_write"))
    await asyncio.wait_for(reached.wait(), 60)
    harness.change(permission(rule("allow", "files:write")))
    release.set()
    assert (await calling).answer.result == b"{}"


async def test_the_arguments_decide_if_a_rule_has_conditions() -> None:
    harness = DoorHarness(permission(rule("allow", "files:write", path="fine")))
    await harness.call("files_write", '{"path": "fine"}')
    with pytest.raises(Denied):
        await harness.call("files_write", '{"path": "other"}')
    assert harness.outcomes == ["ok", "denied"]


async def test_a_new_rule_lets_only_the_waiting_calls_that_it_covers_continue() -> None:
    harness = DoorHarness(ASK)
    fine, other = [
        asyncio.create_task(harness.call("files_write", f'{{"path": "{one}"}}')) for one in ("fine", "other")
    ]
    await harness.approvals.next(20)
    await asyncio.sleep(0)
    harness.change(permission(rule("ask"), rule("allow", "files:write", RuleOrigin.APPROVAL, "fine")))
    assert (await fine).answer.result == EMPTY
    assert [one.arguments for one in harness.approvals.waiting()] == [b'{"path": "other"}']
    harness.approvals.close()
    with pytest.raises(Denied):
        await other


@pytest.mark.parametrize("arguments", ["{}", "null"])
async def test_a_waiting_call_without_arguments_does_not_fulfil_a_condition(arguments: str) -> None:
    harness = DoorHarness(ASK)
    calling = asyncio.create_task(harness.call("files_write", arguments))
    await harness.approvals.next(20)
    harness.change(permission(rule("allow", "files:write", path="fine")))
    with pytest.raises(Denied):
        await calling


@pytest.mark.parametrize(
    ("name", "changed"), [("files_write", True), *[(f"{one}write", False) for one in ("files_", "files:", "")]]
)
@pytest.mark.parametrize("waits", ["for a person", "for the audit log"])
async def test_a_tool_that_changes_while_its_call_waits_is_not_called(waits: str, name: str, *, changed: bool) -> None:
    harness = DoorHarness(ASK if waits == "for a person" else ALLOW)
    calling, approval = await harness.waiting_call(waits, name)
    if changed:
        harness.server.list_tools(trusted=False)
    else:
        # Every object is new: another tool changed, and another server has a tool of the same name.
        array = READ.replace(b"object", b"array")
        harness.server.list_tools(trusted=True, files=(WRITE, array), other=(WRITE,))
    if approval is not None:
        harness.approvals.answer(approval.id, approved=True)
    harness.durable.set()
    if changed:
        with pytest.raises(Denied, match="changed while the call waited"):
            await calling
    else:
        await calling
    assert ("forward" in harness.steps) is not changed


async def test_a_call_inside_a_call_is_stopped_once_for_both() -> None:
    harness = DoorHarness()
    reached = asyncio.Event()

    async def outer() -> ServerAnswer:
        harness.server.answer = lambda call: hang(reached)
        with pytest.raises(Denied):
            await harness.call("files_write")
        return ServerAnswer(result=b"{}")

    harness.server.answer = lambda call: outer()
    calling = asyncio.create_task(harness.call("files_read"))
    await asyncio.wait_for(reached.wait(), 60)
    harness.change(None)
    assert (await calling).answer.result == b"{}"
    assert calling.cancelling() == 0
