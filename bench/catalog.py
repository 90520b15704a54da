"""What building a large catalog costs: `python bench/catalog.py [--json FILE]`.

In: nothing. Out: one table on stdout: milliseconds to build the catalog of 5,000 tools from what their servers listed,
and the same as a ratio to decoding those definitions once, measured in the same run in interleaved rounds.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from report import Figure, median, rounded
from toolcrib.catalog.names import GATEWAY_LIMIT
from toolcrib.catalog.snapshot import Catalog

ROUNDS = 7
SERVERS = 20
TOOLS = 250
SCHEMA = {"type": "object", "properties": {f"p{n}": {"type": "string", "description": "x" * 40} for n in range(6)}}


def listings() -> dict[str, tuple[bytes, ...]]:
    def definition(name: str) -> bytes:
        return json.dumps({"name": name, "description": "One of many.", "inputSchema": SCHEMA}).encode()

    return {f"server{s}": tuple(definition(f"tool_{s}_{n}") for n in range(TOOLS)) for s in range(SERVERS)}


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter_ns()
    work()
    return (time.perf_counter_ns() - began) / 1e6


def measure() -> Figure:
    listed = listings()
    first = Catalog.build(listed, version=1, limit=GATEWAY_LIMIT)
    works: dict[str, Callable[[], object]] = {
        "decode the definitions": lambda: [msgspec.json.decode(raw) for raws in listed.values() for raw in raws],
        "build from nothing": lambda: Catalog.build(listed, version=1, limit=GATEWAY_LIMIT),
        "build again, nothing changed": lambda: Catalog.build(listed, version=2, limit=GATEWAY_LIMIT, previous=first),
    }
    found: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        for name, work in works.items():
            found.setdefault(name, []).append(timed(work))
    figure = Figure(
        name="catalog", title=f"a catalog of {SERVERS * TOOLS:,} tools", keys=("work",), values=("ms", "times")
    )
    base = median(found["decode the definitions"]) or 1.0
    for name, spent in found.items():
        middle = median(spent) or 0.0
        figure.add((name,), {"ms": rounded(middle), "times": rounded(middle / base)})
    return figure


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench/catalog.py", description="What building a large catalog costs.")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the results there as well")
    options = parser.parse_args()
    figure = measure()
    print(figure.as_text())
    if options.json:
        options.json.write_text(json.dumps(figure.as_json(), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
