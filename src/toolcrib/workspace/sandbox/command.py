"""A command for the sandbox: the request, the start of its process, and the result types.

In: a `SandboxCommand`, turned into a `LaunchPlan`. Out: a `LaunchedProcess` in which only our own code runs so far:
`inner` waits inside for one byte; finally a `SandboxResult`. `process` takes over after the launch. A `SandboxProbe` is
one result of the self-test.
"""

from __future__ import annotations

import contextlib
import enum
import fcntl
import functools
import marshal
import os
import socket
import struct
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType
from typing import Any, Protocol

from toolcrib.workspace.folder import FolderPath


class CommandEnding(enum.StrEnum):
    """Why a command ended."""

    EXITED = "exited"
    """On its own, with a code or by a signal."""
    TIMEOUT = "time limit"
    MEMORY = "memory limit"
    PROCESSES = "process limit"
    OUTPUT = "output limit"
    CANCELLED = "cancelled"


@dataclass(frozen=True, kw_only=True)
class SandboxCommand:
    argv: tuple[str, ...]
    seconds: float
    cwd: FolderPath = field(default_factory=lambda: FolderPath(()))
    writes: bool = True
    """Whether the folder is writable; never if the settings are read-only."""
    env: Mapping[str, str] = field(default_factory=dict)
    stdin: bytes = b""
    reports: bool = False
    """Opens an extra pipe, whose number is in TOOLCRIB_REPORT_FD inside. Its output becomes `SandboxResult.report`
    (limited) and is passed to `on_output` as "report" (run_tests uses it for progress)."""
    name: str = "command"
    """Used in the name of the output file."""
    keeps: bool = True
    """Whether long output is stored in a file; not for our own programs, whose output we read in full."""


