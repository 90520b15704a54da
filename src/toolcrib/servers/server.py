"""One upstream server, as its users see it: calls, and control of its life.

In: calls. Out: answers as raw bytes. Below: `supervisor` keeps it connected. Above: `ServerPool` holds servers,
`catalog` reads `tools`, `calls` calls.

A call that may have run is never repeated. The next call of an idle server starts its supervisor and its process.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from toolcrib.config.model import ShareMode
from toolcrib.errors import ProtocolViolation, ServerUnavailable
from toolcrib.servers import health, refused_calls, tasks
from toolcrib.servers.installing import STOP_PATIENCE
from toolcrib.servers.link import ServerLink, SessionExpired
from toolcrib.servers.model import (
    NAMED_BY,
    Era,
    OnProgress,
    ServerAnswer,
    ServerHealth,
    ServerState,
    TaskTerms,
    ToolCall,
)
from toolcrib.servers.questions import (
    INPUT_REQUIRED,
    INPUT_RESPONSES,
    MAX_ROUNDS,
    needed_input,
    offered_capabilities,
    settle_round,
    with_input,
)
from toolcrib.servers.resource_watch import LOG_LEVEL_KEY
from toolcrib.servers.supervisor import Supervisor
from toolcrib.servers.wire import CLIENT_CAPABILITIES_KEY, result_type

_INSTALLING_CALL = 30.0
"""Seconds that a call waits for a server that is being installed."""
_RETIRES = 0.05
"""Seconds between checks whether the last call has finished."""
_ALIVE = frozenset({ServerState.CONNECTING, ServerState.READY})


def _asks_input(answer: ServerAnswer) -> bool:
    result = answer.result
    return result is not None and b'"input_required"' in result and result_type(result) == INPUT_REQUIRED


class Server(Supervisor):
    @property
    def is_per_agent(self) -> bool:
        """Whether each agent has its own instance."""
        return self.config.share is ShareMode.AGENT or (self.asks and self.config.share is None)

    @property
    def was_used(self) -> bool:
        """Whether any call was made."""
        return bool(self.calls or self._idle.used_at)

    def start_on_demand(self) -> None:
        """Its known tools are listed; its first call starts it."""
        self._state = ServerState.IDLE

    def start_if_idle(self) -> None:
        if self._state is ServerState.IDLE:
            self.start()

    async def stop(self, *, patience: float = STOP_PATIENCE) -> None:
        """Closes the connection for good, and ends the server's process and its descendants.

        A launcher that is installing gets `patience` seconds to clean up.
        """
        self._released = True
        async with self._turning:
            await self._end("It was stopped.", patience)
            self._enter(ServerState.STOPPED)

    async def retire(self) -> None:
        """Like `stop`, but calls in flight finish first. Each ends within its own time limit. It counts as stopped at
        once, because another instance may take its place."""
        self._released = True
        self._enter(ServerState.STOPPED)
        while self.calls:  # noqa: ASYNC110 - an event would cost each call more than this
            await asyncio.sleep(_RETIRES)
        await self.stop()

    async def restart(self) -> None:
        """Reconnects, also if the server is FAILED."""
        async with self._turning:
            await self._end("It was restarted.")
            self._known_era = None
            self.start()
        await self.settled()

    async def refresh(self) -> None:
        """Lists the tools again, also of an idle server. Raises ServerFailure."""
        self.calls += 1
        try:
            await self._list(await self.connected())
        finally:
            self.calls -= 1

    async def health(self, limit: float) -> ServerHealth:
        """Exchanges one message with the server, within `limit` seconds. Never connects or starts it."""
        link = self._link
        if link is None or link.lost.done():
            return ServerHealth(ok=False, error=self.unavailable().message.removesuffix(" The call did not run."))
        found = await health.examine(link, limit)
        return replace(found, error=self.mask.line(found.error))

    async def call(
        self, call: ToolCall, *, timeout: float | None = None, on_progress: OnProgress | None = None
    ) -> ServerAnswer:
        """Raises ServerUnavailable, CallTimeout, ProtocolViolation. Cancelling also cancels on the server."""
        config = self.config
        limit, setting = timeout, "the call's time limit"
        if limit is None and (limit := config.call_timeouts.get(call.name)) is not None:
            setting = f"the server's call_timeouts.{call.name}"
        elif limit is None:
            limit, setting = config.call_timeout, "the server's call_timeout"
        if self.calls >= config.max_waiting_calls:
            raise refused_calls.overloaded(self.name, self.calls)
        wish, told = call.logs, False
        meta = call.meta if wish is None else {**call.meta, LOG_LEVEL_KEY: wish.level}
        how: Any = {"meta": meta, "limit": limit, "setting": setting, "call": call}
        how |= {"headers": call.headers, "on_progress": on_progress, "logs": wish}
        listed = self.tools
        self.calls += 1
        callers = self.watch.callers
        callers[call.agent] = callers.get(call.agent, 0) + 1
        if wish is not None:
            self.watch.wishes.append(wish)
        try:
            link = self._link
            if link is None or link.lost.done():
                link = await self._connected_for(call, listed)
            if wish is not None:
                told = True
                await self.watch.change_level(None, wish.level)
            if call.method == "resources/subscribe":
                return await self.watch.add(call.name)
            if call.tasks is not None or call.method in tasks.REQUESTS:
                return await self._sent_of_task(link, call, listed, how)
            return await (self._sent_alone if self.asks else self._sent)(link, call, listed, how)
        finally:
            self.calls -= 1
            self._idle.used_at = time.monotonic()
            callers[call.agent] -= 1
            if not callers[call.agent]:
                del callers[call.agent]
            if wish is not None:
                self.watch.wishes.remove(wish)
                if told:
                    await self.watch.change_level(wish.level, None)

    async def _sent_of_task(
        self, link: ServerLink, call: ToolCall, listed: tuple[bytes, ...] | None, how: dict[str, Any]
    ) -> ServerAnswer:
        """A call that may become a task, or a request about one."""
        modern = link.peer.era is Era.MODERN
        if call.tasks is not None:
            return await self._call_as_task(link, call, call.tasks, listed, how)
        if call.method == tasks.RESULT:
            if modern:
                begun = tasks.TaskState(id=call.name, era=Era.MODERN, status="working")
                return await tasks.finished(self, link, call, begun, how)
            how["task"] = call.name
        # What a task asks names it, so these requests may overlap with other calls.
        answer = await self._sent(link, call, listed, how)
        if answer.result is not None and (call.method == tasks.GET or (call.method == tasks.CANCEL and not modern)):
            state = tasks.read_task(self.name, answer.result, link.peer.era)
            tasks.seen(self, call, state)
            if modern and call.takes_input:
                return await tasks.asked_of_caller(self, self._link or link, call, state, how)
        return answer

    async def _call_as_task(
        self,
        link: ServerLink,
        call: ToolCall,
        terms: TaskTerms,
        listed: tuple[bytes, ...] | None,
        how: dict[str, Any],
    ) -> ServerAnswer:
        params = tasks.request_params(link, call, terms, how["limit"])
        if params is None:
            return tasks.NOT_A_TASK
        call = msgspec.structs.replace(call, params=params)
        if how["on_progress"] is not None and not terms.taken:
            # The token stays valid while the task runs.
            how["on_progress"] = tasks.TaskProgress(how["on_progress"])
            how["progress_token"] = f"task-{next(self._tokens)}"
        alone = self.asks and link.peer.era is Era.LEGACY
        try:
            answer = await (self._sent_alone if alone else self._sent)(link, call, listed, how)
            link = self._link or link
            created = tasks.created_task(self.name, answer)
            if created is None:
                return answer
            tasks.seen(self, call, created)
            return answer if terms.taken else await tasks.finished(self, link, call, created, how)
        finally:
            link.forget_progress(how.get("progress_token", ""))

    async def _sent_alone(
        self, link: ServerLink, call: ToolCall, listed: tuple[bytes, ...] | None, how: dict[str, Any]
    ) -> ServerAnswer:
        """While it runs, every question is about this call."""
        async with self._one_at_a_time:
            if link.questions is not None:
                await link.questions.only_live_calls()
            if link.lost.done():
                link = await self._connected_for(call, listed)
            return await self._sent(link, call, listed, how)

    async def _sent(
        self, link: ServerLink, call: ToolCall, listed: tuple[bytes, ...] | None, how: dict[str, Any]
    ) -> ServerAnswer:
        key = NAMED_BY.get(call.method)
        params: Mapping[str, Any] = {**call.params, key: call.name} if key else call.params
        if link.peer.era is Era.MODERN:
            how["meta"] = self._declaring(call, how["meta"])
            if call.method in tasks.REQUESTS or (
                call.tasks is not None and (call.tasks.taken or call.tasks.support == "required")
            ):
                how["meta"] = tasks.declaring(how["meta"])
        elif INPUT_RESPONSES in params:
            # The answers were about pages that had to be opened before this call.
            params = {name: value for name, value in params.items() if name != INPUT_RESPONSES}
        try:
            answer = await link.request(call.method, params, **how)
        except SessionExpired:
            # The server did not know the session, so the call did not run and can be sent again.
            link = await self._connected_for(call, listed)
            answer = await link.request(call.method, params, **how)
        rounds = 0
        while _asks_input(answer):
            rounds += 1
            if rounds > MAX_ROUNDS:
                raise ProtocolViolation(f"Server '{self.name}' asked more than {MAX_ROUNDS} times during one call.")
            needed = needed_input(self.name, answer.result or b"")
            settled = await settle_round(self.config, needed, call.asker, self.root, passes=call.takes_input)
            if settled.questions:
                return ServerAnswer(questions=settled)
            try:
                answer = await link.request(call.method, with_input(params, settled.answers, needed.state), **how)
            except ServerUnavailable as error:
                # The rounds before this one may have done something.
                raise link.interrupted(link.reason_in(error)) from None
        return answer if answer.error is None else await self._refused(link, call, answer, listed, how)

    async def _refused(
        self,
        link: ServerLink,
        call: ToolCall,
        answer: ServerAnswer,
        listed: tuple[bytes, ...] | None,
        how: dict[str, Any],
    ) -> ServerAnswer:
        """Handles the errors with which a server demands something before it runs a call."""
        error = answer.error or b""
        if call.tasks is None and tasks.needs_extension(answer):
            needing = msgspec.structs.replace(call, tasks=TaskTerms(support="required"))
            return await self._sent_of_task(link, needing, listed, how)
        return answer if link.questions is None else link.questions.required_pages(error, call)

    @functools.cached_property
    def _offered_without_client(self) -> dict[str, Any]:
        """What Toolcrib answers by itself."""
        return offered_capabilities(self.config, {})

    def _declaring(self, call: ToolCall, meta: Mapping[str, Any]) -> Mapping[str, Any]:
        """The request's `_meta` with what this caller can be asked."""
        capabilities = {} if call.asker is None else call.asker.capabilities
        offered = offered_capabilities(self.config, capabilities) if capabilities else self._offered_without_client
        if not offered:
            return meta
        return {**meta, CLIENT_CAPABILITIES_KEY: {**meta.get(CLIENT_CAPABILITIES_KEY, {}), **offered}}

    async def _connected_for(self, call: ToolCall, listed: tuple[bytes, ...] | None) -> ServerLink:
        """Raises ServerUnavailable if the tool's definition, which was decided on, changed while the call waited."""
        link = await self.connected()
        if self.tools != listed and listed is not None and call.method == "tools/call":
            refused_calls.refuse_changed(self.name, call.name, listed, self.tools)
        return link

    async def connected(self) -> ServerLink:
        """Waits for a usable link. Triggers a retry if no attempt is running."""
        kicked = False
        try:
            limit = self.config.connect_timeout
            async with asyncio.timeout(min(limit, _INSTALLING_CALL) if self._installation.is_due else limit):
                while True:
                    link = self._link
                    if link is not None and not link.lost.done():
                        return link
                    self.start_if_idle()
                    if self._state is ServerState.UNAVAILABLE and not kicked:
                        kicked = self._kick()
                    if self._state not in _ALIVE or (self._breaker.is_open and not kicked):
                        raise self.unavailable()
                    await self._changed.wait()
        except TimeoutError:
            raise self.unavailable() from None
