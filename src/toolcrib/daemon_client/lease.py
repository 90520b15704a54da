"""Leases: agents that exist as long as their connection.

In: a user's paths, and a `LeaseRequest`. Out: the agent's token and folder, and its `LeaseEvent`s in order.
`LeaseClient` uses the running daemon, or starts one for as long as runs need it; runs that start at the same time
share one. After a restart of the daemon the lease continues; a daemon that does not return is reported as `LeaseLost`.
`commands.run` is the other end.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import threading
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeAlias

from toolcrib.config.paths import Paths
from toolcrib.daemon_client.connection import DaemonConnection, DaemonDisconnected
from toolcrib.daemon_client.lifetime import is_unlocked
from toolcrib.daemon_client.starting import CONNECT_TIMEOUT, START_FOR_RUNS, connect_or_start
from toolcrib.errors import DaemonNotRunning, Denied, ProtocolViolation, ToolcribError, UnknownCommand
from toolcrib.policy.profile import OwnTools, OwnToolsLimit


@dataclass(frozen=True, kw_only=True)
class ListingSeen:
    """The agent got a list of tools."""

    mode: str
    """How much of each tool it shows."""
    tools: int
    bytes: int
    tokens: int
    tokens_estimated: bool
    names: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Server and tool, by the agent's names for them."""
    at: float


@dataclass(frozen=True, kw_only=True)
class CallSeen:
    """A call at the daemon's door: one event before it is forwarded to its server, one when it is over.

    Calls that are not forwarded (denied, invalid, unknown …) have only the second.
    """

    call: str
    """The same in both."""
    name: str
    """The name that the program used."""
    tool: str
    """The server's name of the tool, or the program's if there is no such tool."""
    server: str
    arguments: dict[str, Any] | None
    """Exact, except for masked secrets; None if there were none, or they are too large to send."""
    arguments_size: int = 0
    """Bytes."""
    over: bool
    outcome: str
    """A `CallOutcome`; empty while not over."""
    failure: str = ""
    """The failure that the tool reported for the command or test it ran."""
    duration_ms: float | None
    decision: str
    rule: str
    meta: Mapping[str, Any] = field(default_factory=dict)
    """The call's `_meta`."""
    at: float


@dataclass(frozen=True, kw_only=True)
class LeaseEnded:
    """The daemon ended the agent."""

    why: str
    """removed, expired, or unread: the events were not read."""


@dataclass(frozen=True, kw_only=True)
class LeaseLost:
    """The daemon stopped and did not return."""

    why: str


@dataclass(frozen=True, kw_only=True)
class QuestionSeen:
    """A server's question waits for the owner."""

    id: str
    """Of the approval."""
    server: str
    tool: str
    mode: str
    """`form`, `url` or `sampling`."""
    at: float


LeaseEvent: TypeAlias = ListingSeen | CallSeen | QuestionSeen | LeaseEnded | LeaseLost


def names_from(listed: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    return {name: (server, tool) for name, (server, tool) in listed.items()}


def lease_event_from(event: Mapping[str, Any]) -> LeaseEvent | None:
    """Returns None for an unknown event of a newer daemon. Raises `ValueError` for an incomplete one."""
    try:
        return _read(event)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"the daemon sent an unexpected form of {next(iter(event), 'nothing')}") from error


def _read(event: Mapping[str, Any]) -> LeaseEvent | None:
    match event:
        case {"listed": dict(listed)}:
            known = {one.name: listed[one.name] for one in fields(ListingSeen)}
            return ListingSeen(**{**known, "names": names_from(listed["names"])})
        case {"call": dict(call)}:
            return CallSeen(**{one.name: call[one.name] for one in fields(CallSeen)})
        case {"question": dict(asked)}:
            return QuestionSeen(**{one.name: asked[one.name] for one in fields(QuestionSeen)})
        case {"ended": {"why": str(why)}}:
            return LeaseEnded(why=why)
        case _:
            return None


GONE_FOR = 10.0
"""Seconds that the daemon may be away before the lease is lost."""
_RECONNECT_EVERY = 0.05
_RELEASED_WITHIN = 10.0
_COMMAND = "run:lease"


@dataclass(frozen=True, kw_only=True)
class LeaseRequest:
    client: str
    profile: str
    workdir: Path
    conversation: str
    lives: float
    """Seconds after which the agent ends in any case."""
    parent: str = ""
    """An agent that limits it, and that it ends with."""
    job: str = ""
    """The job that uses it."""
    ci: str = ""
    """The variable that indicates CI, if any."""
    listing: str = ""
    """How tools are listed, a `ListingMode`; empty for the agent's own setting."""
    continues: bool = False
    """Whether the program continues a session of its own."""
    answers: bool = False
    """Whether the agent's program may answer what servers ask. What it does not answer waits for the owner."""

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "workdir": str(self.workdir)}


