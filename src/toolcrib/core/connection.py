"""A running daemon's tools, for a program of one's own.

In: who the program is there: an agent of the daemon, or one that is lent for as long as the connection is open.
Out: a provider. What may be seen and called is the daemon's to decide, and is in its audit log. Tools go by their
own names here, as everywhere in the library; the daemon says which server each is from. Calls are published on the
connection's own bus, as the door publishes those of this process. `Crib.connect` makes one.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any

import msgspec

from toolcrib.catalog.snapshot import Catalog
from toolcrib.config.model import ConfigSource, Layer, ServerConfig, Transport
from toolcrib.config.paths import Paths, project_of
from toolcrib.core.daemon_catalog import DaemonCatalog, DaemonServerStates
from toolcrib.core.provider import AsyncResource, ToolProvider, call_request
from toolcrib.core.results import Result, read_answer
from toolcrib.daemon_client.connection import DaemonConnection, DaemonDisconnected, error_from
from toolcrib.daemon_client.lease import AgentLease, LeaseEnded, LeaseLost, LeaseRequest
from toolcrib.errors import (
    AuditUnwritable,
    CallTimeout,
    DaemonNotRunning,
    Denied,
    InvalidArguments,
    NotFound,
    ServerFailure,
    ServerUnavailable,
    ToolcribError,
    UnknownCommand,
    UnknownTool,
    UsageError,
)
from toolcrib.events import Bus, CallFailed, CallFinished, CallIntended, CallOutcome, CatalogChanged, ServerStateChanged
from toolcrib.identity.agent_folders import AgentFolders
from toolcrib.servers.model import ServerAnswer, ServerState, ServerStatus, ToolCall
from toolcrib.servers.pool import ServerPool
from toolcrib.servers.server import Server
from toolcrib.servers.web import explain_status

_OUTCOME_OF_ERROR: tuple[tuple[type[BaseException], CallOutcome], ...] = (
    (asyncio.CancelledError, CallOutcome.CANCELLED),
    (CallTimeout, CallOutcome.TIMEOUT),
    (ServerFailure, CallOutcome.UNAVAILABLE),
    (Denied, CallOutcome.DENIED),
    (InvalidArguments, CallOutcome.INVALID),
    (UnknownTool, CallOutcome.UNKNOWN),
    (AuditUnwritable, CallOutcome.REFUSED),
)


@contextlib.contextmanager
def publish_call(
    bus: Bus, *, call_id: str, caller: str, name: str, tool: str, server: str, arguments: bytes
) -> Iterator[Callable[[Result], None]]:
    """Gives the function that takes the result; without one, what is raised says how it ended."""
    facts: dict[str, Any] = {
        "call_id": call_id,
        "caller": caller,
        "name": name,
        "tool": tool,
        "server": server,
        "decision": "",
        "rule": "",
        "arguments": arguments,
        "meta": {},
    }
    began = time.monotonic()

    def finished(outcome: CallOutcome, failure: str = "") -> None:
        kind = CallFinished if outcome is CallOutcome.OK else CallFailed
        bus.publish(kind(**facts, outcome=outcome, duration=time.monotonic() - began, failure=failure))

    bus.publish(CallIntended(**facts))
    try:
        yield lambda result: finished(_outcome_of(result), result.failure)
    except BaseException as error:
        finished(next((word for kind, word in _OUTCOME_OF_ERROR if isinstance(error, kind)), CallOutcome.ERROR))
        raise


def _outcome_of(result: Result) -> CallOutcome:
    if result.is_error:
        return CallOutcome.TOOL_ERROR
    return CallOutcome.FAILED if result.failure else CallOutcome.OK


DAEMON = "daemon"
"""What the daemon is called among the servers, in errors and events."""
_CLIENT = "program"
"""What a lent agent's name begins with."""
_AGENT_LIFETIME = 30 * 86_400.0
"""Seconds after which a lent agent ends, also if the program still holds it."""
_CALL_TIMEOUT = 86_400.0
"""Seconds: how long a call may take is the daemon's to say, by server."""
_LARGEST_ANSWER_MB = 1024.0
"""So is how large an answer may be."""
_ANSWERS_WITHIN = 10.0
_LENT_WITHIN = 30.0
"""Seconds for the whole way to a lent agent: its daemon waits for servers that nobody has seen yet."""


