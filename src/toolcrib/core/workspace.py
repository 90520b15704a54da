"""The workspace tools as a built-in server with the reserved name `workspace`: every caller works in its own folder.

In: a call that came through the door. Out: the tool's result. An agent works in its folder; the owner and clients
without an agent work in their project. A folder's workspace is created on first use and closed some time after its
last use. Its settings are reloaded when their files change: each call checks the files, and `config_watch` those of the
projects, whose catalogs list the tools.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from toolcrib.config.model import WORKSPACE
from toolcrib.core.config_watch import Stamp, stamp_of
from toolcrib.core.project import Project
from toolcrib.errors import CallTimeout, StoreError, ToolcribError, WorkspaceError
from toolcrib.events import AuditedChange
from toolcrib.identity.principal import RequestContext
from toolcrib.servers.model import Offers, OnProgress, ServerAnswer, ToolCall
from toolcrib.workspace.session import WorkspaceSession
from toolcrib.workspace.settings.load import load_settings, settings_files
from toolcrib.workspace.workspace import Workspace

if TYPE_CHECKING:
    from toolcrib.core.crib import Crib

log = logging.getLogger(__name__)

WORKSPACE_LINGER = 300.0
"""Seconds that a folder's workspace stays open after its last use."""
MOST_SESSIONS = 4096
"""Maximum number of conversations with a count; beyond it, the least recently used one starts again from zero."""


@dataclass(eq=False)
class _OpenWorkspace:
    """One folder's workspace, with the number of its current users."""

    workspace: Workspace
    stamp: Stamp
    users: int = 0
    used: float = 0.0
    over: bool = False
    """No longer used for new calls; it is closed after the last call ends."""


