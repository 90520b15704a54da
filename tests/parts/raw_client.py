"""Clients that write every byte themselves, to the daemon's HTTP port and its unix socket, as no SDK would."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import urlsplit

from parts.daemon import Daemon
from toolcrib.servers.model import NAMED_BY

LIMIT = 60.0
MODERN = "2026-07-28"
LEGACY = "2025-11-25"
VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES_KEY = "io.modelcontextprotocol/clientCapabilities"
META = {VERSION_KEY: MODERN, CAPABILITIES_KEY: {}}

Header = tuple[str, str]


def request(method: str, params: Mapping[str, Any] | None = None, *, id: Any = 1, meta: Any = META) -> bytes:
    """A modern request's body."""
    merged = {**(params or {}), **({} if meta is None else {"_meta": meta})}
    return json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": merged}).encode()


def legacy_request(method: str, params: Mapping[str, Any] | None = None, *, id: Any = 1) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params or {}}).encode()


def notice(method: str, params: Mapping[str, Any] | None = None) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "method": method, "params": params or {}}).encode()


def initialize(capabilities: Mapping[str, Any]) -> bytes:
    about = {"protocolVersion": LEGACY, "capabilities": capabilities, "clientInfo": {"name": "t", "version": "1"}}
    return legacy_request("initialize", about)


INITIALIZE = initialize({})


@dataclass(frozen=True, kw_only=True)
class RawAnswer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> Any:
        return self.json["error"]

    @property
    def message(self) -> bytes:
        """The JSON-RPC message: the body, or the last event of a stream."""
        if not self.headers.get("content-type", "").startswith("text/event-stream"):
            return self.body
        return [line[6:] for line in self.body.split(b"\n") if line.startswith(b"data: ")][-1]

    @property
    def result(self) -> Any:
        message = json.loads(self.message)
        assert "result" in message, message
        return message["result"]


class _Stream:
    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._file = connected.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def line(self) -> bytes:
        if line := self._file.readline():
            return line
        raise ConnectionError("closed without an answer")


class RawConnection(_Stream):
    """One TCP connection, kept open from request to request."""

    def __init__(self, port: int) -> None:
        super().__init__(socket.create_connection(("127.0.0.1", port), timeout=LIMIT))

    def head(self) -> tuple[int, dict[str, str]]:
        status = self.line()
        headers: dict[str, str] = {}
        while (line := self._file.readline().rstrip(b"\r\n").decode("latin-1")) != "":
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        return int(status.split()[1]), headers

    def answer(self) -> RawAnswer:
        status, headers = self.head()
        if headers.get("transfer-encoding") == "chunked":
            body = b"".join(iter(self.chunk, b""))
        else:
            body = self._file.read(int(headers.get("content-length", "0")))
        return RawAnswer(status=status, headers=headers, body=body)

    def chunk(self) -> bytes:
        """The next part of a streamed answer; empty at its end."""
        size = int(self._file.readline() or b"0", 16)
        data = self._file.read(size)
        self._file.readline()
        return data

    def event(self) -> Any:
        """The next message on a stream of events; keep-alive comments are skipped."""
        while chunk := self.chunk():
            for line in chunk.split(b"\n"):
                if line.startswith(b"data: "):
                    return json.loads(line[6:])
        raise ConnectionError("the stream has ended")

    def messages(self) -> Iterator[Any]:
        """Each message of an answer when it arrives."""
        _, headers = self.head()
        if headers.get("content-type", "").startswith("text/event-stream"):
            while chunk := self.chunk():
                yield from (json.loads(line[6:]) for line in chunk.split(b"\n") if line.startswith(b"data: "))
        elif size := int(headers.get("content-length", "0")):
            yield json.loads(self._file.read(size))

    def is_closed(self) -> bool:
        """Waits for the next byte or the end of the connection."""
        try:
            return self._file.read(1) == b""
        except ConnectionResetError:
            return True


