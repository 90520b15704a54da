"""The one who makes sure that no server's process and no file of ours outlives us, not even after `kill -9`.

In: process groups of stdio children as they come and go; files that are to go with us. Out: a small helper process that
holds the other end of a pipe; when our end closes, for whatever reason, it removes the files, and ends the groups that
are left and whatever carries our marker. Where there is no /proc only groups are ended. `stdio` names the groups, the
daemon its files; one reaper serves a whole `ServerPool`.
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
"""Seconds that the rest of a group gets to leave after its leader."""


def guarded(words: Sequence[str]) -> list[str]:
    """The words that start this program with default signals and, on Linux, below a guard that ends with all of it."""
    if not sys.platform.startswith("linux"):
        return with_default_signals(words)
    return [sys.executable, "-I", "-S", reaper_child.__file__, reaper_child.GUARD, *words]


class Reaper:
    def __init__(self) -> None:
        self.instance = secrets.token_hex(12)
        self._numbers = itertools.count(1)
        self._groups: set[int] = set()
        self._files: dict[Path, str] = {}
        self._helper: subprocess.Popen[bytes] | None = None
        self._telling = threading.Lock()
        """What is known and the helper change together; children are ended in threads."""

    def start(self) -> None:
        """Starts the helper now rather than with the first that it is told."""
        with self._telling:
            self._tell("")

    def new_marker(self) -> str:
        """The value of the marker variable for one new child."""
        return f"{self.instance}.{next(self._numbers)}."

    def watch(self, group: int) -> None:
        with self._telling:
            self._groups.add(group)
            self._tell(f"+ {group}\n")

    def forget(self, group: int) -> None:
        with self._telling:
            self._groups.discard(group)
            if self._helper is not None:
                self._tell(f"- {group}\n")

    def unlink(self, path: Path) -> None:
        """Has the file removed when we end without having done it. A later file at the same path stays.

        It must exist, and not be written to afterwards; a file that is replaced is named again. Raises OSError.
        """
        line = f"f {reaper_child.file_mark(str(path))} {os.fsencode(path.absolute()).hex()}\n"
        with self._telling:
            self._files[path] = line
            self._tell(line)

    def end(self, group: int, marker: str) -> None:
        """Ends what is left of one child: the rest of its group, and those that left the group. Blocks up to ~0.5 s."""
        if reaper_child.signal_group(group, signal.SIGTERM):
            deadline = time.monotonic() + _LEAVE
            while time.monotonic() < deadline and reaper_child.signal_group(group, 0):
                time.sleep(0.01)
            reaper_child.kill_group(group)
        reaper_child.kill_marked(f"{MARKER}={marker}".encode())
        self.forget(group)

    def close(self) -> None:
        """Ends everything that was not ended before, and the helper."""
        with self._telling:
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
            # Closing flushes, which fails where the reader is gone already; the pipe is closed all the same.
            with contextlib.suppress(OSError):
                helper.stdin.close()

    def _tell(self, line: str) -> None:
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
            log.warning("the reaper is gone (%s); it is started anew with the next server", error)

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
