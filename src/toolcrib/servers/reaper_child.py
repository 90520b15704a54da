"""The reaper's own process: waits until its parent is gone, then ends what the parent left behind.

In: on stdin, lines `+ <group>`, `- <group>` and `f <mark> <path in hex>`; as argument, the marker that the parent's
children carry. Out: nothing. When stdin ends, the files that are still the same, the groups that are still listed and
every process with the marker are ended.
Runs as a plain script without site-packages, so it imports nothing of ours; `reaper` imports its functions.
"""

import contextlib
import os
import signal
import sys
import time

GRACE = 1.0
"""Seconds between asking and forcing."""


def marked_processes(marker: bytes) -> list[int]:
    """Processes of ours whose environment has an entry that begins with the marker. Empty where there is no /proc."""
    found = []
    try:
        entries = os.listdir("/proc")  # noqa: PTH208 - pathlib costs start-up time here
    except OSError:
        return []
    for entry in entries:
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            with open(f"/proc/{entry}/environ", "rb") as file:  # noqa: PTH123
                environ = file.read()
        except OSError:
            continue
        if environ.startswith(marker) or b"\0" + marker in environ:
            found.append(int(entry))
    return found


def signal_group(group: int, number: int) -> bool:
    """False if the group has nobody left."""
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
        for process in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
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
        signal_group(group, signal.SIGKILL)


def main() -> None:
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
