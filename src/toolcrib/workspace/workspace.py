"""One folder and its tools: every call of a model comes through here, whoever serves it.

In: a tool's name and its arguments, and the session that pays for it. Out: an MCP result as JSON; what goes wrong is a
result too, with words that a model can act on. `serve` puts it on the wire, the daemon calls it in its own process.
File tools run in a few threads of their own, commands in the sandbox, whose self-test runs meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import difflib
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import msgspec

from toolcrib.agent_events import FAILURE
from toolcrib.config.paths import home_of
from toolcrib.errors import ToolcribError, WorkspaceError
from toolcrib.workspace.arguments import decode
from toolcrib.workspace.ci import in_ci
from toolcrib.workspace.confined.folder import Folder
from toolcrib.workspace.looking.elsewhere import is_about_a_missing_path, with_places
from toolcrib.workspace.sandbox import Sandbox
from toolcrib.workspace.session import Session
from toolcrib.workspace.settings.model import KB, SHELL_TOOLS, WRITING_TOOLS, Settings
from toolcrib.workspace.tool import Done, Runs, Scene, Tool
from toolcrib.workspace.tools import TOOLS, definition

log = logging.getLogger(__name__)

OnProgress = Callable[[dict[str, Any]], None]

THREADS = 8
"""File tools at work at once; a ninth waits, and its time runs."""
UNSAFE = "NOT SANDBOXED (--unsafe-no-sandbox): commands run with all rights of the server's user."
_ESCAPED = 6
"""Bytes that one byte of a file may become in JSON."""
_GRACE = 0.5
"""Seconds beyond its time that a tool has to say itself how far it came."""
_AUDITED = 2000
"""Characters of a command's arguments that the log keeps."""


