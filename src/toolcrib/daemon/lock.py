"""One daemon per user, and nobody beside it who changes what it knows: a lock that ends with its holder's process.

In: a user's `Paths`. Out: the lock held, or `AlreadyRunning` with who holds it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from toolcrib.config import Paths
from toolcrib.config.private import private_folder
from toolcrib.errors import AlreadyRunning

_PATIENCE = 5.0
_FOR_RUNS = "It ends with the last of them; `toolcrib runs` shows them, `toolcrib down` ends it and them now."


@contextlib.contextmanager
def held(paths: Paths) -> Iterator[None]:
    private_folder(paths.run_dir)
    descriptor = os.open(paths.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if not _locked(descriptor, paths):
            if not _answers(paths.socket):
                raise AlreadyRunning("Another command is changing something here.", remedy="Try again when it is over.")
            known = read_info(paths)
            who = f" (pid {known['pid']}, {known['endpoint']})" if known and {"pid", "endpoint"} <= known.keys() else ""
            for_runs = (known or {}).get("for_runs") is True
            raise AlreadyRunning(
                f"Toolcrib already runs{who}{', for runs of coding agents only' if for_runs else ''}.",
                remedy=_FOR_RUNS if for_runs else "`toolcrib status` shows it, `toolcrib down` ends it.",
                data=known or {},
            )
        yield
    finally:
        os.close(descriptor)


def _locked(descriptor: int, paths: Paths) -> bool:
    """Waits a moment for a holder that is no daemon yet: one that starts, or a command that changes something here."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if _answers(paths.socket) or time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        else:
            return True


def is_free(paths: Paths) -> bool:
    """Whether no daemon lives here; one that is about to end still does."""
    try:
        descriptor = os.open(paths.lock, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def _answers(path: Path) -> bool:
    """Whether a daemon is there; a file that a killed one left says nothing."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


def write_info(paths: Paths, info: dict[str, Any]) -> None:
    """What the CLI needs before it can ask: written whole or not at all."""
    fresh = paths.daemon_info.with_suffix(".new")
    fresh.write_text(json.dumps(info))
    fresh.chmod(0o600)
    fresh.replace(paths.daemon_info)


def read_info(paths: Paths) -> dict[str, Any] | None:
    try:
        info = json.loads(paths.daemon_info.read_text())
    except (FileNotFoundError, ValueError):
        return None
    return info if isinstance(info, dict) else None