class AgentLease:
    """Created by `begin`, ended by `release`."""

    def __init__(
        self,
        connection: DaemonConnection,
        granted: Mapping[str, Any],
        *,
        path: Path,
        root: Path,
        answers: bool = False,
    ) -> None:
        self.agent: str = granted["agent"]
        self.token: str = granted["token"]
        self.url: str = granted["endpoint"]
        self.listing: str = granted["listing"]
        """What its requests must say about lists of tools; empty for nothing."""
        self.folder = Path(granted["folder"])
        """The agent's private folder, which is removed with the agent."""
        self.own_tools = OwnToolsLimit(
            tools=OwnTools(granted["own_tools"]), shell=granted["own_shell"], guarded=tuple(granted["guarded"])
        )
        self.broken: str = granted["broken"]
        """The error in the workspace's settings, if any; with an error, all workspace tools refuse."""
        self.unavailable: Mapping[str, str] = granted["unavailable"]
        """Servers whose tools are not known yet, and why."""
        self.withheld = frozenset[str](granted["withheld"])
        """Names of the variables that our servers' entries refer to."""
        self.warnings = tuple[str, ...](granted["warnings"])
        """Why there are fewer tools than the person may expect, one line each."""
        self.tools: int = granted["tools"]
        """The number of tools that the agent may see."""
        self.names = names_from(granted["names"])
        """Server and tool, by the agent's names for them."""
        self.for_runs: bool = granted["for_runs"]
        """Whether the daemon exists only for runs: then no other daemon replaces it."""
        self.daemon: int = granted["daemon"]
        """The daemon's pid."""
        self._path = path
        self._root = root
        self._answers = answers
        self._connection = connection
        self._events: asyncio.Queue[LeaseEvent | None] = asyncio.Queue()
        """None marks the end."""
        self._released = False
        self._following = asyncio.create_task(self._follow())

    def __repr__(self) -> str:
        return f"Lease(agent={self.agent!r})"

    @classmethod
    async def begin(cls, connection: DaemonConnection, wanted: LeaseRequest, *, path: Path, root: Path) -> AgentLease:
        """Raises the daemon's error or `DaemonDisconnected`, and then closes the connection."""
        granted = await _granted(connection, wanted.to_json(), root)
        return cls(connection, granted, path=path, root=root, answers=wanted.answers)

    async def events(self) -> AsyncIterator[LeaseEvent]:
        """The agent's events, in order; for one reader.

        Ends after `LeaseEnded` or `LeaseLost`, and after `release` with the remaining events.
        """
        while (event := await self._events.get()) is not None:
            yield event
        self._events.put_nowait(None)

    async def question(self, id: str) -> Mapping[str, Any]:
        """A waiting question, complete. Raises `NotFound` if it no longer waits."""
        found = await DaemonConnection.answer(self._path, "approval:list", {"id": id}, self._root)
        question: Mapping[str, Any] = found["approvals"][0]
        return question

    async def answer(self, id: str, *, approved: bool | None, content: Mapping[str, Any] | None = None) -> None:
        """Answers it as the owner; None dismisses it. Raises `NotFound` if it no longer waits."""
        params = {"id": id, "approved": approved, "content": content}
        await DaemonConnection.answer(self._path, "approval:answer", params, self._root)

    async def release(self) -> None:
        """Ends the agent; on return, the agent or the daemon is gone. A second call does nothing."""
        if not self._released:
            self._released = True
            self._connection.finish_sending()
        await asyncio.wait({self._following}, timeout=_RELEASED_WITHIN)
        self._following.cancel()
        await asyncio.gather(self._following, return_exceptions=True)
        await self._connection.close()

    async def _follow(self) -> None:
        try:
            while True:
                last = await self._until_disconnected()
                if last is None and not self._released:
                    last = await self._come_back()
                if last is not None:
                    self._events.put_nowait(last)
                if last is not None or self._released:
                    return
        finally:
            self._events.put_nowait(None)

    async def _until_disconnected(self) -> LeaseEvent | None:
        """Returns the event that ends the lease, or None if the connection is lost."""
        try:
            while (received := await self._connection.event()) is not None:
                event = lease_event_from(received)
                if isinstance(event, LeaseEnded):
                    return event
                if event is not None:
                    self._events.put_nowait(event)
        except DaemonDisconnected:
            return None
        except (ToolcribError, ValueError) as error:
            return LeaseLost(why=error.text() if isinstance(error, ToolcribError) else f"{error}.".capitalize())
        return LeaseEnded(why="removed")

    async def _come_back(self) -> LeaseEvent | None:
        """Returns None if a daemon continues with the agent."""
        await self._connection.close()
        if self.for_runs:
            return LeaseLost(why="The daemon that was started for runs stopped.")
        deadline = time.monotonic() + GONE_FOR
        while time.monotonic() < deadline and not self._released:
            try:
                async with asyncio.timeout(deadline - time.monotonic()):
                    granted = await self._resumed()
            except Denied:
                return LeaseEnded(why="removed")
            except (DaemonDisconnected, ToolcribError, TimeoutError):
                await asyncio.sleep(_RECONNECT_EVERY)
                continue
            if granted["endpoint"] != self.url:
                return LeaseLost(why=f"The daemon restarted at another address, {granted['endpoint']}.")
            return None
        return (
            None
            if self._released
            else LeaseLost(why=f"The daemon stopped and did not come back within {GONE_FOR:.0f} s.")
        )

    async def _resumed(self) -> Mapping[str, Any]:
        connection = await DaemonConnection.to(self._path)
        resume = {"agent": self.agent, "token": self.token}
        granted = await _granted(connection, {"resume": resume, "answers": self._answers}, self._root)
        self._connection = connection
        return granted


