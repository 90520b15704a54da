"""audit:* — query, follow and verify the audit log."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import time
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from pydantic import Field

from toolcrib.audit.entry import EntryKind
from toolcrib.calls.door import PROCESS
from toolcrib.commands.duration import parse_duration
from toolcrib.commands.registry import Availability, CommandContext, CommandEffect, CommandScope, Parameters, registry
from toolcrib.errors import StoreError, UsageError
from toolcrib.events import CallOutcome

_OUTCOMES = ", ".join(CallOutcome)

_POLL = 0.25
_AT_ONCE = 500
_PATIENCE = 1.0
_REPORT_EVERY = 2.0
"""Seconds between two progress reports of `verify`."""


class AuditParameters(Parameters):
    agent: str | None = None
    tool: str | None = Field(default=None, description="server:tool or a glob; without a colon, of any server")
    server: str | None = None
    outcome: str | None = Field(default=None, description=_OUTCOMES)
    session: str | None = None
    since: str | None = Field(default=None, description="age (90s, 1h, 2d) or time (2026-11-16T10:00)")
    until: str | None = Field(default=None, description="like since")
    limit: int = Field(default=50, ge=1, le=20_000)

    def filters(self) -> dict[str, Any]:
        wanted = self.model_dump(exclude={"limit"})
        return wanted | {
            "outcome": checked_outcome(self.outcome),
            "since": parse_time(self.since),
            "until": parse_time(self.until),
        }


@registry.command("audit:query", CommandEffect.REVEALS, Availability.EVERYWHERE, scope=CommandScope.DAEMON)
async def query(context: CommandContext, params: AuditParameters) -> dict[str, Any]:
    """Show the newest matching entries of the audit log, newest last: calls, denials, permission changes."""
    # Outcomes of calls that only read are written a moment later. A store that can't be written can still be read.
    with contextlib.suppress(StoreError, TimeoutError):
        async with asyncio.timeout(_PATIENCE):
            await context.services.audit.flush()
    entries = await context.services.audit.query(**params.filters(), limit=params.limit)
    # With `until`, the outcome of a call may be in a later entry.
    return {"entries": entries, "cut_off": interrupted_calls(entries) if params.until is None else []}


@registry.command("audit:follow", CommandEffect.REVEALS, Availability.SOCKET, scope=CommandScope.DAEMON)
async def follow(context: CommandContext, params: AuditParameters) -> dict[str, Any]:
    """Show the newest matching entries of the audit log, then new ones as they arrive."""
    audit_log = context.services.audit
    filters = params.filters()
    seen = await audit_log.newest()
    entries = await audit_log.query(**filters, limit=params.limit)
    while True:
        for entry in entries:
            await context.emit({"entry": entry})
            seen = max(seen, entry["seq"])
        await asyncio.sleep(_POLL)
        newest = await audit_log.newest()
        entries = await audit_log.query(**filters, limit=_AT_ONCE, after=seen)
        if not entries:
            # Skip entries that did not match.
            seen = max(seen, newest)


class VerifyParameters(Parameters):
    expect: str | None = Field(default=None, description="SEQ:HASH, an earlier head of the audit log")


@registry.command("audit:verify", CommandEffect.REVEALS, Availability.EVERYWHERE, scope=CommandScope.DAEMON)
async def verify(context: CommandContext, params: VerifyParameters) -> dict[str, Any]:
    """Check that no entry of the audit log was changed, removed or inserted since it was written."""
    reported_at = time.monotonic()

    async def progress(checked: int, total: int) -> None:
        nonlocal reported_at
        if time.monotonic() - reported_at >= _REPORT_EVERY:
            reported_at = time.monotonic()
            await context.emit({"checked": checked, "of": total})

    return dataclasses.asdict(await context.services.audit.verify(params.expect, progress))


def checked_outcome(outcome: str | None) -> str | None:
    # Changes have their own outcomes of several words: "agent added".
    if outcome is None or " " in outcome or outcome in list(CallOutcome):
        return outcome
    raise UsageError(f"There is no outcome {outcome!r}.", remedy=f"Known: {_OUTCOMES}; or a change: 'agent added'.")


def interrupted_calls(entries: Iterable[Mapping[str, Any]]) -> list[str]:
    """Calls that will never have an outcome, because the process that wrote the intent is gone."""
    open_calls: dict[str, None] = {}
    for entry in entries:
        if entry["kind"] == EntryKind.INTENT:
            open_calls[entry["call"]] = None
        elif entry["kind"] == EntryKind.OUTCOME:
            open_calls.pop(entry["call"], None)
    return [call for call in open_calls if not _may_still_run(call)]


def _may_still_run(call: str) -> bool:
    process, _, _ = call.rpartition("-")
    try:
        pid = int(process.partition("-")[0], 16)
        if process == PROCESS or pid == os.getpid():
            return process == PROCESS
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except (ValueError, PermissionError):
        # Not one of our ids, or another user's process: unknown.
        return True
    return True


def parse_time(text: str | None) -> float | None:
    """`1h` is an hour ago; a time without a zone is local time."""
    if text is None:
        return None
    ago = parse_duration(text)
    if ago is not None:
        return time.time() - ago
    try:
        return datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError, OSError):
        raise UsageError(
            f"{text!r} is not a time.", remedy="Write an age (90s, 30m, 1h, 2d) or a time (2026-11-16T10:00)."
        ) from None
