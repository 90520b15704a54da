"""job:* — agents that the daemon runs in the background: submit, list, result, cancel.

As tools they are `submit_job`, `list_jobs`, `get_job_result` and `cancel_job`. A job never has more
permissions than its submitter; `jobs.submission` checks that.
"""

from __future__ import annotations

import json
import time
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from toolcrib.commands.registry import (
    VERBATIM,
    Availability,
    CommandContext,
    CommandEffect,
    CommandScope,
    Parameters,
    PathText,
    registry,
)
from toolcrib.config.settings import JobRunner
from toolcrib.store.jobs import JobRow, JobStatus

_SHOWN_FIELDS = ("model", "profile", "workdir", "submitter", "agent", "submitted_at", "started_at", "ended_at")
_SHOWN = 200
"""Characters of a prompt in a list."""


def _described(row: JobRow) -> dict[str, Any]:
    return {
        "job": row.id,
        "status": str(row.status),
        "with": row.runs,
        **{name: getattr(row, name) for name in _SHOWN_FIELDS},
        "seconds": _seconds(row),
    }


def _seconds(row: JobRow) -> float | None:
    if row.started_at is None:
        return None
    return round((row.ended_at or time.time()) - row.started_at, 3)


class SubmitJob(Parameters):
    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    prompt: Annotated[str, VERBATIM] = Field(description="the task, with all context needed")
    runs: JobRunner = Field(default="model", alias="with", description="a model with these tools, or a coding agent")
    model: str | None = Field(default=None, description="provider:model, only with `model`")
    profile: str | None = Field(default=None, description="to restrict it")
    workdir: PathText | None = Field(default=None, description="its folder, within your own")
    timeout: float | None = Field(default=None, gt=0, allow_inf_nan=False, description="seconds")
    max_steps: int = Field(default=30, ge=1, le=1000)


@registry.command("job:submit", CommandEffect.WORKS, Availability.EVERYWHERE)
async def submit(context: CommandContext, params: SubmitJob) -> dict[str, Any]:
    """Run an agent in the background, with at most your permissions. Returns the job's id immediately."""
    return _described(await context.host.jobs.submit(context.principal, context.project.root, params))


class ListJobs(Parameters):
    status: Literal["queued", "running", "done", "failed", "cancelled", "interrupted"] | None = None
    limit: int = Field(default=20, ge=1, le=1000)


@registry.command("job:list", CommandEffect.READS, Availability.EVERYWHERE, scope=CommandScope.DAEMON)
async def list_jobs(context: CommandContext, params: ListJobs) -> dict[str, Any]:
    """List your jobs, newest first."""
    status = None if params.status is None else JobStatus(params.status)
    rows, total = await context.host.jobs.latest(context.principal, status=status, most=params.limit)
    return {"jobs": [{**_described(row), "prompt": _short(row.prompt)} for row in rows], "total": total}


def _short(prompt: str) -> str:
    return prompt if len(prompt) <= _SHOWN else f"{prompt[: _SHOWN - 1]}…"


class JobResultParameters(Parameters):
    job: str = Field(description="its id")
    wait: float = Field(default=0, ge=0, le=600, allow_inf_nan=False, description="seconds to wait for it to end")


@registry.command("job:result", CommandEffect.READS, Availability.EVERYWHERE, scope=CommandScope.DAEMON)
async def result(context: CommandContext, params: JobResultParameters) -> dict[str, Any]:
    """Get a job's status and, when it has ended, its text or error."""
    row = await context.host.jobs.result(context.principal, params.job, wait=params.wait)
    return {
        **_described(row),
        "text": row.text,
        "error": row.error,
        "usage": json.loads(row.usage) if row.usage else {},
        "steps": row.steps,
        "events": row.events,
    }


class JobId(Parameters):
    job: str = Field(description="its id")


@registry.command("job:cancel", CommandEffect.WORKS, Availability.EVERYWHERE, scope=CommandScope.DAEMON)
async def cancel(context: CommandContext, params: JobId) -> dict[str, Any]:
    """End a waiting or running job and everything it started. Its changes stay."""
    return _described(await context.host.jobs.cancel(context.principal, params.job))
