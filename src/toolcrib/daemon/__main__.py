"""The detached daemon's process.

In: the order from `detach`, on stdin. Out: one line on the given pipe, when the endpoint answers or the start fails.
Then it runs as the daemon.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from toolcrib.config.model import Flags
from toolcrib.daemon.process import run_foreground
from toolcrib.daemon_client.lifetime import DaemonLifetime
from toolcrib.errors import ToolcribError


def main() -> int:
    order = json.loads(sys.stdin.buffer.read())
    report = os.fdopen(order["report"], "w")

    def send(answer: dict[str, Any]) -> None:
        with report:
            report.write(json.dumps(answer) + "\n")

    flags = Flags(**{**order["flags"], "mcp_servers": tuple(order["flags"]["mcp_servers"])})
    try:
        return run_foreground(Path(order["root"]), flags, ready=send, lasts=DaemonLifetime(order["lasts"]))
    except ToolcribError as error:
        if not report.closed:
            send({"error": {"kind": type(error).__name__, "message": error.message, "remedy": error.remedy}})
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
