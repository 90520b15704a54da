"""The bridge splits chunks into lines and recognizes messages."""

import itertools
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.cli import bridge_messages
from toolcrib.cli.bridge_messages import BridgeMessage, BridgeReader, MessageKind, messages


@given(data=st.binary(max_size=200).map(lambda data: data.replace(b"\x07", b"\n")), cuts=st.lists(st.integers(0, 200)))
def test_lines_are_the_same_for_any_chunks_of_a_stream(data, cuts):
    lines = BridgeReader()
    found = []
    edges = [0, *sorted(cut for cut in cuts if cut <= len(data)), len(data)]
    for begin, end in itertools.pairwise(edges):
        found += lines.feed(data[begin:end])
    *whole, rest = data.split(b"\n")
    assert found == [line + b"\n" for line in whole if line.strip()]
    assert lines.rest() == rest


def test_the_cost_of_a_line_is_linear():
    def cost(chunks):
        lines, chunk = BridgeReader(), b"x" * 4096
        begun = time.process_time()
        for _ in range(chunks):
            lines.feed(chunk)
        assert len(lines.feed(b"\n")[0]) == chunks * 4096 + 1
        return time.process_time() - begun

    cost(1000)
    assert cost(16_000) < 1.0, "sixteen times the square would be minutes"


REQUEST, NOTICE, ANSWER = MessageKind.REQUEST, MessageKind.NOTICE, MessageKind.ANSWER
CANCELLED = "notifications/cancelled"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (b'{"jsonrpc":"2.0","id":1,"method":"a"}', [BridgeMessage(REQUEST, "1", "a")]),
        (b'{"id":"1","method":"a"}', [BridgeMessage(REQUEST, '"1"', "a")]),
        (b'{"method":"a"}', [BridgeMessage(NOTICE, "", "a")]),
        (b'{"id":1,"result":null}', [BridgeMessage(ANSWER, "1")]),
        (b'{"id":1,"error":{}}', [BridgeMessage(ANSWER, "1")]),
        (b'{"method":"notifications/cancelled","params":{"requestId":7}}', [BridgeMessage(NOTICE, "7", CANCELLED)]),
        (b'[{"method":"a"},{"id":2,"method":"b"}]', [BridgeMessage(NOTICE, "", "a"), BridgeMessage(REQUEST, "2", "b")]),
        (b"[]", []),
        *((line, None) for line in (b"{", b"\xff", b"1", b"null", b"{}", b'{"id":1}')),
        *((line, None) for line in (b'[{"method":"a"},1]', b"[" * 9000)),
    ],
)
def test_messages_are_recognized_by_their_members(line, found):
    assert messages(line) == found


@given(request_id=st.integers() | st.text(max_size=8), body=st.sampled_from(["result", "error", "method"]), spaced=...)
def test_the_start_of_a_long_line_is_enough_to_recognize_it(request_id, body, spaced: bool):
    value = "tools/call" if body == "method" else {"id": 99, "method": "inner"}
    message = {"jsonrpc": "2.0", "id": request_id, body: value, "params": {"x": "y" * bridge_messages.SMALL, "id": 98}}
    line = json.dumps(message, separators=None if spaced else (",", ":")).encode() + b"\n"
    short = json.dumps({**message, "params": {}}).encode()
    assert messages(line) == messages(short)
