"""The workspace's file tools on a real folder, without a server or a sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from toolcrib.errors import WorkspaceError
from toolcrib.workspace.folder import Folder
from toolcrib.workspace.session import WorkspaceSession
from toolcrib.workspace.settings.model import DEFAULTS, WorkspaceSettings
from toolcrib.workspace.tool import ToolContext, ToolResult
from toolcrib.workspace.tools import BY_NAME


async def _no_sandbox() -> Any:
    raise AssertionError("a file tool requested the sandbox")


def settings_with(usual: WorkspaceSettings = DEFAULTS, /, **chosen: Any) -> WorkspaceSettings:
    """The usual settings, changed; limits are given by their own names."""
    names = {field.name for field in dataclasses.fields(DEFAULTS)}
    limits = dataclasses.replace(DEFAULTS.limits, **{k: v for k, v in chosen.items() if k not in names})
    return dataclasses.replace(usual, limits=limits, **{k: v for k, v in chosen.items() if k in names})


@contextlib.contextmanager
def tool_context(root: Path, **chosen: Any) -> Iterator[ToolContext]:
    """`chosen`: settings, and limits by their names."""
    settings = settings_with(**chosen)
    patterns = {"hidden": settings.hidden, "guarded": settings.guarded}
    with contextlib.closing(Folder(root, **patterns, repositories=settings.repositories)) as folder:
        yield ToolContext(
            folder=folder, settings=settings, session=WorkspaceSession(settings.limits), sandbox=_no_sandbox, environ={}
        )


class FileTools:
    """Calls tools by name. All results must be valid JSON; the methods return only their data."""

    def __init__(self, context: ToolContext) -> None:
        self.context = context
        self.root = context.folder.root

    def call(self, tool: str, **arguments: Any) -> ToolResult:
        result = BY_NAME[tool].do(self.context, BY_NAME[tool].parameters(**arguments))
        if inspect.iscoroutine(result):
            result = asyncio.run(result)
        assert isinstance(result, ToolResult)
        msgspec.json.encode(result.data)
        return result

    def read(self, path: str, **arguments: Any) -> Any:
        return self.call("read_file", path=path, **arguments).data

    def write(self, path: str, content: str, **arguments: Any) -> Any:
        return self.call("write_file", path=path, content=content, **arguments).data

    def edit(self, path: str, old: str, new: str, **arguments: Any) -> Any:
        return self.call("edit_file", path=path, old=old, new=new, **arguments).data

    def stat(self, path: str) -> Any:
        return self.call("stat_file", path=path).data

    def list(self, **arguments: Any) -> Any:
        return self.call("list_dir", **arguments).data

    def find(self, *globs: str, **arguments: Any) -> Any:
        return self.call("find_files", glob=[*globs], **arguments).data

    def structure(self, **arguments: Any) -> Any:
        return self.call("project_structure", **arguments).data

    def search(self, pattern: str, **arguments: Any) -> Any:
        return self.call("search_text", pattern=pattern, **arguments).data


@contextlib.contextmanager
def file_tools(root: Path, **chosen: Any) -> Iterator[FileTools]:
    with tool_context(root, **chosen) as context:
        yield FileTools(context)


def make_files(root: Path, files: Iterable[str] | Mapping[str, str]) -> None:
    """Creates files with their folders; without a mapping, a file contains its own name."""
    for name, text in (files if isinstance(files, Mapping) else {name: name for name in files}).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def file_names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def refused(pattern: str, do: Callable[..., object], /, *given: Any, **named: Any) -> WorkspaceError:
    """The error of a call that must be refused; the pattern is found in its message."""
    with pytest.raises(WorkspaceError, match=pattern or None) as caught:
        do(*given, **named)
    return caught.value