class Endpoint:
    """The daemon's `/mcp`, as a client with the owner's token reaches it."""

    def __init__(self, daemon: Daemon) -> None:
        self.port = urlsplit(daemon.endpoint).port or 0
        self.token = daemon.token
        self.host: Header = ("Host", f"127.0.0.1:{self.port}")
        self.auth: Header = ("Authorization", f"Bearer {daemon.token}")
        self.kinds: list[Header] = [
            ("Content-Type", "application/json"),
            ("Accept", "application/json, text/event-stream"),
        ]

    def connect(self) -> RawConnection:
        return RawConnection(self.port)

    def usual(self, body: bytes, *more: Header) -> list[Header]:
        return [self.host, self.auth, *self.kinds, ("Content-Length", str(len(body))), *more]

    def modern_headers(self, method: str, name: str | None = None) -> list[Header]:
        named = [] if name is None else [("Mcp-Name", name)]
        return [("MCP-Protocol-Version", MODERN), ("Mcp-Method", method), *named]

    def raw(self, headers: Sequence[Header], body: bytes = b"", *, verb: str = "POST", target: str = "/mcp") -> bytes:
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
        return f"{verb} {target} HTTP/1.1\r\n{lines}\r\n".encode("latin-1") + body

    def exchange(self, sent: bytes) -> RawAnswer:
        """One request on its own connection."""
        with self.connect() as connection:
            connection.send(sent)
            return connection.answer()

    def ask(self, headers: Sequence[Header], body: bytes = b"", **line: str) -> RawAnswer:
        return self.exchange(self.raw(headers, body, **line))

    def modern_bytes(
        self, method: str, params: Mapping[str, Any] | None = None, *, id: Any = 1, meta: Any = META
    ) -> bytes:
        body = request(method, params, id=id, meta=meta)
        named = (params or {}).get(NAMED_BY.get(method, ""))
        return self.raw(self.usual(body, *self.modern_headers(method, named)), body)

    def modern(self, method: str, params: Mapping[str, Any] | None = None, *, id: Any = 1) -> RawAnswer:
        return self.exchange(self.modern_bytes(method, params, id=id))

    def call(self, tool: str, arguments: Mapping[str, Any] | None = None, *, id: Any = 1) -> RawAnswer:
        return self.modern("tools/call", {"name": tool, "arguments": arguments or {}}, id=id)

    def legacy_bytes(self, session: str, body: bytes) -> bytes:
        return self.raw(self.usual(body, ("Mcp-Session-Id", session), ("MCP-Protocol-Version", LEGACY)), body)

    def begin(self, body: bytes = INITIALIZE) -> str:
        """A legacy session's id."""
        answer = self.ask(self.usual(body), body)
        assert answer.status == 200, answer
        session = answer.headers["mcp-session-id"]
        assert self.exchange(self.legacy_bytes(session, notice("notifications/initialized"))).status == 202
        return session

    def legacy(self, session: str, method: str, params: Mapping[str, Any] | None = None, *, id: Any = 1) -> RawAnswer:
        return self.exchange(self.legacy_bytes(session, legacy_request(method, params, id=id)))


class SocketClient(_Stream):
    """The daemon's unix socket, line by line."""

    def __init__(self, daemon: Daemon, *, bridge: bool = True) -> None:
        connected = socket.socket(socket.AF_UNIX)
        connected.settimeout(LIMIT)
        connected.connect(str(daemon.home.socket))
        super().__init__(connected)
        if bridge:
            self.send(notice("toolcrib/bridge", {"root": str(daemon.home.project), "conversation": "test"}))

    def send(self, line: bytes) -> None:
        super().send(line + b"\n")

    def message(self) -> Any:
        return json.loads(self.line())

    def answer_to(self, id: Any) -> Any:
        """The answer to this request; other messages before it are skipped."""
        while True:
            message = self.message()
            if message.get("id") == id and "method" not in message:
                return message

    def ask(self, body: bytes) -> Any:
        self.send(body)
        return self.answer_to(json.loads(body)["id"])
