"""What a connection is told besides answers: changes of lists and resources, and log messages.

In: events of its project and its servers. Out: notifications, only about what its principal may use. `http` and `pipe`
have one for each legacy connection, and for each subscription of a modern client.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import msgspec

from toolcrib.calls import CallRequest, Door
from toolcrib.catalog.offers import resource_or_prompt
from toolcrib.catalog.tool import OfferKind, Tool
from toolcrib.commands.own_resources import JOBS
from toolcrib.config.masking import printable
from toolcrib.config.model import COMMANDS, RESERVED_SERVER_NAMES
from toolcrib.core.project import Changes, Project
from toolcrib.errors import ToolcribError
from toolcrib.gateway.protocol import list_changed, tagged
from toolcrib.identity.principal import RequestContext
from toolcrib.servers.link import LOG_MESSAGE, RESOURCE_UPDATED
from toolcrib.servers.link_questions import ELICITATION_COMPLETE
from toolcrib.servers.resource_watch import LOG_LEVELS, ResourceWatch

log = logging.getLogger(__name__)

ALL_KINDS = frozenset(OfferKind)
MAX_RESOURCES = 1000
"""Subscriptions of one connection."""


class Watching:
    def __init__(
        self,
        context: RequestContext[Project],
        send: Callable[[bytes], None],
        *,
        kinds: frozenset[OfferKind] = ALL_KINDS,
        tag: bytes | None = None,
    ) -> None:
        """`tag` is the id of a modern client's request."""
        self._context = context
        self._send = send
        self._kinds = kinds
        self._tag = tag
        self.level: str | None = None
        self._resources: dict[str, tuple[Tool, ResourceWatch | None]] = {}
        """By public address. The daemon's own resources need no subscription."""
        self._level_at: dict[str, ResourceWatch] = {}
        """The servers that were told the level."""
        self._begun = tag is None
        """A modern client first gets an acknowledgement."""
        self._closed = False
        self._background: set[asyncio.Task[Any]] = set()
        self._leave = [
            context.project.subscribe(self._changed),
            context.project.listen(self._heard, context.principal.name),
        ]

    def close(self) -> None:
        self._closed = True
        for leave in self._leave:
            leave()
        for uri in tuple(self._resources):
            self.drop(uri)
        self.set_level(None)

    async def watch(self, door: Door, uri: str) -> bytes | None:
        """Subscribes to a resource. Returns the server's error, if it refuses. Raises `ToolcribError`."""
        if uri in self._resources:
            return None
        request = CallRequest(tool=uri, method="resources/subscribe")
        made = await door.call(self._context, request)
        if made.answer.error is None:
            watch = self._watch_of(made.tool.server)
            if uri in self._resources and watch is not None:
                # The client has subscribed twice at once.
                await watch.remove(made.tool.name)
                return None
            self._resources[uri] = made.tool, watch
            if self._closed:
                self.drop(uri)
        return made.answer.error

    async def watch_all(self, door: Door, uris: Sequence[str]) -> list[str]:
        """Returns those that are watched; the client asks why by reading one of the others. Raises `ToolcribError` if
        the agent has ended meanwhile."""
        for uri in uris[:MAX_RESOURCES]:
            try:
                await self.watch(door, uri)
            except ToolcribError as error:
                log.info("%s is not watched: %s", printable(uri[:200]), error.text())
        # It may take long, and a stream that has not begun hears of no change.
        self._drop_lost()
        self._begun = True
        return list(self._resources)

    @property
    def agent(self) -> str:
        return self._context.principal.name

    def drop(self, uri: str) -> None:
        tool, watch = self._resources.pop(uri, (None, None))
        if tool is not None and watch is not None:
            self._spawn(watch.remove(tool.name))

    @property
    def is_full(self) -> bool:
        return len(self._resources) >= MAX_RESOURCES

    @property
    def is_idle(self) -> bool:
        """Whether it only passes on changes of lists."""
        return not self._resources and self.level is None

    def set_level(self, level: str | None) -> None:
        """The least important log messages that the client wants; None for none."""
        for watch in self._level_at.values():
            self._spawn(watch.change_level(self.level, None))
        self.level, self._level_at = level, {}
        self._tell_level()

    def _watch_of(self, server: str) -> ResourceWatch | None:
        found = self._context.project.instance(server, self.agent)
        return None if found is None else found.watch

    def _tell_level(self) -> None:
        """Tells the level to servers that do not know it yet."""
        for name in self._context.project.servers if self.level is not None else ():
            watch = self._watch_of(name)
            if watch is not None and (before := self._level_at.get(name)) is not watch:
                if before is not None:
                    self._spawn(before.change_level(self.level, None))
                self._level_at[name] = watch
                self._spawn(watch.change_level(None, self.level))

    def _follow(self) -> None:
        """A changed configuration has replaced servers: subscribes to the new ones."""
        self._tell_level()
        for uri, (tool, watch) in tuple(self._resources.items()):
            now = self._watch_of(tool.server)
            if now is not watch and now is not None:
                self._resources[uri] = tool, now
                if watch is not None:
                    # Another project may still use it.
                    self._spawn(watch.remove(tool.name))
                self._spawn(now.add(tool.name))

    def permission_changed(self) -> None:
        """Lists may differ now, and resources may not be permitted any more."""
        self._drop_lost()
        offers = self._context.project.offers
        listed = {one.tool.kind for one in offers.everything() if one.tool.server not in RESERVED_SERVER_NAMES}
        self._changed(frozenset({OfferKind.TOOL, *listed}))

    def _drop_lost(self) -> None:
        permission = self._context.principal.permission()
        for uri, (tool, _) in tuple(self._resources.items()):
            if not permission.shows(tool):
                self.drop(uri)

    def _changed(self, changes: Changes) -> None:
        self._follow()
        for kind in (one for one in OfferKind if self._begun and one in changes & self._kinds):
            self._send(list_changed(kind, self._tag))

    def _heard(self, server: str, method: str, params: Mapping[str, Any]) -> None:
        if method == RESOURCE_UPDATED and self._begun:
            self._updated(server, params)
        elif method == ELICITATION_COMPLETE and self._tag is None:
            # Clients ignore a page that they were not asked to open. 2026-07-28 has no such notification.
            self._send(tagged(method, params, None))
        elif method == LOG_MESSAGE and self._wants(params.get("level")) and self._may_use(server):
            self._send(tagged(method, params, self._tag))

    def _updated(self, server: str, params: Mapping[str, Any]) -> None:
        uri = params.get("uri")
        if not isinstance(uri, str):
            return
        if server == COMMANDS and self._tag is None and self._kinds and uri.startswith(JOBS):
            # A job reports to its submitter without being asked. Modern clients get only what they name.
            self._send(tagged(RESOURCE_UPDATED, params, None))
            return
        for public, (tool, _) in self._resources.items():
            # A server may announce a part of a resource.
            if tool.server == server and (uri == tool.name or uri.startswith(f"{tool.name}/")):
                part = tool if uri == tool.name else resource_or_prompt(OfferKind.RESOURCE, server, uri, {})
                if not self._context.principal.permission().shows(part):
                    return
                shown = public + uri.removeprefix(tool.name)
                self._send(tagged(RESOURCE_UPDATED, {**params, "uri": shown}, self._tag))
                return

    def _wants(self, level: Any) -> bool:
        if self.level is None or level not in LOG_LEVELS:
            return False
        return LOG_LEVELS.index(level) >= LOG_LEVELS.index(self.level)

    def _may_use(self, server: str) -> bool:
        permission = self._context.principal.permission()
        return self._context.project.shows_any_of(server, permission)

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)


def log_level(raw: bytes | None) -> str | None:
    """A level as a client writes it; None if it is none."""
    try:
        level = msgspec.json.decode(raw or b"null")
    except msgspec.MsgspecError:
        return None
    return level if level in LOG_LEVELS else None
