"""Real sandboxes for tests: a folder of whoever runs the tests, or of somebody else, and commands in it."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from toolcrib.workspace.folder import Folder, FolderPath
from toolcrib.workspace.sandbox import Sandbox, SandboxCommand, SandboxResult
from toolcrib.workspace.settings.model import DEFAULTS, Limits, WorkspaceSettings

SOMEBODY = 1234
"""A uid that is nobody's."""
PYTHON = Path(sys.executable).resolve()


def usual() -> dict[str, str]:
    """Where bubblewrap is found, and nothing else."""
    return {"PATH": os.environ["PATH"]}


def own(path: Path, owner: str) -> Path:
    """Gives a folder with all that is in it to somebody else, if that is asked for; only root can."""
    if owner == "somebody":
        for place in (path, *path.rglob("*")):
            os.chown(place, SOMEBODY, SOMEBODY, follow_symlinks=False)
    return path


@asynccontextmanager
async def opened(
    root: Path,
    settings: WorkspaceSettings = DEFAULTS,
    *,
    environ: Mapping[str, str] | None = None,
    unsafe: bool = False,
) -> AsyncIterator[Sandbox]:
    """One that holds; a test of refusals opens its own."""
    folder = Folder(root, hidden=settings.hidden, guarded=settings.guarded, repositories=settings.repositories)
    sandbox = await Sandbox.open(folder, settings, environ=environ or usual(), unsafe=unsafe)
    try:
        assert sandbox.refusal is None, sandbox.refusal.text()
        yield sandbox
    finally:
        await sandbox.close()
        folder.close()


def limited(**limits: object) -> WorkspaceSettings:
    return replace(DEFAULTS, limits=replace(Limits(), **limits))  # type: ignore[arg-type]


async def shell(sandbox: Sandbox, line: str, *, seconds: float = 60, **more: object) -> SandboxResult:
    return await sandbox.run(SandboxCommand(argv=("/bin/sh", "-c", line), seconds=seconds, **more))  # type: ignore[arg-type]


async def python(sandbox: Sandbox, source: str, *words: str, seconds: float = 60, **more: object) -> SandboxResult:
    """Runs a piece of Python inside; its words are `sys.argv[1:]`."""
    argv = (str(PYTHON), "-I", "-c", textwrap.dedent(source), *words)
    return await sandbox.run(SandboxCommand(argv=argv, seconds=seconds, **more))  # type: ignore[arg-type]


async def printed(sandbox: Sandbox, source: str, *words: str, seconds: float = 60) -> str:
    """What a piece of Python prints, which must not fail."""
    finished = await python(sandbox, source, *words, seconds=seconds)
    assert finished.code == 0, finished.stderr.text()
    return finished.stdout.text().strip()


def path_of(*parts: str) -> FolderPath:
    return FolderPath(parts)
