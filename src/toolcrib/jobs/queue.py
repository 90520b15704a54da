"""The queue of jobs: accepts them, runs a limited number at a time, and stores their results.

In: submissions. Out: rows. Every acknowledged job is in the store, and is marked as running before its process starts,
so no job ever starts twice: a job that was running when its daemon ended is interrupted, and a queued one starts with
the next daemon of the same home. A job ends with its submitter. The owner's jobs come first; other submitters take
turns. `commands.job` uses it; `submission` checks, `worker` runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import re
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa

from toolcrib.commands.job import SubmitJob
from toolcrib.config.masking import storable
from toolcrib.config.paths import private_folder
from toolcrib.core.crib import Crib
from toolcrib.daemon_client.lifetime import ActiveLeases
from toolcrib.errors import ConfigError, Denied, NotFound, StoreError, ToolcribError, UsageError
from toolcrib.events import AgentEnded, AuditedChange, CatalogChanged, Event, JobChanged
from toolcrib.identity.principal import CLIENT, OWNER, Principal
from toolcrib.jobs.protocol import WorkerOrder
from toolcrib.jobs.submission import check_again, check_program, row_for, settings_of, submitter_of
from toolcrib.jobs.worker import ActiveJob, Worker, start_worker
from toolcrib.store import jobs
from toolcrib.store.jobs import JobRow, JobStatus, Owners

_FILE = "daemon.id"
_NAME = re.compile(r"[0-9a-f]{16}")


def daemon_id(state: Path) -> str:
    file = state / _FILE
    try:
        private_folder(state)
        if file.exists() and _NAME.fullmatch(name := file.read_text().strip()):
            return name
        name = secrets.token_hex(8)
        # Written atomically, because queued jobs are found by it.
        fresh = file.with_suffix(".new")
        fresh.write_text(name + "\n")
        os.replace(fresh, file)  # noqa: PTH105 - shorter
    except OSError as error:
        raise StoreError(f"{file} cannot be used: {error.strerror}.", remedy="Check its permissions.") from error
    return name


class FairOrder:
    def __init__(self) -> None:
        self._begun: dict[str, int] = {}
        """By submitter, the number of its last start."""
        self._count = itertools.count(1)

    def next(self, waiting: Sequence[ActiveJob], running: Sequence[ActiveJob]) -> ActiveJob:
        busy = Counter(job.row.submitter for job in running)
        here = busy.keys() | {job.row.submitter for job in waiting}
        self._begun = {name: at for name, at in self._begun.items() if name in here}

        def rank(job: ActiveJob) -> tuple[bool, int, int]:
            name = job.row.submitter
            return name != OWNER.name, busy[name], self._begun.get(name, 0)

        chosen = min(waiting, key=rank)
        self._begun[chosen.row.submitter] = next(self._count)
        return chosen


log = logging.getLogger(__name__)

T = TypeVar("T")
StartWorker = Callable[..., Awaitable[Worker]]

MOST_KEPT = 10_000
"""Maximum number of finished jobs."""
_GRACE = 8.0
"""Seconds that a job has to end after SIGTERM: a coding agent saves its state."""
_GRACE_AT_THE_END = 1.2
"""Seconds, of the five in which a daemon ends."""
_OVERTIME = 30.0
"""Seconds beyond its limit after which a worker is ended."""
_AGENT_GONE = 10.0
"""Seconds that a job has to report its result after its agent ended."""
_TRY_AGAIN = 2.0
_UPKEEP = 3600.0
"""Seconds between deletions of old results."""
_TEXTS = frozenset({"text", "error"})
"""The stored values that may contain secrets."""
_INTERRUPTED = "The daemon ended while the job was running. It may have done part of its work; it does not start again."
_NOT_KEPT = "The daemon ended before the job started, and its prompt contained a secret, which is not stored."


class JobQueue:
    """The daemon sets `crib` once it is open, and calls `begin` once its socket accepts connections."""

    def __init__(self, leases: ActiveLeases, *, start: StartWorker = start_worker) -> None:
        self.crib: Crib | None = None
        self._leases = leases
        self._start = start
        self._active: dict[str, ActiveJob] = {}
        """Queued and running jobs, in the order of submission."""
        self._work: set[asyncio.Task[Any]] = set()
        self._turns = FairOrder()
        self._one_by_one = asyncio.Lock()
        self._daemon = ""
        self._upkeep: asyncio.Task[None] | None = None
        self._caught_up = False
        self._closing = False
        self._subscribed = contextlib.ExitStack()

    @property
    def counts(self) -> dict[str, int]:
        running = len(self._with(JobStatus.RUNNING))
        return {"running": running, "waiting": len(self._active) - running}

    async def begin(self) -> None:
        """Continues the last daemon's jobs. If the store cannot be written, the first request tries again."""
        try:
            await self._ready()
        except StoreError as error:
            log.warning("could not load the last daemon's jobs: %s", error.text())

    async def close(self) -> None:
        """Interrupts running jobs and ends their processes; queued jobs start with the next daemon."""
        self._closing = True
        self._subscribed.close()
        if self._upkeep is not None:
            self._upkeep.cancel()
            await asyncio.gather(self._upkeep, return_exceptions=True)
        for job in self._with(JobStatus.RUNNING):
            self._stop(
                job, "The daemon was stopped while the job was running.", JobStatus.INTERRUPTED, grace=_GRACE_AT_THE_END
            )
        await asyncio.gather(*self._work, return_exceptions=True)
        for job in self._active.values():
            job.held.close()
            job.over.set()

    async def submit(self, principal: Principal, root: Path, order: SubmitJob) -> JobRow:
        crib = await self._ready()
        row = row_for(crib, principal, root, order, daemon=self._daemon)
        await check_program(crib, row)
        # Runs to its end even if the caller disconnects: half a job would never start.
        return await asyncio.shield(self._spawn(self._submitted(row, order.prompt)))

    async def _submitted(self, row: JobRow, prompt: str) -> JobRow:
        crib = self._open()
        async with self._one_by_one:
            self._check_room(row)
            with contextlib.ExitStack() as stack:
                stack.enter_context(self._leases.needed())
                await self._note(row, "job submitted", profile=row.profile, workdir=row.workdir, model=row.model)
                await crib.services.store.write(jobs.add, row)
                self._active[row.id] = ActiveJob(row=row, prompt=prompt, held=stack.pop_all())
        self._advance()
        return self._active[row.id].row if row.id in self._active else row

    async def latest(
        self, principal: Principal, *, status: JobStatus | None, most: int
    ) -> tuple[tuple[JobRow, ...], int]:
        crib = await self._ready()
        rows, total = await crib.services.store.read(
            jobs.latest, owners=self._owners(principal), status=status, most=most
        )
        return tuple(self._live(row) for row in rows), total

    async def result(self, principal: Principal, job: str, *, wait: float) -> JobRow:
        row = await self._found(principal, job)
        if (active := self._active.get(job)) is None or not wait:
            return row
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait):
                await active.over.wait()
        return await self._found(principal, job)

    async def cancel(self, principal: Principal, job: str) -> JobRow:
        row = await self._found(principal, job)
        if (active := self._active.get(job)) is not None:
            self._stop(active, f"It was cancelled by {principal.name}.", JobStatus.CANCELLED)
            await active.over.wait()
        elif row.daemon != self._daemon and not row.status.over:
            raise UsageError(
                f"The job {job[:80]} belongs to another daemon that shares this store.", remedy="Cancel it there."
            )
        return await self._found(principal, job)

    def running(self, job: str) -> JobRow:
        active = self._active.get(job)
        if active is None or active.stopped or active.row.status is not JobStatus.RUNNING:
            raise Denied(f"No job {job[:80]!r} is running.", remedy="Only a job's own process can lease its agent.")
        return active.row

    def _open(self) -> Crib:
        if self.crib is None:
            raise RuntimeError("the job queue was used before `crib` was set")
        return self.crib

    async def _ready(self) -> Crib:
        crib = self._open()
        async with self._one_by_one:
            if not self._caught_up:
                await self._catch_up(crib)
                self._caught_up = True
        self._advance()
        return crib

    async def _catch_up(self, crib: Crib) -> None:
        self._daemon = await asyncio.to_thread(daemon_id, crib.environment.paths.state_dir)
        for row in await crib.services.store.write(jobs.interrupt_running, self._daemon, time.time(), _INTERRUPTED):
            await self._note_interrupted(row, _INTERRUPTED)
        await crib.services.store.write(self._forget)
        for row in await crib.services.store.read(jobs.queued, self._daemon):
            if row.masked:
                await crib.services.store.write(
                    jobs.end, row.id, JobStatus.INTERRUPTED, time.time(), {"error": _NOT_KEPT}
                )
                await self._note_interrupted(row, _NOT_KEPT)
            elif row.id not in self._active:
                held = contextlib.ExitStack()
                held.enter_context(self._leases.needed())
                self._active[row.id] = ActiveJob(row=row, prompt=row.prompt, held=held)
        self._subscribed.callback(crib.bus.subscribe(self._agent_ended, AgentEnded))
        # When invalid job settings become valid again, the job tools return to the catalog.
        self._subscribed.callback(crib.bus.subscribe(lambda _: self._advance(), CatalogChanged))
        self._upkeep = asyncio.get_running_loop().create_task(self._keep_up())

    async def _note_interrupted(self, row: JobRow, why: str) -> None:
        try:
            await self._note(row, f"job {JobStatus.INTERRUPTED}", error=why)
        except StoreError as error:
            log.warning("could not audit the end of job %s: %s", row.id, error.text())

    async def _keep_up(self) -> None:
        """Deletes old results, even if no job ends for a long time."""
        while True:
            await asyncio.sleep(_UPKEEP)
            try:
                await self._open().services.store.write(self._forget)
            except StoreError as error:
                log.warning("could not delete old jobs: %s", error.text())

    def _forget(self, connection: sa.Connection) -> None:
        """Deletes nothing while the settings are invalid."""
        with contextlib.suppress(ConfigError):
            before = self._open().services.clock.patient() - settings_of(self._open()).keep_days * 86_400
            jobs.forget(connection, before=before, most=MOST_KEPT)

    async def _found(self, principal: Principal, job: str) -> JobRow:
        """Jobs of other submitters are not found."""
        crib = await self._ready()
        row = await crib.services.store.read(jobs.find, job)
        owners = self._owners(principal)
        if row is None or (owners is not None and (row.submitter, row.submitter_since) not in owners):
            raise NotFound(f"There is no job {job[:80]!r}.", remedy="List the jobs to see their ids.")
        return self._live(row)

    def _live(self, row: JobRow) -> JobRow:
        active = self._active.get(row.id)
        return row if active is None or row.status.over else active.row

    def _owners(self, principal: Principal) -> Owners | None:
        if principal.name == OWNER.name:
            return None
        agents, agent = self._open().services.agents, submitter_of(self._open(), principal)
        if agent is None:
            return frozenset({(CLIENT.name, 0.0)})
        family = (agent, *map(agents.find, agents.children(agent.name)))
        return frozenset((one.name, one.created_at) for one in family)

    def _with(self, status: JobStatus) -> tuple[ActiveJob, ...]:
        return tuple(job for job in self._active.values() if job.row.status is status)

    def _check_room(self, row: JobRow) -> None:
        settings, counts = settings_of(self._open()), self.counts
        if counts["waiting"] >= settings.max_waiting and counts["running"] >= settings.max_running:
            raise UsageError(f"{counts['waiting']} jobs are already waiting.", remedy="Try again when some are done.")
        own = sum(job.row.submitter == row.submitter for job in self._active.values())
        if row.submitter != OWNER.name and own >= settings.max_per_agent:
            raise UsageError(
                f"{row.submitter} already has {own} waiting or running jobs.",
                remedy="Wait for one of them, or cancel it.",
            )

    def _advance(self) -> None:
        """Starts queued jobs while there is room; nothing while the settings are invalid."""
        config = self._open().projects.home.config
        if self._closing or not self._caught_up or "jobs" in config.unusable:
            return
        room = config.settings.jobs.max_running - len(self._with(JobStatus.RUNNING))
        while room > 0 and (waiting := self._with(JobStatus.QUEUED)):
            job = self._turns.next(waiting, self._with(JobStatus.RUNNING))
            job.row = replace(job.row, status=JobStatus.RUNNING, started_at=time.time())
            self._spawn(self._run(job))
            room -= 1

    async def _run(self, job: ActiveJob) -> None:
        how = ""
        try:
            self._check_submitter(job)
            if not job.stopped:
                check_again(self._open(), job.row)
                if not await self._marked(job):
                    return
            if not job.stopped:
                how = await self._worked(job)
        except ToolcribError as error:
            how = error.text()
        except Exception:
            log.exception("the job %s failed", job.row.id)
            how = "It failed unexpectedly; see the daemon's log."
        await self._ended(job, *job.outcome(how))

    async def _marked(self, job: ActiveJob) -> bool:
        """Marks the job as running, durably. Returns False if the store fails and it waits again, or if it was already
        started or ended."""
        try:
            begins = await self._open().services.store.write(jobs.begin, job.row.id, job.row.started_at or time.time())
        except StoreError as error:
            log.warning("the job %s cannot start yet: %s", job.row.id, error.text())
            if not self._closing:
                await asyncio.sleep(_TRY_AGAIN)
            job.row = replace(job.row, status=JobStatus.QUEUED, started_at=None)
            asyncio.get_running_loop().call_soon(self._advance)
            return False
        if not begins:
            log.warning("the job %s was already started or ended elsewhere", job.row.id)
            self._let_go(job)
        return begins

    async def _worked(self, job: ActiveJob) -> str:
        crib = self._open()
        worker = job.worker = await self._start(
            self._order(job), environ=crib.environment.variables, reaper=crib.servers.reaper
        )
        if job.stopped:
            # The stop came while the process was starting.
            await worker.stop(grace=0)
        try:
            async with asyncio.timeout(job.row.timeout + _OVERTIME):
                async for message in worker.lines():
                    job.received(message)
        except TimeoutError:
            job.stopped, job.stopped_as = "It exceeded its time limit and did not stop.", JobStatus.FAILED
            await worker.stop(grace=_GRACE)
        finally:
            how = await worker.close()
        return how

    def _order(self, job: ActiveJob) -> WorkerOrder:
        """Base URLs and keys come from the current configuration."""
        row, settings = job.row, settings_of(self._open())
        provider = row.model.partition(":")[0]
        return WorkerOrder(
            job=row.id,
            runs=row.runs,
            prompt=job.prompt,
            model=row.model,
            base_url=settings.base_urls.get(provider, ""),
            api_key=settings.api_keys.get(provider, ""),
            profile=row.profile,
            parent=row.submitter if row.submitter_since else "",
            workdir=Path(row.workdir),
            timeout=row.timeout,
            max_steps=row.max_steps,
        )

    def _check_submitter(self, job: ActiveJob) -> None:
        row, agents = job.row, self._open().services.agents
        if not row.submitter_since:
            return
        if not agents.knows(row.submitter) or agents.find(row.submitter).created_at != row.submitter_since:
            self._mark_stopped(job, f"Its submitter {row.submitter} no longer exists.", JobStatus.CANCELLED)

    def _agent_ended(self, event: Event) -> None:
        if not isinstance(event, AgentEnded) or event.returns:
            return
        for job in tuple(self._active.values()):
            if job.row.submitter_since and job.row.submitter == event.agent:
                self._stop(job, f"Its submitter {event.agent} no longer exists.", JobStatus.CANCELLED)
            elif job.row.agent == event.agent:
                # A normal end looks the same here, and its result may still be on its way.
                asyncio.get_running_loop().call_later(_AGENT_GONE, self._stop_unended, job)

    def _stop_unended(self, job: ActiveJob) -> None:
        if job.end is None and job.row.id in self._active and not self._closing:
            self._stop(job, f"Its agent {job.row.agent} was removed.", JobStatus.CANCELLED)

    def _stop(self, job: ActiveJob, why: str, status: JobStatus, *, grace: float = _GRACE) -> None:
        self._mark_stopped(job, why, status)
        if job.worker is not None:
            self._spawn(job.worker.stop(grace=grace))
        elif job.row.status is JobStatus.QUEUED:
            job.row = replace(job.row, status=JobStatus.RUNNING)
            self._spawn(self._ended(job, *job.outcome("")))

    @staticmethod
    def _mark_stopped(job: ActiveJob, why: str, status: JobStatus) -> None:
        if not job.stopped:
            job.stopped, job.stopped_as = why, status

    async def _ended(self, job: ActiveJob, status: JobStatus, values: Mapping[str, Any]) -> None:
        masked = {name: self._masked(value) if name in _TEXTS else value for name, value in values.items()}
        # The database does not report when it is writable again.
        while not await self._kept(job, status, masked) and not self._closing:  # noqa: ASYNC110
            await asyncio.sleep(_TRY_AGAIN)
        self._let_go(job)

    def _let_go(self, job: ActiveJob) -> None:
        self._active.pop(job.row.id, None)
        job.held.close()
        job.over.set()
        self._open().bus.publish(JobChanged(job=job.row.id, submitter=job.row.submitter))
        self._advance()

    async def _kept(self, job: ActiveJob, status: JobStatus, values: Mapping[str, Any]) -> bool:
        def end(connection: sa.Connection) -> None:
            jobs.end(connection, job.row.id, status, time.time(), values)
            self._forget(connection)

        try:
            await self._open().services.store.write(end)
            await self._note(job.row, f"job {status}", error=values.get("error", ""))
        except StoreError as error:
            log.warning("could not store the end of job %s yet: %s", job.row.id, error.text())
            return False
        return True

    def _masked(self, text: str) -> str:
        return storable(self._open().environment.mask.known(text))

    async def _note(self, row: JobRow, what: str, **detail: Any) -> None:
        """Writes an entry into the audit log; durable on return."""
        detail = {word: value for word, value in {"job": row.id, "with": row.runs, **detail}.items() if value}
        await self._open().services.record(AuditedChange(what=what, agent=row.submitter, detail=detail))

    def _spawn(self, work: Coroutine[None, None, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)
        return task
