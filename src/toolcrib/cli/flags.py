"""Checks --mcp-server and --store, and makes their values independent of the working folder.

In: the options' values. Out: values that are safe to pass to a daemon or to use in this process. Used by `up_command`
and `in_process`.
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
    """Checks values of --mcp-server, each NAME=URL or NAME=COMMAND, and makes relative paths absolute.

    Error messages don't repeat the value, because it may contain a secret.
    """
    return tuple(map(_well_formed, given))


def _well_formed(server: str) -> str:
    name, _, target = server.partition("=")
    if not name.strip() or not target.strip():
        raise UsageError(
            "--mcp-server lacks a name or a server.", remedy="Write --mcp-server NAME=URL or NAME=COMMAND."
        )
    if _URL.match(target):
        return server
    try:
        argv = shlex.split(target)
    except ValueError as error:
        raise UsageError(
            f"The command of --mcp-server {name} cannot be parsed ({str(error).lower()}).",
            remedy="Quote it as in a shell.",
        ) from error
    if not argv[0]:
        raise UsageError(f"The command of --mcp-server {name} is empty.", remedy="Write --mcp-server NAME=COMMAND.")
    folder = working_folder()
    portable, _notes = portable_words(argv, folder, project_root(os.environ, folder))
    return f"{name}={shlex.join(portable)}"


def without_password(store: str | None) -> str | None:
    """Checks the value of --store and makes a relative path absolute. The error message doesn't repeat the value."""
    if store is None or "://" not in store:
        return store and str(Path(store).expanduser().absolute())
    if holds_password(store):
        raise UsageError(
            "Every user of this machine can read a password in --store.",
            remedy="Put it in a PGPASSFILE, set the whole URL as TOOLCRIB_STORE, or write "
            "`store: postgresql://user:${DB_PASSWORD}@host/name` in your configuration.",
        )
    return store
