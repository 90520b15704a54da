"""A scripted model as a running HTTP service.

In: a provider's wire format and the steps. Out: its base URL, and every request that came, to assert on what the model
was given. It runs in threads of the test's own process, so a step may do or wait for anything in the test.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

from parts.models.script import Call, Conversation, Offered, Script, Turn


class Provider(Protocol):
    """One provider's wire format."""

    def is_turn(self, path: str) -> bool:
        """Whether a request to this path asks the model to go on."""
        ...

    def read(self, body: dict[str, Any]) -> Conversation: ...

    def write(self, turn: Turn, path: str, body: dict[str, Any]) -> tuple[str, bytes]:
        """The answer's content type and bytes."""
        ...


@dataclass(frozen=True, kw_only=True)
class Model:
    """What a test knows of the model: where it is, and what it was given."""

    url: str
    conversations: list[Conversation] = field(default_factory=list)
    """One for each request, as it came."""
    faults: list[Exception] = field(default_factory=list)
    """What went wrong in the script itself."""

    @property
    def offered(self) -> tuple[Offered, ...]:
        """The tools of the first request that offered any."""
        return next((conversation.tools for conversation in self.conversations if conversation.tools), ())

    @property
    def results(self) -> tuple[str, ...]:
        """The tool results that the model was given in all, one for each step that was carried out."""
        assert not self.faults, self.faults
        return max((conversation.results for conversation in self.conversations), key=len, default=())


@contextlib.contextmanager
def serving(provider: Provider, steps: Sequence[Call], *, last_words: str = "Done.") -> Iterator[Model]:
    with _Server(provider, Script(steps, last_words)) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server.model
        finally:
            server.shutdown()
            thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, provider: Provider, script: Script) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.provider = provider
        self.script = script
        self.model = Model(url=f"http://127.0.0.1:{self.server_address[1]}")


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if not self.server.provider.is_turn(self.path):
            self.do_GET()
            return
        body: dict[str, Any] = json.loads(raw)
        conversation = self.server.provider.read(body)
        self.server.model.conversations.append(conversation)
        try:
            turn = self.server.script.next(conversation)
            kind, data = self.server.provider.write(turn, self.path, body)
        except Exception as fault:
            self.server.model.faults.append(fault)
            self._answer(400, "application/json", json.dumps({"error": {"message": str(fault)}}).encode())
            return
        self._answer(200, kind, data)

    def do_GET(self) -> None:
        """Lists of models, counts of tokens and the like: a client gets on without them."""
        self._answer(404, "application/json", b'{"error":{"message":"nothing here"}}')

    do_HEAD = do_GET

    def _answer(self, status: int, kind: str, data: bytes) -> None:
        # A client that was ended in the meantime wants no answer.
        with contextlib.suppress(ConnectionError):
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """The test says what it saw."""


def events(*messages: dict[str, Any], named: bool) -> bytes:
    """Messages as a stream of server-sent events; `named`: each also says its type in an `event:` line."""
    lines = []
    for message in messages:
        if named:
            lines.append(f"event: {message['type']}\n")
        lines.append(f"data: {json.dumps(message)}\n\n")
    return "".join(lines).encode()
