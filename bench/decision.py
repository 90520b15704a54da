"""What a decision costs with many rules: `python bench/decision.py [--json FILE]`.

In: nothing. Out: one table on stdout: nanoseconds per decision, and the same as a ratio to a permission with one rule,
measured in the same run in interleaved rounds. "cold" is the first decision about a tool, "warm" any later one.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from report import Figure, median, rounded
from toolcrib.catalog.snapshot import Catalog
from toolcrib.catalog.tool import Tool
from toolcrib.policy import Permission, Profile, profile_from

HERE = Path.cwd()
ROUNDS = 11
TOOLS = 500
WARM = 100_000
CONDITIONED = 5_000
UNDER = {"when": {"path": {"under": "src"}}}
ONE_OF = {"when": {"mode": {"one_of": ["read", "list"]}}}
ARGUMENTS = {"path": "src/a/b.py", "mode": "read"}


def tools() -> tuple[Tool, ...]:
    definitions = tuple(json.dumps({"name": f"tool_{number}"}).encode() for number in range(TOOLS))
    return Catalog.build({"files": definitions}, version=1, folders={"files": str(HERE)}).tools


def profiles() -> dict[str, Profile]:
    last = {"allow": "files:*"}
    named = [{"deny": f"server_{number % 50}:tool_{number}"} for number in range(999)]
    globbed = [{"deny": f"*:other_{number}_*"} for number in range(999)]
    made = {
        "1 rule": [last],
        "1,000 rules that name tools": [*named, last],
        "1,000 globs over all servers": [*globbed, last],
        "1 rule, one_of": [{**last, **ONE_OF}],
        "1,000 rules, one_of on one": [*named, {**last, **ONE_OF}],
        "1 rule, path under": [{**last, **UNDER}],
        "1,000 rules, path under on one": [*named, {**last, **UNDER}],
    }
    return {name: profile_from(f"p{number}", {"rules": rules}) for number, (name, rules) in enumerate(made.items())}


def fresh(profile: Profile) -> Permission:
    return Permission(profile, agent="bench", workdir=HERE)


def cold(profile: Profile, known: tuple[Tool, ...]) -> float:
    """The first decision about each of many tools, the making of the permission's index included."""
    permitted = fresh(profile)
    return timed(lambda: [permitted.decide(tool, ARGUMENTS) for tool in known]) / len(known)


def warm(profile: Profile, known: tuple[Tool, ...]) -> float:
    permitted, tool = fresh(profile), known[-1]
    permitted.decide(tool, ARGUMENTS)
    count = CONDITIONED if "when" in str(profile.rules[-1]) else WARM

    def work() -> None:
        decide = permitted.decide
        for _ in range(count):
            decide(tool, ARGUMENTS)

    return timed(work) / count


def made(profile: Profile, _: tuple[Tool, ...]) -> float:
    """A change of permissions: the agent's permission is made anew."""
    return timed(lambda: [fresh(profile) for _ in range(20)]) / 20


MEASURES: dict[str, Callable[[Profile, tuple[Tool, ...]], float]] = {"cold": cold, "warm": warm, "made": made}


def timed(work: Callable[[], Any]) -> float:
    """Nanoseconds."""
    gc.collect()
    gc.disable()
    began = time.perf_counter_ns()
    work()
    spent = time.perf_counter_ns() - began
    gc.enable()
    return float(spent)


def measure() -> Figure:
    figure = Figure(
        name="decision",
        title="one decision, and one permission made",
        keys=("rules",),
        values=tuple(f"{name} {unit}" for name in MEASURES for unit in ("ns", "times")),
        notes=(
            f"cold: mean of the first decisions about {TOOLS} tools; warm: one tool again; made: a new permission.",
            "times: beside the permission with one rule.",
        ),
    )
    known, all_profiles = tools(), profiles()
    found: dict[tuple[str, str], list[float]] = {}
    for _ in range(ROUNDS):
        for profile_name, profile in all_profiles.items():
            for name, one in MEASURES.items():
                found.setdefault((profile_name, name), []).append(one(profile, known))
    middle = {key: median(values) or 0.0 for key, values in found.items()}
    for profile_name in all_profiles:
        row = {}
        for name in MEASURES:
            spent = middle[profile_name, name]
            row[f"{name} ns"] = rounded(spent)
            row[f"{name} times"] = rounded(spent / middle["1 rule", name])
        figure.add((profile_name,), row)
    return figure


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench/decision.py", description="What a decision costs with many rules.")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the results there as well")
    options = parser.parse_args()
    figure = measure()
    print(figure.as_text())
    if options.json:
        options.json.write_text(json.dumps(figure.as_json(), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
