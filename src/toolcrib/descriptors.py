"""How many files and connections this process may have open.

In: nothing. Out: a higher limit for the daemon, which has a connection per client and pipes per server; the inherited
one for whatever it starts, since some programs walk through all numbers below the limit.
"""

from __future__ import annotations

import contextlib
import resource
import sys

_ENOUGH = 65_536
_inherited: tuple[int, int] | None = None


def open_limit() -> int:
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _ENOUGH if soft == resource.RLIM_INFINITY else soft


def raise_limit() -> None:
    """Raises the soft limit as far as the hard one lets it."""
    global _inherited  # noqa: PLW0603 - the limit is the process's, too
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if open_limit() >= wanted:
        return
    # macOS has a limit of its own below the hard one.
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        _inherited = soft, hard


def restore_limit(pid: int = 0) -> None:
    """For a child: in it between fork and exec, or from here once it runs."""
    if _inherited is None:
        return
    if not pid:
        resource.setrlimit(resource.RLIMIT_NOFILE, _inherited)
    elif sys.platform == "linux":
        with contextlib.suppress(OSError):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, _inherited)
