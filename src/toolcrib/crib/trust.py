"""What the person trusts: project files with exactly their content, and servers whose word on their own tools counts.

In: the store, and a way to write into the book. Out: who is trusted. What gives trust holds only if it could be written
down; what takes it holds at once. `Crib` has one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from toolcrib.config.model import ServerConfig
from toolcrib.errors import StoreError
from toolcrib.events import Change
from toolcrib.store import Store, trust


class Trust:
    def __init__(
        self,
        store: Store,
        believed: frozenset[str],
        *,
        note: Callable[[Change], Awaitable[None]],
        on_belief: Callable[[], None],
    ) -> None:
        self._store = store
        self._believed = believed
        """Identities of servers: with another command or address it is another server."""
        self._note = note
        self._on_belief = on_belief

    async def files(self) -> frozenset[str]:
        """The digests of all that was trusted: each covers a file's place as well as its bytes."""
        return await trusted_files(self._store)

    async def add_file(self, file: Path, digest: str) -> None:
        """Trusts the file with the content that the digest stands for, and no other."""
        place = _place(file)
        await self._store.write(trust.trust_file, place, digest)
        try:
            await self._note(Change(what="file trusted", detail={"file": str(file)}))
        except StoreError as error:
            await self._store.write(trust.untrust_file, place)
            raise _undone(error) from error

    async def remove_file(self, file: Path) -> bool:
        """Whether it had been trusted."""
        was_trusted = await self._store.write(trust.untrust_file, _place(file))
        if was_trusted:
            await self._note(Change(what="file no longer trusted", detail={"file": str(file)}))
        return was_trusted

    def believes(self, server: ServerConfig) -> bool:
        return server.identity in self._believed

    async def believe(self, server: ServerConfig) -> bool:
        """From now on what the server calls read-only may be used by who may only read. False: it was so before."""
        if self.believes(server):
            return False
        await self._store.write(trust.believe_server, server.identity, server.name)
        try:
            await self._note(Change(what="server believed", detail={"server": server.name}))
        except StoreError as error:
            await self._store.write(trust.disbelieve_server, server.identity)
            raise _undone(error) from error
        self._now_believed(self._believed | {server.identity})
        return True

    async def disbelieve(self, server: ServerConfig) -> bool:
        """Whether it had been believed."""
        self._now_believed(self._believed - {server.identity})
        was_believed = await self._store.write(trust.disbelieve_server, server.identity)
        if was_believed:
            await self._note(Change(what="server no longer believed", detail={"server": server.name}))
        return was_believed

    def _now_believed(self, identities: frozenset[str]) -> None:
        self._believed = identities
        self._on_belief()


async def trusted_files(store: Store) -> frozenset[str]:
    return frozenset(file.sha256 for file in await store.read(trust.files))


def _undone(error: StoreError) -> StoreError:
    return StoreError(
        f"Nothing was changed, because the book could not be written: {error.message}", remedy=error.remedy
    )


def _place(file: Path) -> Path:
    """Where the file really is; the file itself may not be a link, and is not followed."""
    return file.absolute().parent.resolve() / file.name
