"""The HTTP server of a scripted model.

In: a provider's wire format, or its name, and the steps. Out: the `ScriptedModel`: its base URL, and every request, for
assertions. It runs in threads of the test's own process, so a step may do or wait for anything in the test. A request
that does not match the script fails the test at the end of `scripted`.
"""

from __future__ import annotations

import contextlib
import http.client
import http.server
import json
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from toolcrib.testing.anthropic import Anthropic
from toolcrib.testing.conversation import (
    Hold,
    ModelTool,
    ModelTurn,
    Refusal,
    RequestConversation,
    ToolOffering,
    TurnUsage,
)
from toolcrib.testing.google import Google
from toolcrib.testing.openai_chat import OpenAIChat, OpenRouter
from toolcrib.testing.openai_responses import OpenAIResponses
from toolcrib.testing.script import Script, Step, Toolless
from toolcrib.testing.wire import Message, WireFormat, event

CLOSE_LIMIT = 5.0
"""Seconds to wait for each connection when the model stops."""


class ScriptMismatch(AssertionError):
    """A request did not match the script, or violates the rules of the provider's service."""


@dataclass(frozen=True, kw_only=True)
class RecordedRequest:
    """One request to the model."""

    path: str
    headers: Mapping[str, str]
    """With lower-case names."""
    body: dict[str, Any]
    """As received."""
    conversation: RequestConversation | None
    """The parsed body, or None if it is invalid."""


@dataclass(frozen=True, kw_only=True)
class ScriptedModel:
    """A running model: its URL and its requests."""

    url: str
    """The base URL for the provider's clients."""
    script: Script = field(repr=False)
    requests: list[RecordedRequest] = field(default_factory=list)
    usages: list[TurnUsage] = field(default_factory=list)
    """The usage reported with each answer."""
    faults: list[Exception] = field(default_factory=list)
    """The mismatches so far."""

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [request.body for request in self.requests]

    @property
    def conversations(self) -> list[RequestConversation]:
        return [request.conversation for request in self.requests if request.conversation is not None]

    @property
    def offered(self) -> tuple[ModelTool, ...]:
        """The tools of the first request that offered any."""
        return next((conversation.tools for conversation in self.conversations if conversation.tools), ())

    @property
    def offering(self) -> ToolOffering:
        return next(
            (conversation.offering for conversation in self.conversations if conversation.tools), ToolOffering.PLAIN
        )

    @property
    def found(self) -> set[str]:
        """The names of the tools that searches found."""
        return {tool.name for conversation in self.conversations for tool in conversation.found}

    @property
    def results(self) -> tuple[str, ...]:
        """All tool results that the model got, one for each completed call."""
        self.check()
        return max((conversation.results for conversation in self.conversations), key=len, default=())

    @property
    def left(self) -> tuple[Step, ...]:
        """The steps that were not reached."""
        return self.script.left

    def check(self) -> None:
        """Raises `ScriptMismatch` if a request did not match."""
        if self.faults:
            raise ScriptMismatch(str(self.faults[0])) from self.faults[0]


@dataclass(frozen=True, kw_only=True)
class HttpAnswer:
    """Complete before the first byte is sent, so that a failure to build it can become a refusal."""

    headers: Mapping[str, str]
    first: bytes
    """The bytes before the hold."""
    hold: Hold | None
    rest: bytes
    cut: bool
    """Whether to close the connection in the middle of the answer."""


def make_answer(provider: WireFormat, turn: ModelTurn, path: str, body: dict[str, Any]) -> HttpAnswer | Refusal:
    whole = provider.whole(turn, path, body)
    if whole is None:
        return _streamed(turn, _messages(provider, turn, path, body))
    if turn.cut is not None and turn.cut.status and not whole.get("error"):
        return Refusal(status=turn.cut.status, message="interrupted, as scripted")
    data = json.dumps(whole).encode()
    cut = turn.cut is not None and not turn.cut.status
    headers = {"Content-Type": "application/json", "Content-Length": str(len(data))}
    return HttpAnswer(headers=headers, first=b"", hold=turn.hold, rest=data[:-1] if cut else data, cut=cut)


def _messages(provider: WireFormat, turn: ModelTurn, path: str, body: dict[str, Any]) -> list[Message]:
    messages = list(provider.write(turn, path, body))[: turn.cut_after]
    if turn.cut is None:
        return messages
    begun = messages[: len(messages) // 2]
    return [*begun, provider.interruption(turn.cut.status, turn, body)] if turn.cut.status else begun


def _streamed(turn: ModelTurn, messages: list[Message]) -> HttpAnswer:
    chunks = [_chunk(event(message)) for message in messages]
    cut = turn.cut is not None and not turn.cut.status
    # Hold after the first chunk, unless there is only one.
    at = min(1, len(chunks) - 1)
    return HttpAnswer(
        headers={"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"},
        first=b"".join(chunks[:at]),
        hold=turn.hold,
        rest=b"".join([*chunks[at:], b"" if cut else _chunk(b"")]),
        cut=cut,
    )


def _chunk(data: bytes) -> bytes:
    """A chunk of a chunked body; an empty one ends it."""
    return b"%x\r\n%b\r\n" % (len(data), data)


@contextlib.contextmanager
def serving(
    provider: WireFormat, steps: Sequence[Step], *, last_words: str = "Done.", toolless: Toolless = Toolless.ASIDE
) -> Iterator[ScriptedModel]:
    with _Server(provider, Script(steps, last_words, toolless)) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, name="scripted model")
        thread.start()
        try:
            yield server.model
        finally:
            for step in steps:
                if step.hold is not None:
                    step.hold.release()
            server.shutdown()
            thread.join()


