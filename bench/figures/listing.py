"""tools/list with many tools, all pages: direct, through the bare forwarder, through Toolcrib.

In: settings. Out: p50, p95 and the size of a whole list at 500 and 5,000 tools of one stdio server, both eras.
"""

from __future__ import annotations

from figures.calls import ways
from messages import ERAS
from report import Figure, median, rounded
from rounds import Settings, Side, interleave, load, progress, sides_of
from targets import Target, Upstream

LISTS_OF_TOOLS = {500: 200, 5000: 40}


def measure(settings: Settings) -> Figure:
    figure = Figure(
        name="listing",
        title="tools/list, all pages, one caller, stdio upstream",
        keys=("tools", "era", "way"),
        values=("p50 ms", "p95 ms", "KB", "CPU ms"),
        notes=("the forwarder fetches the list from the upstream each time; nobody's time to parse it is counted.",),
    )
    for tools, lists in LISTS_OF_TOOLS.items():
        for era in ERAS:
            progress(f"listing: {tools} tools, {era}")

            def one(
                side: Side, target: Target, era: str = era, tools: int = tools, lists: int = lists
            ) -> dict[str, float]:
                return load(target, era, "list", calls=settings.size(lists), size=tools, warmup=2, seconds=15)

            with ways(settings, Upstream(era=era, tools=tools)) as up:
                sides = sides_of(up)
                interleave(sides, settings.rounds, one)
            for side in sides:
                if side.reason:
                    figure.add_not_measured((tools, era, side.name), side.reason)
                    continue
                figure.add(
                    (tools, era, side.name),
                    {
                        "p50 ms": rounded(median(side.values("p50_ms"))),
                        "p95 ms": rounded(median(side.values("p95_ms"))),
                        "KB": round((median(side.values("answer_bytes")) or 0) / 1000),
                        "CPU ms": rounded(median(side.values("cpu_ms"))),
                    },
                )
    return figure
