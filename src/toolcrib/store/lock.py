"""The store's lock: only one daemon uses a store. The lock ends with its holder, even if that is killed.

In: a database's URL and a `StoreHolder`. Out: the lock, or `AlreadyRunning` with the current holder's name. Programs
and commands without a daemon share the lock. A daemon holds it exclusively, since it caches rows in memory that others
could change. SQLite: a locked file next to the database, at its resolved path. PostgreSQL: an advisory lock of the only
session that writes, so that a lost session cannot keep writing. `database` holds it as long as it is open.
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
_MAX_LABEL_BYTES = 63
"""PostgreSQL's limit for a session's name."""
_PATIENCE = 5.0
"""Seconds to wait for a holder that is not a daemon: most commands end sooner."""


@dataclass(frozen=True, kw_only=True)
class StoreHolder:
    """The process that uses a store."""

    home: str
    daemon: bool
    host: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)

    @property
    def label(self) -> str:
        """Its name in PostgreSQL's list of sessions, which other processes can read."""
        text = f"toolcrib {'daemon' if self.daemon else 'program'} {self.pid}@{self.host} {self.home}"
        return text.encode()[:_MAX_LABEL_BYTES].decode(errors="ignore")


def lock_file(database: str, holder: StoreHolder) -> int:
    """Locks the file next to a SQLite database and returns its descriptor. Closing it releases the lock."""
    place = Path(os.path.realpath(database) + ".lock")
    place.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
    descriptor = os.open(place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def conflicting() -> AlreadyRunning | None:
        if _flocked(descriptor, fcntl.LOCK_EX if holder.daemon else fcntl.LOCK_SH):
            return None
        # A shared lock belongs to programs, and those don't write their names into the file.
        programs = holder.daemon and _flocked(descriptor, fcntl.LOCK_SH)
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        return _already_running(str(place.with_suffix("")), **({} if programs else _noted(descriptor)))

    try:
        _patiently(conflicting)
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
    """What the daemon wrote into the file. If it has only just taken the lock, just that it is a daemon."""
    try:
        noted = json.loads(os.pread(descriptor, 4096, 0))
        at = datetime.fromtimestamp(noted["since"]).astimezone()
        return {"who": f"{noted['pid']}@{noted['host']} {noted['home']}", "daemon": True, "since": at}
    except (ValueError, KeyError, TypeError, OverflowError):
        return {"daemon": True}


class LockLost(StoreError):
    """The session was lost, and with it the lock, which another process holds now: nothing more is written."""

    def __init__(self, message: str, *, by_another: bool) -> None:
        # Our own previous session, which the server has not ended yet, is only a temporary obstacle.
        self.by_another = by_another
        again = "Stop this process, and restart it when the other one has stopped."
        remedy = again if by_another else "Wait a moment: this is temporary."
        super().__init__(message, remedy=remedy)


def lock_session(connection: sa.Connection, place: str, holder: StoreHolder, *, patient: bool) -> None:
    """Locks the store for this PostgreSQL session, unless it already holds the lock."""
    if connection.info.get("toolcrib_lock"):
        return
    attempt = f"pg_try_advisory_lock{'' if holder.daemon else '_shared'}({_KIND}, hashtext(current_schema()))"

    def conflicting() -> AlreadyRunning | None:
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
        return _already_running(
            place, who=who, daemon=kind == "daemon", since=row[1].astimezone() if row and row[1] else None
        )

    if patient:
        _patiently(conflicting)
    elif (conflict := conflicting()) is not None:
        raise LockLost(conflict.message, by_another=not holder.label.endswith(conflict.data["holder"] or "?"))
    connection.info["toolcrib_lock"] = True


def _patiently(conflicting: Callable[[], AlreadyRunning | None]) -> None:
    deadline = time.monotonic() + _PATIENCE
    while (conflict := conflicting()) is not None:
        if conflict.data["daemon"] or time.monotonic() > deadline:
            raise conflict
        time.sleep(0.02)


def _already_running(
    place: str, *, who: str = "", daemon: bool = False, since: datetime | None = None
) -> AlreadyRunning:
    process, _, home = who.partition(" ")
    pid, _, host = process.partition("@")
    named = f" (pid {pid} on {host}, home {home}{f', since {since:%Y-%m-%d %H:%M:%S}' if since else ''})" if who else ""
    if daemon:
        message = f"A Toolcrib daemon is using the database {place}{named}."
        remedy = (
            "Use that daemon: from its home, commands go through it, and programs use `Crib.connect()`. Or stop it "
            "there with `toolcrib down`. Or use another database: `toolcrib up --store FILE`, or TOOLCRIB_STORE for "
            "any command."
        )
    else:
        message = f"A program, or a command without a daemon, is using the database {place}{named}."
        remedy = "Try again when it has ended. With a daemon, programs use `Crib.connect()`, not `Crib.from_config()`."
    return AlreadyRunning(message, remedy=remedy, data={"daemon": daemon, "holder": who})
