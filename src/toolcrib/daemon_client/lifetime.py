"""One daemon per user, and its lifetime.

In: a user's `Paths`; runs, bridges and jobs that use the daemon. Out: the daemon's lock, which ends with its holder's
process, or `AlreadyRunning` with the holder; and `ActiveLeases`, which counts the daemon's users and ends a daemon for
runs after the last one. `shared_workspace` does the same for the server of a folder.
"""

from __future__ import annotations

import contextlib
import enum
import fcntl
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from toolcrib.config.paths import Paths, private_folder
from toolcrib.daemon_client.starting import is_same_file
from toolcrib.errors import AlreadyRunning, DaemonNotRunning, UsageError

_PATIENCE = 5.0
_FOR_RUNS_REMEDY = (
    "It stops after the last run. `toolcrib runs` lists the runs; `toolcrib down` stops the daemon and its runs now."
)


@contextlib.contextmanager
def daemon_lock(paths: Paths) -> Iterator[None]:
    private_folder(paths.run_dir)
    with process_lock(paths.lock, lambda: _daemon_answers(paths.socket), _PATIENCE) as is_ours:
        if not is_ours:
            if not _daemon_answers(paths.socket):
                raise AlreadyRunning("Another command is making changes here.", remedy="Try again when it is done.")
            known = read_info(paths)
            who = f" (pid {known['pid']}, {known['endpoint']})" if known and {"pid", "endpoint"} <= known.keys() else ""
            for_runs = (known or {}).get("for_runs") is True
            raise AlreadyRunning(
                f"Toolcrib is already running{who}{', only for runs of coding agents' if for_runs else ''}.",
                remedy=_FOR_RUNS_REMEDY if for_runs else "`toolcrib status` shows it, `toolcrib down` ends it.",
                data=known or {},
            )
        yield


@contextlib.contextmanager
def process_lock(path: Path, answers: Callable[[], bool], patience: float) -> Iterator[bool]:
    """Takes the lock of a process that must exist once; yields False if another process holds it. Waits up to
    `patience` seconds for a holder that does not answer: a process that starts or ends, or a command that makes changes
    here."""
    deadline = time.monotonic() + patience
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            is_ours = _try_lock(descriptor)
            # Its holder may have removed the file since we opened it, and another may exist.
            if (is_ours and is_same_file(descriptor, path)) or (
                not is_ours and (answers() or time.monotonic() > deadline)
            ):
                yield is_ours
                return
        finally:
            os.close(descriptor)
        if not is_ours:
            time.sleep(0.02)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_unlocked(paths: Paths) -> bool:
    """Whether no daemon runs here; a daemon that is ending still does."""
    try:
        descriptor = os.open(paths.lock, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def _daemon_answers(path: Path) -> bool:
    """Whether a daemon listens; the socket file alone may be the leftover of a killed one."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


def write_info(paths: Paths, info: dict[str, Any]) -> None:
    """Writes, atomically, what the CLI needs before it can connect."""
    fresh = paths.daemon_info.with_suffix(".new")
    fresh.write_text(json.dumps(info))
    fresh.chmod(0o600)
    fresh.replace(paths.daemon_info)


def read_info(paths: Paths) -> dict[str, Any] | None:
    try:
        info = json.loads(paths.daemon_info.read_text())
    except (FileNotFoundError, ValueError):
        return None
    return info if isinstance(info, dict) else None


class DaemonLifetime(enum.StrEnum):
    """How long a daemon runs."""

    UNTIL_STOPPED = "until stopped"
    FOR_RUNS = "for runs"
    """As long as runs and bridges need it. No other daemon replaces it."""


class ActiveLeases:
    def __init__(
        self, lasts: DaemonLifetime = DaemonLifetime.UNTIL_STOPPED, *, on_idle: Callable[[], None] | None = None
    ) -> None:
        """`on_idle` is called when the last user leaves a daemon for runs, before that user's connection closes."""
        self.lasts = lasts
        self.agents: set[str] = set()
        """The agents of current runs."""
        self._users = 0
        self._closed = False
        self._on_idle = on_idle

    @property
    def idle(self) -> bool:
        return not self._users

    def close(self) -> None:
        """Refuses new users, because the daemon stops."""
        self._closed = True

    @property
    def agents_stay(self) -> bool:
        """Whether runs' agents outlive their connections: this daemon stops, and the next may continue with them."""
        return self._closed and self.lasts is DaemonLifetime.UNTIL_STOPPED

    @contextlib.contextmanager
    def held(self, agent: str) -> Iterator[None]:
        """Counts a run while it uses the agent."""
        if agent in self.agents:
            raise UsageError(f"Another run already uses the agent {agent}.", remedy="Wait until that run is over.")
        with self.needed():
            self.agents.add(agent)
            try:
                yield
            finally:
                self.agents.discard(agent)

    @contextlib.contextmanager
    def needed(self) -> Iterator[None]:
        if self._closed:
            raise DaemonNotRunning("Toolcrib is stopping.", remedy="Try again: that starts a new daemon.")
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            if self.idle and self.lasts is DaemonLifetime.FOR_RUNS and self._on_idle is not None:
                self._on_idle()
