"""What a client sends is read once, strictly, and nothing of it is bent."""

import asyncio
import json
import threading

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parts.waiting import wait_for
from toolcrib.errors import INVALID_PARAMS, INVALID_REQUEST, PARSE_ERROR
from toolcrib.gateway import messages
from toolcrib.gateway.messages import (
    MAX_BODY,
    MAX_DEPTH,
    MAX_DIGITS,
    MAX_VALUES,
    ReadLimiter,
    Rejected,
    error_message,
    read_limited,
    read_message,
    result_message,
)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def request(**members: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", **members}).encode()


@given(arguments=st.dictionaries(st.text(), json_values, max_size=5))
def test_params_keep_their_very_bytes(arguments):
    text = json.dumps(arguments, ensure_ascii=True)
    body = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","arguments": %b }}' % text.encode()
    assert bytes(read_message(body).params["arguments"]) == text.encode()


@given(st.one_of(st.integers(), st.text()))
def test_an_id_goes_back_as_it_came(value):
    raw = json.dumps(value)
    message = read_message(b'{"jsonrpc":"2.0","id":%b,"method":"ping"}' % raw.encode())
    assert message.id == raw.encode()
    assert message.key == value
    assert json.loads(result_message(message.id, b"{}")) == {"jsonrpc": "2.0", "id": value, "result": {}}


@given(st.binary(max_size=300))
def test_any_bytes_are_a_message_or_are_rejected_with_a_reason(body):
    try:
        read_message(body)
    except Rejected as rejected:
        assert rejected.message
        assert rejected.code in (PARSE_ERROR, INVALID_REQUEST, INVALID_PARAMS)


@given(json_values)
def test_any_json_is_a_message_or_is_rejected_with_a_reason(value):
    try:
        read_message(json.dumps(value).encode())
    except Rejected as rejected:
        assert rejected.code in (PARSE_ERROR, INVALID_REQUEST, INVALID_PARAMS)


@pytest.mark.parametrize(
    ("body", "code", "says"),
    [
        (b"", PARSE_ERROR, "Parse error"),
        (b"{", PARSE_ERROR, "Parse error"),
        (b'{"jsonrpc":"2.0","id":1,"method":"\xff"}', PARSE_ERROR, "UTF-8"),
        (b'{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}', PARSE_ERROR, "'id' appears twice"),
        (request(params={"a": [[[]]]}).replace(b'"a"', b'"a": {"k": 1, "k": 2}, "a"'), PARSE_ERROR, "appears twice"),
        (b"[" * 100_000, PARSE_ERROR, "nested deeper"),
        (b'{"jsonrpc":"2.0","id":1,"method":"m","params":' + b"[" * 400 + b"]" * 400 + b"}", PARSE_ERROR, "deeper"),
        (b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', INVALID_REQUEST, "single"),
        (b'{"jsonrpc":"1.0","id":1,"method":"ping"}', INVALID_REQUEST, "jsonrpc"),
        (b'{"jsonrpc":"2.0","id":1,"result":{}}', INVALID_REQUEST, "no method"),
        (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', INVALID_REQUEST, "id"),
        (b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}', INVALID_REQUEST, "id"),
        (b'{"jsonrpc":"2.0","id":[1],"method":"ping"}', INVALID_REQUEST, "id"),
        (request(params=[1]), INVALID_PARAMS, "params"),
        (request(params={"_meta": 3}), INVALID_PARAMS, "params"),
    ],
)
def test_what_can_be_read_in_two_ways_or_not_at_all_is_refused(body, code, says):
    with pytest.raises(Rejected) as caught:
        read_message(body)
    assert caught.value.code == code
    assert says in caught.value.message


def test_honest_depth_passes():
    deep: object = 1
    for _ in range(MAX_DEPTH - 3):
        deep = [deep]
    assert read_message(request(params={"arguments": deep})).method == "tools/call"


def test_brackets_inside_strings_are_not_depth():
    message = read_message(request(params={"arguments": {"text": "[{" * 5_000}}))
    assert msgspec.json.decode(message.params["arguments"])["text"] == "[{" * 5_000


def test_an_error_answer_names_the_request_and_the_reason():
    assert json.loads(error_message(b'"a"', -32602, "no", {"at": "x"})) == {
        "jsonrpc": "2.0",
        "id": "a",
        "error": {"code": -32602, "message": "no", "data": {"at": "x"}},
    }


def call(arguments: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","arguments":%b}}' % arguments


def filled(unit: bytes) -> bytes:
    """A list of these, as long as a body may be."""
    return call(b'{"a":[' + unit * ((MAX_BODY - 200) // len(unit)) + b"1]}")


EXPENSIVE = {
    "numbers": b"1,",
    "texts": b'"",',
    "objects": b"{},",
    "lists": b"[],",
    "keys": b'{"a":1,"b":[]},',
    "nests": b"[" * 60 + b"]" * 60 + b",",
    "quotes and brackets": b'"\\"[{",[],',
}


@pytest.mark.req("BNS-10")
@pytest.mark.parametrize("name", EXPENSIVE)
async def test_what_would_take_long_to_read_is_refused_before_any_parser_sees_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "read_message", pytest.fail)
    with pytest.raises(Rejected, match="too large") as caught:
        await read_limited(filled(EXPENSIVE[name]), "a", ReadLimiter())
    assert caught.value.message == f"The body has more than {MAX_VALUES} values."


@pytest.mark.req("BNS-10")
async def test_others_go_on_while_a_large_text_is_counted() -> None:
    body = call(b'{"a":"' + b'\\"[,' * ((MAX_BODY - 200) // 4) + b'"}')
    steps = 0
    reading = asyncio.create_task(read_limited(body, "a", ReadLimiter()))
    while not reading.done():
        steps += 1
        await asyncio.sleep(0)
    assert bytes((await reading).params["arguments"])[:8] == b'{"a":"\\"'
    assert steps > 200


@pytest.mark.req("BNS-10")
async def test_an_agent_has_one_large_text_read_at_a_time_and_holds_up_nobody_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    began: list[str] = []
    go_on = threading.Event()

    def read(body: bytes) -> str:
        began.append(json.loads(body)["who"])
        assert go_on.wait(30)
        return began[-1]

    monkeypatch.setattr(messages, "read_message", read)
    turns = ReadLimiter()
    bodies = [json.dumps({"who": who, "text": "x" * 100_000}).encode() for who in ("a1", "a2", "a3", "b1")]
    tasks = [asyncio.create_task(read_limited(body, body[9:10].decode(), turns)) for body in bodies]
    async with asyncio.timeout(30):
        await asyncio.to_thread(wait_for, lambda: len(began) == 2 or None, "two texts to be read")
        for _ in range(20):
            await asyncio.sleep(0)
        assert sorted(began) == ["a1", "b1"]
        go_on.set()
        await asyncio.gather(*tasks)
    assert sorted(began) == ["a1", "a2", "a3", "b1"]


async def test_large_texts_of_few_values_are_read() -> None:
    text = '[{,"\\' * 400_000
    message = await read_limited(request(params={"arguments": {"text": text}}), "a", ReadLimiter())
    assert msgspec.json.decode(message.params["arguments"])["text"] == text


@pytest.mark.parametrize("digits", [MAX_DIGITS, MAX_DIGITS + 1])
def test_an_integer_has_an_end(digits: int) -> None:
    body = call(b'{"a":%b}' % (b"9" * digits))
    if digits <= MAX_DIGITS:
        assert read_message(body).id == b"1"
        return
    with pytest.raises(Rejected, match="not JSON") as caught:
        read_message(body)
    assert "more than 512 digits" in caught.value.message
