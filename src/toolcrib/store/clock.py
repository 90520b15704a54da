"""The time by which things expire and are deleted: one clock, which a wrong system clock cannot push.

In: the system's clock, and the one that counts what really passes (suspended or not). Out: `strict` for what may still
be used, `patient` for what may be deleted. Where the two clocks part by more than a day, things are deleted only as
fast as time passes, until a person confirms the system's clock. What was seen last is kept in the store.
`identity`, `audit` and `jobs` ask here; `core` keeps it and writes down when the clocks part.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from toolcrib.errors import StoreError
from toolcrib.events import AuditedChange
from toolcrib.store.database import Store
from toolcrib.store.schema import clock as clock_table
from toolcrib.store.schema import upsert

log = logging.getLogger(__name__)

DAY = 86_400.0
LONGEST_OFF = 7 * DAY
"""Seconds that a computer may have been off without a question: nothing counts them."""
_ABSORBED = 3600.0
"""Seconds by which the clocks may part between two starts, as when a computer's clock is set right."""
_LOOK_EVERY = 5.0
_KEEP_EVERY = 600.0


def _wall() -> float:
    return time.time()


def _passed() -> float:
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _boot() -> str:
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


class ExpiryClock:
    def __init__(self) -> None:
        self._boot = _boot()
        self.confirm()

    def confirm(self) -> None:
        """The system's clock is right."""
        self._began_at, self._began = _wall(), _passed()

    def steady(self) -> float:
        """What the system's clock would show if nobody had set it since we began."""
        return self._began_at + _passed() - self._began

    def strict(self) -> float:
        """For what may be used until some time: a clock that is set back makes nothing last longer."""
        return max(_wall(), self.steady())

    def patient(self) -> float:
        """For what is deleted after some time: after a jump, by the time that really passed."""
        return self.steady() if self.ahead else self.strict()

    @property
    def ahead(self) -> float:
        """Seconds by which the system's clock is ahead of the time that passed, or behind; 0 up to a day."""
        apart = _wall() - self.steady()
        return apart if abs(apart) > DAY else 0.0

    def resume(self, row: dict[str, Any] | None) -> None:
        """Goes on from what was seen last."""
        if row is None:
            return
        wall = _wall()
        if self._boot and row["boot"] == self._boot:
            expected = row["seen_at"] + _passed() - row["passed"]
            self._began_at = wall if abs(wall - expected) <= _ABSORBED else expected
        else:
            # Nobody knows how long the computer was off.
            self._began_at = wall if -_ABSORBED <= wall - row["seen_at"] <= LONGEST_OFF else row["seen_at"]

    def row(self) -> dict[str, Any]:
        return {"id": 1, "seen_at": self.steady(), "passed": _passed(), "boot": self._boot}


def load(connection: sa.Connection) -> dict[str, Any] | None:
    row = connection.execute(sa.select(clock_table)).mappings().first()
    return None if row is None else dict(row)


def keep(connection: sa.Connection, row: dict[str, Any]) -> None:
    upsert(connection, clock_table, [row])


async def watch(clock: ExpiryClock, store: Store, note: Callable[[AuditedChange], Awaitable[None]]) -> None:
    """Keeps what was seen, and writes down when the clocks part and when they agree again. Never ends."""
    parted, kept = False, 0.0
    while True:
        await asyncio.sleep(_LOOK_EVERY)
        try:
            if (ahead := clock.ahead) and not parted:
                log.warning("the clock jumped by %.0f s; nothing is deleted faster than time passes", ahead)
                await note(AuditedChange(what="clock jumped", detail={"seconds": round(ahead)}))
            elif parted and not ahead:
                await note(AuditedChange(what="clock agrees again"))
            parted = bool(ahead)
            if not kept or time.monotonic() - kept >= _KEEP_EVERY:
                await store.write(keep, clock.row())
                kept = time.monotonic()
        except StoreError as error:
            log.warning("the clock could not be kept: %s", error.text())
