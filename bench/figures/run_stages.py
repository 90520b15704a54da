"""Where the time goes that `toolcrib run` takes before the program starts, with a daemon that is up.

In: a program, rounds. Out: the stages one by one, each measured by itself through the same functions that a run uses:
starting Python, the imports, finding the program, the lease, files and log, starting the program.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from at_work import Place, Way, place
from parts import daemon
from parts.runs import Person
from report import Figure, median, rounded
from rounds import progress
from toolcrib.coding_agents.clients import client_named
from toolcrib.coding_agents.program import find
from toolcrib.config.paths import Paths
from toolcrib.config.project import project_of
from toolcrib.runs.house import Wanted, open_house
from toolcrib.runs.preparing import RunOrder, prepared
from toolcrib.runs.process import Running
from toolcrib.runs.result import OnMcpFailure

IMPORTS = "import toolcrib.cli.app, toolcrib.cli.run_view, toolcrib.runs.agent"
HEAVY = ("pydantic", "sqlalchemy", "mcp", "uvicorn", "httpx", "aiosqlite")
"""Packages that a run has no use for: the daemon does that work."""


def measure(person: Person, rounds: int) -> list[Figure]:
    progress("stages")
    figure = Figure(
        name="stages",
        title=f"ms before {person.agent.name} starts, daemon up with five servers",
        keys=("stage",),
        values=("median", "in all"),
        notes=(f"Imported for a run although it has no use for it: {', '.join(_needless()) or 'nothing'}.",),
    )
    with place(person, Way.WARM) as at:
        at.use("http://127.0.0.1:9")
        taken: dict[str, list[float]] = {}
        # The first, which asks the program for its version, is not counted.
        for number in range(rounds + 1):
            for stage, seconds in _once(at).items():
                taken.setdefault(stage, []).extend([seconds] if number else [])
    total = 0.0
    for stage, several in taken.items():
        middle = 1000 * (median(several) or 0)
        total += middle
        figure.add((stage,), {"median": rounded(middle), "in all": rounded(total)})
    return [figure]


def _once(at: Place) -> dict[str, float]:
    bare = _timed(lambda: _python("pass"))
    command_line = _timed(lambda: subprocess.run([str(daemon.PROGRAM), "--version"], check=True, capture_output=True))
    imports = _timed(lambda: _python(IMPORTS))
    found, leased, all_prepared, started = asyncio.run(_inside(at))
    return {
        "python starts and ends": bare,
        "imports of the command line": command_line - bare,
        "further imports of a run": imports - command_line,
        "find the program": found,
        "reach the daemon, lease": leased,
        "configuration, environment, log": all_prepared - found - leased,
        "helper that ends it, exec": started,
    }


async def _inside(at: Place) -> tuple[float, float, float, float]:
    """Find, lease, all that is prepared, and start, in this process."""
    client, workdir, environ = client_named(at.name), at.home.project, at.environ
    began = time.perf_counter()
    find(client, environ, workdir)
    found = time.perf_counter() - began
    wanted = Wanted(client=at.name, profile="developer", workdir=workdir, conversation="bench", lives=60)
    began = time.perf_counter()
    async with open_house(Paths.of_user(environ), project_of(workdir), environ) as house:
        await house.lease(wanted)
        leased = time.perf_counter() - began
    order = RunOrder(
        client=client,
        prompt="Stages.",
        workdir=workdir,
        profile="developer",
        timeout=60,
        on_mcp_failure=OnMcpFailure.STOP,
        environ=environ,
    )
    began = time.perf_counter()
    async with prepared(order):
        all_prepared = time.perf_counter() - began
    began = time.perf_counter()
    running = await Running.start(("/bin/true",), environ={}, cwd=Path("/"), stdin="")
    started = time.perf_counter() - began
    await running.stop()
    return found, leased, all_prepared, started


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def _needless() -> list[str]:
    return _python(f"import sys\n{IMPORTS}\nprint(*[name for name in {HEAVY} if name in sys.modules])").split()
