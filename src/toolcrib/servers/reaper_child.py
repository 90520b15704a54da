"""The reaper's helper processes. One waits until its parent is gone, then cleans up after it. On Linux, a guard is the
parent of each started program.

A guard is the subreaper of its program: every descendant stays below the guard, even one that leaves its session and
group and clears its environment. When the program exits, the guard kills the rest, then exits the same way.

In: on stdin, lines `+ <group>`, `- <group>` and `f <mark> <path in hex>`; as argument, the marker of the parent's
children. Out: nothing. When stdin closes, it removes the files that are unchanged, and kills the groups that are still
listed and every process with the marker. Runs as a plain script without site-packages, so it imports nothing from
Toolcrib; `reaper` imports its functions.
"""

import contextlib
import os
import resource
import signal
import sys
import time

GRACE = 1.0
"""Seconds between SIGTERM and SIGKILL."""
GUARD = "guard"
LAST_WORDS = 0.5
"""Seconds that a program's remaining children get to exit on their own."""
ASKED = 0.3
"""Seconds to exit after SIGTERM."""
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def _all_processes() -> list[int]:
    """Empty without /proc."""
    try:
        return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]  # noqa: PTH208 - pathlib costs start-up time
    except OSError:
        return []


def _proc_file(process: int, what: str) -> bytes:
    """A file of a process in /proc; empty if the process is gone or not ours."""
    try:
        with open(f"/proc/{process}/{what}", "rb") as file:  # noqa: PTH123
            return file.read()
    except OSError:
        return b""


def marked_processes(marker: bytes) -> list[int]:
    """Our processes with an environment entry that begins with the marker. Empty without /proc."""
    others = [process for process in _all_processes() if process != os.getpid()]
    return [process for process in others if b"\0" + marker in b"\0" + _proc_file(process, "environ")]


def descendants_of(guard: int) -> list[int]:
    """All descendants of this process. Empty without /proc."""
    children: dict[int, list[int]] = {}
    for process in _all_processes():
        if stat := _proc_file(process, "stat"):
            state, parent = stat.rpartition(b")")[2].split()[:2]
            if state not in (b"Z", b"X"):
                children.setdefault(int(parent), []).append(process)
    found = children.get(guard, [])
    for process in found:
        found += children.get(process, ())
    return found


def _is_guard(process: int) -> bool:
    return b"\0" + os.fsencode(__file__) + b"\0" + GUARD.encode() + b"\0" in _proc_file(process, "cmdline")


def _signal_all(processes: list[int], number: int) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process, number)


def signal_group(group: int, number: int) -> bool:
    """Returns False if the group is empty. A guard is killed only after all its descendants."""
    if number == signal.SIGKILL and _is_guard(group) and (left := descendants_of(group)):
        _signal_all(left, number)
        return True
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        # macOS raises this for a group of zombies. We cannot signal another user's processes either.
        return False
    return True


def kill_marked(marker: bytes) -> int:
    """Kills every marked process; returns how many it found. Repeats, because one may just start another."""
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
    """Distinguishes a file from a later one at the same path. Raises OSError."""
    # Includes the time because file systems reuse the inode of a removed file.
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
    """Repeats, because one process may just start another."""
    deadline = time.monotonic() + GRACE
    while signal_group(group, signal.SIGKILL) and time.monotonic() < deadline:
        time.sleep(0.01)


def guard(command: list[str]) -> None:
    import ctypes  # noqa: PLC0415 - the daemon also imports this module, and does not need ctypes

    prctl, me = ctypes.CDLL(None).prctl, os.getpid()
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signals = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    program = os.fork()
    if program == 0:
        # A starter that gives up now kills only the guard, so the program must die with it.
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != me:
            os._exit(126)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        try:
            os.execvpe(command[0], command, _given())  # noqa: S606
        except OSError as error:
            os.write(2, f"{command[0]} cannot be started: {error.strerror}\n".encode(errors="replace"))
        os._exit(126)
    # Signals to the group are for the program. We close its pipes here so that readers notice when it closes them.
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
    """The original environment: Python itself may have added to it."""
    with open("/proc/self/environ", "rb") as file:  # noqa: PTH123
        entries = (entry.partition(b"=") for entry in file.read().split(b"\0") if b"=" in entry)
        return {name: value for name, _, value in entries if name}


def _waited_for(program: int) -> int:
    """Waits for the program, and reaps other descendants meanwhile."""
    while True:
        process, status = os.wait()
        if process == program:
            return status


def _end_rest() -> None:
    """Lets the remaining descendants exit, then sends SIGTERM, then SIGKILL."""
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
    # Ctrl-C in the terminal or a signal to the parent's group must not kill the process that cleans up.
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
    # Files first: it is quick, and a new daemon may be about to create its own.
    remove_files(files)
    end_groups(groups)
    kill_marked(marker)


if __name__ == "__main__":
    main()
