"""One folder and its tools: every call of a model comes through here, whoever serves it.

In: a tool's name and its arguments, and the session that pays for it. Out: an MCP result as JSON; what goes wrong
is a result too, with a text that a model can act on. `serving` puts it on the wire, the daemon calls it in its own
process. File tools run in a few threads of their own, commands in the sandbox, whose self-test runs meanwhile.
`examine` is `toolcrib workspace check`: what is in force in a folder, as plain values.
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
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import msgspec

from toolcrib.config.paths import home_of
from toolcrib.errors import ToolcribError, WorkspaceError
from toolcrib.run_events import FAILURE_KEY
from toolcrib.workspace.folder import Folder
from toolcrib.workspace.sandbox import Sandbox
from toolcrib.workspace.session import WorkspaceSession
from toolcrib.workspace.settings.load import LoadedSettings
from toolcrib.workspace.settings.model import (
    KB,
    SHELL_TOOLS,
    TOOL_NAMES,
    WRITING_TOOLS,
    WorkspaceSettings,
    flat_settings,
    in_ci,
)
from toolcrib.workspace.tool import ToolContext, ToolNeeds, ToolResult, WorkspaceTool, decode_arguments
from toolcrib.workspace.tools import TOOLS, tool_definition
from toolcrib.workspace.tools.walk import is_missing_path, suggest_places

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
        settings: WorkspaceSettings,
        *,
        environ: Mapping[str, str],
        unsafe_no_sandbox: bool = False,
        unfit: Sequence[Path] = (),
        tools: Sequence[WorkspaceTool] = TOOLS,
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
        self.tools = tuple(tool_definition(self._as_it_is(tool), settings) for tool in offered)
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="workspace")
        self._at_work: set[asyncio.Future[ToolResult]] = set()
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
        return tool is not None and tool.needs is ToolNeeds.SANDBOX

    def _as_it_is(self, tool: WorkspaceTool) -> WorkspaceTool:
        """Without a sandbox whatever runs code may change anything: a repository can have git start its programs."""
        if not self.unsafe or tool.needs is ToolNeeds.FILES:
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
        session: WorkspaceSession,
        on_progress: OnProgress | None = None,
    ) -> bytes:
        try:
            tool = self._tool(name)
            given = decode_arguments(tool, arguments)
            session.count_call()
            progress = _Progress(on_progress) if on_progress is not None else None
            try:
                done = await self._do(tool, given, session, progress)
            finally:
                if progress is not None:
                    progress.close()
            return self._result(tool, done)
        except ToolcribError as error:
            if is_missing_path(error):
                error = await asyncio.to_thread(suggest_places, self.folder, error)
            return _failure(error.text())
        except Exception:
            log.exception("%s failed inside", name)
            return _failure(
                f"{name} failed inside the workspace server. This is a fault of the server, not of the arguments; "
                "its log says more. Another tool may still do what is needed."
            )

    def check(self, name: str, arguments: Mapping[str, Any]) -> None:
        """Raises `WorkspaceError`, as a call would, where the arguments do not fit. Does nothing else."""
        decode_arguments(self._table[name], arguments)

    def _tool(self, name: str) -> WorkspaceTool:
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

    async def _do(
        self, tool: WorkspaceTool, given: Any, session: WorkspaceSession, progress: _Progress | None
    ) -> ToolResult:
        self.folder.check_same()
        seconds = self.settings.limits.seconds[tool.ruled_as]
        context = ToolContext(
            folder=self.folder,
            settings=self.settings,
            session=session,
            sandbox=self.sandbox,
            environ=self._environ,
            progress=progress,
            deadline=time.monotonic() + seconds,
        )
        if tool.needs is ToolNeeds.SANDBOX:
            sandbox = await self.sandbox()
            if sandbox.refusal is not None:
                raise sandbox.refusal
            if self.unsafe:
                log.warning("unsandboxed: %s %.*s", tool.name, _AUDITED, msgspec.json.encode(given).decode())
            return await cast("Callable[[ToolContext, Any], Awaitable[ToolResult]]", tool.do)(context, given)
        return await self._in_time(tool, context, given, seconds)

    async def _in_time(self, tool: WorkspaceTool, context: ToolContext, given: Any, seconds: float) -> ToolResult:
        """A tool that only looks at files ends by itself at its deadline; if not, the caller gets an answer anyway."""
        work: asyncio.Future[ToolResult]
        if inspect.iscoroutinefunction(tool.do):
            work = asyncio.ensure_future(tool.do(context, given))
        else:
            look = cast("Callable[[ToolContext, Any], ToolResult]", tool.do)
            work = asyncio.get_running_loop().run_in_executor(self._pool, look, context, given)
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

    def _over(self, work: asyncio.Future[ToolResult]) -> None:
        self._at_work.discard(work)
        if not work.cancelled():
            # Of what was given up nobody asks how it ended; asyncio would complain.
            work.exception()

    def _result(self, tool: WorkspaceTool, done: ToolResult) -> bytes:
        # In both: some clients show a model only the one, some only the other.
        is_unsafe = self.unsafe and tool.needs is ToolNeeds.SANDBOX
        answer: dict[str, Any] = {
            "content": [{"type": "text", "text": f"{UNSAFE}\n{done.text}" if is_unsafe else done.text}],
        }
        if tool.result is not None:
            warning = {"warning": UNSAFE} if is_unsafe else {}
            answer["structuredContent"] = {**warning, **msgspec.to_builtins(done.data)}
        meta = {"_meta": {FAILURE_KEY: done.failure}} if done.failure else {}
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
    """Numbers the messages of a tool, and hands them over in the loop's own thread, until the call is over."""

    def __init__(self, on_progress: OnProgress) -> None:
        self._on_progress: OnProgress | None = on_progress
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
        self._on_progress = None

    def _now(self, message: str) -> None:
        if self._on_progress is not None:
            self._count += 1
            self._on_progress({"progress": self._count, "message": message})


