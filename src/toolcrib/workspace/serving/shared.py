"""`ensure_workspace(root)`: a running workspace server for a folder, from any Python program.

In: a folder. Out: a `RunningWorkspace`, which holds a lifeline to the folder's server. There is one for a folder
(links resolved), shared by all programs of this user, and it ends with its last user, however that one ends. Starts
and ends are made under a lock; who starts a server hands the lock on to it, so that nobody comes in between if the
starter is killed. Run as a program this module is the server's side.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import hashlib
import json
import os
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from toolcrib.config.paths import Paths, private_folder
from toolcrib.errors import ConfigError, ServerUnavailable, ToolcribError, WorkspaceError
from toolcrib.signals import with_default_signals
from toolcrib.workspace.serving.main import leave, live, log_to_stderr, open_workspace, over_socket, without_token
from toolcrib.workspace.serving.transports import LONGEST_SOCKET_PATH, TOKEN_VARIABLE, listen_on_unix_socket
from toolcrib.workspace.workspace import Workspace

if TYPE_CHECKING:
    from mcp import Client


LOCK_FILE = "lock"
LIFELINE_SOCKET = "life.sock"
MCP_SOCKET = "mcp.sock"
LOG_FILE = "log"

START_LIMIT = 60.0
"""Seconds that a server may take to start, on a busy machine."""
_PATIENCE = 120.0
"""Seconds to wait for others that start or end one."""
_PAUSE = 0.01
_TAIL = 2000
_SILENT = 30.0
"""Seconds for a server to take a connection; how long an answer takes is limited by the tools."""

_DAEMONS_MARK = "TOOLCRIB_CHILD"
"""Marks what the daemon ends together with a server of its own; the shared one must not count as such."""

_lifelines: weakref.WeakSet[socket.socket] = weakref.WeakSet()
_locks: set[int] = set()
"""What this process holds. A forked child closes its copies, or the server would outlive its users."""


def ensure_workspace(
    root: str | os.PathLike[str] = ".", *, environ: Mapping[str, str] | None = None
) -> RunningWorkspace:
    """The folder's server, started if there is none. Close what you get, or use it as a context manager."""
    environ = os.environ if environ is None else environ
    try:
        real = Path(root).resolve(strict=True)
    except OSError as error:
        raise WorkspaceError(f"{root}: {error.strerror}.", remedy="Name a folder that exists.") from error
    folder = _folder(real, environ)
    with _locked(folder) as lock:
        lifeline, pid = _join(folder) or _start(real, folder, lock, environ)
    return RunningWorkspace(real, folder / MCP_SOCKET, pid, lifeline)


