"""Makes sure that no server process and none of our temporary files outlives us, not even after `kill -9`.

In: process groups of stdio children as they start and end; files to remove with us. Out: a small helper process that
holds the other end of a pipe. When our end closes, for whatever reason, it removes the files and kills the remaining
groups and every process with our marker. Without /proc it kills only groups. `stdio` registers the groups, the daemon
its files; one reaper serves a whole `ServerPool`.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from toolcrib.servers import reaper_child
from toolcrib.servers.environment import MARKER
from toolcrib.signals import with_default_signals

log = logging.getLogger(__name__)

_LEAVE = 0.3
"""Seconds that the rest of a group gets to exit after its leader."""


def guarded(command: Sequence[str]) -> list[str]:
    """A command line that starts the program with default signals and, on Linux, under a guard."""
    if not sys.platform.startswith("linux"):
        return with_default_signals(command)
    return [sys.executable, "-I", "-S", reaper_child.__file__, reaper_child.GUARD, *command]


class Reaper:
    def __init__(self) -> None:
        self.instance = secrets.token_hex(12)
        self._numbers = itertools.count(1)
        self._groups: set[int] = set()
        self._files: dict[Path, str] = {}
        self._helper: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        """Guards `_groups`, `_files` and `_helper`: children are stopped in threads."""

    def start(self) -> None:
        """Starts the helper now instead of with the first group or file."""
        with self._lock:
            self._send("")

    def new_marker(self) -> str:
        """The marker variable's value for a new child."""
        return f"{self.instance}.{next(self._numbers)}."

    def watch(self, group: int) -> None:
        with self._lock:
            self._groups.add(group)
            self._send(f"+ {group}\n")

    def forget(self, group: int) -> None:
        with self._lock:
            self._groups.discard(group)
            if self._helper is not None:
                self._send(f"- {group}\n")

    def unlink(self, path: Path) -> None:
        """Removes the file if we exit without removing it ourselves. A later file at the same path is kept.

        The file must exist and not be written to afterwards; if you replace it, call this again. Raises OSError.
        """
        line = f"f {reaper_child.file_mark(str(path))} {os.fsencode(path.absolute()).hex()}\n"
        with self._lock:
            self._files[path] = line
            self._send(line)

    def end(self, group: int, marker: str) -> None:
        """Kills the remaining processes of one child, also those that left its group. Blocks up to ~0.5 s."""
        if reaper_child.signal_group(group, signal.SIGTERM):
            deadline = time.monotonic() + _LEAVE
            while time.monotonic() < deadline and reaper_child.signal_group(group, 0):
                time.sleep(0.01)
            reaper_child.kill_group(group)
        reaper_child.kill_marked(f"{MARKER}={marker}".encode())
        self.forget(group)

    def close(self) -> None:
        """Stops the helper, which kills everything that is still registered."""
        with self._lock:
            helper, self._helper = self._helper, None
            self._groups.clear()
            self._files.clear()
        if helper is None:
            return
        self._close_pipe(helper)
        try:
            helper.wait(timeout=3)
        except subprocess.TimeoutExpired:
            log.warning("the reaper did not end in time and was killed")
            helper.kill()
            helper.wait()

    @staticmethod
    def _close_pipe(helper: subprocess.Popen[bytes]) -> None:
        if helper.stdin is not None:
            # Closing flushes, which fails if the reader is gone; the pipe is closed anyway.
            with contextlib.suppress(OSError):
                helper.stdin.close()

    def _send(self, line: str) -> None:
        if self._helper is not None and self._helper.poll() is not None:
            self._close_pipe(self._helper)
            self._helper = None
        if self._helper is None:
            self._helper = self._new_helper()
            line = "".join([*(f"+ {group}\n" for group in self._groups), *self._files.values()])
        stdin = self._helper.stdin
        if stdin is None:
            return
        try:
            stdin.write(line.encode())
            stdin.flush()
        except OSError as error:
            log.warning("the reaper is gone (%s); it restarts with the next server", error)

    def _new_helper(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(reaper_child.__file__)), f"{MARKER}={self.instance}."],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={},
            cwd="/",
        )
