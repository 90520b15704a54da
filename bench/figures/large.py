"""Small calls while another client pulls 5 MB results through the same way.

In: settings. Out: p50 and p95 of the small calls without and with the large ones beside them. The puller is a
process of its own; the last column says how many large results came a second, as a standstill would flatter.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from figures.calls import ways
from messages import BIG_RESULT, MODERN
from report import Figure, median, rounded
from rounds import DIRECT, Settings, Side, finish, interleave, load, loading, progress, sides_of, wait_ready
from targets import Target, Upstream, http_echo


def measure(settings: Settings) -> Figure:
    figure = Figure(
        name="large",
        title="small calls (one caller) beside one client that pulls 5 MB results, modern era",
        keys=("upstream", "way"),
        values=("p50 ms alone", "p95 ms alone", "p50 ms beside", "p95 ms beside", "5 MB results/s"),
        notes=("there is no direct way for stdio: two clients cannot share one child's pipes.",),
    )
    for transport in ("stdio", "http"):
        progress(f"large: {transport}")
        opening: AbstractContextManager[Upstream] = (
            http_echo(MODERN) if transport == "http" else nullcontext(Upstream(era=MODERN))
        )

        def one(side: Side, target: Target) -> dict[str, float]:
            return _alone_and_beside(settings, target)

        with opening as upstream, ways(settings, upstream) as up:
            sides = [side for side in sides_of(up) if side.name != DIRECT or upstream.url]
            interleave(sides, settings.rounds, one)
        for side in sides:
            if side.reason:
                figure.add_not_measured((transport, side.name), side.reason)
            else:
                figure.add(
                    (transport, side.name), {column: rounded(median(side.values(column))) for column in figure.values}
                )
    return figure


def _alone_and_beside(settings: Settings, target: Target) -> dict[str, float]:
    calls = settings.size(300)
    alone = load(target, MODERN, "echo", calls=calls, seconds=10)
    with loading(target, MODERN, "big", size=BIG_RESULT, warmup=1, seconds=60, until_closed=True) as puller:
        wait_ready(puller)
        beside = load(target, MODERN, "echo", calls=calls, seconds=10)
        pulled = finish(puller)
    return {
        "p50 ms alone": alone["p50_ms"],
        "p95 ms alone": alone["p95_ms"],
        "p50 ms beside": beside["p50_ms"],
        "p95 ms beside": beside["p95_ms"],
        "5 MB results/s": pulled["calls_per_s"],
    }
