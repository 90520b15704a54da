"""Wall time of the commands that people and clients wait for, beside a bare Python start.

In: settings. Out: milliseconds of `toolcrib --help`, `toolcrib status` without a daemon, and `toolcrib stdio` from
exec until `initialize` is answered through it by a daemon that already runs.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from messages import MODERN, body, initialize_params
from report import Figure, median, rounded
from rounds import Settings, Side, interleave, opened, progress
from targets import SERVER, NotMeasured, Target, Upstream, process, toolcrib

ROUNDS = 10
LIMIT = 30.0
PYTHON, HELP, STATUS, BRIDGE = (
    "python -c pass",
    "toolcrib --help",
    "toolcrib status, no daemon",
    "toolcrib stdio → initialize",
)


def measure(settings: Settings) -> Figure:
    figure = Figure(
        name="commands",
        title=f"wall time, median of {ROUNDS}",
        keys=("command",),
        values=("ms", "over python ms"),
    )
    progress("commands")
    upstream = Upstream(era=MODERN)
    with (
        tempfile.TemporaryDirectory(prefix="tcb-") as empty,
        opened({BRIDGE: lambda: toolcrib(settings.command, {SERVER: upstream.entry})}) as up,
    ):
        daemon = up[BRIDGE]
        home = Path(empty)
        timings: dict[str, Callable[[], float]] = {
            PYTHON: lambda: _wall(settings, home, [sys.executable, "-c", "pass"], says="", good=(0,)),
            HELP: lambda: _wall(settings, home, [settings.command.executable, "--help"], says="sage", good=(0,)),
            STATUS: lambda: _wall(settings, home, [settings.command.executable, "status"], says=" ", good=range(64)),
            BRIDGE: lambda: _bridge(settings, daemon),
        }
        sides = [Side(name=name, target=Target()) for name in timings]
        interleave(sides, ROUNDS, lambda side, _: {"ms": timings[side.name]() * 1000})
    bare = median(sides[0].values("ms"))
    for side in sides:
        took = median(side.values("ms"))
        if side.reason or took is None or bare is None:
            figure.add_not_measured((side.name,), side.reason)
        else:
            figure.add((side.name,), {"ms": rounded(took), "over python ms": rounded(took - bare)})
    return figure


def _wall(settings: Settings, home: Path, argv: list[str], *, says: str, good: range | tuple[int, ...]) -> float:
    """The time of one run; what it says and its exit code show that it did its work."""
    begun = time.perf_counter()
    try:
        done = subprocess.run(
            argv,
            env=settings.command.environment(home),
            cwd=home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise NotMeasured(problem) from problem
    took = time.perf_counter() - begun
    said = done.stdout + done.stderr
    if done.returncode not in good or says not in said or "Traceback" in said:
        raise NotMeasured(f"code {done.returncode}, said {said[-100:]!r}")
    return took


def _bridge(settings: Settings, daemon: Target | str) -> float:
    if isinstance(daemon, str):
        raise NotMeasured(daemon)
    assert daemon.home
    argv = [settings.command.executable, "stdio"]
    begun = time.perf_counter()
    with process(
        argv,
        env=settings.command.environment(daemon.home),
        cwd=daemon.home,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as child:
        assert child.stdin
        assert child.stdout
        child.stdin.write(body("initialize", initialize_params()) + b"\n")
        child.stdin.flush()
        answer = b""
        while not answer.endswith(b"\n"):
            left = begun + LIMIT - time.perf_counter()
            if left <= 0 or not select.select([child.stdout], [], [], left)[0]:
                raise NotMeasured(f"initialize not answered within {LIMIT:.0f} s")
            part = os.read(child.stdout.fileno(), 65536)
            if not part:
                raise NotMeasured("toolcrib stdio ended without an answer")
            answer += part
        took = time.perf_counter() - begun
    if b'"protocolVersion"' not in answer:
        raise NotMeasured(f"initialize was answered with {answer[:120]!r}")
    return took
