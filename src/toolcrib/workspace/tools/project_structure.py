"""`project_structure`: a project at a glance.

In: maximum depth and length. Out: its folders with their sizes, its languages by file name, its largest files, and the
kind of project according to its files. Nothing is run, and the files are not trusted. `walk` goes through the folders.
"""

from __future__ import annotations

import heapq
import os
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec

from toolcrib.workspace.confined_open import FileKind
from toolcrib.workspace.text import (
    AnswerBuffer,
    count_text,
    incomplete_note,
    looking_deadline,
    one_line,
    shown_path,
    size_text,
)
from toolcrib.workspace.tool import ToolContext, ToolResult
from toolcrib.workspace.tools.walk import FolderEntry, FolderWalk

_BY_ENDING = {
    "Assembly": "s asm",
    "C": "c h",
    "C#": "cs",
    "C++": "cc cpp cxx hh hpp hxx",
    "CSS": "css scss sass less",
    "Clojure": "clj cljs cljc",
    "Dart": "dart",
    "Elixir": "ex exs",
    "Elm": "elm",
    "Erlang": "erl hrl",
    "F#": "fs fsx",
    "Go": "go",
    "GraphQL": "graphql gql",
    "Groovy": "groovy gradle",
    "HTML": "html htm",
    "Haskell": "hs",
    "INI": "ini cfg",
    "JSON": "json jsonc json5",
    "Java": "java",
    "JavaScript": "js jsx mjs cjs",
    "Julia": "jl",
    "Jupyter": "ipynb",
    "Kotlin": "kt kts",
    "Lua": "lua",
    "Make": "mk",
    "Markdown": "md mdx",
    "Nix": "nix",
    "OCaml": "ml mli",
    "Objective-C": "m mm",
    "PHP": "php",
    "Perl": "pl pm",
    "PowerShell": "ps1 psm1",
    "Protocol Buffers": "proto",
    "Python": "py pyi pyx",
    "R": "r",
    "Ruby": "rb rake gemspec",
    "Rust": "rs",
    "SQL": "sql",
    "Scala": "scala sbt",
    "Shell": "sh bash zsh fish",
    "Svelte": "svelte",
    "Swift": "swift",
    "TOML": "toml",
    "Terraform": "tf tfvars",
    "TypeScript": "ts tsx mts cts",
    "Vue": "vue",
    "XML": "xml xsd xsl",
    "YAML": "yml yaml",
    "Zig": "zig",
    "reStructuredText": "rst",
}
_BY_NAME = {
    "cmakelists.txt": "CMake",
    "containerfile": "Dockerfile",
    "dockerfile": "Dockerfile",
    "gemfile": "Ruby",
    "gnumakefile": "Make",
    "justfile": "Just",
    "makefile": "Make",
    "rakefile": "Ruby",
}
_ENDINGS = {ending: language for language, endings in _BY_ENDING.items() for ending in endings.split()}


def language_of(name: str) -> str | None:
    name = name.lower()
    if name in _BY_NAME:
        return _BY_NAME[name]
    return _ENDINGS.get(name.rpartition(".")[2]) if "." in name else None


MAX_PROJECT_FILE_BYTES = 128 * 1024
_MAX_FACTS = 20
_MAX_FACT_LENGTH = 60

PROJECT_KINDS = {
    "pyproject.toml": "Python",
    "setup.py": "Python",
    "requirements.txt": "Python",
    "package.json": "Node",
    "deno.json": "Deno",
    "Cargo.toml": "Rust",
    "go.mod": "Go",
    "pom.xml": "Java (Maven)",
    "build.gradle": "Java (Gradle)",
    "build.gradle.kts": "Kotlin (Gradle)",
    "Gemfile": "Ruby",
    "composer.json": "PHP",
    "mix.exs": "Elixir",
    "Package.swift": "Swift",
    "CMakeLists.txt": "CMake",
    "meson.build": "Meson",
    "Makefile": "Make",
    "justfile": "Just",
    "tox.ini": "tox",
    "noxfile.py": "nox",
    "Dockerfile": "Docker",
    "compose.yml": "Docker Compose",
    "docker-compose.yml": "Docker Compose",
    "flake.nix": "Nix",
}
"""The kind of project, by the name of its project file."""

# At most a few names on a line and no nesting, so it is linear for any input.
_TARGET = re.compile(r"^([A-Za-z0-9][\w.-]{0,59})[ \t]{0,8}:(?![=:])", re.MULTILINE)


