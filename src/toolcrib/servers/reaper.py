"""The one who makes sure that no server's process outlives us, not even after `kill -9`.

In: process groups of stdio children as they come and go. Out: a small helper process that holds the other end of a
pipe; when our end closes, for whatever reason, it ends the groups that are left and whatever carries our marker.
Where there is no /proc only groups are ended. `stdio` is the only user; one reaper serves a whole `Pool`.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

from toolcrib.servers import reaper_child
from toolcrib.servers.environment import MARKER

log = logging.getLogger(__name__)

_LEAVE = 0.3
"""Seconds that the rest of a group gets to leave after its leader."""


class Reaper:
    def __init__(self) -> None:
        self.instance = secrets.token_hex(12)
        self._numbers = itertools.count(1)
        self._groups: set[int] = set()
        self._helper: subprocess.Popen[bytes] | None = None

    def new_marker(self) -> str:
        """The value of the marker variable for one new child."""
        return f"{self.instance}.{next(self._numbers)}."

    def watch(self, group: int) -> None:
        self._groups.add(group)
        self._tell(f"+ {group}\n")

    def forget(self, group: int) -> None:
        self._groups.discard(group)
        if self._helper is not None:
            self._tell(f"- {group}\n")

    def end(self, group: int, marker: str) -> None:
        """Ends what is left of one child: the rest of its group, and those that left the group. Blocks up to ~0.5 s."""
        if reaper_child.signal_group(group, signal.SIGTERM):
            deadline = time.monotonic() + _LEAVE
            while time.monotonic() < deadline and reaper_child.signal_group(group, 0):
                time.sleep(0.01)
            reaper_child.signal_group(group, signal.SIGKILL)
        reaper_child.kill_marked(f"{MARKER}={marker}".encode())
        self.forget(group)

    def close(self) -> None:
        """Ends everything that was not ended before, and the helper."""
        helper, self._helper = self._helper, None
        if helper is None:
            return
        self._close_pipe(helper)
        try:
            helper.wait(timeout=3)
        except subprocess.TimeoutExpired:
            log.warning("the reaper did not end in time and was killed")
            helper.kill()
            helper.wait()
        self._groups.clear()

    @staticmethod
    def _close_pipe(helper: subprocess.Popen[bytes]) -> None:
        if helper.stdin is not None:
            # Closing flushes, which fails where the reader is gone already; the pipe is closed all the same.
            with contextlib.suppress(OSError):
                helper.stdin.close()

    def _tell(self, line: str) -> None:
        if self._helper is not None and self._helper.poll() is not None:
            self._close_pipe(self._helper)
            self._helper = None
        if self._helper is None:
            self._helper = self._start()
            line = "".join(f"+ {group}\n" for group in self._groups)
        stdin = self._helper.stdin
        if stdin is None:
            return
        try:
            stdin.write(line.encode())
            stdin.flush()
        except OSError as error:
            log.warning("the reaper is gone (%s); it is started anew with the next server", error)

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(reaper_child.__file__)), f"{MARKER}={self.instance}."],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={},
            cwd="/",
        )
