"""`python -m toolcrib.jobs`: reads one order from stdin, executes it and reports the result.

A job is a `run_agent` (`agent`) or a coding agent's run (here), as with `toolcrib run`: its agent is leased from the
daemon, as a child of the submitter, and its log is with the project's other runs. SIGTERM ends the work and its
processes; the last line is still written.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from toolcrib.coding_agents.clients import client_named
from toolcrib.coding_agents.code_agent import CodingAgentRun
from toolcrib.coding_agents.run_preparation import RunRequest
from toolcrib.coding_agents.run_result import ExecutionResult, OnMcpFailure
from toolcrib.config.settings import AGENT_LOOP
from toolcrib.daemon_client.connection import DaemonDisconnected
from toolcrib.errors import ToolcribError
from toolcrib.jobs.protocol import SendLine, WorkerOrder, WorkerResult


async def run_program(order: WorkerOrder, send: SendLine) -> WorkerResult:
    run = CodingAgentRun(
        RunRequest(
            client=client_named(order.runs),
            prompt=order.prompt,
            workdir=order.workdir,
            profile=order.profile,
            timeout=order.timeout,
            on_mcp_failure=OnMcpFailure.STOP,
            environ=os.environ,
            parent=order.parent,
            job=order.job,
        )
    )
    agent = ""
    async with contextlib.aclosing(run.events()) as events:
        async for event in events:
            if not agent and run.metadata is not None:
                agent = run.metadata.agent
                send({"agent": agent})
            send({"event": str(event.kind)})
    if run.result is None:
        raise RuntimeError("a run without a result")
    return _end(run.result, run)


def _end(result: ExecutionResult, run: CodingAgentRun) -> WorkerResult:
    why = result.error or f"Its status is {result.status}."
    error = "" if result.ok else f"{why} {result.metadata['remedy']}".rstrip()
    return WorkerResult(done=result.ok, text=run.mask(result.text), error=run.mask(error), usage=asdict(result.usage))


async def _work(order: WorkerOrder, send: SendLine) -> WorkerResult:
    if order.runs != AGENT_LOOP:
        return await run_program(order, send)
    from toolcrib.jobs.agent import run_model  # noqa: PLC0415 - a coding agent's run does not need the agent loop

    return await run_model(order, send)


async def carry_out(order: WorkerOrder, send: SendLine) -> None:
    working = asyncio.create_task(_work(order, send))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, working.cancel)
    try:
        end = await working
    except asyncio.CancelledError:
        end = WorkerResult(done=False, error="It was stopped.")
    except ToolcribError as error:
        end = WorkerResult(done=False, error=error.text())
    except DaemonDisconnected:
        end = WorkerResult(done=False, error="The daemon exited before it leased an agent.")
    send(end.to_json())


def main() -> int:
    order = WorkerOrder.read(json.loads(sys.stdin.buffer.read()))
    # Other output of this process must not be mixed with our lines.
    lines = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def send(line: Mapping[str, Any]) -> None:
        lines.write(json.dumps(line) + "\n")
        lines.flush()

    with lines:
        asyncio.run(carry_out(order, send))
    return 0


if __name__ == "__main__":
    sys.exit(main())
