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

from toolcrib.workspace.looking.answer import Tray, incomplete, is_utf8, left_out, one_line, shown, time_for
from toolcrib.workspace.looking.walk import DEEPEST, Entry, Ignored, Kind, Walk
from toolcrib.workspace.patterns.globs import Globs
from toolcrib.workspace.tool import Done, Scene
from toolcrib.workspace.words import count_words, size_words

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


class DirListed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    files: dict[str, int] = {}
    """With their sizes."""
    folders: list[str] = []
    links: list[str] = []
    other: list[str] = []
    escaped: list[str] = []
    """Names among the above that are not UTF-8: odd bytes are written \\xNN, and tools cannot open them."""
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
        list[str],
        msgspec.Meta(
            min_length=1,
            max_length=MOST_PATTERNS,
            description="Such as *.py (at any depth), src/**/test_*.py, {a,b}.txt; !x leaves out.",
        ),
    ]
    path: Annotated[str, msgspec.Meta(description="The folder to look in; globs begin there.")] = "."
    sort: Sort = Sort.PATH
    ignored: _Ignored = False
    limit: _Limit = 200


class FilesFound(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    files: list[str]
    modified: list[str] = []
    """UTC, of each file, where the newest were asked for."""
    escaped: list[str] = []
    total: int
    ignored: int = 0
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
    found = _Listing(Tray(given.limit, scene.settings.limits.output))
    total = 0
    for entry in walk:
        if globs is None or globs.matches(walk.way(entry)):
            total += 1
            found.add(entry)
    unshown = total - len(found.tray.lines)
    data = DirListed(
        files=found.files,
        folders=found.names[Kind.FOLDER],
        links=found.names[Kind.LINK],
        other=found.names[Kind.OTHER],
        escaped=found.escaped,
        total=total,
        ignored=walk.left_out,
        truncated=unshown > 0 or bool(walk.stops),
        note=_note(walk, "Give a path further down, a glob, or a higher limit.", unshown),
    )
    head = f"{one_line(given.path)}: {count_words(total, 'entry', 'entries')}"
    return Done(data, _text(head, found.tray, data.note, walk.left_out))


class _Listing:
    """What a folder holds, as much as fits."""

    def __init__(self, tray: Tray) -> None:
        self.tray = tray
        self.files: dict[str, int] = {}
        self.names: dict[Kind, list[str]] = {kind: [] for kind in Kind}
        self.escaped: list[str] = []

    def add(self, entry: Entry) -> None:
        if self.tray.is_full:
            return
        path = shown(entry.parts)
        try:
            size = entry.status().st_size if entry.kind is Kind.FILE else None
        except OSError:
            # Gone by now.
            return
        if not self.tray.takes(_line(path, entry.kind, size)):
            return
        if size is None:
            self.names[entry.kind].append(path)
        else:
            self.files[path] = size
        if not is_utf8("/".join(entry.parts)):
            self.escaped.append(path)


def find_files(scene: Scene, given: FindFiles) -> Done:
    globs = Globs(given.glob)
    walk = Walk(
        scene.folder,
        scene.folder.spot(given.path),
        ignored=shown_ignored(given.ignored),
        until=time_for(scene, "find_files"),
    )
    fitting = _Fitting(walk, globs)
    tray = Tray(given.limit, scene.settings.limits.output)
    files: list[tuple[str, ...]] = []
    modified: list[str] = []
    if given.sort is Sort.NEWEST:
        for parts, status in heapq.nsmallest(given.limit, fitting, key=lambda one: (-one[1].st_mtime_ns, one[0])):
            if tray.takes(f"{one_line(shown(parts))}  {(when := _when(status))}"):
                files.append(parts)
                modified.append(when)
    else:
        files += (parts for parts, _ in fitting if not tray.is_full and tray.takes(one_line(shown(parts))))
    data = FilesFound(
        files=[shown(parts) for parts in files],
        modified=modified,
        escaped=[shown(parts) for parts in files if not is_utf8("/".join(parts))],
        total=fitting.total,
        ignored=walk.left_out,
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


def _line(path: str, kind: Kind, size: int | None) -> str:
    path = one_line(path)
    if size is not None:
        return f"{path}  {size_words(size)}"
    return f"{path}/" if kind is Kind.FOLDER else f"{path}  ({kind})"


def _when(status: os.stat_result) -> str:
    when = datetime.datetime.fromtimestamp(status.st_mtime_ns // 1_000_000_000, tz=datetime.UTC)
    return when.isoformat().replace("+00:00", "Z")


def _note(walk: Walk, advice: str, unshown: int) -> str:
    parts = [f"{count_words(unshown, 'more is', 'more are')} not shown. {advice}"] if unshown else []
    if walk.stops:
        parts.append(incomplete(walk, "" if unshown else advice))
    if walk.unreadable:
        parts.append(f"{count_words(walk.unreadable, 'folder')} could not be read.")
    return " ".join(parts).strip()


def _text(head: str, tray: Tray, note: str, ignored: int) -> str:
    return "\n".join([head + left_out(ignored, "shown"), *tray.lines, *([note] if note else [])])
