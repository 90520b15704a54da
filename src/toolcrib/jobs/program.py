"""A job that is a coding agent's run.

In: an order. Out: the kinds of its events as they happen, then an `End`. The same as `toolcrib run`: its identity is
lent by the daemon, below the submitter's, and its log is with the project's other runs.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import asdict

from toolcrib.coding_agents.clients import client_named
from toolcrib.jobs.order import End, Order, Tell
from toolcrib.runs.preparing import RunOrder
from toolcrib.runs.result import ExecutionResult, OnMcpFailure
from toolcrib.runs.run import Run


async def work(order: Order, tell: Tell) -> End:
    run = Run(
        RunOrder(
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
    told = ""
    async with contextlib.aclosing(run.events()) as events:
        async for event in events:
            if not told and run.metadata is not None:
                told = run.metadata.agent
                tell({"agent": told})
            tell({"event": str(event.kind)})
    if run.result is None:
        raise RuntimeError("a run without a result")
    return _end(run.result, run)


def _end(result: ExecutionResult, run: Run) -> End:
    why = result.error or f"It ended as {result.status}."
    error = "" if result.ok else f"{why} {result.metadata['remedy']}".rstrip()
    return End(done=result.ok, text=run.mask(result.text), error=run.mask(error), usage=asdict(result.usage))
