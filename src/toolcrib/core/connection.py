"""A running daemon's tools, for your program.

In: one of the daemon's agents, or a request for a leased one, which exists while the connection is open. Out: a
provider. The daemon decides what the agent may see and call, and audits it. Tools have their plain names, as
everywhere in the library; the daemon sends each tool's server. Calls are published on the connection's own bus, like
the door's. `Crib.connect` creates one.
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

from toolcrib.calls import CallRequest
from toolcrib.catalog.offers import OfferCatalog
from toolcrib.catalog.snapshot import Catalog
from toolcrib.catalog.tool import Tool
from toolcrib.config.model import ConfigSource, Layer, RootsMode, ServerConfig, Transport
from toolcrib.config.paths import Paths, project_of
from toolcrib.core.answers import Answer, ProgramAsker, ServerQuestion, program_asker
from toolcrib.core.daemon_catalog import DaemonCatalog, DaemonServerStates, daemon_offers
from toolcrib.core.offer_source import PROMPT_METHOD
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
from toolcrib.servers.model import Offers, ServerAnswer, ServerState, ServerStatus, ToolCall
from toolcrib.servers.pool import ServerPool
from toolcrib.servers.questions import Question, QuestionRefused, naming
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
    """Yields a function for the result; an exception determines the outcome instead."""
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
"""The daemon's server name in errors and events."""
_CLIENT = "program"
"""The prefix of a leased agent's name."""
_AGENT_LIFETIME = 30 * 86_400.0
"""Seconds after which a leased agent ends, even if the program still uses it."""
_CALL_TIMEOUT = 86_400.0
"""Seconds. The daemon limits each call, by server."""
_LARGEST_ANSWER_MB = 1024.0
"""The daemon also limits the size of an answer."""
_ANSWERS_WITHIN = 10.0
_LENT_WITHIN = 30.0
"""Seconds to get a leased agent: the daemon first waits for servers whose tools it has never listed."""


