"""Clients of both eras that servers ask in the middle of a call, at the endpoint and through `toolcrib stdio`.

They write their own bytes and keep every message. A call is a series of turns: each `Turn` ends with questions, which
the test answers, or with the answer. All calls of a client have the id 0, as those of every client.
"""

from __future__ import annotations

import abc
import json
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from parts.agent_clients import AgentEndpoint
from parts.daemon import PROGRAM, Daemon
from parts.preloaded import Preloaded
from parts.raw_client import CAPABILITIES_KEY, META, RawConnection, initialize, legacy_request, notice, request

Json = dict[str, Any]
Answer = Callable[[Json], Json]
"""A question, with its method and params, to its result, or to `{"error": …}`."""
EVERYTHING: Json = {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}}
LIMIT = 60.0


@dataclass(frozen=True, kw_only=True)
class Turn:
    asked: Mapping[str, Any]
    """The method and params of the client's request."""
    questions: Mapping[Any, Json] = field(default_factory=dict)
    """By key, or for a legacy client by the id of the gateway's request."""
    message: Json = field(default_factory=dict)
    """The answer to the request, for a modern client also one that asks for input."""

    @property
    def result(self) -> Json:
        assert "result" in self.message, self.message
        return dict(self.message["result"])

    @property
    def error(self) -> Json:
        assert "error" in self.message, self.message
        return dict(self.message["error"])


class Line(abc.ABC):
    """A client's connection."""

    @abc.abstractmethod
    def request(self, body: bytes, method: str, params: Mapping[str, Any]) -> None: ...

    @abc.abstractmethod
    def reply(self, body: bytes) -> None:
        """Sends a message that is not answered."""

    @abc.abstractmethod
    def read(self) -> Any:
        """The next message."""

    @abc.abstractmethod
    def close(self) -> None: ...


class EndpointLine(Line):
    """One connection per request."""

    def __init__(self, daemon: Daemon, token: str, era: str, capabilities: Json) -> None:
        self.endpoint = AgentEndpoint(daemon, token)
        self.session = self.endpoint.begin(initialize(capabilities)) if era == "legacy" else ""
        self._open: RawConnection | None = None
        self._messages: Iterator[Any] = iter(())

    def _bytes(self, body: bytes, method: str, params: Mapping[str, Any]) -> bytes:
        if self.session:
            return self.endpoint.legacy_bytes(self.session, body)
        named = params.get("name") or params.get("uri") or params.get("taskId")
        return self.endpoint.raw(self.endpoint.usual(body, *self.endpoint.modern_headers(method, named)), body)

    def request(self, body: bytes, method: str, params: Mapping[str, Any]) -> None:
        self.close()
        self._open = self.endpoint.connect()
        self._messages = self._open.messages()
        self._open.send(self._bytes(body, method, params))

    def reply(self, body: bytes) -> None:
        answer = self.endpoint.exchange(self.endpoint.legacy_bytes(self.session, body))
        assert answer.status == 202, answer

    def read(self) -> Any:
        for message in self._messages:
            return message
        raise ConnectionError("the answer has ended")

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None


class BridgeLine(Line):
    """`toolcrib stdio`, started in the project."""

    def __init__(self, daemon: Daemon, *words: str) -> None:
        home = daemon.home
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        command = [str(PROGRAM), "stdio", *words]
        self.process = Preloaded(command, env=home.environ(), cwd=home.project, start_new_session=True, **pipes)

    def reply(self, body: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(body + b"\n")
        self.process.stdin.flush()

    def request(self, body: bytes, method: str, params: Mapping[str, Any]) -> None:
        self.reply(body)

    def read(self) -> Any:
        assert self.process.stdout is not None
        if line := self.process.stdout.readline():
            return json.loads(line)
        raise ConnectionError("the bridge has ended")

    def close(self) -> None:
        with self.process:
            if self.process.stdin is not None:
                self.process.stdin.close()
            self.process.wait(LIMIT)


class AskedClient:
    def __init__(self, line: Line, era: str, capabilities: Json) -> None:
        self.line = line
        self.era = era
        self.meta = {**META, CAPABILITIES_KEY: capabilities}
        self.received: list[Json] = []
        """Every message of the last call."""

    @classmethod
    def at_endpoint(cls, daemon: Daemon, era: str, token: str = "", capabilities: Json = EVERYTHING) -> Self:
        return cls(EndpointLine(daemon, token or daemon.token, era, capabilities), era, capabilities)

    @classmethod
    def through_bridge(cls, daemon: Daemon, era: str, agent: str = "", capabilities: Json = EVERYTHING) -> Self:
        line = BridgeLine(daemon, *(("--agent", agent) if agent else ()))
        if era == "legacy":
            line.reply(initialize(capabilities))
            while "result" not in line.read():
                continue
            line.reply(notice("notifications/initialized"))
        return cls(line, era, capabilities)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.line.close()

    def call(self, tool: str, arguments: Mapping[str, Any], *, wanted: int = 1) -> Turn:
        return self.ask("tools/call", {"name": tool, "arguments": arguments}, wanted=wanted)

    def ask(self, method: str, params: Mapping[str, Any], *, wanted: int = 1) -> Turn:
        """Until so many questions have come, or the answer."""
        self.received = []
        return self._turn(method, params, wanted)

    def _turn(self, method: str, params: Mapping[str, Any], wanted: int) -> Turn:
        modern = self.era == "modern"
        body = request(method, params, id=0, meta=self.meta) if modern else legacy_request(method, params, id=0)
        self.line.request(body, method, params)
        return self._until(method, params, wanted)

    def _until(self, method: str, params: Mapping[str, Any], wanted: int) -> Turn:
        asked = {"method": method, "params": params}
        questions: dict[Any, Json] = {}
        while True:
            message = self.line.read()
            self.received.append(message)
            if "method" in message and "id" in message:
                questions[message["id"]] = {"method": message["method"], "params": message.get("params")}
                if len(questions) == wanted:
                    return Turn(asked=asked, questions=questions)
            elif message.get("id") == 0:
                needed = message.get("result", {}).get("inputRequests", {}) if self.era == "modern" else {}
                return Turn(asked=asked, questions=needed, message=message)

    def answer(self, turn: Turn, answer: Answer, *, wanted: int = 1) -> Turn:
        """Answers all questions of a turn."""
        method, params = turn.asked["method"], turn.asked["params"]
        answers = {key: answer(question) for key, question in turn.questions.items()}
        if self.era == "modern":
            return self._turn(method, retried(turn, answers), wanted)
        for key, result in answers.items():
            body = result if "error" in result else {"result": result}
            self.line.reply(json.dumps({"jsonrpc": "2.0", "id": key, **body}).encode())
        return self._until(method, params, wanted)

    def finish(self, turn: Turn, answer: Answer) -> Turn:
        """Answers every question until the call ends."""
        while turn.questions:
            turn = self.answer(turn, answer)
        return turn


def retried(turn: Turn, answers: Mapping[str, Json]) -> Json:
    """The params of the next round of a modern client."""
    state = turn.result.get("requestState")
    return {**turn.asked["params"], "inputResponses": answers, **({} if state is None else {"requestState": state})}
