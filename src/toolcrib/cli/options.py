"""Options that several commands share, and the prompt of `run` and `job submit`.

In: command-line arguments, stdin. Out: checked values, the whole prompt. Used by every command module.
"""

from __future__ import annotations

import os
import re
import stat
import sys
import threading
from typing import Annotated

import typer

from toolcrib.cli.output import hint
from toolcrib.config.model import ListingMode
from toolcrib.errors import UsageError

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Listing = Annotated[
    ListingMode | None,
    typer.Option(
        metavar="auto|full|thin|search|handshake", help="List tools in this mode, whatever the agent's own setting is."
    ),
]
McpServers = Annotated[
    list[str] | None,
    typer.Option(
        "--mcp-server",
        metavar="NAME=URL|COMMAND",
        help="Use this server for this command only; repeatable. The command then runs without the daemon. A running "
        "daemon must use a different database.",
    ),
]


_MAX_STDIN_BYTES = 10 * 1024 * 1024
_HINT_AFTER = 1.0
"""Seconds of waiting for stdin after which a hint is printed."""
_END_TAG = re.compile(r"</(?=\s*stdin\s*>)", re.IGNORECASE)


def whole_prompt(given: str | None) -> str:
    """With `-` or no prompt, stdin is the prompt. Otherwise, piped text is appended to it as a separate block."""
    if given is not None and given != "-":
        # The piped text must not be able to end its block and pose as the prompt.
        piped = _END_TAG.sub(r"<\\/", read_stdin().rstrip()) if _is_piped() else ""
        return f"{given}\n\n<stdin>\n{piped}\n</stdin>" if piped else given
    if sys.stdin is None or (given is None and sys.stdin.isatty()):
        raise UsageError("There is no prompt.", remedy="Give the task as an argument, or pipe it in.")
    return read_stdin()


def _is_piped() -> bool:
    """Whether stdin is a pipe or a file. Anything else (a terminal, a socket) isn't meant for us and may never end."""
    if sys.stdin is None:
        return False
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def read_stdin() -> str:
    """All of it, as text."""
    timer = threading.Timer(_HINT_AFTER, hint, ["Reading stdin until its end. To skip it, add `</dev/null`."])
    timer.daemon = True
    timer.start()
    try:
        data = sys.stdin.buffer.read(_MAX_STDIN_BYTES + 1)
    finally:
        timer.cancel()
    if len(data) > _MAX_STDIN_BYTES:
        raise UsageError("stdin is larger than 10 MB.", remedy="Pipe in less.")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise UsageError("stdin is not UTF-8 text.", remedy="Convert it to UTF-8.") from error
