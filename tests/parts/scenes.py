"""What a file tool works with, without a server around it."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from toolcrib.workspace.folder import Folder
from toolcrib.workspace.session import WorkspaceSession
from toolcrib.workspace.settings.model import DEFAULTS
from toolcrib.workspace.tool import ToolContext


async def _no_sandbox() -> Any:
    raise AssertionError("a file tool asked for the sandbox")


@contextlib.contextmanager
def scene_in(root: Path, **chosen: Any) -> Iterator[ToolContext]:
    """`chosen`: settings, and limits by their names."""
    names = {field.name for field in dataclasses.fields(DEFAULTS)}
    limits = dataclasses.replace(DEFAULTS.limits, **{k: v for k, v in chosen.items() if k not in names})
    settings = dataclasses.replace(DEFAULTS, limits=limits, **{k: v for k, v in chosen.items() if k in names})
    patterns = {"hidden": settings.hidden, "guarded": settings.guarded}
    with contextlib.closing(Folder(root, **patterns, repositories=settings.repositories)) as folder:
        yield ToolContext(
            folder=folder, settings=settings, session=WorkspaceSession(settings.limits), sandbox=_no_sandbox, environ={}
        )
