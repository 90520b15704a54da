"""What the person trusts: project files with exactly their content, and servers with the definitions of their tools.

In: the store, and a way to write into the audit log. Out: who is trusted. What gives trust holds only if it could be
written down; what takes it holds at once. `Crib` has one.
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
        """By identity, for with another command or address it is another server: the digests of the definitions that
        the trust covers. None of them: the server has listed no tools yet."""
        self._note = note
        self._on_change = on_change
        self._changing = asyncio.Lock()
        """Held while the trust in a server is looked at and changed: servers list again at any time."""

    async def files(self) -> frozenset[str]:
        """The digests of all that was trusted: each covers a file's place as well as its bytes."""
        return await trusted_files(self._store)

    async def add_file(self, file: Path, digest: str) -> None:
        """Trusts the file with the content of this digest, and no other."""
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
        """The digests of the definitions that the trust in this server covers; None: it is not trusted."""
        return self._servers.get(server.identity)

    async def add_server(self, server: ServerConfig, listed: Iterable[bytes]) -> bool:
        """From now on what the server says of the listed tools counts: who may only read may use those that it calls
        read-only. Of a tool that is new or changed later it does not. False: it was so before."""
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
            # What was being added meanwhile goes, too.
            self._forget_server(server)
            was_trusted = await self._store.write(trust.untrust_server, server.identity)
            if was_trusted:
                await self._note(AuditedChange(what="server no longer trusted", detail={"server": server.name}))
        return was_trusted

    def _forget_server(self, server: ServerConfig) -> None:
        self._servers.pop(server.identity, None)
        self._on_change()

    async def cover_first(self, server: ServerConfig, listed: Iterable[bytes]) -> None:
        """The first tools that a server lists after it was trusted are covered; later ones are not."""
        if self.trusted(server) != frozenset():
            return
        async with self._changing:
            if self.trusted(server) != frozenset():
                return
            try:
                await self._add_server(server, listed)
            except StoreError as error:
                log.warning("the tools of %s count as untrusted: %s", server.name, error.text())


def _digests(listed: Iterable[bytes]) -> Iterator[tuple[str, str]]:
    for definition in listed:
        # What cannot be read is in no catalog.
        with contextlib.suppress(BadDefinition):
            name, fields = decode_definition(definition)
            yield digest_of(fields), name


async def trusted_files(store: Store) -> frozenset[str]:
    return frozenset(file.sha256 for file in await store.read(trust.all_trusted_files))


def _place(file: Path) -> Path:
    """Where the file really is; the file itself may not be a link, and is not followed."""
    return file.absolute().parent.resolve() / file.name
