"""Servers that are processes of ours: start one, speak lines with it, and leave nothing of it behind.

In: a server's configuration and the project root. Out: `open_stdio`, a `PipeLink` over the child's stdin and stdout.
Below: `framing` (lines), `environment` (what the child sees), `stderr_log`, `reaper`. Above: `transports`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any, cast

from toolcrib.config.model import ServerConfig
from toolcrib.errors import ServerAway
from toolcrib.servers import reaper_child, wire
from toolcrib.servers.environment import child_environment
from toolcrib.servers.framing import Lines
from toolcrib.servers.pipe import PipeLink
from toolcrib.servers.reaper import Reaper
from toolcrib.servers.stderr_log import StderrLog

log = logging.getLogger(__name__)

_LEAVE_BY_ITSELF = 0.8
_LEAVE_WHEN_ASKED = 0.8
_LEAVE_WHEN_KILLED = 0.5
_LAST_WORDS = 0.5
"""Seconds that output may still come in after the process has ended, or the end be seen after the output's."""
_FULL = 1024 * 1024
"""Bytes that may wait for a child that does not read; beyond this callers wait."""
_STDIN, _STDOUT, _STDERR = 0, 1, 2
_OPEN_FILES = "/dev/fd"


class Child(asyncio.SubprocessProtocol):
    """One process and its three pipes."""

    def __init__(self, name: str, stderr: StderrLog) -> None:
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
        self.on_line: Callable[[bytes], None] = lambda line: None
        self._open_pipes = {_STDOUT, _STDERR}
        self._stderr = stderr
        self._lines = Lines(on_overlong=lambda: log.warning("%s: a line was too long and left out", name))
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

    @property
    def stdin(self) -> asyncio.WriteTransport:
        return cast(asyncio.WriteTransport, self.transport.get_pipe_transport(_STDIN))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.SubprocessTransport, transport)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == _STDERR:
            self._stderr.feed(data)
            return
        for line in self._lines.feed(data):
            if line and not line.isspace():
                self.on_line(line)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == _STDERR:
            self._stderr.end()
        elif fd == _STDIN:
            self._writable.set()
            if not self.deaf.done():
                self.deaf.set_result(0)
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
            raise ServerAway(f"Server '{self.name}': its process has ended. The call did not run.")
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
        return _how_it_ended(self.exited.result(), self._stderr.tail(3))

    async def leave(self) -> None:
        """Close stdin, wait; ask the group to end, wait; end it."""
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
        watching = asyncio.create_task(_tell_end(child, link))
        try:
            yield link
        finally:
            watching.cancel()
            link.lose("It was stopped.")
            await link.end_errands(limit=0)


async def _tell_end(child: Child, link: PipeLink) -> None:
    link.lose(await child.ended())


@contextlib.asynccontextmanager
async def _running(config: ServerConfig, root: Path | None, reaper: Reaper, stderr: StderrLog) -> AsyncIterator[Child]:
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
            reaper_child.signal_group(group, signal.SIGTERM if child.exited.done() else signal.SIGKILL)
            child.transport.close()
            stderr.end()
            await asyncio.shield(asyncio.to_thread(reaper.end, group, marker))


async def _start(config: ServerConfig, root: Path | None, marker: str, stderr: StderrLog) -> Child:
    environment = child_environment(config, os.environ, marker)
    cwd = config.works_in(root)
    if cwd is not None and not cwd.is_dir():
        raise ServerAway(f"The folder {cwd} that it should run in does not exist.")
    command = _find(config.command, environment, cwd)
    loop = asyncio.get_running_loop()
    try:
        _, child = await loop.subprocess_exec(
            lambda: Child(config.name, stderr),
            command,
            *config.args,
            env=environment,
            cwd=cwd,
            start_new_session=True,
            **_sealed(loop),
        )
    except OSError as error:
        raise ServerAway(f"'{config.command}' cannot be started: {error.strerror or error}.") from None
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
            raise ServerAway(f"'{command}' does not exist.", remedy="Check the server's command.")
        return str(full)
    found = shutil.which(command, path=environment.get("PATH", os.defpath))
    if found is None:
        raise ServerAway(
            f"'{command}' is not installed or not on PATH.",
            remedy="Install it, or give the full path as the server's command.",
        )
    return found
