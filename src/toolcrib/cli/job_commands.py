"""`job`: models and coding agents that the daemon runs in the background.

In: command-line arguments. Out: an exit code: 0, or 10 if the job failed. Each subcommand calls a command of the
daemon; none works without one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from toolcrib.cli.options import AsJson, whole_prompt
from toolcrib.cli.output import TOOL_ERROR, ColumnPriorities, TableCut, duration, hint, moment, printed, say, table
from toolcrib.cli.perform import from_daemon
from toolcrib.config.paths import working_folder
from toolcrib.errors import UsageError

COLUMNS = ("job", "status", "with", "submitter", "took", "prompt")

commands = typer.Typer(rich_markup_mode=None)
job = typer.Typer(help="Run models and coding agents in the background.")
commands.add_typer(job, name="job")

_POLL_SECONDS = 5.0
"""Seconds that one request to the daemon waits."""
_MARGIN = 30.0
_PRIORITIES = ColumnPriorities(text="prompt", cut={"submitter": 12}, optional=("took", "with"))

_Id = Annotated[str, typer.Argument(metavar="JOB", help="The job's ID, as shown by `toolcrib job list`.")]
_Wait = Annotated[bool, typer.Option("--wait", help="Wait until the job ends; Ctrl-C leaves it running.")]


@job.command()
def submit(
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="The task; - reads it from stdin.")],
    *,
    runs: Annotated[
        str,
        typer.Option(
            "--with", metavar="WHAT", help="What to run: model (a model with your tools), claude, codex or gemini."
        ),
    ] = "model",
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="PROVIDER:MODEL", help="The model for --with model. Default: as configured."),
    ] = None,
    profile: Annotated[
        str, typer.Option("--profile", metavar="NAME", help="The profile that limits the job.")
    ] = "developer",
    workdir: Annotated[
        Path | None, typer.Option("--workdir", metavar="DIR", help="The job's folder. Default: the current folder.")
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option("--timeout", metavar="SECONDS", help="Stop the job after this time. Default: as configured."),
    ] = None,
    max_steps: Annotated[
        int,
        typer.Option("--max-steps", metavar="N", help="Maximum number of model responses; only for --with model."),
    ] = 30,
    wait: _Wait = False,
    as_json: AsJson = False,
) -> int:
    """Submit a job. It runs in the daemon and continues if you close this terminal."""
    if timeout is not None and not math.isfinite(timeout):
        raise UsageError(f"{timeout} is not a number of seconds.", remedy="For example: --timeout 600.")
    params: dict[str, Any] = {
        "prompt": whole_prompt(prompt),
        "with": runs,
        "model": model,
        "profile": profile,
        "workdir": str((workdir or working_folder()).expanduser().resolve()),
        "timeout": timeout,
        "max_steps": max_steps,
    }
    found = from_daemon("job:submit", params)
    if wait:
        return _say_job(_wait_for(found["job"]), as_json=as_json)
    printed(found, as_json=as_json)
    say(found["job"])
    hint(f"`toolcrib job result {found['job']} --wait` waits for it; `toolcrib job cancel {found['job']}` stops it.")
    return 0


@job.command(name="list")
def list_jobs(
    *,
    status: Annotated[
        str | None,
        typer.Option("--status", metavar="STATUS", help="Show only jobs with this status: queued, running, done …"),
    ] = None,
    limit: Annotated[int, typer.Option("-n", "--limit", metavar="N", help="Show at most this many jobs.")] = 20,
    as_json: AsJson = False,
) -> int:
    """List all jobs, newest first."""
    found = printed(from_daemon("job:list", {"status": status, "limit": limit}), as_json=as_json)
    rows = found["jobs"]
    if not rows:
        say("No jobs.")
        return 0
    shown = [
        (row["job"], row["status"], row["with"], row["submitter"], _took(row), row["prompt"].replace("\n", " "))
        for row in rows
    ]
    cut = table(COLUMNS, shown, state_column="status", yielding=_PRIORITIES)
    if found["total"] > len(rows):
        hint(f"{found['total'] - len(rows)} more; -n shows them.")
    elif cut is TableCut.SOME:
        hint("`toolcrib job list --json` shows everything.")
    return 0


@job.command()
def show(job: _Id, *, as_json: AsJson = False) -> int:
    """Show a job's details."""
    found = printed(from_daemon("job:result", {"job": job}), as_json=as_json)
    for name, value in found.items():
        if name.endswith("_at"):
            value = None if value is None else moment(value)  # noqa: PLW2901
        if name not in ("text", "error") and value not in (None, "", {}):
            say(f"{name.replace('_', ' '):14}{value}")
    _say_outcome(found)
    return 0


@job.command()
def result(job: _Id, *, wait: _Wait = False, as_json: AsJson = False) -> int:
    """Print a job's result: its text or its error."""
    return _say_job(_wait_for(job) if wait else from_daemon("job:result", {"job": job}), as_json=as_json)


@job.command()
def cancel(job: _Id, *, as_json: AsJson = False) -> int:
    """Cancel a queued or running job. Changes it already made are kept."""
    found = printed(from_daemon("job:cancel", {"job": job}), as_json=as_json)
    say(f"{found['job']} is {found['status']}.")
    return 0


def _wait_for(job: str) -> dict[str, Any]:
    shown = ""
    while True:
        found = from_daemon("job:result", {"job": job, "wait": _POLL_SECONDS}, timeout=_POLL_SECONDS + _MARGIN)
        if found["status"] not in ("queued", "running"):
            return found
        now = f"{found['job']} is {found['status']}, {found['steps']} steps, {found['events']} events"
        if now != shown:
            hint(now)
        shown = now


def _say_job(found: dict[str, Any], *, as_json: bool) -> int:
    code = 0 if found["status"] in ("queued", "running", "done") else TOOL_ERROR
    _say_outcome(printed(found, as_json=as_json, exit_code=code))
    return code


def _say_outcome(found: Mapping[str, Any]) -> None:
    if found["text"]:
        say(found["text"])
    if found["status"] != "done":
        hint(f"{found['job']} is {found['status']}. {found['error']}".rstrip())


def _took(row: Mapping[str, Any]) -> str:
    return "" if row["seconds"] is None else duration(row["seconds"])
