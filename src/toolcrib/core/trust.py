"""Trusted project files, by exact content, and trusted servers, by the definitions of their tools.

In: the store, and a function that writes into the audit log. Out: the trusted digests. Adding trust takes effect only
after it is audited; removing it takes effect at once. `Crib` has one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from pathlib import Path

from toolcrib.catalog.tool import BadDefinition, decode_definition, digest_of
from toolcrib.config.model import ServerConfig
from toolcrib.errors import StoreError
from toolcrib.events import AuditedChange
from toolcrib.identity.state import nothing_changed
from toolcrib.store import servers as trust
from toolcrib.store.database import Store

log = logging.getLogger(__name__)


class Trust:
    def __init__(
        self,
        store: Store,
        servers: Mapping[str, frozenset[str]],
        *,
        note: Callable[[AuditedChange], Awaitable[None]],
        on_change: Callable[[], None],
    ) -> None:
        self._store = store
        self._servers = dict(servers)
        """By identity, because a server with another command or address is another server: the digests of the trusted
        definitions. Empty if the server has not listed any tools yet."""
        self._note = note
        self._on_change = on_change
        self._changing = asyncio.Lock()
        """Held while trust in a server is checked and changed, because servers can list their tools at any time."""

    async def files(self) -> frozenset[str]:
        """The digests of all trusted files: each covers the path and the content."""
        return await trusted_files(self._store)

    async def add_file(self, file: Path, digest: str) -> None:
        """Trusts the file with exactly this content."""
        place = _place(file)
        await self._store.write(trust.trust_file, place, digest)
        try:
            await self._note(AuditedChange(what="file trusted", detail={"file": str(file)}))
        except StoreError as error:
            await self._store.write(trust.untrust_file, place)
            raise nothing_changed(error) from error

    async def remove_file(self, file: Path) -> bool:
        """Whether it had been trusted."""
        was_trusted = await self._store.write(trust.untrust_file, _place(file))
        if was_trusted:
            await self._note(AuditedChange(what="file no longer trusted", detail={"file": str(file)}))
        return was_trusted

    def trusted(self, server: ServerConfig) -> frozenset[str] | None:
        """The digests of this server's trusted definitions; None if the server is not trusted."""
        return self._servers.get(server.identity)

    async def add_server(self, server: ServerConfig, listed: Iterable[bytes]) -> bool:
        """Trusts the annotations of the listed tools, so that read-only agents may use those marked read-only. Tools
        that are added or changed later are not covered. Returns False if nothing changes."""
        async with self._changing:
            return await self._add_server(server, listed)

    async def _add_server(self, server: ServerConfig, listed: Iterable[bytes]) -> bool:
        before = self.trusted(server)
        definitions = {digest: name for digest, name in _digests(listed) if digest not in (before or ())}
        if before is not None and not definitions:
            return False
        await self._store.write(trust.trust_server, server.identity, server.name, definitions)
        try:
            detail = {"server": server.name, "tools": sorted(definitions.values())}
            await self._note(AuditedChange(what="server trusted", detail=detail))
        except StoreError as error:
            if before is None:
                await self._store.write(trust.untrust_server, server.identity)
            else:
                await self._store.write(trust.untrust_definitions, server.identity, definitions)
            raise nothing_changed(error) from error
        self._servers[server.identity] = (before or frozenset()) | definitions.keys()
        self._on_change()
        return True

    async def remove_server(self, server: ServerConfig) -> bool:
        """Whether it had been trusted."""
        self._forget_server(server)
        async with self._changing:
            # Also removes trust that was added in the meantime.
            self._forget_server(server)
            was_trusted = await self._store.write(trust.untrust_server, server.identity)
            if was_trusted:
                await self._note(AuditedChange(what="server no longer trusted", detail={"server": server.name}))
        return was_trusted

    def _forget_server(self, server: ServerConfig) -> None:
        self._servers.pop(server.identity, None)
        self._on_change()

    async def cover_first(self, server: ServerConfig, listed: Iterable[bytes]) -> None:
        """Trusts the first tools that a trusted server lists, but not later ones."""
        if self.trusted(server) != frozenset():
            return
        async with self._changing:
            if self.trusted(server) != frozenset():
                return
            try:
                await self._add_server(server, listed)
            except StoreError as error:
                log.warning("the tools of %s stay untrusted: %s", server.name, error.text())


def _digests(listed: Iterable[bytes]) -> Iterator[tuple[str, str]]:
    for definition in listed:
        # Unreadable definitions are in no catalog.
        with contextlib.suppress(BadDefinition):
            name, fields = decode_definition(definition)
            yield digest_of(fields), name


async def trusted_files(store: Store) -> frozenset[str]:
    return frozenset(file.sha256 for file in await store.read(trust.all_trusted_files))


def _place(file: Path) -> Path:
    """The file's real folder and its name; a link in place of the file is not followed."""
    return file.absolute().parent.resolve() / file.name
