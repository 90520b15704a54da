"""From the start of a run to the program's first request to its model, and to its end, per provider.

In: the programs, rounds. Out: the program alone, with five servers that it starts itself, and `toolcrib run` with the
same five behind a daemon that is up, and without a daemon. `at_work` runs them; `run_stages` looks into our share.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from at_work import Place, Ran, Watch, Way, model, place, steps
from parts.runs import ProgramSetup
from report import Cell, Figure, median, rounded
from rounds import progress
from targets import NotMeasured

WAYS = (Way.ALONE, Way.DIRECT, Way.WARM, Way.COLD)


def measure(people: Iterable[ProgramSetup], rounds: int) -> list[Figure]:
    figure = Figure(
        name="start",
        title="ms since exec, one call of a tool of one of five stdio servers",
        keys=("provider", "way"),
        values=("program starts", "first request", "added to alone", "against its own servers", "whole run"),
        notes=(
            "first request: as the scripted model saw it. added to alone: against the program alone.",
            "against its own servers: first request divided by that of the program that starts the five itself.",
            "whole run: to the exit of what was started; the program alone has no tool to call, so it calls none.",
        ),
    )
    for person in people:
        _measure_one(figure, person, rounds)
    return [figure]


def _measure_one(figure: Figure, person: ProgramSetup, rounds: int) -> None:
    name = person.agent.name
    found: dict[Way, list[Ran]] = {way: [] for way in WAYS}
    reasons: dict[Way, str] = {}
    with contextlib.ExitStack() as stack:
        ready: dict[Way, tuple[Place, Watch]] = {}
        for way in WAYS:
            progress(f"start: {name}, {way}")
            try:
                ready[way] = _opened(stack, person, way)
            except NotMeasured as reason:
                reasons[way] = str(reason)
        for number in range(rounds):
            progress(f"start: {name}, round {number + 1} of {rounds}")
            for way, (at, watch) in ready.items():
                if way not in reasons:
                    try:
                        found[way].append(at.run(watch))
                    except NotMeasured as reason:
                        reasons[way] = str(reason)
    medians = {way: _medians(ran) for way, ran in found.items() if ran and way not in reasons}
    for way in WAYS:
        if way in reasons:
            figure.add_not_measured((name, way.value), reasons[way])
        else:
            figure.add((name, way.value), _row(way, medians))


def _opened(stack: contextlib.ExitStack, person: ProgramSetup, way: Way) -> tuple[Place, Watch]:
    at = stack.enter_context(place(person, way))
    watch, served = stack.enter_context(model(person, steps(way)))
    at.use(served.url)
    # The first run of a home asks the program for its version, and fills the program's own caches.
    at.run(watch)
    return at, watch


def _medians(ran: list[Ran]) -> dict[str, float]:
    keys = ("program", "first_request", "whole")
    return {key: 1000 * (median(getattr(one, key) for one in ran) or 0) for key in keys}


def _row(way: Way, medians: dict[Way, dict[str, float]]) -> dict[str, Cell]:
    own = medians[way]
    alone, direct = medians.get(Way.ALONE), medians.get(Way.DIRECT)
    first = own["first_request"]
    return {
        "program starts": rounded(own["program"]),
        "first request": rounded(first),
        "added to alone": None if alone is None or way is Way.ALONE else rounded(first - alone["first_request"]),
        "against its own servers": None if direct is None else rounded(first / direct["first_request"]),
        "whole run": rounded(own["whole"]),
    }
