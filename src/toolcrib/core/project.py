"""One project's view: its configuration, the servers that serve it, and the catalog they add up to.

In: a `Config` and the servers that `Crib` acquired for it. Out: the `Shelf` that the door resolves names at, and a
word to subscribers when the catalog changed. Two projects may share a server; each has a catalog of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from toolcrib.calls.door import CallTarget
from toolcrib.catalog.snapshot import Catalog
from toolcrib.catalog.tool import Tool
from toolcrib.config.model import WORKSPACE, Config, NameStyle, ServerConfig
from toolcrib.config.paths import slug
from toolcrib.errors import ServerUnavailable, UnknownTool
from toolcrib.policy import Caller
from toolcrib.servers.model import ServerState
from toolcrib.servers.server import Server

if TYPE_CHECKING:
    from toolcrib.core.crib import Crib

log = logging.getLogger(__name__)

LONGEST_NAME = 48
"""So that a client's own prefix still fits into the 64 characters that model providers take."""


class BuiltinServer(Protocol):
    """A server that lives in this process."""

    name: str

    def tools_in(self, project: Project) -> tuple[bytes, ...]: ...

    def outdated(self, project: Project) -> bool:
        """Whether `tools_in` would say something else by now. Asked on every look at the catalog."""
        ...

    def absence(self, project: Project) -> str:
        """Why there are no tools in this project, if there are none."""
        ...

    def target(self, project: Project, caller: Caller) -> CallTarget: ...

    async def refresh(self, crib: Crib) -> None:
        """Called before the first project is opened, and when the configuration is read again."""
        ...

    async def close(self) -> None: ...


class Project:
    def __init__(
        self,
        root: Path,
        config: Config,
        *,
        builtins: Mapping[str, BuiltinServer],
        next_version: Callable[[], int],
        trusted: Callable[[ServerConfig], frozenset[str] | None],
    ) -> None:
        self.root = root
        self.config = config
        self.servers: dict[str, Server] = {}
        self.chosen: dict[str, frozenset[str]] = {}
        """By server: the only tools of it that are shown here; of a server that is not named, all are."""
        self.users = 0
        """Connections that work in this project now; `Crib` lets it go some time after the last one."""
        self.touched = 0.0
        """When it was last used by a request that stands for itself, by the loop's clock."""
        self._builtins = builtins
        self._next_version = next_version
        self._trusted = trusted
        self._catalog: Catalog | None = None
        self._last: Catalog | None = None
        self._named = config.settings.names
        self._told_version = 0
        self._told_idle: set[str] = set()
        self._subscribers: list[Callable[[], None]] = []
        self._told: asyncio.Handle | None = None

    @property
    def catalog(self) -> Catalog:
        """The catalog as the servers have it now; made when it is asked for, after a change."""
        if any(builtin.outdated(self) for builtin in self._builtins.values()):
            self.changed()
        if self._catalog is None:
            listings = {
                name: self._shown(name, server.tools)
                for name, server in self.servers.items()
                if server.tools is not None
            }
            listings.update({name: builtin.tools_in(self) for name, builtin in self._builtins.items()})
            self._catalog = self._built(listings)
        return self._catalog

    def _built(self, listings: dict[str, tuple[bytes, ...]]) -> Catalog:
        """A new snapshot, or the last one where nothing that a client sees has changed."""
        last = self._last
        covered = {name: self._trusted(server.config) for name, server in self.servers.items()}
        trusted = {name: digests for name, digests in covered.items() if digests is not None}
        folders = {name: server.config.reads_from(self.root) for name, server in self.servers.items()}
        folders[WORKSPACE] = self.root
        made = Catalog.build(
            listings,
            version=self._next_version(),
            limit=LONGEST_NAME,
            previous=last,
            believed=frozenset(trusted.keys() | self._builtins.keys()),
            covered=trusted,
            folders={name: str(folder) for name, folder in folders.items() if folder is not None},
            rules=self.config.tools,
        )
        if last is not None and made.tools == last.tools and self._named is self.config.settings.names:
            return last
        self._last, self._named = made, self.config.settings.names
        if all(server.tools is not None for server in self.servers.values()):
            idle = {error.text() for error in made.idle_rules()}
            for text in sorted(idle - self._told_idle):
                log.warning("a rule of `tools:` does nothing: %s", text)
            self._told_idle |= idle
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
            if shown is None or shown(most_harmless(meant, tool)):
                self._explain(meant, unknown)
                server = self.servers.get(meant)
                if server is not None and server.tools is None:
                    raise server.away() from None
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

    def target(self, server: str, caller: Caller) -> CallTarget:
        builtin = self._builtins.get(server)
        if builtin is not None:
            return builtin.target(self, caller)
        found = self.servers.get(server)
        if found is None:
            raise ServerUnavailable(f"The server {server} was just removed.", remedy="List the tools again.")
        return found

    def changed(self) -> None:
        """A server's tools, or the set of servers, are not what they were: tell whoever listens, once a turn."""
        self._catalog = None
        if self._told is None:
            self._told = asyncio.get_running_loop().call_soon(self._tell)

    def _tell(self) -> None:
        self._told = None
        version = self.catalog.version
        if version == self._told_version:
            return
        self._told_version = version
        for subscriber in tuple(self._subscribers):
            subscriber()

    def subscribe(self, subscriber: Callable[[], None]) -> Callable[[], None]:
        self._subscribers.append(subscriber)

        def unsubscribe() -> None:
            if subscriber in self._subscribers:
                self._subscribers.remove(subscriber)

        return unsubscribe

    async def introduced(self, limit: float | None) -> None:
        """Waits, within limits, for servers that are connecting and whose tools nobody has ever seen.

        Clients that list only once would otherwise never learn of them. None: each has its own time to connect.
        """
        strangers = [
            server
            for server in self.servers.values()
            if server.tools is None and server.status.state is ServerState.CONNECTING
        ]
        if strangers:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limit):
                    await asyncio.gather(*(server.settled() for server in strangers))

    async def settled(self, names: Iterable[str] | None = None) -> None:
        """Waits until the named servers (all of them, unless said) have ended their first attempt to connect."""
        wanted = self.servers.values() if names is None else [self.servers[n] for n in names if n in self.servers]
        await asyncio.gather(*(server.settled() for server in wanted))


def most_harmless(server: str, tool: str) -> Tool:
    """The tool as its server might have it. Who may not use even this hears nothing of the server."""
    hints = {"readOnlyHint": True, "destructiveHint": False, "idempotentHint": True, "openWorldHint": False}
    definition = msgspec.json.encode({"name": tool, "annotations": hints})
    return Catalog.build({server: (definition,)}, version=0, believed=frozenset({server})).tools[0]
