"""Signal settings and open-file limits that our processes inherit and pass on.

A process may inherit ignored or blocked signals, for example from `nohup` or a background job of a shell. In: a
program's command line, or the signals that stop us. Out: a command line that starts it with default signals; the
signals to listen for. Used where `subprocess` or asyncio's own loop starts a process, and by our own processes.

The daemon needs a connection per client and pipes per server, so it raises its open-file limit. Its children get the
inherited limit, because some programs loop over every descriptor below it.
"""

from __future__ import annotations

import contextlib
import resource
import signal
import sys
from collections.abc import Sequence

_RESTORED = {signal.SIGPIPE, signal.SIGXFSZ}
"""Python ignores these; `subprocess` restores them."""
_LAUNCHER = """\
import _signal, os, sys
for number in _signal.valid_signals() - {_signal.SIGKILL, _signal.SIGSTOP}:
    _signal.signal(number, _signal.SIG_DFL)
_signal.pthread_sigmask(_signal.SIG_SETMASK, ())
try:
    os.execvp(sys.argv[1], sys.argv[1:])
except OSError as error:
    sys.exit(f"{sys.argv[1]} cannot be started: {error.strerror}")
"""


def reset_signals() -> None:
    """Undoes inherited settings: an ignored SIGCHLD loses exit codes, and a blocked SIGTERM cannot stop us."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def with_default_signals(command: Sequence[str]) -> list[str]:
    """Returns a command line that starts the program with no signal ignored or blocked.

    Our own settings belong to the program that uses us, so they stay as they are. Python code must not run between
    fork and exec in a process with threads, so a launcher resets the signals, but only if one is ignored or blocked.
    uvloop doesn't need this: libuv sets the defaults itself.
    """
    ignored = (number for number in signal.valid_signals() - _RESTORED if signal.getsignal(number) is signal.SIG_IGN)
    if any(ignored) or signal.pthread_sigmask(signal.SIG_BLOCK, ()):
        return [sys.executable, "-I", "-S", "-c", _LAUNCHER, *command]
    return list(command)


def ending_signals() -> list[signal.Signals]:
    """The signals that stop our process cleanly.

    SIGINT and SIGHUP stay ignored if we inherited them ignored. SIGTERM always stops us.
    """
    chosen = [number for number in (signal.SIGINT, signal.SIGHUP) if signal.getsignal(number) is not signal.SIG_IGN]
    return [*chosen, signal.SIGTERM]


_MAX_OPEN_FILES = 65_536
_inherited: tuple[int, int] | None = None


def open_file_limit() -> int:
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _MAX_OPEN_FILES if soft == resource.RLIM_INFINITY else soft


def raise_open_file_limit() -> None:
    """Raises the soft limit as far as the hard limit allows."""
    global _inherited  # noqa: PLW0603 - the limit is process-wide, too
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _MAX_OPEN_FILES)
    if open_file_limit() >= wanted:
        return
    # macOS has another limit below the hard one.
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        _inherited = soft, hard


def restore_open_file_limit(pid: int = 0) -> None:
    """Call it in a child between fork and exec, or with the pid of a child that runs."""
    if _inherited is None:
        return
    if not pid:
        resource.setrlimit(resource.RLIMIT_NOFILE, _inherited)
    elif sys.platform == "linux":
        with contextlib.suppress(OSError):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, _inherited)