class ProjectFact(msgspec.Struct, frozen=True):
    what: str
    names: list[str]


def project_facts(name: str, content: bytes) -> list[ProjectFact]:
    """Facts found without running anything; none from an invalid file."""
    reader = _READERS.get(name)
    if reader is None:
        return []
    try:
        facts = reader(content[:MAX_PROJECT_FILE_BYTES].decode())
    except (UnicodeDecodeError, ValueError, RecursionError, msgspec.DecodeError):
        return []
    return [fact for fact in facts if fact.names]


def _pyproject(text: str) -> list[ProjectFact]:
    found = tomllib.loads(text)
    return [
        _fact("scripts", _part(found, "project", "scripts")),
        _fact("tools", _part(found, "tool")),
        _fact("dependency groups", _part(found, "dependency-groups")),
    ]


def _package_json(text: str) -> list[ProjectFact]:
    return [_fact("scripts", _part(msgspec.json.decode(text), "scripts"))]


def _cargo(text: str) -> list[ProjectFact]:
    found = tomllib.loads(text)
    members = _part(found, "workspace").get("members", [])
    return [
        _fact("package", [_part(found, "package").get("name")]),
        _fact("workspace members", members if isinstance(members, list) else []),
    ]


def _go_mod(text: str) -> list[ProjectFact]:
    modules = [line.split()[1] for line in text.splitlines() if line.startswith("module ") and len(line.split()) > 1]
    return [_fact("module", modules)]


def _makefile(text: str) -> list[ProjectFact]:
    return [_fact("targets", dict.fromkeys(_TARGET.findall(text)))]


_READERS: dict[str, Callable[[str], list[ProjectFact]]] = {
    "pyproject.toml": _pyproject,
    "package.json": _package_json,
    "Cargo.toml": _cargo,
    "go.mod": _go_mod,
    "Makefile": _makefile,
    "justfile": _makefile,
}


def _part(found: Any, *names: str) -> dict[str, Any]:
    for name in names:
        found = found.get(name) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


def _fact(what: str, names: Iterable[Any]) -> ProjectFact:
    kept = [name[:_MAX_FACT_LENGTH] for name in names if isinstance(name, str) and name]
    return ProjectFact(what, kept[:_MAX_FACTS])


_MAX_LARGEST_FILES = 5
_MAX_LANGUAGES = 20
_MAX_PROJECTS = 20
_MAX_TOP_FILES = 50
_PROJECTS_DEEPEST = 3
"""Depth at which project files are found, for repositories of several packages."""


class ProjectStructureArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: Annotated[str, msgspec.Meta(description="The folder.")] = "."
    depth: Annotated[int, msgspec.Meta(ge=1, le=20, description="Levels of folders.")] = 3
    limit: Annotated[int, msgspec.Meta(ge=10, le=1000, description="Maximum lines of the tree.")] = 150


