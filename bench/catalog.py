"""What a large catalog costs: `python bench/catalog.py [--json FILE]`.

In: nothing. Out: one table on stdout: milliseconds to build the catalog of 5,000 tools from what their servers listed,
and to suggest names for an unknown one, to an agent that may use all tools or few of them; and the same as a ratio to
decoding those definitions once, measured in the same run in interleaved rounds.
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
from toolcrib.config.model import NameStyle
from toolcrib.errors import UnknownTool
from toolcrib.policy import Permission
from toolcrib.policy.profile import Profile
from toolcrib.policy.rule import rule_from

ROUNDS = 7
SERVERS = 20
TOOLS = 250
NEAR = "server3_tol_3_17"
"""Resembles all 5,000 names."""
SCHEMA = {"type": "object", "properties": {f"p{n}": {"type": "string", "description": "x" * 40} for n in range(6)}}


def listings() -> dict[str, tuple[bytes, ...]]:
    def definition(name: str) -> bytes:
        return json.dumps({"name": name, "description": "One of many.", "inputSchema": SCHEMA}).encode()

    return {f"server{s}": tuple(definition(f"tool_{s}_{n}") for n in range(TOOLS)) for s in range(SERVERS)}


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter_ns()
    work()
    return (time.perf_counter_ns() - began) / 1e6


def permission(*patterns: str) -> Permission:
    rules = tuple(rule_from({"allow": pattern}, where="bench") for pattern in patterns)
    return Permission(Profile(name="bench", rules=rules))


def suggest(catalog: Catalog, name: str, to: Permission) -> list[str]:
    try:
        catalog.find(name, style=NameStyle.SERVER, shown=to.shows)
    except UnknownTool as unknown:
        return list(unknown.data["nearest"])
    raise AssertionError(f"{name} is known")


def measure() -> Figure:
    listed = listings()
    first = Catalog.build(listed, version=1, limit=GATEWAY_LIMIT)
    everything, few = permission("*"), permission("server3:tool_3_1*", "server9:tool_9_99")
    for warm in (everything, few):
        assert suggest(first, NEAR, warm)
    works: dict[str, Callable[[], object]] = {
        "decode the definitions": lambda: [msgspec.json.decode(raw) for raws in listed.values() for raw in raws],
        "build from nothing": lambda: Catalog.build(listed, version=1, limit=GATEWAY_LIMIT),
        "build again, nothing changed": lambda: Catalog.build(listed, version=2, limit=GATEWAY_LIMIT, previous=first),
        "suggest names, to all": lambda: suggest(first, NEAR, everything),
        "suggest names, to few": lambda: suggest(first, NEAR, few),
        "suggest names, none near": lambda: suggest(first, "read_the_contents_of_a_page", few),
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
    parser = argparse.ArgumentParser(prog="bench/catalog.py", description="What a large catalog costs.")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the results there as well")
    options = parser.parse_args()
    figure = measure()
    print(figure.as_text())
    if options.json:
        options.json.write_text(json.dumps(figure.as_json(), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
