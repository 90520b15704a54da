"""Toolcrib with a book that forgets: `python bench/without_book.py up --port 0`. Only to see what the book costs.

Entries are taken and dropped, and nobody waits for a disk; everything else is as it is.
"""

from __future__ import annotations

import sys

from toolcrib.audit.entry import AuditEntry
from toolcrib.audit.log import AuditLog
from toolcrib.cli.main import main


def forget(_: AuditLog, __: AuditEntry) -> None: ...


async def at_once(_: AuditLog) -> None: ...


AuditLog.note = forget  # type: ignore[method-assign]
AuditLog.kept = at_once  # type: ignore[method-assign]

if __name__ == "__main__":
    sys.exit(main())
