"""`ensure_workspace(root)`: a running workspace server for a folder, from any Python program.

In: a folder. Out: a `RunningWorkspace`, whose connection is a lease on the folder's server. Each folder (links
resolved) has one server, which all programs of this user share and which ends with its last user, even a killed one.
It is reached and started like the daemon (`starting`), and ends like a daemon for runs (`lifetime`). Run as a program,
this module is the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import json
import os
import socket
import struct
import sys
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from toolcrib.config.paths import Paths, private_folder
from toolcrib.daemon_client.lifetime import ActiveLeases, DaemonLifetime, process_lock
from toolcrib.daemon_client.starting import SharedProcess, StartLock, connect_or_start
from toolcrib.errors import (
    AlreadyRunning,
    ConfigError,
    DaemonNotRunning,
    ServerUnavailable,
    ToolcribError,
    WorkspaceError,
)
from toolcrib.servers.environment import MARKER
from toolcrib.workspace.serving.transports import MAX_SOCKET_PATH_LENGTH, TOKEN_VARIABLE, listen_on_unix_socket

if TYPE_CHECKING:
    from mcp import Client

    from toolcrib.workspace import Workspace

LOCK_FILE = "lock"
LEASE_SOCKET = "lease.sock"
MCP_SOCKET = "mcp.sock"
LOG_FILE = "log"

START_LIMIT = 60.0
"""Seconds that a server may take to start on a busy machine; also the wait for another that starts or ends."""
FIRST_USER_WITHIN = 5.0
"""Seconds after which a server without any user ends: its starter was killed."""
_TAIL = 2000
_SILENT = 30.0
"""Seconds for a server to accept a connection; the tools limit the time of an answer."""
_READY = b"ready"
_PROBE = b"\n"
"""Checks for a server without leasing it."""

OverSocket = Callable[[Any, Path, Callable[[], None]], Coroutine[Any, Any, None]]

_leases: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def ensure_workspace(
    root: str | os.PathLike[str] = ".", *, environ: Mapping[str, str] | None = None
) -> RunningWorkspace:
    """The folder's server, started if needed. Close the result, or use it as a context manager."""
    environ = os.environ if environ is None else environ
    try:
        real = Path(root).resolve(strict=True)
    except OSError as error:
        raise WorkspaceError(f"{root}: {error.strerror}.", remedy="Give an existing folder.") from error
    folder = _folder(real, environ)
    # -P: nothing is imported from the program's current folder.
    start = (sys.executable, "-P", "-m", "toolcrib.daemon_client.shared_workspace", str(real), str(folder))
    # Started from inside one of the daemon's servers, it must not be treated as that server's child and end with it.
    passed = {name: value for name, value in environ.items() if name not in (TOKEN_VARIABLE, MARKER)}
    try:
        lease = connect_or_start(
            folder / LEASE_SOCKET, environ=passed, start=start, patience=START_LIMIT, target=_server_of(real)
        )
    except ToolcribError:
        with process_lock(folder / LOCK_FILE, lambda: True, 0.0) as is_unused:
            if is_unused:
                _remove_files(folder)
        raise
    _leases.add(lease)
    pid, *_ = struct.unpack("3i", lease.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return RunningWorkspace(real, folder / MCP_SOCKET, pid, lease)


class RunningWorkspace:
    """A server in use. It runs as long as any program has one of these open."""

    def __init__(self, root: Path, path: Path, pid: int, lease: socket.socket) -> None:
        self.root = root
        self.socket = path
        """Streamable HTTP: `http://localhost/mcp` over this unix socket."""
        self.pid = pid
        self._lease = lease

    @property
    def is_alive(self) -> bool:
        """Whether the server still runs and our lease is open."""
        try:
            return self._lease.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
        except BlockingIOError:
            return True
        except OSError:
            return False

    @contextlib.asynccontextmanager
    async def client(self, **options: Any) -> AsyncIterator[Client]:
        """An MCP client, connected: `async with workspace.client() as client`. The options are the SDK's."""
        # The SDK takes most of a second to load, and not every program needs it.
        import httpx2  # noqa: PLC0415
        from mcp import Client  # noqa: PLC0415
        from mcp.client.streamable_http import streamable_http_client  # noqa: PLC0415

        if not self.is_alive:
            raise ServerUnavailable(
                f"The workspace server of {self.root} has exited, or you closed it.",
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
        """Releases the server, which ends if no other program uses it."""
        self._lease.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _folder(root: Path, environ: Mapping[str, str]) -> Path:
    base = Paths.of_user(environ).run_dir
    folder = base / "workspaces" / hashlib.sha256(os.fsencode(root)).hexdigest()[:16]
    if len(os.fsencode(folder / LEASE_SOCKET)) > MAX_SOCKET_PATH_LENGTH:
        raise ConfigError(
            f"The path {folder} is too long for a unix socket.",
            remedy="Set XDG_RUNTIME_DIR or TOOLCRIB_HOME to a folder with a shorter path.",
        )
    for part in (base, folder.parent):
        private_folder(part)
    return folder


def _server_of(root: Path) -> SharedProcess:
    name = f"workspace server of {root}"

    def failed(output: str) -> ToolcribError:
        with contextlib.suppress(ValueError):
            return WorkspaceError(**json.loads(output))
        return ServerUnavailable(f"The {name} did not start. Its output: {output or 'none.'}")

    return SharedProcess(name, ServerUnavailable, "See its log, or stop it.", failed, second_look=0.3)


def _close_copies() -> None:
    """A forked child would keep the server running."""
    for lease in list(_leases):
        lease.close()


os.register_at_fork(after_in_child=_close_copies)


class SharedServer:
    """The server's side: it ends with its last lease."""

    def __init__(self, folder: Path, starter: int) -> None:
        self._folder = folder
        self._starter = starter
        """A pipe to the process that waits until the server is ready."""
        self._leases = ActiveLeases(DaemonLifetime.FOR_RUNS, on_idle=self._end)
        self._held: set[asyncio.StreamWriter] = set()
        self._ended = asyncio.Event()

    async def serve(self, workspace: Workspace, over_socket: OverSocket) -> None:
        loaded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        ready = functools.partial(loaded.set_result, None)
        serving = asyncio.ensure_future(over_socket(workspace, self._folder / MCP_SOCKET, ready))
        try:
            await asyncio.wait({serving, loaded}, return_when=asyncio.FIRST_COMPLETED)
            if loaded.done():
                await self._until_unused(serving)
            else:
                await serving
        finally:
            serving.cancel()
            await asyncio.wait({serving})

    async def _until_unused(self, serving: asyncio.Future[None]) -> None:
        with listen_on_unix_socket(self._folder / LEASE_SOCKET) as listener:
            server = await asyncio.start_unix_server(self._lease, sock=listener)
            self.report(_READY)
            asyncio.get_running_loop().call_later(FIRST_USER_WITHIN, self._end_if_unused)
            ended = asyncio.ensure_future(self._ended.wait())
            both: set[asyncio.Future[Any]] = {serving, ended}
            try:
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            finally:
                ended.cancel()
                self._leases.close()
                server.close()
                for writer in self._held:
                    writer.close()

    async def _lease(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers, so that the client knows that the server is not ending; then holds the lease until the connection
        closes."""
        try:
            line = await reader.readline()
            if line == _PROBE and not self._ended.is_set():
                writer.write(b"{}\n")
            elif line.endswith(b"\n"):
                with self._leases.needed():
                    self._held.add(writer)
                    writer.write(b"{}\n")
                    while await reader.read(4096):
                        pass
        except (DaemonNotRunning, ConnectionError):
            # Too late: this client starts another server.
            pass
        finally:
            self._held.discard(writer)
            writer.close()

    def _end_if_unused(self) -> None:
        if self._leases.idle:
            self._end()

    def _end(self) -> None:
        """Ends the server and refuses new clients."""
        self._leases.close()
        self._ended.set()

    def report(self, output: bytes) -> None:
        if self._starter >= 0:
            with contextlib.suppress(OSError):
                os.write(self._starter, output)
            os.close(self._starter)
            self._starter = -1


def main() -> int:
    """Returns when the server is ready or has failed; then the end of its log is on stderr."""
    root, folder = map(Path, sys.argv[1:])
    private_folder(folder)
    reading, writing = os.pipe()
    if os.fork():
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            output = pipe.read()
        if output != _READY:
            sys.stderr.write((output or (folder / LOG_FILE).read_bytes()[-_TAIL:]).decode(errors="replace"))
        return 0 if output == _READY else 1
    os.close(reading)
    log = os.open(folder / LOG_FILE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    for number in (1, 2):
        os.dup2(log, number)
    return _run(root, folder, writing)


def _run(root: Path, folder: Path, starter: int) -> int:
    from toolcrib.workspace.serving import main as serving  # noqa: PLC0415 - all the tools; only the server needs them

    serving.log_to_stderr()
    server = SharedServer(folder, starter)
    try:
        with process_lock(folder / LOCK_FILE, lambda: _answers(folder), START_LIMIT) as is_ours:
            if not is_ours:
                raise AlreadyRunning(f"A workspace server of {root} is already running.", remedy="Try again.")
            workspace = serving.open_workspace(root, serving.without_token(os.environ))
            asyncio.run(serving.live(workspace, lambda one: server.serve(one, serving.over_socket)))
            _remove_files(folder)
            serving.leave()
    except ToolcribError as error:
        server.report(json.dumps({"message": error.message, "remedy": error.remedy}).encode())
        return error.exit_code
    return 0


def _answers(folder: Path) -> bool:
    """Whether another server runs and is not ending."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.connect(str(folder / LEASE_SOCKET))
        probe.sendall(_PROBE)
        return probe.recv(1) != b""
    return False


def _remove_files(folder: Path) -> None:
    """Called by the holder of the server's lock; removes nothing while another server is starting."""
    with contextlib.suppress(OSError), contextlib.closing(StartLock(folder)) as turn:
        if turn.take():
            for name in (LOG_FILE, LOCK_FILE, turn.path.name):
                (folder / name).unlink(missing_ok=True)
            folder.rmdir()


if __name__ == "__main__":
    sys.exit(main())
