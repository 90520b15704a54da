"""A daemon has its store alone: a lock that goes with its holder, also when that is killed.

In: a database's URL, and who wants it. Out: the lock held, or `AlreadyRunning` with the holder's name. Programs and
commands without a daemon share the lock; a daemon shares it with nobody, since it keeps in memory what they would
change. SQLite: a locked file beside the database, at its resolved path. PostgreSQL: an advisory lock of the one session
that writes, so that a session that is lost cannot write on without it. `database` holds it for as long as it is open.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from toolcrib.errors import AlreadyRunning, StoreError

_KIND = 0x746F6F6C
"""The first half of the advisory lock's key; the second is the schema that the tables are in."""
_LONGEST_LABEL = 63
"""Bytes of a session's name at PostgreSQL."""
_PATIENCE = 5.0
"""Seconds to wait for a holder that is no daemon: most commands are over by then."""


@dataclass(frozen=True, kw_only=True)
class StoreHolder:
    """Who has a store."""

    home: str
    daemon: bool
    host: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)

    @property
    def label(self) -> str:
        """For PostgreSQL's list of sessions, which both parties can read."""
        text = f"toolcrib {'daemon' if self.daemon else 'program'} {self.pid}@{self.host} {self.home}"
        return text.encode()[:_LONGEST_LABEL].decode(errors="ignore")


def lock_file(database: str, holder: StoreHolder) -> int:
    """The descriptor of the locked file beside a SQLite database. Closing it gives the lock back."""
    place = Path(os.path.realpath(database) + ".lock")
    place.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
    descriptor = os.open(place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def taken() -> AlreadyRunning | None:
        if _flocked(descriptor, fcntl.LOCK_EX if holder.daemon else fcntl.LOCK_SH):
            return None
        # What is shared is held by programs, and none of them has written its name there.
        programs = holder.daemon and _flocked(descriptor, fcntl.LOCK_SH)
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        return _refusal(str(place.with_suffix("")), **({} if programs else _noted(descriptor)))

    try:
        _patiently(taken)
        if holder.daemon:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps({**asdict(holder), "since": time.time()}).encode(), 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _flocked(descriptor: int, how: int) -> bool:
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _noted(descriptor: int) -> dict[str, Any]:
    """What the daemon wrote; only that it is one, if it has just taken the lock."""
    try:
        noted = json.loads(os.pread(descriptor, 4096, 0))
        at = datetime.fromtimestamp(noted["since"]).astimezone()
        return {"who": f"{noted['pid']}@{noted['host']} {noted['home']}", "daemon": True, "since": at}
    except (ValueError, KeyError, TypeError, OverflowError):
        return {"daemon": True}


class LockLost(StoreError):
    """The session was lost, and with it the lock, which somebody else has now: nothing is written beside them."""

    def __init__(self, message: str, *, by_another: bool) -> None:
        # Our own last session, which the server has not given up yet, is no reason to give up.
        self.by_another = by_another
        remedy = "End this one and start it again when the other is over." if by_another else "This passes by itself."
        super().__init__(message, remedy=remedy)


def lock_session(connection: sa.Connection, place: str, holder: StoreHolder, *, patient: bool) -> None:
    """Locks the store for this session of PostgreSQL, if it does not hold it yet."""
    if connection.info.get("toolcrib_lock"):
        return
    attempt = f"pg_try_advisory_lock{'' if holder.daemon else '_shared'}({_KIND}, hashtext(current_schema()))"

    def taken() -> AlreadyRunning | None:
        if connection.scalar(sa.text(f"select {attempt}")):
            return None
        row = connection.execute(
            sa.text(
                "select a.application_name, a.backend_start from pg_locks l join pg_stat_activity a using (pid) "
                "where l.locktype = 'advisory' and l.granted and l.classid = :kind and l.objsubid = 2 "
                "and l.database = (select oid from pg_database where datname = current_database()) "
                "and l.objid::bigint = hashtext(current_schema())::bigint & 4294967295"
            ),
            {"kind": _KIND},
        ).first()
        _, kind, who = (*(row[0] or "").split(" ", 2), "", "", "")[:3] if row else ("", "", "")
        return _refusal(place, who=who, daemon=kind == "daemon", since=row[1].astimezone() if row and row[1] else None)

    if patient:
        _patiently(taken)
    elif (refusal := taken()) is not None:
        raise LockLost(refusal.message, by_another=not holder.label.endswith(refusal.data["holder"] or "?"))
    connection.info["toolcrib_lock"] = True


def _patiently(taken: Callable[[], AlreadyRunning | None]) -> None:
    deadline = time.monotonic() + _PATIENCE
    while (refusal := taken()) is not None:
        if refusal.data["daemon"] or time.monotonic() > deadline:
            raise refusal
        time.sleep(0.02)


def _refusal(place: str, *, who: str = "", daemon: bool = False, since: datetime | None = None) -> AlreadyRunning:
    process, _, home = who.partition(" ")
    pid, _, host = process.partition("@")
    named = f" (pid {pid} on {host}, home {home}{f', since {since:%Y-%m-%d %H:%M:%S}' if since else ''})" if who else ""
    if daemon:
        message = f"A Toolcrib daemon has the database {place}{named}."
        remedy = (
            "Use that one, from its home: commands go through it, and a program with `Crib.connect()`; `toolcrib down` "
            "there ends it. Or use another database: `up --store FILE`, or TOOLCRIB_STORE for any command."
        )
    else:
        message = f"A program, or a command without a daemon, uses the database {place}{named}."
        remedy = "Try again when it is over. Beside a daemon a program uses `Crib.connect()`, not `Crib.from_config()`."
    return AlreadyRunning(message, remedy=remedy, data={"daemon": daemon, "holder": who})
