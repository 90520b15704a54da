"""A server as a child process: one line of JSON is one message.

In: a server's configuration and the project root. Out: `open_stdio`, a `PipeLink` over the child's stdin and stdout,
and a `StderrLog`: the last lines of its stderr in memory, all of it in a bounded file.
Below: `wire` (lines), `environment` (what the child sees), `reaper`. Above: `transports`.
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
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any, cast

from toolcrib.config.launching import safe_launch
from toolcrib.config.model import ServerConfig, StartFolder
from toolcrib.errors import ServerUnavailable
from toolcrib.servers import reaper_child, wire
from toolcrib.servers.environment import child_environment
from toolcrib.servers.link import PIECE, InputBudget, PipeLink, pieces
from toolcrib.servers.reaper import Reaper, guarded
from toolcrib.servers.wire import LineSplitter
from toolcrib.signals import restore_open_file_limit

log = logging.getLogger(__name__)

KEPT_LINES = 500
LONGEST_KEPT = 2000
LARGEST_FILE = 1024 * 1024
"""At this size the file becomes `<name>.1`, replacing the one before."""


class StderrLog:
    def __init__(self, file: Path | None, mask: Callable[[str], str]) -> None:
        self._file = file
        self._mask = mask
        self._kept: deque[str] = deque(maxlen=KEPT_LINES)
        self._of_this_process = 0
        """How many lines the process that runs now, or ran last, has written."""
        self._lines = LineSplitter(
            limit=64 * 1024, on_overlong=lambda _: self._keep(["(a very long line was left out)"])
        )
        self._writable = file is not None
        self._out: io.FileIO | None = None

    def begin(self) -> None:
        """A new process starts. The lines of the one before stay readable: they say why it was replaced."""
        self._of_this_process = 0

    def feed(self, chunk: bytes) -> None:
        lines = [self._text(line) for line in self._lines.feed(chunk)]
        if lines:
            self._keep(lines)

    def end(self) -> None:
        """The process has closed stderr: what stands without a line end counts as a line."""
        if rest := self._lines.rest():
            self._keep([self._text(rest)])
        self._close()

    def tail(self, count: int) -> list[str]:
        return list(self._kept)[-count:] if count > 0 else []

    def last_words(self, count: int) -> list[str]:
        """The last lines of the newest process alone."""
        return self.tail(min(count, self._of_this_process))

    def _text(self, line: bytes) -> str:
        text = self._mask(line.decode(errors="replace").rstrip().expandtabs())
        return text if len(text) <= LONGEST_KEPT else f"{text[:LONGEST_KEPT]} …"

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
            log.warning(
                "cannot write %s: %s. What this server says on stderr is kept in memory only.", self._file, error
            )

    def _opened(self, file: Path) -> io.FileIO:
        out = self._out or self._open(file)
        if out.tell() >= LARGEST_FILE:
            # Another instance of the server may write to the same file, and have turned it over already.
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
"""Seconds that output may still come in after the process has ended, or the end be seen after the output's."""
_FULL = 1024 * 1024
"""Bytes that may wait for a child that does not read; beyond this callers wait."""
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
        """Done when both output pipes have ended."""
        self.deaf: asyncio.Future[int] = loop.create_future()
        """Done when it does not read any more."""
        self.on_line: Callable[[bytes], bool] = lambda line: False
        """Says whether the line is an answer that was asked for."""
        self.budget: InputBudget | None = None
        self._unread: deque[tuple[int, bytes | None]] = deque()
        """Pieces of either output pipe in their order; None for its end."""
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
        """Takes in what has come, piece by piece. Of a server that floods the rest waits, and so does its writer."""
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
        """Whether it was asked for: an answer, or a part of a line that may become one."""
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
        # The first call of a turn of the loop goes out at once, the others of that turn together after it.
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
        """Waits until the process has ended, fallen silent or gone deaf, and says how."""
        await asyncio.wait({self.exited, self.silent, self.deaf}, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait({self.exited, self.silent}, timeout=_LAST_WORDS)
        if not self.exited.done():
            return f"Its process has closed its {'output' if self.silent.done() else 'input'}."
        return _how_it_ended(self.exited.result(), self._stderr.last_words(3))

    async def leave(self) -> None:
        """Close stdin, wait; ask the group to end, wait; end it."""
        self._leaving = True
        self._flush()
        self.stdin.close()
        for number, patience in (
            (None, _LEAVE_BY_ITSELF),
            (signal.SIGTERM, _LEAVE_WHEN_ASKED),
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


def _how_it_ended(code: int, words: Iterable[str]) -> str:
    how = f"Its process was ended by signal {-code}" if code < 0 else f"Its process ended with code {code}"
    said = " | ".join(line for line in words if line)
    return f"{how}, saying: {said}." if said else f"{how}."


@contextlib.asynccontextmanager
async def open_stdio(
    config: ServerConfig,
    *,
    root: Path | None,
    reaper: Reaper,
    stderr: StderrLog,
    on_tools_changed: Callable[[], None],
) -> AsyncIterator[PipeLink]:
    """Starts the process; on leaving, it and all that it started are gone."""
    async with _running(config, root, reaper, stderr) as child:
        link = PipeLink(config.name, send=child.send, on_tools_changed=on_tools_changed)
        link.pid = child.pid
        child.on_line = link.receive
        child.budget = link.budget
        child.on_overlong = functools.partial(link.refuse, limit=config.max_message)
        watching = asyncio.create_task(_tell_end(child, link))
        try:
            yield link
        finally:
            watching.cancel()
            if link.misbehaved:
                reaper_child.signal_group(child.pid, signal.SIGTERM)
            await link.stop(limit=0)


async def _tell_end(child: ChildProcess, link: PipeLink) -> None:
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
            # Also when this task is cancelled once more: what follows does not wait for the loop.
            child.forget_unread()
            reaper_child.signal_group(group, signal.SIGTERM if child.exited.done() else signal.SIGKILL)
            child.transport.close()
            stderr.end()
            await asyncio.shield(asyncio.to_thread(reaper.end, group, marker))


async def _start(config: ServerConfig, root: Path | None, marker: str, stderr: StderrLog) -> ChildProcess:
    words, env = config.launched(root)
    if config.start is not StartFolder.NAMED:
        words, safe = safe_launch(words)
        env = {**safe, **env}
    environment = child_environment(env, os.environ, marker)
    cwd = config.works_in(root)
    if cwd is not None and not cwd.is_dir():
        raise ServerUnavailable(f"The folder {cwd} that it should run in does not exist.")
    argv = [_find(words[0], environment, cwd), *words[1:]]
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
    # A program that ended, or closed its input, while it started has no pipe left to set anything on.
    if not child.stdin.is_closing():
        child.stdin.set_write_buffer_limits(high=_FULL)
    return child


def _sealed(loop: asyncio.AbstractEventLoop) -> dict[str, Any]:
    """Options that keep our open files from a child. uvloop takes no `close_fds`, and leaves a child a second copy of
    each of its own pipes: then not even its closing of them would be noticed."""
    if isinstance(loop, asyncio.BaseEventLoop) or not Path(_OPEN_FILES).is_dir():
        return {}
    return {"preexec_fn": _keep_to_ourselves}


def _keep_to_ourselves() -> None:
    """Runs in the child before its pipes are put in place. What cannot be marked is not open."""
    restore_open_file_limit()
    for name in os.listdir(_OPEN_FILES):  # noqa: PTH208 - as little as there can be between fork and exec
        if int(name) > _STDERR:
            with contextlib.suppress(OSError):
                os.set_inheritable(int(name), False)


def _find(command: str, environment: dict[str, str], cwd: Path | None) -> str:
    """The program's path. Looked for with the child's PATH, as the child itself would."""
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
