"""A scripted model as a running HTTP service.

In: a provider's wire format and the steps. Out: its base URL, and every request that came, to assert on what the model
was given. It runs in threads of the test's own process, so a step may do or wait for anything in the test.
"""

from __future__ import annotations

import contextlib
import json
import socket
import socketserver
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from toolcrib.testing.answer import Answer, Then, answer
from toolcrib.testing.conversation import Conversation, Offered, Offering, Refusal, Usage
from toolcrib.testing.line import Asked, Line, response
from toolcrib.testing.provider import Provider
from toolcrib.testing.script import Script, Step, Toolless

CLOSE_LIMIT = 5.0
"""Seconds that a connection has to end with the model."""


class Misfit(AssertionError):
    """What came does not fit the script, or the rules of the provider's service."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the model was given, once."""

    path: str
    headers: Mapping[str, str]
    """By names in lower case."""
    body: dict[str, Any]
    """As it came."""
    conversation: Conversation | None
    """The same, read; unless it could not be."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """What a test knows of the model: where it is, and what it was given."""

    url: str
    """What the provider's clients take as base URL."""
    script: Script = field(repr=False)
    requests: list[Request] = field(default_factory=list)
    told: list[Usage] = field(default_factory=list)
    """What each answer was said to cost."""
    faults: list[Exception] = field(default_factory=list)
    """What did not fit."""

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [request.body for request in self.requests]

    @property
    def conversations(self) -> list[Conversation]:
        return [request.conversation for request in self.requests if request.conversation is not None]

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
        self.check()
        return max((conversation.results for conversation in self.conversations), key=len, default=())

    @property
    def left(self) -> tuple[Step, ...]:
        """The steps that it did not come to."""
        return self.script.left

    def check(self) -> None:
        """Raises `Misfit` if anything did not fit."""
        if self.faults:
            raise Misfit(str(self.faults[0])) from self.faults[0]


@contextlib.contextmanager
def serving(
    provider: Provider, steps: Sequence[Step], *, last_words: str = "Done.", toolless: Toolless = Toolless.ASIDE
) -> Iterator[Model]:
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

    def __init__(self, provider: Provider, script: Script) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.provider = provider
        self.model = Model(url=f"http://127.0.0.1:{self.server_address[1]}{provider.base}", script=script)
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
        line = Line(self.request)
        with contextlib.closing(line):
            while (asked := line.next()) is not None:
                if self._reply(line, asked) is Then.CLOSE or asked.headers.get("connection", "").lower() == "close":
                    return

    def _reply(self, line: Line, asked: Asked) -> Then:
        provider = self.server.provider
        if asked.method == "HEAD":
            line.write(response(404, {}, {}))
            return Then.CLOSE
        if asked.method != "POST" or not provider.is_turn(asked.path):
            # Lists of models, counts of tokens and the like: a client gets on without them.
            line.write(response(404, provider.refusal(404, f"There is nothing at {asked.path}.", None), {}))
            return Then.GO_ON
        answer = self._answer(asked)
        if isinstance(answer, Refusal):
            told = provider.refusal(answer.status, answer.message, answer.retry_after)
            after = {} if answer.retry_after is None else {"Retry-After": f"{answer.retry_after:g}"}
            line.write(response(answer.status, told, after))
            return Then.GO_ON
        line.write(answer.first)
        if answer.hold is not None:
            answer.hold.stand()
        line.write(answer.rest)
        return answer.then

    def _answer(self, asked: Asked) -> Answer | Refusal:
        provider, model = self.server.provider, self.server.model
        body: dict[str, Any] = {}
        conversation: Conversation | None = None
        try:
            body = json.loads(asked.content)
            conversation = provider.read(body)
            turn = model.script.next(conversation)
            if isinstance(turn, Refusal):
                return turn
            made = answer(provider, turn, asked.path, body)
            model.told.append(turn.usage)
            return made
        except Exception as fault:
            model.faults.append(fault)
            return Refusal(status=400, message=str(fault))
        finally:
            model.requests.append(Request(path=asked.path, headers=asked.headers, body=body, conversation=conversation))
