"""A queued or running job, and its process.

In: an order as JSON on the process's stdin, so that it does not appear in the process table. Out: the process's lines
as plain objects; from them the job's current row, and its values to store at the end. `servers.reaper` ends the process
and all its children with the daemon, even after `kill -9`. `queue` starts it; it runs `toolcrib.jobs`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import sys
from collections import deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from toolcrib.errors import ToolcribError
from toolcrib.jobs.protocol import WorkerOrder
from toolcrib.servers import reaper_child
from toolcrib.servers.environment import MARKER
from toolcrib.servers.reaper import Reaper
from toolcrib.signals import restore_open_file_limit
from toolcrib.store.jobs import JobRow, JobStatus

log = logging.getLogger(__name__)

WORKER_COMMAND = (sys.executable, "-P", "-m", "toolcrib.jobs")
"""-P: nothing is imported from the folder it starts in."""
_LONGEST_LINE = 4 * 1024 * 1024
_LAST_LINES = 20
_AFTER_KILL = 3.0
"""Seconds to wait for a killed process."""
_TAKEN_WITHIN = 60.0
"""Seconds that a process has to read its order."""


class Worker(Protocol):
    def lines(self) -> AsyncIterator[dict[str, Any]]:
        """Ends when the process ends or prints an invalid line."""
        ...

    async def stop(self, *, grace: float) -> None:
        """Sends SIGTERM, and SIGKILL after the grace period."""
        ...

    async def close(self) -> str:
        """Ends the process and all its children, and returns how it ended."""
        ...


async def start_worker(order: WorkerOrder, *, environ: Mapping[str, str], reaper: Reaper) -> Worker:
    marker = reaper.new_marker()
    try:
        process = await asyncio.create_subprocess_exec(
            *WORKER_COMMAND,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**environ, MARKER: marker},
            cwd="/",
            start_new_session=True,
            limit=_LONGEST_LINE,
        )
    except OSError as error:
        raise ToolcribError(
            f"The job's process cannot be started: {error.strerror or error}.", remedy="See `toolcrib logs`."
        ) from error
    restore_open_file_limit(process.pid)
    reaper.watch(process.pid)
    return _Process(process, reaper, marker, order)


class _Process:
    def __init__(self, process: asyncio.subprocess.Process, reaper: Reaper, marker: str, order: WorkerOrder) -> None:
        self._process = process
        self._reaper = reaper
        self._marker = marker
        self._said: deque[str] = deque(maxlen=_LAST_LINES)
        # In tasks, so that a process that does not read cannot block its own end.
        self._tasks = (asyncio.create_task(self._listen()), asyncio.create_task(self._hand_over(order)))

    async def _hand_over(self, order: WorkerOrder) -> None:
        stdin = self._process.stdin
        if stdin is None:
            raise RuntimeError("a worker without pipes")
        try:
            async with asyncio.timeout(_TAKEN_WITHIN):
                stdin.write(json.dumps(order.to_json()).encode())
                await stdin.drain()
        except ConnectionError:
            log.debug("a job's process ended before it read its order; `close` reports the reason")
        except TimeoutError:
            self._said.append(f"it did not read its order within {_TAKEN_WITHIN:.0f} s")
            reaper_child.signal_group(self._process.pid, signal.SIGKILL)
        finally:
            stdin.close()

    async def lines(self) -> AsyncIterator[dict[str, Any]]:
        stdout = self._process.stdout
        if stdout is None:
            raise RuntimeError("a worker without pipes")
        try:
            while line := await stdout.readline():
                message = json.loads(line)
                if isinstance(message, dict):
                    yield message
        except ValueError as error:
            log.warning("a job's process printed an invalid line: %s", error)

    async def stop(self, *, grace: float) -> None:
        reaper_child.signal_group(self._process.pid, signal.SIGTERM)
        await self._gone(grace)
        if self._process.returncode is None:
            reaper_child.signal_group(self._process.pid, signal.SIGKILL)

    async def close(self) -> str:
        pid = self._process.pid
        try:
            await self._gone(_AFTER_KILL)
        finally:
            # Also if the caller is cancelled.
            if self._process.returncode is None:
                reaper_child.signal_group(pid, signal.SIGKILL)
            await asyncio.shield(asyncio.to_thread(self._reaper.end, pid, self._marker))
            await self._gone(_AFTER_KILL)
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            # asyncio keeps the pipes open as long as any process holds their other end.
            getattr(self._process, "_transport").close()  # noqa: B009 - there is no public API for this
        code = self._process.returncode
        how = (
            f"Its process was killed by signal {-code}" if code and code < 0 else f"Its process exited with code {code}"
        )
        return f"{how}. Output: {' | '.join(self._said)}." if self._said else f"{how}."

    async def _gone(self, limit: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit):
                await self._process.wait()

    async def _listen(self) -> None:
        """Reads stderr continuously, so that the process never blocks; its last lines may explain its end."""
        stderr = self._process.stderr
        if stderr is None:
            raise RuntimeError("a worker without pipes")
        rest = b""
        while chunk := await stderr.read(1 << 14):
            *lines, rest = (rest + chunk).split(b"\n")
            rest = rest[-1000:]
            self._said.extend(line.decode(errors="replace").strip()[:1000] for line in lines if line.strip())


LONGEST_RESULT = 256 * 1024
"""Maximum characters of a stored result."""
_LONGEST_ERROR = 4000


@dataclass(kw_only=True, eq=False)
class ActiveJob:
    row: JobRow
    prompt: str
    """Unmasked, unlike the row's."""
    held: contextlib.ExitStack
    """Keeps the daemon running until the job is over."""
    worker: Worker | None = None
    stopped: str = ""
    """Why the daemon stopped it."""
    stopped_as: JobStatus = JobStatus.CANCELLED
    end: Mapping[str, Any] | None = None
    """The result that its worker reported."""
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def received(self, message: Mapping[str, Any]) -> None:
        """Handles a line of its worker."""
        match message:
            case {"agent": str(agent)}:
                self.row = replace(self.row, agent=agent)
            case {"event": str(kind)}:
                steps = self.row.steps + (kind == "step_finished")
                self.row = replace(self.row, events=self.row.events + 1, steps=steps)
            case {"end": dict(end)}:
                self.end = end

    def outcome(self, how: str) -> tuple[JobStatus, dict[str, Any]]:
        """The status and the values to store. `how` describes the end of its process."""
        row: dict[str, Any] = {"agent": self.row.agent, "steps": self.row.steps, "events": self.row.events}
        if (end := self.end) is not None:
            row |= {"text": _cut(str(end["text"]), LONGEST_RESULT), "usage": json.dumps(end["usage"])}
            if end["status"] == JobStatus.DONE:
                return JobStatus.DONE, row
            how = str(end["error"])
        status = self.stopped_as if self.stopped else JobStatus.FAILED
        return status, {**row, "error": _cut(self.stopped or how, _LONGEST_ERROR)}


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}\n[{len(text) - most} more characters were not stored]"
