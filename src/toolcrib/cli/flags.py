"""Flags that name servers and the database: checked, and made independent of the working folder.

In: the values of --mcp-server and --store. Out: the same, safe to hand to a daemon or to this process. `up_command` and
`in_process` use them.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable
from pathlib import Path

from toolcrib.config.launching import portable_words
from toolcrib.config.paths import project_root, working_folder
from toolcrib.config.settings import holds_password
from toolcrib.errors import UsageError

_URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://")


def well_formed_servers(given: Iterable[str]) -> tuple[str, ...]:
    """Servers of --mcp-server, each NAME=URL or NAME=COMMAND; paths that start where the person is become absolute.

    What was typed is not repeated: it may hold a secret.
    """
    return tuple(map(_well_formed, given))


def _well_formed(one: str) -> str:
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
    if store is None or "://" not in store:
        return store and str(Path(store).expanduser().absolute())
    if holds_password(store):
        raise UsageError(
            "A password in --store can be read by every user of this machine.",
            remedy="Leave it out and keep it in a PGPASSFILE; or set the whole URL as TOOLCRIB_STORE, or in your "
            "configuration as `store: postgresql://user:${DB_PASSWORD}@host/name`.",
        )
    return store
