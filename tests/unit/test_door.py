"""The one door: its steps in their order, and a line in the audit log for each way a call can end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from toolcrib.calls import CallRequest, Door
from toolcrib.catalog.snapshot import Catalog
from toolcrib.catalog.tool import Tool
from toolcrib.config.model import NameStyle
from toolcrib.errors import CallTimeout, Denied, InvalidArguments, ProtocolViolation, ServerUnavailable, UnknownTool
from toolcrib.events import Bus, CallFailed, CallFinished, CallIntended, Event
from toolcrib.identity.principal import OWNER, Principal, RequestContext
from toolcrib.policy import BUILTIN, Permission
from toolcrib.servers.model import ServerAnswer, ToolCall

pytestmark = pytest.mark.req("BNS-5", "ENG-3")

STRANGER = Principal.fixed("stranger", Permission(BUILTIN["nothing"]))
READ = b'{"name":"read","inputSchema":{"type":"object","properties":{"path":{"type":"string"}},"required":["path"]}}'


class Shelf:
    """One server with one tool; what its target does is a test's choice."""

    def __init__(self, steps: list[str], answer: Callable[[ToolCall], Any]) -> None:
        self._steps = steps
        self._answer = answer
        self.calls: list[ToolCall] = []
        self.limits: list[float | None] = []
        self._catalog = Catalog.build({"files": (READ,)}, version=1)

    def find(self, name: str, shown: Callable[[Tool], bool] | None = None, style: NameStyle | None = None) -> Tool:
        self._steps.append("resolve")
        return self._catalog.find(name, shown=shown, style=style)

    def target(self, server: str, request: RequestContext[Any]) -> Shelf:
        self._steps.append(f"target {server} for {request.principal.name}")
        return self

    async def call(self, call: ToolCall, *, timeout: float | None = None, on_progress: Any = None) -> ServerAnswer:
        self._steps.append("forward")
        self.calls.append(call)
        self.limits.append(timeout)
        told = self._answer(call)
        if isinstance(told, BaseException):
            raise told
        if asyncio.iscoroutine(told):
            told = await told
        assert isinstance(told, ServerAnswer)
        return told


class AuditedDoor:
    """A door whose events are written down among the steps."""

    def __init__(self, answer: Callable[[ToolCall], Any] = lambda call: ServerAnswer(result=b'{"content":[]}')) -> None:
        self.steps: list[str] = []
        self.events: list[Event] = []
        bus = Bus()
        bus.subscribe(self._note, CallIntended, CallFinished, CallFailed)
        self.door = Door(bus)
        self.shelf = Shelf(self.steps, answer)

    def _note(self, event: Event) -> None:
        self.events.append(event)
        self.steps.append("outcome" if isinstance(event, CallFinished) else "intent")

    async def call(self, arguments: str | None = '{"path":"x"}', *, caller: Principal = OWNER, **more: Any) -> Any:
        params = {} if arguments is None else {"arguments": msgspec.Raw(arguments.encode())}
        return await self.door.call(
            RequestContext(caller, self.shelf), CallRequest(tool="files_read", params=params, **more)
        )

    @property
    def line(self) -> tuple[CallIntended, CallFinished]:
        intended, finished = self.events
        assert isinstance(intended, CallIntended)
        assert isinstance(finished, CallFinished)
        assert intended.call_id == finished.call_id
        return intended, finished

    @property
    def outcome(self) -> str:
        finished = self.events[-1]
        assert isinstance(finished, CallFinished)
        return finished.outcome


async def test_the_steps_come_in_their_order() -> None:
    audit_log = AuditedDoor()
    outcome = await audit_log.call()
    assert audit_log.steps == ["resolve", "intent", "target files for owner", "forward", "outcome"]
    assert outcome.answer.result == b'{"content":[]}'
    assert outcome.tool.display == "files:read"


async def test_the_audit_log_says_who_what_and_why() -> None:
    async def answer() -> ServerAnswer:
        await asyncio.sleep(0.02)
        return ServerAnswer(result=b'{"content":[]}')

    audit_log = AuditedDoor(lambda _: answer())
    await audit_log.call()
    intended, finished = audit_log.line
    assert (intended.caller, intended.tool, intended.server) == ("owner", "files:read", "files")
    assert (intended.decision, intended.rule) == ("allow", "profile owner: allow *:*")
    assert (finished.caller, finished.tool, finished.server) == ("owner", "files:read", "files")
    assert (finished.outcome, finished.result_size) == ("ok", len(b'{"content":[]}'))
    assert 0.01 < finished.duration < 60


async def test_two_calls_have_two_lines() -> None:
    audit_log = AuditedDoor()
    await audit_log.call()
    await audit_log.call()
    ids = [event.call_id for event in audit_log.events if isinstance(event, CallIntended)]
    assert len(set(ids)) == 2


