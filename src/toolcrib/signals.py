"""Signals that we inherit as ignored or blocked, as from `nohup` or a shell that starts us in the background.

In: the words of a program, or the signals that end us. Out: words that start it with default signals; the signals to
listen for. Used wherever a process is started with `subprocess` or asyncio's own loop, and by our own processes.
"""

from __future__ import annotations

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


def begin() -> None:
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
