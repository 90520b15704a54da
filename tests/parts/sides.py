"""The workspace's tools from three sides: its own server over stdio, the daemon, and the same process.

In: a home with a project. Out: a `Side`, which calls a tool as a model's client does and gives all that came back.
A loop in a thread of its own keeps the connection for as many tests as ask.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio.from_thread

from parts import workspace as workspaces
from parts.agent_clients import AgentClient, Owner
from parts.daemon import Home, StartDaemon
from parts.traps import leaked
from toolcrib.workspace.workspace import Workspace, WorkspaceSession, WorkspaceSettings

NAMES = ("stdio", "daemon", "here")
PLAIN = WorkspaceSettings()


@dataclass(frozen=True, kw_only=True)
class Said:
    is_error: bool
    text: str
    """What a model reads first."""
    whole: str
    """All of it, as JSON without escapes for letters."""
    data: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{'ERROR ' if self.is_error else ''}{self.whole[:1500]}"


@dataclass(frozen=True, kw_only=True)
class Side:
    name: str
    ask: Callable[[str, dict[str, Any]], dict[str, Any]]

    def call(self, tool: str, /, **arguments: Any) -> Said:
        result = self.ask(tool, arguments)
        return Said(
            is_error=bool(result.get("isError")),
            text="\n".join(part.get("text", "") for part in result.get("content") or ()),
            whole=json.dumps(result, ensure_ascii=False),
            data=result.get("structuredContent") or {},
        )

    def sh(self, command: str, **more: Any) -> Said:
        return self.call("run_shell_safe", command=command, **more)


@contextlib.contextmanager
def over_stdio(
    home: Home,
    *flags: str,
    env: Mapping[str, str] | None = None,
    root: Path | None = None,
    words: list[str] | None = None,
) -> Iterator[Side]:
    """`words`: in the place of those that usually start it."""
    with workspaces.starting(home) as start, anyio.from_thread.start_blocking_portal() as portal:
        server = start("stdio", *flags, env=env, root=root)
        server.words = words or server.words
        with portal.wrap_async_context_manager(server.client("modern")) as client:

            def ask(tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
                result = portal.call(client.call_tool, tool, arguments)
                told: dict[str, Any] = result.model_dump(by_alias=True, mode="json", exclude_none=True)
                return told

            yield Side(name="stdio", ask=ask)


@contextlib.contextmanager
def at_daemon(start: StartDaemon, root: Path, env: Mapping[str, str] | None = None) -> Iterator[Side]:
    running = start({}, env=env)
    token = Owner(running).add("hostile", profile="developer", workdir=str(root))
    with AgentClient(running, "hostile", token, "modern") as agent:

        def ask(tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
            answer = agent.call(f"workspace_{tool}", **arguments)
            message = json.loads(answer.message)
            if "error" in message:
                return {"content": [{"type": "text", "text": message["error"]["message"]}], "isError": True}
            result: dict[str, Any] = message["result"]
            return result

        yield Side(name="daemon", ask=ask)


@contextlib.contextmanager
def in_process(
    root: Path, settings: WorkspaceSettings = PLAIN, *, environ: Mapping[str, str], unsafe: bool = False
) -> Iterator[Side]:
    """Every call on one session."""
    with anyio.from_thread.start_blocking_portal() as portal:
        workspace = Workspace(root, settings, environ=environ, unsafe_no_sandbox=unsafe)
        session = WorkspaceSession(settings.limits)

        def ask(tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
            async def call() -> bytes:
                return await workspace.call(tool, json.dumps(arguments).encode(), session=session)

            result: dict[str, Any] = json.loads(portal.call(call))
            return result

        try:
            yield Side(name="here", ask=ask)
        finally:
            portal.call(workspace.close)


def limited(settings: WorkspaceSettings = PLAIN, **limits: Any) -> WorkspaceSettings:
    return replace(settings, limits=replace(settings.limits, **limits))


def told(said: Said) -> Said:
    """What was said, once it is sure that it tells nothing of what lies outside."""
    assert not leaked(said.whole), f"{leaked(said.whole)}: {said}"
    return said