class Connection(AsyncResource, ToolProvider):
    """A running daemon's tools, as one of its agents: `async with Crib.connect() as crib`.

    `crib.tools()` are those that the agent may use, `await crib.call("read_file", {…})` calls one. What may be done is
    for the daemon to decide, and is in its audit log.
    """

    def __init__(
        self,
        *,
        agent: str | None = None,
        token: str | None = None,
        profile: str | None = None,
        workdir: str | os.PathLike[str] | None = None,
        paths: Paths | None = None,
        environ: Mapping[str, str] | None = None,
        parent: str | None = None,
    ) -> None:
        """With `agent` (its token is in this user's files) or `token`: that agent. Otherwise an agent with `profile`,
        `developer` by default, is lent that works in `workdir`, by default the current folder, and ends with the
        connection; `parent` bounds it.
        """
        if (agent or token) and (profile or workdir or parent):
            raise UsageError(
                "An agent that exists has its profile, its folder and its parent already.",
                remedy="Leave profile, workdir and parent out, or agent and token.",
            )
        self.bus = Bus()
        self.agent = agent or ""
        """Who we are at the daemon."""
        self._token = token or ""
        self._paths = paths or Paths.of_user(os.environ if environ is None else environ)
        self._wanted = LeaseRequest(
            client=_CLIENT,
            profile=profile or "developer",
            workdir=Path(workdir or Path.cwd()).resolve(),
            conversation=secrets.token_hex(5),
            lives=_AGENT_LIFETIME,
            parent=parent or "",
        )
        self._calls = itertools.count(1)
        self._pool = ServerPool(bus=self.bus, on_tools=self._tools_changed)
        self._server: Server | None = None
        self._entered = False
        self._listed = DaemonCatalog()
        self._states = DaemonServerStates(self._state_changed)
        self._lease: AgentLease | None = None
        self._following: asyncio.Task[None] | None = None
        self._over = ""
        """Why the lent agent is no more."""

    def __repr__(self) -> str:
        return f"Connection(agent={self.agent!r})"

    def _refuse_again(self) -> None:
        if self._entered:
            raise UsageError("A Connection is used once.", remedy="Make another, by `Crib.connect()`.")

    async def _open(self) -> None:
        self._entered = True
        url = await self._known_agent() if self.agent or self._token else await self._lent_agent()
        self._server = self._pool.acquire(self._config(url))
        await self._server.settled()
        if self._server.status.state is not ServerState.READY:
            raise _refused(url, self._server.status.last_error)
        await self._states.begin(self._paths.socket, self._token, project_of(self._wanted.workdir))

    async def _close(self) -> None:
        self._server = None
        await self._states.close()
        await self._pool.close()
        if self._lease is not None:
            await self._lease.release()
        if self._following is not None:
            await self._following

    async def _lent_agent(self) -> str:
        root = project_of(self._wanted.workdir)
        try:
            async with asyncio.timeout(_LENT_WITHIN):
                connection = await DaemonConnection.to(self._paths.socket)
                self._lease = await AgentLease.begin(connection, self._wanted, path=self._paths.socket, root=root)
        except (DaemonDisconnected, UnknownCommand) as error:
            raise _not_running() from error
        except TimeoutError as error:
            raise _no_answer() from error
        self.agent, self._token = self._lease.agent, self._lease.token
        self._following = asyncio.create_task(self._follow(self._lease))
        return self._lease.url

    async def _follow(self, lease: AgentLease) -> None:
        """A daemon that nobody listens to takes its agent back; of its events, only the end matters here."""
        async for event in lease.events():
            match event:
                case LeaseEnded(why=why):
                    self._over = f"The daemon has ended {lease.agent}: {why}."
                case LeaseLost(why=why):
                    self._over = why

    async def _known_agent(self) -> str:
        if not self._token:
            kept = await asyncio.to_thread(AgentFolders(self._paths.agents).get, self.agent)
            self._token = (kept or "").strip()
        if not self._token:
            raise NotFound(
                f"There is no agent {self.agent[:80]!r} here.", remedy="`toolcrib agent list` shows which there are."
            )
        try:
            async with asyncio.timeout(_ANSWERS_WITHIN):
                status = await DaemonConnection.answer(self._paths.socket, "system:status", {}, self._wanted.workdir)
        except DaemonDisconnected as error:
            raise _not_running() from error
        except TimeoutError as error:
            raise _no_answer() from error
        return str(status["endpoint"])

    def _config(self, url: str) -> ServerConfig:
        labels = {"X-Toolcrib-Agent": self.agent} if self.agent else {}
        return ServerConfig(
            name=DAEMON,
            transport=Transport.HTTP,
            source=ConfigSource(layer=Layer.FLAGS),
            url=url,
            headers={
                "Authorization": f"Bearer {self._token}",
                "X-Toolcrib-Conversation": self._wanted.conversation,
                "X-Toolcrib-Sources": "1",
                **labels,
            },
            call_timeout=_CALL_TIMEOUT,
            max_message_mb=_LARGEST_ANSWER_MB,
        )

    @property
    def catalog(self) -> Catalog:
        """What the agent may see."""
        return self._tools_now().catalog

    @property
    def all_known(self) -> bool:
        """What its agent may not see is there all the same."""
        return False

    def _tools_now(self) -> DaemonCatalog:
        definitions = self._live().tools
        if definitions is not None and definitions is not self._listed.definitions:
            self._listed = self._listed.anew(definitions)
        return self._listed

    def status(self) -> dict[str, ServerStatus]:
        """Of the servers that the agent may use: how each does at the daemon, as far as that is there itself."""
        tools = self.catalog.tools
        link = self._live().status
        states = self._states.by_server if link.state is ServerState.READY else {}
        return {
            name: ServerStatus(
                name=name,
                state=states.get(name, link.state),
                transport=DAEMON,
                tools=sum(tool.server == name for tool in tools),
                since=link.since,
                last_seen=link.last_seen,
                last_error=link.last_error,
            )
            for name in sorted({tool.server for tool in tools} | self._states.by_server.keys())
        }

    async def call(
        self, name: str, arguments: Mapping[str, Any] | None = None, *, timeout: float | None = None
    ) -> Result:
        listed = self._tools_now()
        tool = listed.find(name)
        params = call_request(name, arguments, timeout).params
        with publish_call(
            self.bus,
            call_id=f"{self.agent}-{next(self._calls)}",
            caller=self.agent,
            name=name,
            tool=name if tool is None else tool.display,
            server="" if tool is None else tool.server,
            arguments=bytes(params["arguments"]),
        ) as finished:
            # A name that is not known here is the daemon's to judge: it may be new, or not for us.
            public = name if tool is None else listed.public(tool)
            answer = await self._answered(ToolCall(name=public, params=params), timeout)
            result = read_answer(answer)
        finished(result)
        return result

    async def _answered(self, call: ToolCall, timeout: float | None) -> ServerAnswer:
        try:
            with self._advising(timeout):
                answer = await self._live().call(call, timeout=timeout)
        except ServerUnavailable as error:
            if self._over:
                raise ServerUnavailable(f"{self._over} The call did not run.", remedy="Connect again.") from error
            raise
        match msgspec.json.decode(answer.error or b"null"):
            case {"data": {"kind": str()}} as error:
                raise error_from(error)
        return answer

    def _state_changed(self, server: str, state: ServerState) -> None:
        self.bus.publish(ServerStateChanged(server=server, state=state.value))

    def _tools_changed(self, server: Server) -> None:
        before = self._listed.catalog.version
        if server is self._server and self.catalog.version != before:
            self.bus.publish(CatalogChanged(root=str(self._wanted.workdir), version=self.catalog.version))

    def _live(self) -> Server:
        if self._server is None:
            raise self._not_open()
        return self._server


def _refused(url: str, why: str) -> ToolcribError:
    if why == explain_status(HTTPStatus.UNAUTHORIZED, url):
        return Denied(
            "The daemon does not know this token: it was replaced, revoked or has expired.",
            remedy="`toolcrib agent list` shows the agents, `toolcrib agent rotate NAME` makes a new token.",
        )
    if why == explain_status(HTTPStatus.FORBIDDEN, url):
        return Denied("The token is another agent's.", remedy="Leave `agent` out, or `token`.")
    return ServerUnavailable(
        f"The daemon at {url} could not be reached: {why}", remedy="`toolcrib status` says how it does."
    )


def _no_answer() -> DaemonNotRunning:
    return DaemonNotRunning(
        "The daemon does not answer.",
        remedy="`toolcrib status` says how it does; `toolcrib down` and `toolcrib up` start it anew.",
    )


def _not_running() -> DaemonNotRunning:
    return DaemonNotRunning("No daemon runs that a program could connect to.", remedy="`toolcrib up` starts one.")
