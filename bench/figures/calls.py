"""A call: direct, through the bare forwarder, through Toolcrib.

In: settings. Out: p50, p95, rate and CPU for each upstream transport, pair of eras and number of callers,
and what Toolcrib adds to p50 against what the forwarder adds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

from messages import LEGACY, MODERN
from report import Cell, Figure, median, rounded
from rounds import DIRECT, FORWARDER, TOOLCRIB, Settings, Side, interleave, load, opened, progress, sides_of
from targets import SERVER, Target, Upstream, direct, forwarder, http_echo, toolcrib

PAIRS = ((MODERN, MODERN), (LEGACY, LEGACY), (MODERN, LEGACY))
CALLS_OF_CALLERS = {1: 1000, 16: 4000, 64: 8000}


def measure(settings: Settings) -> Figure:
    figure = Figure(
        name="calls",
        title="tools/call of a small echo, closed loop",
        keys=("upstream", "client → server", "callers", "way"),
        values=("p50 ms", "p95 ms", "calls/s", "CPU ms", "added p50 ms", "times forwarder"),
        notes=(
            "The echo is trusted to be read-only; `governed` has what a change costs.",
            "added p50: over direct, median of the rounds' differences.",
            "times forwarder: Toolcrib's added p50 divided by the forwarder's.",
            "CPU: of the forwarder's or daemon's own process, per call. direct speaks the server's era.",
        ),
    )
    for transport in ("stdio", "http"):
        for client_era, server_era in PAIRS:
            with _upstream(transport, server_era) as upstream:
                _case(settings, figure, client_era, upstream)
    return figure


def _upstream(transport: str, era: str) -> AbstractContextManager[Upstream]:
    return http_echo(era) if transport == "http" else nullcontext(Upstream(era=era))


def _case(settings: Settings, figure: Figure, client_era: str, upstream: Upstream) -> None:
    case = (upstream.transport, f"{client_era} → {upstream.era}")
    progress(f"calls: {case[0]}, {case[1]}")
    with ways(settings, upstream) as up:
        for callers, calls in CALLS_OF_CALLERS.items():

            def one(side: Side, target: Target, callers: int = callers, calls: int = calls) -> dict[str, float]:
                era = upstream.era if side.name == DIRECT else client_era
                return load(target, era, "echo", callers=callers, calls=settings.size(calls), seconds=15)

            sides = sides_of(up)
            interleave(sides, settings.rounds, one)
            _rows(figure, (*case, callers), sides)


@contextlib.contextmanager
def ways(settings: Settings, upstream: Upstream) -> Iterator[dict[str, Target | str]]:
    """The three ways to one upstream, up together."""
    servers = {SERVER: upstream.entry}
    with opened(
        {
            DIRECT: lambda: nullcontext(direct(upstream)),
            FORWARDER: lambda: forwarder(upstream),
            TOOLCRIB: lambda: toolcrib(settings.command, servers, trusted=True),
        }
    ) as up:
        yield up


def _rows(figure: Figure, keys: tuple[Cell, ...], sides: list[Side]) -> None:
    straight = next(side for side in sides if side.name == DIRECT)
    added = {side.name: added_p50(side, straight) for side in sides}
    floor = added[FORWARDER]
    for side in sides:
        if side.reason:
            figure.add_not_measured((*keys, side.name), side.reason)
            continue
        more = added[side.name]
        ratio = more / floor if side.name == TOOLCRIB and more is not None and floor and floor > 0 else None
        figure.add(
            (*keys, side.name),
            {
                "p50 ms": rounded(median(side.values("p50_ms"))),
                "p95 ms": rounded(median(side.values("p95_ms"))),
                "calls/s": rounded(median(side.values("calls_per_s"))),
                "CPU ms": rounded(median(side.values("cpu_ms"))),
                "added p50 ms": rounded(more),
                "times forwarder": rounded(ratio),
            },
        )


def added_p50(side: Side, straight: Side) -> float | None:
    if side is straight or side.reason or straight.reason:
        return None
    pairs = zip(side.values("p50_ms"), straight.values("p50_ms"), strict=True)
    return median(through - without for through, without in pairs)
