"""The workspace's tools by three routes: its own server over stdio, the daemon, and this process."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio.from_thread

from parts import workspace as workspaces
from parts.agent_clients import AgentClient, Owner
from parts.daemon import Daemon, Home, StartDaemon
from parts.sandboxes import NO_PLUGINS, QUICK_TESTS
from parts.traps import leaks_in
from toolcrib.workspace.session import WorkspaceSession
from toolcrib.workspace.settings.model import WorkspaceSettings
from toolcrib.workspace.workspace import Workspace

NAMES = ("stdio", "daemon", "here")


@dataclass(frozen=True, kw_only=True)
class Answer:
    is_error: bool
    text: str
    whole: str
    """Everything, as JSON without escapes for letters."""
    data: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{'ERROR ' if self.is_error else ''}{self.whole[:1500]}"


@dataclass(frozen=True, kw_only=True)
class Side:
    name: str
    ask: Callable[[str, dict[str, Any]], dict[str, Any]]

    def call(self, tool: str, /, **arguments: Any) -> Answer:
        result = self.ask(tool, arguments)
        return Answer(
            is_error=bool(result.get("isError")),
            text="\n".join(part.get("text", "") for part in result.get("content") or ()),
            whole=json.dumps(result, ensure_ascii=False),
            data=result.get("structuredContent") or {},
        )

    def checked(self, tool: str, /, **arguments: Any) -> Answer:
        """The answer, which must have a text, leak nothing from outside, and not report a bug."""
        answer = self.call(tool, **arguments)
        assert not leaks_in(answer.whole), f"{tool} {arguments} leaks {leaks_in(answer.whole)}: {answer}"
        assert answer.text.strip(), f"{tool} {arguments} has no text"
        assert "a bug in the workspace" not in answer.text, f"{tool} {arguments}: {answer}"
        return answer

    def sh(self, command: str) -> Answer:
        return self.call("run_shell_safe", command=command)


def allow_quick_tests(home: Home) -> None:
    (home.toolcrib / "workspace.yml").write_text(f"environment: [{NO_PLUGINS}]\n")


@contextlib.contextmanager
def over_stdio(
    home: Home, *, env: Mapping[str, str] | None = None, root: Path | None = None, words: list[str] | None = None
) -> Iterator[Side]:
    """`words` replace the usual command."""
    allow_quick_tests(home)
    with workspaces.starting(home) as start, anyio.from_thread.start_blocking_portal() as portal:
        server = start("stdio", env={**(env or {}), NO_PLUGINS: "1"}, root=root)
        server.words = words or server.words
        with portal.wrap_async_context_manager(server.client("modern")) as client:

            def ask(tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
                result = portal.call(client.call_tool, tool, arguments)
                return dict(result.model_dump(by_alias=True, mode="json", exclude_none=True))

            yield Side(name="stdio", ask=ask)


@contextlib.contextmanager
def at_daemon(start: StartDaemon, root: Path, env: Mapping[str, str] | None = None) -> Iterator[Side]:
    daemon = start({}, env={**(env or {}), NO_PLUGINS: "1"})
    allow_quick_tests(daemon.home)
    with as_agent(daemon, root) as side:
        yield side


@contextlib.contextmanager
def as_agent(daemon: Daemon, root: Path, name: str = "hostile") -> Iterator[Side]:
    """A new agent that works in that folder."""
    token = Owner(daemon).add(name, profile="developer", workdir=str(root))
    with AgentClient(daemon, name, token, "modern") as agent:

        def ask(tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
            message = json.loads(agent.call(f"workspace_{tool}", **arguments).message)
            if "error" in message:
                return {"content": [{"type": "text", "text": message["error"]["message"]}], "isError": True}
            return dict(message["result"])

        yield Side(name="daemon", ask=ask)


@contextlib.contextmanager
def in_process(
    root: Path, settings: WorkspaceSettings = QUICK_TESTS, *, environ: Mapping[str, str], unsafe: bool = False
) -> Iterator[Side]:
    """All calls belong to one session."""
    with anyio.from_thread.start_blocking_portal() as portal:
        workspace = Workspace(root, settings, environ={**environ, NO_PLUGINS: "1"}, unsafe_no_sandbox=unsafe)
        session = WorkspaceSession(settings.limits)

        def ask(tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
            async def call() -> bytes:
                return await workspace.call(tool, json.dumps(arguments).encode(), session=session)

            return dict(json.loads(portal.call(call)))

        try:
            yield Side(name="here", ask=ask)
        finally:
            portal.call(workspace.close)
