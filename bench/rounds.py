"""Rounds of load against several targets, interleaved, so that a slow minute of the machine hits all alike.

In: targets and jobs. Out: what each round of each target gave, or why it has no number. `figures/` build
their rows from it; `load.py` does the calling in a process of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from targets import HERE, NotMeasured, Target, ToolcribCommand, end

DIRECT, FORWARDER, TOOLCRIB = "direct", "forwarder", "toolcrib"
Values = dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Settings:
    command: ToolcribCommand
    quick: bool

    @property
    def rounds(self) -> int:
        return 2 if self.quick else 5

    def size(self, full: int) -> int:
        """A number of calls, a tenth of it in a quick run."""
        return max(full // 10, 10) if self.quick else full


@dataclass
class Side:
    """One target through all rounds of a comparison."""

    name: str
    target: Target | None = None
    rounds: list[Values] = field(default_factory=list)
    reason: str = ""
    """Why there is no number; set once, it stays."""

    def values(self, key: str) -> list[float]:
        return [values[key] for values in self.rounds if key in values]


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def opened(openings: dict[str, Callable[[], AbstractContextManager[Target]]]) -> Iterator[dict[str, Target | str]]:
    """All targets up together; one that cannot be started is there as its reason."""
    with ExitStack() as stack:
        up: dict[str, Target | str] = {}
        for name, opening in openings.items():
            try:
                up[name] = stack.enter_context(opening())
            except NotMeasured as reason:
                up[name] = str(reason)
                progress(f"  {name}: {reason}")
        yield up


def sides_of(up: dict[str, Target | str]) -> list[Side]:
    return [
        Side(name=name, reason=target) if isinstance(target, str) else Side(name=name, target=target)
        for name, target in up.items()
    ]


def interleave(sides: list[Side], count: int, measure: Callable[[Side, Target], Values]) -> None:
    for _ in range(count):
        for side in sides:
            if side.target is None or side.reason:
                continue
            try:
                side.rounds.append(measure(side, side.target))
            except NotMeasured as reason:
                side.reason = str(reason)
                progress(f"  {side.name}: {reason}")


def load(target: Target, era: str, operation: str, **fields: Any) -> Values:
    """One job to its end; with the target's CPU time per call where its process is known."""
    with loading(target, era, operation, **fields) as child:
        before = cpu_seconds(target.pid)
        result = finish(child)
        after = cpu_seconds(target.pid)
    if before is not None and after is not None:
        result["cpu_ms"] = (after - before) * 1000 / result["calls_in_all"]
    return result


@contextlib.contextmanager
def loading(target: Target, era: str, operation: str, **fields: Any) -> Iterator[subprocess.Popen[bytes]]:
    job = {
        "era": era,
        "operation": operation,
        "url": target.url,
        "argv": list(target.argv),
        "token": target.token,
        "prefix": target.prefix,
        **fields,
    }
    child = subprocess.Popen(
        [sys.executable, str(HERE / "load.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert child.stdin
        child.stdin.write(json.dumps(job).encode() + b"\n")
        child.stdin.flush()
        yield child
    finally:
        end(child)


def wait_ready(child: subprocess.Popen[bytes]) -> None:
    assert child.stdout
    line = child.stdout.readline()
    if line != b"ready\n":
        raise NotMeasured(json.loads(line)["failed"] if line else "the load client ended early")


def finish(child: subprocess.Popen[bytes]) -> Values:
    """Closes the load client's stdin and reads its result; the client bounds its own time."""
    out, _ = child.communicate()
    if child.returncode or not out:
        raise NotMeasured(f"the load client ended with code {child.returncode}")
    result: dict[str, Any] = json.loads(out.splitlines()[-1])
    if "failed" in result:
        raise NotMeasured(result["failed"])
    return result


def cpu_seconds(pid: int) -> float | None:
    """User and system time of one process so far, without its children."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
