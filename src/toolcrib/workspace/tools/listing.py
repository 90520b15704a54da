"""`list_dir`, `find_files` and `stat_file`: entries by folder, by pattern and by name.

In: validated arguments. Out: entries in a stable order, their total number, and how to narrow the list; for one entry,
its kind, size, mode and time, and whether it can be written. `walk` goes through the folders, `globs` filters,
`project_structure` gives the overview of a whole project.
"""

from __future__ import annotations

import datetime
import enum
import heapq
import os
import stat
from collections.abc import Iterator
from typing import Annotated

import msgspec

from toolcrib.errors import WorkspaceError
from toolcrib.workspace.atomic_write import why_not_replaceable
from toolcrib.workspace.confined_open import FileKind, FinalLink, file_kind
from toolcrib.workspace.folder import Folder, FolderPath
from toolcrib.workspace.globs import Globs
from toolcrib.workspace.text import (
    AnswerBuffer,
    count_text,
    ignored_note,
    incomplete_note,
    is_utf8,
    looking_deadline,
    one_line,
    shown_path,
    size_text,
)
from toolcrib.workspace.tool import ToolContext, ToolResult
from toolcrib.workspace.tools.files import FilePath
from toolcrib.workspace.tools.walk import MAX_DEPTH, FolderEntry, FolderWalk, IgnoredFiles

MAX_SHOWN = 1000
MAX_PATTERNS = 50

_Limit = Annotated[int, msgspec.Meta(ge=1, le=MAX_SHOWN, description="Maximum to show.")]
_Ignored = Annotated[bool, msgspec.Meta(description="Include files ignored by .gitignore.")]


class ListDirArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: Annotated[str, msgspec.Meta(description="The folder.")] = "."
    depth: Annotated[int, msgspec.Meta(ge=1, le=MAX_DEPTH, description="Levels; 1: direct children only.")] = 1
    glob: Annotated[str | None, msgspec.Meta(description="Only matching names, such as *.py.")] = None
    ignored: _Ignored = False
    limit: _Limit = 200


class ListDirResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    files: dict[str, int] = {}
    """With their sizes."""
    folders: list[str] = []
    links: list[str] = []
    other: list[str] = []
    escaped: list[str] = []
    """Listed names that are not UTF-8: their bytes are written \\xNN, and tools cannot open them."""
    total: int
    """The number of entries, shown or not."""
    ignored: int = 0
    """Entries that .gitignore left out, not counting their contents."""
    truncated: bool = False
    note: str = ""


class FileOrder(enum.StrEnum):
    PATH = "path"
    NEWEST = "newest"


class FindFilesArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    glob: Annotated[
        list[str],
        msgspec.Meta(
            min_length=1,
            max_length=MAX_PATTERNS,
            description="Such as *.py (at any depth), src/**/test_*.py, {a,b}.txt; !x excludes.",
        ),
    ]
    path: Annotated[str, msgspec.Meta(description="The folder to search; globs are relative to it.")] = "."
    sort: FileOrder = FileOrder.PATH
    ignored: _Ignored = False
    limit: _Limit = 200


class FindFilesResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    files: list[str]
    modified: list[str] = []
    """UTC, for each file, if the newest were requested."""
    escaped: list[str] = []
    total: int
    ignored: int = 0
    truncated: bool = False
    note: str = ""


def list_dir(context: ToolContext, given: ListDirArguments) -> ToolResult:
    globs = Globs([given.glob]) if given.glob else None
    walk = FolderWalk(
        context.folder,
        context.folder.path_of(given.path),
        depth=given.depth,
        ignored=ignored_files(given.ignored),
        until=looking_deadline(context, "list_dir"),
    )
    found = _Listing(AnswerBuffer(given.limit, context.settings.limits.output))
    total = 0
    for entry in walk:
        if globs is None or globs.matches(walk.relative(entry)):
            total += 1
            found.add(entry)
    unshown = total - len(found.tray.lines)
    data = ListDirResult(
        files=found.files,
        folders=found.names[FileKind.FOLDER],
        links=found.names[FileKind.LINK],
        other=found.names[FileKind.OTHER],
        escaped=found.escaped,
        total=total,
        ignored=walk.left_out,
        truncated=unshown > 0 or bool(walk.stops),
        note=_note(walk, "Use a deeper path, a glob, or a higher limit.", unshown),
    )
    head = f"{one_line(given.path)}: {count_text(total, 'entry', 'entries')}"
    return ToolResult(data, _text(head, found.tray, data.note, walk.left_out))


class _Listing:
    """The entries of a folder that fit into the result."""

    def __init__(self, tray: AnswerBuffer) -> None:
        self.tray = tray
        self.files: dict[str, int] = {}
        self.names: dict[FileKind, list[str]] = {kind: [] for kind in FileKind}
        self.escaped: list[str] = []

    def add(self, entry: FolderEntry) -> None:
        if self.tray.is_full:
            return
        path = shown_path(entry.parts)
        try:
            size = entry.status().st_size if entry.kind is FileKind.FILE else None
        except OSError:
            # Deleted in the meantime.
            return
        if not self.tray.takes(_line(path, entry.kind, size)):
            return
        if size is None:
            self.names[entry.kind].append(path)
        else:
            self.files[path] = size
        if not is_utf8("/".join(entry.parts)):
            self.escaped.append(path)


