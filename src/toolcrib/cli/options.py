"""Options and prompts that several commands share, so that each is worded once and wrong values fail early.

In: the words of a command line, standard input. Out: checked values, the whole prompt. Every command module is a
neighbour; `run` and `job submit` read their prompt here.
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
from toolcrib.errors import UsageError

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
McpServers = Annotated[
    list[str] | None,
    typer.Option(
        "--mcp-server",
        metavar="NAME=URL|COMMAND",
        help="A server for this command alone; may be repeated. The command then works without "
        "the daemon, which must not run on the same database.",
    ),
]


_LARGEST = 10 * 1024 * 1024
_SOON = 1.0
"""Seconds after which it is said what is waited for."""
_END = re.compile(r"</(?=\s*stdin\s*>)", re.IGNORECASE)


def whole_prompt(given: str | None) -> str:
    """`-` or nothing: what is piped in is the prompt. Otherwise it stands after the prompt, as a block of its own."""
    if given is not None and given != "-":
        # Nothing in it shall look as if it were the prompt.
        piped = _END.sub(r"<\\/", _read().rstrip()) if _is_piped() else ""
        return f"{given}\n\n<stdin>\n{piped}\n</stdin>" if piped else given
    if sys.stdin is None or (given is None and sys.stdin.isatty()):
        raise UsageError("There is no prompt.", remedy="Say what the coding agent should do, or pipe it in.")
    return _read()


def _is_piped() -> bool:
    """By a pipe or from a file. What else a program may have been started with is not meant for us, and may never end:
    a terminal, a socket, nothing."""
    if sys.stdin is None:
        return False
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def _read() -> str:
    timer = threading.Timer(_SOON, hint, ["Reading standard input to its end (nothing to come? </dev/null)."])
    timer.daemon = True
    timer.start()
    try:
        data = sys.stdin.buffer.read(_LARGEST + 1)
    finally:
        timer.cancel()
    if len(data) > _LARGEST:
        raise UsageError("Standard input is larger than 10 MB.", remedy="Name a file in the prompt instead.")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise UsageError("What is on standard input is not UTF-8 text.", remedy="Give it as text.") from error