async def test_what_came_raw_goes_on_raw_under_the_servers_own_name() -> None:
    audit_log = AuditedDoor()
    raw = msgspec.Raw(b'{ "path" : "x", "n":1.0 }')
    request = CallRequest(tool="files:read", params={"arguments": raw, "future": msgspec.Raw(b"[ 1]")}, meta={"k": 1})
    await audit_log.door.call(RequestContext(OWNER, audit_log.shelf), request)
    (call,) = audit_log.shelf.calls
    assert call.name == "read"
    assert {key: bytes(value) for key, value in call.params.items()} == {
        "arguments": b'{ "path" : "x", "n":1.0 }',
        "future": b"[ 1]",
    }
    assert call.meta == {"k": 1}


async def test_the_callers_time_limit_goes_along() -> None:
    audit_log = AuditedDoor()
    await audit_log.call(timeout=7.0)
    await audit_log.call()
    assert audit_log.shelf.limits == [7.0, None]


async def test_a_denied_call_goes_no_further_and_is_written_down() -> None:
    audit_log = AuditedDoor()
    with pytest.raises(Denied) as caught:
        await audit_log.call(caller=STRANGER)
    assert audit_log.steps == ["resolve", "outcome"], "what never leaves is no intent"
    assert audit_log.outcome == "denied"
    assert caught.value.data == {"rule": "no rule allows it", "tool": "files:read"}


async def test_who_may_not_is_not_told_what_is_wrong_with_the_arguments() -> None:
    with pytest.raises(Denied):
        await AuditedDoor().call("[]", caller=STRANGER)


@pytest.mark.parametrize("arguments", [None, "null", "{}", "[]", '{"path":5}', "{", '{"path":1e999}'])
async def test_arguments_that_do_not_fit_go_no_further(arguments: str | None) -> None:
    audit_log = AuditedDoor()
    with pytest.raises(InvalidArguments) as caught:
        await audit_log.call(arguments)
    assert "forward" not in audit_log.steps
    assert audit_log.outcome == "invalid"
    assert "files:read" in caught.value.message
    assert "arguments" in caught.value.message


async def test_an_unknown_tool_is_told_and_not_called() -> None:
    audit_log = AuditedDoor()
    with pytest.raises(UnknownTool):
        await audit_log.door.call(RequestContext(OWNER, audit_log.shelf), CallRequest(tool="files_reed"))
    (told,) = audit_log.events
    assert isinstance(told, CallFailed)
    assert (told.name, told.server, told.outcome) == ("files_reed", "", "unknown")


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (ServerAnswer(result=b'{"content":[]}'), "ok"),
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
async def test_each_way_to_end_has_its_word(answer: ServerAnswer | BaseException, outcome: str) -> None:
    audit_log = AuditedDoor(lambda call: answer)
    if isinstance(answer, BaseException):
        with pytest.raises(type(answer)):
            await audit_log.call()
    else:
        assert (await audit_log.call()).answer is answer
    assert audit_log.line[1].outcome == outcome
    assert (audit_log.door.in_flight, audit_log.door.finished) == (0, 1)


async def test_a_cancelled_call_is_cancelled_at_the_server() -> None:
    reached = asyncio.Event()
    cancelled = asyncio.Event()

    async def wait() -> ServerAnswer:
        reached.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        raise AssertionError("nothing ends the wait")

    audit_log = AuditedDoor(lambda call: wait())
    task = asyncio.create_task(audit_log.call())
    await reached.wait()
    assert audit_log.door.in_flight == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cancelled.is_set()
    assert audit_log.line[1].outcome == "cancelled"
    assert audit_log.door.in_flight == 0


async def test_a_subscriber_that_fails_does_not_cost_the_call(caplog: pytest.LogCaptureFixture) -> None:
    bus = Bus()

    def fail(event: Event) -> None:
        raise RuntimeError("the audit log is full")

    bus.subscribe(fail, CallIntended, CallFinished, CallFailed)
    steps: list[str] = []
    shelf = Shelf(steps, lambda call: ServerAnswer(result=b"{}"))
    params = {"arguments": msgspec.Raw(b'{"path":"x"}')}
    outcome = await Door(bus).call(RequestContext(OWNER, shelf), CallRequest(tool="files_read", params=params))
    assert outcome.answer.result == b"{}"
    assert "a subscriber failed" in caplog.text


@pytest.mark.parametrize("kind", ["input_required", "task"])
async def test_what_is_no_result_yet_fails_the_call_of_a_caller_that_cannot_go_on(kind: str) -> None:
    asked = f'{{"resultType":"{kind}","inputRequests":{{}},"requestState":"s"}}'.encode()
    audit_log = AuditedDoor(lambda call: ServerAnswer(result=asked))
    answer = (await audit_log.call()).answer
    result = msgspec.json.decode(answer.result)
    assert result["isError"] is True
    assert "files:read gave no result" in result["content"][0]["text"]
    assert audit_log.outcome == "tool_error"
    assert (await audit_log.call(takes_input=True)).answer.result == asked
