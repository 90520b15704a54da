"""How a shared workspace server knows its users: each holds a connection open that says nothing, to its end.

In: a listening unix socket, and the lock that starts and ends are made under. Out: the moment when nobody is left. A
user that is killed lets go like any other. Nobody can join while the lock is held here, and who joined before is found
in the queue: so no user is ever given a server that is about to end. `ensure` is the users' side.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import socket
from pathlib import Path

_PAUSE = 0.02


async def locked(path: Path) -> int:
    """The lock, held as long as the descriptor is open."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return descriptor
            await asyncio.sleep(_PAUSE)
    except BaseException:
        os.close(descriptor)
        raise


class Lifelines:
    def __init__(self, listener: socket.socket, first: socket.socket, welcome: bytes) -> None:
        self._listener = listener
        self._welcome = welcome
        self._loop = asyncio.get_running_loop()
        self._users: set[socket.socket] = set()
        self._alone = asyncio.Event()
        listener.setblocking(False)
        self._loop.add_reader(listener, self._accept)
        self._join(first)

    async def over(self, lock: Path) -> int:
        """When the last user is gone; the lock is ours then, and stays so with the descriptor."""
        while True:
            await self._alone.wait()
            descriptor = await locked(lock)
            self._accept()
            if not self._users:
                return descriptor
            os.close(descriptor)

    def close(self) -> None:
        self._loop.remove_reader(self._listener)
        for user in list(self._users):
            self._leave(user)

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                self._join(self._listener.accept()[0])

    def _join(self, user: socket.socket) -> None:
        user.setblocking(False)
        self._users.add(user)
        self._alone.clear()
        self._loop.add_reader(user, self._read, user)
        # Its reader sees the end of one that is gone already.
        with contextlib.suppress(OSError):
            user.send(self._welcome)

    def _read(self, user: socket.socket) -> None:
        try:
            said = user.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        if not said:
            self._leave(user)

    def _leave(self, user: socket.socket) -> None:
        self._loop.remove_reader(user)
        user.close()
        self._users.discard(user)
        if not self._users:
            self._alone.set()
