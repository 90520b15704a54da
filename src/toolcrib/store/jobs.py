"""Jobs: the submission, the status and the result.

In: a connection and rows. Out: the same rows after a restart. `jobs.queue` decides what happens to a job; `commands`
shows them. A job's status only moves forward: the status of a finished job never changes.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from toolcrib.store.schema import jobs


class JobStatus(enum.StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"
    """It was running when the daemon ended. It may have done part of its work, and is never restarted."""

    @property
    def over(self) -> bool:
        return self not in _OPEN


_OPEN = frozenset({JobStatus.QUEUED, JobStatus.RUNNING})


@dataclass(frozen=True, kw_only=True)
class JobRow:
    id: str
    daemon: str
    """Its daemon: several daemons may share a store, and none touches another's jobs."""
    submitter: str
    submitter_since: float
    """When that agent was created, since a later agent may reuse its name. 0 for the owner and for clients without an
    agent.
    """
    runs: str
    """`agent`, or a coding agent's name."""
    model: str
    profile: str
    workdir: str
    root: str
    """The folder's project."""
    prompt: str
    masked: bool
    """Whether the prompt contained a secret, which is not stored."""
    timeout: float
    max_steps: int
    status: JobStatus
    agent: str = ""
    """The agent that makes its calls in the audit log."""
    submitted_at: float
    started_at: float | None = None
    ended_at: float | None = None
    text: str = ""
    error: str = ""
    usage: str = ""
    """Tokens, as JSON."""
    steps: int = 0
    events: int = 0


Owners = Collection[tuple[str, float]]
"""Submitters, each with `submitter_since`."""


def add(connection: sa.Connection, row: JobRow) -> None:
    connection.execute(jobs.insert().values(vars(row)))


def begin(connection: sa.Connection, job: str, at: float) -> bool:
    """False if it is no longer queued."""
    return _moved(connection, job, {"status": JobStatus.RUNNING, "started_at": at}, JobStatus.QUEUED)


def end(connection: sa.Connection, job: str, status: JobStatus, at: float, values: Mapping[str, Any]) -> bool:
    """Stores the result. False if the job had already ended; it then stays unchanged."""
    return _moved(connection, job, {**values, "status": status, "ended_at": at}, *_OPEN)


def interrupt_running(connection: sa.Connection, daemon: str, at: float, why: str) -> tuple[JobRow, ...]:
    """Marks the jobs that were still running when the daemon last ended, and returns them."""
    left = sa.and_(jobs.c.status == JobStatus.RUNNING, jobs.c.daemon == daemon)
    rows = tuple(_row(found) for found in connection.execute(sa.select(jobs).where(left)))
    ended = {"status": JobStatus.INTERRUPTED, "ended_at": at, "error": why}
    connection.execute(jobs.update().where(left).values(ended))
    return rows


def find(connection: sa.Connection, job: str) -> JobRow | None:
    found = connection.execute(sa.select(jobs).where(jobs.c.id == job)).one_or_none()
    return None if found is None else _row(found)


def queued(connection: sa.Connection, daemon: str) -> tuple[JobRow, ...]:
    """This daemon's jobs, in the order of their submission."""
    waiting = (jobs.c.status == JobStatus.QUEUED, jobs.c.daemon == daemon)
    query = sa.select(jobs).where(*waiting).order_by(jobs.c.submitted_at, jobs.c.id)
    return tuple(_row(found) for found in connection.execute(query))


def latest(
    connection: sa.Connection, *, owners: Owners | None, status: str | None, most: int
) -> tuple[tuple[JobRow, ...], int]:
    """The newest first, and the total number. `owners` None means all submitters."""
    where = [] if status is None else [jobs.c.status == status]
    if owners is not None:
        where.append(sa.or_(sa.false(), *(_of(*owner) for owner in owners)))
    query = sa.select(jobs).where(*where).order_by(jobs.c.submitted_at.desc(), jobs.c.id).limit(most)
    rows = tuple(_row(found) for found in connection.execute(query))
    return rows, connection.execute(sa.select(sa.func.count()).select_from(jobs).where(*where)).scalar_one()


def forget(connection: sa.Connection, *, before: float, most: int) -> int:
    """Deletes the jobs that ended before then, and all ended ones but the newest `most`; returns how many."""
    ended = jobs.c.status.not_in(_OPEN)
    newest = sa.select(jobs.c.id).where(ended).order_by(jobs.c.ended_at.desc(), jobs.c.id).limit(most)
    gone = jobs.delete().where(ended, sa.or_(jobs.c.ended_at < before, jobs.c.id.not_in(newest.scalar_subquery())))
    return connection.execute(gone).rowcount


def _of(name: str, since: float) -> sa.ColumnElement[bool]:
    return sa.and_(jobs.c.submitter == name, jobs.c.submitter_since == since)


def _moved(connection: sa.Connection, job: str, values: Mapping[str, Any], *before: JobStatus) -> bool:
    moved = jobs.update().where(jobs.c.id == job, jobs.c.status.in_(before)).values(dict(values))
    return bool(connection.execute(moved).rowcount)


def _row(found: sa.Row[Any]) -> JobRow:
    return JobRow(**{**found._mapping, "status": JobStatus(found._mapping["status"])})
