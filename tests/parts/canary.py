"""Unique secrets, and the search for them in all output of a run, in any encoding.

`Watch` records the processes meanwhile; `WebWitness` is a server that records its headers.
"""

from __future__ import annotations

import base64
import contextlib
import http.server
import json
import secrets
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, quote_plus, unquote

from parts import leftovers
from parts.daemon import Home


def canary(name: str) -> str:
    """A unique value, with characters that encodings change."""
    return f"{name.replace(' ', '-')}/Zk+{secrets.token_hex(12)}q="


def forms(secret: str) -> dict[str, bytes]:
    """How a secret may look inside other data."""
    raw = secret.encode()
    half = len(raw) // 2
    found = {
        "as it is": raw,
        "its first half": raw[:half],
        "its second half": raw[half:],
        "quoted": quote(secret).encode(),
        "all quoted": quote(secret, safe="").encode(),
        "quoted as a form": quote_plus(secret).encode(),
        "in hex": raw.hex().encode(),
        "in JSON": json.dumps(secret)[1:-1].replace("/", "\\/").encode(),
    }
    for start in range(3):
        # In base64 of a longer text, without the letters at its edges, which depend on their neighbours.
        text = base64.b64encode(b"\0" * start + raw)
        whole = text[(0, 2, 3)[start] : (start + len(raw)) * 8 // 6]
        found |= {f"base64 +{start}": whole, f"base64url +{start}": whole.translate(bytes.maketrans(b"+/", b"-_"))}
    return found


@dataclass
class Trail:
    """All output by place, and the secrets that must not be in it."""

    places: dict[str, bytes] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict)
    lawful: list[tuple[str, str]] = field(default_factory=list)
    """A secret, and the beginning of the name of a place where it may be."""

    def plant(self, name: str, value: str | None = None, *places: str) -> str:
        self.secrets[name] = value or canary(name)
        self.lawful += [(name, place) for place in places]
        return self.secrets[name]

    def keep(self, place: str, data: bytes | str) -> None:
        raw = data.encode(errors="surrogateescape") if isinstance(data, str) else data
        self.places[place] = self.places.get(place, b"") + raw + b"\n"

    def has(self, place: str, name: str) -> bool:
        return self.secrets[name].encode() in self.places[place]

    def found(self) -> list[str]:
        return [
            f"{name} ({form}) in {place}: …{_around(data, needle)}…"
            for name, secret in self.secrets.items()
            for form, needle in forms(secret).items()
            for place, data in self.places.items()
            if needle in data and not any(name == of and place.startswith(at) for of, at in self.lawful)
        ]


def _around(data: bytes, needle: bytes) -> str:
    at = data.index(needle)
    return data[max(0, at - 80) : at + len(needle) + 20].decode(errors="replace")


@dataclass(kw_only=True)
class Watch:
    """The arguments and environments of every process of the home, read repeatedly."""

    home: Home
    words: dict[int, str] = field(default_factory=dict)
    environs: dict[int, bytes] = field(default_factory=dict)

    def look(self) -> None:
        for process in leftovers.living():
            if process.names(self.home.path) and process.words:
                self.words[process.pid] = f"{self.words.get(process.pid, '')} {process.words}"
                self.environs[process.pid] = process.environ

    @contextlib.contextmanager
    def running(self) -> Iterator[Watch]:
        over = threading.Event()

        def watch() -> None:
            while not over.wait(0.05):
                self.look()

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield self
        finally:
            over.set()
            thread.join(60)


class WebWitness(http.server.ThreadingHTTPServer):
    """A server over HTTP inside the test, which records its requests."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.seen: list[tuple[str, dict[str, str]]] = []

    @property
    def port(self) -> int:
        return int(self.server_address[1])


@contextlib.contextmanager
def served() -> Iterator[WebWitness]:
    with WebWitness() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server
        server.shutdown()
        thread.join(60)


_ABOUT = {"capabilities": {"tools": {}}, "serverInfo": {"name": "web", "version": "1"}}
_RESULTS = {
    "initialize": {"protocolVersion": "2025-11-25", **_ABOUT},
    "tools/list": {"tools": [{"name": "note", "inputSchema": {"type": "object"}}]},
    "tools/call": {"content": [{"type": "text", "text": "done"}]},
}


class _Answer(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: WebWitness

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.seen.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
        if self.path.startswith("/echo"):
            self._repeat(body)
            return
        message = json.loads(body)
        if "id" not in message:
            self._send(202, b"")
            return
        result = _RESULTS.get(message["method"])
        answer = {"result": result} if result else {"error": {"code": -32601, "message": "no"}}
        self._send(200, json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}).encode())

    def _repeat(self, body: bytes) -> None:
        """A server that repeats in its error what it got, as it is and in other forms."""
        text = f"{self.path}\n{self.headers}\n{body.decode()}"
        every = [text, unquote(text), quote(text), base64.b64encode(text.encode()).decode()]
        if self.path == "/echo/token":
            self._send(400, json.dumps({"error": "invalid_client", "error_description": " ".join(every)}).encode())
            return
        error = {"code": -32603, "message": " ".join(every)}
        status = 401 if self.path == "/echo/401" else 200
        self._send(status, json.dumps({"jsonrpc": "2.0", "id": json.loads(body).get("id"), "error": error}).encode())

    def do_GET(self) -> None:
        self._send(405, b"")

    do_DELETE = do_GET

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Keeps the stderr of the tests clean."""