class LanguageCount(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    files: int
    bytes: int


class DetectedProject(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    kind: str
    file: str
    facts: list[ProjectFact] = []


class ProjectStructureResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    tree: str
    files: int
    folders: int
    bytes: int
    languages: list[LanguageCount] = []
    largest: dict[str, int] = {}
    """With their sizes."""
    projects: list[DetectedProject] = []
    ignored: int = 0
    truncated: bool = False
    note: str = ""


@dataclass(slots=True)
class _FolderTotal:
    files: int = 0
    size: int = 0


@dataclass(slots=True)
class _StructureCount:
    """Totals collected during the walk."""

    depth: int
    folders: dict[tuple[str, ...], _FolderTotal] = field(default_factory=dict)
    """Folders that the tree may show, with everything below them."""
    top_files: list[str] = field(default_factory=list)
    everything: _FolderTotal = field(default_factory=_FolderTotal)
    number_of_folders: int = 0
    by_files: Counter[str] = field(default_factory=Counter)
    by_bytes: Counter[str] = field(default_factory=Counter)
    largest: list[tuple[int, tuple[str, ...]]] = field(default_factory=list)
    projects: list[DetectedProject] = field(default_factory=list)

    def add(self, entry: FolderEntry, way: tuple[str, ...]) -> None:
        if entry.kind is FileKind.FOLDER:
            self.number_of_folders += 1
            if len(way) <= self.depth:
                self.folders[way] = _FolderTotal()
        elif entry.kind is FileKind.FILE:
            try:
                self._add_file(entry, way, entry.status().st_size)
            except OSError:
                return

    def _add_file(self, entry: FolderEntry, way: tuple[str, ...], size: int) -> None:
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
        if len(self.largest) > _MAX_LARGEST_FILES:
            heapq.heappop(self.largest)
        if entry.name in PROJECT_KINDS and len(way) <= _PROJECTS_DEEPEST and len(self.projects) < _MAX_PROJECTS:
            self.projects.append(self._project(entry))

    def _project(self, entry: FolderEntry) -> DetectedProject:
        with os.fdopen(entry.open(), "rb") as file:
            content = file.read(MAX_PROJECT_FILE_BYTES)
        return DetectedProject(
            kind=PROJECT_KINDS[entry.name], file=shown_path(entry.parts), facts=project_facts(entry.name, content)
        )


def project_structure(context: ToolContext, given: ProjectStructureArguments) -> ToolResult:
    walk = FolderWalk(
        context.folder, context.folder.path_of(given.path), until=looking_deadline(context, "project_structure")
    )
    count = _StructureCount(given.depth)
    for entry in walk:
        count.add(entry, walk.relative(entry))
    lines, cut = _tree(count, given, context.settings.limits.output)
    note = " ".join(part for part in (cut, incomplete_note(walk, "Use a deeper path.")) if part)
    data = ProjectStructureResult(
        tree="\n".join(lines),
        files=count.everything.files,
        folders=count.number_of_folders,
        bytes=count.everything.size,
        languages=[
            LanguageCount(name=name, files=count.by_files[name], bytes=size)
            for name, size in count.by_bytes.most_common(_MAX_LANGUAGES)
        ],
        largest={shown_path(parts): size for size, parts in sorted(count.largest, reverse=True)},
        projects=count.projects,
        ignored=walk.left_out,
        truncated=bool(note),
        note=note,
    )
    return ToolResult(data, _text(data))


def _tree(count: _StructureCount, given: ProjectStructureArguments, size: int) -> tuple[list[str], str]:
    """Complete levels as long as they fit, then a part of the next one; and a note on the rest."""
    per_level = Counter(len(way) for way in count.folders)
    depth, lines = 1, per_level[1]
    while depth < given.depth and lines + per_level[depth + 1] <= given.limit:
        depth += 1
        lines += per_level[depth]
    tray = AnswerBuffer(given.limit + 1, size)
    tray.takes(f"{one_line(given.path)}/  {_total_text(count.everything)}", *_top_files(count.top_files))
    ways = [way for way in count.folders if len(way) <= depth]
    kept = sum(
        tray.takes(f"{'  ' * len(way)}{one_line(shown_path(way[-1:]))}/  {_total_text(count.folders[way])}")
        for way in ways
    )
    if kept < len(ways):
        return tray.lines, f"{len(ways) - kept:,} folders are not shown. Use a deeper path."
    if depth < given.depth and per_level[depth + 1]:
        return tray.lines, f"The tree stops at level {depth}. Use a deeper path or a higher limit."
    return tray.lines, ""


def _top_files(names: list[str]) -> list[str]:
    """On one line, no longer than the tree."""
    if not names:
        return []
    line = " ".join(one_line(shown_path((name,))) for name in names[:_MAX_TOP_FILES])
    more = len(names) - _MAX_TOP_FILES
    return [f"  {line} … {more:,} more" if more > 0 else f"  {line}"]


def _total_text(total: _FolderTotal) -> str:
    return f"{count_text(total.files, 'file')}, {size_text(total.size)}"


def _text(data: ProjectStructureResult) -> str:
    parts = [data.tree]
    if data.projects:
        parts.append("Projects: " + "; ".join(_project_text(project) for project in data.projects))
    if data.languages:
        languages = (f"{one.name} {count_text(one.files, 'file')} {size_text(one.bytes)}" for one in data.languages)
        parts.append("Languages: " + ", ".join(languages))
    if data.largest:
        parts.append(
            "Largest: " + ", ".join(f"{one_line(path)} {size_text(size)}" for path, size in data.largest.items())
        )
    if data.ignored:
        parts.append(f"{count_text(data.ignored, 'entry', 'entries')} ignored by .gitignore.")
    if data.note:
        parts.append(data.note)
    return "\n".join(parts)


def _project_text(project: DetectedProject) -> str:
    facts = "; ".join(f"{fact.what}: {', '.join(one_line(name) for name in fact.names)}" for fact in project.facts)
    return f"{project.kind} ({one_line(project.file)}{'; ' + facts if facts else ''})"
