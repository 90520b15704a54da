"""Where the time goes that `toolcrib run` takes before the program starts, with a daemon that is up.

In: a program, rounds. Out: the stages one by one, each measured by itself through the same functions that a run uses:
starting Python, the command line, finding the program, the lease, files and log, starting the program.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path

from at_work import Place, Way, place
from parts import daemon
from parts.runs import ProgramSetup
from report import Figure, median, rounded
from rounds import progress
from toolcrib.coding_agents.clients import client_named
from toolcrib.coding_agents.program import find_program
from toolcrib.coding_agents.program_process import RunningProgram
from toolcrib.coding_agents.run_preparation import RunRequest, prepare_run
from toolcrib.coding_agents.run_result import OnMcpFailure

COMMAND_LINE = "import toolcrib.cli.app"
IMPORTS = f"{COMMAND_LINE}, toolcrib.cli.run_view, toolcrib.coding_agents.code_agent"
NOBODY = ("run", "nobody", "Stages.")
"""Read as any run is, and refused right after that."""
HEAVY = ("pydantic", "sqlalchemy", "mcp", "uvicorn", "httpx", "aiosqlite")
"""Packages that a run has no use for: the daemon does that work."""


def measure(person: ProgramSetup, rounds: int) -> list[Figure]:
    progress("stages")
    figure = Figure(
        name="stages",
        title=f"ms before {person.agent.name} starts, daemon up with five servers",
        keys=("stage",),
        values=("median", "in all"),
    )
    with place(person, Way.WARM) as at:
        at.use("http://127.0.0.1:9")
        taken: dict[str, list[float]] = {}
        # The first, which asks the program for its version, is not counted. All are short, so there are more of them.
        for number in range(5 * rounds + 1):
            for stage, seconds in _once(at).items():
                taken.setdefault(stage, []).extend([seconds] if number else [])
        needless = _needless(at)
    total = 0.0
    for stage, several in taken.items():
        middle = 1000 * (median(several) or 0)
        total += middle
        figure.add((stage,), {"median": rounded(middle), "in all": rounded(total)})
    if needless:
        figure.add((f"of these, for nothing: {', '.join(needless)}",), {})
    return [figure]


def _once(at: Place) -> dict[str, float]:
    # In the place's environment, which lets Python keep what it compiled.
    bare = _seconds(at, sys.executable, "-c", "pass")
    command_line = _seconds(at, str(daemon.PROGRAM), "--version")
    for_run = _seconds(at, sys.executable, "-c", IMPORTS) - _seconds(at, sys.executable, "-c", COMMAND_LINE)
    nobody = _seconds(at, str(daemon.PROGRAM), *NOBODY)
    found, all_prepared, started = asyncio.run(_inside(at))
    return {
        "python starts and ends": bare,
        "the command line, all commands": command_line - bare,
        "imports of a run": for_run,
        "the words are read (typer)": nobody - command_line - for_run,
        "find the program": found,
        "lease, configuration, environment, log": all_prepared - found,
        "helper that ends it, exec": started,
    }


async def _inside(at: Place) -> tuple[float, float, float]:
    """To find the program; all that is prepared, that included; and to start something, in this process."""
    client, workdir, environ = client_named(at.name), at.home.project, at.environ
    began = time.perf_counter()
    find_program(client, environ, workdir)
    found = time.perf_counter() - began
    order = RunRequest(
        client=client,
        prompt="Stages.",
        workdir=workdir,
        profile="developer",
        timeout=60,
        on_mcp_failure=OnMcpFailure.STOP,
        environ=environ,
    )
    began = time.perf_counter()
    async with prepare_run(order):
        all_prepared = time.perf_counter() - began
    began = time.perf_counter()
    running = await RunningProgram.start(("/bin/true",), environ={}, cwd=Path("/"), stdin="")
    started = time.perf_counter() - began
    await running.stop()
    return found, all_prepared, started


def _seconds(at: Place, *words: str) -> float:
    began = time.perf_counter()
    subprocess.run(
        words, env=at.environ, cwd=at.home.project, stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    return time.perf_counter() - began


def _needless(at: Place) -> list[str]:
    code = f"import sys\n{IMPORTS}\ntoolcrib.cli.app.run({list(NOBODY)})\nprint(*{{*{HEAVY}}} & {{*sys.modules}})"
    words = [sys.executable, "-c", code]
    return subprocess.run(words, env=at.environ, capture_output=True, text=True, check=True).stdout.split()
