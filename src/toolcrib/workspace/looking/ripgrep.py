"""ripgrep, where it is installed and the sandbox holds: it names the files that are worth opening.

In: a pattern and where to look. Out: the files that may hold it, or None where it cannot tell. What it says is only a
hint: `search` walks, reads and matches by itself and opens only these, so a link put in ripgrep's way, a rule that it
reads differently, or an answer that somebody forged can hide a file but never show one.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence

from toolcrib.errors import WorkspaceError
from toolcrib.workspace.confined.folder import Spot
from toolcrib.workspace.looking.walk import Ignored, is_own
from toolcrib.workspace.patterns.dialect import Pattern
from toolcrib.workspace.sandbox.model import Command, Ending
from toolcrib.workspace.sandbox.programs import find_program
from toolcrib.workspace.tool import Scene

PROGRAM = "rg"
MOST_OUTPUT = 4 * 1024 * 1024
"""Of names. Where there are more, nearly every file fits and nothing is gained."""
_ALIKE_IN_BOTH = re.compile(r"[\w*.-]+")
_FOUND, _NOTHING = 0, 1

_OPTIONS = (
    "--files-with-matches",
    "--null",
    "--no-config",
    "--no-messages",
    "--no-mmap",
    "--hidden",
    "--no-require-git",
    "--no-ignore-global",
    "--no-ignore-parent",
    "--no-ignore-dot",
    "--no-ignore-exclude",
)


async def files_worth_opening(
    scene: Scene, pattern: Pattern, start: Spot, *, globs: Sequence[str], ignored: Ignored, until: float
) -> set[tuple[str, ...]] | None:
    """By their names from the root; every file that fits is among them."""
    program = find_program(PROGRAM, scene.environ, scene.folder.root)
    if program is None:
        return None
    names = bytearray()

    def take(stream: str, chunk: bytes) -> None:
        if stream == "stdout" and len(names) <= MOST_OUTPUT:
            names.extend(chunk)

    argv = (
        str(program.resolve()),
        *_OPTIONS,
        *_told(pattern, start, globs, ignored),
        "--",
        f"./{'/'.join(start.parts)}",
    )
    try:
        sandbox = await scene.sandbox()
        if sandbox.refusal is not None:
            return None
        command = Command(argv=argv, seconds=max(0.1, until - time.monotonic()), writes=False, keeps=False)
        finished = await sandbox.run(command, on_output=take)
    except (WorkspaceError, OSError):
        return None
    if finished.ending is not Ending.EXITED or finished.code not in (_FOUND, _NOTHING) or len(names) > MOST_OUTPUT:
        # It did not take the pattern, could not read a file that we perhaps can, or found more than it helps to know.
        return None
    return {tuple(name.removeprefix("./").split("/")) for name in os.fsdecode(bytes(names)).split("\0")[:-1]}


def _told(pattern: Pattern, start: Spot, globs: Sequence[str], ignored: Ignored) -> list[str]:
    told = list(pattern.ripgrep)
    if not pattern.carriage_returns:
        told.append("--crlf")
    if ignored is Ignored.SHOWN or any(is_own(name) for name in start.parts):
        told.append("--no-ignore")
    # Only what means the same to both; the rest is looked at afterwards anyway.
    if globs and all(_ALIKE_IN_BOTH.fullmatch(glob) and "**" not in glob for glob in globs):
        told += [f"--glob={glob}" for glob in globs]
    return [*told, "--glob=!.git", "--glob=!.toolcrib/runs"]
