"""A small Python project in a real sandbox, and the tools that run code in it, called without a server."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from parts import tool_context
from parts.sandboxes import NO_PLUGINS, QUICK_TESTS, open_sandbox
from parts.traps import git
from toolcrib.workspace.sandbox import Sandbox
from toolcrib.workspace.session import WorkspaceSession
from toolcrib.workspace.tool import ToolContext, ToolResult
from toolcrib.workspace.tools import BY_NAME

SECRET = "hunter2-of-the-server"
FILES = {
    "pyproject.toml": """
[tool.pytest.ini_options]
pythonpath = ["src"]
markers = ["slow: takes long"]

[tool.ruff.lint]
select = ["F"]

[tool.mypy]
files = ["src"]
""",
    "src/sums/__init__.py": "def add(a: int, b: int) -> int:\n    return a + b\n",
    "tests/test_sums.py": "from sums import add\n\n\ndef test_add() -> None:\n    assert add(2, 3) == 5\n",
    ".gitignore": "__pycache__/\n.*_cache/\n",
}


class SandboxedProject:
    def __init__(self, sandbox: Sandbox) -> None:
        async def get_sandbox() -> Sandbox:
            return sandbox

        self.root = sandbox.folder.root
        self.progress: list[str] = []
        self.has_progress = asyncio.Event()
        self.context = ToolContext(
            folder=sandbox.folder,
            settings=sandbox.settings,
            session=WorkspaceSession(sandbox.settings.limits),
            sandbox=get_sandbox,
            environ=sandbox._environ,
            progress=self._add_progress,
        )

    def _add_progress(self, text: str) -> None:
        self.progress.append(text)
        self.has_progress.set()

    def write(self, path: str, text: str) -> Path:
        tool_context.make_files(self.root, {path: text})
        return self.root / path

    def git(self, *args: str) -> None:
        git(self.root, *args)

    def commit(self) -> None:
        commit(self.root)

    async def call(self, tool: str, **arguments: Any) -> ToolResult:
        result: Any = BY_NAME[tool].do(self.context, msgspec.convert(arguments, BY_NAME[tool].parameters))
        answer: ToolResult = await result
        return answer

    async def shell(self, command: str | list[str], **more: object) -> Any:
        given = {"argv" if isinstance(command, list) else "command": command}
        result = await self.call("run_shell_safe", **given, **more)
        assert result.text.startswith(result.data.ending)
        return result.data

    async def run_tests(self, *paths: str, **more: object) -> Any:
        result = await self.call("run_tests", paths=paths, **more)
        assert result.text.startswith(result.data.outcome.replace("_", " ").upper())
        return result.data

    async def lint(self, *paths: str, **more: object) -> Any:
        return (await self.call("run_lint", paths=paths, **more)).data

    async def diff(self, path: str = "", **more: object) -> Any:
        result = await self.call("project_diff", **({"path": path} if path else {}), **more)
        assert result.text.startswith(f"On {result.data.branch}:")
        return result.data


def commit(root: Path) -> None:
    if not (root / ".git").exists():
        git(root, "init", "--quiet", "--initial-branch=main")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message=state")


def make_files(root: Path) -> Path:
    tool_context.make_files(root, FILES)
    return root


@contextlib.asynccontextmanager
async def project_sandbox(
    root: Path, *, environ: Mapping[str, str] | None = None, **chosen: Any
) -> AsyncIterator[Sandbox]:
    """`chosen`: settings, and limits by their names. The environment contains `SECRET`."""
    settings = tool_context.settings_with(QUICK_TESTS, **chosen)
    usual = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], "API_TOKEN": SECRET, NO_PLUGINS: "1"}
    async with open_sandbox(root, settings, environ={**usual, **(environ or {})}) as sandbox:
        yield sandbox


@contextlib.asynccontextmanager
async def open_project(root: Path, **chosen: Any) -> AsyncIterator[SandboxedProject]:
    async with project_sandbox(make_files(root), **chosen) as sandbox:
        yield SandboxedProject(sandbox)
