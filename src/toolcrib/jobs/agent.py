"""A job that is a `run_agent`: a model with the daemon's tools.

In: an order. Out: the names of its events as they happen, then an `End`. The job's agent is lent by the daemon, below
the submitter's; when it is taken away, the run ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import asdict

from toolcrib.agent.events import Ended, RunFailed, RunFinished
from toolcrib.agent.models.place import place
from toolcrib.agent.options import AgentOptions
from toolcrib.agent.run import run_agent
from toolcrib.config.paths import Paths
from toolcrib.config.project import project_of
from toolcrib.crib.crib import Crib
from toolcrib.errors import Denied
from toolcrib.jobs.order import End, Order, Tell
from toolcrib.reach import notes
from toolcrib.reach.lease import Lease, Wanted
from toolcrib.reach.line import Line
from toolcrib.runs.masking import Masking

_AFTERWARDS = 120.0
"""Seconds that the agent outlives the time limit, if nobody is left to end it."""
_WHY = {
    Ended.MAX_STEPS: "It had its last step and wanted more. Allow it more with max_steps.",
    Ended.TIMEOUT: "Its time was up. Allow it more with timeout.",
    Ended.LENGTH: "The model was cut off by a limit of tokens for one answer.",
    Ended.REFUSED: "The model, or its provider, declined to go on.",
}


async def work(order: Order, tell: Tell) -> End:
    async with _lent(order) as lease:
        tell({"agent": lease.agent})
        working = asyncio.create_task(_work(order, lease, tell))
        watching = asyncio.create_task(_until_taken_away(lease))
        try:
            await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise Denied(f"The agent of the job was taken away: {watching.result()}.")
            return await working
        finally:
            for task in (working, watching):
                task.cancel()
            await asyncio.gather(working, watching, return_exceptions=True)


async def _work(order: Order, lease: Lease, tell: Tell) -> End:
    async with Crib.connect(token=lease.token) as counter:
        options = AgentOptions(
            model=order.model,
            base_url=order.base_url,
            api_key=order.api_key,
            crib=counter,
            max_steps=order.max_steps,
            timeout=order.timeout,
        )
        mask = Masking((lease.token, place(options).key))
        async with run_agent(order.prompt, options) as events:
            async for event in events:
                tell({"event": event.type})
                if isinstance(event, RunFinished | RunFailed):
                    last = event
        return _end(last, mask)


def _end(last: RunFinished | RunFailed, mask: Masking) -> End:
    why = _WHY.get(last.ended, "") if isinstance(last, RunFinished) else f"{last.error} {last.remedy}".rstrip()
    return End(done=not why, text=mask(last.text), error=mask(why), usage=asdict(last.usage))


@contextlib.asynccontextmanager
async def _lent(order: Order) -> AsyncIterator[Lease]:
    path = Paths.of_user(os.environ).socket
    client, _, conversation = order.job.partition("-")
    wanted = Wanted(
        client=client,
        profile=order.profile,
        workdir=order.workdir,
        conversation=conversation,
        lives=order.timeout + _AFTERWARDS,
        parent=order.parent,
        job=order.job,
    )
    lease = await Lease.begin(await Line.to(path), wanted, path=path, root=project_of(order.workdir))
    try:
        yield lease
    finally:
        await lease.release()


async def _until_taken_away(lease: Lease) -> str:
    """Also reads what is told of the agent: one that nobody listens to is taken back."""
    async for note in lease.notes():
        if isinstance(note, notes.Ended | notes.Lost):
            return note.why
    return "the daemon is gone"
