"""Messages of servers: lines, events, envelopes, `Mcp-Param-*` headers, and a server's share of our time."""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.shared import inbound
from msgspec import UNSET, Raw

from toolcrib.servers import link, wire
from toolcrib.servers.input_budget import FLOOD_REASON, FORWARD_COST, MAX_FLOOD, SHARE, InputBudget
from toolcrib.servers.model import Era, ServerAnswer
from toolcrib.servers.param_headers import MARK, encode_header_value, headers_of, marked_properties
from toolcrib.servers.wire import EDGE, LineSplitter, SseEvent, SseParser, TooLarge

pytestmark = pytest.mark.req("BNS-2", "BNS-5", "ENG-1")

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)
PLACES = st.lists(st.integers(0))


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


def pieces(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


@given(st.lists(st.binary(max_size=20)), st.binary(max_size=9), PLACES)
def test_lines_are_whole_wherever_the_data_is_cut(lines: list[bytes], rest: bytes, places: list[int]) -> None:
    *lines, rest = (line.replace(b"\n", b"") for line in (*lines, rest))
    reader = LineSplitter(limit=1_000_000)
    data = b"".join(line + b"\n" for line in lines) + rest
    assert [line for chunk in cut(data, places) for line in reader.feed(chunk)] == lines
    assert reader.rest() == rest


@pytest.mark.parametrize("size", [1, 3, 100])
def test_a_line_above_the_limit_is_dropped_and_the_next_is_read(size: int) -> None:
    dropped: list[bytes] = []
    reader = LineSplitter(limit=5, on_overlong=dropped.append)
    data = b"short\n" + b"begin" + b"x" * 1000 + b"end" + b"\nnext\n" + b"123456\nlast\n"
    assert [line for chunk in pieces(data, size) for line in reader.feed(chunk)] == [b"short", b"next", b"last"]
    first, second = dropped
    assert first.startswith(b"begin")
    assert first.endswith(b"end")
    assert second.endswith(b"123456")
    assert max(map(len, dropped)) <= 2 * EDGE + 1


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("event", [b"data: " + b"x" * 200, b"data: x\n" * 100, b": " + b"x" * 200, b"data:\n" * 200])
@pytest.mark.req("BNS-10")
def test_an_event_above_the_limit_is_refused(event: bytes, size: int) -> None:
    stream = SseParser(limit=100)
    seen: list[SseEvent] = []
    with pytest.raises(TooLarge, match="max_message_mb"):
        for chunk in pieces(b"data: fine\n\n" * 50 + event, size):
            seen.extend(stream.feed(chunk))
    assert len(seen) == 50


def test_a_long_line_in_small_chunks_takes_linear_time() -> None:
    reader, chunk = LineSplitter(limit=1_000_000_000), b"x" * 1000
    began = time.process_time()
    for _ in range(200_000):
        list(reader.feed(chunk))
    assert len(next(reader.feed(b"\n"))) == 200_000_000
    assert time.process_time() - began < 60, "a reader that copies its buffer would move twenty terabytes"


def events(data: bytes, places: list[int]) -> list[SseEvent]:
    stream = SseParser(limit=1_000_000)
    return [event for chunk in cut(data, places) for event in stream.feed(chunk)]


EVENTS = b"""\xef\xbb\xbf: a comment
event: endpoint
data: /messages?id=1

id: 7
retry: 1500
data

data: one
data:  two
unknown: field

event: nothing

data: never ended"""


@given(PLACES, st.sampled_from([b"\n", b"\r\n", b"\r"]))
def test_events_are_read_with_any_line_end_wherever_the_data_is_cut(places: list[int], end: bytes) -> None:
    assert events(EVENTS.replace(b"\n", end), places) == [
        SseEvent(kind="endpoint", data=b"/messages?id=1"),
        SseEvent(kind="message", data=b"", id="7", retry=1.5),
        SseEvent(kind="message", data=b"one\n two", id="7"),
    ]


@given(st.binary(max_size=200), PLACES)
def test_the_event_parser_accepts_any_bytes(data: bytes, places: list[int]) -> None:
    assert events(data, places) == events(data, [])


@given(st.dictionaries(st.text(), json_values, max_size=4), st.sampled_from([None, 1]), st.booleans())
def test_a_result_keeps_its_bytes(value: Any, indent: int | None, ascii_only: bool) -> None:
    try:
        inner = json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode()
    except UnicodeEncodeError:
        return
    answer = wire.decode(b'{"jsonrpc":"2.0", "id": "tc-1", "result": ' + inner + b' , "x":1}').answer()
    assert answer == ServerAnswer(result=inner)


@given(st.binary(max_size=100))
def test_any_bytes_are_a_message_or_not(data: bytes) -> None:
    with contextlib.suppress(wire.NotAMessage):
        wire.decode(data)


BROKEN = [b"", b"hello", b"null", b"[]", b'{"id":"tc-1","result":{"a":}}', b'{"id":"tc-1","result":"\xff"}']
BROKEN += [b'{"id":"tc-1","result":' + b"[" * 100_000, b'{"id":{},"result":{}}']


@pytest.mark.parametrize("broken", BROKEN)
def test_broken_messages_are_refused(broken: bytes) -> None:
    with pytest.raises(wire.NotAMessage):
        wire.decode(broken)


def test_half_a_surrogate_pair_becomes_the_replacement_character() -> None:
    halved = rb'{"id":"tc-1","result":{"a":"\ud83d\ude00 \\ud83d \udc00x"}}'
    assert wire.decode(halved).answer() == ServerAnswer(result=rb'{"a":"\ud83d\ude00 \\ud83d \ufffdx"}')


def test_the_id_of_a_broken_answer_is_found_at_either_end() -> None:
    assert wire.own_id_in(b'{"jsonrpc":"2.0","id": "tc-12","result":{' + b"x" * 1000) == "tc-12"
    assert wire.own_id_in(b'{"result":' + b"x" * 1000 + b',"id":"tc-3"') == "tc-3"
    assert wire.own_id_in(b'{"id":7,"result":{') is None


def test_a_message_without_a_valid_result_or_error_has_no_answer() -> None:
    for text in (b'{"id":"tc-1"}', b'{"id":"tc-1","result":[1]}', b'{"id":"tc-1","error":"no"}'):
        assert wire.decode(text).answer() is None
    assert wire.decode(b'{"method":"ping"}').id is UNSET


@given(json_values)
def test_a_message_on_one_line_has_the_same_meaning(value: Any) -> None:
    spread = json.dumps(value, indent=2).replace("\n", "\r\n").encode()
    line = wire.on_one_line(wire.request("tc-1", "m", {"arguments": Raw(spread)}))
    assert not {*b"\r\n"} & {*line}
    assert json.loads(line)["params"]["arguments"] == value


def test_only_modern_requests_state_version_client_and_capabilities() -> None:
    callers = {"x": 1, wire.PROTOCOL_VERSION_KEY: "theirs", "progressToken": "theirs"}
    info = {"name": "toolcrib"}
    assert wire.meta_for(Era.LEGACY, "2025-11-25", info, callers, None) == {"x": 1}
    ours = {wire.PROTOCOL_VERSION_KEY: "2026-07-28", wire.CLIENT_INFO_KEY: info, wire.CLIENT_CAPABILITIES_KEY: {}}
    modern = wire.meta_for(Era.MODERN, "2026-07-28", info, callers, "tc-1")
    assert modern == {"x": 1, "progressToken": "tc-1", **ours}


HOSTILE = [(rb"\"", b'"'), (b"\\", b'"'), (b'"', b""), (b'"[', b""), (b"[]", b""), (b"a", b'"'), (rb"a\"", b'"')]


@pytest.mark.req("BNS-10")
@pytest.mark.parametrize(("unit", "opens"), [*HOSTILE, (rb"\"", b"")])
def test_the_depth_of_a_hostile_text_is_computed_in_linear_time(unit: bytes, opens: bytes) -> None:
    text = b"[" * 130 + opens + unit * (40_000 // len(unit))
    began = time.process_time()
    assert wire.deeper_than(128, text)
    assert time.process_time() - began < 20


@pytest.mark.parametrize("at", [wire._STEP - 3, wire._STEP - 1, wire._STEP, wire._STEP + 1])
def test_the_text_of_a_large_message_is_checked_in_steps(at: int) -> None:
    head = b'{"id":1,"result":{"a":"'
    start, tail = head + b"x" * (at - len(head)), b"x" * wire._STEP + b'"}}'
    assert wire.decode(start + "\U0001f600".encode() + tail).answer() is not None
    with pytest.raises(wire.NotAMessage, match=rf"byte {at}\b"):
        wire.decode(start + b"\xff" + tail)
    with pytest.raises(wire.NotAMessage, match=r"not UTF-8"):
        wire.decode(start + b"\xf0\x9f")


def test_messages_that_would_take_long_are_not_examined() -> None:
    with pytest.raises(wire.NotAMessage, match="surrogate"):
        wire.decode(b'{"id":1,"result":{"a":"' + rb"\ud83d" * 200_000 + b'"}}')
    with pytest.raises(wire.NotAMessage, match="a batch of more than 1024 KB"):
        wire.split_batch(b"[" + b"{}," * 400_000 + b"{}]")
    assert wire.params_object(Raw(b'{"progress":1}')) == {"progress": 1}
    assert wire.params_object(Raw(b'{"a":"' + b"x" * 70_000 + b'"}')) == {}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    made = SimpleNamespace(now=100.0)
    monkeypatch.setattr(link.time, "monotonic", lambda: made.now)
    return made


def test_a_flood_gets_its_share_of_time_and_is_ended(clock: SimpleNamespace) -> None:
    ended: list[str] = []
    budget = InputBudget(ended.append)
    began, spent = clock.now, 0.0
    for cost in itertools.cycle((0.0001, 0.02, 0.003, 0.0004, 0.007)):
        spent += cost
        clock.now += cost
        budget.charge(cost)
        clock.now += budget.pause
        if ended:
            break
    assert ended == [FLOOD_REASON]
    assert spent > MAX_FLOOD
    assert spent / (clock.now - began) < SHARE * 1.2


def test_small_messages_bursts_and_forwarded_answers_never_end_a_server(clock: SimpleNamespace) -> None:
    budget = InputBudget(pytest.fail)
    for _ in range(10_000):
        budget.charge(0.0004)
        clock.now += 0.01
        assert budget.pause == 0
    budget = InputBudget(pytest.fail)
    for _ in range(20):
        budget.charge(MAX_FLOOD / 2)
        assert budget.pause == pytest.approx(MAX_FLOOD / 2 / SHARE)
        clock.now += 60
        budget.charge(0)
        assert budget.pause == 0
    budget = InputBudget(pytest.fail)
    began, spent = clock.now, 0.0
    while spent < 10 * MAX_FLOOD:
        spent += FORWARD_COST
        budget.charge(FORWARD_COST, asked=True)
        clock.now += budget.pause
    assert spent / (clock.now - began) < SHARE * 1.2


SCALARS = st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.floats(allow_nan=False)
KEYS = st.sampled_from(["a", "b", MARK, "properties", "items"])
LEAVES = st.fixed_dictionaries(
    {"type": st.sampled_from(["string", "integer", "boolean", "number", ["string"]])},
    optional={MARK: st.sampled_from(["Region", "region", "Zone", "A", "B", "bad name", "", 7])},
)


def grown(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    optional = {"anyOf": st.lists(children, max_size=2), "items": children, "default": children}
    optional["$defs"] = st.dictionaries(KEYS, children, max_size=1)
    properties = st.dictionaries(KEYS, children, max_size=3)
    return st.fixed_dictionaries({"type": st.just("object"), "properties": properties}, optional=optional)


@given(
    st.recursive(LEAVES, grown, max_leaves=6),
    st.recursive(SCALARS, lambda inner: st.dictionaries(KEYS, inner, max_size=3), max_leaves=8),
)
def test_param_headers_are_those_of_the_sdk(schema: Any, arguments: Any) -> None:
    sent = arguments if isinstance(arguments, dict) else {"a": arguments}
    expected: dict[str, str] = {}
    if inbound.find_invalid_x_mcp_header(schema) is None:
        expected = inbound.mcp_param_headers(inbound.x_mcp_header_map(schema), sent)
    assert headers_of(marked_properties(schema), sent) == expected


@given(st.text())
def test_header_values_can_be_decoded(value: str) -> None:
    encoded = encode_header_value(value)
    assert encoded == inbound.encode_header_value(value)
    assert inbound.decode_header_value(encoded) == value
    assert encoded.isascii()
    assert encoded.isprintable()


def marked(kind: str, name: Any) -> dict[str, Any]:
    return {"type": kind, MARK: name}


def test_nested_properties_have_headers_and_missing_or_endless_values_have_none() -> None:
    nested = {"region": marked("string", "Region"), "o": {"properties": {"deep": marked("boolean", "Deep")}}}
    schema = {"properties": {**nested, "gone": marked("integer", "Gone"), "n": marked("integer", "N")}}
    arguments = {"region": "süd", "o": {"deep": True}, "gone": None, "n": 10**5000}
    expected = {"Mcp-Param-Region": "=?base64?c8O8ZA==?=", "Mcp-Param-Deep": "true"}
    assert headers_of(marked_properties(schema), arguments) == expected
    assert headers_of(marked_properties(schema), {"o": 5}) == {}


@pytest.mark.parametrize(
    "schema",
    [
        marked("string", "Root"),
        {"properties": {"a": marked("number", "A")}},
        {"properties": {"a": marked("string", "bad name")}},
        {"properties": {"a": marked("string", 7)}},
        {"properties": {"a": marked("string", "X"), "b": marked("string", "x")}},
        {"properties": {"a": marked("string", "A")}, "anyOf": [{MARK: "B"}]},
        {"patternProperties": {"^a": marked("string", "A")}},
        {"items": {"properties": {"a": marked("string", "A")}}},
    ],
)
def test_one_invalid_mark_invalidates_all(schema: dict[str, Any]) -> None:
    assert marked_properties(schema) == {}
