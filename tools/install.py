"""Runs `pip install` and shows its progress in one line per stage; `make` uses it.

In: a title and the arguments for `pip install`. Out: pip's exit code. On a terminal the line is overwritten as pip
moves on. If pip fails, its whole output follows.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator

PIP = (sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--constraint=constraints.txt")


def stages(lines: Iterator[str]) -> Iterator[str]:
    """A short text for each line of pip's output that starts something new."""
    found = 0
    for line in lines:
        if match := re.match(r"Collecting ([\w.-]+)", line):
            found += 1
            yield f"fetching {match[1]} ({found})"
        elif line.startswith("Installing collected packages: "):
            yield f"installing {line.count(',') + 1} packages; this is the slowest part"


def main() -> int:
    title, *arguments = sys.argv[1:]
    started, output = time.monotonic(), []

    def lines(process: subprocess.Popen[str]) -> Iterator[str]:
        for line in process.stdout or ():
            output.append(line)
            yield line.strip()

    live = sys.stdout.isatty()
    print(title, flush=True)
    with subprocess.Popen([*PIP, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        for stage in stages(lines(process)):
            print(f"\r\033[K  {stage}" if live else f"  {stage}", end="" if live else "\n", flush=True)
    print("\r\033[K" if live else "", end="")
    if process.returncode:
        print("".join(output), end="")
    else:
        print(f"  done in {time.monotonic() - started:.0f} s", flush=True)
    return process.returncode


if __name__ == "__main__":
    sys.exit(main())
