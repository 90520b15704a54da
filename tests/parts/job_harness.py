"""A daemon's job queue without its process: a real crib and queue, with workers that a test controls."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from toolcrib.commands.all import registry
from toolcrib.commands.builtin import builtins as builtin_servers
from toolcrib.commands.job import SubmitJob
from toolcrib.commands.registry import CommandHost
from toolcrib.config.paths import Paths
from toolcrib.core.crib import Crib
from toolcrib.daemon_client.lifetime import ActiveLeases
from toolcrib.identity.principal import OWNER, Principal
from toolcrib.jobs.protocol import WorkerOrder
from toolcrib.jobs.queue import JobQueue
from toolcrib.store.jobs import JobRow

LIMIT = 60.0
SECRET = "hunter2-hunter2"
SETTINGS: dict[str, Any] = {
    "model": "openai:usual",
    "models": ["anthropic:small-*"],
    "max_running": 2,
    "max_waiting": 2,
    "max_per_agent": 3,
    "timeout": 60,
    "max_timeout": 600,
}


@dataclass(eq=False)
class FakeWorker:
    """Waits until the test continues it."""

    order: Mapping[str, Any]
    sent: asyncio.Queue[dict[str, Any] | None] = field(default_factory=asyncio.Queue)
    stopped: bool = False

    def send(self, **line: Any) -> None:
        self.sent.put_nowait(line)

    def done(self, text: str = "42", status: str = "done", error: str = "", tokens: int = 7) -> None:
        self.send(end={"status": status, "text": text, "error": error, "usage": {"input_tokens": tokens}})
        self.exit()

    def exit(self) -> None:
        self.sent.put_nowait(None)

    async def lines(self) -> AsyncIterator[dict[str, Any]]:
        while (line := await self.sent.get()) is not None:
            yield line

    async def stop(self, *, grace: float) -> None:
        self.stopped = True
        self.exit()

    async def close(self) -> str:
        return "Its process exited with code 3."


@dataclass(eq=False)
class JobHarness:
    """Opening it again is the next daemon on the same files."""

    home: Path
    leases: ActiveLeases = field(default_factory=ActiveLeases)
    workers: dict[str, FakeWorker] = field(default_factory=dict)
    """By prompt."""
    config: dict[str, Any] = field(default_factory=dict)
    """The user's configuration, besides jobs."""
    start: Callable[..., Awaitable[Any]] = field(init=False)
    queue: JobQueue = field(init=False)
    crib: Crib = field(init=False)

    def __post_init__(self) -> None:
        self.start = self._start
        self._started = asyncio.Event()
        self.root = self.home / "project"
        (self.root / "src").mkdir(parents=True)

    async def _start(self, order: WorkerOrder, **_: Any) -> FakeWorker:
        worker = self.workers[order.prompt] = FakeWorker(json.loads(json.dumps(order.to_json())))
        self._started.set()
        return worker

    async def started(self, prompt: str = "do it") -> FakeWorker:
        async with asyncio.timeout(LIMIT):
            while prompt not in self.workers:
                self._started.clear()
                await self._started.wait()
        return self.workers[prompt]

    @contextlib.asynccontextmanager
    async def open(self, **settings: Any) -> AsyncIterator[JobQueue]:
        """`settings` are those of jobs."""
        environ = {"TOOLCRIB_HOME": str(self.home / "t"), "HOME": str(self.home), "SMALL_SECRET": SECRET}
        environ |= {"OPENAI_API_KEY": "k" * 20, "ANTHROPIC_API_KEY": "a" * 20}
        paths = Paths.of_user(environ)
        paths.config_dir.mkdir(exist_ok=True)
        server = {"url": "http://127.0.0.1:9/mcp", "headers": {"Authorization": "Bearer ${SMALL_SECRET}"}}
        config = {"servers": {"away": server}, "jobs": {**SETTINGS, **settings}, **self.config}
        (paths.config_dir / "config.json").write_text(json.dumps(config))
        self.queue = JobQueue(self.leases, start=self.start)
        builtins = builtin_servers(registry, cast("CommandHost", self), unsafe_no_sandbox=True)
        crib = Crib(paths=paths, root=self.root, environ=environ, builtins=builtins, only=frozenset())
        async with crib as self.crib:
            self.queue.crib = self.crib
            await self.queue.begin()
            try:
                yield self.queue
            finally:
                await self.queue.close()

    async def change_settings(self, **settings: Any) -> None:
        """The person changes the settings of jobs while the daemon runs."""
        file = self.crib.environment.paths.config_dir / "config.json"
        config = json.loads(file.read_text())
        file.write_text(json.dumps({**config, "jobs": {**config["jobs"], **settings}}))
        await self.crib.projects.reload()

    async def agent(self, name: str = "a", **wanted: Any) -> Principal:
        minted = await self.crib.services.agents.add(name, **{"profile": "developer", **wanted})
        return Principal.fixed(name, minted.agent.permission)

    async def submit(self, prompt: str = "do it", by: Principal = OWNER, **wanted: Any) -> JobRow:
        return await self.queue.submit(by, self.root, SubmitJob(**{"prompt": prompt, "max_steps": 5, **wanted}))

    async def now(self, job: JobRow) -> JobRow:
        return await self.queue.result(OWNER, job.id, wait=0)

    async def finished(self, job: JobRow) -> JobRow:
        row = await self.queue.result(OWNER, job.id, wait=LIMIT)
        assert row.status.over, row
        return row
