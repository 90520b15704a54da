"""The rooms of a daemon's jobs without its process: a real crib and desk, and workers that do what a test says."""

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
class Worker:
    """Stands still until the test lets it go on."""

    order: Mapping[str, Any]
    said: asyncio.Queue[dict[str, Any] | None] = field(default_factory=asyncio.Queue)
    stopped: bool = False

    def say(self, **line: Any) -> None:
        self.said.put_nowait(line)

    def done(self, text: str = "42", status: str = "done", error: str = "") -> None:
        self.say(end={"status": status, "text": text, "error": error, "usage": {"input_tokens": 7}})
        self.said.put_nowait(None)

    async def lines(self) -> AsyncIterator[dict[str, Any]]:
        while (line := await self.said.get()) is not None:
            yield line

    async def stop(self, *, grace: float) -> None:
        self.stopped = True
        self.said.put_nowait(None)

    async def close(self) -> str:
        return "Its process ended with code 3, saying: oh."


@dataclass(eq=False)
class JobHarness:
    """A daemon's rooms without its process; `again` is the next daemon on the same files."""

    home: Path
    leases: ActiveLeases = field(default_factory=ActiveLeases)
    workers: dict[str, Worker] = field(default_factory=dict)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    config: dict[str, Any] = field(default_factory=dict)
    """Of the person's own, besides jobs."""
    start: Callable[..., Awaitable[Any]] = field(init=False)

    def __post_init__(self) -> None:
        self.start = self._started

    @property
    def root(self) -> Path:
        return self.home / "project"

    async def _started(self, order: WorkerOrder, **_: Any) -> Worker:
        worker = self.workers[order.prompt] = Worker(json.loads(json.dumps(order.to_json())))
        self.news.set()
        return worker

    async def begun(self, prompt: str) -> Worker:
        async with asyncio.timeout(LIMIT):
            while prompt not in self.workers:
                self.news.clear()
                await self.news.wait()
        return self.workers[prompt]

    @contextlib.asynccontextmanager
    async def open(self, **settings: Any) -> AsyncIterator[JobQueue]:
        """`settings` are those of jobs."""
        environ = {"TOOLCRIB_HOME": str(self.home / "t"), "HOME": str(self.home), "OPENAI_API_KEY": "k" * 20}
        environ["SMALL_SECRET"] = SECRET
        environ["ANTHROPIC_API_KEY"] = "a" * 20
        paths = Paths.of_user(environ)
        paths.config_dir.mkdir(exist_ok=True)
        server = {"url": "http://127.0.0.1:9/mcp", "headers": {"Authorization": "Bearer ${SMALL_SECRET}"}}
        config = {"servers": {"away": server}, "jobs": {**SETTINGS, **settings}, **self.config}
        (paths.config_dir / "config.json").write_text(json.dumps(config))
        desk = JobQueue(self.leases, start=self.start)
        builtins = builtin_servers(registry, cast("CommandHost", self), unsafe_no_sandbox=True)
        async with Crib(paths=paths, root=self.root, environ=environ, builtins=builtins, only=frozenset()) as crib:
            desk.crib = crib
            await desk.begin()
            try:
                yield desk
            finally:
                await desk.close()


async def resettle(desk: JobQueue, **settings: Any) -> None:
    """The person changes the settings of jobs while the daemon runs."""
    assert desk.crib is not None
    file = desk.crib.environment.paths.config_dir / "config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps({**config, "jobs": {**config["jobs"], **settings}}))
    await desk.crib.projects.reload()


async def agent(desk: JobQueue, name: str, **wanted: Any) -> Principal:
    assert desk.crib is not None
    made = await desk.crib.services.agents.add(name, **{"profile": "developer", **wanted})
    return Principal.fixed(name, made.agent.permission)


def order(prompt: str = "do it", **wanted: Any) -> SubmitJob:
    return SubmitJob(prompt=prompt, max_steps=5, **wanted)


async def over(desk: JobQueue, job: str) -> JobRow:
    row = await desk.result(OWNER, job, wait=LIMIT)
    assert row.status.over, row
    return row
