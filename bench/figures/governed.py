"""What it costs to know who calls, to decide and to write it down.

In: settings. Out: a small echo through Toolcrib without an audit log, as a read, as a change (which waits for the
disk), and by an agent with a thousand rules; beside the bare forwarder, all in one run.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace

from figures.calls import added_p50
from messages import MODERN
from report import Figure, median, rounded
from rounds import DIRECT, FORWARDER, Settings, Side, interleave, load, opened, progress, sides_of
from targets import (
    HERE,
    SERVER,
    NotMeasured,
    Target,
    ToolcribCommand,
    Upstream,
    direct,
    forwarder,
    toolcrib,
    toolcrib_in_foreground,
)

CALLS_OF_CALLERS = {1: 1000, 16: 4000, 64: 8000}
RULES = 1000
NO_AUDIT, READ, CHANGE, AGENT = "no audit log", "read", "change", f"read, agent with {RULES} rules"


def measure(settings: Settings) -> Figure:
    figure = Figure(
        name="governed",
        title="tools/call of a small echo (stdio, modern → modern): what governing it costs",
        keys=("callers", "way"),
        values=("p50 ms", "p95 ms", "calls/s", "CPU ms", "added p50 ms", "times no audit log"),
        notes=(
            "no audit log: entries are made and dropped, no wait for a disk. read: a tool trusted to be read-only.",
            "change: its intent is on disk before it leaves, its outcome before the answer.",
            "added p50: over direct, median of the rounds' differences.",
        ),
    )
    progress("governed: starting")
    with ways(settings, Upstream(era=MODERN)) as up:
        for callers, calls in CALLS_OF_CALLERS.items():
            progress(f"governed: {callers} callers")

            def one(side: Side, target: Target, callers: int = callers, calls: int = calls) -> dict[str, float]:
                return load(target, MODERN, "echo", callers=callers, calls=settings.size(calls), seconds=15)

            sides = sides_of(up)
            interleave(sides, settings.rounds, one)
            _rows(figure, callers, sides)
    return figure


@contextlib.contextmanager
def ways(settings: Settings, upstream: Upstream) -> Iterator[dict[str, Target | str]]:
    servers = {SERVER: upstream.entry}

    @contextlib.contextmanager
    def agent() -> Iterator[Target]:
        with toolcrib(settings.command, servers, trusted=True) as target:
            yield _agent(settings.command, target)

    with opened(
        {
            DIRECT: lambda: nullcontext(direct(upstream)),
            FORWARDER: lambda: forwarder(upstream),
            NO_AUDIT: lambda: toolcrib_in_foreground(settings.command, [str(HERE / "without_audit.py")], servers),
            READ: lambda: toolcrib(settings.command, servers, trusted=True),
            CHANGE: lambda: toolcrib(settings.command, servers),
            AGENT: agent,
        }
    ) as up:
        yield up


def _run(command: ToolcribCommand, target: Target, *words: str) -> str:
    if target.home is None:
        raise NotMeasured("its home is not known")
    done = command.run(target.home, *words)
    if done.returncode:
        raise NotMeasured(f"`toolcrib {words[0]}` said {done.stderr.strip()[:160]}")
    return done.stdout


def _agent(command: ToolcribCommand, target: Target) -> Target:
    """An agent whose profile has many rules, of which one allows the tool."""
    rules = [{"allow": f"server{number}:tool_*"} for number in range(RULES - 1)]
    if target.home is None:
        raise NotMeasured("its home is not known")
    file = target.home / "profile.json"
    file.write_text(json.dumps({"rules": [*rules, {"allow": f"{SERVER}:*"}]}))
    _run(command, target, "profile", "edit", "many", "--file", str(file))
    minted = json.loads(_run(command, target, "agent", "add", "busy", "--profile", "many", "--json"))
    return replace(target, token=minted["token"])


def _rows(figure: Figure, callers: int, sides: list[Side]) -> None:
    straight = next(side for side in sides if side.name == DIRECT)
    added = {side.name: added_p50(side, straight) for side in sides}
    floor = added[NO_AUDIT]
    for side in sides:
        if side.reason:
            figure.add_not_measured((callers, side.name), side.reason)
            continue
        more = added[side.name]
        figure.add(
            (callers, side.name),
            {
                "p50 ms": rounded(median(side.values("p50_ms"))),
                "p95 ms": rounded(median(side.values("p95_ms"))),
                "calls/s": rounded(median(side.values("calls_per_s"))),
                "CPU ms": rounded(median(side.values("cpu_ms"))),
                "added p50 ms": rounded(more),
                "times no audit log": rounded(more / floor if more is not None and floor and floor > 0 else None),
            },
        )
