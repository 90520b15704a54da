"""A server as a child process: one line of JSON is one message.

In: a server's configuration and the project root. Out: `open_stdio`, a `PipeLink` over the child's stdin and stdout,
and a `StderrLog`: the last lines of its stderr in memory, and all of it in a file of limited size.
Below: `wire` (lines), `environment` (variables), `reaper`. Above: `transports`.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import io
import logging
import os
import shutil
import signal
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, cast

from toolcrib.config.launchers import launch_of
from toolcrib.config.launching import safe_launch
from toolcrib.config.model import ServerConfig, StartFolder
from toolcrib.errors import ServerUnavailable
from toolcrib.servers import reaper_child, wire
from toolcrib.servers.environment import child_environment
from toolcrib.servers.health import STOPPED
from toolcrib.servers.input_budget import PIECE, InputBudget, pieces
from toolcrib.servers.installing import PATIENCE
from toolcrib.servers.last_words import ProbeNoise, cache_remedy, explanation
from toolcrib.servers.pipe_link import PipeLink
from toolcrib.servers.reaper import Reaper, guarded
from toolcrib.servers.wire import LineSplitter
from toolcrib.signals import restore_open_file_limit

log = logging.getLogger(__name__)

MAX_KEPT_LINES = 500
MAX_LINE_LENGTH = 2000
_LAST_LINES = 60
"""Lines of a process that are searched for the reason of its end."""
MAX_FILE_SIZE = 1024 * 1024
"""At this size the file is renamed to `<name>.1`, replacing the previous one."""


class StderrLog:
    def __init__(self, file: Path | None, mask: Callable[[str], str]) -> None:
        self._file = file
        self._mask = mask
        self._kept: deque[str] = deque(maxlen=MAX_KEPT_LINES)
        self._of_this_process = 0
        """Lines written by the current or last process."""
        self._lines = LineSplitter(
            limit=64 * 1024, on_overlong=lambda _: self._keep(["(a very long line was omitted)"])
        )
        self._noise = ProbeNoise()
        self._writable = file is not None
        self._out: io.FileIO | None = None

    def begin(self) -> None:
        """Marks the start of a new process. Older lines are kept: they show why the last process ended."""
        self._of_this_process = 0

    def feed(self, chunk: bytes) -> None:
        lines = self._noise.removed([self._text(line) for line in self._lines.feed(chunk)])
        if lines:
            self._keep(lines)

    def end(self) -> None:
        """Keeps the last line even if it has no line end. Call it when stderr is closed."""
        if rest := self._lines.rest():
            self._keep([self._text(rest)])
        self._close()

    def tail(self, count: int) -> list[str]:
        return list(self._kept)[-count:] if count > 0 else []

    def last_words(self) -> list[str]:
        """The last lines of the newest process only."""
        return self.tail(min(_LAST_LINES, self._of_this_process))

    def _text(self, line: bytes) -> str:
        text = self._mask(line.decode(errors="replace").rstrip().expandtabs())
        return text if len(text) <= MAX_LINE_LENGTH else f"{text[:MAX_LINE_LENGTH]} …"

    def _keep(self, lines: list[str]) -> None:
        self._kept.extend(lines)
        self._of_this_process += len(lines)
        if self._file is None or not self._writable:
            return
        try:
            self._opened(self._file).write("".join(f"{line}\n" for line in lines).encode(errors="replace"))
        except OSError as error:
            self._writable = False
            self._close()
            log.warning("cannot write %s: %s. This server's stderr is kept in memory only.", self._file, error)

    def _opened(self, file: Path) -> io.FileIO:
        out = self._out or self._open(file)
        if out.tell() >= MAX_FILE_SIZE:
            # Another instance of the server may write to the same file and have rotated it already.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(file.stat(), os.fstat(out.fileno())):
                    file.replace(file.with_name(f"{file.name}.1"))
            self._close()
            out = self._open(file)
        return out

    def _open(self, file: Path) -> io.FileIO:
        file.parent.mkdir(parents=True, exist_ok=True)
        self._out = io.FileIO(file, "a")
        return self._out

    def _close(self) -> None:
        if self._out is not None:
            self._out.close()
            self._out = None


_LEAVE_BY_ITSELF = 0.8
_LEAVE_WHEN_ASKED = 0.8
_LEAVE_WHEN_KILLED = 0.5
_LAST_WORDS = 0.5
"""Seconds to wait for the remaining output after the process exits, or for its exit after the output ends."""
_FULL = 1024 * 1024
"""Bytes to buffer for a child that does not read; beyond this, callers wait."""
_STDIN, _STDOUT, _STDERR = 0, 1, 2
_OPEN_FILES = "/dev/fd"


class ChildProcess(asyncio.SubprocessProtocol):
    """One process and its three pipes."""

    def __init__(self, name: str, stderr: StderrLog, limit: int) -> None:
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._outgoing: list[bytes] = []
        self._in_turn = False
        self.name = name
        self.exited: asyncio.Future[int] = loop.create_future()
        self.silent: asyncio.Future[int] = loop.create_future()
        """Done when both output pipes are closed."""
        self.deaf: asyncio.Future[int] = loop.create_future()
        """Done when it has closed its stdin."""
        self.on_line: Callable[[bytes], bool] = lambda line: False
        """Returns whether the line answers a request."""
        self.installing = False
        """Whether it is a launcher that may be fetching the server."""
        self.budget: InputBudget | None = None
        self._unread: deque[tuple[int, bytes | None]] = deque()
        """Pieces from both output pipes in order; None marks the end of a pipe."""
        self._pausing: asyncio.TimerHandle | None = None
        self._leaving = False
        self._open_pipes = {_STDOUT, _STDERR}
        self._stderr = stderr
        self.on_overlong: Callable[[bytes], None] = lambda edges: None
        self._lines = LineSplitter(limit=limit, on_overlong=self._overlong)
        self._transport: asyncio.SubprocessTransport | None = None
        self._writable = asyncio.Event()
        self._writable.set()

    @property
    def transport(self) -> asyncio.SubprocessTransport:
        if self._transport is None:
            raise RuntimeError("the process has not been started")
        return self._transport

    @property
    def pid(self) -> int:
        return self.transport.get_pid()

    @functools.cached_property
    def stdin(self) -> asyncio.WriteTransport:
        return cast(asyncio.WriteTransport, self.transport.get_pipe_transport(_STDIN))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.SubprocessTransport, transport)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == _STDOUT and self._leaving:
            return
        if len(data) <= PIECE:
            self._unread.append((fd, data))
        else:
            self._unread.extend((fd, piece) for piece in pieces(data))
        self._read_on()

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == _STDIN:
            self._writable.set()
            if not self.deaf.done():
                self.deaf.set_result(0)
            return
        self._unread.append((fd, None))
        self._read_on()

    def _read_on(self) -> None:
        """Processes received pieces one by one. Pauses reading if the server floods us."""
        if self._pausing is not None:
            return
        while self._unread:
            fd, piece = self._unread.popleft()
            if piece is None:
                self._closed(fd)
                continue
            began = time.thread_time()
            if self._take(fd, piece) or self.budget is None:
                continue
            self.budget.charge(time.thread_time() - began)
            if pause := self.budget.pause:
                self._each_output(lambda pipe: pipe.pause_reading())
                self._pausing = self._loop.call_later(pause, self._resume)
                return

    def _resume(self) -> None:
        self._pausing = None
        self._read_on()
        if self._pausing is None:
            self._each_output(lambda pipe: pipe.resume_reading())

    def _each_output(self, do: Callable[[asyncio.ReadTransport], None]) -> None:
        for fd in self._open_pipes:
            if (pipe := self.transport.get_pipe_transport(fd)) is not None:
                do(cast(asyncio.ReadTransport, pipe))

    def _take(self, fd: int, piece: bytes) -> bool:
        """Returns whether the piece was requested: an answer, or part of a line that may become one."""
        if fd == _STDERR:
            self._stderr.feed(piece)
            return False
        asked = b"\n" not in piece
        for line in self._lines.feed(piece):
            if line and not line.isspace():
                asked = self.on_line(line) or asked
        return asked and not self._lines.dropping

    def _overlong(self, edges: bytes) -> None:
        self.on_overlong(edges)

    def _closed(self, fd: int) -> None:
        if fd == _STDERR:
            self._stderr.end()
        self._open_pipes.discard(fd)
        if not self._open_pipes and not self.silent.done():
            self.silent.set_result(0)

    def process_exited(self) -> None:
        if not self.exited.done():
            code = self.transport.get_returncode()
            self.exited.set_result(-1 if code is None else code)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    async def send(self, message: bytes) -> None:
        if not self._writable.is_set():
            await self._writable.wait()
        if self.exited.done() or self.stdin.is_closing():
            raise ServerUnavailable(f"Server '{self.name}': its process has ended. The call did not run.")
        # The first message of a loop iteration is sent at once, the others together after it.
        if self._in_turn:
            self._outgoing += (wire.on_one_line(message), b"\n")
            return
        self._in_turn = True
        self._loop.call_soon(self._flush)
        self.stdin.writelines((wire.on_one_line(message), b"\n"))

    def _flush(self) -> None:
        self._in_turn = False
        outgoing, self._outgoing = self._outgoing, []
        if outgoing and not self.stdin.is_closing():
            self.stdin.writelines(outgoing)

    async def ended(self) -> str:
        """Waits until the process exits or closes its input or output; returns the reason."""
        await asyncio.wait({self.exited, self.silent, self.deaf}, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait({self.exited, self.silent}, timeout=_LAST_WORDS)
        if not self.exited.done():
            return f"Its process has closed its {'output' if self.silent.done() else 'input'}."
        return _how_it_ended(self.exited.result(), self._stderr.last_words())

    async def leave(self) -> None:
        """Closes stdin, then sends SIGTERM to the group, then SIGKILL, with a wait after each; a launcher that is
        installing ignores its stdin."""
        self._leaving = True
        self._flush()
        self.stdin.close()
        for number, patience in (
            (None, 0 if self.installing else _LEAVE_BY_ITSELF),
            (signal.SIGTERM, PATIENCE if self.installing else _LEAVE_WHEN_ASKED),
            (signal.SIGKILL, _LEAVE_WHEN_KILLED),
        ):
            if number is not None:
                reaper_child.signal_group(self.pid, number)
            await asyncio.wait({self.exited}, timeout=patience)
            if self.exited.done():
                return

    def forget_unread(self) -> None:
        self._unread.clear()
        if self._pausing is not None:
            self._pausing.cancel()


def _how_it_ended(code: int, lines: Sequence[str]) -> str:
    """Begins with what a person must know, because a narrow terminal cuts the end."""
    how = f"process was killed by signal {-code}" if code < 0 else f"process exited with code {code}"
    why = explanation(lines).rstrip(".")
    return " ".join(filter(None, (cache_remedy(lines), f"{why} (its {how})." if why else f"Its {how}.")))


@contextlib.asynccontextmanager
async def open_stdio(
    config: ServerConfig,
    *,
    root: Path | None,
    reaper: Reaper,
    stderr: StderrLog,
    on_lists_changed: Callable[[], None],
) -> AsyncIterator[PipeLink]:
    """Starts the process. On exit, it and all its descendants are gone."""
    async with _running(config, root, reaper, stderr) as child:
        link = PipeLink(config.name, send=child.send, on_lists_changed=on_lists_changed)
        link.pid = child.pid
        child.on_line = link.receive
        child.budget = link.budget
        child.on_overlong = functools.partial(link.refuse, limit=config.max_message)
        watching = asyncio.create_task(_watch_end(child, link))
        try:
            yield link
        finally:
            watching.cancel()
            child.installing = not link.is_negotiated and launch_of(config.command, config.args) is not None
            if link.last_error == STOPPED:
                # It would not react to anything else.
                reaper_child.signal_group(child.pid, signal.SIGKILL)
            elif link.misbehaved:
                reaper_child.signal_group(child.pid, signal.SIGTERM)
            await link.stop(limit=0)


async def _watch_end(child: ChildProcess, link: PipeLink) -> None:
    link.lose(await child.ended())


@contextlib.asynccontextmanager
async def _running(
    config: ServerConfig, root: Path | None, reaper: Reaper, stderr: StderrLog
) -> AsyncIterator[ChildProcess]:
    marker = reaper.new_marker()
    stderr.begin()
    child = await _start(config, root, marker, stderr)
    group = child.pid
    try:
        reaper.watch(group)
        yield child
    finally:
        try:
            await child.leave()
        finally:
            # Runs even if this task is cancelled again: the following calls don't await.
            child.forget_unread()
            reaper_child.signal_group(group, signal.SIGTERM if child.exited.done() else signal.SIGKILL)
            child.transport.close()
            stderr.end()
            await asyncio.shield(asyncio.to_thread(reaper.end, group, marker))


async def _start(config: ServerConfig, root: Path | None, marker: str, stderr: StderrLog) -> ChildProcess:
    command, env = config.launched(root)
    if config.start_folder is not StartFolder.NAMED:
        command, safe = safe_launch(command)
        env = {**safe, **env}
    environment = child_environment(env, os.environ, marker)
    cwd = config.works_in(root)
    if cwd is not None and not cwd.is_dir():
        raise ServerUnavailable(f"Its working folder {cwd} does not exist.")
    argv = [_find(command[0], environment, cwd), *command[1:]]
    loop = asyncio.get_running_loop()
    try:
        if not os.access(argv[0], os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        _, child = await loop.subprocess_exec(
            lambda: ChildProcess(config.name, stderr, config.max_message),
            *guarded(argv),
            env=environment,
            cwd=cwd,
            start_new_session=True,
            **_sealed(loop),
        )
    except OSError as error:
        raise ServerUnavailable(f"'{config.command}' cannot be started: {error.strerror or error}.") from None
    # A program that exited or closed its input during start has no pipe to configure.
    if not child.stdin.is_closing():
        child.stdin.set_write_buffer_limits(high=_FULL)
    return child


def _sealed(loop: asyncio.AbstractEventLoop) -> dict[str, Any]:
    """Options that keep a child from inheriting our open files. uvloop has no `close_fds`, and gives a child a second
    copy of each of its pipes, so that we would not notice when it closes them."""
    if isinstance(loop, asyncio.BaseEventLoop) or not Path(_OPEN_FILES).is_dir():
        return {}
    return {"preexec_fn": _close_inherited_files}


def _close_inherited_files() -> None:
    """Runs in the child before its pipes are set up. Ignores descriptors that are already closed."""
    restore_open_file_limit()
    for name in os.listdir(_OPEN_FILES):  # noqa: PTH208 - as little code as possible between fork and exec
        if int(name) > _STDERR:
            with contextlib.suppress(OSError):
                os.set_inheritable(int(name), False)


def _find(command: str, environment: dict[str, str], cwd: Path | None) -> str:
    """The program's path, searched for in the child's PATH."""
    if os.sep in command:
        path = Path(command).expanduser()
        full = path if path.is_absolute() or cwd is None else cwd / path
        if not full.exists():
            raise ServerUnavailable(f"'{command}' does not exist.", remedy="Check the server's command.")
        return str(full)
    found = shutil.which(command, path=environment.get("PATH", os.defpath))
    if found is None:
        raise ServerUnavailable(
            f"'{command}' is not installed or not on PATH.",
            remedy="Install it, or give the full path as the server's command.",
        )
    return found
