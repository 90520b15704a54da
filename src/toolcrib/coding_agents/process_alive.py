"""Checks whether a recorded process is still running.

In: a process id, and optionally its start time. Out: whether that same process is alive; its id may have been reused. A
zombie counts as ended.
"""

from __future__ import annotations

import os
from pathlib import Path

_PROC_STAT = Path("/proc/self/stat")


def process_started_at(pid: int) -> float | None:
    """The start time in clock ticks since boot; None if the process has ended or the time is unknown."""
    try:
        # The name before the last bracket may contain anything.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return None if fields[0] == "Z" else float(fields[19])
    except (OSError, IndexError, ValueError):
        return None


def is_same_process(pid: int, since: float) -> bool:
    """Without /proc, any process with this id counts."""
    return process_started_at(pid) == since if _PROC_STAT.exists() else process_exists(pid)


def process_exists(pid: int) -> bool:
    if _PROC_STAT.exists():
        return process_started_at(pid) is not None
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
