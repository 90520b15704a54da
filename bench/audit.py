"""What the audit log costs: `python bench/audit.py [--quick] [--json FILE]`.

In: nothing; it makes a SQLite audit log in a temporary folder. Out: a table on stdout. `note` is timed where a call
pays for it, on the event loop; the rest is the thread's that writes. On and off are measured in turn, in the same run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvloop

from report import Figure, rounded
from toolcrib.audit.entry import AuditEntry, EntryKind
from toolcrib.audit.log import AuditLog
from toolcrib.config.masking import Masker
from toolcrib.store.commits import GroupCommit
from toolcrib.store.database import Store

ARGUMENTS = b'{"path":"src/toolcrib/audit/log.py","options":{"deep":true,"lines":40}}'
RESULT = b'{"content":[{"type":"text","text":"' + b"some words of a result " * 40 + b'"}]}'
SECRETS = frozenset(f"secret-value-number-{number}" for number in range(20))


@asynccontextmanager
async def opened() -> AsyncIterator[AuditLog]:
    with tempfile.TemporaryDirectory(prefix="tcb-") as made:
        store = await Store.open(Path(made) / "audit.db")
        commits = GroupCommit(store)
        log = await AuditLog.open(store, commits, folder=Path(made), mask=Masker(SECRETS))
        # The first row makes the key, the first result loads the table of tokens.
        Call(log, 0).finish()
        await log.flush()
        try:
            yield log
        finally:
            await log.close()
            await commits.close()
            await store.close()


class Call:
    """The two entries of a call, as the door makes them."""

    def __init__(self, log: AuditLog, number: int) -> None:
        self._log = log
        self._id = f"1a2b-17c0ffee-{number}"
        log.note(self._entry(EntryKind.INTENT))

    def finish(self) -> None:
        entry = self._entry(EntryKind.OUTCOME)
        entry.outcome = "ok"
        entry.duration = 0.001
        entry.size = len(RESULT)
        entry.result = RESULT
        self._log.note(entry)

    def _entry(self, kind: EntryKind) -> AuditEntry:
        return AuditEntry(
            kind=kind,
            at=time.time(),
            call=self._id,
            agent="reviewer",
            session="s_0123456789",
            conversation="default",
            tool="files:read_file",
            server="files",
            decision="allow",
            rule="profile developer: allow *:*",
            mode="full",
            arguments=ARGUMENTS if kind is EntryKind.INTENT else None,
        )


async def hot_path(calls: int, rounds: int) -> Figure:
    """What the loop pays for each call, while the thread that writes is idle."""
    figure = Figure(name="note", title="µs of a call on the loop", keys=("audit log",), values=("µs",))
    taken: dict[str, list[float]] = {"off": [], "on": []}
    async with opened() as log:
        for _ in range(rounds):
            for name, work in (("off", _nothing), ("on", lambda number: Call(log, number).finish())):
                began = time.perf_counter()
                for number in range(calls):
                    work(number)
                taken[name].append((time.perf_counter() - began) / calls * 1e6)
                await log.flush()
    for name, values in taken.items():
        figure.add((name,), {"µs": rounded(statistics.median(values))})
    return figure


def _nothing(_: int) -> None:
    pass


async def grouped(calls: int, rounds: int) -> Figure:
    figure = Figure(
        name="grouped",
        title="entries written when nobody waits for a single one",
        keys=("entries",),
        values=("per second", "cpu µs each"),
    )
    rates, costs = [], []
    async with opened() as log:
        for _ in range(rounds):
            for number in range(calls):
                Call(log, number).finish()
            began, cpu = time.perf_counter(), time.process_time()
            await log.flush()
            rates.append(2 * calls / (time.perf_counter() - began))
            costs.append((time.process_time() - cpu) / (2 * calls) * 1e6)
    values = {"per second": rounded(statistics.median(rates)), "cpu µs each": rounded(statistics.median(costs))}
    figure.add((2 * calls,), values)
    return figure


async def kept(seconds: float) -> Figure:
    """Callers that each wait for their intent to be durable, as a call that may change something does."""
    figure = Figure(
        name="kept",
        title="ms until an entry is durable",
        keys=("waiters",),
        values=("p50 ms", "p95 ms", "entries per second"),
    )
    for waiters in (1, 16, 64):
        times: list[float] = []
        async with opened() as log:
            end = time.perf_counter() + seconds

            async def caller(log: AuditLog, end: float, times: list[float]) -> None:
                while (began := time.perf_counter()) < end:
                    Call(log, len(times))
                    await log.flush()
                    times.append(time.perf_counter() - began)

            await asyncio.gather(*(caller(log, end, times) for _ in range(waiters)))
        cuts = statistics.quantiles(times, n=20)
        values = {"p50 ms": cuts[9] * 1000, "p95 ms": cuts[18] * 1000, "entries per second": len(times) / seconds}
        figure.add((waiters,), {name: rounded(value) for name, value in values.items()})
    return figure


async def beside_others(seconds: float, rounds: int) -> Figure:
    """What the thread that writes takes from the loop: they share one interpreter."""
    figure = Figure(
        name="loop",
        title="µs for a turn of the loop, with a call noted after each",
        keys=("audit log",),
        values=("p50 µs", "p99 µs", "cpu µs per call"),
    )
    turns: dict[str, list[float]] = {"off": [], "on": []}
    costs: dict[str, list[float]] = {"off": [], "on": []}
    async with opened() as log:
        for _ in range(rounds):
            for name, work in (("off", _nothing), ("on", lambda number: Call(log, number).finish())):
                cpu, before = time.process_time(), len(turns[name])
                await _turns(seconds, work, turns[name])
                costs[name].append((time.process_time() - cpu) / (len(turns[name]) - before) * 1e6)
                await log.flush()
    for name, values in turns.items():
        cuts = statistics.quantiles(values, n=100)
        cost = statistics.median(costs[name])
        figure.add(
            (name,),
            {"p50 µs": rounded(cuts[49] * 1e6), "p99 µs": rounded(cuts[98] * 1e6), "cpu µs per call": rounded(cost)},
        )
    return figure


async def _turns(seconds: float, work: Callable[[int], None], times: list[float]) -> None:
    """A byte to ourselves, about a thousand times a second: what any request of a client waits for at least."""
    loop = asyncio.get_running_loop()
    here, there = socket.socketpair()
    with here, there:
        here.setblocking(False)
        there.setblocking(False)
        end = time.perf_counter() + seconds
        while (began := time.perf_counter()) < end:
            await loop.sock_sendall(here, b"x")
            await loop.sock_recv(there, 1)
            times.append(time.perf_counter() - began)
            work(len(times))
            await asyncio.sleep(0.001)


async def verified(entries: int) -> Figure:
    figure = Figure(
        name="verify", title="the whole chain", keys=("entries",), values=("per second", "turn p50 µs", "turn p99 µs")
    )
    async with opened() as log:
        for number in range(entries // 2):
            Call(log, number).finish()
            if number % 5000 == 0:
                await log.flush()
        await log.flush()
        turns: list[float] = []
        beside = asyncio.create_task(_turns(3600, _nothing, turns))
        began = time.perf_counter()
        report = await log.verify()
        took = time.perf_counter() - began
        beside.cancel()
        assert report.ok
    cuts = statistics.quantiles(turns, n=100)
    values = {"per second": report.entries / took, "turn p50 µs": cuts[49] * 1e6, "turn p99 µs": cuts[98] * 1e6}
    figure.add((report.entries,), {name: rounded(value) for name, value in values.items()})
    return figure


async def measure(quick: bool) -> list[Figure]:
    size = 10 if quick else 1
    figures = []
    for work in (
        hot_path(5000 // size, 7),
        grouped(10_000 // size, 5),
        kept(4.0 / size),
        beside_others(3.0 / size, 3),
        verified(100_000 // size),
    ):
        figures.append(await work)
        print("\n" + figures[-1].as_text(), flush=True)
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench/audit.py", description="What the audit log costs.")
    parser.add_argument("--quick", action="store_true", help="shows that it works, not how fast")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the results there as well")
    options = parser.parse_args()
    print(f"The audit log on SQLite, synchronous=FULL; {os.cpu_count()} cores, load before {os.getloadavg()[0]:.2f}")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        figures: list[Any] = runner.run(measure(options.quick))
    if options.json:
        options.json.write_text(json.dumps([figure.as_json() for figure in figures], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
