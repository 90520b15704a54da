"""Large results of tools, kept on disk for the agent that got only their beginning.

In: a result with the call that it belongs to. Out: the same, by its id, for the same agent, for an hour. Each is a file
in a private folder, sealed for one agent like every handle: another agent, or a later one of the same name, cannot read
it, and a changed file is not opened. A restart changes nothing. `gateway.large_results` uses it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from toolcrib.config.paths import private_folder
from toolcrib.errors import InvalidHandle, NotFound, StoreError
from toolcrib.events import AgentEnded, Bus, Event

if TYPE_CHECKING:
    from toolcrib.identity.handles import Handles

log = logging.getLogger(__name__)

LIVES = 3600.0
"""Seconds that a result is kept."""
MAX_PER_AGENT = 100
MAX_AGENT_BYTES = 128 * 1024 * 1024
MAX_BYTES = 512 * 1024 * 1024
"""Of all agents."""
_MAX_FILES = 2000
_BETWEEN_SWEEPS = 900.0
_ID = re.compile(r"r_[0-9a-f]{12}")
_DRAFT = ".new"


class KeptResult(msgspec.Struct, frozen=True, array_like=True):
    server: str
    tool: str
    """The server's own name."""
    arguments: bytes
    """As its caller gave them; empty without any."""
    result: bytes


class _File(NamedTuple):
    written: int
    size: int
    path: Path


def new_id() -> str:
    return f"r_{secrets.token_hex(6)}"


def unknown_result(id: str) -> NotFound:
    return NotFound(
        f"There is no result {id[:40]!r}.",
        remedy="Check the id. Results are kept for an hour at most; call the tool again.",
    )


class KeptResults:
    def __init__(self, folder: Path, bus: Bus, handles: Handles) -> None:
        self._folder = folder
        self._handles = handles
        self._turn = asyncio.Lock()
        self._work: set[asyncio.Task[None]] = set()
        bus.subscribe(self._ended, AgentEnded)
        self._sweep_now()

    async def keep(self, agent: str, id: str, kept: KeptResult) -> bool:
        """Whether it is kept. It is not if it is too large or the disk is full."""
        try:
            await self._in_turn(lambda: self._write(agent, id, kept))
        except (OSError, StoreError) as error:
            log.warning("a large result of %s:%s cannot be kept: %s", kept.server, kept.tool, error)
            return False
        return True

    async def open(self, agent: str, id: str) -> KeptResult:
        """Raises `NotFound`, the same for every reason."""
        found = await asyncio.to_thread(self._read, agent, id) if _ID.fullmatch(id) else None
        if found is None:
            raise unknown_result(id)
        return found

    async def close(self) -> None:
        self._timer.cancel()
        await asyncio.gather(*self._work, return_exceptions=True)

    def _write(self, agent: str, id: str, kept: KeptResult) -> None:
        folder = self._folder / agent
        sealed = self._handles.seal_bytes(_purpose(id), agent, kept, LIVES)
        if len(sealed) > MAX_AGENT_BYTES:
            raise StoreError(f"it has more than {MAX_AGENT_BYTES // 1024**2} MB")
        private_folder(self._folder)
        private_folder(folder)
        self._make_room(folder, len(sealed))
        draft = folder / f"{id}{_DRAFT}"
        try:
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb", buffering=0) as stream:
                left = memoryview(sealed)
                while left:
                    left = left[stream.write(left) :]
                # The file system's own times are too coarse to tell which of two files is older.
                os.utime(descriptor, ns=(time.time_ns(), time.time_ns()))
            draft.replace(folder / id)
        except OSError:
            draft.unlink(missing_ok=True)
            raise

    def _read(self, agent: str, id: str) -> KeptResult | None:
        try:
            descriptor = os.open(self._folder / agent / id, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with os.fdopen(descriptor, "rb") as stream:
                about = os.fstat(descriptor)
                if not stat.S_ISREG(about.st_mode) or about.st_size > MAX_AGENT_BYTES:
                    return None
                sealed = stream.read(MAX_AGENT_BYTES)
            return self._handles.open_bytes(_purpose(id), agent, sealed, KeptResult)
        except (OSError, InvalidHandle, msgspec.MsgspecError):
            return None

    def _files(self) -> Iterator[_File]:
        """All files, also those that are not ours: nothing else belongs there."""
        with contextlib.suppress(OSError):
            for folder in list(os.scandir(self._folder)):
                with contextlib.suppress(OSError):
                    for entry in list(os.scandir(folder)):
                        with contextlib.suppress(OSError):
                            about = entry.stat(follow_symlinks=False)
                            yield _File(about.st_mtime_ns, about.st_size, Path(entry))

    def _make_room(self, folder: Path, size: int) -> None:
        """Deletes the oldest until a file of this size fits."""
        files = sorted(self._files())
        own = [one for one in files if one.path.parent == folder]
        for found, most, most_bytes in ((own, MAX_PER_AGENT, MAX_AGENT_BYTES), (files, _MAX_FILES, MAX_BYTES)):
            held = [one for one in found if one.path.exists()]
            total = sum(one.size for one in held)
            while held and (len(held) >= most or total + size > most_bytes):
                total -= held[0].size
                held.pop(0).path.unlink(missing_ok=True)

    def _sweep(self) -> None:
        """Deletes what has expired, and empty folders."""
        now = time.time()
        for one in self._files():
            # A time in the future is a clock that was changed.
            if not 0 <= now - one.written / 1e9 < LIVES:
                one.path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            for folder in list(os.scandir(self._folder)):
                with contextlib.suppress(OSError):
                    Path(folder).rmdir()

    def _sweep_now(self) -> None:
        self._start(self._sweep)
        self._timer = asyncio.get_running_loop().call_later(_BETWEEN_SWEEPS, self._sweep_now)

    def _ended(self, event: Event) -> None:
        if isinstance(event, AgentEnded) and not event.returns:
            self._start(lambda: shutil.rmtree(self._folder / event.agent, ignore_errors=True))

    def _start(self, work: Callable[[], None]) -> None:
        job = asyncio.create_task(self._in_turn(work))
        self._work.add(job)
        job.add_done_callback(self._work.discard)

    async def _in_turn(self, work: Callable[[], None]) -> None:
        async with self._turn:
            await asyncio.to_thread(work)


def _purpose(id: str) -> str:
    return f"result {id}"