class _Server(socketserver.TCPServer):
    """Not `http.server.HTTPServer`, which looks up its own host name first; that may take seconds."""

    # Many runs may start at once; one that doesn't fit in the queue would wait for a second.
    request_queue_size = 128

    def __init__(self, provider: WireFormat, script: Script) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.provider = provider
        self.model = ScriptedModel(url=f"http://127.0.0.1:{self.server_address[1]}{provider.base}", script=script)
        self._open: dict[threading.Thread, socket.socket] = {}

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open = {thread: connection for thread, connection in self._open.items() if thread.is_alive()}
        thread = threading.Thread(target=self._serve, args=(request, client_address), daemon=True)
        self._open[thread] = request
        thread.start()

    def _serve(self, request: socket.socket, client_address: Any) -> None:
        # Clients that have disconnected, or don't use HTTP, get no answer.
        with contextlib.suppress(OSError, ValueError, http.client.HTTPException):
            self.finish_request(request, client_address)
        self.shutdown_request(request)

    def server_close(self) -> None:
        super().server_close()
        for thread, connection in self._open.items():
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            thread.join(CLOSE_LIMIT)


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_HEAD(self) -> None:
        self._send_headers(404, {})
        self.close_connection = True

    def do_GET(self) -> None:
        self._refuse(Refusal(status=404, message=f"There is nothing at {self.path}."))

    def do_POST(self) -> None:
        content = self._content()
        if not self.server.provider.is_turn(self.path):
            # Token counts and the like: clients work without them.
            self.do_GET()
            return
        answer = self._answer(content)
        if isinstance(answer, Refusal):
            self._refuse(answer)
            return
        self._send_headers(200, answer.headers)
        self.wfile.write(answer.first)
        if answer.hold is not None:
            answer.hold.wait()
        self.wfile.write(answer.rest)
        self.close_connection |= answer.cut

    def _refuse(self, refusal: Refusal) -> None:
        content = self.server.provider.refusal(refusal.status, refusal.message, refusal.retry_after)
        data = json.dumps(content).encode()
        kind = {"Content-Type": "application/json", "Content-Length": str(len(data))}
        self._send_headers(refusal.status, {**kind, **retry_header(refusal)})
        self.wfile.write(data)

    def _send_headers(self, status: int, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def _content(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts: list[bytes] = []
        while size := int(self.rfile.readline().partition(b";")[0] or b"0", 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        http.client.parse_headers(self.rfile)
        return b"".join(parts)

    def _answer(self, content: bytes) -> HttpAnswer | Refusal:
        provider, model = self.server.provider, self.server.model
        body: dict[str, Any] = {}
        conversation: RequestConversation | None = None
        try:
            body = json.loads(content)
            conversation = provider.read(body)
            turn = model.script.next(conversation)
            if isinstance(turn, Refusal):
                return turn
            made = make_answer(provider, turn, self.path, body)
            model.usages.append(turn.usage)
            return made
        except Exception as fault:
            model.faults.append(fault)
            return Refusal(status=400, message=str(fault))
        finally:
            headers = {name.lower(): value for name, value in self.headers.items()}
            model.requests.append(
                RecordedRequest(path=self.path, headers=headers, body=body, conversation=conversation)
            )

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing, because `ScriptedModel.requests` has everything."""


def retry_header(refusal: Refusal) -> dict[str, str]:
    return {} if refusal.retry_after is None else {"Retry-After": f"{refusal.retry_after:g}"}


PROVIDERS: Mapping[str, Callable[[], WireFormat]] = {
    "anthropic": Anthropic,
    "google": Google,
    "openai": OpenAIChat,
    "openai-responses": OpenAIResponses,
    "openrouter": OpenRouter,
}


@contextlib.contextmanager
def scripted(provider: str, steps: Sequence[Step], *, last_words: str = "Done.") -> Iterator[ScriptedModel]:
    """A model that follows the steps, and then answers every request with its last words."""
    if provider not in PROVIDERS:
        raise ValueError(f"Unknown provider {provider!r}. Use one of {', '.join(PROVIDERS)}.")
    with serving(PROVIDERS[provider](), steps, last_words=last_words, toolless=Toolless.TURN) as model:
        try:
            yield model
        except Exception as error:
            if model.faults:
                error.add_note(f"A request did not match the scripted model: {model.faults[0]}")
            raise
        model.check()
