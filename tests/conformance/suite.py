"""Runs the official conformance suite against a URL and compares its failures with the expected ones.

In: a `Leg` (a package and a revision) and a URL. Out: a `SuiteVerdict` with unexpected failures, and expected ones that
passed. One YAML file per revision beside this file lists the expected ones: `scenario` or `scenario:check`.
"""

from __future__ import annotations

import enum
import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from parts import fleet

HERE = Path(__file__).parent
LIMIT = 240.0
_STAMP = re.compile(r"-\d{4}-\d\d-\d\dT[\d-]+Z$")


class Leg(enum.Enum):
    """A package of the suite and the arguments that choose its scenarios."""

    LEGACY_SUITE = ("conformance-legacy", "2025-11-25", ())
    LEGACY = ("conformance", "2025-11-25", ("--requirements", "2025-11-25"))
    MODERN = ("conformance", "2026-07-28", ("--requirements", "2026-07-28"))

    def __init__(self, part: str, revision: str, words: tuple[str, ...]) -> None:
        self.part = part
        self.revision = revision
        self.words = words


@dataclass(frozen=True, kw_only=True)
class Failure:
    scenario: str
    check: str
    message: str
    details: str

    @property
    def names(self) -> frozenset[str]:
        return frozenset({self.scenario, f"{self.scenario}:{self.check}"})

    def __str__(self) -> str:
        return f"{self.scenario}:{self.check}\n    {self.message}\n    {self.details}"


@dataclass(frozen=True, kw_only=True)
class SuiteVerdict:
    scenarios: frozenset[str]
    """Those that were run."""
    checks: int
    failures: tuple[Failure, ...]
    unexpected: tuple[Failure, ...]
    stale: tuple[str, ...]
    output: str

    @property
    def good(self) -> bool:
        return bool(self.scenarios) and not self.unexpected and not self.stale

    def __str__(self) -> str:
        lines = [f"{len(self.scenarios)} scenarios, {self.checks} checks, {len(self.failures)} failed"]
        lines += [f"  unexpected: {failure}" for failure in self.unexpected]
        lines += [f"  expected to fail, but passed (remove it from the list): {name}" for name in self.stale]
        if not self.scenarios:
            lines.append(self.output[-4000:])
        return "\n".join(lines)


def expected_failures(file: str) -> frozenset[str]:
    listed: dict[str, Any] = yaml.safe_load((HERE / file).read_text()) or {}
    return frozenset(listed.get("server") or ())


def run(leg: Leg, url: str, results: Path, expected: frozenset[str]) -> SuiteVerdict:
    node = fleet.command("node")[0]
    script = fleet.command(leg.part)[-1]
    words = [node, script, "server", "--url", url, "--output-dir", str(results), *leg.words]
    done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT, check=False, cwd=results)
    return judge(results, expected, done.stdout + done.stderr)


def run_client(leg: Leg, results: Path, command: str, *words: str) -> SuiteVerdict:
    """The scenarios for clients, in which a warning is a failure. The last argument of `command` is a server's URL."""
    whole = [fleet.command("node")[0], fleet.command(leg.part)[-1], "client", "--command", command, *words]
    whole += ["--output-dir", str(results), "--timeout", str(round(LIMIT * 1000))]
    done = subprocess.run(whole, capture_output=True, text=True, timeout=LIMIT, check=False, cwd=results)
    return judge(results, frozenset(), done.stdout + done.stderr, bad=frozenset({"FAILURE", "WARNING"}))


def judge(
    results: Path, expected: frozenset[str], output: str, *, bad: frozenset[str] = frozenset({"FAILURE"})
) -> SuiteVerdict:
    failures: list[Failure] = []
    ran: set[str] = set()
    checks = 0
    for file in sorted(results.rglob("checks.json")):
        scenario = _STAMP.sub("", str(file.parent.relative_to(results))).removeprefix("server-")
        ran.add(scenario)
        found: list[dict[str, Any]] = json.loads(file.read_text())
        checks += len(found)
        failures += [_failure(scenario, check) for check in found if check["status"] in bad]
    failed = {name for failure in failures for name in failure.names}
    return SuiteVerdict(
        scenarios=frozenset(ran),
        checks=checks,
        failures=tuple(failures),
        unexpected=tuple(failure for failure in failures if not failure.names & expected),
        stale=tuple(sorted(name for name in expected - failed if name.partition(":")[0] in ran)),
        output=output,
    )


def _failure(scenario: str, check: dict[str, Any]) -> Failure:
    return Failure(
        scenario=scenario,
        check=check["id"],
        message=str(check.get("errorMessage") or check.get("description")),
        details=json.dumps(check.get("details", {}))[:1200],
    )
