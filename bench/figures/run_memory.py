"""Processes and memory of ten runs at once with five servers: through Toolcrib, and each program with its own five.

In: the programs, how many runs. Out: PSS (each shared page counted by its share) from /proc, so Linux only, of every
process that works for these runs, while all of them wait in mid-run for a model that keeps them waiting.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from at_work import LIMIT, Place, Stall, Way, all_stand, model, place, servers, steps
from figures.memory import descendants, pss_rss
from parts import daemon, leftovers
from parts.runs import ProgramSetup
from report import Figure, rounded
from rounds import progress
from targets import NotMeasured

WAYS = (Way.DIRECT, Way.WARM)
REST = 1.0
NEEDED = 700
"""Megabytes that a run with servers of its own may take, generously."""
PROGRAMS, SERVERS, DAEMON, RUNS = "programs", "servers", "daemon", "toolcrib run"


def measure(people: Iterable[ProgramSetup], runs: int) -> list[Figure]:
    figure = Figure(
        name="memory",
        title=f"{runs} runs at once in one project, five stdio servers, all waiting in mid-run; PSS in MB",
        keys=("provider", "way"),
        values=(
            "processes",
            "of servers",
            "PSS",
            PROGRAMS,
            SERVERS,
            DAEMON,
            RUNS,
            "against direct",
            "all wait after s",
        ),
        notes=(
            "toolcrib run: the commands and their helpers. against direct: PSS divided by that of the programs that "
            "start the servers themselves.",
        ),
    )
    for person in people:
        direct: float | None = None
        for way in WAYS:
            progress(f"memory: {person.agent.name}, {way}")
            try:
                values = _together(person, way, runs)
            except (NotMeasured, TimeoutError) as reason:
                figure.add_not_measured((person.agent.name, way.value), reason)
                continue
            direct = values["PSS"] if way is Way.DIRECT else direct
            ratio = {} if direct is None else {"against direct": rounded(values["PSS"] / direct)}
            whole = {key: round(values[key]) for key in ("processes", "of servers")}
            sizes = {key: rounded(value) for key, value in values.items() if key not in whole}
            figure.add((person.agent.name, way.value), {**sizes, **whole, **ratio})
    return [figure]


def _together(person: ProgramSetup, way: Way, runs: int) -> dict[str, float]:
    if (free := _available()) < runs * NEEDED:
        raise NotMeasured(f"{free:.0f} MB of memory are free, {runs * NEEDED} may be needed")
    stall = Stall()
    planned = steps(way, stall)
    with contextlib.ExitStack() as stack:
        at = stack.enter_context(place(person, way))
        if way.is_ours:
            _run_once(at)
        watch, served = stack.enter_context(model(person, planned))
        at.use(served.url)
        began = time.monotonic()
        children = [stack.enter_context(at.running()) for _ in range(runs)]
        try:
            all_stand(watch, children)
            waited = time.monotonic() - began
            time.sleep(REST)
            values = {**_sizes(at), "all wait after s": waited}
        finally:
            stall.release()
        for child in children:
            out, err = child.communicate(timeout=LIMIT)
            if child.returncode:
                raise NotMeasured(f"{at.name}, {way}: exit {child.returncode}: {(err or out)[-300:]}")
    return values


def _run_once(at: Place) -> None:
    """So that Toolcrib knows the program's version: ten that all ask for it at once would be another figure."""
    with model(at.person, steps(at.way)) as (watch, served):
        at.use(served.url)
        at.run(watch)


def _sizes(at: Place) -> dict[str, float]:
    whose = {PROGRAMS: 0.0, SERVERS: 0.0, DAEMON: 0.0, RUNS: 0.0}
    count = of_servers = 0
    for process in _processes(at):
        try:
            size, _ = pss_rss(process.pid)
        except NotMeasured:
            # It has just ended.
            continue
        kind = _kind(process, at)
        whose[kind] += size
        count += 1
        of_servers += kind == SERVERS
    return {"processes": count, "of servers": of_servers, "PSS": sum(whose.values()), **whose}


def _processes(at: Place) -> Iterator[leftovers.Process]:
    """All below this one, and whatever has left the tree but names the place."""
    below = set(descendants(os.getpid()))
    for process in leftovers.living():
        if process.pid in below or process.names(at.home.path):
            yield process


def _kind(process: leftovers.Process, at: Place) -> str:
    entries = [[one["command"], *one["args"]] for one in servers(at.home.path).values()]
    if any(all(word in process.words for word in words[:2]) for words in entries):
        return SERVERS
    # Servers from PyPI live in environments of their own.
    if str(Path(sys.executable).parent) not in process.words:
        return PROGRAMS
    parent = leftovers.read(process.parent)
    family = f"{process.words} {parent.words if parent else ''}"
    return RUNS if f"{daemon.PROGRAM} run " in family else DAEMON


def _available() -> float:
    """Megabytes."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError as problem:
        raise NotMeasured(f"/proc/meminfo cannot be read: {problem.strerror}") from problem
    return next(float(line.split()[1]) / 1024 for line in lines if line.startswith("MemAvailable"))
