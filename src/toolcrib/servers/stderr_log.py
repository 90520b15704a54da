"""What a server's process says on stderr: the last lines in memory, all of it in a bounded file.

In: chunks of a child's stderr. Out: the last lines for `server:list` and error texts; a log file that turns over.
The file stays open as long as the process speaks, for this happens on the event loop: a chunk costs one write.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
from collections import deque
from collections.abc import Callable
from pathlib import Path

from toolcrib.servers.framing import Lines

log = logging.getLogger(__name__)

KEPT_LINES = 500
LONGEST_KEPT = 2000
LARGEST_FILE = 1024 * 1024
"""At this size the file becomes `<name>.1`, replacing the one before."""


class StderrLog:
    def __init__(self, file: Path | None, mask: Callable[[str], str]) -> None:
        self._file = file
        self._mask = mask
        self._kept: deque[str] = deque(maxlen=KEPT_LINES)
        self._of_this_process = 0
        """How many lines the process that runs now, or ran last, has written."""
        self._lines = Lines(limit=64 * 1024, on_overlong=lambda _: self._keep(["(a very long line was left out)"]))
        self._writable = file is not None
        self._out: io.FileIO | None = None

    def begin(self) -> None:
        """A new process starts. The lines of the one before stay readable: they say why it was replaced."""
        self._of_this_process = 0

    def feed(self, chunk: bytes) -> None:
        lines = [self._text(line) for line in self._lines.feed(chunk)]
        if lines:
            self._keep(lines)

    def end(self) -> None:
        """The process has closed stderr: what stands without a line end counts as a line."""
        if rest := self._lines.rest():
            self._keep([self._text(rest)])
        self._close()

    def tail(self, count: int) -> list[str]:
        return list(self._kept)[-count:] if count > 0 else []

    def last_words(self, count: int) -> list[str]:
        """The last lines of the newest process alone."""
        return self.tail(min(count, self._of_this_process))

    def _text(self, line: bytes) -> str:
        text = self._mask(line.decode(errors="replace").rstrip().expandtabs())
        return text if len(text) <= LONGEST_KEPT else f"{text[:LONGEST_KEPT]} …"

    def _keep(self, lines: list[str]) -> None:
        self._kept.extend(lines)
        self._of_this_process += len(lines)
        if self._file is None or not self._writable:
            return
        try:
            self._opened(self._file).write("".join(f"{line}\n" for line in lines).encode(errors="replace"))
        except OSError as error:
            self._writable = False
            self._close()
            log.warning(
                "cannot write %s: %s. What this server says on stderr is kept in memory only.", self._file, error
            )

    def _opened(self, file: Path) -> io.FileIO:
        out = self._out or self._open(file)
        if out.tell() >= LARGEST_FILE:
            # Another instance of the server may write to the same file, and have turned it over already.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(file.stat(), os.fstat(out.fileno())):
                    file.replace(file.with_name(f"{file.name}.1"))
            self._close()
            out = self._open(file)
        return out

    def _open(self, file: Path) -> io.FileIO:
        file.parent.mkdir(parents=True, exist_ok=True)
        self._out = io.FileIO(file, "a")
        return self._out

    def _close(self) -> None:
        if self._out is not None:
            self._out.close()
            self._out = None
