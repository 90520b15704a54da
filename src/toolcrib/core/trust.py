"""Trusted project files, by exact content; trusted servers; and the pins: the accepted definitions of servers' tools.

In: the store, a function that writes into the audit log; each server's listed definitions. Out: the trusted digests,
and the tools that await review. The first definitions of a server are accepted silently, later ones by a person. Adding
trust or accepting a definition takes effect only after it is audited; the opposite takes effect at once.
"""

from __future__ import annotations

import asyncio
import logging
import shlex
import time
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Self

import sqlalchemy as sa

from toolcrib.config.masking import printable
from toolcrib.config.model import ServerConfig
from toolcrib.core.pins import ListedTool, PinKey, PinnedServer, PinReader, PinReview, PinStatus, read_tools, review_of
from toolcrib.errors import NotFound, StoreError, UsageError
from toolcrib.events import AuditedChange, Bus, DefinitionsChanged
from toolcrib.identity.principal import OWNER
from toolcrib.identity.state import nothing_changed
from toolcrib.store import servers as trust
from toolcrib.store.database import Store
from toolcrib.store.pins import (
    PinChange,
    PinRow,
    change_pins,
    load_kept_out,
    load_pins,
    note_difference,
    noted_difference,
    pins_of,
)

log = logging.getLogger(__name__)

_FIRST_USE = ""
_REST = 1.0
"""Seconds between two reports of changes by the same server, so that it cannot flood the audit log."""
_NOBODY = PinnedServer(tools={})
_Also = Callable[[sa.Connection], object]
"""A further change in the same transaction."""


