"""One project's view: its configuration, the servers that serve it, and the catalog they add up to.

In: a `Config` and the servers that `Crib` acquired for it. Out: the `ToolSource` that the door resolves names in, and a
notice to subscribers when the catalog changed. Two projects may share a server; each has a catalog of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from toolcrib.calls.door import CallTarget
from toolcrib.catalog.names import GATEWAY_LIMIT
from toolcrib.catalog.snapshot import Catalog
from toolcrib.catalog.tool import Tool
from toolcrib.config.model import WORKSPACE, Config, NameStyle, ServerConfig
from toolcrib.config.paths import slug
from toolcrib.errors import ServerUnavailable, UnknownTool
from toolcrib.identity.principal import RequestContext
from toolcrib.listing import ListingCache
from toolcrib.servers.model import OnProgress, ServerAnswer, ServerState, ToolCall
from toolcrib.servers.server import Server

if TYPE_CHECKING:
    from toolcrib.core.crib import Crib

log = logging.getLogger(__name__)


class BuiltinServer(Protocol):
    """A server that lives in this process."""

    name: str

    def tools_in(self, project: Project) -> tuple[bytes, ...]:
        """Asked when the project's catalog is built. A server whose tools change calls `project.changed()`."""
        ...

    def absence(self, project: Project) -> str:
        """Why there are no tools in this project, if there are none."""
        ...

    async def call(
        self,
        request: RequestContext[Project],
        call: ToolCall,
        *,
        timeout: float | None = None,
        on_progress: OnProgress | None = None,
    ) -> ServerAnswer: ...

    async def refresh(self, crib: Crib) -> None:
        """Called before the first project is opened, and when the configuration is read again."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _BuiltinTarget:
    """A built-in server, as one caller in one project has it."""

    server: BuiltinServer
    request: RequestContext[Project]

    async def call(
        self, call: ToolCall, *, timeout: float | None = None, on_progress: OnProgress | None = None
    ) -> ServerAnswer:
        return await self.server.call(self.request, call, timeout=timeout, on_progress=on_progress)


class _InUse:
    """Counts one user of a project while it is entered. Holds no state of its own, so a project has only one."""

    __slots__ = ("_project",)

    def __init__(self, project: Project) -> None:
        self._project = project

    def __enter__(self) -> None:
        self._project.users += 1

    def __exit__(self, *_: object) -> None:
        self._project.users -= 1
        self._project.touched = time.monotonic()


class Project:
    def __init__(
        self,
        root: Path,
        config: Config,
        *,
        builtins: Mapping[str, BuiltinServer],
        next_version: Callable[[], int],
        listings_in: Callable[[NameStyle], ListingCache],
        trusted: Callable[[ServerConfig], frozenset[str] | None],
    ) -> None:
        self.root = root
        self.config = config
        self.servers: dict[str, Server] = {}
        self.chosen: dict[str, frozenset[str]] = {}
        """By server: the only tools of it that are shown here; of a server that is not named, all are."""
        self.catalog = Catalog(version=0)
        """All tools of this moment. A new snapshot takes its place when something changed."""
        self.users = 0
        """Connections and requests that use this project now."""
        self.touched = 0.0
        """When it was last used, by the monotonic clock. `Projects` lets it go some time after that."""
        self.listings = listings_in(config.settings.names)
        """In the project's style of names."""
        self._in_use = _InUse(self)
        self._builtins = builtins
        self._next_version = next_version
        self._listings_in = listings_in
        self._trusted = trusted
        self._announced_version = 0
        self._logged_unmatched: set[str] = set()
        self._subscribers: list[Callable[[], None]] = []
        self._announcement: asyncio.Handle | None = None

    def in_use(self) -> AbstractContextManager[None]:
        """Keeps the project and its servers while it is entered."""
        return self._in_use

    def touch(self) -> None:
        """Keeps the project for some more time, as a use of it does."""
        self.touched = time.monotonic()

    def _built(self) -> Catalog:
        """A new snapshot, or the last one if nothing that a client sees has changed."""
        listed = {
            name: self._shown(name, server.tools) for name, server in self.servers.items() if server.tools is not None
        }
        listed.update({name: builtin.tools_in(self) for name, builtin in self._builtins.items()})
        covered = {name: self._trusted(server.config) for name, server in self.servers.items()}
        trusted = {name: digests for name, digests in covered.items() if digests is not None}
        folders = {name: server.config.reads_from(self.root) for name, server in self.servers.items()}
        folders[WORKSPACE] = self.root
        made = Catalog.build(
            listed,
            version=self._next_version(),
            limit=GATEWAY_LIMIT,
            previous=self.catalog,
            trusted=frozenset(trusted.keys() | self._builtins.keys()),
            covered=trusted,
            folders={name: str(folder) for name, folder in folders.items() if folder is not None},
            rules=self.config.tools,
        )
        listings = self._listings_in(self.config.settings.names)
        if self.catalog.version and made.tools == self.catalog.tools and listings is self.listings:
            return self.catalog
        self.listings = listings
        if all(server.tools is not None for server in self.servers.values()):
            unmatched = {error.text() for error in made.unmatched_rules()}
            for text in sorted(unmatched - self._logged_unmatched):
                log.warning("a rule of `tools:` does nothing: %s", text)
            self._logged_unmatched |= unmatched
        return made

    def _shown(self, server: str, definitions: tuple[bytes, ...]) -> tuple[bytes, ...]:
        chosen = self.chosen.get(server)
        if chosen is None:
            return definitions
        return tuple(raw for raw in definitions if msgspec.json.decode(raw)["name"] in chosen)

    def knows(self, name: str) -> bool:
        return name in self.catalog

    def find(self, name: str, shown: Callable[[Tool], bool] | None = None, style: NameStyle | None = None) -> Tool:
        """The tool of this name; of a server that was never listed, the reason why its tools are not known."""
        try:
            return self.catalog.find(name, shown=shown, style=style)
        except UnknownTool as unknown:
            meant, tool = self._meant(name)
            if shown is None or shown(harmless_stand_in(meant, tool)):
                self._explain(meant, unknown)
                server = self.servers.get(meant)
                if server is not None and server.tools is None:
                    raise server.unavailable() from None
            raise

    def _meant(self, name: str) -> tuple[str, str]:
        """The server that a name begins with, and the rest of it; the server is empty if it begins with none."""
        server, colon, tool = name.partition(":")
        if colon:
            return server, tool
        begins = [
            one for one in {**self.config.servers, **self.servers, **self._builtins} if name.startswith(f"{slug(one)}_")
        ]
        longest = max(begins, key=len, default="")
        return longest, name.removeprefix(f"{slug(longest)}_") if longest else name

    def _explain(self, meant: str, unknown: UnknownTool) -> None:
        """Adds what the configuration says of the server."""
        builtin = self._builtins.get(meant)
        if builtin is not None and (why := builtin.absence(self)):
            unknown.remedy = why
        config = self.config.servers.get(meant)
        if config is not None and not config.enabled:
            unknown.remedy = f"{meant} is switched off in {config.source}."
        for problem in self.config.problems:
            if problem.key.split(".")[1:2] == [meant]:
                unknown.remedy = str(problem)

    def target(self, server: str, request: RequestContext[Project]) -> CallTarget:
        builtin = self._builtins.get(server)
        if builtin is not None:
            return _BuiltinTarget(builtin, request)
        found = self.servers.get(server)
        if found is None:
            raise ServerUnavailable(f"The server {server} was just removed.", remedy="List the tools again.")
        return found

    def rebuild(self) -> None:
        """Builds the catalog from what the servers list now."""
        self.catalog = self._built()

    def changed(self) -> None:
        """The servers, their tools or the trust in them changed: rebuilds, and notifies once per turn of the loop."""
        self.rebuild()
        if self._announcement is None:
            self._announcement = asyncio.get_running_loop().call_soon(self._announce)

    def _announce(self) -> None:
        self._announcement = None
        if self.catalog.version == self._announced_version:
            return
        self._announced_version = self.catalog.version
        for subscriber in tuple(self._subscribers):
            subscriber()

    def subscribe(self, subscriber: Callable[[], None]) -> Callable[[], None]:
        self._subscribers.append(subscriber)

        def unsubscribe() -> None:
            if subscriber in self._subscribers:
                self._subscribers.remove(subscriber)

        return unsubscribe

    async def wait_for_new_servers(self, limit: float | None) -> None:
        """Waits, within limits, for servers that are connecting and whose tools nobody has ever seen.

        Clients that list only once would otherwise never learn of them. None: each has its own time to connect.
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
        """Waits until the named servers (by default all) have ended their first attempt to connect."""
        wanted = self.servers.values() if names is None else [self.servers[n] for n in names if n in self.servers]
        await asyncio.gather(*(server.settled() for server in wanted))


def harmless_stand_in(server: str, tool: str) -> Tool:
    """The tool as its server might have it. A caller that may not use even this learns nothing of the server."""
    hints = {"readOnlyHint": True, "destructiveHint": False, "idempotentHint": True, "openWorldHint": False}
    definition = msgspec.json.encode({"name": tool, "annotations": hints})
    return Catalog.build({server: (definition,)}, version=0, trusted=frozenset({server})).tools[0]
