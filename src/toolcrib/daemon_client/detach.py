"""Starts a daemon in the background and returns when its endpoint answers. `toolcrib up --detach` uses it, and
`starting` runs this module in a separate process.

In: the project root, the flags. Out: the daemon's description of itself. The daemon reports over a pipe that it is
ready, or why it failed, so nothing is guessed from files or time.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from toolcrib.config.model import Flags
from toolcrib.config.paths import Paths, private_folder, project_of
from toolcrib.daemon_client.lifetime import DaemonLifetime
from toolcrib.daemon_client.starting import FOR_RUNS
from toolcrib.errors import AlreadyRunning, ConfigError, PortTaken, StoreError, ToolcribError
from toolcrib.servers.environment import MARKER
from toolcrib.signals import with_default_signals

_START_LIMIT = 20.0
_KINDS = {kind.__name__: kind for kind in (AlreadyRunning, ConfigError, PortTaken, StoreError)}


def start_detached(root: Path, flags: Flags, lasts: DaemonLifetime = DaemonLifetime.UNTIL_STOPPED) -> dict[str, Any]:
    paths = Paths.of_user(os.environ)
    private_folder(paths.state_dir)
    reading, writing = os.pipe()
    order = json.dumps({"root": str(root), "flags": asdict(flags), "lasts": lasts, "report": writing})
    # -P: nothing is imported from the project's folder, whose files are untrusted.
    with (paths.state_dir / "start.log").open("ab") as output:
        child = subprocess.Popen(
            with_default_signals([sys.executable, "-P", "-m", "toolcrib.daemon"]),
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            pass_fds=(writing,),
            start_new_session=True,
            cwd=root,
            # Started from inside a server, the daemon must not be treated as that server's child and end with it.
            env={name: value for name, value in os.environ.items() if name != MARKER},
        )
    os.close(writing)
    # On stdin, not as arguments: a server's command line or URL may contain secrets.
    if child.stdin is not None:
        child.stdin.write(order.encode())
        child.stdin.close()
    with os.fdopen(reading, "rb") as report:
        ready, _, _ = select.select([report], [], [], _START_LIMIT)
        line = report.readline() if ready else b""
    if not line:
        child.kill()
        child.wait()
        raise ToolcribError(
            "The daemon did not start in time." if not ready else "The daemon exited while starting.",
            remedy=f"See {paths.state_dir / 'start.log'} and {paths.log}.",
        )
    answer: dict[str, Any] = json.loads(line)
    if "error" in answer:
        child.wait()
        error = answer["error"]
        raise _KINDS.get(error["kind"], ToolcribError)(error["message"], remedy=error["remedy"])
    return answer


def main(arguments: Sequence[str]) -> int:
    lasts = DaemonLifetime.FOR_RUNS if FOR_RUNS in arguments else DaemonLifetime.UNTIL_STOPPED
    # No client relies on the port of a daemon for runs, and a port in use must not stop the runs.
    flags = Flags(port=0) if lasts is DaemonLifetime.FOR_RUNS else Flags()
    try:
        start_detached(project_of(Path.cwd()), flags, lasts)
    except ToolcribError as error:
        sys.stderr.write(error.text() + "\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
