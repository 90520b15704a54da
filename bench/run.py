"""The benchmarks of Toolcrib, side by side in one run: `python bench/run.py [--quick] [--only NAME] [--json FILE]`.

In: the command line. Out: one table for each figure on stdout, progress on stderr, and JSON if asked for. Everything
runs on loopback, in homes of its own, and is ended again, also on Ctrl-C. README.md says what the figures mean.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from figures import calls, commands, governed, large, listing, memory, start
from report import Figure
from rounds import Settings
from targets import NotMeasured, ToolcribCommand

FIGURES: dict[str, Callable[[Settings], Figure]] = {
    "calls": calls.measure,
    "governed": governed.measure,
    "listing": listing.measure,
    "start": start.measure,
    "memory": memory.measure,
    "commands": commands.measure,
    "large": large.measure,
}


def main() -> int:
    options = parse(sys.argv[1:])
    # A TERM ends what was started just as Ctrl-C does: both unwind the context managers.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    settings = Settings(command=ToolcribCommand(executable=options.toolcrib), quick=options.quick)
    figures: list[Figure] = []
    before = machine()
    print(heading(settings, before), flush=True)
    try:
        for name in options.only or FIGURES:
            try:
                figures.append(FIGURES[name](settings))
                print("\n" + figures[-1].as_text(), flush=True)
            except NotMeasured as reason:
                print(f"\n{name}: not measured: {reason}", flush=True)
    except KeyboardInterrupt:
        print("stopped; everything that was started is ended", file=sys.stderr)
        return 130
    finally:
        if options.json:
            write_json(options.json, settings, before, figures)
    return 0


def parse(words: list[str]) -> argparse.Namespace:
    beside = Path(sys.executable).parent / "toolcrib"
    found = str(beside) if beside.exists() else shutil.which("toolcrib") or "toolcrib"
    parser = argparse.ArgumentParser(prog="bench/run.py", description="Toolcrib's benchmarks, side by side in one run.")
    parser.add_argument("--quick", action="store_true", help="few calls and rounds: shows that it works, not how fast")
    parser.add_argument("--only", action="append", choices=list(FIGURES), help="only this figure; may be repeated")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the results there as well")
    parser.add_argument(
        "--toolcrib", metavar="PATH", default=found, help="the toolcrib command (default: beside python)"
    )
    return parser.parse_args(words)


def machine() -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "load": [round(value, 2) for value in os.getloadavg()],
    }


def heading(settings: Settings, here: dict[str, Any]) -> str:
    size = "quick run, not for quoting" if settings.quick else f"medians of {settings.rounds} interleaved rounds"
    return (
        f"Toolcrib benchmarks: {size}; Python {here['python']}, {here['system']}, {here['cores']} cores, "
        f"load before {here['load'][0]}"
    )


def write_json(file: Path, settings: Settings, before: dict[str, Any], figures: list[Figure]) -> None:
    content = {
        "quick": settings.quick,
        "rounds": settings.rounds,
        "machine": before,
        "load_after": machine()["load"],
        "figures": [figure.as_json() for figure in figures],
    }
    file.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    sys.exit(main())