class Trust:
    def __init__(
        self,
        store: Store,
        servers: frozenset[str],
        pinned: dict[str, PinnedServer],
        *,
        bus: Bus,
        note: Callable[[AuditedChange], Awaitable[None]],
        on_change: Callable[[], None],
    ) -> None:
        self._store = store
        self._servers = set(servers)
        """By identity, because a server with another command or address is another server."""
        self._pinned = pinned
        """By identity. Without an entry, the server has not listed any tools yet."""
        self._reader = PinReader()
        self._latest: dict[PinKey, tuple[bytes, ...]] = {}
        self._reported: dict[PinKey, tuple[tuple[bytes, ...], float]] = {}
        """The definitions whose differences were reported last, and when."""
        self._bus = bus
        self._note = note
        self._on_change = on_change
        self._changing = asyncio.Lock()
        """Held while trust in a server or its pins are checked and changed, because servers can list their tools at any
        time."""

    @classmethod
    async def load(
        cls,
        store: Store,
        *,
        bus: Bus,
        note: Callable[[AuditedChange], Awaitable[None]],
        on_change: Callable[[], None],
    ) -> Self:
        rows, kept_out = await store.read(load_pins), await store.read(load_kept_out)
        pinned = {
            one: PinnedServer.of(rows.get(one, ()), kept_out.get(one, frozenset())) for one in rows.keys() | kept_out
        }
        servers = await store.read(trust.all_trusted_servers)
        return cls(store, servers, pinned, bus=bus, note=note, on_change=on_change)

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
        if server.identity not in self._servers:
            return None
        return self._pinned.get(server.identity, _NOBODY).digests

    async def add_server(self, server: ServerConfig, listed: Iterable[bytes], *, by: str = OWNER.name) -> bool:
        """Accepts the listed tools and trusts their annotations, so that read-only agents may use those marked
        read-only. Tools that are rejected, or that are added or changed later, are not covered. Returns False if
        nothing changes."""
        async with self._changing:
            before = self._pinned.get(server.identity, _NOBODY)
            read = await asyncio.to_thread(read_tools, tuple(listed), {})
            tools = {
                one.sha256: one
                for one in read.values()
                if one is not None and (one.name not in before.kept_out or one.sha256 in before.tools)
            }
            was_trusted = server.identity in self._servers
            added = {digest: one for digest, one in tools.items() if not was_trusted or digest not in before.tools}
            if was_trusted and not added:
                return False
            change = PinChange(
                add=_rows(added.values(), by),
                # Earlier definitions were accepted, but not with the trust that is given now.
                # Without any pins, the next list would be accepted unseen.
                drop=frozenset() if was_trusted or not tools else before.digests - tools.keys(),
                kept_out=before.kept_out,
            )
            detail = {"server": server.name, "tools": sorted(one.name for one in added.values())}
            await self._commit(
                server,
                change,
                AuditedChange(what="server trusted", agent=by, detail=detail),
                also=partial(trust.trust_server, identity=server.identity, name=server.name),
                undo=None if was_trusted else partial(trust.untrust_server, identity=server.identity),
            )
            self._servers.add(server.identity)
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
        self._servers.discard(server.identity)
        self._on_change()

    # Below: the pins.

    def review(self, server: ServerConfig, root: Path | None, listed: tuple[bytes, ...]) -> PinReview:
        """The tools that differ from the accepted ones. Nothing differs before the first ones are accepted."""
        key = server.identity, root
        pinned = self._pinned.get(server.identity, _NOBODY)
        if not pinned.tools:
            first = self._reader.listed(key, listed)
            return review_of(first, PinnedServer(tools={one.sha256: one.name for one in first.values()}))
        return self._reader.review(key, listed, pinned)

    def offered(
        self, server: ServerConfig, root: Path | None, listed: tuple[bytes, ...], *, hold: bool
    ) -> tuple[bytes, ...]:
        """The definitions without those that are kept out. `hold` keeps out everything that differs."""
        pinned = self._pinned.get(server.identity)
        if pinned is None or not (hold or pinned.kept_out):
            return listed
        review = self.review(server, root, listed)
        held = review.held(all_differing=hold)
        return tuple(tool.definition for name, tool in review.tools.items() if name not in held)

    def must_wait(self, server: ServerConfig, root: Path | None, listed: tuple[bytes, ...], *, hold: bool) -> bool:
        """Whether `offered` would read so many definitions that `prepare` should be awaited first."""
        pinned = self._pinned.get(server.identity)
        needed = pinned is not None and (hold or bool(pinned.kept_out))
        return needed and self._reader.is_large((server.identity, root), listed)

    def is_pinned(self, server: ServerConfig) -> bool:
        """Whether its first tools were accepted."""
        return bool(self._pinned.get(server.identity, _NOBODY).tools)

    async def prepare(self, server: ServerConfig, root: Path | None, listed: tuple[bytes, ...]) -> None:
        await self._reader.prepare((server.identity, root), listed)

    def forget(self, server: ServerConfig, root: Path | None) -> None:
        """Frees what was read of a server's lists when no open project uses it any more. Its pins are kept."""
        key = server.identity, root
        self._reader.forget(key)
        self._latest.pop(key, None)
        self._reported.pop(key, None)

    async def take_up(self, server: ServerConfig, root: Path | None, listed: tuple[bytes, ...]) -> None:
        """Accepts the first tools that a server lists, and reports later differences, each once."""
        key = server.identity, root
        self._latest[key] = listed
        done, at = self._reported.get(key, ((), 0.0))
        if not listed or (done == listed and self.is_pinned(server)):
            return
        if at and (rest := at + _REST - time.monotonic()) > 0:
            await asyncio.sleep(rest)
        async with self._changing:
            done, at = self._reported.get(key, ((), 0.0))
            if self.is_pinned(server) and (done == listed or self._latest.get(key, listed) != listed):
                # A later listing is reported instead of this one.
                return
            await self.prepare(server, root, listed)
            try:
                if not self.is_pinned(server):
                    await self._accept_first(server, self._reader.listed(key, listed))
                elif await self._report(server, root, listed):
                    at = time.monotonic()
            except StoreError as error:
                log.warning("the tools of %s were not compared with the accepted ones: %s", server.name, error.text())
                return
            self._reported[key] = listed, at

    async def _accept_first(self, server: ServerConfig, tools: dict[str, ListedTool]) -> None:
        kept_out = self._pinned.get(server.identity, _NOBODY).kept_out
        change = PinChange(add=_rows(tools.values(), _FIRST_USE), kept_out=kept_out)
        is_trusted = server.identity in self._servers
        detail = {"server": server.name, "tools": sorted(tools)}
        note = AuditedChange(what="server trusted", detail=detail) if is_trusted else None
        await self._commit(server, change, note)
        _log_flags(server, tools.values())
        # The server may have listed others in the meantime.
        self._on_change()

    async def _report(self, server: ServerConfig, root: Path | None, listed: tuple[bytes, ...]) -> bool:
        """Whether there is a difference that was not reported before."""
        review = self.review(server, root, listed)
        differing = {name: why for name, why in review.status.items() if why is not PinStatus.FLAGGED}
        digest = review.digest(differing) if differing else ""
        place = server.identity, str(root or "")
        if await self._store.read(noted_difference, *place) == digest:
            return False
        await self._store.write(note_difference, *place, digest)
        if not differing:
            return False
        by_status = {why.value: [name for name, one in differing.items() if one is why] for why in PinStatus}
        found = {why: names for why, names in by_status.items() if names}
        log.warning(
            "%s changed its tools (%s); `toolcrib pins` shows the difference",
            server.name,
            "; ".join(
                f"{why}: {printable(', '.join(name[:80] for name in names[:5]))}" for why, names in found.items()
            ),
        )
        _log_flags(server, [review.tools[name] for name in review.differing()])
        self._bus.publish(DefinitionsChanged(server=server.name, tools=found))
        await self._note(AuditedChange(what="definitions changed", detail={"server": server.name, **found}))
        return True

    async def accept(
        self, server: ServerConfig, root: Path | None, listed: tuple[bytes, ...], *, tool: str, digest: str, by: str
    ) -> tuple[str, ...]:
        """Accepts the tool's present definition, or all of the server's if `tool` is empty, and returns the names.
        `digest` is the beginning of `PinReview.digest` as it was shown to the person."""
        async with self._changing:
            if not self.is_pinned(server):
                # An earlier attempt to store the first definitions failed.
                await self._accept_first(server, self._reader.listed((server.identity, root), listed))
            review, tools = self._awaiting(server, root, listed, tool)
            if not review.digest(tools).startswith(digest):
                raise UsageError(
                    f"The definitions of {server.name} have changed since they were shown, so nothing was accepted.",
                    remedy="Review the new difference, then accept that.",
                    data={"server": server.name, "digest": review.digest(tools)},
                )
            now = [review.tools[name] for name in tools if name in review.tools]
            gone = {name for name in tools if review.status[name] is PinStatus.REMOVED}
            change = PinChange(
                add=_rows(now, by),
                drop={one for one, name in review.pinned.tools.items() if name in gone},
                kept_out=review.pinned.kept_out - frozenset(tools),
            )
            detail = {"server": server.name, "tools": list(tools)}
            await self._commit(server, change, AuditedChange(what="definitions accepted", agent=by, detail=detail))
            self._on_change()
            return tools

    async def reject(
        self, server: ServerConfig, root: Path | None, listed: tuple[bytes, ...], *, tool: str, by: str
    ) -> tuple[str, ...]:
        """Keeps the tool out, or all of the server's new and changed tools, until its definition is an accepted one."""
        async with self._changing:
            review, awaiting = self._awaiting(server, root, listed, tool)
            tools = tuple(name for name in awaiting if name in review.differing())
            if not tools:
                name = f"{server.name}:{tool or 'TOOL'}"
                raise UsageError(
                    f"{server.name} has no new or changed tools here, so there is nothing to keep out.",
                    remedy=f"To leave out a tool all the same: `toolcrib disable {shlex.quote(name)}`.",
                )
            change = PinChange(kept_out=review.pinned.kept_out | frozenset(tools))
            before = review.pinned
            self._pinned[server.identity] = before.after(change)
            self._on_change()
            await self._store.write(change_pins, server.identity, change)
            detail = {"server": server.name, "tools": list(tools)}
            await self._note(AuditedChange(what="definitions kept out", agent=by, detail=detail))
            return tools

    def _awaiting(
        self, server: ServerConfig, root: Path | None, listed: tuple[bytes, ...], tool: str
    ) -> tuple[PinReview, tuple[str, ...]]:
        review = self.review(server, root, listed)
        tools = tuple(name for name in review.status if tool in ("", name))
        if not tools:
            what = f"{server.name}:{tool}" if tool else server.name
            raise NotFound(f"Nothing of {what} awaits review.", remedy="`toolcrib pins` lists what does.")
        return review, tools

    async def accepted(self, server: ServerConfig, tools: Iterable[str]) -> dict[str, PinRow]:
        """By tool, the definition that was accepted last."""
        return {row.tool: row for row in await self._store.read(pins_of, server.identity, tuple(tools))}

    async def _commit(
        self,
        server: ServerConfig,
        change: PinChange,
        note: AuditedChange | None,
        *,
        also: _Also | None = None,
        undo: _Also | None = None,
    ) -> None:
        """Stores and audits the change, or nothing."""
        before = self._pinned.get(server.identity, _NOBODY)
        dropped = await self._store.write(_change, server.identity, change, also)
        try:
            if note is not None:
                await self._note(note)
        except StoreError as error:
            added = {row.sha256 for row in change.add} - before.tools.keys()
            back = PinChange(add=dropped, drop=added, kept_out=before.kept_out)
            await self._store.write(_change, server.identity, back, undo)
            raise nothing_changed(error) from error
        self._pinned[server.identity] = before.after(change)


def _change(connection: sa.Connection, identity: str, change: PinChange, also: _Also | None) -> tuple[PinRow, ...]:
    if also is not None:
        also(connection)
    return change_pins(connection, identity, change)


def _rows(tools: Iterable[ListedTool], by: str) -> tuple[PinRow, ...]:
    now = time.time()
    return tuple(
        PinRow(sha256=one.sha256, tool=one.name, definition=one.definition, accepted_at=now, accepted_by=by)
        for one in tools
    )


def _log_flags(server: ServerConfig, tools: Iterable[ListedTool]) -> None:
    for tool in tools:
        if tool.flags:
            log.warning("%s: the definition of '%s' %s", server.name, printable(tool.name[:80]), "; ".join(tool.flags))


async def trusted_files(store: Store) -> frozenset[str]:
    return frozenset(file.sha256 for file in await store.read(trust.all_trusted_files))


def _place(file: Path) -> Path:
    """The file's real folder and its name; a link in place of the file is not followed."""
    return file.absolute().parent.resolve() / file.name
