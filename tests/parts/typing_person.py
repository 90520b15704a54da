"""A person at a terminal: the real command line on a pseudo-terminal, whose hidden prompts are answered."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from parts.daemon import PROGRAM, Home

LIMIT = 60.0
# The leader of a session gets the first terminal that it opens.
_OPENS = "import os, sys; os.open(os.ttyname(0), os.O_RDWR); os.execv(sys.argv[1], sys.argv[1:])"


def at_terminal(
    home: Home, *words: str, answers: Sequence[tuple[str, str]], cwd: Path | None = None
) -> tuple[int, str]:
    """Waits for each text and then types its answer. Returns the exit code and everything on the screen."""
    ours, theirs = os.openpty()
    command = [sys.executable, "-c", _OPENS, str(PROGRAM), *words]
    env = home.environ({"TERM": "dumb", "COLUMNS": "300"})
    with subprocess.Popen(
        command, env=env, cwd=cwd or home.project, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    ) as process:
        os.close(theirs)
        try:
            screen, read = "", 0
            for expected, answer in answers:
                while expected not in screen[read:]:
                    screen += _more(ours, screen)
                read = screen.index(expected, read) + len(expected)
                os.write(ours, f"{answer}\n".encode())
            while more := _more(ours, screen):
                screen += more
            return process.wait(LIMIT), screen
        finally:
            process.kill()
            os.close(ours)


def _more(terminal: int, screen: str) -> str:
    """Empty at the end."""
    ready, _, _ = select.select([terminal], [], [], LIMIT)
    if not ready:
        raise TimeoutError(f"nothing more at {time.ctime()} after: {screen}")
    try:
        return os.read(terminal, 65536).decode(errors="replace")
    except OSError:
        # The last program that had it open has ended.
        return ""