def _failure(text: str) -> bytes:
    return msgspec.json.encode({"content": [{"type": "text", "text": text}], "isError": True})


async def examine(
    root: Path,
    loaded: LoadedSettings,
    *,
    environ: Mapping[str, str],
    unfit: Sequence[Path],
    unsafe_no_sandbox: bool = False,
) -> dict[str, Any]:
    found: dict[str, Any] = {
        "root": str(root),
        "refusal": None,
        "sandbox": None,
        "tools": [],
        "ci": in_ci(environ),
        "settings": flat_settings(loaded.settings),
        "origins": dict(loaded.origins),
        "files": [{"file": str(one.path), "trust": str(one.trust)} for one in loaded.files],
        "problems": [{**asdict(problem), "text": str(problem)} for problem in loaded.problems],
        "broken": loaded.settings.broken,
        "untrusted": str(loaded.waiting.file) if loaded.waiting else None,
        "effects": list(loaded.effects),
    }
    try:
        workspace = Workspace(root, loaded.settings, environ=environ, unsafe_no_sandbox=unsafe_no_sandbox, unfit=unfit)
    except WorkspaceError as error:
        found["refusal"] = _refusal_values(error)
        found["tools"] = [_tool_values(name, "refused", error.message, error.remedy) for name in TOOL_NAMES]
        return found
    try:
        found["root"] = str(workspace.root)
        sandbox = await workspace.sandbox()
        found["sandbox"] = _sandbox_values(sandbox)
        found["tools"] = [_tool_state(workspace, name, loaded, sandbox) for name in TOOL_NAMES]
    finally:
        await workspace.close()
    return found


def _sandbox_values(sandbox: Sandbox) -> dict[str, Any]:
    return {
        **sandbox.describe(),
        "holds": sandbox.refusal is None and not sandbox.unsafe,
        "refusal": _refusal_values(sandbox.refusal) if sandbox.refusal else None,
        "probes": [{"name": probe.name, "held": probe.held, "detail": probe.detail} for probe in sandbox.probes],
    }


def _tool_state(workspace: Workspace, name: str, loaded: LoadedSettings, sandbox: Sandbox) -> dict[str, Any]:
    """Off is what somebody decided; refused is what cannot be, and which somebody has to mend."""
    if loaded.settings.broken:
        return _tool_values(name, "refused", loaded.settings.broken, "Mend the file.")
    if (why := workspace.why_not(name)) is not None:
        return _tool_values(name, "off", why.message, why.remedy, _decided_by(name, loaded))
    if workspace.runs_code(name) and sandbox.refusal is not None:
        return _tool_values(name, "refused", sandbox.refusal.message, sandbox.refusal.remedy)
    return _tool_values(name, "on")


def _decided_by(name: str, loaded: LoadedSettings) -> str:
    """The file or flag that took the tool away; nothing where it is built in."""
    if name in loaded.settings.off:
        return loaded.origins.get(f"tools.{name}", "")
    if loaded.settings.read_only and name in WRITING_TOOLS:
        return loaded.origins.get("read_only", "")
    return loaded.origins.get("forbid_shell_in_ci", "") if name in SHELL_TOOLS else ""


def _tool_values(name: str, state: str, why: str = "", remedy: str = "", set_by: str = "") -> dict[str, Any]:
    return {"name": name, "state": state, "why": why, "remedy": remedy, "set_by": set_by}


def _refusal_values(error: ToolcribError) -> dict[str, str]:
    return {"message": error.message, "remedy": error.remedy}