class Workspace:
    def __init__(
        self,
        root: Path,
        settings: Settings,
        *,
        environ: Mapping[str, str],
        unsafe_no_sandbox: bool = False,
        unfit: Sequence[Path] = (),
        tools: Sequence[Tool] = TOOLS,
    ) -> None:
        """`tools`: the table of what can be called, whose rows may wear other names and parameters than ours."""
        self.settings = settings
        self.folder = Folder(
            root,
            hidden=settings.hidden,
            guarded=settings.guarded,
            repositories=settings.repositories,
            above=settings.above,
            unfit=unfit,
            home=home_of(environ),
        )
        self.root = self.folder.root
        self.unsafe = unsafe_no_sandbox
        self._environ = environ
        self._ci = in_ci(environ) if settings.forbid_shell_in_ci else ""
        self._table = {tool.name: tool for tool in tools}
        offered = (tool for tool in tools if self.why_not(tool.name) is None)
        self.tools = tuple(definition(self._as_it_is(tool), settings) for tool in offered)
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="workspace")
        self._at_work: set[asyncio.Future[Done]] = set()
        """Also what was given up and has not ended yet."""
        self._sandbox: asyncio.Task[Sandbox] | None = None

    def start(self) -> None:
        """Begins the sandbox's self-test, which commands wait for."""
        if self._sandbox is None:
            opening = Sandbox.open(self.folder, self.settings, environ=self._environ, unsafe=self.unsafe)
            self._sandbox = asyncio.get_running_loop().create_task(opening)

    async def sandbox(self) -> Sandbox:
        """Tested; also one that refuses to run anything."""
        self.start()
        opening = cast("asyncio.Task[Sandbox]", self._sandbox)
        # A caller that gives up must not take the self-test with it.
        return await asyncio.shield(opening)

    async def close(self) -> None:
        """Ends what runs. File tools at work end by themselves, at their time limit at the latest."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        for work in self._at_work:
            work.cancel()
        opening = self._sandbox
        if opening is not None:
            opening.cancel()
            await asyncio.wait({opening})
            if not opening.cancelled() and opening.exception() is None:
                await opening.result().close()
        self.folder.close()

    def runs_code(self, name: str) -> bool:
        tool = self._table.get(name)
        return tool is not None and tool.runs is Runs.CODE

    def _as_it_is(self, tool: Tool) -> Tool:
        """Without a sandbox whatever runs code may change anything: a repository can have git start its programs."""
        if not self.unsafe or tool.runs is Runs.FILES:
            return tool
        said = f"{UNSAFE} {tool.description}"
        return dataclasses.replace(tool, description=said, reads_only=False, destructive=True, idempotent=False)

    def why_not(self, name: str) -> WorkspaceError | None:
        """Why a tool is not offered here, and what would change that."""
        ruled_as = self._table[name].ruled_as if name in self._table else name
        if ruled_as in self.settings.off:
            return WorkspaceError(
                f"{name} is switched off in this workspace.",
                remedy="A person can switch it on: `tools:` in workspace.yml.",
            )
        if self.settings.read_only and ruled_as in WRITING_TOOLS:
            return WorkspaceError(
                f"{name} is not available: this workspace is read-only.",
                remedy="The tools that are offered work. A person can start it without read-only mode.",
            )
        if self.settings.read_only and self.unsafe and self.runs_code(name):
            return WorkspaceError(
                f"{name} is not available: this workspace is read-only, and without a sandbox nothing keeps it so.",
                remedy="Reading and searching work. A person can start it without --unsafe-no-sandbox.",
            )
        if self._ci and ruled_as in SHELL_TOOLS:
            return WorkspaceError(
                f"{name} is not available in CI ({self._ci} is set).",
                remedy="The tools that are offered work. A person can set forbid_shell_in_ci: false in workspace.yml.",
            )
        return None

    async def call(
        self,
        name: str,
        arguments: bytes | Mapping[str, Any],
        *,
        session: Session,
        on_progress: OnProgress | None = None,
    ) -> bytes:
        try:
            tool = self._tool(name)
            given = decode(tool, arguments)
            session.call()
            told = _Progress(on_progress) if on_progress is not None else None
            try:
                done = await self._do(tool, given, session, told)
            finally:
                if told is not None:
                    told.close()
            return self._result(tool, done)
        except ToolcribError as error:
            if is_about_a_missing_path(error):
                error = await asyncio.to_thread(with_places, self.folder, error)
            return _failure(error.text())
        except Exception:
            log.exception("%s failed inside", name)
            return _failure(
                f"{name} failed inside the workspace server. This is a fault of the server, not of the arguments; "
                "its log says more. Another tool may still do what is needed."
            )

    def check(self, name: str, arguments: Mapping[str, Any]) -> None:
        """Raises `WorkspaceError`, as a call would tell it, where the arguments do not fit. Does nothing else."""
        decode(self._table[name], arguments)

    def _tool(self, name: str) -> Tool:
        if self.settings.broken:
            raise WorkspaceError(self.settings.broken)
        tool = self._table.get(name)
        if tool is None:
            near = difflib.get_close_matches(name, self._table, n=1)
            raise WorkspaceError(
                f"There is no tool {name!r}.", remedy=f"Did you mean {near[0]}?" if near else "List the tools."
            )
        if (refusal := self.why_not(name)) is not None:
            raise refusal
        return tool

    async def _do(self, tool: Tool, given: Any, session: Session, told: _Progress | None) -> Done:
        self.folder.check_same()
        seconds = self.settings.limits.seconds[tool.ruled_as]
        scene = Scene(
            folder=self.folder,
            settings=self.settings,
            session=session,
            sandbox=self.sandbox,
            environ=self._environ,
            progress=told,
            deadline=time.monotonic() + seconds,
        )
        if tool.runs is Runs.CODE:
            sandbox = await self.sandbox()
            if sandbox.refusal is not None:
                raise sandbox.refusal
            if self.unsafe:
                log.warning("unsandboxed: %s %.*s", tool.name, _AUDITED, msgspec.json.encode(given).decode())
            return await cast("Callable[[Scene, Any], Awaitable[Done]]", tool.do)(scene, given)
        return await self._in_time(tool, scene, given, seconds)

    async def _in_time(self, tool: Tool, scene: Scene, given: Any, seconds: float) -> Done:
        """A tool that only looks at files ends by itself at its deadline; if it does not, the caller is told anyway."""
        work: asyncio.Future[Done]
        if inspect.iscoroutinefunction(tool.do):
            work = asyncio.ensure_future(tool.do(scene, given))
        else:
            look = cast("Callable[[Scene, Any], Done]", tool.do)
            work = asyncio.get_running_loop().run_in_executor(self._pool, look, scene, given)
        self._at_work.add(work)
        work.add_done_callback(self._over)
        try:
            done, _ = await asyncio.wait({work}, timeout=seconds + _GRACE)
        finally:
            work.cancel()
        if done:
            return work.result()
        raise WorkspaceError(
            f"{tool.name} took longer than {seconds:g} s and was given up.",
            remedy="Ask for less: a smaller folder, a narrower pattern, a range."
            + ("" if tool.reads_only else " It may still have been done: look before you repeat it."),
        )

    def _over(self, work: asyncio.Future[Done]) -> None:
        self._at_work.discard(work)
        if not work.cancelled():
            # Of what was given up nobody asks how it ended; asyncio would complain.
            work.exception()

    def _result(self, tool: Tool, done: Done) -> bytes:
        # In both: some clients show a model only the one, some only the other.
        is_unsafe = self.unsafe and tool.runs is Runs.CODE
        answer: dict[str, Any] = {
            "content": [{"type": "text", "text": f"{UNSAFE}\n{done.text}" if is_unsafe else done.text}],
        }
        if tool.result is not None:
            warning = {"warning": UNSAFE} if is_unsafe else {}
            answer["structuredContent"] = {**warning, **msgspec.to_builtins(done.data)}
        meta = {"_meta": {FAILURE: done.failure}} if done.failure else {}
        result = msgspec.json.encode({**answer, **meta, "isError": False})
        limits = self.settings.limits
        most = 2 * _ESCAPED * max(limits.read, limits.output) + 256 * KB
        if len(result) > most:
            raise WorkspaceError(
                f"The result of {tool.name} is too large ({len(result)} bytes; {most} are sent at most).",
                remedy="Ask for less: a smaller folder, a narrower pattern, a range.",
            )
        return result


class _Progress:
    """Numbers what a tool tells, and hands it over in the loop's own thread, until the call is over."""

    def __init__(self, tell: OnProgress) -> None:
        self._tell: OnProgress | None = tell
        self._loop = asyncio.get_running_loop()
        self._count = 0

    def __call__(self, message: str) -> None:
        try:
            running: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is self._loop:
            self._now(message)
        else:
            # A thread that was given up may still talk when the loop is gone.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._now, message)

    def close(self) -> None:
        self._tell = None

    def _now(self, message: str) -> None:
        if self._tell is not None:
            self._count += 1
            self._tell({"progress": self._count, "message": message})


def _failure(text: str) -> bytes:
    return msgspec.json.encode({"content": [{"type": "text", "text": text}], "isError": True})
