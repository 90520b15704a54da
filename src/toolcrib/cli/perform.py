"""Runs a command in the running daemon, or in this process.

In: a command's name and parameters, and the servers given as options. Out: the command's result. With `--mcp-server`, a
command always runs in this process, because the daemon doesn't have those servers.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from toolcrib.cli.output import working
from toolcrib.config.paths import Paths, project_root, working_folder
from toolcrib.daemon_client.command_client import ask, is_running
from toolcrib.errors import AlreadyRunning, DaemonNotRunning

ANSWER_WITHIN = 60.0
"""The default time limit of a command, in seconds: longer than any server may take to connect."""

OnEvent = Callable[[dict[str, Any]], None]


class AskCommand(Protocol):
    def __call__(self, name: str, params: dict[str, Any], /, *, timeout: float | None = ...) -> dict[str, Any]: ...


def paths() -> Paths:
    return Paths.of_user(os.environ)


def root() -> Path:
    return project_root(os.environ, working_folder())


def daemon_runs() -> bool:
    return is_running(paths().socket)


def daemon_pid() -> int | None:
    """The pid that the running daemon wrote to its file."""
    try:
        pid = json.loads(paths().daemon_info.read_text())["pid"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return pid if isinstance(pid, int) and pid > 1 else None


def from_daemon(
    name: str,
    params: dict[str, Any] | None = None,
    *,
    timeout: float | None = ANSWER_WITHIN,
    on_event: OnEvent | None = None,
    spinner: bool = True,
) -> dict[str, Any]:
    """Runs the command in the daemon. Raises `DaemonNotRunning` if there is none."""
    with _waiting("waiting for the daemon …", spinner=spinner) as tell:
        heard = _progress_apart(tell, on_event)
        return ask(paths().socket, name, params or {}, root=root(), timeout=timeout, on_event=heard)


def _waiting(text: str, *, spinner: bool) -> contextlib.AbstractContextManager[Callable[[str], None]]:
    """Without a `spinner`, the terminal stays free for what the user types."""
    return working(text) if spinner else contextlib.nullcontext(lambda _: None)


def _progress_apart(tell: Callable[[str], None], on_event: OnEvent | None) -> OnEvent:
    def heard(event: dict[str, Any]) -> None:
        if isinstance(text := event.get("progress"), str):
            tell(text)
        elif on_event is not None:
            on_event(event)

    return heard


def perform(
    name: str,
    params: dict[str, Any] | None = None,
    *,
    servers: Sequence[str] = (),
    timeout: float | None = ANSWER_WITHIN,
    on_event: OnEvent | None = None,
    spinner: bool = True,
) -> dict[str, Any]:
    """Runs the command in the daemon if one is running, otherwise in this process."""
    if not servers:
        try:
            return from_daemon(name, params, timeout=timeout, on_event=on_event, spinner=spinner)
        except DaemonNotRunning as gone:
            # A daemon that died in the middle may have done the work, so it isn't repeated.
            if not isinstance(gone.__cause__, FileNotFoundError | ConnectionRefusedError):
                raise
    try:
        given = params or {}
        with (
            _waiting("connecting to the servers …", spinner=spinner) as tell,
            _opened_in_process(name, given, servers, _progress_apart(tell, on_event)) as ask_here,
        ):
            return ask_here(name, given)
    except AlreadyRunning as other:
        # A daemon was started in the meantime and now owns the data.
        if servers or not daemon_runs():
            raise other from None
        return from_daemon(name, params, timeout=timeout, on_event=on_event, spinner=spinner)


@contextlib.contextmanager
def asking(
    name: str, params: dict[str, Any], servers: Sequence[str], on_event: OnEvent | None = None
) -> Iterator[AskCommand]:
    """For several commands in sequence: all in the daemon, or all in this process on one set of connections. Only the
    daemon has other events than progress."""
    if daemon_runs() and not servers:
        yield functools.partial(from_daemon, on_event=on_event)
        return
    with (
        working("connecting to the servers …") as tell,
        _opened_in_process(name, params, servers, _progress_apart(tell, None)) as ask_here,
    ):
        yield ask_here


def _opened_in_process(
    name: str, params: dict[str, Any], servers: Sequence[str], on_event: OnEvent | None
) -> contextlib.AbstractContextManager[AskCommand]:
    # Heavy, and needed only if no daemon is running.
    from toolcrib.cli.in_process import opened  # noqa: PLC0415

    return opened(name, params, servers=servers, on_event=on_event, paths=paths(), root=root())
