"""`list_dir` and `find_files`: what there is, by folder and by pattern.

In: what a model wants to see. Out: entries in a stable order, how many there are in all, and how to see less of them.
`walk` goes through the folders, `globs` chooses, `structure` has the overview of a whole project.
"""

from __future__ import annotations

import datetime
import enum
import heapq
import os
from collections.abc import Iterator
from typing import Annotated

import msgspec

from toolcrib.workspace.looking.answer import (
    Tray,
    count_words,
    incomplete,
    is_utf8,
    one_line,
    shown,
    size_words,
    time_for,
)
from toolcrib.workspace.looking.walk import DEEPEST, Entry, Ignored, Kind, Walk
from toolcrib.workspace.patterns.globs import Globs
from toolcrib.workspace.tool import Done, Scene

MOST_SHOWN = 1000
MOST_PATTERNS = 50

_Limit = Annotated[int, msgspec.Meta(ge=1, le=MOST_SHOWN, description="Most to show.")]
_Ignored = Annotated[bool, msgspec.Meta(description="Also what .gitignore leaves out.")]


class ListDir(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: Annotated[str, msgspec.Meta(description="The folder.")] = "."
    depth: Annotated[int, msgspec.Meta(ge=1, le=DEEPEST, description="Levels; 1: only what is in it.")] = 1
    glob: Annotated[str | None, msgspec.Meta(description="Only names that fit, such as *.py.")] = None
    ignored: _Ignored = False
    limit: _Limit = 200


class Listed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    path: str
    kind: Kind
    size: int | None = None
    """Of files."""
    escaped: bool = False
    """The name is not UTF-8: its odd bytes are written \\xNN, and tools cannot open it."""


class DirListed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    entries: list[Listed]
    total: int
    """How many there are, shown or not."""
    ignored: int = 0
    """How many .gitignore left out, not counting what is in them."""
    truncated: bool = False
    note: str = ""


class Sort(enum.StrEnum):
    PATH = "path"
    NEWEST = "newest"


class FindFiles(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    glob: Annotated[
        str | Annotated[list[str], msgspec.Meta(min_length=1, max_length=MOST_PATTERNS)],
        msgspec.Meta(
            description="One or several, such as *.py (at any depth), src/**/test_*.py, {a,b}.txt; !x leaves out."
        ),
    ]
    path: Annotated[str, msgspec.Meta(description="The folder to look in; globs begin there.")] = "."
    sort: Sort = Sort.PATH
    ignored: _Ignored = False
    limit: _Limit = 200


class FoundFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    path: str
    size: int
    modified: str | None = None
    """UTC, of the newest ones if these were asked for."""
    escaped: bool = False


class FilesFound(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    files: list[FoundFile]
    total: int
    truncated: bool = False
    note: str = ""


def list_dir(scene: Scene, given: ListDir) -> Done:
    globs = Globs([given.glob]) if given.glob else None
    walk = Walk(
        scene.folder,
        scene.folder.spot(given.path),
        depth=given.depth,
        ignored=shown_ignored(given.ignored),
        until=time_for(scene, "list_dir"),
    )
    tray = Tray(given.limit, scene.settings.limits.output)
    entries: list[Listed] = []
    total = 0
    for entry in walk:
        if globs is not None and not globs.matches(walk.way(entry)):
            continue
        total += 1
        if not tray.is_full and (listed := _listed(entry)) is not None and tray.takes(_line(listed)):
            entries.append(listed)
    data = DirListed(
        entries=entries,
        total=total,
        ignored=walk.left_out,
        truncated=total > len(entries) or bool(walk.stops),
        note=_note(walk, "Give a path further down, a glob, or a higher limit.", total - len(entries)),
    )
    head = f"{one_line(given.path)}: {count_words(total, 'entry', 'entries')}"
    return Done(data, _text(head, tray, data.note, walk.left_out))


def find_files(scene: Scene, given: FindFiles) -> Done:
    globs = Globs([given.glob] if isinstance(given.glob, str) else given.glob)
    walk = Walk(
        scene.folder,
        scene.folder.spot(given.path),
        ignored=shown_ignored(given.ignored),
        until=time_for(scene, "find_files"),
    )
    fitting = _Fitting(walk, globs)
    tray = Tray(given.limit, scene.settings.limits.output)
    files: list[FoundFile] = []
    if given.sort is Sort.NEWEST:
        newest = heapq.nsmallest(given.limit, fitting, key=lambda found: (-found[1].st_mtime_ns, found[0]))
        files = [file for parts, status in newest if tray.takes(_found_line(file := _found(parts, status, given.sort)))]
    else:
        for parts, status in fitting:
            if not tray.is_full and tray.takes(_found_line(file := _found(parts, status, given.sort))):
                files.append(file)
    data = FilesFound(
        files=files,
        total=fitting.total,
        truncated=fitting.total > len(files) or bool(walk.stops),
        note=_note(walk, "Give a narrower glob, a path further down, or a higher limit.", fitting.total - len(files)),
    )
    head = f"{count_words(fitting.total, 'file fits', 'files fit')}"
    return Done(data, _text(head, tray, data.note, walk.left_out))


class _Fitting:
    """The files that fit, and how many there were."""

    def __init__(self, walk: Walk, globs: Globs) -> None:
        self._walk = walk
        self._globs = globs
        self.total = 0

    def __iter__(self) -> Iterator[tuple[tuple[str, ...], os.stat_result]]:
        for entry in self._walk:
            if entry.kind not in (Kind.FILE, Kind.LINK) or not self._globs.matches(self._walk.way(entry)):
                continue
            try:
                status = entry.status()
            except OSError:
                continue
            self.total += 1
            yield entry.parts, status


def shown_ignored(ignored: bool) -> Ignored:  # noqa: FBT001 - it is the word of the argument
    return Ignored.SHOWN if ignored else Ignored.LEFT_OUT


def _listed(entry: Entry) -> Listed | None:
    """None if it is gone by now."""
    try:
        size = entry.status().st_size if entry.kind is Kind.FILE else None
    except OSError:
        return None
    return Listed(path=shown(entry.parts), kind=entry.kind, size=size, escaped=not is_utf8("/".join(entry.parts)))


def _line(listed: Listed) -> str:
    path = one_line(listed.path)
    if listed.size is not None:
        return f"{path}  {size_words(listed.size)}"
    return f"{path}/" if listed.kind is Kind.FOLDER else f"{path}  ({listed.kind})"


def _found(parts: tuple[str, ...], status: os.stat_result, sort: Sort) -> FoundFile:
    modified = None
    if sort is Sort.NEWEST:
        when = datetime.datetime.fromtimestamp(status.st_mtime_ns // 1_000_000_000, tz=datetime.UTC)
        modified = when.isoformat().replace("+00:00", "Z")
    return FoundFile(path=shown(parts), size=status.st_size, modified=modified, escaped=not is_utf8("/".join(parts)))


def _found_line(file: FoundFile) -> str:
    return f"{one_line(file.path)}  {file.modified}" if file.modified else one_line(file.path)


def _note(walk: Walk, advice: str, unshown: int) -> str:
    parts = [f"{count_words(unshown, 'more is', 'more are')} not shown. {advice}"] if unshown else []
    if walk.stops:
        parts.append(incomplete(walk, "" if unshown else advice))
    if walk.unreadable:
        parts.append(f"{count_words(walk.unreadable, 'folder')} could not be read.")
    return " ".join(parts).strip()


def _text(head: str, tray: Tray, note: str, left_out: int) -> str:
    aside = f" ({left_out:,} ignored by .gitignore left out; ignored: true shows them)" if left_out else ""
    return "\n".join([head + aside, *tray.lines, *([note] if note else [])])
