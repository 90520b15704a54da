"""Reaching the daemon, and starting one when none runs.

In: where the socket is and the command that starts a daemon. Out: a connected socket. Processes that start at the same
moment agree by a file lock, so one daemon is started. Bridges and runs come here; nothing heavy is imported for them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

from toolcrib.config.paths import Paths
from toolcrib.errors import DaemonNotRunning

if TYPE_CHECKING:
    import subprocess

FOR_RUNS = "for-runs"
"""The word that asks for a daemon which lives as long as runs and bridges need it."""

CONNECT_TIMEOUT = 25.0
"""Seconds from the first try to a connected socket."""
POLL = 0.05
SECOND_LOOK = 2.0
"""How long a socket is still waited for after the start failed: a daemon that another process is starting."""

START = (sys.executable, "-P", "-m", "toolcrib.daemon_client.detach")
"""-P: nothing is imported from the folder it starts in."""
START_FOR_RUNS = (*START, FOR_RUNS)


HEALTH_REQUEST = b'{"jsonrpc":"2.0","id":0,"method":"system:health","params":{}}\n'
"""The kernel takes connections for a daemon that is just dying. One that answers this is alive."""


def try_connect(path: Path) -> socket.socket | None:
    """A connection to a daemon that answers, or None where there is none."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(CONNECT_TIMEOUT)
        sock.connect(str(path))
        sock.sendall(HEALTH_REQUEST)
        if not _answers(sock):
            sock.close()
            return None
        sock.settimeout(None)
    except (FileNotFoundError, ConnectionError):
        sock.close()
        return None
    except TimeoutError as error:
        sock.close()
        raise DaemonNotRunning(
            f"The daemon does not answer within {CONNECT_TIMEOUT:.0f} s.", remedy="`toolcrib down`, then `toolcrib up`."
        ) from error
    except OSError as error:
        sock.close()
        raise DaemonNotRunning(
            f"The daemon's socket {path} cannot be used: {error.strerror or error}.",
            remedy="Check TOOLCRIB_HOME and who owns that folder; a shorter path helps where it is too long.",
        ) from error
    return sock


def _answers(sock: socket.socket) -> bool:
    last = b""
    while not last.endswith(b"\n"):
        last = sock.recv(1 << 16)
        if not last:
            return False
    return True


def connect_or_start(
    path: Path,
    *,
    environ: Mapping[str, str],
    start: Sequence[str] = START,
    patience: float = CONNECT_TIMEOUT,
    given_up: Callable[[], bool] = lambda: False,
) -> socket.socket:
    """Connects to the daemon; starts it first where none runs. `given_up` says that nobody waits any more."""
    sock = try_connect(path)
    if sock is not None:
        return sock
    deadline = time.monotonic() + patience
    with _start_lock(path) as take_turn:
        while time.monotonic() < deadline and not given_up():
            mine = take_turn()
            # With the turn in hand a second look is needed: the one before us may have started the daemon.
            sock = try_connect(path)
            if sock is not None:
                return sock
            if mine:
                return _start(path, environ=environ, start=start, deadline=deadline, given_up=given_up)
            time.sleep(POLL)
    raise DaemonNotRunning(
        f"Another process is starting the daemon, but it did not answer within {patience:.0f} s.",
        remedy="Run `toolcrib up` to see why.",
    )


@contextlib.contextmanager
def _start_lock(path: Path) -> Iterator[_StartLock]:
    folder = path.parent
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(folder / "start.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise DaemonNotRunning(
            f"No daemon runs, and its folder {folder} cannot be used: {error.strerror}.",
            remedy="Make it writable, or set TOOLCRIB_HOME to a folder that is.",
        ) from error
    try:
        yield _StartLock(handle)
    finally:
        os.close(handle)


class _StartLock:
    """Asks for the lock without waiting; closing the file gives it back."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __call__(self) -> bool:
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def _start(
    path: Path,
    *,
    environ: Mapping[str, str],
    start: Sequence[str],
    deadline: float,
    given_up: Callable[[], bool],
) -> socket.socket:
    # Only a cold start pays for these.
    import subprocess  # noqa: PLC0415
    import tempfile  # noqa: PLC0415

    from toolcrib.signals import with_default_signals  # noqa: PLC0415

    with tempfile.TemporaryFile() as said:
        try:
            process = subprocess.Popen(
                with_default_signals(start),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
                env=_environment(environ),
                cwd=_neutral_folder(environ),
                start_new_session=True,
            )
        except OSError as error:
            raise DaemonNotRunning(f"The daemon could not be started: {error}.") from error
        try:
            return _await(path, process, said, deadline, given_up)
        finally:
            _reap(process, deadline)


def _await(
    path: Path, process: subprocess.Popen[bytes], said: IO[bytes], deadline: float, given_up: Callable[[], bool]
) -> socket.socket:
    while time.monotonic() < deadline and not given_up():
        sock = try_connect(path)
        if sock is not None:
            return sock
        if process.poll() not in (None, 0):
            deadline = min(deadline, time.monotonic() + SECOND_LOOK)
        time.sleep(POLL)
    said.seek(0)
    reason = said.read(4000).decode("utf-8", "replace").strip()
    raise DaemonNotRunning(
        f"The daemon did not start: {reason}" if reason else "The daemon did not answer in time after its start.",
        remedy="Run `toolcrib up` to see it in the foreground, or `toolcrib logs`.",
    )


def _reap(process: subprocess.Popen[bytes], deadline: float) -> None:
    """The starter ends by itself once the endpoint answers; one that does not is ended, so that none is left."""
    import subprocess  # noqa: PLC0415

    try:
        process.wait(max(0.5, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    env = dict(environ)
    if env.get("TOOLCRIB_HOME"):
        # It may be relative, and the daemon starts in another folder.
        env["TOOLCRIB_HOME"] = str(Paths.of_user(environ).config_dir)
    env.pop("CLAUDE_PROJECT_DIR", None)
    return env


def _neutral_folder(environ: Mapping[str, str]) -> str:
    """A daemon that is started by the way belongs to no project: what it offers must not depend on who came first."""
    home = environ.get("HOME", "")
    return home if home and Path(home).is_dir() else "/"
