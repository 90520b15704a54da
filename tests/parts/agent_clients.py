"""Clients of many agents at once, in either era, that write their own bytes; and the owner who manages the agents.

Each `AgentClient` has its own token, connection and (legacy) session.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self, TypeVar

from parts.daemon import Daemon
from parts.raw_client import META, Endpoint, Header, RawAnswer, RawConnection, legacy_request, notice

ERAS = ("modern", "legacy")
MOST_ROWS = 20_000
T = TypeVar("T")
R = TypeVar("R")


class Owner:
    """The owner at the command socket. Each call returns when the daemon has acknowledged it."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon

    def say(self, command: str, **params: Any) -> dict[str, Any]:
        return self.daemon.command(command, **params)

    def add(self, name: str, *allowed: str, profile: str = "nothing", **more: Any) -> str:
        """Adds an agent that may use these tools; returns its token."""
        token: str = self.say("agent:add", name=name, profile=profile, **more)["token"]
        for tools in allowed:
            self.allow(name, tools)
        return token

    def rotate(self, name: str) -> str:
        return str(self.say("agent:rotate", name=name)["token"])

    def remove(self, name: str) -> None:
        self.say("agent:remove", name=name)

    def allow(self, agent: str, tools: str, **more: Any) -> None:
        self.say("permission:allow", agent=agent, tools=tools, **more)

    def deny(self, agent: str, tools: str, **more: Any) -> None:
        self.say("permission:deny", agent=agent, tools=tools, **more)

    def put_profile(self, name: str, *rules: Mapping[str, Any]) -> None:
        self.say("profile:put", name=name, rules=list(rules))

    def sessions(self) -> list[dict[str, Any]]:
        return list(self.say("session:list")["sessions"])

    def audit(self, **filters: Any) -> list[dict[str, Any]]:
        """Every matching entry, the oldest first."""
        rows: list[dict[str, Any]] = self.say("audit:query", limit=MOST_ROWS, **filters)["entries"]
        assert len(rows) < MOST_ROWS, "there may be more"
        return rows


class AgentEndpoint(Endpoint):
    """The daemon's `/mcp`, as a client with an agent's token reaches it."""

    def __init__(self, daemon: Daemon, token: str, *labels: Header) -> None:
        super().__init__(daemon)
        self.token = token
        self.auth = ("Authorization", f"Bearer {token}")
        self.labels = labels

    def usual(self, body: bytes, *more: Header) -> list[Header]:
        return [*super().usual(body, *more), *self.labels]

    def stream_bytes(self, session: str) -> bytes:
        """Requests a legacy session's stream of notifications."""
        headers = [self.host, self.auth, ("Accept", "text/event-stream"), ("Mcp-Session-Id", session), *self.labels]
        return self.raw(headers, verb="GET")

    def delete_bytes(self, session: str) -> bytes:
        return self.raw([self.host, self.auth, ("Mcp-Session-Id", session), *self.labels], verb="DELETE")


class AgentClient:
    """One agent's client, with its own connection. All its requests have the id 0, as those of every client."""

    def __init__(self, daemon: Daemon, name: str, token: str, era: str, *, conversation: str | None = None) -> None:
        self.name = name
        self.era = era
        labels = [] if conversation is None else [("X-Toolcrib-Conversation", conversation)]
        self.token = token
        self.endpoint = AgentEndpoint(daemon, token, *labels)
        self.session = self.endpoint.begin() if era == "legacy" else ""
        self._connection: RawConnection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @property
    def connection(self) -> RawConnection:
        if self._connection is None:
            self._connection = self.endpoint.connect()
        return self._connection

    def bytes_of(self, method: str, params: Mapping[str, Any] | None = None, *, meta: Any = None) -> bytes:
        """A request as this client sends it."""
        if self.era == "modern":
            return self.endpoint.modern_bytes(method, params, id=0, meta={**META, **(meta or {})})
        body = legacy_request(method, {**(params or {}), **({"_meta": meta} if meta else {})}, id=0)
        return self.endpoint.legacy_bytes(self.session, body)

    def send_call(self, tool: str, /, *, meta: Any = None, **arguments: Any) -> None:
        self.connection.send(self.bytes_of("tools/call", {"name": tool, "arguments": arguments}, meta=meta))

    def answer(self) -> RawAnswer:
        """The next answer. If it closes the connection, the next request opens a new one."""
        try:
            answer = self.connection.answer()
        except BaseException:
            self.close()
            raise
        if answer.headers.get("connection") == "close":
            self.close()
        return answer

    def ask(self, method: str, params: Mapping[str, Any] | None = None) -> RawAnswer:
        self.connection.send(self.bytes_of(method, params))
        return self.answer()

    def call(self, tool: str, /, **arguments: Any) -> RawAnswer:
        self.send_call(tool, **arguments)
        return self.answer()

    def cancel(self) -> None:
        """Cancels its request 0, as a legacy client does."""
        body = notice("notifications/cancelled", {"requestId": 0})
        assert self.endpoint.exchange(self.endpoint.legacy_bytes(self.session, body)).status == 202

    def tools(self) -> set[str]:
        return {tool["name"] for tool in self.ask("tools/list").result["tools"]}

    @contextlib.contextmanager
    def listening(self) -> Iterator[RawConnection]:
        """The stream that notifies this client of changed tools."""
        with self.endpoint.connect() as stream:
            wanted = {"notifications": {"toolsListChanged": True}}
            legacy = self.era == "legacy"
            stream.send(
                self.endpoint.stream_bytes(self.session) if legacy else self.bytes_of("subscriptions/listen", wanted)
            )
            assert stream.head()[0] == 200
            assert legacy or stream.event()["method"] == "notifications/subscriptions/acknowledged"
            yield stream


def nonce_of(answer: RawAnswer) -> str | None:
    """The nonce in a recording server's answer; None for any other answer."""
    if answer.status != 200:
        return None
    result = json.loads(answer.message).get("result") or {}
    nonce: str | None = (result.get("structuredContent") or {}).get("nonce")
    return nonce


def refusal(answer: RawAnswer) -> str:
    """Why a request was refused, empty if it was not: from a status, an error, or an error result."""
    if answer.status in (401, 403, 404):
        return f"{answer.status} {answer.error['message']}"
    message = json.loads(answer.message)
    if "error" in message:
        return f"{answer.status} {message['error']['message']}"
    result = message["result"]
    return str(result["content"][0]["text"]) if result.get("isError") else ""


def all_events(stream: RawConnection) -> list[dict[str, Any]]:
    """Every message on the stream until its end."""
    messages: list[dict[str, Any]] = []
    with contextlib.suppress(ConnectionError):
        while True:
            messages.append(stream.event())
    return messages


def changes(messages: Sequence[Mapping[str, Any]]) -> int:
    return sum(message.get("method") == "notifications/tools/list_changed" for message in messages)


def all_at_once(work: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Each item in its own thread."""
    listed = list(items)
    with ThreadPoolExecutor(max(1, len(listed))) as pool:
        return list(pool.map(work, listed))
