"""The process of a workspace server that programs share: one for a folder, ended with its last user.

In: the folder, and two descriptors of whoever starts it: the lock, held until the server can be found, and the first
user's lifeline. Out: one line to every user (the process, or why there is none), then the server's life. `ensure`
starts it, `lifelines` knows when it is over.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__" and os.fork():
    # Who starts it shall not have to wait for its end; and no thread is there yet.
    os._exit(0)

import argparse
import asyncio
import contextlib
import json
import socket
from pathlib import Path
from typing import Any

from toolcrib.errors import ToolcribError
from toolcrib.workspace.serving.ensure import LIFELINE, LOCK, SOCKET, clear
from toolcrib.workspace.serving.lifelines import Lifelines, locked
from toolcrib.workspace.serving.listeners import unix_socket
from toolcrib.workspace.serving.main import leave, live, log_to_stderr, open_workspace, over_socket, without_token
from toolcrib.workspace.workspace import Workspace

_LOCK_LIMIT = 2.0


class Ensured:
    def __init__(self, folder: Path, lock: int, first: socket.socket) -> None:
        self._folder = folder
        self._lock: int | None = lock
        self._first = first

    async def serve(self, workspace: Workspace) -> None:
        with unix_socket(self._folder / LIFELINE) as listener:
            found: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            serving = asyncio.ensure_future(
                over_socket(workspace, self._folder / SOCKET, ready=lambda: found.set_result(None))
            )
            try:
                await asyncio.wait({serving, found}, return_when=asyncio.FIRST_COMPLETED)
                if found.done():
                    await self._until_alone(listener, serving)
                else:
                    await serving
            finally:
                serving.cancel()
                await asyncio.wait({serving})

    async def _until_alone(self, listener: socket.socket, serving: asyncio.Future[None]) -> None:
        self._unlock()
        lifelines = Lifelines(listener, self._first, _line({"pid": os.getpid()}))
        over = asyncio.ensure_future(lifelines.over(self._folder / LOCK))
        try:
            both: set[asyncio.Future[Any]] = {serving, over}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if over.done():
                self._lock = over.result()
        except asyncio.CancelledError:
            # Told to stop with users left: the next server shall not start before this one has ended.
            with contextlib.suppress(TimeoutError):
                self._lock = await asyncio.wait_for(locked(self._folder / LOCK), _LOCK_LIMIT)
            raise
        finally:
            over.cancel()
            lifelines.close()

    def fail(self, error: ToolcribError) -> None:
        self._first.send(_line({"error": {"message": error.message, "remedy": error.remedy}}))

    def clear(self) -> None:
        """The last thing done: whoever finds no lock file may start a server."""
        if self._lock is not None:
            clear(self._folder)

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _line(told: dict[str, Any]) -> bytes:
    return json.dumps(told).encode() + b"\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m toolcrib.workspace.serving.ensured")
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--lock", type=int, required=True)
    parser.add_argument("--lifeline", type=int, required=True)
    options = parser.parse_args()
    for descriptor in (options.lock, options.lifeline):
        os.set_inheritable(descriptor, False)
    log_to_stderr()
    ensured = Ensured(options.folder, options.lock, socket.socket(fileno=options.lifeline))
    try:
        workspace = open_workspace(options.root, without_token(os.environ))
        asyncio.run(live(workspace, ensured.serve))
    except ToolcribError as error:
        ensured.fail(error)
        return error.exit_code
    ensured.clear()
    leave()
    return 0


if __name__ == "__main__":
    sys.exit(main())
