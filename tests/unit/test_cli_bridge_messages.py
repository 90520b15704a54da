"""Whole lines out of chunks, and what a line is."""

from __future__ import annotations

import itertools
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.cli import bridge_messages
from toolcrib.cli.bridge_messages import BridgeMessage, BridgeReader, MessageKind, messages


@given(data=st.binary(max_size=200).map(lambda data: data.replace(b"\x07", b"\n")), cuts=st.lists(st.integers(0, 200)))
def test_however_a_stream_is_cut_its_lines_are_the_same(data: bytes, cuts: list[int]) -> None:
    lines = BridgeReader()
    found: list[bytes] = []
    edges = [0, *sorted(cut for cut in cuts if cut <= len(data)), len(data)]
    for begin, end in itertools.pairwise(edges):
        found += lines.feed(data[begin:end])
    *whole, rest = data.split(b"\n")
    assert found == [line + b"\n" for line in whole if line.strip()]
    assert lines.rest() == rest


def test_a_long_line_costs_by_its_length() -> None:
    def cost(chunks: int) -> float:
        lines, chunk = BridgeReader(), b"x" * 4096
        begun = time.process_time()
        for _ in range(chunks):
            lines.feed(chunk)
        assert len(lines.feed(b"\n")[0]) == chunks * 4096 + 1
        return time.process_time() - begun

    cost(1000)
    assert cost(16_000) < 1.0, "sixteen times the square would be minutes"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (b'{"jsonrpc":"2.0","id":1,"method":"a"}', [BridgeMessage(MessageKind.REQUEST, "1", "a")]),
        (b'{"id":"1","method":"a"}', [BridgeMessage(MessageKind.REQUEST, '"1"', "a")]),
        (b'{"method":"a"}', [BridgeMessage(MessageKind.NOTICE, "", "a")]),
        (b'{"id":1,"result":null}', [BridgeMessage(MessageKind.ANSWER, "1")]),
        (b'{"id":1,"error":{}}', [BridgeMessage(MessageKind.ANSWER, "1")]),
        (b'{"method":"notifications/cancelled","params":{"requestId":7}}', None),
        (
            b'[{"method":"a"},{"id":2,"method":"b"}]',
            [BridgeMessage(MessageKind.NOTICE, "", "a"), BridgeMessage(MessageKind.REQUEST, "2", "b")],
        ),
        (b"[]", []),
    ],
)
def test_a_line_is_told_by_what_it_holds(line: bytes, found: list[BridgeMessage] | None) -> None:
    cancelled = [BridgeMessage(MessageKind.NOTICE, "7", "notifications/cancelled")]
    assert messages(line) == (found if found is not None else cancelled)


@pytest.mark.parametrize("line", [b"{", b"\xff", b"1", b"null", b"{}", b'{"id":1}', b'[{"method":"a"},1]', b"[" * 9000])
def test_what_is_no_message_is_none(line: bytes) -> None:
    assert messages(line) is None


@given(
    request_id=st.integers() | st.text(max_size=8),
    body=st.sampled_from(["result", "error", "method"]),
    spaced=st.booleans(),
)
def test_the_beginning_of_a_long_line_says_the_same_as_the_whole(request_id: Any, body: str, spaced: bool) -> None:
    value: Any = "tools/call" if body == "method" else {"id": 99, "method": "inner"}
    message = {"jsonrpc": "2.0", "id": request_id, body: value, "params": {"x": "y" * bridge_messages.SMALL, "id": 98}}
    line = json.dumps(message, separators=None if spaced else (",", ":")).encode() + b"\n"
    short = json.dumps({**message, "params": {}}).encode()
    assert messages(line) == messages(short)
