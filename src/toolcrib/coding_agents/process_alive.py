"""Whether a process that wrote down its number is still there.

In: a number, and perhaps when its process began. Out: whether that very process lives; another may have its number by
now. One that has ended but that nobody has waited for yet is gone for our purpose.
"""

from __future__ import annotations

import os
from pathlib import Path

_TELLS = Path("/proc/self/stat")


def process_started_at(pid: int) -> float | None:
    """When the process began, by the machine's own clock; None where there is none, or nobody can say."""
    try:
        # The name before the last bracket may hold anything.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return None if fields[0] == "Z" else float(fields[19])
    except (OSError, IndexError, ValueError):
        return None


def is_same_process(pid: int, since: float) -> bool:
    """Where there is no /proc, any process of this number counts."""
    return process_started_at(pid) == since if _TELLS.exists() else process_exists(pid)


def process_exists(pid: int) -> bool:
    if _TELLS.exists():
        return process_started_at(pid) is not None
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
