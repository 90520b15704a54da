"""Toolcrib with an audit log that keeps nothing: `python bench/without_audit.py up --port 0`.

Only to see what the audit log costs: entries are taken and dropped, and no call waits for a disk.
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
