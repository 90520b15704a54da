"""One folder and its tools: every tool call goes through here, in the server and in the daemon.

In: a tool's name and arguments, and the session whose limits apply. Out: an MCP result as JSON; an error is a result
too, with a text that a model can act on. `serving` puts it on the wire, the daemon calls it in its own process. File
tools run in a small thread pool, commands in the sandbox, whose self-test runs in the background. `examine` implements
`toolcrib workspace check`: the effective settings of a folder, as plain values.
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
"""File tools that run at once. A ninth waits, and its time limit already runs."""
UNSAFE = "NOT SANDBOXED (--unsafe-no-sandbox): commands run with all rights of the server's user."
_ESCAPED = 6
"""Bytes in JSON for one byte of a file, at most."""
_GRACE = 0.5
"""Seconds after its deadline in which a tool can still return a partial result."""
_AUDITED = 2000
"""Characters of a command's arguments in the log."""


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
        """`tools`: the callable tools, which may have other names and parameters than the built-in ones."""
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
        """Includes abandoned calls that have not ended yet."""
        self._sandbox: asyncio.Task[Sandbox] | None = None

    def start(self) -> None:
        """Starts the sandbox's self-test, which commands wait for."""
        if self._sandbox is None:
            opening = Sandbox.open(self.folder, self.settings, environ=self._environ, unsafe=self.unsafe)
            self._sandbox = asyncio.get_running_loop().create_task(opening)

    async def sandbox(self) -> Sandbox:
        """Waits for the self-test; returns the sandbox even if it refuses to run anything."""
        self.start()
        opening = cast("asyncio.Task[Sandbox]", self._sandbox)
        # A cancelled caller must not cancel the self-test.
        return await asyncio.shield(opening)

    async def close(self) -> None:
        """Ends running commands. Running file tools end at their time limit at the latest."""
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
        """Without a sandbox, a tool that runs code may change anything: a repository can make git start programs."""
        if not self.unsafe or tool.needs is ToolNeeds.FILES:
            return tool
        description = f"{UNSAFE} {tool.description}"
        return dataclasses.replace(tool, description=description, reads_only=False, destructive=True, idempotent=False)

    def why_not(self, name: str) -> WorkspaceError | None:
        """Why a tool is not offered here, with a remedy."""
        ruled_as = self._table[name].ruled_as if name in self._table else name
        if ruled_as in self.settings.off:
            return WorkspaceError(
                f"{name} is switched off in this workspace.",
                remedy="The user can switch it on: `tools:` in workspace.yml.",
            )
        if self.settings.read_only and ruled_as in WRITING_TOOLS:
            return WorkspaceError(
                f"{name} is not available: this workspace is read-only.",
                remedy="Use the listed tools. Only the user can start it without read-only mode.",
            )
        if self.settings.read_only and self.unsafe and self.runs_code(name):
            return WorkspaceError(
                f"{name} is not available: this workspace is read-only, which needs a sandbox.",
                remedy="Reading and searching work. The user can start it without --unsafe-no-sandbox.",
            )
        if self._ci and ruled_as in SHELL_TOOLS:
            return WorkspaceError(
                f"{name} is not available in CI ({self._ci} is set).",
                remedy="Use the listed tools. The user can set forbid_shell_in_ci: false in workspace.yml.",
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
            log.exception("%s failed", name)
            return _failure(
                f"{name} failed because of a bug in the workspace server, not because of the arguments; see its log. "
                "Another tool may still work."
            )

    def check(self, name: str, arguments: Mapping[str, Any]) -> None:
        """Only validates the arguments: raises the same `WorkspaceError` as a call would."""
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
        """A file tool stops at its deadline. If it doesn't, the caller still gets an answer."""
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
            f"{tool.name} took longer than {seconds:g} s and was abandoned.",
            remedy="Ask for less: a smaller folder, a narrower pattern, a range."
            + ("" if tool.reads_only else " It may still succeed: check before you repeat it."),
        )

    def _over(self, work: asyncio.Future[ToolResult]) -> None:
        self._at_work.discard(work)
        if not work.cancelled():
            # Marks the exception as retrieved: for an abandoned call, asyncio would complain.
            work.exception()

    def _result(self, tool: WorkspaceTool, done: ToolResult) -> bytes:
        # The warning is in both parts, because some clients show a model only one of them.
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
                f"The result of {tool.name} is too large ({len(result)} bytes; the maximum is {most}).",
                remedy="Ask for less: a smaller folder, a narrower pattern, a range.",
            )
        return result


class _Progress:
    """Numbers the messages of a tool and delivers them in the event loop's thread until the call ends."""

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
            # The thread of an abandoned call may still send when the loop is closed.
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
    """`off`: switched off by a setting. `refused`: cannot work until a person fixes the cause."""
    if loaded.settings.broken:
        return _tool_values(name, "refused", loaded.settings.broken, "Fix the file.")
    if (why := workspace.why_not(name)) is not None:
        return _tool_values(name, "off", why.message, why.remedy, _decided_by(name, loaded))
    if workspace.runs_code(name) and sandbox.refusal is not None:
        return _tool_values(name, "refused", sandbox.refusal.message, sandbox.refusal.remedy)
    return _tool_values(name, "on")


def _decided_by(name: str, loaded: LoadedSettings) -> str:
    """The file or flag that switched the tool off; empty for a built-in rule."""
    if name in loaded.settings.off:
        return loaded.origins.get(f"tools.{name}", "")
    if loaded.settings.read_only and name in WRITING_TOOLS:
        return loaded.origins.get("read_only", "")
    return loaded.origins.get("forbid_shell_in_ci", "") if name in SHELL_TOOLS else ""


def _tool_values(name: str, state: str, why: str = "", remedy: str = "", set_by: str = "") -> dict[str, Any]:
    return {"name": name, "state": state, "why": why, "remedy": remedy, "set_by": set_by}


def _refusal_values(error: ToolcribError) -> dict[str, str]:
    return {"message": error.message, "remedy": error.remedy}
