"""Keeps one upstream server connected, by one task.

In: the server's configuration. Out: its tools as raw definitions and its other offers, its status, and events when its
state changes. Below: `transports` opens a link, `tool_listing` lists. Above: `server`, which makes calls.

The supervisor task connects, lists the tools, and waits until the connection ends; then it retries with growing
pauses. Servers never affect each other. A server that is idle has no supervisor task and no process.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from toolcrib.config.masking import Masker, secrets_of_server
from toolcrib.config.model import CONNECT_LIMIT, ServerConfig
from toolcrib.errors import ServerFailure, ServerUnavailable
from toolcrib.events import Bus, Event, ServerStateChanged
from toolcrib.servers import health, refused_calls
from toolcrib.servers.account import LOADING_SDK, Account
from toolcrib.servers.breaker import Breaker
from toolcrib.servers.idle import IdleTimer
from toolcrib.servers.installing import STOP_PATIENCE, Installation
from toolcrib.servers.link import (
    LOG_MESSAGE,
    RESOURCE_UPDATED,
    EndedEarly,
    LinkContext,
    Peer,
    ServerLink,
    running_beside,
)
from toolcrib.servers.link_questions import ELICITATION_COMPLETE, ServerQuestions
from toolcrib.servers.model import (
    Era,
    Offers,
    PastError,
    ServerState,
    ServerStatus,
    remember_error,
)
from toolcrib.servers.reaper import Reaper
from toolcrib.servers.resource_watch import ResourceWatch
from toolcrib.servers.stdio import StderrLog
from toolcrib.servers.tasks import OpenTasks
from toolcrib.servers.tool_listing import list_offers, list_tools
from toolcrib.servers.web import explain, root_cause, with_current_token

log = logging.getLogger(__name__)

_CALM = 0.03
"""Seconds to wait after a change notification, because more often follow."""
_REST_PER_TOOL = 0.0005
"""Seconds per tool, resource or prompt between two listings: building a catalog of them takes a tenth of this."""
KEPT_ERRORS = 10
_STOP = (3.0, 0.5, 0.5)
"""Seconds to wait for a connection to close. It is cancelled again after each, because a cancellation can get lost."""
_NO_OFFERS = Offers()
ASKS = "asks"
"""Stored among a server's capabilities: it asks on a stream that its callers share."""
_QUIET_STATES = frozenset({ServerState.CONNECTING, ServerState.STOPPED, ServerState.IDLE})

OnNotice = Callable[[str, Mapping[str, Any], str | None], None]
"""Gets the method and params of a notification, and the only agent that it is for; None for all."""
OpenLink = Callable[[ServerConfig, LinkContext], contextlib.AbstractAsyncContextManager[ServerLink]]


def _load_transports() -> OpenLink:
    """Loads the MCP SDK: in a thread when the first server connects, as it takes half a second."""
    with LOADING_SDK:
        from toolcrib.servers.transports import open_link  # noqa: PLC0415 - see above
    return open_link


