"""A scripted model as a running HTTP service.

In: a provider's wire format, or its name, and the steps. Out: the `ScriptedModel`: its base URL, and every request that
came, to assert on what the model was given. It runs in threads of the test's own process, so a step may do or wait for
anything in the test. What did not fit the script fails the test at the end of `scripted`.
"""

from __future__ import annotations

import contextlib
import enum
import json
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, BinaryIO

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

MOST_HEADERS = 200
LONGEST_LINE = 65536
PHRASES = {int(status): status.phrase for status in HTTPStatus}


@dataclass(frozen=True, kw_only=True)
class HttpRequest:
    method: str
    path: str
    headers: Mapping[str, str]
    """By names in lower case."""
    content: bytes


class HttpConnection:
    def __init__(self, connection: socket.socket) -> None:
        # What is said is said at once: no waiting for more of it.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connection
        self._in = connection.makefile("rb")

    def close(self) -> None:
        self._in.close()

    def next(self) -> HttpRequest | None:
        """The next request; None when the client is gone, or says what is no HTTP."""
        first = self._in.readline(LONGEST_LINE).split()
        if len(first) != 3:
            return None
        method, path, _ = (word.decode("latin-1") for word in first)
        headers = _headers(self._in)
        if headers.get("expect", "").lower() == "100-continue":
            self._socket.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        return HttpRequest(method=method, path=path, headers=headers, content=_content(self._in, headers))

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


class ConnectionFate(enum.StrEnum):
    """What becomes of the connection."""

    GO_ON = "go on"
    CLOSE = "close"


@dataclass(frozen=True, kw_only=True)
class HttpAnswer:
    first: bytes
    """Up to where it is held."""
    hold: Hold | None
    rest: bytes
    then: ConnectionFate


def make_answer(provider: WireFormat, turn: ModelTurn, path: str, body: dict[str, Any]) -> HttpAnswer | Refusal:
    whole = provider.whole(turn, path, body)
    if whole is None:
        return _streamed(turn, _messages(provider, turn, path, body))
    if turn.cut is not None and turn.cut.status and not whole.get("error"):
        return Refusal(status=turn.cut.status, message="interrupted, as scripted")
    data = response(200, whole, {})
    if turn.cut is not None and not turn.cut.status:
        return HttpAnswer(first=b"", hold=turn.hold, rest=data[:-1], then=ConnectionFate.CLOSE)
    return HttpAnswer(first=b"", hold=turn.hold, rest=data, then=ConnectionFate.GO_ON)


