"""Toolcrib with an audit log that keeps nothing: `python bench/without_audit.py up --port 0`.

Only to see what the audit log costs: entries are taken and dropped, and no call waits for a disk.
"""

from __future__ import annotations

import sys
from typing import Any

import toolcrib.core.services
from toolcrib.audit.entry import AuditEntry
from toolcrib.audit.log import AuditLog
from toolcrib.cli.main import main


class ForgetfulLog(AuditLog):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.flush = self._at_once

    def note(self, entry: AuditEntry) -> None: ...

    async def _at_once(self) -> None: ...


toolcrib.core.services.AuditLog = ForgetfulLog  # type: ignore[misc]

if __name__ == "__main__":
    sys.exit(main())
