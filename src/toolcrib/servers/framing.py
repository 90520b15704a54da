"""Chunks of bytes → whole lines → server-sent events, in time linear in the bytes.

In: chunks as a pipe or socket hands them out. Out: lines (`Lines`), events (`EventStream`). `stdio` reads lines,
`http` and `sse` read events. A line that grows past the limit is dropped up to its end and said so once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

LONGEST_LINE = 256 * 1024 * 1024


class Lines:
    """Collects chunks and joins them once per line, however many chunks a line came in."""

    def __init__(self, *, limit: int = LONGEST_LINE, on_overlong: Callable[[], None] = lambda: None) -> None:
        self._limit = limit
        self._on_overlong = on_overlong
        self._parts: list[bytes] = []
        self._size = 0
        self._dropping = False

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:
            line = self._finish(chunk[start:end])
            start = end + 1
            if line is not None:
                yield line
        if start < len(chunk):
            self._keep(chunk[start:])

    def rest(self) -> bytes:
        """What came after the last line end."""
        rest = b"".join(self._parts)
        self._parts, self._size, self._dropping = [], 0, False
        return rest

    def _keep(self, part: bytes) -> None:
        if self._dropping:
            return
        self._size += len(part)
        if self._size > self._limit:
            self._dropping = True
            self._parts = []
            self._on_overlong()
        else:
            self._parts.append(part)

    def _finish(self, last: bytes) -> bytes | None:
        if not self._parts and not self._dropping and len(last) <= self._limit:
            self._size = 0
            return last
        self._keep(last)
        dropped = self._dropping
        line = self.rest()
        return None if dropped else line


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerEvent:
    """One server-sent event."""

    kind: str
    data: bytes
    id: str | None = None
    """The last id the stream has shown so far."""
    retry: float | None = None
    """Seconds, where the event said so."""


class EventStream:
    """The text/event-stream format, as far as MCP uses it."""

    def __init__(self, *, limit: int = LONGEST_LINE) -> None:
        self._lines = Lines(limit=limit)
        self._after_return = False
        self._first = True
        self._kind = ""
        self._data: list[bytes] = []
        self._id: str | None = None
        self._retry: float | None = None

    def feed(self, chunk: bytes) -> Iterator[ServerEvent]:
        for line in self._lines.feed(self._unified(chunk)):
            if line:
                self._field(line)
            elif (event := self._dispatch()) is not None:
                yield event

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
            self._data.append(value)
        elif name == b"event":
            self._kind = value.decode(errors="replace")
        elif name == b"id" and b"\0" not in value:
            self._id = value.decode(errors="replace")
        elif name == b"retry" and value.isdigit() and len(value) < 10:
            self._retry = int(value) / 1000

    def _dispatch(self) -> ServerEvent | None:
        kind, data, retry = self._kind or "message", self._data, self._retry
        self._kind, self._data, self._retry = "", [], None
        if not data and retry is None:
            return None
        return ServerEvent(kind=kind, data=b"\n".join(data), id=self._id, retry=retry)
