"""Servers that answer with what would pass the checks of questions and tasks by, in front of clients of both eras.

The gateway and the server's link are in this process, so that a test writes the server's answers itself.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from parts.gateway_harness import MODERN, GatewayHarness, legacy_body, modern_headers, opened
from parts.waiting import until
from toolcrib.config.from_code import server_config
from toolcrib.gateway import parking
from toolcrib.servers.link import Peer, ServerLink
from toolcrib.servers.link_questions import ServerQuestions
from toolcrib.servers.model import Era, ServerAnswer
from toolcrib.servers.server import Server

pytestmark = pytest.mark.req("KSI-5", "KSI-8", "KSI-9")

EXTENSION = "io.modelcontextprotocol/tasks"
ALL: dict[str, Any] = {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}}
PASSWORD = {
    "method": "elicitation/create",
    "params": {
        "message": "Hello",
        "requestedSchema": {"type": "object", "properties": {"password": {"type": "string"}}},
    },
}
FORM = {
    "method": "elicitation/create",
    "params": {"message": "Hello", "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}}},
}
TASK = {"taskId": "t1", "status": "working", "createdAt": "x", "lastUpdatedAt": "y", "ttlMs": 60_000, "ttl": 60_000}
Json = dict[str, Any]


class Wire(ServerLink):
    """A connection whose far side is `answers`: a raw result, or an error, for each method; or a function of its
    params."""

    def __init__(self, era: Era) -> None:
        super().__init__("slow", on_lists_changed=lambda: None)
        self.questions = ServerQuestions(CONFIG, None, lambda: None)
        self._peer = Peer(era=era, version=MODERN, capabilities=frozenset({"tasks"}))
        self.answers: dict[str, Any] = {}
        self.received: list[tuple[str, Any]] = []
        self.abandoned: list[str] = []

    async def _exchange(
        self, request_id: str, method: str, params: Mapping[str, Any], body: bytes, headers: Mapping[str, str]
    ) -> ServerAnswer:
        self.received.append((method, json.loads(body)["params"]))
        answer = self.answers[method]
        if callable(answer):
            answer = await answer(params)
        if isinstance(answer, ServerAnswer):
            return answer
        return ServerAnswer(result=answer if isinstance(answer, bytes) else json.dumps(answer).encode())

    async def _reply(self, message: bytes) -> None: ...

    def _abandon(self, request_id: str, reason: str) -> None:
        self.abandoned.append(reason)

    def got(self, method: str) -> list[Any]:
        return [params for name, params in self.received if name == method]


CONFIG = server_config("slow", {"url": "https://slow.example/mcp", "roots": "client", "call_timeout": 1})


class Scene:
    def __init__(self, harness: GatewayHarness) -> None:
        self.harness = harness

    def serve(self, era: Era, **answers: Any) -> Wire:
        wire = Wire(era)
        wire.answers = {name.replace("_", "/"): answer for name, answer in answers.items()}
        server: Any = Server(CONFIG, root=None, on_tools=lambda _: None, bus=self.harness.crib.bus, reaper=Any)
        server._link = wire

        async def call(request: Any, call: Any, *, on_progress: Any = None, timeout: Any = None) -> ServerAnswer:
            answer: ServerAnswer = await server.call(call, timeout=timeout, on_progress=on_progress)
            return answer

        setattr(self.harness.slow, "call", call)  # noqa: B010 - mypy
        return wire

    async def modern(self, token: str, method: str, capabilities: Any = ALL, **params: Any) -> Json:
        declared = {**capabilities, "extensions": {EXTENSION: {}}}
        meta = {
            "io.modelcontextprotocol/protocolVersion": MODERN,
            "io.modelcontextprotocol/clientCapabilities": declared,
        }
        headers = {"mcp-protocol-version": MODERN, "mcp-method": method}
        if named := params.get("name", params.get("taskId")):
            headers["mcp-name"] = named
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
        exchange, _ = self.harness.begin(body, token, headers)
        await exchange.until(b"jsonrpc")
        await exchange.until(b"}")
        found: Json = exchange.json
        return found

    async def created(self, token: str) -> str:
        made = await self.modern(token, "tools/call", name="slow_wait", arguments={})
        handle: str = made["result"]["taskId"]
        return handle

    async def session(self, token: str) -> str:
        return await self.harness.initialize(token, capabilities=ALL)

    async def legacy(self, token: str, session: str, method: str, **params: Any) -> Json:
        exchange = await self.harness.legacy(session, method, token, **params)
        text = exchange.text.removeprefix(b"event: message\ndata: ")
        found: Json = json.loads(text)
        return found


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    async with opened(tmp_path) as harness:
        yield Scene(harness)


@pytest.mark.parametrize("result", [
    b'{"result\\u0054ype":"input_required","inputRequests":%b}',
    b'{"resultType":"complete","content":[],"result\\u0054ype":"input_required","inputRequests":%b}',
    b'{"resultType":"input\\u005frequired","inputRequests":%b}',
])  # fmt: skip
async def test_a_question_in_escapes_is_checked_like_any_other(scene: Scene, result: bytes) -> None:
    token = await scene.harness.agent("a")
    session = await scene.session(token)
    for era in Era:
        scene.serve(era, tools_call=result % json.dumps({"q": PASSWORD}).encode())
        for answer in (
            await scene.modern(token, "tools/call", name="slow_wait", arguments={}),
            await scene.legacy(token, session, "tools/call", name="slow_wait", arguments={}),
        ):
            assert "inputRequests" not in answer.get("result", {}), (era, answer)


@pytest.mark.parametrize("era", Era)
@pytest.mark.parametrize("error", [
    b'{"code":-32042.0,"message":"x","data":{"elicitations":[%b]}}',
    b'{"code":-320420e-1,"message":"x","data":{"elicitations":[%b]}}',
    b'{"code":-32042,"message":"x","data":{"elicitations":[%b,7]}}',
    b'{"code":-32042,"message":7,"data":{"elicitations":[%b]}}',
])  # fmt: skip
async def test_no_unchecked_page_is_passed_on_in_an_error(scene: Scene, era: Era, error: bytes) -> None:
    token = await scene.harness.agent("a")
    session = await scene.session(token)
    page = b'{"mode":"url","url":"javascript:steal()","message":"Toolcrib asks","elicitationId":"e"}'
    failed = {**TASK, "status": "failed", "resultType": "complete", "error": None}
    answers: Json = {"tools_call": ServerAnswer(error=error % page)}
    for task in (False, True):
        if task and era is Era.MODERN:
            raw = json.dumps(failed).encode().replace(b"null", error % page)
            answers = {"tools_call": {**TASK, "resultType": "task"}, "tasks_get": raw}
        scene.serve(era, **answers)
        answer = await scene.legacy(token, session, "tools/call", name="slow_wait", arguments={})
        assert "javascript" not in json.dumps(answer), answer


async def test_a_task_passes_on_questions_only_when_they_are_checked(scene: Scene) -> None:
    token = await scene.harness.agent("a")
    for status in ("working", "input_required", "completed"):
        state = {**TASK, "status": status, "inputRequests": {"q": PASSWORD}, "result": {"content": []}}
        scene.serve(Era.MODERN, tools_call={**state, "resultType": "task"}, tasks_get=state, tasks_update={})
        made = await scene.modern(token, "tools/call", name="slow_wait", arguments={})
        assert "inputRequests" not in made["result"]
        looked = await scene.modern(token, "tasks/get", taskId=made["result"]["taskId"])
        assert "inputRequests" not in looked.get("result", {})


async def test_a_tasks_result_asks_nothing(scene: Scene) -> None:
    token = await scene.harness.agent("a")
    asking = {"resultType": "input_required", "inputRequests": {"q": PASSWORD}}
    state = {**TASK, "status": "completed", "result": asking}
    scene.serve(Era.MODERN, tools_call={**TASK, "resultType": "task"}, tasks_get=state)
    looked = await scene.modern(token, "tasks/get", taskId=await scene.created(token))
    assert "password" not in json.dumps(looked), looked


ODD: list[Json] = [
    {"inputRequests": 5},
    {"ttlMs": 1e30, "ttl": 1e30},
    {"ttlMs": -1, "ttl": -1},
    {"ttlMs": 0, "ttl": 0},
    {"pollIntervalMs": 1e300, "pollInterval": 1e300},
    {"status": "input_required"},
    {"status": "input_required", "inputRequests": [1]},
    {"status": "input_required", "inputRequests": {"a": {"method": "x"}}},
    {"status": "input_required", "inputRequests": {"a": {"method": "roots/list", "params": None}}},
    {"status": "completed", "result": 5},
    {"status": "failed", "error": []},
    {"result": 1, "error": 2, "createdAt": "z" * 100_000, "statusMessage": "m" * 1_000_000},
]


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("server", Era)
async def test_no_state_of_a_task_breaks_the_gateway(scene: Scene, odd: Json, server: Era, caplog: Any) -> None:
    token = await scene.harness.agent("a")
    session = await scene.session(token)
    begun = {**TASK, **({} if "status" in odd else odd)}
    created = {**begun, "resultType": "task"} if server is Era.MODERN else {"task": begun}
    cancelled = {} if server is Era.MODERN else {**TASK, "status": "cancelled"}
    scene.serve(
        server,
        tools_call=created,
        tasks_get={**TASK, **odd},
        tasks_result={"content": []},
        tasks_cancel=cancelled,
        tasks_update={},
    )
    call = {"name": "slow_wait", "arguments": {}}
    answers = [await scene.modern(token, "tools/call", **call)]
    task = answers[0].get("result", {}).get("taskId", "none")
    for method in ("tasks/get", "tasks/update", "tasks/cancel"):
        answers.append(await scene.modern(token, method, taskId=task, inputResponses={}))
    answers.append(await scene.legacy(token, session, "tools/call", **call, task={}))
    task = answers[-1].get("result", {}).get("task", {}).get("taskId", "none")
    for method in ("tasks/list", "tasks/get", "tasks/result", "tasks/cancel"):
        answers.append(await scene.legacy(token, session, method, taskId=task))
    assert all("result" in one or one["error"]["code"] != -32603 for one in answers), answers
    assert not [one for one in caplog.records if one.exc_info]


async def test_only_answers_to_questions_are_passed_on_to_a_task(scene: Scene, tmp_path: Path) -> None:
    token = await scene.harness.agent("a")
    asked = {**TASK, "status": "input_required", "inputRequests": {"r": {"method": "roots/list"}}}
    wire = scene.serve(Era.MODERN, tools_call={**TASK, "resultType": "task"}, tasks_get=asked, tasks_update={})
    handle = await scene.created(token)
    outside = {"roots": [{"uri": tmp_path.as_uri()}]}
    for looks in (False, True, False):
        if looks:
            assert (await scene.modern(token, "tasks/get", taskId=handle))["result"]["inputRequests"]
        await scene.modern(token, "tasks/update", taskId=handle, inputResponses={"r": outside, "other": outside})
    for params in wire.got("tasks/update"):
        assert tmp_path.as_uri() not in json.dumps(params), params


async def test_a_number_out_of_range_neither_hangs_nor_breaks_a_call(scene: Scene) -> None:
    token = await scene.harness.agent("a")
    scene.serve(Era.MODERN, tools_call={"resultType": "input_required", "inputRequests": {"q": FORM}})
    params = {"name": "slow_wait", "arguments": {}, "more": "@"}
    meta = {"io.modelcontextprotocol/protocolVersion": MODERN, "io.modelcontextprotocol/clientCapabilities": ALL}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {**params, "_meta": meta}}
    exchange, _ = scene.harness.begin(body, token, modern_headers("tools/call", name="slow_wait"), late=True)
    exchange.body.set_result(json.dumps(body).encode().replace(b'"@"', b"1e400"))
    await exchange.until(b"jsonrpc")
    assert "inputRequests" in exchange.json.get("result", {}), exchange.json


async def test_a_handle_ends_with_its_agent_although_another_has_its_name(scene: Scene) -> None:
    token = await scene.harness.agent("a")
    state = {**TASK, "status": "working"}
    wire = scene.serve(Era.MODERN, tools_call={**TASK, "resultType": "task"}, tasks_get=state)
    handle = await scene.created(token)
    scene.serve(
        Era.MODERN, tools_call={"resultType": "input_required", "inputRequests": {"q": FORM}, "requestState": "s"}
    )
    asked = (await scene.modern(token, "tools/call", name="slow_wait", arguments={}))["result"]
    agents = scene.harness.crib.services.agents
    await agents.remove("a")
    again = await scene.harness.agent("a")
    wire = scene.serve(Era.MODERN, tools_call={"content": []}, tasks_get=state)
    looked = await scene.modern(again, "tasks/get", taskId=handle)
    retried = await scene.modern(
        again, "tools/call", name="slow_wait", arguments={}, requestState=asked["requestState"], inputResponses={}
    )
    assert "another agent" in looked["error"]["message"]
    assert "another agent" in retried["error"]["message"]
    assert not wire.received


async def test_a_legacy_client_never_gets_input_required(scene: Scene) -> None:
    token = await scene.harness.agent("a")
    session = await scene.session(token)
    scene.serve(
        Era.MODERN, tools_call={"resultType": "input_required", "inputRequests": {"q": FORM}, "requestState": "s"}
    )
    asked = (await scene.modern(token, "tools/call", name="slow_wait", arguments={}))["result"]
    body = legacy_body("tools/call", name="slow_wait", arguments={}, requestState=asked["requestState"])
    exchange, _ = scene.harness.begin(body, token, {"mcp-session-id": session})
    await exchange.until(b"jsonrpc")
    assert b"inputRequests" not in exchange.text
    assert b"requestState" not in exchange.text


async def test_a_task_goes_on_although_a_look_for_its_result_ended(scene: Scene) -> None:
    token = await scene.harness.agent("a")
    ended = asyncio.Event()
    states = [{**TASK, "status": "input_required"}, {**TASK, "status": "working"}]

    async def look(params: Any) -> Any:
        return states.pop(0) if len(states) > 1 else states[0]

    async def result(params: Any) -> Any:
        ended.set()
        return ServerAnswer(error=b'{"code":-32603,"message":"try later"}')

    scene.serve(Era.LEGACY, tools_call={"task": TASK}, tasks_get=look, tasks_result=result)
    handle = await scene.created(token)
    for _ in range(3):
        looked = await scene.modern(token, "tasks/get", taskId=handle)
        assert looked["result"]["status"] == "working", looked


async def test_answers_to_nothing_that_was_asked_do_not_reach_the_server(scene: Scene, tmp_path: Path) -> None:
    token = await scene.harness.agent("a")
    session = await scene.session(token)
    wire = scene.serve(Era.MODERN, tools_call={"content": []})
    given = {"name": "slow_wait", "arguments": {}, "inputResponses": {"r": {"roots": [{"uri": tmp_path.as_uri()}]}}}
    assert "result" in await scene.modern(token, "tools/call", **given)
    assert "result" in await scene.legacy(token, session, "tools/call", **given, requestState="s")
    assert [params.keys() - {"_meta"} for params in wire.got("tools/call")] == [{"name", "arguments"}] * 2


async def test_an_answer_of_another_form_is_the_clients_mistake(scene: Scene) -> None:
    token = await scene.harness.agent("a")
    asking = {"resultType": "input_required", "inputRequests": {"q": FORM}, "requestState": "s"}
    task = {**TASK, "status": "input_required", "inputRequests": {"q": FORM}}
    wire = scene.serve(Era.MODERN, tools_call={**TASK, "resultType": "task"}, tasks_get=task, tasks_update={})
    handle = await scene.created(token)
    await scene.modern(token, "tasks/get", taskId=handle)
    wire.answers["tools/call"] = asking
    state = (await scene.modern(token, "tools/call", name="slow_wait", arguments={}))["result"]["requestState"]
    wrong = {"inputResponses": {"q": {"action": 1}}}
    for answer in (
        await scene.modern(token, "tasks/update", taskId=handle, **wrong),
        await scene.modern(token, "tools/call", name="slow_wait", arguments={}, requestState=state, **wrong),
    ):
        assert answer["error"]["code"] == -32602
    right = {"inputResponses": {"q": {"action": "cancel"}}}
    assert "result" in await scene.modern(token, "tasks/update", taskId=handle, **right)
    assert wire.got("tasks/update")[-1]["inputResponses"] == right["inputResponses"]


async def test_a_task_that_ended_is_not_reported_as_failed_because_its_result_is_out_of_reach(scene: Scene) -> None:
    token = await scene.harness.agent("a")
    result: Json = {"content": [{"type": "text", "text": "done"}]}
    reachable = asyncio.Event()

    async def fetch(params: Any) -> Json:
        await reachable.wait()
        return result

    done = {**TASK, "status": "completed"}
    scene.serve(Era.LEGACY, tools_call={"task": TASK}, tasks_get=done, tasks_result=fetch)
    handle = await scene.created(token)
    assert "did not answer" in (await scene.modern(token, "tasks/get", taskId=handle))["error"]["message"]
    reachable.set()
    looked = (await scene.modern(token, "tasks/get", taskId=handle))["result"]
    assert (looked["status"], looked["result"]["content"]) == ("completed", result["content"])


async def test_a_call_whose_question_expires_is_cancelled_at_its_server(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parking, "QUESTION_SECONDS", 0.1)
    token = await scene.harness.agent("a")

    async def ask(params: Any) -> Any:
        assert wire.asked(7, "elicitation/create", lambda: FORM["params"])
        await asyncio.Event().wait()

    wire = scene.serve(Era.LEGACY, tools_call=ask)
    asked = await scene.modern(token, "tools/call", name="slow_wait", arguments={})
    assert asked["result"]["resultType"] == "input_required"
    await until(lambda: wire.abandoned, "the server to be told")
    assert (wire.abandoned, len(wire.got("tools/call"))) == (["cancelled by the caller"], 1)
