"""Where jobs are handed in and their results are fetched.

In: a caller and an order. Out: rows of `store.jobs`. `daemon.jobs` is the desk; where no daemon runs there is `NoJobs`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, Protocol

from toolcrib.errors import DaemonNotRunning
from toolcrib.policy import Caller
from toolcrib.store.jobs import JobRow, JobStatus

AGENT = "agent"
"""A job that is a `run_agent`; every other one is a coding agent's run."""


@dataclass(frozen=True, kw_only=True)
class JobOrder:
    prompt: str
    runs: str = AGENT
    """`agent`, or a coding agent's name."""
    model: str = ""
    """Empty: the one that the configuration names."""
    profile: str = ""
    """Empty: whatever the submitter may."""
    workdir: str = ""
    """Empty: the submitter's own; a relative one starts there."""
    timeout: float | None = None
    max_steps: int


class JobDesk(Protocol):
    """Everybody sees their own jobs and those of their children; the owner sees all."""

    async def submit(self, caller: Caller, root: Path, order: JobOrder) -> JobRow:
        """Durable when it returns. `root` is the project that the caller is in."""
        ...

    async def latest(self, caller: Caller, *, status: JobStatus | None, most: int) -> tuple[tuple[JobRow, ...], int]:
        """The newest first, and how many there are in all."""
        ...

    async def result(self, caller: Caller, job: str, *, wait: float) -> JobRow:
        """As it is when it ends, or after `wait` seconds."""
        ...

    async def cancel(self, caller: Caller, job: str) -> JobRow:
        """It has ended when it returns; one that had ended before stays as it was."""
        ...

    def running(self, job: str) -> JobRow:
        """For the process of a job, which asks for its agent. Raises `Denied` where there is no such job now."""
        ...


class NoJobs:
    """Only a daemon runs in the background."""

    async def submit(self, caller: Caller, root: Path, order: JobOrder) -> NoReturn:
        _refuse()

    async def latest(self, caller: Caller, *, status: JobStatus | None, most: int) -> NoReturn:
        _refuse()

    async def result(self, caller: Caller, job: str, *, wait: float) -> NoReturn:
        _refuse()

    async def cancel(self, caller: Caller, job: str) -> NoReturn:
        _refuse()

    def running(self, job: str) -> NoReturn:
        _refuse()


def _refuse() -> NoReturn:
    raise DaemonNotRunning("Only a daemon runs jobs.", remedy="`toolcrib up --detach` starts one.")
