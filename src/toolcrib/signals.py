"""Signals and limits that a process of ours inherits and hands on.

Signals may come ignored or blocked, as from `nohup` or a shell that starts us in the background. In: the words of a
program, or the signals that end us. Out: words that start it with default signals; the signals to listen for. Used
wherever a process is started with `subprocess` or asyncio's own loop, and by our own processes.

The daemon has a connection per client and pipes per server, so it raises its limit of open files; what it starts
gets the inherited one, since some programs walk through all numbers below the limit.
"""

from __future__ import annotations

import contextlib
import resource
import signal
import sys
from collections.abc import Sequence

_RESTORED = {signal.SIGPIPE, signal.SIGXFSZ}
"""Ignored by Python itself, and restored by `subprocess`."""
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
    """For a process of ours: an ignored SIGCHLD would lose exit codes, and a blocked SIGTERM could not end us."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def with_default_signals(words: Sequence[str]) -> list[str]:
    """The words that start this program with no signal ignored or blocked, whatever we inherited.

    What we inherited belongs to the program that uses us, so it stays as it is, and no Python may run between fork and
    exec beside threads: a launcher comes first, but only where a signal is ignored or blocked. uvloop needs no words of
    ours, since libuv sets the defaults itself.
    """
    ignored = (one for one in signal.valid_signals() - _RESTORED if signal.getsignal(one) is signal.SIG_IGN)
    if any(ignored) or signal.pthread_sigmask(signal.SIG_BLOCK, ()):
        return [sys.executable, "-I", "-S", "-c", _LAUNCHER, *words]
    return list(words)


def ending_signals() -> list[signal.Signals]:
    """The signals that end a process of ours in order.

    SIGINT or SIGHUP that we inherited as ignored stays ignored. SIGTERM always ends us.
    """
    chosen = [one for one in (signal.SIGINT, signal.SIGHUP) if signal.getsignal(one) is not signal.SIG_IGN]
    return [*chosen, signal.SIGTERM]


_ENOUGH = 65_536
_inherited: tuple[int, int] | None = None


def open_file_limit() -> int:
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _ENOUGH if soft == resource.RLIM_INFINITY else soft


def raise_open_file_limit() -> None:
    """Raises the soft limit as far as the hard one lets it."""
    global _inherited  # noqa: PLW0603 - the limit is the process's, too
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if open_file_limit() >= wanted:
        return
    # macOS has a limit of its own below the hard one.
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        _inherited = soft, hard


def restore_open_file_limit(pid: int = 0) -> None:
    """For a child: in it between fork and exec, or from here once it runs."""
    if _inherited is None:
        return
    if not pid:
        resource.setrlimit(resource.RLIMIT_NOFILE, _inherited)
    elif sys.platform == "linux":
        with contextlib.suppress(OSError):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, _inherited)
