"""Chunks become lines and events, wherever they are cut."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.servers.wire import EDGE, LineSplitter, SseEvent, SseParser, TooLarge

pytestmark = pytest.mark.req("BNS-2", "ENG-1")


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


@given(
    st.lists(st.binary(max_size=20).map(lambda b: b.replace(b"\n", b""))),
    st.binary(max_size=9),
    st.lists(st.integers(0)),
)
def test_lines_come_out_whole_however_they_were_cut(lines: list[bytes], rest: bytes, places: list[int]) -> None:
    rest = rest.replace(b"\n", b"")
    reader = LineSplitter(limit=1_000_000)
    data = b"".join(line + b"\n" for line in lines) + rest
    assert [line for chunk in cut(data, places) for line in reader.feed(chunk)] == lines
    assert reader.rest() == rest


@pytest.mark.parametrize("size", [1, 3, 100])
def test_a_line_past_the_limit_is_dropped_and_the_next_is_read(size: int) -> None:
    told: list[bytes] = []
    reader = LineSplitter(limit=5, on_overlong=told.append)
    long = b"begin" + b"x" * 1000 + b"end"
    data = b"short\n" + long + b"\nnext\n" + b"123456\nlast\n"
    chunks = [data[i : i + size] for i in range(0, len(data), size)]
    assert [line for chunk in chunks for line in reader.feed(chunk)] == [b"short", b"next", b"last"]
    assert told[0].startswith(b"begin")
    assert told[0].endswith(b"end")
    assert all(len(edges) <= 2 * EDGE + 1 for edges in told)
    assert told[1].endswith(b"123456")


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("event", [b"data: " + b"x" * 200, b"data: x\n" * 100, b": " + b"x" * 200, b"data:\n" * 200])
@pytest.mark.req("BNS-10")
def test_an_event_past_the_limit_is_refused_however_it_is_made_up(event: bytes, size: int) -> None:
    stream = SseParser(limit=100)
    data = b"data: fine\n\n" * 50 + event
    seen: list[SseEvent] = []
    with pytest.raises(TooLarge, match="max_message_mb"):
        for start in range(0, len(data), size):
            seen.extend(stream.feed(data[start : start + size]))
    assert len(seen) == 50


def test_a_long_line_in_small_chunks_takes_linear_time() -> None:
    reader, chunk = LineSplitter(limit=1_000_000_000), b"x" * 1000
    began = time.process_time()
    for _ in range(200_000):
        list(reader.feed(chunk))
    assert len(next(reader.feed(b"\n"))) == 200_000_000
    assert time.process_time() - began < 60, "a reader that copied what it has would move twenty terabytes"


def events(data: bytes, places: list[int]) -> list[SseEvent]:
    stream = SseParser(limit=1_000_000)
    return [event for chunk in cut(data, places) for event in stream.feed(chunk)]


@given(st.lists(st.integers(0)), st.sampled_from([b"\n", b"\r\n", b"\r"]))
def test_events_are_read_with_any_line_end_however_they_were_cut(places: list[int], end: bytes) -> None:
    lines = [
        b"\xef\xbb\xbf: a comment",
        b"event: endpoint",
        b"data: /messages?id=1",
        b"",
        b"id: 7",
        b"retry: 1500",
        b"data",
        b"",
        b"data: one",
        b"data:  two",
        b"unknown: field",
        b"",
        b"event: nothing",
        b"",
        b"data: never ended",
    ]
    assert events(end.join(lines), places) == [
        SseEvent(kind="endpoint", data=b"/messages?id=1"),
        SseEvent(kind="message", data=b"", id="7", retry=1.5),
        SseEvent(kind="message", data=b"one\n two", id="7"),
    ]


@given(st.binary(max_size=200), st.lists(st.integers(0)))
def test_no_bytes_make_the_event_reader_fail(data: bytes, places: list[int]) -> None:
    assert events(data, places) == events(data, [])
