"""Looks at the start whether the sandbox holds, by trying to break out of it.

In: a way to run a command in it. Out: `Probe`s; one that does not hold, and nothing is ever run. `probing` is what runs
inside; here are the doors that it tries, and what is looked at from outside.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path

from toolcrib.workspace.confined import roots
from toolcrib.workspace.sandbox import places
from toolcrib.workspace.sandbox.model import Command, Ending, Finished, Probe

SECONDS = 20.0
_PREFIX = "toolcrib-probe-"
NAMES = {
    "writing": "nothing outside can be changed",
    "reading": "nothing private can be read",
    "network": "no network, no socket of outside",
    "privileges": "no capabilities, no mounts, no namespaces",
    "calls": "dangerous system calls are refused",
    "rules": "Landlock is in force",
    "limits": "limits are set and cannot be raised",
    "leave_one_behind": "no process stays",
}


async def try_out(
    run: Callable[[Command], Awaitable[Finished]],
    *,
    root: Path,
    bound: Sequence[Path],
    limits: Mapping[str, int],
    has_network: bool,
) -> tuple[Probe, ...]:
    canary = f"canary-{secrets.token_hex(16)}"
    with contextlib.ExitStack() as stack:
        outside = stack.enter_context(_outside())
        (outside / "secret").write_text(canary)
        given = {
            "canary": canary,
            "folders": ["/", "/usr", "/etc", "/dev", "/proc", *map(str, bound), *_parent(root)],
            "files": [
                "/usr/bin/env",
                "/proc/sys/kernel/core_pattern",
                "/proc/sysrq-trigger",
                str(places.interpreter()),
            ],
            "secrets": [str(outside / "secret"), *_private(root, bound)],
            "listeners": [] if has_network else _listen(stack, outside, canary),
            "limits": dict(limits),
        }
        source = Path(__file__).with_name("probing.py").read_text()
        words = (str(places.interpreter()), "-I", "-S", "-E", "-c", source, json.dumps(given))
        finished = await run(Command(argv=words, seconds=SECONDS, reports=True, writes=False, name="self-test"))
    return _read(finished, canary)


@contextlib.contextmanager
def _outside() -> Iterator[Path]:
    """A folder of ours, locked for as long as we live: one that is not locked was left by a process that was killed."""
    beside = Path(tempfile.gettempdir())
    for left in beside.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError), _locked(left):
            shutil.rmtree(left)
    made = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}"))
    with _locked(made):
        # Only now it gets a name that others look for.
        folder = made.rename(beside / made.name.removeprefix("."))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Raises OSError where it is not ours, or another process has it."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(opened).st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "somebody else's", str(folder))
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(opened)


def _read(finished: Finished, canary: str) -> tuple[Probe, ...]:
    if finished.ending is not Ending.EXITED or finished.code != 0 or not finished.report:
        detail = finished.stderr.text(1000).strip() or f"it ended with {finished.code} ({finished.ending})"
        return (Probe("the self-test runs", False, detail),)
    answers: dict[str, list[str]] = json.loads(finished.report)
    if left := _processes_with(canary):
        answers["leave_one_behind"].append(f"process {left} still runs")
    return tuple(Probe(NAMES[name], not found, "; ".join(found)) for name, found in answers.items())


def _parent(root: Path) -> list[str]:
    """Below /tmp it is the sandbox's own."""
    return [] if root.is_relative_to("/tmp") else [str(root.parent)]  # noqa: S108


def _private(root: Path, bound: Sequence[Path]) -> list[str]:
    """What there is around the folder and in the home, and of the system what tells secrets; not what is bound."""
    open_ways = {place for path in (root, *bound) for place in (path, *path.parents)}
    around = ["/etc/shadow", "/run", "/var", "/sys", "/boot", "/root", "/home"]
    for place in {root.parent, roots.own_home() or root.parent}:
        with contextlib.suppress(OSError), os.scandir(place) as entries:
            around += [entry.path for _, entry in zip(range(50), entries, strict=False)]
    return [
        path
        for path in around
        if Path(path) not in open_ways
        and not any(Path(path).is_relative_to(place) for place in (*bound, root, *places.system_folders()))
        and path not in {"/tmp", "/dev", "/proc", "/etc", *places.SYSTEM, places.HOME}  # noqa: S108
    ]


def _listen(stack: contextlib.ExitStack, outside: Path, canary: str) -> list[tuple[str, object]]:
    """Doors of ours that must not be reached: a port, a socket with a path, one without."""
    port = stack.enter_context(socket.socket(socket.AF_INET))
    port.bind(("127.0.0.1", 0))
    doors: list[tuple[str, object]] = [("AF_INET", port.getsockname())]
    named, abstract = (stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(2))
    named.bind(str(outside / "door"))
    abstract.bind(f"\0{canary}")
    doors += [("AF_UNIX", str(outside / "door")), ("AF_UNIX", f"@{canary}")]
    for door in (port, named, abstract):
        door.listen(8)
    return doors


def _processes_with(canary: str) -> str:
    mark = canary.encode()
    for number in filter(str.isdigit, (entry.name for entry in Path("/proc").iterdir())):
        with contextlib.suppress(OSError):
            if mark in Path(f"/proc/{number}/cmdline").read_bytes() and int(number) != os.getpid():
                return number
    return ""
