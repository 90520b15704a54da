"""What `run_agent` costs: `python bench/agent.py [--only imports|overhead|start] [--rounds N] [--json FILE]`.

In: the command line. Out: tables on stdout, and JSON if asked for. Models are scripted; everything is on loopback and
ended again. Each figure is measured side by side in interleaved rounds.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

from figures import agent_imports, agent_overhead, agent_start
from report import Figure
from run import machine

ROUNDS = 7
FIGURES: dict[str, Callable[[int], Figure]] = {
    "imports": agent_imports.measure,
    "overhead": agent_overhead.measure,
    "start": agent_start.measure,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench/agent.py", description="What run_agent costs.")
    parser.add_argument("--only", action="append", choices=list(FIGURES))
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"of each figure (default {ROUNDS})")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the results there as well")
    options = parser.parse_args()
    before = machine()
    print(f"run_agent · {before}", flush=True)
    figures = []
    for name in options.only or FIGURES:
        figures.append(FIGURES[name](options.rounds))
        print("\n" + figures[-1].as_text(), flush=True)
    if options.json:
        content = {"machine": before, "figures": [figure.as_json() for figure in figures]}
        options.json.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
