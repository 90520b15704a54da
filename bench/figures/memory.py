"""Memory of the daemon and of its whole tree, idle and with ten stdio servers, after a short rest.

In: settings. Out: PSS (each shared page counted by its share) and RSS in MB, from /proc, so Linux only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from messages import MODERN
from report import Figure, median, rounded
from rounds import FORWARDER, TOOLCRIB, Settings, interleave, opened, progress, sides_of
from targets import SERVER, NotMeasured, Target, Upstream, forwarder, toolcrib

SERVERS = (0, 10)
REST = 1.0
Openings = dict[str, Callable[[], AbstractContextManager[Target]]]


def measure(settings: Settings) -> Figure:
    figure = Figure(
        name="memory",
        title=f"MB, {REST:.0f} s after the first answer",
        keys=("stdio servers", "what"),
        values=("process PSS", "process RSS", "tree PSS", "tree RSS", "processes"),
        notes=("tree: the process with all its descendants; with servers, one call was answered before.",),
    )
    for count in SERVERS:
        progress(f"memory: {count} servers")
        rounds: dict[str, list[dict[str, float]]] = {FORWARDER: [], TOOLCRIB: []}
        reasons: dict[str, str] = {}
        for _ in range(settings.rounds):
            with opened(_openings(settings, count)) as up:
                time.sleep(REST)
                sides = sides_of(up)
                interleave(sides, 1, lambda _, target: _memory(target))
            for side in sides:
                rounds[side.name] += side.rounds
                if side.reason:
                    reasons[side.name] = side.reason
        for name, found in rounds.items():
            if name in reasons:
                figure.add_not_measured((count, name), reasons[name])
            else:
                values = {column: rounded(median(one[column] for one in found)) for column in figure.values}
                figure.add((count, name), {**values, "processes": round(values["processes"] or 0)})
    return figure


def _openings(settings: Settings, count: int) -> Openings:
    upstream = Upstream(era=MODERN)
    # The first keeps the name that the opening calls; the others are as many more of the same.
    names = [SERVER, *(f"{SERVER}{number}" for number in range(1, count))][:count]
    servers = dict.fromkeys(names, upstream.entry)
    return {
        FORWARDER: lambda: forwarder(upstream, copies=count),
        TOOLCRIB: lambda: toolcrib(settings.command, servers, called=SERVER if count else ""),
    }


def _memory(target: Target) -> dict[str, float]:
    tree = [target.pid, *descendants(target.pid)]
    sizes = [pss_rss(pid) for pid in tree]
    return {
        "process PSS": sizes[0][0],
        "process RSS": sizes[0][1],
        "tree PSS": sum(pss for pss, _ in sizes),
        "tree RSS": sum(rss for _, rss in sizes),
        "processes": float(len(tree)),
    }


def descendants(pid: int) -> Iterator[int]:
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(entry.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == pid:
            child = int(entry.parent.name)
            yield child
            yield from descendants(child)


def pss_rss(pid: int) -> tuple[float, float]:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError as problem:
        raise NotMeasured(f"/proc/{pid}/smaps_rollup cannot be read: {problem.strerror}") from problem
    kilobytes = {line.split(":")[0]: float(line.split()[1]) for line in lines[1:]}
    return kilobytes["Pss"] / 1024, kilobytes["Rss"] / 1024