def find_files(context: ToolContext, given: FindFilesArguments) -> ToolResult:
    globs = Globs(given.glob)
    walk = FolderWalk(
        context.folder,
        context.folder.path_of(given.path),
        ignored=ignored_files(given.ignored),
        until=looking_deadline(context, "find_files"),
    )
    fitting = _MatchingFiles(walk, globs)
    tray = AnswerBuffer(given.limit, context.settings.limits.output)
    files: list[tuple[str, ...]] = []
    modified: list[str] = []
    if given.sort is FileOrder.NEWEST:
        for parts, status in heapq.nsmallest(given.limit, fitting, key=lambda one: (-one[1].st_mtime_ns, one[0])):
            if tray.takes(f"{one_line(shown_path(parts))}  {(when := _when(status))}"):
                files.append(parts)
                modified.append(when)
    else:
        files += (parts for parts, _ in fitting if not tray.is_full and tray.takes(one_line(shown_path(parts))))
    data = FindFilesResult(
        files=[shown_path(parts) for parts in files],
        modified=modified,
        escaped=[shown_path(parts) for parts in files if not is_utf8("/".join(parts))],
        total=fitting.total,
        ignored=walk.left_out,
        truncated=fitting.total > len(files) or bool(walk.stops),
        note=_note(walk, "Use a narrower glob, a deeper path, or a higher limit.", fitting.total - len(files)),
    )
    head = f"{count_text(fitting.total, 'file matches', 'files match')}"
    return ToolResult(data, _text(head, tray, data.note, walk.left_out))


class _MatchingFiles:
    """The matching files that fit into the result, and how many matched."""

    def __init__(self, walk: FolderWalk, globs: Globs) -> None:
        self._walk = walk
        self._globs = globs
        self.total = 0

    def __iter__(self) -> Iterator[tuple[tuple[str, ...], os.stat_result]]:
        for entry in self._walk:
            if entry.kind not in (FileKind.FILE, FileKind.LINK) or not self._globs.matches(self._walk.relative(entry)):
                continue
            try:
                status = entry.status()
            except OSError:
                continue
            self.total += 1
            yield entry.parts, status


def ignored_files(ignored: bool) -> IgnoredFiles:  # noqa: FBT001 - it is the word of the argument
    return IgnoredFiles.SHOWN if ignored else IgnoredFiles.LEFT_OUT


def _line(path: str, kind: FileKind, size: int | None) -> str:
    path = one_line(path)
    if size is not None:
        return f"{path}  {size_text(size)}"
    return f"{path}/" if kind is FileKind.FOLDER else f"{path}  ({kind})"


def _when(status: os.stat_result) -> str:
    when = datetime.datetime.fromtimestamp(status.st_mtime_ns // 1_000_000_000, tz=datetime.UTC)
    return when.isoformat().replace("+00:00", "Z")


def _note(walk: FolderWalk, advice: str, unshown: int) -> str:
    parts = [f"{count_text(unshown, 'more is', 'more are')} not shown. {advice}"] if unshown else []
    if walk.stops:
        parts.append(incomplete_note(walk, "" if unshown else advice))
    if walk.unreadable:
        parts.append(f"{count_text(walk.unreadable, 'folder')} could not be read.")
    return " ".join(parts).strip()


def _text(head: str, tray: AnswerBuffer, note: str, ignored: int) -> str:
    return "\n".join([head + ignored_note(ignored, "shown"), *tray.lines, *([note] if note else [])])


class StatFileArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: FilePath


class StatFileResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    kind: str
    size: int
    mode: str
    modified: str
    writable: bool = True
    why_not: str = ""
    """Why it cannot be written."""
    target: str = ""
    """The target of a link."""


def stat_file(context: ToolContext, given: StatFileArguments) -> ToolResult:
    folder = context.folder
    place = folder.path_of(given.path)
    with folder.opened(place, FinalLink.LINK) as (descriptor, real):
        status = os.fstat(descriptor)
        leads = _target_of(folder, place) if stat.S_ISLNK(status.st_mode) else ""
    why_not = _why_not_writable(context, real, status)
    result = StatFileResult(
        kind=file_kind(status.st_mode),
        size=status.st_size,
        mode=f"{stat.S_IMODE(status.st_mode):04o}",
        modified=_iso(status.st_mtime),
        writable=not why_not,
        why_not=why_not,
        target=leads,
    )
    to = f" to {leads}" if leads else ""
    reason = "writable" if result.writable else f"not writable: {why_not}"
    size = count_text(result.size, "byte")
    return ToolResult(result, f"{place}: {result.kind}{to}, {size}, mode {result.mode}, {result.modified}, {reason}.")


def _target_of(folder: Folder, place: FolderPath) -> str:
    """The target of a link; reveals nothing about targets outside."""
    try:
        with folder.opened(place) as (_, real):
            return str(real)
    except WorkspaceError as error:
        return f"an unavailable target: {error.message}"


def _why_not_writable(context: ToolContext, real: FolderPath, status: os.stat_result) -> str:
    if context.settings.read_only:
        return "the workspace is read-only"
    if why := context.folder.why_not_writable(real):
        return why
    if stat.S_ISLNK(status.st_mode):
        return "it is a link; check its target instead"
    if stat.S_ISDIR(status.st_mode):
        return "" if status.st_mode & 0o222 else "it is read-only"
    return why_not_replaceable(status)


def _iso(moment: float) -> str:
    try:
        return datetime.datetime.fromtimestamp(moment, datetime.UTC).isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):
        # A file's time may be beyond the range of datetime.
        return f"{moment:.0f} s after 1970"
