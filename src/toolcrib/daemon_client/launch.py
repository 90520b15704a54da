"""Starting a shared process, and waiting until it answers.

In: the path of the socket and the command that starts the process. Out: a connected socket, or an error. `starting`
calls it if the process does not run and no other process is starting it.
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
from toolcrib.daemon_client.starting import POLL, SharedProcess, try_connect
from toolcrib.signals import with_default_signals


def launch(
    path: Path,
    *,
    environ: Mapping[str, str],
    start: Sequence[str],
    deadline: float,
    given_up: Callable[[], bool],
    target: SharedProcess,
) -> socket.socket | None:
    """Returns None if the process started and has already ended."""
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(
                with_default_signals(start),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=output,
                env=_environment(environ),
                cwd=_neutral_folder(environ),
                start_new_session=True,
            )
        except OSError as error:
            raise target.error(f"The {target.name} could not be started: {error}.") from error
        try:
            return _await(path, process, output, deadline, given_up, target)
        finally:
            _reap(process, deadline)


def _await(
    path: Path,
    process: subprocess.Popen[bytes],
    output: IO[bytes],
    deadline: float,
    given_up: Callable[[], bool],
    target: SharedProcess,
) -> socket.socket | None:
    while time.monotonic() < deadline and not given_up():
        code = process.poll()
        sock = try_connect(path, target)
        if sock is not None:
            return sock
        if code is not None:
            deadline = min(deadline, time.monotonic() + target.second_look)
        time.sleep(POLL)
    if process.poll() == 0:
        return None
    output.seek(0)
    reason = output.read(4000).decode("utf-8", "replace").strip()
    raise target.failed(reason)


def _reap(process: subprocess.Popen[bytes], deadline: float) -> None:
    """Waits for the starter, which exits once the endpoint answers, and kills it if it does not."""
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
    """A daemon that starts on demand belongs to no project: its tools must not depend on its first client."""
    home = environ.get("HOME", "")
    return home if home and Path(home).is_dir() else "/"
