"""Calls whose server asks in the middle, step by step: what the client sends again, what it may not, what expires."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from parts.gateway_harness import LIMIT, MODERN, Exchange, GatewayHarness, legacy_body, modern_headers, opened
from parts.waiting import until
from toolcrib.gateway import asking, parking
from toolcrib.gateway.messages import Reply

pytestmark = pytest.mark.req("KSI-5", "KSI-9")

FORMS = {"elicitation": {"form": {}}}
META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": FORMS,
    "progressToken": "first",
}
YES = {"action": "accept", "content": {}}
Body = dict[str, Any]


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[GatewayHarness]:
    async with opened(tmp_path) as made:
        yield made


def ask(*messages: str, progress: str = "first", wait: bool = False, **more: Any) -> Body:
    arguments = {"messages": messages, **({"wait": True} if wait else {})}
    meta = {**META, "progressToken": progress}
    params = {"name": "slow_ask", "arguments": arguments, **more, "_meta": meta}
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}


async def send(harness: GatewayHarness, token: str, body: Body) -> Exchange:
    return await within(harness.ask(body, token, modern_headers("tools/call", name="slow_ask")))


async def within(work: Any) -> Any:
    async with asyncio.timeout(LIMIT):
        return await work


async def begun(harness: GatewayHarness, token: str, *messages: str, **more: Any) -> dict[str, Any]:
    """The `input_required` of a new call, whose own task goes on."""
    exchange, _ = harness.begin(ask(*messages, **more), token, modern_headers("tools/call", name="slow_ask"))
    await within(exchange.until(b'"input_required"'))
    result: dict[str, Any] = exchange.json["result"]
    assert set(result) == {"resultType", "inputRequests", "requestState", "_meta"}
    return result


def retry(asked: dict[str, Any], *messages: str, answers: Any = None, **more: Any) -> Body:
    given = dict.fromkeys(asked["inputRequests"], YES) if answers is None else answers
    return {**ask(*messages, inputResponses=given, requestState=asked["requestState"], **more), "id": "again"}


async def outcomes(harness: GatewayHarness, agent: str) -> list[tuple[str, str]]:
    await harness.crib.services.audit.flush()
    rows = await harness.crib.services.audit.query(agent=agent)
    return [(row["kind"], row["outcome"]) for row in rows if row["kind"] != "change"]


def messages_in(exchange: Exchange) -> list[Any]:
    return [json.loads(line[6:]) for line in exchange.text.split(b"\n") if line.startswith(b"data: ")]


async def test_questions_asked_at_once_arrive_together_and_what_is_not_answered_is_asked_again(
    harness: GatewayHarness,
) -> None:
    token = await harness.agent("a")
    asked = await begun(harness, token, "one", "two")
    by_text = {one["params"]["message"]: key for key, one in asked["inputRequests"].items()}
    assert set(by_text) == {"Server 'slow' asks: one", "Server 'slow' asks: two"}
    first = by_text["Server 'slow' asks: one"]
    again = (await send(harness, token, retry(asked, "one", "two", answers={first: YES}))).json
    assert again["id"] == "again"
    assert [one["params"]["message"] for one in again["result"]["inputRequests"].values()] == [
        "Server 'slow' asks: two"
    ]
    done = await send(harness, token, retry(again["result"], "one", "two", answers={"unknown": YES, first: YES}))
    assert "inputRequests" in done.json["result"], "only the open questions count"
    done = await send(harness, token, retry(done.json["result"], "one", "two"))
    assert messages_in(done)[-1]["result"]["structuredContent"] == {"answers": [YES, YES]}
    assert harness.slow.times == 1
    assert await outcomes(harness, "a") == [
        ("intent", ""),
        ("question", "accept"),
        ("question", "accept"),
        ("outcome", "ok"),
    ]


async def test_of_fifty_retries_one_continues_the_call(harness: GatewayHarness) -> None:
    token = await harness.agent("a")
    asked = await begun(harness, token, "one")
    answers = await asyncio.gather(*(send(harness, token, retry(asked, "one")) for _ in range(50)))
    refused = [one for one in answers if one.status == 400]
    assert len(refused) == 49
    assert all(one.json["error"]["code"] == -32602 for one in refused)
    assert all("may have run" in one.json["error"]["message"] for one in refused)
    assert harness.slow.times == 1


async def test_a_state_is_bound_to_its_agent_and_its_request(harness: GatewayHarness) -> None:
    token, other = await harness.agent("a"), await harness.agent("b")
    asked = await begun(harness, token, "one")
    changed = {**asked, "requestState": asked["requestState"][:-2] + "AA"}
    for whose, body, why in (
        (other, retry(asked, "one"), "another agent"),
        (token, retry(asked, "two"), "another request"),
        (token, retry(changed, "one"), "changed"),
        (token, retry({**asked, "requestState": "s"}, "one"), "not from Toolcrib"),
        (token, retry({**asked, "requestState": 7}, "one"), "must be the text"),
        (token, retry(asked, "one", answers=["odd"]), "inputResponses must be"),
    ):
        refused = await send(harness, whose, body)
        assert (refused.status, refused.json["error"]["code"], refused.json["id"]) == (400, -32602, "again")
        assert why in refused.json["error"]["message"]
    done = await send(harness, token, retry(asked, "one"))
    assert messages_in(done)[-1]["result"]["structuredContent"] == {"answers": [YES]}


async def test_an_expired_question_cancels_its_call(harness: GatewayHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parking, "QUESTION_SECONDS", 0.2)
    token = await harness.agent("a")
    exchange, task = harness.begin(ask("one"), token, modern_headers("tools/call", name="slow_ask"))
    await within(exchange.until(b'"input_required"'))
    await within(task)
    late = await send(harness, token, retry(exchange.json["result"], "one"))
    assert (late.status, late.json["error"]["code"]) == (400, -32602)
    assert "before you call again" in late.json["error"]["message"]
    assert await outcomes(harness, "a") == [("intent", ""), ("question", "unanswered"), ("outcome", "cancelled")]
    assert not harness.gateway.parked


async def test_a_resumed_call_reports_progress_to_the_retry_and_ends_with_it(harness: GatewayHarness) -> None:
    token = await harness.agent("a")
    asked = await begun(harness, token, "one", wait=True)
    body = retry(asked, "one", wait=True, progress="second")
    exchange, task = harness.begin(body, token, modern_headers("tools/call", name="slow_ask"))
    await within(harness.slow.called.wait())
    await within(exchange.until(b"progressToken"))
    assert messages_in(exchange)[0]["params"] == {"progressToken": "second", "progress": 1}
    exchange.leave()
    await within(task)
    assert (await outcomes(harness, "a"))[-1] == ("outcome", "cancelled")


async def test_a_result_without_the_clients_answer_waits_for_the_client(harness: GatewayHarness) -> None:
    harness.slow.patience = 0.1
    token = await harness.agent("a")
    exchange, task = harness.begin(ask("one"), token, modern_headers("tools/call", name="slow_ask"))
    await within(task)
    done = await send(harness, token, retry(exchange.json["result"], "one"))
    assert done.json["id"] == "again"
    assert done.json["result"]["structuredContent"] == {"answers": "none in time"}


async def test_a_result_is_not_kept_after_it_was_fetched(
    harness: GatewayHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = await harness.agent("a")
    kept: list[parking.ParkedCall] = []
    keep = parking.Parking.kept

    def noted(self: parking.Parking, call: parking.ParkedCall, reply: Reply) -> Reply:
        kept.append(call)
        return keep(self, call, reply)

    monkeypatch.setattr(parking.Parking, "kept", noted)
    harness.slow.patience = 0.1
    asked = await begun(harness, token, "one")
    await until(lambda: kept)
    await send(harness, token, retry(asked, "one"))
    assert kept[0].forgetting is not None
    assert kept[0].forgetting.cancelled()


async def test_a_gateway_that_stops_parks_no_more_calls(
    harness: GatewayHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = await harness.agent("a")
    asked = harness.slow.call

    async def stopping(*args: Any, **more: Any) -> Any:
        harness.gateway.close()
        return await asked(*args, **more)

    monkeypatch.setattr(harness.slow, "call", stopping)
    exchange, call = harness.begin(ask("one"), token, modern_headers("tools/call", name="slow_ask"))
    await within(call)
    assert messages_in(exchange)[-1]["result"]["structuredContent"] == {"answers": [{"action": "cancel"}]}
    assert harness.gateway.parked == 0


async def test_a_result_that_cannot_be_kept_is_an_error_and_not_lost_in_silence(
    harness: GatewayHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.slow.patience = 0.1
    monkeypatch.setattr(parking, "MAX_KEPT", 10)
    token = await harness.agent("a")
    exchange, task = harness.begin(ask("one"), token, modern_headers("tools/call", name="slow_ask"))
    await within(task)
    done = await send(harness, token, retry(exchange.json["result"], "one"))
    assert done.json["id"] == "again"
    assert "could not be kept" in done.json["error"]["message"]
    assert not harness.gateway.parked


async def test_a_removed_agent_ends_its_parked_call(harness: GatewayHarness) -> None:
    token = await harness.agent("a")
    exchange, task = harness.begin(ask("one"), token, modern_headers("tools/call", name="slow_ask"))
    await within(exchange.until(b'"input_required"'))
    await harness.crib.services.agents.remove("a")
    await within(task)
    assert (await outcomes(harness, "a"))[-1] == ("outcome", "denied")
    assert (await send(harness, token, retry(exchange.json["result"], "one"))).status == 401


async def test_beyond_the_limit_of_parked_calls_the_server_gets_no_answer(
    harness: GatewayHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parking, "MAX_OF_AGENT", 1)
    token = await harness.agent("a")
    asked = await begun(harness, token, "one")
    refused = await send(harness, token, ask("one"))
    assert messages_in(refused)[-1]["result"]["structuredContent"] == {"answers": [{"action": "cancel"}]}
    await send(harness, token, retry(asked, "one"))
    await begun(harness, token, "one")


async def test_a_legacy_answer_counts_only_from_the_client_that_was_asked(harness: GatewayHarness) -> None:
    token, other = await harness.agent("a"), await harness.agent("b")
    session = await harness.initialize(token, capabilities=FORMS)
    foreign = await harness.initialize(other, capabilities=FORMS)
    call = legacy_body("tools/call", name="slow_ask", arguments={"messages": ["one"]})
    exchange, task = harness.begin(call, token, {"mcp-session-id": session})
    await within(exchange.until(b"elicitation/create"))
    (question,) = messages_in(exchange)
    no = {"jsonrpc": "2.0", "id": question["id"], "result": {"action": "decline"}}
    for whose, where, body in (
        (other, foreign, no),
        (token, session, {**no, "id": "crib-0-unknown"}),
        (token, session, {**no, "result": YES}),
        (token, session, no),
    ):
        assert (await harness.ask(body, whose, {"mcp-session-id": where})).status in (200, 202)
    await within(task)
    assert messages_in(exchange)[-1]["result"]["structuredContent"] == {"answers": [YES]}


async def test_a_legacy_answer_arrives_although_the_client_has_reused_the_calls_id(harness: GatewayHarness) -> None:
    token = await harness.agent("a")
    session = await harness.initialize(token, capabilities=FORMS)
    headers = {"mcp-session-id": session}
    body = legacy_body("tools/call", name="slow_ask", arguments={"messages": ["one"]})
    exchange, call = harness.begin(body, token, headers)
    await within(exchange.until(b"elicitation/create"))
    await within(harness.legacy(session, "ping", token))
    (asked,) = messages_in(exchange)
    await within(harness.ask({"jsonrpc": "2.0", "id": asked["id"], "result": YES}, token, headers))
    await within(call)
    assert messages_in(exchange)[-1]["result"]["structuredContent"] == {"answers": [YES]}


async def test_a_legacy_client_that_leaves_while_asked_cancels_the_question_not_the_call(
    harness: GatewayHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = await harness.agent("a")
    session = await harness.initialize(token, capabilities=FORMS)
    call = legacy_body("tools/call", name="slow_ask", arguments={"messages": ["one"]})
    exchange, task = harness.begin(call, token, {"mcp-session-id": session})
    await within(exchange.until(b"elicitation/create"))
    exchange.leave()
    await within(task)
    assert await outcomes(harness, "a") == [("intent", ""), ("question", "unanswered"), ("outcome", "ok")]

    monkeypatch.setattr(asking, "QUESTION_SECONDS", 0.05)
    exchange, task = harness.begin(call, token, {"mcp-session-id": session})
    await within(task)
    question, withdrawn, answer = messages_in(exchange)
    assert withdrawn["method"] == "notifications/cancelled"
    assert withdrawn["params"]["requestId"] == question["id"]
    assert answer["result"]["structuredContent"] == {"answers": [{"action": "cancel"}]}


async def test_a_client_that_cannot_be_asked_is_not_asked(harness: GatewayHarness) -> None:
    token = await harness.agent("a")
    session = await harness.initialize(token)
    answer = await harness.legacy(session, "tools/call", token, name="slow_ask", arguments={"messages": ["one"]})
    assert answer.json["result"]["structuredContent"] == {"answers": [{"action": "cancel"}]}


def through(gateway_tool: str, *messages: str, **more: Any) -> Body:
    """A call of `ask` for each message, through a tool of the gateway."""
    calls = [{"tool": "slow_ask", "arguments": {"messages": [one]}} for one in messages]
    arguments = calls[0] if gateway_tool == "crib_call" else {"calls": calls}
    params = {"name": gateway_tool, "arguments": arguments, **more, "_meta": META}
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}


THROUGH = {"crib_call": ["one"], "crib_batch": ["one", "two"]}
through_either = pytest.mark.parametrize("gateway_tool", THROUGH)


@through_either
async def test_a_modern_client_is_asked_in_the_middle_of_a_call_through_the_gateways_tools(
    harness: GatewayHarness, gateway_tool: str
) -> None:
    token, messages = await harness.agent("a"), THROUGH[gateway_tool]
    headers = modern_headers("tools/call", name=gateway_tool)
    exchange, _ = harness.begin(through(gateway_tool, *messages), token, headers)
    await within(exchange.until(b'"input_required"'))
    asked = exchange.json["result"]
    for number, message in enumerate(messages, start=1):
        (question,) = asked["inputRequests"].values()
        assert question["params"]["message"] == f"Server 'slow' asks: {message}"
        again = {"inputResponses": dict.fromkeys(asked["inputRequests"], YES), "requestState": asked["requestState"]}
        other = through(gateway_tool, *messages[:-1], "changed", **again)
        assert (await within(harness.ask(other, token, headers))).status == 400
        answer = await within(harness.ask(through(gateway_tool, *messages, **again), token, headers))
        assert harness.slow.times == min(number + 1, len(messages)), "no call is repeated"
        asked = messages_in(answer)[-1]["result"] if answer.text.startswith(b"event") else answer.json["result"]
    assert asked["resultType"] == "complete"
    assert json.dumps(asked).count("accept") == len(messages)
    assert await outcomes(harness, "a") == [
        *[("intent", ""), ("question", "accept"), ("outcome", "ok")] * len(messages),
        *([("outcome", "ok")] if gateway_tool == "crib_batch" else []),
    ]


@through_either
async def test_a_legacy_client_is_asked_in_the_middle_of_a_call_through_the_gateways_tools(
    harness: GatewayHarness, gateway_tool: str
) -> None:
    token, messages = await harness.agent("a"), THROUGH[gateway_tool]
    session = await harness.initialize(token, capabilities=FORMS)
    params = through(gateway_tool, *messages)["params"]
    call = legacy_body("tools/call", name=gateway_tool, arguments=params["arguments"])
    exchange, task = harness.begin(call, token, {"mcp-session-id": session})
    for message in messages:
        await within(exchange.until(f"asks: {message}".encode()))
        asked = messages_in(exchange)[-1]
        reply = {"jsonrpc": "2.0", "id": asked["id"], "result": YES}
        await harness.ask(reply, token, {"mcp-session-id": session})
    await within(task)
    assert json.dumps(messages_in(exchange)[-1]["result"]).count("accept") == len(messages)
    assert harness.slow.times == len(messages)
    rows = await harness.crib.services.audit.query(agent="a")
    assert {row["tool"] for row in rows if row["kind"] == "question"} == {"slow:ask"}