class Supervisor:
    _open_link: ClassVar[OpenLink | None] = None

    def __init__(
        self,
        config: ServerConfig,
        *,
        root: Path | None,
        on_tools: Callable[[Any], None],
        bus: Bus,
        reaper: Reaper,
        log_file: Path | None = None,
        mask: Masker | None = None,
        known_tools: tuple[bytes, ...] | None = None,
        known_offers: Offers = _NO_OFFERS,
        install_locks: Path | None = None,
        account: Account | None = None,
    ) -> None:
        """`mask` removes secrets from all its output, also those of other servers: an agent may have passed it one."""
        self.config = config
        self.name = config.name
        self.root = root
        self.tools = known_tools
        """Last known raw definitions; None if never listed."""
        self.offers = msgspec.structs.replace(known_offers, capabilities=known_offers.capabilities - {ASKS})
        """Last known, of everything else."""
        self.asks = ASKS in known_offers.capabilities
        """Whether it has asked on a stream that all its callers share, so that a question names no call. From then on
        each agent has its own instance, and one call at a time."""
        self.watch = ResourceWatch(lambda params: self.on_notice(RESOURCE_UPDATED, params, None))
        self.on_notice: OnNotice = lambda method, params, agent: None
        """Gets changes of resources, and log messages that name no request."""
        self._on_tools = on_tools
        self._bus = bus
        self._reaper, self.account = reaper, account
        self.mask = mask or Masker()
        self.mask.learn(secrets_of_server(config))
        self._stderr = StderrLog(log_file, self.mask.line)
        self._installation = Installation(config, install_locks)
        self._state = ServerState.STOPPED
        self._since, self._last_error = time.time(), ""
        self._last_seen: float | None = None
        self._breaker = Breaker(config.retry)
        self._misbehaved = False
        """Whether we closed the last connection because of its input; if so, the reason stays visible."""
        self.calls = 0
        """Calls that run or wait for the connection."""
        self.tasks, self._tokens = OpenTasks(), itertools.count(1)
        self._resumes = True
        """Whether its next connection is the first one, or the first after it was idle."""
        self.restarts = 0
        """How often it has connected otherwise."""
        self.errors: deque[PastError] = deque(maxlen=KEPT_ERRORS)
        """Why it was lost or could not be reached, newest last."""
        self._peer: Peer | None = None
        self._known_era: Era | None = None
        self._link: ServerLink | None = None
        self._links: weakref.WeakSet[ServerLink] = weakref.WeakSet()
        """Links with calls that may still run, including the current one."""
        self._task: asyncio.Task[None] | None = None
        self._turning = asyncio.Lock()
        """Held while the supervisor is stopped or replaced, so that only one runs."""
        self._released = False
        self._changed = asyncio.Event()
        self._settled = asyncio.Event()
        self._wake, self._tools_changed = asyncio.Event(), asyncio.Event()
        self._listing, self._one_at_a_time = asyncio.Lock(), asyncio.Lock()
        self._idle = IdleTimer(
            config.idle_seconds, lambda: self.calls > 0 or bool(self.watch) or bool(self.tasks), self.rest_soon
        )
        self._resting: asyncio.Task[None] | None = None

    @property
    def status(self) -> ServerStatus:
        link, peer = self._link, self._peer
        return ServerStatus(
            name=self.name,
            state=self._state,
            transport=(link.transport if link else "") or self.config.transport.value,
            root=str(self.root) if self.root else None,
            protocol_version=peer.version if peer else None,
            pid=link.pid if link else None,
            tools=len(self.tools or ()),
            installing=self.installing,
            waits_for_installation=self.installing and self._installation.waits,
            since=self._since,
            last_seen=link.last_seen if link else self._last_seen,
            last_error=self.mask.line((link.last_error if link else "") or self._last_error),
            next_attempt=self._breaker.next_attempt if self._state is ServerState.UNAVAILABLE else None,
            attempts=0 if self._state is ServerState.READY else self._breaker.failures,
            server_info=peer.server_info if peer else {},
            instructions=peer.instructions if peer else "",
        )

    @property
    def installing(self) -> bool:
        return self._state is ServerState.CONNECTING and self._installation.is_due

    @property
    def era(self) -> Era | None:
        """The era of the current or last connection."""
        return self._peer.era if self._peer else None

    def stderr_tail(self, count: int) -> list[str]:
        return self._stderr.tail(count)

    def start(self) -> None:
        """Starts to connect and returns at once. Does nothing after `stop`."""
        if self._released or (self._task is not None and not self._task.done()):
            return
        self._settled = asyncio.Event()
        self._wake = asyncio.Event()
        self._breaker.reset()
        self._enter(ServerState.CONNECTING)
        # While this attempt runs, the last error would look like its outcome. `errors` keeps it.
        self._since, self._last_error = time.time(), ""
        self._task = asyncio.get_running_loop().create_task(self._supervise(), name=f"server {self.name}")

    async def rest(self) -> None:
        """Ends the connection and the process until the next call, unless a call is in flight. The tools stay
        listed."""
        async with self._turning:
            if self._state is not ServerState.READY:
                return
            if self.calls or self.tasks:
                self._idle.start()
                return
            # From here on, calls wait for the next connection.
            self._link = None
            self._resumes = True
            await self._end("It was idle.")
            self._enter(ServerState.STOPPED if self._released else ServerState.IDLE)

    def rest_soon(self) -> None:
        self._resting = asyncio.get_running_loop().create_task(self.rest())

    async def settled(self, limit: float | None = None) -> None:
        """Returns when the first attempt to connect has succeeded or failed, or after `limit` seconds.

        By default, that is when the attempt must be over, but a server that is being installed is not waited for.
        """
        if self._task is None:
            return
        usual = self.config.connect_timeout + 1
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit or (min(usual, CONNECT_LIMIT) if self.installing else usual)):
                await self._settled.wait()

    def _kick(self) -> bool:
        """Triggers an attempt, if that is allowed now."""
        if not self._breaker.kick():
            return False
        self._enter(ServerState.CONNECTING)
        self._wake.set()
        return True

    def unavailable(self) -> ServerUnavailable:
        """Why a call cannot be made now."""
        return refused_calls.unavailable(
            self.name,
            self._state,
            error=self.status.last_error if self._last_error else "",
            installing=time.time() - self._since if self.installing else None,
            next_attempt=self._breaker.next_attempt,
        )

    async def _supervise(self) -> None:
        while True:
            self._breaker.begin()
            error = await self._live()
            self._settled.set()
            self._breaker.lost(misbehaved=self._misbehaved)
            if error is None and not self._breaker.is_open:
                # Only the session expired: open a new one at once.
                self._enter(ServerState.CONNECTING)
                continue
            self._last_error = self.mask.line("It keeps losing the session." if error is None else error)
            remember_error(self.errors, self._last_error)
            if self._breaker.exhausted:
                self._enter(ServerState.FAILED)
                return
            if not self._wake.is_set():
                self._enter(ServerState.UNAVAILABLE)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._breaker.pause()):
                    await self._wake.wait()
            self._enter(ServerState.CONNECTING)

    async def _live(self) -> str | None:
        """Runs one connection. Returns why it ended; None if it only needs a new session."""
        eras = [self._known_era] if self._known_era is not None else [None, Era.LEGACY]
        why = ""
        for era in eras:
            try:
                return await self._connect_and_wait(era)
            except Exception as error:
                cause = root_cause(error)
                if not isinstance(cause, ServerFailure | TimeoutError | OSError):
                    log.exception("%s: connecting failed", self.name, exc_info=cause)
                why = explain(cause, self.config.connect_timeout)
                self._breaker.postpone(getattr(cause, "retry_after", None) or 0.0)
                # Some legacy servers exit if the first message is not `initialize`, so try again as legacy.
                if not isinstance(cause, EndedEarly) or self._installation.fetch_failed(self._stderr.last_words()):
                    break
        self._known_era = None
        self._installation.failed()
        return why

    async def _connect_and_wait(self, era: Era | None) -> str | None:
        self._tools_changed.clear()
        self._wake.clear()
        limit = self.config.connect_timeout
        context = LinkContext(
            root=self.root,
            reaper=self._reaper,
            stderr=self._stderr,
            on_lists_changed=self._tools_changed.set,
            known_era=era,
            resources=self.watch,
            questions=ServerQuestions(self.config, self.root, self._note_asking),
            account=self.account,
        )
        async with self._installation.turn(), contextlib.AsyncExitStack() as stack:
            async with asyncio.timeout(limit):
                if Supervisor._open_link is None:
                    Supervisor._open_link = await asyncio.to_thread(_load_transports)
                config = await with_current_token(self.config)
                self.mask.learn(secrets_of_server(config))
                link = await stack.enter_async_context(Supervisor._open_link(config, context))
                tools = await list_tools(link, limit)
                self.offers = await list_offers(link, limit)
            self._ready(link, tools)
            try:
                why = await self._until_lost(link)
            finally:
                self._idle.stop()
                self.watch.lost()
                self._link = None
                self._last_seen = link.last_seen
                self._misbehaved = link.misbehaved
                if link.silent and link.pid is None:
                    self._breaker.hang()
            self._last_error = self.mask.line(why or "")
            # Set before closing, which may take a while.
            self._enter(ServerState.UNAVAILABLE if why else ServerState.CONNECTING)
            return why

    def _ready(self, link: ServerLink, tools: tuple[bytes, ...]) -> None:
        self._installation.answered()
        self.tools = tools
        self._peer = link.peer
        self._known_era = link.peer.era
        if not self._misbehaved:
            self._last_error = ""
        self._link = link
        self._links.add(link)
        self.watch.attach(link)
        link.on_notice = self._noticed
        self.restarts += not self._resumes
        self._resumes = False
        self._breaker.connected()
        self._idle.start()
        self._enter(ServerState.READY)
        self._settled.set()

    async def _until_lost(self, link: ServerLink) -> str | None:
        async with running_beside(self._list_on_change(link), health.watch(link), self.watch.repeat()):
            await asyncio.wait({link.lost})
        return None if link.session_expired else link.lost.result()

    def _noticed(self, method: str, params: Mapping[str, Any]) -> bool:
        """A log message over a pipe names no request. While one agent's calls are in flight, it is about these; while
        several agents' are, nobody gets it. Returns whether anyone wants it."""
        if method == ELICITATION_COMPLETE:
            questions = self._link.questions if self._link is not None else None
            agent = questions.asked_to_open(params) if questions is not None else None
            if agent is not None:
                self.on_notice(method, params, agent)
            return agent is not None
        if method != LOG_MESSAGE:
            self.watch.updated(params)
            return False
        wanted = self.watch.wants(params.get("level")) and len(self.watch.callers) < 2
        if wanted:
            for wish in self.watch.wishes:
                if wish.untagged:
                    wish.receive(params)
            self.on_notice(method, params, next(iter(self.watch.callers), None))
        return wanted

    def _note_asking(self) -> None:
        if not self.asks:
            self.asks = True
            log.info("%s asks on a stream that its callers share, so its calls run one at a time", self.name)
            self._publish_tools()

    async def _list_on_change(self, link: ServerLink) -> None:
        """Lists the tools after a change, one list at a time, however many notifications arrive."""
        while True:
            await self._tools_changed.wait()
            await asyncio.sleep(_CALM)
            self._tools_changed.clear()
            try:
                await self._list(link)
            except ServerFailure as error:
                # The end of a connection is reported elsewhere, or was wanted.
                if not link.is_over:
                    log.warning("%s: could not list its tools again: %s", self.name, self.mask.line(error.text()))
            await asyncio.sleep(_REST_PER_TOOL * (len(self.tools or ()) + self.offers.count))

    async def _list(self, link: ServerLink) -> None:
        async with self._listing:
            tools = await list_tools(link, self.config.connect_timeout)
            offers = await list_offers(link, self.config.connect_timeout)
        if (tools, offers) != (self.tools, self.offers):
            self.tools, self.offers = tools, offers
            self._publish_tools()

    async def _end(self, reason: str, patience: float = STOP_PATIENCE) -> None:
        """Stops the supervisor and everything it opened. Calls in flight fail with the reason."""
        for link in tuple(self._links):
            link.end_calls(reason)
        task = self._task
        if task is None:
            return
        due = self._link is None and self._installation.is_due
        for seconds in (patience if due else _STOP[0], *_STOP[1:]):
            task.cancel()
            await asyncio.wait({task}, timeout=seconds)
            if task.done():
                break
        self._task = None
        if not task.done():
            log.error("%s: did not stop within %g s; the reaper will kill it", self.name, sum(_STOP))
        elif not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s: failed while stopping", self.name, exc_info=error)
        self._settled.set()

    def _enter(self, state: ServerState) -> None:
        if state is self._state or (self._released and self._state is ServerState.STOPPED):
            return
        self._state = state
        self._since = time.time()
        woken, self._changed = self._changed, asyncio.Event()
        woken.set()
        reason = self._last_error if state in {ServerState.UNAVAILABLE, ServerState.FAILED} else ""
        self._bus.publish(ServerStateChanged(server=self.name, state=state.value, reason=reason))
        if state not in _QUIET_STATES:
            self._publish_tools()

    def publish(self, event: Event) -> None:
        self._bus.publish(event)

    def _publish_tools(self) -> None:
        try:
            self._on_tools(self)
        except Exception:
            log.exception("%s: could not publish its tools", self.name)
