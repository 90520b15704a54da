"""The start of a command: pipes, what goes in through descriptors, the process itself.

In: a `Start`. Out: `Launched`, of which nothing runs yet that is not ours: `inner` waits inside for one byte. `run`
goes on from here.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import marshal
import os
import socket
import struct
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any, Protocol

from toolcrib.workspace.sandbox.model import Ending

_BOOT = (
    "import marshal,os,sys;p,c=map(int,sys.argv[1:3]);m,q=marshal.loads(os.pread(p,1<<23,0));exec(m,{'GIVEN':(q,c)})"
)
READY, GO = b"r", b"g"
_CREDENTIALS = struct.Struct("=iII")
REPORT_FD = "3"
"""Inside; `inner` puts it there."""


class Watch(Protocol):
    """What watches the limits of a tree; `limits.Guard`."""

    tick: float

    def begin(self, inner: int) -> None: ...
    def passed(self) -> Ending | None: ...
    def end(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Wrapping:
    """bubblewrap around a command."""

    words: Sequence[str]
    """How it is started."""
    arguments: Sequence[str]
    """What it is told, through a descriptor."""
    files: Mapping[str, bytes]
    """What is copied in."""
    filter: bytes
    """Of system calls."""
    descriptors: Sequence[int] = ()
    """That the words speak of."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """Everything that a command is started with."""

    wrapping: Wrapping | None
    """None outside a sandbox."""
    interpreter: str
    plan: Mapping[str, Any]
    """For `inner`."""
    environment: Mapping[str, str]
    cwd: str = "/"
    owner: tuple[int, int] | None = None
    """Whose the pipes shall be, if not this process's."""
    stdin: bytes = b""
    reports: bool = False
    watch: Callable[[int], Watch]
    """Given the first process of the tree; `inner` is a child of it, or is it."""
    seconds: float
    most_output: int


@dataclass(frozen=True, kw_only=True)
class Launched:
    process: subprocess.Popen[bytes]
    pipes: Mapping[str, int]
    """To read from: stdout, stderr, and report if there is one."""
    control: socket.socket

    def hear(self) -> tuple[bytes, int]:
        """What `inner` says, empty when it is gone, and its pid: it is the kernel that tells us who wrote."""
        try:
            said, ancillary, _, _ = self.control.recvmsg(2048, socket.CMSG_SPACE(_CREDENTIALS.size))
        except ConnectionError:
            return b"", 0
        pids = [
            _CREDENTIALS.unpack(data)[0]
            for level, kind, data in ancillary
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS)
        ]
        return said, pids[0] if pids else 0


def launch(start: Start) -> Launched:
    with contextlib.ExitStack() as passing, contextlib.ExitStack() as keeping:
        names = ["stdout", "stderr", *(["report"] if start.reports else [])]
        pipes = {name: _pipe(keeping, passing) for name in names}
        if start.owner is not None:
            for _, writing in pipes.values():
                # So that /dev/stdout and /dev/stderr can be opened inside.
                os.fchown(writing, *start.owner)
        mine, its = _control(keeping, passing)
        report = pipes["report"][1] if start.reports else -1
        plan = _memory(passing, marshal.dumps((_inner_code(), {**start.plan, "report": report})))
        words = [start.interpreter, "-I", "-S", "-E", "-c", _BOOT, str(plan), str(its)]
        passed = [plan, its, *([report] if start.reports else [])]
        environment = dict(start.environment) | ({"TOOLCRIB_REPORT_FD": REPORT_FD} if start.reports else {})
        if start.wrapping:
            told = _told(start.wrapping, environment, passing, passed)
            words = [*start.wrapping.words, "--args", str(told), "--", *words]
        process = subprocess.Popen(
            words,
            stdin=_memory(passing, start.stdin) if start.stdin else _nothing(passing),
            stdout=pipes["stdout"][1],
            stderr=pipes["stderr"][1],
            pass_fds=passed,
            # Inside a sandbox /proc/1/environ shows what bubblewrap itself was given.
            env={} if start.wrapping else environment,
            cwd=start.cwd,
            start_new_session=not start.wrapping,
        )
        keeping.pop_all()
    mine.setblocking(False)
    reading = {name: end for name, (end, _) in pipes.items()}
    return Launched(process=process, pipes=reading, control=mine)


def _told(wrapping: Wrapping, environment: Mapping[str, str], passing: contextlib.ExitStack, passed: list[int]) -> int:
    rules = _memory(passing, wrapping.filter)
    files = {path: _memory(passing, content) for path, content in wrapping.files.items()}
    words = [
        *(word for path, content in files.items() for word in ("--perms", "0444", "--file", str(content), path)),
        *wrapping.arguments,
        *(word for name, value in environment.items() for word in ("--setenv", name, value)),
        *("--seccomp", str(rules)),
    ]
    told = _memory(passing, b"".join(os.fsencode(word) + b"\0" for word in words))
    passed += [rules, told, *files.values(), *wrapping.descriptors]
    return told


@functools.cache
def _inner_code() -> CodeType:
    source = Path(__file__).with_name("inner.py").read_text()
    return compile(source, "inner", "exec", dont_inherit=True, optimize=2)


def _pipe(keeping: contextlib.ExitStack, passing: contextlib.ExitStack) -> tuple[int, int]:
    reading, writing = os.pipe()
    keeping.callback(os.close, reading)
    passing.callback(os.close, writing)
    os.set_blocking(reading, False)
    return reading, writing


def _control(keeping: contextlib.ExitStack, passing: contextlib.ExitStack) -> tuple[socket.socket, int]:
    mine, its = socket.socketpair()
    keeping.callback(mine.close)
    mine.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    # The number that the report gets inside is none of the others'.
    number = fcntl.fcntl(its, fcntl.F_DUPFD_CLOEXEC, 10)
    its.close()
    passing.callback(os.close, number)
    return mine, number


def _memory(passing: contextlib.ExitStack, content: bytes) -> int:
    descriptor = os.memfd_create("toolcrib")
    passing.callback(os.close, descriptor)
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _nothing(passing: contextlib.ExitStack) -> int:
    """An end of input. Not /dev/null: root inside could change the mode of the machine's own through it."""
    reading, writing = os.pipe()
    os.close(writing)
    passing.callback(os.close, reading)
    return reading
