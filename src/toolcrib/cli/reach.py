"""How a command reaches its work: the running daemon, or this process.

In: a command's name and parameters, and the servers given as flags. Out: the command's result. With `--mcp-server` a
command always works for itself, since the daemon knows nothing of those servers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from toolcrib.cli.client import ask, is_running
from toolcrib.cli.output import working
from toolcrib.cli.project import project_root, working_folder
from toolcrib.config.paths import Paths
from toolcrib.errors import DaemonNotRunning

ANSWER_WITHIN = 60.0
"""Seconds for a command that says nothing else: longer than any server may take to connect."""

OnEvent = Callable[[dict[str, Any]], None]


def paths() -> Paths:
    return Paths.of_user(os.environ)


def root() -> Path:
    return project_root(os.environ, working_folder())


def daemon_runs() -> bool:
    return is_running(paths().socket)


def from_daemon(
    name: str,
    params: dict[str, Any] | None = None,
    *,
    timeout: float | None = ANSWER_WITHIN,
    on_event: OnEvent | None = None,
) -> dict[str, Any]:
    """Runs the command in the daemon; `DaemonNotRunning` where there is none."""
    with working(f"{name} …"):
        return ask(paths().socket, name, params or {}, root=root(), timeout=timeout, on_event=on_event)


def perform(
    name: str,
    params: dict[str, Any] | None = None,
    *,
    servers: Sequence[str] = (),
    timeout: float | None = ANSWER_WITHIN,
    on_event: OnEvent | None = None,
) -> dict[str, Any]:
    """Runs the command in the daemon where one runs, else here."""
    if not servers:
        try:
            return from_daemon(name, params, timeout=timeout, on_event=on_event)
        except DaemonNotRunning as gone:
            # A daemon that died in the middle may have done the work: it is not done again.
            if not isinstance(gone.__cause__, FileNotFoundError | ConnectionRefusedError):
                raise
    with working("connecting to the servers …"):
        return _here(name, params or {}, servers, on_event)


def _here(name: str, params: dict[str, Any], servers: Sequence[str], on_event: OnEvent | None) -> dict[str, Any]:
    # Heavy, and needed only where no daemon runs.
    import asyncio  # noqa: PLC0415

    from toolcrib.commands.local import run_local  # noqa: PLC0415
    from toolcrib.config.model import Flags  # noqa: PLC0415

    async def emit(event: dict[str, Any]) -> None:
        if on_event is not None:
            on_event(event)

    return asyncio.run(run_local(name, params, flags=Flags(mcp_servers=tuple(servers)), root=root(), emit=emit))
