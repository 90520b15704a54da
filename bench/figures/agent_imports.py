"""How long imports take, each in a fresh interpreter, less what the bare interpreter takes in the same round."""

from __future__ import annotations

import subprocess
import sys
import time

from report import Figure, median, rounded

BARE = "python -c pass"
WAYS = {
    BARE: "pass",
    "import toolcrib": "import toolcrib",
    "from toolcrib import run_agent, AgentOptions": "from toolcrib import run_agent, AgentOptions",
    "from toolcrib import Crib": "from toolcrib import Crib",
    **{
        f"what a run with {name} loads": "import toolcrib.agent_loop.run, toolcrib.agent_loop.loop, "
        f"toolcrib.agent_loop.models.{name}"
        for name in ("anthropic", "openai", "google")
    },
    "plain: pydantic_ai and its anthropic model": "import pydantic_ai, pydantic_ai.models.anthropic",
}


def measure(rounds: int) -> Figure:
    figure = Figure(
        name="imports",
        title="imports, milliseconds beyond a bare interpreter",
        keys=("what",),
        values=("ms",),
        notes=("the last four are loaded while the servers connect, not before",),
    )
    taken: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(rounds + 1):
        for way, code in WAYS.items():
            began = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True)
            taken[way].append((time.perf_counter() - began) * 1000)
    # The first round fills the caches of files.
    bare = median(taken[BARE][1:]) or 0.0
    for way, times in taken.items():
        figure.add([way], {"ms": rounded((median(times[1:]) or 0.0) - (0.0 if way == BARE else bare))})
    return figure
