"""A small Python project in a real sandbox, and the workspace's tools at work in it.

In: a folder, settings. Out: a `Place` whose tools are called as the workspace calls them, without a server around.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from parts.sandboxes import opened
from toolcrib.workspace.sandbox import Sandbox
from toolcrib.workspace.session import WorkspaceSession
from toolcrib.workspace.settings.model import DEFAULTS
from toolcrib.workspace.tool import ToolContext, ToolResult
from toolcrib.workspace.tools.run_tests import RunTestsArguments, RunTestsResult, run_tests
from toolcrib.workspace.tools.shell import RunShellArguments, RunShellResult, run_shell_safe

PROJECT = {
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Place:
    root: Path
    scene: ToolContext
    heard: list[str]
    """What was told as progress."""
    told: asyncio.Event
    """Set when something was told."""

    async def do(self, tool: Callable[[ToolContext, Any], Awaitable[ToolResult]], given: Any) -> ToolResult:
        return await tool(self.scene, given)

    def write(self, path: str, text: str) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def git(self, *words: str) -> str:
        """As a person would, outside of any sandbox."""
        who = ("-c", "user.name=A Person", "-c", "user.email=person@localhost")
        env = {"PATH": os.environ["PATH"], "HOME": str(self.root), "GIT_CONFIG_NOSYSTEM": "1"}
        done = subprocess.run(
            ["git", *who, *words], cwd=self.root, env=env, check=True, capture_output=True, text=True, timeout=30
        )
        return done.stdout

    def commit(self) -> None:
        if not (self.root / ".git").exists():
            self.git("init", "--quiet", "--initial-branch=main")
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message=state")


@contextlib.asynccontextmanager
async def place_in(root: Path, *, environ: dict[str, str] | None = None, **chosen: Any) -> AsyncIterator[Place]:
    """`chosen`: settings, and limits by their names."""
    names = {field.name for field in dataclasses.fields(DEFAULTS)}
    limits = dataclasses.replace(DEFAULTS.limits, **{k: v for k, v in chosen.items() if k not in names})
    settings = dataclasses.replace(DEFAULTS, limits=limits, **{k: v for k, v in chosen.items() if k in names})
    around = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], **(environ or {})}
    heard: list[str] = []
    told = asyncio.Event()

    def hear(text: str) -> None:
        heard.append(text)
        told.set()

    async with opened(root, settings, environ=around) as sandbox:

        async def give() -> Sandbox:
            return sandbox

        scene = ToolContext(
            folder=sandbox.folder,
            settings=settings,
            session=WorkspaceSession(settings.limits),
            sandbox=give,
            environ=around,
            progress=hear,
        )
        yield Place(root=sandbox.folder.root, scene=scene, heard=heard, told=told)


def make_project(root: Path) -> Path:
    for path, text in PROJECT.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


async def shell(place: Place, command: str | list[str], **more: object) -> RunShellResult:
    done = await place.do(
        run_shell_safe,
        msgspec.convert({"argv" if isinstance(command, list) else "command": command, **more}, RunShellArguments),
    )
    assert isinstance(done.data, RunShellResult)
    assert done.text.startswith(done.data.ending)
    return done.data


async def run_pytest(place: Place, **given: object) -> RunTestsResult:
    done = await place.do(run_tests, msgspec.convert(given, RunTestsArguments))
    assert isinstance(done.data, RunTestsResult)
    assert done.text.startswith(done.data.outcome.replace("_", " ").upper())
    return done.data


def size_of(ran: msgspec.Struct) -> int:
    return len(msgspec.json.encode(ran))


def is_running(mark: str) -> bool:
    words = []
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            words.append((process / "cmdline").read_bytes())
    return any(mark.encode() in one for one in words)
