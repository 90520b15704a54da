"""HTTP/1.1 on one connection, as much of it as the clients of models speak, and quick.

In: a socket. Out: the requests on it, one after the other, and a way to answer each. `server` has one for each
connection. With the standard library's own server an answer takes a quarter longer.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, BinaryIO

MOST_HEADERS = 200
LONGEST_LINE = 65536
PHRASES = {int(status): status.phrase for status in HTTPStatus}


@dataclass(frozen=True, kw_only=True)
class Asked:
    method: str
    path: str
    headers: Mapping[str, str]
    """By names in lower case."""
    content: bytes


class Line:
    def __init__(self, connection: socket.socket) -> None:
        # What is said is said at once: no waiting for more of it.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connection
        self._in = connection.makefile("rb")

    def close(self) -> None:
        self._in.close()

    def next(self) -> Asked | None:
        """The next request; None when the client is gone, or says what is no HTTP."""
        first = self._in.readline(LONGEST_LINE).split()
        if len(first) != 3:
            return None
        method, path, _ = (word.decode("latin-1") for word in first)
        headers = _headers(self._in)
        if headers.get("expect", "").lower() == "100-continue":
            self._socket.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        return Asked(method=method, path=path, headers=headers, content=_content(self._in, headers))

    def write(self, data: bytes) -> None:
        self._socket.sendall(data)


def response(status: int, content: Mapping[str, Any], more: Mapping[str, str]) -> bytes:
    """An answer in one piece."""
    data = json.dumps(content).encode()
    return _head(status, {"Content-Type": "application/json", "Content-Length": str(len(data)), **more}) + data


def stream_head() -> bytes:
    return _head(200, {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"})


def chunk(data: bytes) -> bytes:
    """A part of a stream; an empty one is its end."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def _headers(stream: BinaryIO) -> dict[str, str]:
    headers: dict[str, str] = {}
    for _ in range(MOST_HEADERS):
        line = stream.readline(LONGEST_LINE)
        if line in (b"\r\n", b"\n", b""):
            break
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip()
    return headers


def _content(stream: BinaryIO, headers: Mapping[str, str]) -> bytes:
    if headers.get("transfer-encoding", "").lower() != "chunked":
        return stream.read(int(headers.get("content-length", 0)))
    parts: list[bytes] = []
    while size := int(stream.readline(LONGEST_LINE).partition(b";")[0] or b"0", 16):
        parts.append(stream.read(size))
        stream.readline(LONGEST_LINE)
    _headers(stream)
    return b"".join(parts)


def _head(status: int, headers: Mapping[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} {PHRASES.get(status, 'As Scripted')}", *(f"{k}: {v}" for k, v in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")
