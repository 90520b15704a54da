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

from toolcrib.errors import DaemonNotRunning

FOR_RUNS = "for-runs"
"""The word that asks for a daemon which lives as long as runs and bridges need it."""

CONNECT_TIMEOUT = 25.0
"""Seconds from the first try to a connected socket."""
POLL = 0.05

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
                # Only a cold start pays for what starts a process.
                from toolcrib.daemon_client.launch import launch  # noqa: PLC0415

                return launch(path, environ=environ, start=start, deadline=deadline, given_up=given_up)
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
