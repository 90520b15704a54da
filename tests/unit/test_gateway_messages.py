"""A client's message is read once and strictly, and its body and headers must agree on the protocol version."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parts.waiting import wait_for
from toolcrib.errors import HEADER_MISMATCH, INVALID_PARAMS, INVALID_REQUEST, PARSE_ERROR, UNSUPPORTED_VERSION
from toolcrib.gateway import messages, protocol
from toolcrib.gateway.messages import (
    MAX_BODY,
    MAX_DEPTH,
    MAX_DIGITS,
    MAX_VALUES,
    ReadLimiter,
    Rejected,
    batched,
    error_message,
    read_limited,
    read_message,
    result_message,
)
from toolcrib.servers.model import MODERN_VERSION, Era

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def request(**members: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", **members}).encode()


def call(arguments: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","arguments":%b}}' % arguments


@given(arguments=st.dictionaries(st.text(), json_values, max_size=5))
def test_params_keep_their_bytes(arguments: dict[str, Any]) -> None:
    text = json.dumps(arguments, ensure_ascii=True).encode()
    assert bytes(read_message(call(b" %b " % text)).params["arguments"]) == text


@given(st.one_of(st.integers(), st.text()))
def test_an_id_is_returned_unchanged(value: int | str) -> None:
    raw = json.dumps(value).encode()
    message = read_message(b'{"jsonrpc":"2.0","id":%b,"method":"ping"}' % raw)
    assert (message.id, message.key) == (raw, value)
    assert json.loads(result_message(message.id, b"{}")) == {"jsonrpc": "2.0", "id": value, "result": {}}


@given(st.binary(max_size=300) | json_values.map(lambda value: json.dumps(value).encode()))
def test_any_body_is_a_message_or_is_rejected_with_a_reason(body: bytes) -> None:
    try:
        read_message(body)
    except Rejected as rejected:
        assert rejected.message
        assert rejected.code in (PARSE_ERROR, INVALID_REQUEST, INVALID_PARAMS)


@pytest.mark.parametrize(
    ("body", "code", "reason"),
    [
        (b"", PARSE_ERROR, "Parse error"),
        (b"{", PARSE_ERROR, "Parse error"),
        (b'{"jsonrpc":"2.0","id":1,"method":"\xff"}', PARSE_ERROR, "UTF-8"),
        (b'{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}', PARSE_ERROR, "'id' appears twice"),
        (request(params={"a": [[[]]]}).replace(b'"a"', b'"a": {"k": 1, "k": 2}, "a"'), PARSE_ERROR, "appears twice"),
        (b"[" * 100_000, PARSE_ERROR, "nested deeper"),
        (b'{"jsonrpc":"2.0","id":1,"method":"m","params":' + b"[" * 400 + b"]" * 400 + b"}", PARSE_ERROR, "deeper"),
        (call(b'{"a":%b}' % (b"9" * (MAX_DIGITS + 1))), PARSE_ERROR, "more than 512 digits"),
        (b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', INVALID_REQUEST, "single"),
        (b'{"jsonrpc":"1.0","id":1,"method":"ping"}', INVALID_REQUEST, "jsonrpc"),
        (b'{"jsonrpc":"2.0","id":1}', INVALID_REQUEST, "no method"),
        (b'{"jsonrpc":"2.0","result":{}}', INVALID_REQUEST, "no method"),
        (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', INVALID_REQUEST, "id"),
        (b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}', INVALID_REQUEST, "id"),
        (b'{"jsonrpc":"2.0","id":[1],"method":"ping"}', INVALID_REQUEST, "id"),
        (request(params=[1]), INVALID_PARAMS, "params"),
        (request(params={"_meta": 3}), INVALID_PARAMS, "params"),
    ],
)
def test_ambiguous_and_unreadable_bodies_are_refused(body: bytes, code: int, reason: str) -> None:
    with pytest.raises(Rejected) as caught:
        read_message(body)
    assert caught.value.code == code
    assert reason in caught.value.message


def test_depth_brackets_in_strings_and_long_integers_within_the_limits_are_read() -> None:
    deep: object = 1
    for _ in range(MAX_DEPTH - 3):
        deep = [deep]
    assert read_message(request(params={"arguments": deep})).method == "tools/call"
    message = read_message(request(params={"arguments": {"text": "[{" * 5_000}}))
    assert msgspec.json.decode(message.params["arguments"])["text"] == "[{" * 5_000
    assert read_message(call(b'{"a":%b}' % (b"9" * MAX_DIGITS))).id == b"1"


def test_an_error_answer_has_the_requests_id_and_the_reason() -> None:
    error = {"code": -32602, "message": "no", "data": {"at": "x"}}
    answer = {"jsonrpc": "2.0", "id": "a", "error": error}
    assert json.loads(error_message(b'"a"', -32602, "no", {"at": "x"})) == answer


@pytest.mark.req("BNS-10")
@pytest.mark.parametrize(
    "unit",
    [b"1,", b'"",', b"{},", b"[],", b'{"a":1,"b":[]},', b"[" * 60 + b"]" * 60 + b",", b'"\\"[{",[],'],
    ids=["numbers", "texts", "objects", "lists", "keys", "nests", "quotes and brackets"],
)
async def test_bodies_with_too_many_values_are_not_parsed(unit: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "read_message", pytest.fail)
    body = call(b'{"a":[' + unit * ((MAX_BODY - 200) // len(unit)) + b"1]}")
    with pytest.raises(Rejected, match="too large") as caught:
        await read_limited(body, "a", ReadLimiter())
    assert caught.value.message == f"The body has more than {MAX_VALUES} values."


def test_a_lifetime_inside_a_result_is_not_the_results() -> None:
    inside = b'{"resultType":"complete","contents":[{"uri":"x://1","text":"","_meta":{"ttlMs":5}}]}'
    read = json.loads(protocol.read_result(inside, client=Era.MODERN))
    assert (read["ttlMs"], read["cacheScope"]) == (0, "private")
    own = b'{"resultType":"complete","ttlMs":5,"cacheScope":"private","contents":[]}'
    assert protocol.read_result(own, client=Era.MODERN) == own


@pytest.mark.parametrize("meta", [None, 1, "x", []])
def test_a_servers_invalid_meta_is_replaced_in_a_subscription(meta: Any) -> None:
    told = json.loads(protocol.tagged("notifications/resources/updated", {"uri": "x://1", "_meta": meta}, b"7"))
    assert told["params"] == {"uri": "x://1", "_meta": {protocol.SUBSCRIPTION_KEY: 7}}


@pytest.mark.req("BNS-10")
async def test_a_batch_may_have_as_many_values_as_one_message() -> None:
    for body in (b"[" + b"1," * MAX_VALUES + b"1]", b"[" + b",".join([b"[" + b"1," * 70_000 + b"1]"] * 2) + b"]"):
        with pytest.raises(Rejected, match="too large"):
            await batched(body)


@pytest.mark.req("BNS-10")
async def test_other_tasks_continue_while_a_large_body_is_counted() -> None:
    async def read(body: bytes) -> tuple[bytes, int]:
        reading = asyncio.create_task(read_limited(body, "a", ReadLimiter()))
        steps = 0
        while not reading.done():
            steps += 1
            await asyncio.sleep(0)
        return bytes((await reading).params["arguments"]), steps

    text = '[{,"\\' * 400_000
    assert msgspec.json.decode((await read(request(params={"arguments": {"text": text}})))[0])["text"] == text
    arguments, steps = await read(call(b'{"a":"' + b'\\"[,' * ((MAX_BODY - 200) // 4) + b'"}'))
    assert arguments[:8] == b'{"a":"\\"'
    assert steps > 200


@pytest.mark.req("BNS-10")
async def test_one_large_body_per_agent_is_read_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    released = threading.Event()

    def read(body: bytes) -> str:
        started.append(json.loads(body)["who"])
        assert released.wait(30)
        return started[-1]

    monkeypatch.setattr(messages, "read_message", read)
    limiter = ReadLimiter()
    bodies = [json.dumps({"who": who, "text": "x" * 100_000}).encode() for who in ("a1", "a2", "a3", "b1")]
    tasks = [asyncio.create_task(read_limited(body, body[9:10].decode(), limiter)) for body in bodies]
    async with asyncio.timeout(30):
        await asyncio.to_thread(wait_for, lambda: len(started) == 2 or None, "two bodies to be read")
        for _ in range(20):
            await asyncio.sleep(0)
        assert sorted(started) == ["a1", "b1"]
        released.set()
        await asyncio.gather(*tasks)
    assert sorted(started) == ["a1", "a2", "a3", "b1"]


META = {protocol.VERSION_KEY: MODERN_VERSION, protocol.CAPABILITIES_KEY: {}}


def message(method: str = "tools/call", meta: Any = META, **params: Any) -> Any:
    return read_message(request(id=7, method=method, params=params if meta is None else {**params, "_meta": meta}))


def headers(method: str = "tools/call", version: str | None = MODERN_VERSION, name: str | None = "a_b") -> Any:
    sent = {"mcp-protocol-version": version, "mcp-method": method, "mcp-name": name}
    return {key: value for key, value in sent.items() if value is not None}


@pytest.mark.parametrize(
    ("sent", "header", "era"),
    [
        (message(), None, Era.MODERN),
        (message(), "2025-06-18", Era.MODERN),
        (message(meta=None), None, Era.LEGACY),
        (message(meta={"progressToken": 1}), "2025-06-18", Era.LEGACY),
        (message(meta=None), MODERN_VERSION, Era.MODERN),
        (message(meta=None), "2099-01-01", Era.MODERN),
        (message("initialize", meta=None), MODERN_VERSION, Era.LEGACY),
        (message("initialize"), MODERN_VERSION, Era.MODERN),
    ],
)
def test_the_body_determines_the_era_or_else_the_header(sent: Any, header: str | None, era: Era) -> None:
    assert protocol.era_of(sent, header) is era


def test_a_consistent_modern_request_is_accepted() -> None:
    protocol.check_modern(message(name="a_b"), headers())
    protocol.check_modern(message("tools/list"), headers("tools/list", name=None))
    protocol.check_modern(message(name="grüße"), headers(name="=?base64?Z3LDvMOfZQ==?="))


FUTURE = {**META, protocol.VERSION_KEY: "2099-01-01"}


@pytest.mark.parametrize(
    ("meta", "sent", "code"),
    [
        (None, headers(), INVALID_PARAMS),
        ({protocol.VERSION_KEY: MODERN_VERSION}, headers(), INVALID_PARAMS),
        (META, headers(version="2025-06-18"), HEADER_MISMATCH),
        (META, headers(version=None), HEADER_MISMATCH),
        (META, headers("tools/list"), HEADER_MISMATCH),
        (META, headers(name="a_c"), HEADER_MISMATCH),
        (META, headers(name=None), HEADER_MISMATCH),
        (META, headers(name="=?base64?!!?="), HEADER_MISMATCH),
        (FUTURE, headers(version="2099-01-01"), -32022),
        ({**META, protocol.VERSION_KEY: 3}, None, INVALID_PARAMS),
    ],
)
def test_the_first_failed_check_is_the_answer(meta: Any, sent: Any, code: int) -> None:
    with pytest.raises(Rejected) as caught:
        protocol.check_modern(message(meta=meta, name="a_b"), sent)
    assert caught.value.code == code
    if code == UNSUPPORTED_VERSION:
        assert caught.value.data == {"supported": [MODERN_VERSION], "requested": "2099-01-01"}


def test_metadata_of_the_connection_is_not_forwarded() -> None:
    meta = {**META, "progressToken": 5, "claudecode/toolUseId": "x"}
    assert protocol.forwarded_meta(meta) == {"claudecode/toolUseId": "x"}


@pytest.mark.req("ENG-9")
@pytest.mark.parametrize(
    "result",
    [
        *(b'{"content":[],"x":null}', b' {\n "content" : [ ] }', b"{}", b"{ }"),
        *(b'{"content":[],"resultType":null}', b'{"resultType":3,"a":"\\u00e9"}'),
        b'{"content":[{"type":"text","text":"\\"resultType\\":\\"x\\""}],"structuredContent":{"resultType":"x"}}',
    ],
)
def test_a_modern_client_gets_a_result_type_and_a_legacy_one_the_same_bytes(result: bytes) -> None:
    assert protocol.tool_result(result, client=Era.LEGACY) == result
    given = protocol.tool_result(result, client=Era.MODERN)
    assert json.loads(given, object_pairs_hook=list).count(("resultType", "complete")) == 1, "no key twice"
    assert json.loads(given) == {**json.loads(result), "resultType": "complete"}


@pytest.mark.parametrize("result", [b'{"resultType":"complete"}', b'{ "content":[], "resultType" : "input_required" }'])
def test_a_result_with_a_type_keeps_its_bytes(result: bytes) -> None:
    assert protocol.tool_result(result, client=Era.MODERN) is result
