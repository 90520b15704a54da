"""The resources of one server whose changes clients want, and the level of the log messages that they want.

In: wishes of clients, and the server's connections. Out: one subscription per resource, however many clients want it,
renewed with each connection; the most detailed level. Used by `server`; `sdk` subscribes at modern servers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from toolcrib.errors import ServerFailure
from toolcrib.servers.link import ServerLink
from toolcrib.servers.model import Era, LogWish, ServerAnswer

log = logging.getLogger(__name__)

LOG_LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
"""From the most detailed to the least."""
LOG_LEVEL_KEY = "io.modelcontextprotocol/logLevel"
"""The member of `_meta` with which a modern request asks for log messages."""
_DONE = ServerAnswer(result=b"{}")
_LIMIT = 10.0
_REPORTED_WITHIN = 2.0
_REPORT_AFTER = 0.05
"""Seconds in which several changes of a resource count as one."""
_MOST_PARTS = 64
_MAX_UPDATES = 1000
"""Resources that are reported at once; what a server changes beyond them is a flood."""


class ResourceWatch:
    def __init__(self, on_updated: Callable[[Mapping[str, Any]], None] = lambda params: None) -> None:
        """`on_updated` gets the params of each change that clients want, once in a while per resource."""
        self._on_updated = on_updated
        self._updates: dict[str, Mapping[str, Any]] = {}
        """Changes that are reported soon, by address."""
        self.callers: dict[str, int] = {}
        """How many calls of each agent run or wait."""
        self.wishes: list[LogWish] = []
        """What they want of log messages."""
        self._wanted: Counter[str] = Counter()
        self._asked: dict[str, asyncio.Future[ServerAnswer]] = {}
        """A legacy server's answers to subscriptions."""
        self._levels: Counter[str] = Counter()
        self._changed: asyncio.Future[None] | None = None
        self._link: ServerLink | None = None
        self._reported: frozenset[str] = frozenset()
        """Those that a modern server has acknowledged."""
        self._acknowledged = asyncio.Event()
        self._forgotten: tuple[str, ...] = ()
        self._told: str | None = None
        """The level that the connection was set to."""

    def __bool__(self) -> bool:
        """Whether a connection is needed for it."""
        return bool(self._wanted)

    @property
    def uris(self) -> tuple[str, ...]:
        return tuple(self._wanted)

    @property
    def level(self) -> str | None:
        """The most detailed level; None if nobody wants log messages."""
        return min(self._levels, key=LOG_LEVELS.index, default=None)

    @property
    def changed(self) -> asyncio.Future[None]:
        """Done at the next change of `uris`. Modern servers are told all of them at once."""
        if self._changed is None or self._changed.done():
            self._changed = asyncio.get_running_loop().create_future()
        return self._changed

    def acknowledged(self, uris: tuple[str, ...]) -> None:
        """A modern server reports the changes of these from now on."""
        self._reported = frozenset(uris)
        self._acknowledged.set()

    async def _until_reported(self, uri: str) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_REPORTED_WITHIN):
                while uri in self._wanted and uri not in self._reported:
                    self._acknowledged.clear()
                    await self._acknowledged.wait()

    def wants(self, level: Any) -> bool:
        """Whether anyone wants log messages of this level."""
        least = self.level
        return least is not None and level in LOG_LEVELS and LOG_LEVELS.index(level) >= LOG_LEVELS.index(least)

    def updated(self, params: Mapping[str, Any]) -> None:
        """A server may change a resource a thousand times a second; its clients read it as fast as they can."""
        uri = params.get("uri")
        if not isinstance(uri, str) or not self._is_wanted(uri):
            return
        if not self._updates:
            asyncio.get_running_loop().call_later(_REPORT_AFTER, self._report)
        if len(self._updates) < _MAX_UPDATES:
            self._updates[uri] = params

    def _is_wanted(self, uri: str) -> bool:
        """A server may announce a part of a resource."""
        if uri in self._wanted or not self._wanted or uri.count("/") > _MOST_PARTS:
            return uri in self._wanted
        return any(uri[:at] in self._wanted for at, letter in enumerate(uri) if letter == "/")

    def _report(self) -> None:
        updates, self._updates = self._updates, {}
        for params in updates.values():
            self._on_updated(params)

    def attach(self, link: ServerLink) -> None:
        """From here on, the connection gets each new wish. `repeat` follows."""
        self._link = link
        self._forgotten = self.uris

    async def repeat(self) -> None:
        """Repeats earlier wishes to a legacy server, which has forgotten them."""
        for uri in self._forgotten:
            if uri not in self._wanted:
                continue
            await self._tell("resources/subscribe", {"uri": uri})
        await self._tell_level()

    def lost(self) -> None:
        self._link = self._told = None
        self._reported = frozenset()

    async def add(self, uri: str) -> ServerAnswer:
        """Each `add` that the server accepts needs one `remove`."""
        self._wanted[uri] += 1
        try:
            answer = await self._begin(uri)
        except BaseException:
            await self.remove(uri)
            raise
        if answer.error is not None:
            await self.remove(uri)
        return answer

    async def _begin(self, uri: str) -> ServerAnswer:
        link = self._link
        if self._wanted[uri] == 1:
            self._announce()
        if link is not None and link.peer.era is Era.MODERN and "subscribe" in link.peer.capabilities:
            await self._until_reported(uri)
            return _DONE
        if uri not in self._asked:
            self._asked[uri] = asyncio.ensure_future(self._tell("resources/subscribe", {"uri": uri}))
        # All who want it get the server's answer to the first.
        return await asyncio.shield(self._asked[uri])

    async def remove(self, uri: str) -> None:
        self._wanted[uri] -= 1
        if self._wanted[uri] <= 0:
            del self._wanted[uri]
            self._asked.pop(uri, None)
            self._announce()
            await self._tell("resources/unsubscribe", {"uri": uri})

    async def change_level(self, before: str | None, now: str | None) -> None:
        """A client that wanted log messages of one level wants those of another; None means none."""
        old = self.level
        self._levels.subtract([] if before is None else [before])
        self._levels.update([] if now is None else [now])
        self._levels = +self._levels
        if self.level != old:
            await self._tell_level()

    async def _tell_level(self) -> None:
        level, link = self.level, self._link
        if level not in (None, self._told) and link is not None and "logging" in link.peer.capabilities:
            self._told = level
            await self._tell("logging/setLevel", {"level": level})

    async def _tell(self, method: str, params: dict[str, Any]) -> ServerAnswer:
        link = self._link
        if link is None or link.peer.era is Era.MODERN:
            return _DONE
        try:
            answer = await link.request(method, params, meta={}, limit=_LIMIT)
        except ServerFailure as error:
            # The next connection repeats it.
            log.debug("%s: %s failed: %s", link.name, method, error.message)
            return _DONE
        if answer.error is not None:
            log.info("%s refuses %s", link.name, method)
        return answer

    def _announce(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)
