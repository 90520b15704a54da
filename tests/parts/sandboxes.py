"""Real sandboxes for tests, in folders that belong to the current user or to another one."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from toolcrib.workspace.folder import Folder
from toolcrib.workspace.sandbox import Sandbox, SandboxCommand, SandboxResult
from toolcrib.workspace.settings.model import DEFAULTS, Limits, WorkspaceSettings

OTHER_UID = 1234
"""Has no account."""
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
OWNERS = ("me", pytest.param("other", marks=needs_root))
PYTHON = Path(sys.executable).resolve()
NO_PLUGINS = "PYTEST_DISABLE_PLUGIN_AUTOLOAD"
QUICK_TESTS = replace(DEFAULTS, environment=(NO_PLUGINS,))
"""Without our own plugins, pytest starts in a fifth of the time."""


def minimal_environ() -> dict[str, str]:
    """Enough to find bubblewrap."""
    return {"PATH": os.environ["PATH"]}


def give_to(owner: str, path: Path) -> Path:
    """Gives a folder and its content to the other user, if `owner` is "other"."""
    if owner == "other":
        for place in (path, *path.rglob("*")):
            os.chown(place, OTHER_UID, OTHER_UID, follow_symlinks=False)
    return path


def give_to_owner_of(root: Path) -> None:
    """Gives what a test has put into a folder to the folder's owner."""
    give_to("me" if root.stat().st_uid == os.geteuid() else "other", root)


def make_folder(parent: Path, owner: str = "me", name: str = "project") -> Path:
    folder = parent / name
    folder.mkdir()
    return give_to(owner, folder)


def empty(folder: Path) -> None:
    """Removes the content of a folder, also where a command has closed it."""
    folder.chmod(0o755)
    for path in folder.rglob("*"):
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o755)
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


@asynccontextmanager
async def tried_sandbox(
    root: Path,
    settings: WorkspaceSettings = DEFAULTS,
    *,
    environ: Mapping[str, str] | None = None,
    unsafe: bool = False,
) -> AsyncIterator[Sandbox]:
    """A sandbox that may refuse to run commands."""
    folder = Folder(root, hidden=settings.hidden, guarded=settings.guarded, repositories=settings.repositories)
    sandbox = await Sandbox.open(folder, settings, environ=environ or minimal_environ(), unsafe=unsafe)
    try:
        yield sandbox
    finally:
        await sandbox.close()
        folder.close()


@asynccontextmanager
async def open_sandbox(root: Path, settings: WorkspaceSettings = DEFAULTS, **more: Any) -> AsyncIterator[Sandbox]:
    async with tried_sandbox(root, settings, **more) as sandbox:
        assert sandbox.refusal is None, sandbox.refusal.text()
        yield sandbox


class SandboxPool:
    """Opens a sandbox once for all tests that use the same settings, because opening takes longer than a command."""

    def __init__(self, parent: Path, owner: str) -> None:
        self.parent = parent
        self.owner = owner
        self._stack = AsyncExitStack()
        self._opened: dict[str, Sandbox] = {}

    @asynccontextmanager
    async def use(self, settings: WorkspaceSettings = DEFAULTS, name: str = "project") -> AsyncIterator[Sandbox]:
        """A sandbox with an empty folder. Different names give different sandboxes."""
        key = f"{name} {settings}"
        if key not in self._opened:
            root = make_folder(self.parent, self.owner, f"{name}-{len(self._opened)}")
            self._opened[key] = await self._stack.enter_async_context(open_sandbox(root, settings))
        yield self._opened[key]
        empty(self._opened[key].folder.root)

    async def close(self) -> None:
        await self._stack.aclose()


def with_limits(settings: WorkspaceSettings = DEFAULTS, **limits: object) -> WorkspaceSettings:
    return replace(settings, limits=replace(Limits(), **limits))  # type: ignore[arg-type]


async def shell(sandbox: Sandbox, line: str, *, seconds: float = 60, **more: Any) -> SandboxResult:
    return await sandbox.run(SandboxCommand(argv=("/bin/sh", "-c", line), seconds=seconds, **more))


async def python(sandbox: Sandbox, source: str, *args: str, seconds: float = 60, **more: Any) -> SandboxResult:
    """Runs Python source inside; `args` are its `sys.argv[1:]`."""
    argv = (str(PYTHON), "-I", "-c", textwrap.dedent(source), *args)
    return await sandbox.run(SandboxCommand(argv=argv, seconds=seconds, **more))


async def output_of(sandbox: Sandbox, source: str, *args: str, seconds: float = 60) -> str:
    """The output of Python source that must not fail."""
    result = await python(sandbox, source, *args, seconds=seconds)
    assert result.code == 0, result.stderr.text()
    return result.stdout.text().strip()


def pids_with(mark: str) -> list[int]:
    """The running processes whose command line contains the mark, except this one and zombies."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with suppress(OSError):
                if mark.encode() in (entry / "cmdline").read_bytes() and is_running(int(entry.name)):
                    found.append(int(entry.name))
    return found


def is_running(pid: int) -> bool:
    """False for a zombie, too."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
