"""One project: its configuration, its servers, and the catalog of their tools.

In: a `Config` and the servers that `Projects` acquired for it. Out: the `ToolSource` in which the door resolves names,
and a notification to subscribers when the catalog changes. Two projects may share a server; each has its own catalog.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import shlex
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from toolcrib.calls.door import CallTarget
from toolcrib.catalog.names import GATEWAY_LIMIT
from toolcrib.catalog.snapshot import Catalog
from toolcrib.catalog.tool import OfferKind, Tool
from toolcrib.config.keys import ALL_TOOLS
from toolcrib.config.model import WORKSPACE, Config, NameStyle, PinMode
from toolcrib.config.paths import slug
from toolcrib.core.agent_servers import AgentServers
from toolcrib.core.offer_source import OfferSource
from toolcrib.core.tool_search import ToolSearch
from toolcrib.errors import ServerUnavailable, UnknownTool
from toolcrib.identity.principal import OWNER, RequestContext
from toolcrib.listing import ListingCache
from toolcrib.policy import Permission
from toolcrib.servers.account import Account
from toolcrib.servers.model import Offers, OnProgress, ServerAnswer, ServerState, ToolCall
from toolcrib.servers.server import Server
from toolcrib.servers.tool_listing import definition_of, without_tools

if TYPE_CHECKING:
    from toolcrib.core.crib import Crib
    from toolcrib.core.favorites import Favorites
    from toolcrib.core.pins import PinReview
    from toolcrib.core.trust import Trust

log = logging.getLogger(__name__)

GRACE = 5.0
"""Seconds after its last client that a project stays in use: clients reconnect, and commands follow each other."""
PRESENCE = 300.0
"""Seconds after its last request that a caller without a lasting connection counts as present."""


Changes = frozenset[OfferKind]
Listener = Callable[[str, str, Mapping[str, Any]], None]
"""Gets a server's name, and the method and params of its notification."""


class BuiltinServer(Protocol):
    """A server inside this process."""

    name: str

    def tools_in(self, project: Project) -> tuple[bytes, ...]:
        """Called when the project's catalog is built. A server whose tools change calls `project.changed()`."""
        ...

    def offers_in(self, project: Project) -> Offers:
        """Its resources and prompts."""
        ...

    def absence(self, project: Project) -> str:
        """Why it has no tools in this project; empty if it has some."""
        ...

    async def call(
        self,
        request: RequestContext[Project],
        call: ToolCall,
        *,
        timeout: float | None = None,
        on_progress: OnProgress | None = None,
    ) -> ServerAnswer: ...

    def files(self, project: Project) -> tuple[Path, ...]:
        """The files that its tools in this project depend on."""
        ...

    def outdated(self, project: Project) -> bool:
        """Whether these files have changed since they were read. Reads the disk, in a thread."""
        ...

    async def refresh(self, crib: Crib) -> None:
        """Called before the first project opens, and when the configuration is reloaded."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _BuiltinTarget:
    """A built-in server, bound to one request."""

    server: BuiltinServer
    request: RequestContext[Project]
    account: None = None

    async def call(
        self, call: ToolCall, *, timeout: float | None = None, on_progress: OnProgress | None = None
    ) -> ServerAnswer:
        return await self.server.call(self.request, call, timeout=timeout, on_progress=on_progress)


@dataclass(frozen=True, slots=True)
class _OwnTarget:
    """An agent's own connected instance, and the tools that the agent was shown."""

    server: Server
    shown: tuple[bytes, ...] | None

    @property
    def account(self) -> Account | None:
        return self.server.account

    async def call(
        self, call: ToolCall, *, timeout: float | None = None, on_progress: OnProgress | None = None
    ) -> ServerAnswer:
        if definition_of(self.server.tools, call.name) != definition_of(self.shown, call.name):
            raise ServerUnavailable(
                f"Your own instance of server '{self.server.name}' lists another definition of the tool {call.name!r}. "
                "The call did not run.",
                remedy="Start the agent again: its new instance lists the tools anew.",
                data={"server": self.server.name},
            )
        return await self.server.call(call, timeout=timeout, on_progress=on_progress)


class _InUse:
    """Counts one user of a project while entered. It has no state, so a project needs only one."""

    __slots__ = ("_project",)

    def __init__(self, project: Project) -> None:
        self._project = project

    def __enter__(self) -> None:
        self._project.users += 1

    def __exit__(self, *_: object) -> None:
        self._project.users -= 1
        self._project.touched = time.monotonic()