class RunningWorkspace:
    """A server in use. It runs as long as anybody has one of these open."""

    def __init__(self, root: Path, path: Path, pid: int, lifeline: socket.socket) -> None:
        self.root = root
        self.socket = path
        """Streamable HTTP: `http://localhost/mcp` over this unix socket."""
        self.pid = pid
        self._lifeline = lifeline

    @property
    def is_alive(self) -> bool:
        """Whether the server is still there for us."""
        try:
            return self._lifeline.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
        except BlockingIOError:
            return True
        except OSError:
            return False

    @contextlib.asynccontextmanager
    async def client(self, **options: Any) -> AsyncIterator[Client]:
        """An MCP client, connected: `async with workspace.client() as client`. The options are the SDK's."""
        import httpx2  # noqa: PLC0415
        from mcp import Client  # noqa: PLC0415
        from mcp.client.streamable_http import streamable_http_client  # noqa: PLC0415

        if not self.is_alive:
            raise ServerUnavailable(
                f"The workspace server of {self.root} has ended, or was closed here.",
                remedy="Call ensure_workspace again.",
            )
        way = httpx2.AsyncHTTPTransport(uds=str(self.socket))
        async with httpx2.AsyncClient(
            transport=way, trust_env=False, timeout=httpx2.Timeout(_SILENT, read=None)
        ) as http:
            transport = streamable_http_client("http://localhost/mcp", http_client=http, max_sse_event_size=None)
            async with Client(transport, **options) as client:
                yield client

    def close(self) -> None:
        """Lets go of the server, which ends if nobody else uses it."""
        self._lifeline.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _folder(root: Path, environ: Mapping[str, str]) -> Path:
    base = Paths.of_user(environ).run_dir
    folder = base / "workspaces" / hashlib.sha256(os.fsencode(root)).hexdigest()[:16]
    if len(os.fsencode(folder / LIFELINE_SOCKET)) > LONGEST_SOCKET_PATH:
        raise ConfigError(
            f"{folder} is too long a path for a unix socket.",
            remedy="Set XDG_RUNTIME_DIR or TOOLCRIB_HOME to a folder with a shorter path.",
        )
    for part in (base, folder.parent, folder):
        private_folder(part)
    return folder


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[int]:
    """The lock of starts and ends. A server that ends removes the file, so what was locked may be no longer there."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        private_folder(folder)
        try:
            descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            # The folder went with the last server, just now.
            continue
        _locks.add(descriptor)
        try:
            while not _try_lock(descriptor):
                if time.monotonic() > deadline:
                    raise ServerUnavailable(
                        f"Something has held {folder / LOCK_FILE} for {_PATIENCE:g} s.",
                        remedy="Try again; see who holds it.",
                    )
                time.sleep(_PAUSE)
            if _is_same(descriptor, folder / LOCK_FILE):
                yield descriptor
                return
        finally:
            _locks.discard(descriptor)
            os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_same(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _join(folder: Path) -> tuple[socket.socket, int] | None:
    """A lifeline to the server that runs; None if none does."""
    lifeline = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        lifeline.connect(str(folder / LIFELINE_SOCKET))
        told = _welcome(lifeline)
    except (FileNotFoundError, ConnectionError):
        told = {}
    if "pid" not in told:
        lifeline.close()
        return None
    _lifelines.add(lifeline)
    return lifeline, int(told["pid"])


def _start(root: Path, folder: Path, lock: int, environ: Mapping[str, str]) -> tuple[socket.socket, int]:
    lifeline, theirs = socket.socketpair()
    _lifelines.add(lifeline)
    # -P: the folder that a program stands in is no place to import from.
    words = [sys.executable, "-P", "-m", "toolcrib.workspace.serving.shared"]
    words += ["--root", str(root), "--folder", str(folder), "--lock", str(lock), "--lifeline", str(theirs.fileno())]
    log = os.open(folder / LOG_FILE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        subprocess.run(
            with_default_signals(words),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(lock, theirs.fileno()),
            start_new_session=True,
            cwd="/",
            env={name: value for name, value in environ.items() if name not in (TOKEN_VARIABLE, _DAEMONS_MARK)},
            timeout=START_LIMIT,
            check=False,
        )
    finally:
        os.close(log)
        theirs.close()
    told = _welcome(lifeline)
    if "pid" in told:
        return lifeline, int(told["pid"])
    lifeline.close()
    said = (folder / LOG_FILE).read_bytes()[-_TAIL:].decode(errors="replace").strip()
    remove_files(folder)
    if "error" in told:
        raise WorkspaceError(told["error"]["message"], remedy=told["error"]["remedy"])
    raise ServerUnavailable(f"The workspace server of {root} did not start. It said: {said or 'nothing.'}")


def remove_files(folder: Path) -> None:
    """Removes the lock last, by whoever holds it: who finds no lock file may start a server."""
    with contextlib.suppress(OSError):
        for name in (LOG_FILE, LOCK_FILE):
            (folder / name).unlink(missing_ok=True)
        folder.rmdir()


def _welcome(lifeline: socket.socket) -> dict[str, Any]:
    """What the server says to a new user; nothing if it ended instead."""
    lifeline.settimeout(START_LIMIT)
    said = b""
    try:
        while not said.endswith(b"\n"):
            piece = lifeline.recv(4096)
            if not piece:
                return {}
            said += piece
    except TimeoutError:
        raise ServerUnavailable("The workspace server does not answer.", remedy="See its log, or end it.") from None
    lifeline.settimeout(None)
    told: dict[str, Any] = json.loads(said)
    return told


def _close_copies() -> None:
    for lifeline in list(_lifelines):
        lifeline.close()
    for lock in _locks:
        os.close(lock)
    _locks.clear()


os.register_at_fork(after_in_child=_close_copies)


_LOCK_PAUSE = 0.02


async def locked(path: Path) -> int:
    """The lock, held as long as the descriptor is open."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return descriptor
            await asyncio.sleep(_LOCK_PAUSE)
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


if __name__ == "__main__" and os.fork():
    # Who starts it shall not have to wait for its end; and no thread is there yet.
    os._exit(0)


_LOCK_LIMIT = 2.0


class SharedServer:
    def __init__(self, folder: Path, lock: int, first: socket.socket) -> None:
        self._folder = folder
        self._lock: int | None = lock
        self._first = first

    async def serve(self, workspace: Workspace) -> None:
        with listen_on_unix_socket(self._folder / LIFELINE_SOCKET) as listener:
            found: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            serving = asyncio.ensure_future(
                over_socket(workspace, self._folder / MCP_SOCKET, ready=lambda: found.set_result(None))
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
        over = asyncio.ensure_future(lifelines.over(self._folder / LOCK_FILE))
        try:
            both: set[asyncio.Future[Any]] = {serving, over}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if over.done():
                self._lock = over.result()
        except asyncio.CancelledError:
            # Told to stop with users left: the next server shall not start before this one has ended.
            with contextlib.suppress(TimeoutError):
                self._lock = await asyncio.wait_for(locked(self._folder / LOCK_FILE), _LOCK_LIMIT)
            raise
        finally:
            over.cancel()
            lifelines.close()

    def fail(self, error: ToolcribError) -> None:
        self._first.send(_line({"error": {"message": error.message, "remedy": error.remedy}}))

    def clear(self) -> None:
        """The last thing done: whoever finds no lock file may start a server."""
        if self._lock is not None:
            remove_files(self._folder)

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _line(told: dict[str, Any]) -> bytes:
    return json.dumps(told).encode() + b"\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m toolcrib.workspace.serving.shared")
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--lock", type=int, required=True)
    parser.add_argument("--lifeline", type=int, required=True)
    options = parser.parse_args()
    for descriptor in (options.lock, options.lifeline):
        os.set_inheritable(descriptor, False)
    log_to_stderr()
    ensured = SharedServer(options.folder, options.lock, socket.socket(fileno=options.lifeline))
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
