"""Options and prompts that several commands share, so that each is worded once and wrong values fail early.

In: the words of a command line, standard input. Out: checked values, the whole prompt. Every command module is a
neighbour; `run` and `job submit` read their prompt here.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
import sys
import threading
from pathlib import Path
from typing import Annotated

import typer

from toolcrib.cli.output import hint
from toolcrib.cli.project import project_root, working_folder
from toolcrib.errors import UsageError

_URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://")


def well_formed(given: list[str] | None) -> list[str] | None:
    """Servers of --mcp-server, each NAME=URL or NAME=COMMAND; paths that start where the person is become absolute.

    What was typed is not repeated: it may hold a secret.
    """
    return given and [_well_formed(one) for one in given]


def _well_formed(one: str) -> str:
    from toolcrib.config.launching import portable_words  # noqa: PLC0415

    name, _, target = one.partition("=")
    if not name.strip() or not target.strip():
        raise UsageError(
            "--mcp-server has no name or no server.", remedy="Write --mcp-server NAME=URL or NAME=COMMAND."
        )
    if _URL.match(target):
        return one
    try:
        words = shlex.split(target)
    except ValueError as error:
        raise UsageError(
            f"The command line of --mcp-server {name} cannot be read ({str(error).lower()}).",
            remedy="Quote it as in a shell.",
        ) from error
    if not words[0]:
        raise UsageError(
            f"The command line of --mcp-server {name} is empty.", remedy="Write --mcp-server NAME=COMMAND."
        )
    folder = working_folder()
    settled, _told = portable_words(words, folder, project_root(os.environ, folder))
    return f"{name}={shlex.join(settled)}"


def without_password(store: str | None) -> str | None:
    """The database of --store; a relative path starts where the person is. What was typed is not repeated."""
    from toolcrib.config.settings import holds_password  # noqa: PLC0415

    if store is None or "://" not in store:
        return store and str(Path(store).expanduser().absolute())
    if holds_password(store):
        raise UsageError(
            "A password in --store can be read by every user of this machine.",
            remedy="Leave it out and keep it in a PGPASSFILE; or set the whole URL as TOOLCRIB_STORE, or in your "
            "configuration as `store: postgresql://user:${DB_PASSWORD}@host/name`.",
        )
    return store


AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
McpServers = Annotated[
    list[str] | None,
    typer.Option(
        "--mcp-server",
        metavar="NAME=URL|COMMAND",
        callback=well_formed,
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
        raise UsageError("There is no prompt.", remedy="Say what the agent shall do, or pipe it in.")
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
