"""A job that is a `run_agent`: a model with the daemon's tools.

In: an order. Out: the names of its events as they happen, then a `WorkerResult`. The job's agent is leased from the
daemon, as a child of the submitter; when the lease ends, the run ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import asdict

from toolcrib.agent_loop.events import RunEnd, RunFailed, RunFinished
from toolcrib.agent_loop.models.endpoint import find_endpoint
from toolcrib.agent_loop.options import AgentOptions
from toolcrib.agent_loop.run import run_agent
from toolcrib.coding_agents.run_log import ValueMasker
from toolcrib.config.paths import Paths, project_of
from toolcrib.core.connection import Connection
from toolcrib.daemon_client.connection import DaemonConnection
from toolcrib.daemon_client.lease import AgentLease, LeaseEnded, LeaseLost, LeaseRequest
from toolcrib.errors import Denied
from toolcrib.jobs.protocol import SendLine, WorkerOrder, WorkerResult

_AFTERWARDS = 120.0
"""Seconds that the agent outlives the time limit, if nothing ends it earlier."""
_WHY = {
    RunEnd.MAX_STEPS: "It reached its maximum number of steps. Allow more with max_steps.",
    RunEnd.TIMEOUT: "It reached its time limit. Allow more with timeout.",
    RunEnd.LENGTH: "The answer reached the model's token limit.",
    RunEnd.REFUSED: "The model or its provider refused to continue.",
}


async def run_model(order: WorkerOrder, send: SendLine) -> WorkerResult:
    async with _leased(order) as lease:
        send({"agent": lease.agent})
        working = asyncio.create_task(_work(order, lease, send))
        watching = asyncio.create_task(_until_taken_away(lease))
        try:
            await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise Denied(f"The job's agent ended: {watching.result()}.")
            return await working
        finally:
            for task in (working, watching):
                task.cancel()
            await asyncio.gather(working, watching, return_exceptions=True)


async def _work(order: WorkerOrder, lease: AgentLease, send: SendLine) -> WorkerResult:
    async with Connection(token=lease.token) as provider:
        options = AgentOptions(
            model=order.model,
            base_url=order.base_url,
            api_key=order.api_key,
            crib=provider,
            max_steps=order.max_steps,
            timeout=order.timeout,
        )
        mask = ValueMasker((lease.token, find_endpoint(options).key))
        async with run_agent(order.prompt, options) as events:
            async for event in events:
                send({"event": event.type})
                if isinstance(event, RunFinished | RunFailed):
                    last = event
        return _end(last, mask)


def _end(last: RunFinished | RunFailed, mask: ValueMasker) -> WorkerResult:
    why = _WHY.get(last.ended, "") if isinstance(last, RunFinished) else f"{last.error} {last.remedy}".rstrip()
    return WorkerResult(done=not why, text=mask(last.text), error=mask(why), usage=asdict(last.usage))


@contextlib.asynccontextmanager
async def _leased(order: WorkerOrder) -> AsyncIterator[AgentLease]:
    path = Paths.of_user(os.environ).socket
    client, _, conversation = order.job.partition("-")
    wanted = LeaseRequest(
        client=client,
        profile=order.profile,
        workdir=order.workdir,
        conversation=conversation,
        lives=order.timeout + _AFTERWARDS,
        parent=order.parent,
        job=order.job,
    )
    lease = await AgentLease.begin(await DaemonConnection.to(path), wanted, path=path, root=project_of(order.workdir))
    try:
        yield lease
    finally:
        await lease.release()


async def _until_taken_away(lease: AgentLease) -> str:
    """Also reads the agent's events, because the daemon ends a lease with unread events."""
    async for event in lease.events():
        if isinstance(event, LeaseEnded | LeaseLost):
            return event.why
    return "the daemon stopped"
