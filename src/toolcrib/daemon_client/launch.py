"""Starting a daemon in a process of its own, and waiting until it answers.

In: where the socket is and the command that starts a daemon. Out: a connected socket, or why there is none. `starting`
comes here when no daemon runs, and no other process is starting one.
"""

from __future__ import annotations

import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from toolcrib.config.paths import Paths
from toolcrib.daemon_client.starting import POLL, try_connect
from toolcrib.errors import DaemonNotRunning
from toolcrib.signals import with_default_signals

SECOND_LOOK = 2.0
"""How long a socket is still waited for after the start failed: a daemon that another process is starting."""


def launch(
    path: Path,
    *,
    environ: Mapping[str, str],
    start: Sequence[str],
    deadline: float,
    given_up: Callable[[], bool],
) -> socket.socket:
    with tempfile.TemporaryFile() as said:
        try:
            process = subprocess.Popen(
                with_default_signals(start),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
                env=_environment(environ),
                cwd=_neutral_folder(environ),
                start_new_session=True,
            )
        except OSError as error:
            raise DaemonNotRunning(f"The daemon could not be started: {error}.") from error
        try:
            return _await(path, process, said, deadline, given_up)
        finally:
            _reap(process, deadline)


def _await(
    path: Path, process: subprocess.Popen[bytes], said: IO[bytes], deadline: float, given_up: Callable[[], bool]
) -> socket.socket:
    while time.monotonic() < deadline and not given_up():
        sock = try_connect(path)
        if sock is not None:
            return sock
        if process.poll() not in (None, 0):
            deadline = min(deadline, time.monotonic() + SECOND_LOOK)
        time.sleep(POLL)
    said.seek(0)
    reason = said.read(4000).decode("utf-8", "replace").strip()
    raise DaemonNotRunning(
        f"The daemon did not start: {reason}" if reason else "The daemon did not answer in time after its start.",
        remedy="Run `toolcrib up` to see it in the foreground, or `toolcrib logs`.",
    )


def _reap(process: subprocess.Popen[bytes], deadline: float) -> None:
    """The starter ends by itself once the endpoint answers; one that does not is ended, so that none is left."""
    try:
        process.wait(max(0.5, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    env = dict(environ)
    if env.get("TOOLCRIB_HOME"):
        # It may be relative, and the daemon starts in another folder.
        env["TOOLCRIB_HOME"] = str(Paths.of_user(environ).config_dir)
    env.pop("CLAUDE_PROJECT_DIR", None)
    return env


def _neutral_folder(environ: Mapping[str, str]) -> str:
    """A daemon that is started by the way belongs to no project: what it offers must not depend on who came first."""
    home = environ.get("HOME", "")
    return home if home and Path(home).is_dir() else "/"
