"""The clock for expiry and deletion, which a wrong system clock cannot push forward.

In: the system clock, and a clock of elapsed time that also counts while the computer is suspended. Out: `strict` to
decide whether something is still valid, `patient` to decide whether something may be deleted. If the two clocks differ
by more than a day, rows are deleted only as fast as time elapses, until a person confirms the system clock. The last
reading is stored. `identity`, `audit` and `jobs` use this clock; `core` owns it and records when the clocks diverge.
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
MAX_OFF_SECONDS = 7 * DAY
"""How long a computer may have been off: no clock counts this time, so up to here the system clock is trusted."""
_TOLERATED_SECONDS = 3600.0
"""How far the clocks may differ between two starts, for example after the system clock was corrected."""
_CHECK_INTERVAL = 5.0
_SAVE_INTERVAL = 600.0


def _wall() -> float:
    return time.time()


def _elapsed() -> float:
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
        """Accept the system clock as right."""
        self._began_at, self._began = _wall(), _elapsed()

    def steady(self) -> float:
        """The time that the system clock would show if it had not been set since the start."""
        return self._began_at + _elapsed() - self._began

    def strict(self) -> float:
        """For expiry: setting the clock back does not extend anything."""
        return max(_wall(), self.steady())

    def patient(self) -> float:
        """For deletion: after a jump of the system clock, only the time that really elapsed counts."""
        return self.steady() if self.ahead else self.strict()

    @property
    def ahead(self) -> float:
        """Seconds by which the system clock is ahead of the elapsed time (negative: behind); 0 up to a day."""
        difference = _wall() - self.steady()
        return difference if abs(difference) > DAY else 0.0

    def resume(self, row: dict[str, Any] | None) -> None:
        """Continue from the last stored reading."""
        if row is None:
            return
        wall = _wall()
        if self._boot and row["boot"] == self._boot:
            expected = row["seen_at"] + _elapsed() - row["passed"]
            self._began_at = wall if abs(wall - expected) <= _TOLERATED_SECONDS else expected
        else:
            # There is no record of how long the computer was off.
            self._began_at = wall if -_TOLERATED_SECONDS <= wall - row["seen_at"] <= MAX_OFF_SECONDS else row["seen_at"]

    def row(self) -> dict[str, Any]:
        return {"id": 1, "seen_at": self.steady(), "passed": _elapsed(), "boot": self._boot}


def load(connection: sa.Connection) -> dict[str, Any] | None:
    row = connection.execute(sa.select(clock_table)).mappings().first()
    return None if row is None else dict(row)


def keep(connection: sa.Connection, row: dict[str, Any]) -> None:
    upsert(connection, clock_table, [row])


async def watch(clock: ExpiryClock, store: Store, note: Callable[[AuditedChange], Awaitable[None]]) -> None:
    """Stores the clock's reading, and audits when the clocks diverge and when they agree again. Never returns."""
    diverged, saved = False, 0.0
    while True:
        await asyncio.sleep(_CHECK_INTERVAL)
        try:
            if (ahead := clock.ahead) and not diverged:
                log.warning(
                    "the system clock jumped by %.0f s; until it agrees again or you run `toolcrib clock confirm`, "
                    "rows expire by elapsed time only",
                    ahead,
                )
                await note(AuditedChange(what="clock jumped", detail={"seconds": round(ahead)}))
            elif diverged and not ahead:
                await note(AuditedChange(what="clock agrees again"))
            diverged = bool(ahead)
            if not saved or time.monotonic() - saved >= _SAVE_INTERVAL:
                await store.write(keep, clock.row())
                saved = time.monotonic()
        except StoreError as error:
            log.warning("the clock's reading could not be stored: %s", error.text())