@dataclass(frozen=True, kw_only=True)
class CapturedOutput:
    """One output stream of a command: its beginning, end and length."""

    head: bytes
    tail: bytes = b""
    total: int = 0
    kept: str | None = None
    """The file, relative to the root, with the full output of both streams."""

    @property
    def whole(self) -> bool:
        return len(self.head) + len(self.tail) == self.total

    def text(self, limit: int | None = None) -> str:
        """The output, cut in the middle to about `limit` bytes, with a note about the omitted part."""
        if self.whole and (limit is None or self.total <= limit):
            return (self.head + self.tail).decode(errors="replace")
        data = self.head + self.tail if self.whole else b""
        head, tail = (data, data) if self.whole else (self.head, self.tail)
        half = (limit // 2) if limit is not None else max(len(head), len(tail))
        head, tail = head[:half], tail[max(0, len(tail) - half) :]
        where = f"; full output: {self.kept}" if self.kept else ""
        left_out = self.total - len(head) - len(tail)
        return (
            head.decode(errors="replace")
            + f"\n[… {left_out} bytes left out{where} …]\n"
            + tail.decode(errors="replace")
        )


@dataclass(frozen=True, kw_only=True)
class SandboxResult:
    ending: CommandEnding
    code: int | None
    """The exit code; None if we ended the command or a signal did."""
    signal: int | None
    stdout: CapturedOutput
    stderr: CapturedOutput
    report: bytes
    seconds: float
    notes: tuple[str, ...] = ()
    """What was repaired afterwards, because the user's git would have run it."""


@dataclass(frozen=True)
class SandboxProbe:
    """One attempt to break out, and whether the sandbox held."""

    name: str
    held: bool
    detail: str = ""


_BOOT = (
    "import marshal,os,sys;p,c=map(int,sys.argv[1:3]);m,q=marshal.loads(os.pread(p,1<<23,0));exec(m,{'GIVEN':(q,c)})"
)
READY, GO = b"r", b"g"
_CREDENTIALS = struct.Struct("=iII")
REPORT_FD = "3"
"""The report pipe's number inside, set by `inner`."""


class LimitWatch(Protocol):
    """Watches the limits of a process tree; see `limits.LimitGuard`."""

    tick: float

    def begin(self, inner: int) -> None: ...
    def passed(self) -> CommandEnding | None: ...
    def end(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class BubblewrapLaunch:
    """How bubblewrap is started around a command."""

    command: Sequence[str]
    arguments: Sequence[str]
    """Passed through a descriptor."""
    files: Mapping[str, bytes]
    """Files to create inside."""
    filter: bytes
    """The seccomp filter."""
    descriptors: Sequence[int] = ()
    """Descriptors that the command refers to."""


@dataclass(frozen=True, kw_only=True)
class LaunchPlan:
    """Everything needed to start a command."""

    wrapping: BubblewrapLaunch | None
    """None without a sandbox."""
    interpreter: str
    plan: Mapping[str, Any]
    """For `inner`."""
    environment: Mapping[str, str]
    cwd: str = "/"
    owner: tuple[int, int] | None = None
    """Owner of the pipes, if not this process."""
    stdin: bytes = b""
    reports: bool = False
    watch: Callable[[int], LimitWatch]
    """Called with the first process of the tree: `inner` or its parent."""
    seconds: float
    max_output: int


@dataclass(frozen=True, kw_only=True)
class LaunchedProcess:
    process: subprocess.Popen[bytes]
    pipes: Mapping[str, int]
    """Read ends of stdout, stderr, and report if there is one."""
    control: socket.socket

    def receive(self) -> tuple[bytes, int]:
        """A message from `inner`, empty when it is gone, and its pid as reported by the kernel."""
        try:
            message, ancillary, _, _ = self.control.recvmsg(2048, socket.CMSG_SPACE(_CREDENTIALS.size))
        except ConnectionError:
            return b"", 0
        pids = [
            _CREDENTIALS.unpack(data)[0]
            for level, kind, data in ancillary
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS)
        ]
        return message, pids[0] if pids else 0


def launch(start: LaunchPlan) -> LaunchedProcess:
    with contextlib.ExitStack() as passing, contextlib.ExitStack() as keeping:
        names = ["stdout", "stderr", *(["report"] if start.reports else [])]
        pipes = {name: _pipe(keeping, passing) for name in names}
        if start.owner is not None:
            for _, writing in pipes.values():
                # Allows opening /dev/stdout and /dev/stderr inside.
                os.fchown(writing, *start.owner)
        mine, its = _control(keeping, passing)
        report = pipes["report"][1] if start.reports else -1
        plan = _memory(passing, marshal.dumps((_inner_code(), {**start.plan, "report": report})))
        command = [start.interpreter, "-I", "-S", "-E", "-c", _BOOT, str(plan), str(its)]
        passed = [plan, its, *([report] if start.reports else [])]
        environment = dict(start.environment) | ({"TOOLCRIB_REPORT_FD": REPORT_FD} if start.reports else {})
        if start.wrapping:
            arguments_fd = _arguments_descriptor(start.wrapping, environment, passing, passed)
            command = [*start.wrapping.command, "--args", str(arguments_fd), "--", *command]
        process = subprocess.Popen(
            command,
            stdin=_memory(passing, start.stdin) if start.stdin else _empty_input(passing),
            stdout=pipes["stdout"][1],
            stderr=pipes["stderr"][1],
            pass_fds=passed,
            # Inside a sandbox, /proc/1/environ shows bubblewrap's own environment.
            env={} if start.wrapping else environment,
            cwd=start.cwd,
            start_new_session=not start.wrapping,
        )
        keeping.pop_all()
    mine.setblocking(False)
    reading = {name: end for name, (end, _) in pipes.items()}
    return LaunchedProcess(process=process, pipes=reading, control=mine)


def _arguments_descriptor(
    wrapping: BubblewrapLaunch, environment: Mapping[str, str], passing: contextlib.ExitStack, passed: list[int]
) -> int:
    rules = _memory(passing, wrapping.filter)
    files = {path: _memory(passing, content) for path, content in wrapping.files.items()}
    arguments = [
        *(word for path, content in files.items() for word in ("--perms", "0444", "--file", str(content), path)),
        *wrapping.arguments,
        *(word for name, value in environment.items() for word in ("--setenv", name, value)),
        *("--seccomp", str(rules)),
    ]
    arguments_fd = _memory(passing, b"".join(os.fsencode(word) + b"\0" for word in arguments))
    passed += [rules, arguments_fd, *files.values(), *wrapping.descriptors]
    return arguments_fd


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
    # A high number cannot collide with the report pipe's number inside.
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


def _empty_input(passing: contextlib.ExitStack) -> int:
    """An empty stdin. Not /dev/null: root inside could change the mode of the real device through it."""
    reading, writing = os.pipe()
    os.close(writing)
    passing.callback(os.close, reading)
    return reading
