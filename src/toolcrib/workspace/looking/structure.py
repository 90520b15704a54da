"""`project_structure`: a project at a glance.

In: how deep and how long. Out: its folders with how much is in them, its languages, its largest files, and what kind of
project its files say it is. `walk` goes through it, `languages` and `projects` know names.
"""

from __future__ import annotations

import heapq
import os
from collections import Counter
from dataclasses import dataclass, field
from typing import Annotated

import msgspec

from toolcrib.workspace.confined.folder import Folder
from toolcrib.workspace.looking.answer import Tray, incomplete, one_line, shown, time_for
from toolcrib.workspace.looking.languages import language_of
from toolcrib.workspace.looking.projects import KINDS, MOST_BYTES, Fact, facts_of
from toolcrib.workspace.looking.walk import Entry, Kind, Walk
from toolcrib.workspace.tool import Done, Scene
from toolcrib.workspace.words import count_words, size_words

_MOST_LARGEST = 5
_MOST_LANGUAGES = 20
_MOST_PROJECTS = 20
_MOST_TOP_FILES = 50
_PROJECTS_DEEPEST = 3
"""Names on the way to a file that shows a project: one for each package of a repository of several."""


class ProjectStructure(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: Annotated[str, msgspec.Meta(description="The folder.")] = "."
    depth: Annotated[int, msgspec.Meta(ge=1, le=20, description="Levels of folders.")] = 3
    limit: Annotated[int, msgspec.Meta(ge=10, le=1000, description="Most lines of the tree.")] = 150


class Language(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    files: int
    bytes: int


class Project(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    kind: str
    file: str
    facts: list[Fact] = []


class Structure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    tree: str
    files: int
    folders: int
    bytes: int
    languages: list[Language] = []
    largest: dict[str, int] = {}
    """With their sizes."""
    projects: list[Project] = []
    ignored: int = 0
    truncated: bool = False
    note: str = ""


@dataclass(slots=True)
class _Sum:
    files: int = 0
    size: int = 0


@dataclass(slots=True)
class _Count:
    """What is added up on the way."""

    folder: Folder
    depth: int
    folders: dict[tuple[str, ...], _Sum] = field(default_factory=dict)
    """Of those that the tree may show, with all that is below them."""
    top_files: list[str] = field(default_factory=list)
    everything: _Sum = field(default_factory=_Sum)
    number_of_folders: int = 0
    by_files: Counter[str] = field(default_factory=Counter)
    by_bytes: Counter[str] = field(default_factory=Counter)
    largest: list[tuple[int, tuple[str, ...]]] = field(default_factory=list)
    projects: list[Project] = field(default_factory=list)

    def add(self, entry: Entry, way: tuple[str, ...]) -> None:
        if entry.kind is Kind.FOLDER:
            self.number_of_folders += 1
            if len(way) <= self.depth:
                self.folders[way] = _Sum()
        elif entry.kind is Kind.FILE:
            try:
                self._add_file(entry, way, entry.status().st_size)
            except OSError:
                return

    def _add_file(self, entry: Entry, way: tuple[str, ...], size: int) -> None:
        above = (self.folders[way[:n]] for n in range(1, min(len(way) - 1, self.depth) + 1))
        for total in (self.everything, *above):
            total.files += 1
            total.size += size
        if len(way) == 1:
            self.top_files.append(entry.name)
        if (language := language_of(entry.name)) is not None:
            self.by_files[language] += 1
            self.by_bytes[language] += size
        heapq.heappush(self.largest, (size, entry.parts))
        if len(self.largest) > _MOST_LARGEST:
            heapq.heappop(self.largest)
        if entry.name in KINDS and len(way) <= _PROJECTS_DEEPEST and len(self.projects) < _MOST_PROJECTS:
            self.projects.append(self._project(entry))

    def _project(self, entry: Entry) -> Project:
        with os.fdopen(entry.open(self.folder), "rb") as file:
            content = file.read(MOST_BYTES)
        return Project(kind=KINDS[entry.name], file=shown(entry.parts), facts=facts_of(entry.name, content))


def project_structure(scene: Scene, given: ProjectStructure) -> Done:
    walk = Walk(scene.folder, scene.folder.spot(given.path), until=time_for(scene, "project_structure"))
    count = _Count(scene.folder, given.depth)
    for entry in walk:
        count.add(entry, walk.way(entry))
    lines, cut = _tree(count, given, scene.settings.limits.output)
    note = " ".join(part for part in (cut, incomplete(walk, "Give a path further down.")) if part)
    data = Structure(
        tree="\n".join(lines),
        files=count.everything.files,
        folders=count.number_of_folders,
        bytes=count.everything.size,
        languages=[
            Language(name=name, files=count.by_files[name], bytes=size)
            for name, size in count.by_bytes.most_common(_MOST_LANGUAGES)
        ],
        largest={shown(parts): size for size, parts in sorted(count.largest, reverse=True)},
        projects=count.projects,
        ignored=walk.left_out,
        truncated=bool(note),
        note=note,
    )
    return Done(data, _text(data))


def _tree(count: _Count, given: ProjectStructure, size: int) -> tuple[list[str], str]:
    """Whole levels as long as they fit; of the first one that does not, as much as fits. And what is not shown."""
    per_level = Counter(len(way) for way in count.folders)
    depth, lines = 1, per_level[1]
    while depth < given.depth and lines + per_level[depth + 1] <= given.limit:
        depth += 1
        lines += per_level[depth]
    tray = Tray(given.limit + 1, size)
    tray.takes(f"{one_line(given.path)}/  {_sum_words(count.everything)}", *_top_files(count.top_files))
    ways = [way for way in count.folders if len(way) <= depth]
    kept = sum(
        tray.takes(f"{'  ' * len(way)}{one_line(shown(way[-1:]))}/  {_sum_words(count.folders[way])}") for way in ways
    )
    if kept < len(ways):
        return tray.lines, f"{len(ways) - kept:,} folders are not shown. Give a path further down."
    if depth < given.depth and per_level[depth + 1]:
        return tray.lines, f"The tree stops at level {depth}. Give a path further down or a higher limit."
    return tray.lines, ""


def _top_files(names: list[str]) -> list[str]:
    """On one line, which is not to become longer than the tree."""
    if not names:
        return []
    line = " ".join(one_line(shown((name,))) for name in names[:_MOST_TOP_FILES])
    more = len(names) - _MOST_TOP_FILES
    return [f"  {line} … {more:,} more" if more > 0 else f"  {line}"]


def _sum_words(total: _Sum) -> str:
    return f"{count_words(total.files, 'file')}, {size_words(total.size)}"


def _text(data: Structure) -> str:
    parts = [data.tree]
    if data.projects:
        parts.append("Projects: " + "; ".join(_project_words(project) for project in data.projects))
    if data.languages:
        words = (f"{one.name} {count_words(one.files, 'file')} {size_words(one.bytes)}" for one in data.languages)
        parts.append("Languages: " + ", ".join(words))
    if data.largest:
        parts.append(
            "Largest: " + ", ".join(f"{one_line(path)} {size_words(size)}" for path, size in data.largest.items())
        )
    if data.ignored:
        parts.append(f"{count_words(data.ignored, 'entry', 'entries')} left out by .gitignore.")
    if data.note:
        parts.append(data.note)
    return "\n".join(parts)


def _project_words(project: Project) -> str:
    facts = "; ".join(f"{fact.what}: {', '.join(one_line(name) for name in fact.names)}" for fact in project.facts)
    return f"{project.kind} ({one_line(project.file)}{'; ' + facts if facts else ''})"
