"""From the start of a program to the first question to its model: alone, with ten servers, with one of them dead.

Each run is a process of its own; the model's clock is the same machine's. A server that ends at once is found out at
once; one that never answers is waited for, as long as a server has: ten seconds.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

from report import Figure, median, rounded
from targets import HERE
from toolcrib.testing import Say, scripted

SERVERS = 10
PROGRAM = """
import asyncio, sys
from toolcrib import AgentOptions, StdioServer, run_agent

def server(number, words):
    return StdioServer(f"s{number}", command=sys.executable, args=words)

async def main():
    url, echo, live, dead = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
    servers = [server(number, [echo, "modern", "5"]) for number in range(live)]
    if dead:
        servers.append(server(live, ["-c", dead]))
    options = AgentOptions(model="anthropic:claude-sonnet-5-5", api_key="none", base_url=url, mcp_servers=servers)
    async for event in run_agent("Go.", options):
        pass
    assert event.type == "run_finished", event

asyncio.run(main())
"""
ENDS, HANGS = "raise SystemExit(1)", "import sys; sys.stdin.read()"
WAYS: dict[str, tuple[int, str]] = {
    "no servers": (0, ""),
    "10 servers": (SERVERS, ""),
    "10 servers, one ends at once": (SERVERS - 1, ENDS),
    "10 servers, one never answers": (SERVERS - 1, HANGS),
}


def measure(rounds: int) -> Figure:
    figure = Figure(
        name="start",
        title="exec to the first request at the model, seconds",
        keys=("servers",),
        values=("s", "beyond none"),
        notes=("the interpreter's start and all imports are in it; servers are small ones in Python",),
    )
    taken: dict[str, list[float]] = {way: [] for way in WAYS}
    for round_ in range(rounds):
        for way, (live, dead) in WAYS.items():
            if dead is HANGS and round_ >= 2:
                continue
            taken[way].append(_once(live, dead))
    alone = median(taken["no servers"]) or 0.0
    for way, times in taken.items():
        took = median(times) or 0.0
        figure.add([way], {"s": rounded(took), "beyond none": rounded(took - alone)})
    return figure


def _once(live: int, dead: str) -> float:
    asked = threading.Event()
    at: list[float] = []

    def note() -> None:
        at.append(time.perf_counter())
        asked.set()

    with scripted("anthropic", [Say("Here.", first=note)]) as model:
        began = time.perf_counter()
        words = [sys.executable, "-c", PROGRAM, model.url, str(Path(HERE) / "echo_stdio.py"), str(live), dead]
        subprocess.run(words, check=True, timeout=120)
    assert asked.is_set()
    return at[0] - began
