"""A scripted model as a running HTTP service.

In: a provider's wire format and the steps. Out: its base URL, and every request that came, to assert on what the model
was given. Answers are streamed piece by piece. It runs in threads of the test's own process, so a step may do or wait
for anything in the test.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

from parts.models.conversation import Conversation, Offered, Offering, Refusal, Turn, Usage
from parts.models.script import Script, Step


class Provider(Protocol):
    """One provider's wire format."""

    def is_turn(self, path: str) -> bool:
        """Whether a request to this path asks the model to go on."""
        ...

    def read(self, body: dict[str, Any]) -> Conversation: ...

    def write(self, turn: Turn, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        """The answer as the messages of a stream."""
        ...

    def whole(self, turn: Turn, path: str, body: dict[str, Any]) -> dict[str, Any] | None:
        """The answer in one piece, where the request wants it so."""
        ...

    def refusal(self, status: int) -> dict[str, Any]: ...


@dataclass(frozen=True, kw_only=True)
class Model:
    """What a test knows of the model: where it is, and what it was given."""

    url: str
    bodies: list[dict[str, Any]] = field(default_factory=list)
    """One for each request, as it came."""
    conversations: list[Conversation] = field(default_factory=list)
    """The same, read."""
    told: list[Usage] = field(default_factory=list)
    """What each answer was said to cost."""
    faults: list[Exception] = field(default_factory=list)
    """What went wrong in the script itself."""

    @property
    def offered(self) -> tuple[Offered, ...]:
        """The tools of the first request that offered any."""
        return next((conversation.tools for conversation in self.conversations if conversation.tools), ())

    @property
    def offering(self) -> Offering:
        return next(
            (conversation.offering for conversation in self.conversations if conversation.tools), Offering.PLAIN
        )

    @property
    def found(self) -> set[str]:
        """The tools that searches brought, by name."""
        return {tool.name for conversation in self.conversations for tool in conversation.found}

    @property
    def results(self) -> tuple[str, ...]:
        """The tool results that the model was given in all, one for each call that was carried out."""
        assert not self.faults, self.faults
        return max((conversation.results for conversation in self.conversations), key=len, default=())


@contextlib.contextmanager
def serving(provider: Provider, steps: Sequence[Step], *, last_words: str = "Done.") -> Iterator[Model]:
    with _Server(provider, Script(steps, last_words)) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server.model
        finally:
            for step in steps:
                if step.hold is not None:
                    step.hold.release()
            server.shutdown()
            thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, provider: Provider, script: Script) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.provider = provider
        self.script = script
        self.model = Model(url=f"http://127.0.0.1:{self.server_address[1]}")

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that was ended in mid-request."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if not self.server.provider.is_turn(self.path):
            self.do_GET()
            return
        body: dict[str, Any] = json.loads(raw)
        model = self.server.model
        model.bodies.append(body)
        try:
            conversation = self.server.provider.read(body)
            model.conversations.append(conversation)
            turn = self.server.script.next(conversation)
        except Exception as fault:
            model.faults.append(fault)
            self._answer(400, {"error": {"type": "invalid_request_error", "message": str(fault)}})
            return
        if isinstance(turn, Refusal):
            self._answer(turn.status, self.server.provider.refusal(turn.status))
            return
        model.told.append(turn.usage)
        self._tell(turn, body)

    def _tell(self, turn: Turn, body: dict[str, Any]) -> None:
        provider = self.server.provider
        # A client that was ended in the meantime wants no answer.
        with contextlib.suppress(ConnectionError):
            if (whole := provider.whole(turn, self.path, body)) is not None:
                self._answer(200, whole)
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            messages = provider.write(turn, self.path, body)
            for number, message in enumerate(messages):
                # In the middle, unless it is all said at once.
                if turn.hold is not None and number == min(1, len(messages) - 1):
                    turn.hold.stand()
                self._chunk(event(message))
            self._chunk(b"")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def do_GET(self) -> None:
        """Lists of models, counts of tokens and the like: a client gets on without them."""
        self._answer(404, {"error": {"message": "nothing here"}})

    do_HEAD = do_GET

    def _answer(self, status: int, content: dict[str, Any]) -> None:
        data = json.dumps(content).encode()
        with contextlib.suppress(ConnectionError):
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            if status >= 400:
                self.send_header("Retry-After", "0")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """The test says what it saw."""


def event(message: dict[str, Any]) -> bytes:
    """A server-sent event; where a message has a type, the event is named so."""
    name = f"event: {message['type']}\n" if "type" in message else ""
    return f"{name}data: {json.dumps(message)}\n\n".encode()


def pieces(text: str, most: int = 4) -> list[str]:
    """A text as a stream brings it: in up to so many parts, none of them empty."""
    size = max(1, -(-len(text) // most))
    return [text[start : start + size] for start in range(0, len(text), size)]
