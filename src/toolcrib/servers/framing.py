"""Chunks of bytes → whole lines → server-sent events, in time linear in the bytes.

In: chunks as a pipe or socket hands them out. Out: lines (`LineSplitter`), events (`SseParser`). `stdio` reads lines,
`http` and `sse` read events. A line past the limit is dropped up to its end, and what it began and ended with is said;
an event past the limit raises `TooLarge`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NoReturn, Self

EDGE = 300
"""How much of either end of a line that was too long is still shown."""
_LONGEST_ID = 1024


class TooLarge(OSError):
    """A server sent more than is taken from it. The text says what it was and which setting allows more."""

    @classmethod
    def message(cls, limit: int) -> Self:
        size = round(limit / 1024 / 1024, 3)
        return cls(f"It sent a message of more than {size:g} MB. Raise its max_message_mb if it should be taken.")


class LineSplitter:
    """Collects chunks and copies them once per line, however many chunks a line came in."""

    def __init__(self, *, limit: int, on_overlong: Callable[[bytes], None] = lambda edges: None) -> None:
        """`on_overlong` gets the beginning and the end of a line that was dropped."""
        self._limit = limit
        self._on_overlong = on_overlong
        self._kept = bytearray()
        self._tail = b""
        self.dropping = False

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:
            line: bytes | None = chunk[start:end]
            if self._kept or self.dropping or end - start > self._limit:
                line = self._finish(chunk[start:end])
            start = end + 1
            if line is not None:
                yield line
        if start < len(chunk):
            self._keep(chunk[start:])

    def rest(self) -> bytes:
        """What came after the last line end."""
        rest = bytes(self._kept)
        self._kept, self._tail, self.dropping = bytearray(), b"", False
        return rest

    def _keep(self, part: bytes) -> None:
        if not self.dropping:
            self._kept += part
            if len(self._kept) <= self._limit:
                return
            self.dropping = True
            part = bytes(self._kept[-EDGE:])
            self._kept = self._kept[:EDGE]
        self._tail = (self._tail + part[-EDGE:])[-EDGE:]

    def _finish(self, last: bytes) -> bytes | None:
        self._keep(last)
        if not self.dropping:
            return self.rest()
        tail = self._tail
        self._on_overlong(self.rest() + b"\n" + tail)
        return None


@dataclass(frozen=True, kw_only=True, slots=True)
class SseEvent:
    """One server-sent event."""

    kind: str
    data: bytes
    id: str | None = None
    """The last id the stream has shown so far."""
    retry: float | None = None
    """Seconds, where the event said so."""


class SseParser:
    """The text/event-stream format, as far as MCP uses it. Raises `TooLarge`."""

    def __init__(self, *, limit: int) -> None:
        self._limit = limit
        self._lines = LineSplitter(limit=limit, on_overlong=self._refuse)
        self._after_return = False
        self._first = True
        self._kind = ""
        self._data: bytearray | None = None
        self._id: str | None = None
        self._retry: float | None = None

    def feed(self, chunk: bytes) -> Iterator[SseEvent]:
        for line in self._lines.feed(self._unified(chunk)):
            if line:
                self._field(line)
            elif (event := self._dispatch()) is not None:
                yield event
        if self._lines.dropping:
            self._refuse()

    def _refuse(self, _edges: bytes = b"") -> NoReturn:
        raise TooLarge.message(self._limit)

    def _unified(self, chunk: bytes) -> bytes:
        """CR LF and CR as LF, also where a pair falls into two chunks."""
        if self._first and chunk:
            self._first = False
            chunk = chunk.removeprefix(b"\xef\xbb\xbf")
        if self._after_return and chunk:
            self._after_return = False
            chunk = chunk.removeprefix(b"\n")
        if b"\r" not in chunk:
            return chunk
        self._after_return = chunk.endswith(b"\r")
        return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            if self._data is None:
                self._data = bytearray(value)
            else:
                self._data += b"\n" + value
                if len(self._data) > self._limit:
                    self._refuse()
        elif name == b"event":
            self._kind = value.decode(errors="replace")
        elif name == b"id" and b"\0" not in value and len(value) <= _LONGEST_ID:
            self._id = value.decode(errors="replace")
        elif name == b"retry" and value.isdigit() and len(value) < 10:
            self._retry = int(value) / 1000

    def _dispatch(self) -> SseEvent | None:
        kind, data, retry = self._kind or "message", self._data, self._retry
        self._kind, self._data, self._retry = "", None, None
        if data is None and retry is None:
            return None
        return SseEvent(kind=kind, data=bytes(data or b""), id=self._id, retry=retry)
