"""Whose job begins next.

In: the jobs that wait, in the order in which they came, and those that run. Out: one of those that wait. The owner's
come first; all others take turns, so that nobody waits for all that another has ordered.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

from toolcrib.daemon.jobs.job import Job
from toolcrib.policy import OWNER


class Turns:
    def __init__(self) -> None:
        self._begun: dict[str, int] = {}
        """By submitter: when one of its jobs was last begun, counted."""
        self._count = itertools.count(1)

    def next(self, waiting: Sequence[Job], running: Sequence[Job]) -> Job:
        busy = Counter(job.row.submitter for job in running)
        here = busy.keys() | {job.row.submitter for job in waiting}
        self._begun = {name: at for name, at in self._begun.items() if name in here}

        def rank(job: Job) -> tuple[bool, int, int]:
            name = job.row.submitter
            return name != OWNER.agent, busy[name], self._begun.get(name, 0)

        chosen = min(waiting, key=rank)
        self._begun[chosen.row.submitter] = next(self._count)
        return chosen