class Project(OfferSource):
    def __init__(
        self,
        root: Path,
        config: Config,
        *,
        builtins: Mapping[str, BuiltinServer],
        next_version: Callable[[], int],
        listings_in: Callable[[NameStyle], ListingCache],
        search: ToolSearch,
        trust: Trust,
        favorites: Favorites,
        agent_servers: AgentServers,
    ) -> None:
        super().__init__()
        self.root = root
        self.config = config
        self.servers: dict[str, Server] = {}
        self.agent_servers = agent_servers
        self.chosen: dict[str, frozenset[str]] = {}
        """By server, the only tools to show; all tools of other servers are shown."""
        self.catalog = Catalog(version=0)
        """All current tools. A new snapshot replaces it after a change."""
        self.users = 0
        """Connections and requests that use this project now."""
        self.used_by_program = False
        """Whether a program opened it for itself. A daemon's own project is used only by its clients."""
        self.touched = 0.0
        """The last use, by the monotonic clock."""
        self.callers: dict[str, float] = {}
        """Callers without a lasting connection, over HTTP or the command line, and when each made its last request."""
        self.listings = listings_in(config.settings.names)
        """In the project's naming style."""
        self.search = search
        self._in_use = _InUse(self)
        self._builtins = builtins
        self._next_version = next_version
        self._listings_in = listings_in
        self._trust = trust
        self.favorites = favorites
        self._announced: tuple[Any, ...] = ()
        self._logged_unmatched: set[str] = set()
        self._subscribers: list[Callable[[Changes], None]] = []
        self._listeners: dict[Listener, str] = {}
        """By the agents that they belong to."""
        self._announcement: asyncio.Handle | None = None

    def in_use(self) -> AbstractContextManager[None]:
        """Keeps the project and its servers open while entered."""
        return self._in_use

    def touch(self) -> None:
        """Keeps the project open for some more time, like a use."""
        self.touched = time.monotonic()

    def seen(self, caller: str) -> None:
        """Counts a caller without a lasting connection as present for some time."""
        self.callers[caller] = time.monotonic()

    def seconds_needed(self) -> float:
        """How many seconds its servers stay after its last use; 0 if they can stop now."""
        now = time.monotonic()
        if self.users or self.used_by_program:
            # The callers' requests may be among those in flight.
            self.callers = dict.fromkeys(self.callers, now)
            return GRACE
        self.callers = {caller: at for caller, at in self.callers.items() if now - at < PRESENCE}
        latest = max(self.callers.values(), default=0.0)
        return max(0.0, self.touched + GRACE - now, latest + PRESENCE - now if latest else 0.0)

    def _built(self) -> Catalog:
        """A new snapshot, or the current one if clients see no difference."""
        listed = {
            name: self._shown(name, server, server.tools)
            for name, server in self.servers.items()
            if server.tools is not None
        }
        listed.update({name: builtin.tools_in(self) for name, builtin in self._builtins.items()})
        covered = {name: self._trust.trusted(server.config) for name, server in self.servers.items()}
        trusted = {name: digests for name, digests in covered.items() if digests is not None}
        folders = {name: server.config.reads_from(self.root) for name, server in self.servers.items()}
        folders[WORKSPACE] = self.root
        cached = {name: config.cache for name, config in self.config.servers.items() if config.cache}
        made = Catalog.build(
            listed,
            version=self._next_version(),
            limit=GATEWAY_LIMIT,
            previous=self.catalog,
            trusted=frozenset(trusted.keys() | self._builtins.keys()),
            covered=trusted,
            folders={name: str(folder) for name, folder in folders.items() if folder is not None},
            rules=self.config.tools,
            cached=cached,
        )
        self._log_uncached(made, cached)
        listings = self._listings_in(self.config.settings.names)
        if self.catalog.version and made.tools == self.catalog.tools and listings is self.listings:
            return self.catalog
        self.listings = listings
        if all(server.tools is not None for server in self.servers.values()):
            unmatched = {error.text() for error in made.unmatched_rules()}
            for text in sorted(unmatched - self._logged_unmatched):
                log.warning("a rule in `tools:` has no effect: %s", text)
            self._logged_unmatched |= unmatched
        return made

    def _log_uncached(self, made: Catalog, cached: Mapping[str, Mapping[str, float]]) -> None:
        for server in cached.keys() & self.servers.keys():
            if self.servers[server].tools is None:
                continue
            kept = {tool.name for tool in made.of_server(server) if tool.cache_seconds}
            for name, seconds in cached[server].items():
                text = f"{server}: `cache` has no effect on {'any tool' if name == ALL_TOOLS else repr(name)}"
                if seconds and not (kept if name == ALL_TOOLS else name in kept) and text not in self._logged_unmatched:
                    self._logged_unmatched.add(text)
                    log.warning(
                        "%s: only tools that a trusted server declares read-only and idempotent are cached. To trust "
                        "the server: toolcrib trust --server %s",
                        text,
                        shlex.quote(server),
                    )

    def _shown(self, name: str, server: Server, definitions: tuple[bytes, ...]) -> tuple[bytes, ...]:
        offered = self._trust.offered(server.config, server.root, definitions, hold=self.holds(server))
        config = self.config.servers.get(name)
        offered = without_tools(offered, config.disabled_tools if config is not None else ())
        chosen = self.chosen.get(name)
        if chosen is None:
            return offered
        return tuple(raw for raw in offered if msgspec.json.decode(raw)["name"] in chosen)

    def holds(self, server: Server) -> bool:
        """Whether tools that differ from the accepted ones are kept out in this project."""
        # The server may be shared with a project that has another setting.
        return self.config.pins_of(self.config.servers.get(server.name, server.config)) is PinMode.HOLD

    def review(self, name: str) -> PinReview | None:
        """How the server's tools differ from the accepted ones. None if it has listed none."""
        server = self.servers.get(name)
        if server is None or server.tools is None:
            return None
        return self._trust.review(server.config, server.root, server.tools)

    def kept_out(self, name: str) -> frozenset[str]:
        """The server's tools that are left out because of their definitions."""
        review = self.review(name)
        return frozenset() if review is None else review.held(all_differing=self.holds(self.servers[name]))

    def shows_any_of(self, server: str, permission: Permission) -> bool:
        """Whether the permission allows anything that the server lists."""
        listed = itertools.chain(self.catalog.of_server(server), self.offers.by_server.get(server, ()))
        return any(map(permission.shows, listed))

    def knows(self, name: str) -> bool:
        return name in self.catalog

    def find(self, name: str, shown: Callable[[Tool], bool] | None = None, style: NameStyle | None = None) -> Tool:
        """The tool of this name. For a tool of a server that was never listed, raises the reason."""
        try:
            return self.catalog.find(name, shown=shown, style=style)
        except UnknownTool as unknown:
            meant, tool = self._meant(name)
            if shown is None or shown(harmless_stand_in(meant, tool)):
                self._explain(meant, tool, unknown)
                server = self.servers.get(meant)
                if server is not None and server.tools is None:
                    raise server.unavailable() from None
            for found in [meant] if meant else self.servers:
                self._refuse_kept_out(found, tool, shown)
            raise

    def _refuse_kept_out(self, server: str, name: str, shown: Callable[[Tool], bool] | None) -> None:
        for tool in sorted(self.kept_out(server)):
            if name in (tool, slug(tool)) and (shown is None or shown(harmless_stand_in(server, tool))):
                raise UnknownTool(
                    f"{server}:{tool} is kept out: its definition is not the one that was accepted.",
                    remedy=f"Review the difference with `toolcrib pins`, then `toolcrib pins accept {server}:{tool}`.",
                    data={"name": tool, "nearest": []},
                )

    def _meant(self, name: str) -> tuple[str, str]:
        """The server that a name starts with, or "", and the rest of the name."""
        server, colon, tool = name.partition(":")
        if colon:
            return server, tool
        begins = [
            one for one in {**self.config.servers, **self.servers, **self._builtins} if name.startswith(f"{slug(one)}_")
        ]
        longest = max(begins, key=len, default="")
        return longest, name.removeprefix(f"{slug(longest)}_") if longest else name

    def _explain(self, meant: str, tool: str, unknown: UnknownTool) -> None:
        """Adds what the configuration or a built-in server reports about the server."""
        builtin = self._builtins.get(meant)
        if builtin is not None and (why := builtin.absence(self)):
            unknown.remedy = why
        config = self.config.servers.get(meant)
        if config is not None and not config.enabled:
            unknown.remedy = f"It is disabled in {config.source}. To enable it: toolcrib enable {shlex.quote(meant)}"
        elif config is not None and tool in {one for name in config.disabled_tools for one in (name, slug(name))}:
            target = shlex.quote(f"{meant}:{tool}")
            unknown.remedy = f"{tool} is disabled. To enable it: toolcrib enable {target}"
        for problem in self.config.problems:
            if problem.server == meant:
                unknown.remedy = str(problem)

    def target(self, server: str, request: RequestContext[Project]) -> CallTarget:
        builtin = self._builtins.get(server)
        if builtin is not None:
            return _BuiltinTarget(builtin, request)
        found = self.servers.get(server)
        if found is None:
            raise ServerUnavailable(f"The server {server} was just removed.", remedy="List the tools again.")
        if found.is_per_agent and request.principal.name != OWNER.name:
            own = self.agent_servers.of(found, request.principal.name)
            if own.status.state is ServerState.READY:
                return _OwnTarget(own, found.tools)
            # It connects for the call, and then compares the tool with the one that the agent was shown.
            own.tools = found.tools
            return own
        return found

    def instance(self, server: str, agent: str) -> Server | None:
        """The agent's own instance of a server, or the one that all share; None without one."""
        found = self.servers.get(server)
        if found is not None and found.is_per_agent and agent != OWNER.name:
            return self.agent_servers.by_agent(server).get(agent)
        return found

    def take_tools(self, server: Server) -> bool:
        """Whether this server's tools are listed here. Those of an agent's own instance replace the listed ones."""
        listed = self.servers.get(server.name)
        if listed is not None and server in self.agent_servers.all():
            if server.status.state is not ServerState.READY:
                # It ends, or has yet to list its tools: those that it knows may be outdated.
                return False
            listed.tools, listed.offers, listed.asks = server.tools, server.offers, listed.asks or server.asks
            return True
        return listed is server

    def rebuild(self) -> None:
        """Builds the catalogs from what the servers currently list."""
        self.catalog = self._built()
        listed = {name: server.offers for name, server in self.servers.items()}
        listed |= {name: builtin.offers_in(self) for name, builtin in self._builtins.items()}
        self.update_offers(listed, self.catalog, style=self.config.settings.names, limit=GATEWAY_LIMIT)

    def changed(self) -> None:
        """Rebuilds after a change of servers, tools or trust, and notifies once per iteration of the event loop."""
        self.rebuild()
        if self._announcement is None:
            self._announcement = asyncio.get_running_loop().call_soon(self._announce)

    def _announce(self) -> None:
        self._announcement = None
        settings = self.config.settings
        tools = self.catalog.version, self.favorites.version, settings.listing, settings.result_tokens == 0
        now = tools, (self.offers.resources, self.offers.templates), self.offers.prompts
        kinds = OfferKind.TOOL, OfferKind.RESOURCE, OfferKind.PROMPT
        before, self._announced = self._announced or (None,) * len(now), now
        changes = frozenset(kind for kind, old, new in zip(kinds, before, now, strict=True) if old != new)
        for subscriber in tuple(self._subscribers) if changes else ():
            subscriber(changes)

    def listen(self, listener: Listener, agent: str) -> Callable[[], None]:
        """Passes on what servers report. Instances that belong to one agent are heard by that agent only."""
        self._listeners[listener] = agent

        def leave() -> None:
            self._listeners.pop(listener, None)

        return leave

    def heard(self, server: Server, method: str, params: Mapping[str, Any], agent: str | None) -> None:
        """A server that may be one of this project's has sent a notification, for this agent or for all."""
        own = next((agent for agent, one in self.agent_servers.by_agent(server.name).items() if one is server), None)
        if own is None and self.servers.get(server.name) is not server:
            return
        self.report(server.name, method, params, agent=own or agent)

    def report(self, server: str, method: str, params: Mapping[str, Any], agent: str | None = None) -> None:
        for listener, of in tuple(self._listeners.items()):
            if agent in (None, of):
                listener(server, method, params)

    def subscribe(self, subscriber: Callable[[Changes], None]) -> Callable[[], None]:
        """Called after each change of what is listed, with the kinds that changed."""
        self._subscribers.append(subscriber)

        def unsubscribe() -> None:
            if subscriber in self._subscribers:
                self._subscribers.remove(subscriber)

        return unsubscribe

    async def wait_for_new_servers(self, limit: float | None) -> None:
        """Waits for connecting servers without known tools, at most `limit` seconds or their own connect timeouts.

        Clients that list tools only once would otherwise never see them.
        """
        unseen = [
            server
            for server in self.servers.values()
            if server.tools is None and server.status.state is ServerState.CONNECTING
        ]
        if unseen:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limit):
                    await asyncio.gather(*(server.settled() for server in unseen))

    async def settled(self, names: Iterable[str] | None = None) -> None:
        """Waits until the named servers (by default all) have finished their first attempt to connect; not to the end
        for those that are being installed."""
        wanted = self.servers.values() if names is None else [self.servers[n] for n in names if n in self.servers]
        await asyncio.gather(*(server.settled() for server in wanted))


def harmless_stand_in(server: str, tool: str) -> Tool:
    """The most harmless tool that the server might have. A caller without permission even for this one learns nothing
    about the server."""
    hints = {"readOnlyHint": True, "destructiveHint": False, "idempotentHint": True, "openWorldHint": False}
    definition = msgspec.json.encode({"name": tool, "annotations": hints})
    return Catalog.build({server: (definition,)}, version=0, trusted=frozenset({server})).tools[0]