def _messages(provider: WireFormat, turn: ModelTurn, path: str, body: dict[str, Any]) -> list[Message]:
    messages = list(provider.write(turn, path, body))[: turn.cut_after]
    if turn.cut is None:
        return messages
    begun = messages[: len(messages) // 2]
    return [*begun, provider.interruption(turn.cut.status, turn, body)] if turn.cut.status else begun


def _streamed(turn: ModelTurn, messages: list[Message]) -> HttpAnswer:
    chunks = [chunk(event(message)) for message in messages]
    dead = turn.cut is not None and not turn.cut.status
    end = b"" if dead else chunk(b"")
    # In the middle, unless it is all said at once.
    at = min(1, len(chunks) - 1)
    return HttpAnswer(
        first=b"".join([stream_head(), *chunks[:at]]),
        hold=turn.hold,
        rest=b"".join([*chunks[at:], end]),
        then=ConnectionFate.CLOSE if dead else ConnectionFate.GO_ON,
    )


CLOSE_LIMIT = 5.0
"""Seconds that a connection has to end with the model."""


class ScriptMismatch(AssertionError):
    """What came does not fit the script, or the rules of the provider's service."""


@dataclass(frozen=True, kw_only=True)
class RecordedRequest:
    """What the model was given, once."""

    path: str
    headers: Mapping[str, str]
    """By names in lower case."""
    body: dict[str, Any]
    """As it came."""
    conversation: RequestConversation | None
    """The same, read; unless it could not be."""


@dataclass(frozen=True, kw_only=True)
class ScriptedModel:
    """What a test knows of the model: where it is, and what it was given."""

    url: str
    """What the provider's clients take as base URL."""
    script: Script = field(repr=False)
    requests: list[RecordedRequest] = field(default_factory=list)
    told: list[TurnUsage] = field(default_factory=list)
    """What each answer was said to cost."""
    faults: list[Exception] = field(default_factory=list)
    """What did not fit."""

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
        """The tools that searches brought, by name."""
        return {tool.name for conversation in self.conversations for tool in conversation.found}

    @property
    def results(self) -> tuple[str, ...]:
        """The tool results that the model was given in all, one for each call that was carried out."""
        self.check()
        return max((conversation.results for conversation in self.conversations), key=len, default=())

    @property
    def left(self) -> tuple[Step, ...]:
        """The steps that it did not come to."""
        return self.script.left

    def check(self) -> None:
        """Raises `ScriptMismatch` if anything did not fit."""
        if self.faults:
            raise ScriptMismatch(str(self.faults[0])) from self.faults[0]


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
    # Many runs may begin at once; one that finds no place in the queue would wait for a second.
    request_queue_size = 128

    def __init__(self, provider: WireFormat, script: Script) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.provider = provider
        self.model = ScriptedModel(url=f"http://127.0.0.1:{self.server_address[1]}{provider.base}", script=script)
        self._open: dict[threading.Thread, socket.socket] = {}

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open = {thread: line for thread, line in self._open.items() if thread.is_alive()}
        thread = threading.Thread(target=self._serve, args=(request, client_address), daemon=True)
        self._open[thread] = request
        thread.start()

    def _serve(self, request: socket.socket, client_address: Any) -> None:
        # A client that was ended in the meantime wants no answer.
        with contextlib.suppress(OSError):
            self.finish_request(request, client_address)
        self.shutdown_request(request)

    def server_close(self) -> None:
        super().server_close()
        for thread, line in self._open.items():
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
            thread.join(CLOSE_LIMIT)


class _Handler(socketserver.BaseRequestHandler):
    server: _Server

    def handle(self) -> None:
        line = HttpConnection(self.request)
        with contextlib.closing(line):
            while (asked := line.next()) is not None:
                if (
                    self._reply(line, asked) is ConnectionFate.CLOSE
                    or asked.headers.get("connection", "").lower() == "close"
                ):
                    return

    def _reply(self, line: HttpConnection, asked: HttpRequest) -> ConnectionFate:
        provider = self.server.provider
        if asked.method == "HEAD":
            line.write(response(404, {}, {}))
            return ConnectionFate.CLOSE
        if asked.method != "POST" or not provider.is_turn(asked.path):
            # Lists of models, counts of tokens and the like: a client gets on without them.
            line.write(response(404, provider.refusal(404, f"There is nothing at {asked.path}.", None), {}))
            return ConnectionFate.GO_ON
        answer = self._answer(asked)
        if isinstance(answer, Refusal):
            told = provider.refusal(answer.status, answer.message, answer.retry_after)
            after = {} if answer.retry_after is None else {"Retry-After": f"{answer.retry_after:g}"}
            line.write(response(answer.status, told, after))
            return ConnectionFate.GO_ON
        line.write(answer.first)
        if answer.hold is not None:
            answer.hold.stand()
        line.write(answer.rest)
        return answer.then

    def _answer(self, asked: HttpRequest) -> HttpAnswer | Refusal:
        provider, model = self.server.provider, self.server.model
        body: dict[str, Any] = {}
        conversation: RequestConversation | None = None
        try:
            body = json.loads(asked.content)
            conversation = provider.read(body)
            turn = model.script.next(conversation)
            if isinstance(turn, Refusal):
                return turn
            made = make_answer(provider, turn, asked.path, body)
            model.told.append(turn.usage)
            return made
        except Exception as fault:
            model.faults.append(fault)
            return Refusal(status=400, message=str(fault))
        finally:
            model.requests.append(
                RecordedRequest(path=asked.path, headers=asked.headers, body=body, conversation=conversation)
            )


PROVIDERS: Mapping[str, Callable[[], WireFormat]] = {
    "anthropic": Anthropic,
    "google": Google,
    "openai": OpenAIChat,
    "openai-responses": OpenAIResponses,
    "openrouter": OpenRouter,
}


@contextlib.contextmanager
def scripted(provider: str, steps: Sequence[Step], *, last_words: str = "Done.") -> Iterator[ScriptedModel]:
    """A model that does the steps in turn, and then says its last words whenever it is asked."""
    if provider not in PROVIDERS:
        raise ValueError(f"There is no scripted model for {provider!r}. There are: {', '.join(PROVIDERS)}.")
    with serving(PROVIDERS[provider](), steps, last_words=last_words, toolless=Toolless.TURN) as model:
        try:
            yield model
        except Exception as error:
            if model.faults:
                error.add_note(f"What the scripted model was given did not fit: {model.faults[0]}")
            raise
        model.check()