class WorkspaceServer:
    name = WORKSPACE

    def __init__(self, *, unsafe_no_sandbox: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self._unsafe = unsafe_no_sandbox
        self._clock = clock
        self._crib: Crib | None = None
        self._trusted: frozenset[str] = frozenset()
        self._open: dict[Path, _OpenWorkspace] = {}
        self._sessions: OrderedDict[tuple[str, str, str], WorkspaceSession] = OrderedDict()
        self._leaving: set[asyncio.Task[None]] = set()

    async def refresh(self, crib: Crib) -> None:
        self._crib = crib
        self._trusted = await crib.trust.files()
        for root in list(self._open):
            self._let_go(root)

    async def close(self) -> None:
        for root in list(self._open):
            self._let_go(root, now=True)
        await asyncio.gather(*self._leaving)

    def tools_in(self, project: Project) -> tuple[bytes, ...]:
        """The tools for the project's folder; none if the folder is unsuitable or the workspace is disabled."""
        if not self._home.projects.home.config.settings.workspace:
            return ()
        try:
            return self._at(project.root).workspace.tools
        except ToolcribError as error:
            log.info("%s has no workspace tools: %s", project.root, error.text())
            return ()

    def offers_in(self, project: Project) -> Offers:
        return Offers()

    def absence(self, project: Project) -> str:
        """Why the project has no workspace tools; empty if it has them."""
        if not self._home.projects.home.config.settings.workspace:
            return f"`workspace: false` in {self._home.environment.paths.user_config} disables the workspace tools."
        try:
            self._at(project.root)
        except ToolcribError as error:
            return error.text()
        return ""

    async def call(
        self,
        request: RequestContext[Project],
        call: ToolCall,
        *,
        timeout: float | None = None,
        on_progress: OnProgress | None = None,
    ) -> ServerAnswer:
        try:
            async with asyncio.timeout(timeout):
                return await self._answer(request, call, on_progress)
        except TimeoutError:
            raise CallTimeout(f"{call.name} did not finish within {timeout:g} s; its processes were ended.") from None

    async def _answer(
        self, request: RequestContext[Project], call: ToolCall, on_progress: OnProgress | None
    ) -> ServerAnswer:
        root = Path(request.principal.permission().folder or request.project.root)
        try:
            opened = self._at(root)
            await self._note_unsafe(opened.workspace, call.name, request.principal.name)
        except ToolcribError as error:
            return ServerAnswer(result=_failed(error.text()))
        opened.users += 1
        try:
            arguments = bytes(call.params.get("arguments", b"{}"))
            result = await opened.workspace.call(
                call.name, arguments, session=self._session(opened.workspace, request), on_progress=on_progress
            )
        finally:
            opened.users -= 1
            opened.used = self._clock()
            if opened.over and not opened.users:
                self._end(opened)
        return ServerAnswer(result=result)

    def _session(self, workspace: Workspace, request: RequestContext[Project]) -> WorkspaceSession:
        """The conversation's usage. It outlives the workspace, so that waiting does not reset the limits."""
        key = (str(workspace.root), request.principal.name, request.conversation)
        found = self._sessions.get(key)
        if found is None:
            found = self._sessions[key] = WorkspaceSession(workspace.settings.limits)
            if len(self._sessions) > MOST_SESSIONS:
                self._sessions.popitem(last=False)
        found.limits = workspace.settings.limits
        self._sessions.move_to_end(key)
        return found

    async def _note_unsafe(self, workspace: Workspace, tool: str, agent: str) -> None:
        """Audits code that runs without a sandbox, before it runs."""
        if self._unsafe and workspace.runs_code(tool):
            try:
                await self._home.services.record(
                    AuditedChange(
                        what="code run without a sandbox",
                        agent=agent,
                        detail={"tool": tool, "folder": str(workspace.root)},
                    )
                )
            except StoreError as error:
                raise WorkspaceError(
                    f"{tool} did not run, because running it without a sandbox must be audited. {error.message}",
                    remedy=error.remedy,
                ) from error

    def _at(self, root: Path) -> _OpenWorkspace:
        """The folder's workspace with its current settings."""
        crib = self._home
        stamp = self._stamp_of(root)
        opened = self._open.get(root)
        if opened is not None and (opened.stamp != stamp or not opened.workspace.folder.same()):
            self._let_go(root)
            opened = None
        if opened is None:
            self._let_idle_go()
            loaded = load_settings(
                root, environ=crib.environment.variables, is_trusted=lambda _, digest: digest in self._trusted
            )
            workspace = Workspace(
                root,
                loaded.settings,
                environ=crib.environment.variables,
                unsafe_no_sandbox=self._unsafe,
                unfit=(
                    crib.environment.paths.config_dir,
                    crib.environment.paths.state_dir,
                    crib.environment.paths.run_dir,
                ),
            )
            if workspace.root != root:
                # Callers' folders are real paths, so somebody has replaced the folder with a link to another one.
                self._end(_OpenWorkspace(workspace, stamp))
                raise WorkspaceError(
                    f"{root} is no longer the same folder: it or a parent is now a link.",
                    remedy="The user has to restore the folder, or add the agent again.",
                )
            opened = self._open[root] = _OpenWorkspace(workspace, stamp)
        opened.used = self._clock()
        return opened

    def files(self, project: Project) -> tuple[Path, ...]:
        return settings_files(project.root, self._home.environment.variables)

    def outdated(self, project: Project) -> bool:
        opened = self._open.get(project.root)
        return opened is not None and opened.stamp != self._stamp_of(project.root)

    def _stamp_of(self, root: Path) -> Stamp:
        return stamp_of(settings_files(root, self._home.environment.variables))

    def _let_idle_go(self) -> None:
        now = self._clock()
        for root, opened in list(self._open.items()):
            if not opened.users and now - opened.used > WORKSPACE_LINGER:
                self._let_go(root)

    def _let_go(self, root: Path, *, now: bool = False) -> None:
        opened = self._open.pop(root)
        opened.over = True
        if now or not opened.users:
            self._end(opened)

    def _end(self, opened: _OpenWorkspace) -> None:
        task = asyncio.get_running_loop().create_task(opened.workspace.close())
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    @property
    def _home(self) -> Crib:
        if self._crib is None:
            raise RuntimeError("the workspace was used before `refresh`")
        return self._crib


def _failed(text: str) -> bytes:
    return msgspec.json.encode({"content": [{"type": "text", "text": text}], "isError": True})