class Connection(AsyncResource, ToolProvider):
    """A running daemon's tools, as one of its agents: `async with Crib.connect() as crib`.

    `crib.tools()` returns the tools that the agent may use, `await crib.call("read_file", {…})` calls one. The daemon
    decides on every call and audits it.
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
        answer: Answer | None = None,
    ) -> None:
        """Connects as `agent` (its token is in this user's files) or with `token`. Otherwise leases an agent with
        `profile` (default `developer`) and `workdir` (default: the current folder), which ends with the connection;
        `parent` limits its permissions. `answer` gets what servers ask during a call; without it, the questions of a
        leased agent wait for the owner (`toolcrib approvals`), and others are cancelled.
        """
        if (agent or token) and (profile or workdir or parent):
            raise UsageError(
                "An existing agent already has its profile, folder and parent.",
                remedy="Omit profile, workdir and parent, or omit agent and token.",
            )
        self.bus = Bus()
        self._own_asker = program_asker(answer)
        self.agent = agent or ""
        """Our agent's name in the daemon."""
        self._token = token or ""
        self._paths = paths or Paths.of_user(os.environ if environ is None else environ)
        self._wanted = LeaseRequest(
            client=_CLIENT,
            profile=profile or "developer",
            workdir=Path(workdir or Path.cwd()).resolve(),
            conversation=secrets.token_hex(5),
            lives=_AGENT_LIFETIME,
            parent=parent or "",
            answers=True,
        )
        self._calls = itertools.count(1)
        self._pool = ServerPool(bus=self.bus, on_tools=self._tools_changed)
        self._server: Server | None = None
        self._entered = False
        self._listed = DaemonCatalog()
        self._offers_from = Offers()
        self._offers_listed = OfferCatalog()
        self._states = DaemonServerStates(self._state_changed)
        self._lease: AgentLease | None = None
        self._following: asyncio.Task[None] | None = None
        self._over = ""
        """Why the leased agent ended."""

    def __repr__(self) -> str:
        return f"Connection(agent={self.agent!r})"

    def _refuse_again(self) -> None:
        if self._entered:
            raise UsageError("A Connection can be used only once.", remedy="Create another with `Crib.connect()`.")

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
        """Reads the lease's events, because the daemon ends a lease with unread events; only its end matters."""
        async for event in lease.events():
            match event:
                case LeaseEnded(why=why):
                    self._over = f"The daemon ended {lease.agent}: {why}."
                case LeaseLost(why=why):
                    self._over = why

    async def _known_agent(self) -> str:
        if not self._token:
            kept = await asyncio.to_thread(AgentFolders(self._paths.agents).get, self.agent)
            self._token = (kept or "").strip()
        if not self._token:
            raise NotFound(
                f"There is no agent {self.agent[:80]!r} here.", remedy="`toolcrib agent list` lists the agents."
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
            # The daemon limits the calls of each server.
            max_waiting_calls=1_000_000,
            max_message_mb=_LARGEST_ANSWER_MB,
            # The daemon knows the agent's project.
            roots=RootsMode.NONE,
        )

    @property
    def catalog(self) -> Catalog:
        """The tools that the agent may see."""
        return self._tools_now().catalog

    @property
    def all_known(self) -> bool:
        """Never: tools may exist that the agent may not see."""
        return False

    def _tools_now(self) -> DaemonCatalog:
        definitions = self._live().tools
        if definitions is not None and definitions is not self._listed.definitions:
            self._listed = self._listed.anew(definitions)
        return self._listed

    def status(self) -> dict[str, ServerStatus]:
        """The state of the servers that the agent may use, or of the daemon while it cannot be reached."""
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

    def _offers(self) -> OfferCatalog:
        listed = self._live().offers
        if listed is not self._offers_from:
            self._offers_from, self._offers_listed = listed, daemon_offers(listed)
        return self._offers_listed

    async def _request(self, request: CallRequest) -> ServerAnswer:
        listed = self._offers()
        offers = listed.prompts if request.method == PROMPT_METHOD else listed.resources
        tool = next((one.tool for one in offers if one.shown_as == request.tool), None)
        # Addresses are the daemon's; it has another name for the prompt.
        name = tool.display if tool is not None and request.method == PROMPT_METHOD else request.tool
        call = ToolCall(name=name, method=request.method, params=request.params)
        answer, _ = await self._published(call, request.tool, tool, request.timeout)
        return answer

    async def call(
        self, name: str, arguments: Mapping[str, Any] | None = None, *, timeout: float | None = None
    ) -> Result:
        listed = self._tools_now()
        tool = listed.find(name)
        params = call_request(name, arguments, timeout).params
        # The daemon decides on unknown names: the tool may be new, or not permitted.
        public = name if tool is None else listed.public(tool)
        _, result = await self._published(ToolCall(name=public, params=params), name, tool, timeout)
        return result

    async def _published(
        self, call: ToolCall, name: str, tool: Tool | None, timeout: float | None
    ) -> tuple[ServerAnswer, Result]:
        with publish_call(
            self.bus,
            call_id=f"{self.agent}-{next(self._calls)}",
            caller=self.agent,
            name=name,
            tool=name if tool is None else tool.display,
            server="" if tool is None else tool.server,
            arguments=bytes(call.params.get("arguments", b"{}")),
        ) as finished:
            if (asker := self._asker) is not None:
                call = msgspec.structs.replace(call, asker=_DaemonAsker(asker, call.name, tool))
            answer = await self._answered(call, timeout)
            result = read_answer(answer)
        finished(result)
        return answer, result

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
        before, offers = self._listed.catalog.version, self._offers_listed
        if server is self._server and (self.catalog.version != before or self._offers() is not offers):
            self.bus.publish(CatalogChanged(root=str(self._wanted.workdir), version=self.catalog.version))

    def _live(self) -> Server:
        if self._server is None:
            raise self._not_open()
        return self._server


class _DaemonAsker:
    """Asks the program what a server asks through the daemon, which has named the server in its message."""

    root = None

    def __init__(self, asker: ProgramAsker, name: str, tool: Tool | None) -> None:
        self.capabilities = asker.capabilities
        self._asker = asker
        self._server, self._tool = ("", name) if tool is None else (tool.server, tool.display)

    async def ask(self, question: Question) -> Mapping[str, Any]:
        params = {**question.params, "message": question.params["message"].removeprefix(naming(question))}
        return await self._asker.answered(ServerQuestion.of(self._server, self._tool, params))

    async def permit(self, question: Question) -> None:
        raise QuestionRefused("A program has no model to ask.")

    def note(self, question: Question, action: str) -> None:
        """The daemon's audit log has it."""


def _refused(url: str, why: str) -> ToolcribError:
    if why == explain_status(HTTPStatus.UNAUTHORIZED, url):
        return Denied(
            "The daemon does not accept this token: it was replaced or revoked, or has expired.",
            remedy="`toolcrib agent list` lists the agents, `toolcrib agent rotate NAME` creates a new token.",
        )
    if why == explain_status(HTTPStatus.FORBIDDEN, url):
        return Denied("The token belongs to another agent.", remedy="Omit `agent` or `token`.")
    return ServerUnavailable(
        f"The daemon at {url} could not be reached: {why}", remedy="Run `toolcrib status` to check it."
    )


def _no_answer() -> DaemonNotRunning:
    return DaemonNotRunning(
        "The daemon does not answer.",
        remedy="Run `toolcrib status` to check it; `toolcrib down` and `toolcrib up` restart it.",
    )


def _not_running() -> DaemonNotRunning:
    return DaemonNotRunning("No daemon is running.", remedy="`toolcrib up` starts one.")
