"""A small Python project in a real sandbox, and the tools that run code in it, called without a server.

In: a folder, settings. Out: a `SandboxedProject`.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from parts.sandboxes import NO_PLUGINS, QUICK_TESTS, open_sandbox
from parts.traps import git
from toolcrib.workspace.sandbox import Sandbox
from toolcrib.workspace.session import WorkspaceSession
from toolcrib.workspace.settings.model import DEFAULTS
from toolcrib.workspace.tool import ToolContext
from toolcrib.workspace.tools.lint import RunLintArguments, RunLintResult, run_lint
from toolcrib.workspace.tools.project_diff import ProjectDiffArguments, ProjectDiffResult, project_diff
from toolcrib.workspace.tools.run_tests import RunTestsArguments, RunTestsResult, run_tests
from toolcrib.workspace.tools.shell import RunShellArguments, RunShellResult, run_shell_safe

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
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def git(self, *args: str) -> None:
        git(self.root, *args)

    def commit(self) -> None:
        commit(self.root)

    async def shell(self, command: str | list[str], **more: object) -> RunShellResult:
        arguments = {"argv" if isinstance(command, list) else "command": command, **more}
        result = await run_shell_safe(self.context, msgspec.convert(arguments, RunShellArguments))
        assert isinstance(result.data, RunShellResult)
        assert result.text.startswith(result.data.ending)
        return result.data

    async def run_tests(self, *paths: str, **more: object) -> RunTestsResult:
        arguments = msgspec.convert({"paths": paths, **more}, RunTestsArguments)
        result = await run_tests(self.context, arguments)
        assert isinstance(result.data, RunTestsResult)
        assert result.text.startswith(result.data.outcome.replace("_", " ").upper())
        return result.data

    async def lint(self, *paths: str, **more: object) -> RunLintResult:
        result = await run_lint(self.context, msgspec.convert({"paths": paths, **more}, RunLintArguments))
        assert isinstance(result.data, RunLintResult)
        return result.data

    async def diff(self, path: str = "", **more: object) -> ProjectDiffResult:
        arguments = msgspec.convert({**({"path": path} if path else {}), **more}, ProjectDiffArguments)
        result = await project_diff(self.context, arguments)
        assert isinstance(result.data, ProjectDiffResult)
        assert result.text.startswith(f"On {result.data.branch}:")
        return result.data


def commit(root: Path) -> None:
    if not (root / ".git").exists():
        git(root, "init", "--quiet", "--initial-branch=main")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message=state")


def make_files(root: Path) -> Path:
    for path, text in FILES.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


@contextlib.asynccontextmanager
async def project_sandbox(
    root: Path, *, environ: Mapping[str, str] | None = None, **chosen: Any
) -> AsyncIterator[Sandbox]:
    """`chosen`: settings, and limits by their names. The environment contains `SECRET`."""
    names = {field.name for field in dataclasses.fields(DEFAULTS)}
    limits = dataclasses.replace(DEFAULTS.limits, **{k: v for k, v in chosen.items() if k not in names})
    settings = dataclasses.replace(QUICK_TESTS, limits=limits, **{k: v for k, v in chosen.items() if k in names})
    usual = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], "API_TOKEN": SECRET, NO_PLUGINS: "1"}
    async with open_sandbox(root, settings, environ={**usual, **(environ or {})}) as sandbox:
        yield sandbox


@contextlib.asynccontextmanager
async def open_project(root: Path, **chosen: Any) -> AsyncIterator[SandboxedProject]:
    async with project_sandbox(make_files(root), **chosen) as sandbox:
        yield SandboxedProject(sandbox)
