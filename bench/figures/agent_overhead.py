"""What a step and a tool call cost beyond plain pydantic-ai, with the same scripted model.

A run has STEPS steps of one call each, or WIDE steps of CALLS calls each. The tool does nothing, so what is left is the
loop: a function given to pydantic-ai's own Agent, the same function behind a tool provider of `run_agent`, and a tool
of a stdio server.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.usage import UsageLimits

from report import Figure, median, rounded
from targets import HERE
from toolcrib import AgentOptions, Kit, Result, StdioServer, run_agent
from toolcrib.agent_loop.events import RunFinished
from toolcrib.catalog.snapshot import Catalog
from toolcrib.core.provider import ToolProvider
from toolcrib.core.results import read_result
from toolcrib.events import Bus
from toolcrib.servers.model import ServerStatus

STEPS, WIDE, CALLS = 40, 4, 20
NAME, ARGUMENTS = "echo", {"text": "x"}
ANSWER = b'{"content": [{"type": "text", "text": "x"}]}'
MODEL = "claude-sonnet-5-5"

Run = Callable[[str], Awaitable[None]]


class OneFunction(ToolProvider):
    """A tool provider with one tool that answers at once."""

    def __init__(self) -> None:
        self.bus = Bus()
        definition = {
            "name": NAME,
            "description": "Says it again.",
            "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
        }
        self._catalog = Catalog.build({"bench": (msgspec.json.encode(definition),)}, version=1)

    @property
    def catalog(self) -> Catalog:
        return self._catalog

    def status(self) -> dict[str, ServerStatus]:
        return {}

    async def call(
        self, name: str, arguments: Mapping[str, Any] | None = None, *, timeout: float | None = None
    ) -> Result:
        return read_result(ANSWER)


async def plain(url: str) -> None:
    async with contextlib.AsyncExitStack() as stack:
        provider = AnthropicProvider(api_key="none", base_url=url)
        stack.push_async_callback(provider.client.close)
        agent = Agent(AnthropicModel(MODEL, provider=provider), output_type=str)

        @agent.tool_plain(name=NAME)
        async def say_again(text: str) -> str:
            """Says it again."""
            return text

        async with agent.run_stream_events("Go.", usage_limits=UsageLimits(request_limit=None)) as events:
            async for _ in events:
                pass


async def by_run_agent(url: str, provider: ToolProvider) -> None:
    options = AgentOptions(model=f"anthropic:{MODEL}", api_key="none", base_url=url, crib=provider, max_steps=1000)
    last = None
    async for event in run_agent("Go.", options):
        last = event
    assert isinstance(last, RunFinished), last


@contextlib.contextmanager
def model(steps: int, calls: int) -> Iterator[str]:
    """A scripted model in a process of its own."""
    call = {"call": NAME, "arguments": ARGUMENTS}
    script = {"steps": [{"together": [call] * calls} for _ in range(steps)], "last_words": "Done."}
    with tempfile.TemporaryDirectory(prefix="tcb-") as folder:
        file = Path(folder) / "script.json"
        file.write_text(json.dumps(script))
        words = [sys.executable, "-m", "toolcrib.testing", "anthropic", str(file)]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdin
            assert process.stdout
            yield process.stdout.readline().strip()
            process.stdin.close()


@contextlib.asynccontextmanager
async def ways() -> AsyncIterator[dict[str, Run]]:
    echo = StdioServer("bench", command=sys.executable, args=[str(HERE / "echo_stdio.py"), "modern", "1"])
    async with Kit([echo]) as kit:
        assert NAME in kit.tools().names, kit.missing
        yield {
            "plain pydantic-ai, a function": plain,
            "run_agent, a function": lambda url: by_run_agent(url, OneFunction()),
            "run_agent, a tool of a stdio server": lambda url: by_run_agent(url, kit),
        }


def measure(rounds: int) -> Figure:
    return asyncio.run(_measured(rounds))


async def _measured(rounds: int) -> Figure:
    figure = Figure(
        name="overhead",
        title=f"a step with one call ({STEPS} steps), and each further call of a step ({WIDE} steps of {CALLS} calls)",
        keys=("way",),
        values=("ms per step", "beyond plain", "ms per further call", "beyond plain, call"),
        notes=("a step holds the scripted model's own answer over HTTP, which is the same for all",),
    )
    stories = {"steps": (STEPS, 1), "wide": (WIDE, CALLS), "narrow": (WIDE, 1)}
    with contextlib.ExitStack() as stack:
        urls = {story: stack.enter_context(model(*size)) for story, size in stories.items()}
        async with ways() as runs:
            taken = {way: {story: list[float]() for story in stories} for way in runs}
            for round_ in range(rounds + 1):
                for story, url in urls.items():
                    for way, run in runs.items():
                        began = time.perf_counter()
                        await run(url)
                        # The first round loads modules.
                        if round_:
                            taken[way][story].append((time.perf_counter() - began) * 1000)
    floor: dict[str, float] = {}
    for way, times in taken.items():
        of = {story: median(several) or 0.0 for story, several in times.items()}
        step = of["steps"] / STEPS
        call = (of["wide"] - of["narrow"]) / (WIDE * (CALLS - 1))
        floor = floor or {"step": step, "call": call}
        figure.add(
            [way],
            {
                "ms per step": rounded(step),
                "beyond plain": rounded(step - floor["step"]),
                "ms per further call": rounded(call),
                "beyond plain, call": rounded(call - floor["call"]),
            },
        )
    return figure
