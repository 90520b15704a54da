"""Chunks become lines and events, wherever they are cut."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.servers.framing import EventStream, Lines, ServerEvent

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
    reader = Lines()
    data = b"".join(line + b"\n" for line in lines) + rest
    assert [line for chunk in cut(data, places) for line in reader.feed(chunk)] == lines
    assert reader.rest() == rest


@pytest.mark.parametrize("size", [1, 3, 100])
def test_a_line_past_the_limit_is_dropped_and_the_next_is_read(size: int) -> None:
    told: list[str] = []
    reader = Lines(limit=5, on_overlong=lambda: told.append("overlong"))
    data = b"short\n" + b"x" * 20 + b"\nnext\n" + b"123456\nlast\n"
    chunks = [data[i : i + size] for i in range(0, len(data), size)]
    assert [line for chunk in chunks for line in reader.feed(chunk)] == [b"short", b"next", b"last"]
    assert told == ["overlong", "overlong"]


def test_a_long_line_in_small_chunks_takes_linear_time() -> None:
    def seconds(chunks: int) -> float:
        reader, chunk = Lines(), b"x" * 1000
        began = time.perf_counter()
        for _ in range(chunks):
            list(reader.feed(chunk))
        assert len(next(reader.feed(b"\n"))) == chunks * 1000
        return time.perf_counter() - began

    seconds(1000)
    # A quadratic reader would take a hundred times as long.
    assert seconds(20_000) < 40 * max(seconds(2000), 0.001)


def events(data: bytes, places: list[int]) -> list[ServerEvent]:
    stream = EventStream()
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
        ServerEvent(kind="endpoint", data=b"/messages?id=1"),
        ServerEvent(kind="message", data=b"", id="7", retry=1.5),
        ServerEvent(kind="message", data=b"one\n two", id="7"),
    ]


@given(st.binary(max_size=200), st.lists(st.integers(0)))
def test_no_bytes_make_the_event_reader_fail(data: bytes, places: list[int]) -> None:
    assert events(data, places) == events(data, [])
