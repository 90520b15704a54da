"""`python -m toolcrib.jobs`: reads one order from stdin, carries it out, says how it went.

SIGTERM ends the work and what it started; the last line is said all the same.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any

from toolcrib.commands.job_desk import AGENT
from toolcrib.errors import ToolcribError
from toolcrib.jobs.order import End, Order, Tell
from toolcrib.reach.line import HungUp


async def carry_out(order: Order, tell: Tell) -> None:
    if order.runs == AGENT:
        from toolcrib.jobs.agent import work  # noqa: PLC0415 - each needs much that the other does not
    else:
        from toolcrib.jobs.program import work  # noqa: PLC0415
    working = asyncio.create_task(work(order, tell))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, working.cancel)
    try:
        end = await working
    except asyncio.CancelledError:
        end = End(done=False, error="It was ended.")
    except ToolcribError as error:
        end = End(done=False, error=error.text())
    except HungUp:
        end = End(done=False, error="The daemon was gone before it had lent an agent.")
    tell(end.to_json())


def main() -> int:
    order = Order.read(json.loads(sys.stdin.buffer.read()))
    # Whatever else prints in this process must not be taken for a line of ours.
    lines = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def tell(line: Mapping[str, Any]) -> None:
        lines.write(json.dumps(line) + "\n")
        lines.flush()

    with lines:
        asyncio.run(carry_out(order, tell))
    return 0


if __name__ == "__main__":
    sys.exit(main())
