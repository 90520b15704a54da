"""What a run of a real coding agent costs: `python bench/runs.py [--only start|stages|memory|tokens] [--rounds N]`.

In: the command line; the programs and servers are those that the tests install. Out: tables on stdout, progress on
stderr, and JSON if asked for. Models are scripted, everything is on loopback, in homes of its own, and ended again,
also on Ctrl-C. README.md says what the figures mean.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# The scripted models and the pinned programs are parts of the tests.
sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))

from figures import run_memory, run_stages, run_start, run_tokens
from parts import fleet, leftovers
from parts.runs import ALL
from report import Figure
from run import machine
from targets import NotMeasured

ROUNDS = 3
RUNS = 10


def main() -> int:
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    people = [ALL[name] for name in options.provider or ALL]
    figures: dict[str, Callable[[], list[Figure]]] = {
        "start": lambda: run_start.measure(people, options.rounds),
        "stages": lambda: run_stages.measure(people[0], options.rounds),
        "memory": lambda: run_memory.measure(people, options.runs),
        "tokens": lambda: run_tokens.measure(people),
    }
    before, began, made = machine(), time.monotonic(), []
    found_there = leftovers.look()
    print(heading(options, before), flush=True)
    try:
        for name in options.only or figures:
            try:
                for figure in figures[name]():
                    made.append(figure)
                    print("\n" + figure.as_text(), flush=True)
            except NotMeasured as reason:
                print(f"\n{name}: not measured: {reason}", flush=True)
    except KeyboardInterrupt:
        print("stopped; everything that was started is ended", file=sys.stderr)
        return 130
    finally:
        if options.json:
            content = {"machine": before, "figures": [figure.as_json() for figure in made]}
            options.json.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    print(f"\n{time.monotonic() - began:.0f} s in all; load after {os.getloadavg()[0]:.1f}")
    for process in leftovers.left_behind(found_there, None):
        print(f"left behind, and ended now: {process.pid} {process.words[:120]}", file=sys.stderr)
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench/runs.py", description="What a run of a real coding agent costs.")
    parser.add_argument("--only", action="append", choices=("start", "stages", "memory", "tokens"))
    parser.add_argument("--provider", action="append", choices=list(ALL), help="only this one; may be repeated")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"of start and stages (default {ROUNDS})")
    parser.add_argument("--runs", type=int, default=RUNS, help=f"at once, for memory (default {RUNS})")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the results there as well")
    return parser.parse_args()


def heading(options: argparse.Namespace, here: dict[str, Any]) -> str:
    versions = ", ".join(
        f"{name} {next(iter(fleet.pins()[name].packages.values()))}" for name in options.provider or ALL
    )
    return (
        f"Runs of {versions}: medians of {options.rounds} interleaved rounds; "
        f"Python {here['python']}, {here['system']}, "
        f"{here['cores']} cores, load before {here['load'][0]}"
    )


if __name__ == "__main__":
    sys.exit(main())
