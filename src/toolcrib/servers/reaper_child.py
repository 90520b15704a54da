"""The reaper's own processes: one waits until its parent is gone, then ends what the parent left behind; a guard stands
above each program that is started (Linux).

A guard is the subreaper of its program: whatever that starts stays below the guard, also if it leaves its session and
group and clears its environment. When the program has ended, the guard ends the rest, then ends as the program did.

In: on stdin, lines `+ <group>`, `- <group>` and `f <mark> <path in hex>`; as argument, the marker that the parent's
children carry. Out: nothing. When stdin ends, the files that are still the same, the groups that are still listed and
every process with the marker are ended. Runs as a plain script without site-packages, so it imports nothing of ours;
`reaper` imports its functions.
"""

import contextlib
import os
import resource
import signal
import sys
import time

GRACE = 1.0
"""Seconds between asking and forcing."""
GUARD = "guard"
LAST_WORDS = 0.5
"""Seconds that what a program left behind may take to end by itself."""
ASKED = 0.3
"""Seconds to end when asked."""
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def _all_processes() -> list[int]:
    """Empty where there is no /proc."""
    try:
        return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]  # noqa: PTH208 - pathlib costs start-up time
    except OSError:
        return []


def _told_of(process: int, what: str) -> bytes:
    """What a file in /proc says of a process; nothing where it is gone or not ours."""
    try:
        with open(f"/proc/{process}/{what}", "rb") as file:  # noqa: PTH123
            return file.read()
    except OSError:
        return b""


def marked_processes(marker: bytes) -> list[int]:
    """Processes of ours whose environment has an entry that begins with the marker. Empty where there is no /proc."""
    others = [process for process in _all_processes() if process != os.getpid()]
    return [process for process in others if b"\0" + marker in b"\0" + _told_of(process, "environ")]


def descendants_of(guard: int) -> list[int]:
    """All processes that descend from this one. Empty where there is no /proc."""
    children: dict[int, list[int]] = {}
    for process in _all_processes():
        if stat := _told_of(process, "stat"):
            state, parent = stat.rpartition(b")")[2].split()[:2]
            if state not in (b"Z", b"X"):
                children.setdefault(int(parent), []).append(process)
    found = children.get(guard, [])
    for one in found:
        found += children.get(one, ())
    return found


def _is_guard(process: int) -> bool:
    return b"\0" + os.fsencode(__file__) + b"\0" + GUARD.encode() + b"\0" in _told_of(process, "cmdline")


def _signal_all(processes: list[int], number: int) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process, number)


def signal_group(group: int, number: int) -> bool:
    """False if the group has nobody left. A guard is not killed before all that is below it."""
    if number == signal.SIGKILL and _is_guard(group) and (left := descendants_of(group)):
        _signal_all(left, number)
        return True
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        # macOS says so of a group that holds only zombies; nothing can be done about another user's either.
        return False
    return True


def kill_marked(marker: bytes) -> int:
    """Ends every marked process; returns how many were found. Looks again, for one may be starting another."""
    total = 0
    for _ in range(20):
        found = marked_processes(marker)
        if not found:
            break
        total += len(found)
        _signal_all(found, signal.SIGKILL)
        time.sleep(0.01)
    return total


def file_mark(path: str) -> str:
    """What tells a file from a later one at the same path. Raises OSError."""
    # The time as well: file systems give the number of a removed file to the next one.
    state = os.lstat(path)
    return f"{state.st_dev}:{state.st_ino}:{state.st_mtime_ns}"


def remove_files(marks: dict[str, str]) -> None:
    for path, mark in marks.items():
        with contextlib.suppress(OSError):
            if file_mark(path) == mark:
                os.unlink(path)  # noqa: PTH108


def end_groups(groups: set[int]) -> None:
    left = {group for group in groups if signal_group(group, signal.SIGTERM)}
    deadline = time.monotonic() + GRACE
    while left and time.monotonic() < deadline:
        time.sleep(0.02)
        left = {group for group in left if signal_group(group, 0)}
    for group in left:
        kill_group(group)


def kill_group(group: int) -> None:
    """Looks again, for one may be starting another."""
    deadline = time.monotonic() + GRACE
    while signal_group(group, signal.SIGKILL) and time.monotonic() < deadline:
        time.sleep(0.01)


def guard(words: list[str]) -> None:
    import ctypes  # noqa: PLC0415 - the daemon imports this module too, and needs no ctypes

    prctl, me = ctypes.CDLL(None).prctl, os.getpid()
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signals = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    program = os.fork()
    if program == 0:
        # Whoever gives up while we start kills the guard alone.
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != me:
            os._exit(126)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        try:
            os.execvpe(words[0], words, _given())  # noqa: S606
        except OSError as error:
            os.write(2, f"{words[0]} cannot be started: {error.strerror}\n".encode(errors="replace"))
        os._exit(126)
    # What ends the group is for the program. Its pipes are not ours, or nobody would see it close them.
    for number in signals:
        signal.signal(number, signal.SIG_IGN)
    empty = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(empty, standard)
    status = _waited_for(program)
    _end_rest()
    if os.WIFSIGNALED(status):
        ended_by = os.WTERMSIG(status)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError):
            signal.signal(ended_by, signal.SIG_DFL)
        os.kill(os.getpid(), ended_by)
    os._exit(os.WEXITSTATUS(status))


def _given() -> dict[bytes, bytes]:
    """The environment as it was given: Python itself may have added to it."""
    with open("/proc/self/environ", "rb") as file:  # noqa: PTH123
        entries = (entry.partition(b"=") for entry in file.read().split(b"\0") if b"=" in entry)
        return {name: value for name, _, value in entries if name}


def _waited_for(program: int) -> int:
    """Buries whoever else ends below us meanwhile."""
    while True:
        process, status = os.wait()
        if process == program:
            return status


def _end_rest() -> None:
    """What the program left below us: it may end by itself, is asked, then ended."""
    me, began, asked = os.getpid(), time.monotonic(), False
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
        except ChildProcessError:
            return
        waited = time.monotonic() - began
        if waited > LAST_WORDS + ASKED:
            _signal_all(descendants_of(me), signal.SIGKILL)
        elif waited > LAST_WORDS and not asked:
            asked = True
            _signal_all(descendants_of(me), signal.SIGTERM)
        time.sleep(0.01)


def main() -> None:
    if sys.argv[1] == GUARD:
        guard(sys.argv[2:])
    # The terminal's Ctrl-C and a stop of the parent's group must not end the one who cleans up after them.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    marker = sys.argv[1].encode()
    groups: set[int] = set()
    files: dict[str, str] = {}
    for line in sys.stdin:
        sign, _, rest = line.strip().partition(" ")
        if sign == "f":
            mark, _, path = rest.partition(" ")
            files[os.fsdecode(bytes.fromhex(path))] = mark
        elif rest.isdigit() and int(rest) > 1:
            (groups.add if sign == "+" else groups.discard)(int(rest))
    # Files first: they take no time, and a successor may be about to make its own.
    remove_files(files)
    end_groups(groups)
    kill_marked(marker)


if __name__ == "__main__":
    main()
