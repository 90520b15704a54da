"""Connects to a shared process, and starts it if it does not run.

In: the path of its socket and the command that starts it. Out: a connected socket. Simultaneous callers use a file
lock, so that only one process starts. Bridges and runs reach the daemon this way, `shared_workspace` the server of a
folder; imports are light. `lifetime` is the other side.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from toolcrib.errors import DaemonNotRunning, ToolcribError

FOR_RUNS = "for-runs"
"""The argument for a daemon that runs as long as runs and bridges need it."""

CONNECT_TIMEOUT = 25.0
"""Seconds from the first try to a connected socket."""
POLL = 0.05
SECOND_LOOK = 2.0
"""Seconds to wait for a socket after its starter ended or failed, because another process may be starting one."""

MOST_STARTS = 3
"""A started process may end with its other users before we connect."""

START = (sys.executable, "-P", "-m", "toolcrib.daemon_client.detach")
"""-P: nothing is imported from the folder it starts in."""
START_FOR_RUNS = (*START, FOR_RUNS)


HEALTH_REQUEST = b'{"jsonrpc":"2.0","id":0,"method":"system:health","params":{}}\n'
"""The kernel accepts connections to a daemon that is ending. A daemon that answers this request is alive."""


def _daemon_failed(reason: str) -> ToolcribError:
    return DaemonNotRunning(
        f"The daemon did not start: {reason}" if reason else "The daemon started but did not answer in time.",
        remedy="Run `toolcrib up` to start it in the foreground, or see `toolcrib logs`.",
    )


class SharedProcess(NamedTuple):
    """Describes the process, for errors."""

    name: str
    error: type[ToolcribError]
    remedy: str
    """For a process that does not answer."""
    failed: Callable[[str], ToolcribError]
    """Creates an error from the stderr of its start."""
    second_look: float = SECOND_LOOK


DAEMON = SharedProcess("daemon", DaemonNotRunning, "Run `toolcrib down`, then `toolcrib up`.", _daemon_failed)


def try_connect(path: Path, target: SharedProcess = DAEMON) -> socket.socket | None:
    """A connection to a process that answers, or None."""
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
        raise target.error(
            f"The {target.name} did not answer within {CONNECT_TIMEOUT:.0f} s.", remedy=target.remedy
        ) from error
    except OSError as error:
        sock.close()
        raise target.error(
            f"The socket {path} of the {target.name} cannot be used: {error.strerror or error}.",
            remedy="Check TOOLCRIB_HOME and the owner of that folder; use a shorter path if it is too long.",
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
    target: SharedProcess = DAEMON,
) -> socket.socket:
    """Connects, and starts the process first if none runs. Stops waiting when `given_up` returns True."""
    sock = try_connect(path, target)
    if sock is not None:
        return sock
    deadline = time.monotonic() + patience
    starts = 0
    with contextlib.closing(StartLock(path.parent, target)) as lock:
        while time.monotonic() < deadline and not given_up():
            mine = lock.take()
            # Check again with the lock held: its last holder may have started the process.
            sock = try_connect(path, target)
            if sock is not None:
                return sock
            if mine and starts < MOST_STARTS:
                # Imported here because only a cold start needs it.
                from toolcrib.daemon_client.launch import launch  # noqa: PLC0415

                starts += 1
                sock = launch(path, environ=environ, start=start, deadline=deadline, given_up=given_up, target=target)
                if sock is not None:
                    return sock
            time.sleep(POLL)
    if starts:
        raise target.failed("")
    raise target.error(
        f"Another process is starting the {target.name}, but it did not answer within {patience:.0f} s.",
        remedy="Try again; for the daemon, `toolcrib up` shows why.",
    )


class StartLock:
    """The lock for starting a process, in the folder of its socket. Closing releases it."""

    def __init__(self, folder: Path, target: SharedProcess = DAEMON) -> None:
        self._wanted = target
        self.path = folder / "start.lock"
        self._handle = self._open()

    def take(self) -> bool:
        """Does not wait."""
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        if is_same_file(self._handle, self.path):
            return True
        # A process that ended removed the file, and others may have created a new one.
        self.close()
        self._handle = self._open()
        return False

    def close(self) -> None:
        _handles.discard(self._handle)
        os.close(self._handle)

    def _open(self) -> int:
        folder = self.path.parent
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self._wanted.error(
                f"No {self._wanted.name} is running, and its folder {folder} cannot be used: {error.strerror}.",
                remedy="Make it writable, or set TOOLCRIB_HOME to a writable folder.",
            ) from error
        _handles.add(handle)
        return handle


def is_same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


_handles: set[int] = set()


def _close_copies() -> None:
    """A forked child would keep the lock."""
    for handle in _handles:
        os.close(handle)
    _handles.clear()


os.register_at_fork(after_in_child=_close_copies)
