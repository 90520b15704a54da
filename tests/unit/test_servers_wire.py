"""Envelopes are decoded once, and what is inside stays as it was."""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, Raw

from toolcrib.servers import wire
from toolcrib.servers.model import Era, ServerAnswer

pytestmark = pytest.mark.req("BNS-5")

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), json_values, max_size=4), st.sampled_from([None, 1]), st.booleans())
def test_a_result_is_the_same_bytes(value: Any, indent: int | None, ascii_only: bool) -> None:
    try:
        inner = json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode()
    except UnicodeEncodeError:
        return
    answer = wire.decode(b'{"jsonrpc":"2.0", "id": "tc-1", "result": ' + inner + b' , "x":1}').answer()
    assert answer == ServerAnswer(result=inner)


@given(st.binary(max_size=100))
def test_any_bytes_are_a_message_or_not_and_nothing_else(data: bytes) -> None:
    with contextlib.suppress(wire.NotAMessage):
        wire.decode(data)


@pytest.mark.parametrize(
    "broken",
    [
        b"",
        b"hello",
        b"null",
        b"[]",
        b'{"id":"tc-1","result":{"a":}}',
        b'{"id":"tc-1","result":"\xff"}',
        b'{"id":"tc-1","result":' + b"[" * 100_000,
        b'{"id":{},"result":{}}',
    ],
)
def test_what_is_no_message_is_said_to_be_none(broken: bytes) -> None:
    with pytest.raises(wire.NotAMessage):
        wire.decode(broken)


def test_half_a_surrogate_pair_becomes_the_replacement_character_and_the_rest_stays() -> None:
    cut_short = rb'{"id":"tc-1","result":{"a":"\ud83d\ude00 \\ud83d \udc00x"}}'
    assert wire.decode(cut_short).answer() == ServerAnswer(result=rb'{"a":"\ud83d\ude00 \\ud83d \ufffdx"}')


def test_the_id_of_a_broken_answer_is_found_at_either_end() -> None:
    assert wire.own_id_in(b'{"jsonrpc":"2.0","id": "tc-12","result":{' + b"x" * 1000) == "tc-12"
    assert wire.own_id_in(b'{"result":' + b"x" * 1000 + b',"id":"tc-3"') == "tc-3"
    assert wire.own_id_in(b'{"id":7,"result":{') is None


def test_a_message_that_answers_nothing_has_no_answer() -> None:
    assert wire.decode(b'{"id":"tc-1"}').answer() is None
    assert wire.decode(b'{"id":"tc-1","result":[1]}').answer() is None
    assert wire.decode(b'{"id":"tc-1","error":"no"}').answer() is None
    assert wire.decode(b'{"method":"ping"}').id is UNSET


@given(json_values)
def test_a_message_on_one_line_means_the_same(value: Any) -> None:
    spread = json.dumps(value, indent=2).replace("\n", "\r\n").encode()
    line = wire.on_one_line(wire.request("tc-1", "m", {"arguments": Raw(spread)}))
    assert b"\n" not in line
    assert b"\r" not in line
    assert json.loads(line)["params"]["arguments"] == value


def test_only_modern_requests_say_who_and_what_they_are() -> None:
    callers = {"x": 1, wire.PROTOCOL_VERSION_KEY: "theirs", "progressToken": "theirs"}
    info = {"name": "toolcrib"}
    assert wire.meta_for(Era.LEGACY, "2025-11-25", info, callers, None) == {"x": 1}
    assert wire.meta_for(Era.MODERN, "2026-07-28", info, callers, "tc-1") == {
        "x": 1,
        "progressToken": "tc-1",
        wire.PROTOCOL_VERSION_KEY: "2026-07-28",
        wire.CLIENT_INFO_KEY: info,
        wire.CLIENT_CAPABILITIES_KEY: {},
    }


@pytest.mark.req("BNS-10")
@pytest.mark.parametrize(
    ("unit", "opens"),
    [
        (rb"\"", b'"'),
        (b"\\", b'"'),
        (b'"', b""),
        (b'"[', b""),
        (b"[]", b""),
        (b"a", b'"'),
        (rb"a\"", b'"'),
        (rb"\"", b""),
    ],
)
def test_the_depth_of_a_hostile_text_is_known_in_linear_time(unit: bytes, opens: bytes) -> None:
    text = b"[" * 130 + opens + unit * (40_000 // len(unit))
    began = time.process_time()
    assert wire.deeper_than(128, text)
    assert time.process_time() - began < 20


@pytest.mark.parametrize("at", [wire._STEP - 3, wire._STEP - 1, wire._STEP, wire._STEP + 1])
def test_the_text_of_a_large_message_is_checked_in_steps(at: int) -> None:
    head = b'{"id":1,"result":{"a":"'
    padding, tail = b"x" * (at - len(head)), b"x" * wire._STEP + b'"}}'
    whole = wire.decode(head + padding + "\U0001f600".encode() + tail).answer()
    assert whole is not None
    with pytest.raises(wire.NotAMessage, match=rf"byte {at}\b"):
        wire.decode(head + padding + b"\xff" + tail)
    with pytest.raises(wire.NotAMessage, match=r"not UTF-8"):
        wire.decode(head + padding + b"\xf0\x9f")


def test_what_would_take_long_is_not_looked_into() -> None:
    surrogates = rb"\ud83d" * 200_000
    with pytest.raises(wire.NotAMessage, match="surrogate"):
        wire.decode(b'{"id":1,"result":{"a":"' + surrogates + b'"}}')
    with pytest.raises(wire.NotAMessage, match="a batch of more than 1024 KB"):
        wire.split_batch(b"[" + b"{}," * 400_000 + b"{}]")
    assert wire.params_object(Raw(b'{"progress":1}')) == {"progress": 1}
    assert wire.params_object(Raw(b'{"a":"' + b"x" * 70_000 + b'"}')) == {}