async def _granted(connection: DaemonConnection, params: dict[str, Any], root: Path) -> Mapping[str, Any]:
    try:
        await connection.ask(_COMMAND, params, root)
        match await connection.event():
            case {"lease": dict(granted)}:
                return granted
            case _:
                raise ProtocolViolation("The daemon leased no agent and gave no reason.", remedy="See `toolcrib logs`.")
    except BaseException:
        with contextlib.suppress(asyncio.CancelledError):
            await connection.close()
        raise


_ENDS_WITHIN = 6.0
_POLL = 0.02


class LeaseClient:
    """Created by `open_lease_client`."""

    def __init__(self, paths: Paths, root: Path, environ: Mapping[str, str], connection: DaemonConnection) -> None:
        self._paths = paths
        self._root = root
        self._environ = environ
        self._spare: DaemonConnection | None = connection
        """An unused connection."""
        self._leases: list[AgentLease] = []

    async def lease(self, wanted: LeaseRequest) -> AgentLease:
        """Raises `UsageError` if the same conversation is already running, and other errors of the daemon."""
        deadline = time.monotonic() + CONNECT_TIMEOUT
        while True:
            connection, self._spare = self._spare or await _connected(self._paths, self._environ), None
            try:
                made = await AgentLease.begin(connection, wanted, path=self._paths.socket, root=self._root)
            except UnknownCommand as old:
                raise DaemonNotRunning(
                    "The running daemon is an older version that does not support runs.",
                    remedy="Stop it with `toolcrib down`, then run again.",
                ) from old
            except (DaemonDisconnected, DaemonNotRunning) as gone:
                # It was ending when we connected; try the next one.
                if time.monotonic() > deadline:
                    raise DaemonNotRunning(
                        "The daemon exited before it leased an agent.", remedy="See `toolcrib logs`."
                    ) from gone
                await asyncio.sleep(_POLL)
                continue
            self._leases.append(made)
            return made

    async def close(self) -> None:
        """Releases all leases. On return, a daemon for runs without further users is gone."""
        if self._spare is not None:
            await self._spare.close()
        await asyncio.gather(*(lease.release() for lease in self._leases))
        for pid in {lease.daemon for lease in self._leases if lease.for_runs}:
            await self._until_ended(pid)

    async def _until_ended(self, pid: int) -> None:
        """Waits for a daemon that is ending, but not for one that others use, or for its successor."""
        deadline = time.monotonic() + _ENDS_WITHIN
        while time.monotonic() < deadline and not is_unlocked(self._paths):
            match await self._status():
                case {"pid": int(found), "stopping": stopping} if found != pid or not stopping:
                    return
            await asyncio.sleep(_POLL)

    async def _status(self) -> Mapping[str, Any]:
        try:
            async with asyncio.timeout(_ENDS_WITHIN):
                return await DaemonConnection.answer(self._paths.socket, "system:status", {}, self._root)
        except (DaemonDisconnected, TimeoutError, ToolcribError):
            return {}


@contextlib.asynccontextmanager
async def open_lease_client(paths: Paths, root: Path, environ: Mapping[str, str]) -> AsyncIterator[LeaseClient]:
    """`root` is the project's root. Raises `DaemonNotRunning` if no daemon runs and none can be started."""
    client = LeaseClient(paths, root, environ, await _connected(paths, environ))
    try:
        yield client
    finally:
        await client.close()


async def _connected(paths: Paths, environ: Mapping[str, str]) -> DaemonConnection:
    given_up = threading.Event()
    reach = functools.partial(
        connect_or_start, paths.socket, environ=environ, start=START_FOR_RUNS, given_up=given_up.is_set
    )
    reaching = asyncio.get_running_loop().run_in_executor(None, reach)
    try:
        return await DaemonConnection.over(await asyncio.shield(reaching))
    except asyncio.CancelledError:
        given_up.set()
        reaching.add_done_callback(_close)
        raise


def _close(reached: asyncio.Future[socket.socket]) -> None:
    if not reached.cancelled() and reached.exception() is None:
        reached.result().close()
