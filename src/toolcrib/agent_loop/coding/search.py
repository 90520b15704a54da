"""Glob and Grep: find files by name, and lines by a pattern.

In: a pattern, a path, an output mode. Out: paths, newest first, or lines in ripgrep's format. The workspace's
`find_files` and search do the work; the collectors here format what the search finds, one for each output mode.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator
from itertools import chain
from types import MappingProxyType
from typing import Annotated, cast

import msgspec

from toolcrib.agent_loop.coding.remedies import local_remedies
from toolcrib.errors import WorkspaceError
from toolcrib.workspace.folder import Folder
from toolcrib.workspace.regex import (
    MAX_PATTERN_LENGTH,
    CaseRule,
    ContextLines,
    MatchedLine,
    search_pattern,
    with_context,
)
from toolcrib.workspace.text import AnswerBuffer, count_text, one_line, shown_path
from toolcrib.workspace.tool import ToolContext, ToolResult
from toolcrib.workspace.tools.listing import FileOrder, FindFilesArguments, FindFilesResult, find_files
from toolcrib.workspace.tools.search_text import MAX_MATCHES, MatchCollector, SearchSummary, TextSearch, run_search

_ENDINGS = {
    "c": "c h",
    "cpp": "cc cpp cxx c++ hh hpp hxx h inl",
    "cs": "cs",
    "css": "css scss",
    "dart": "dart",
    "elixir": "ex exs eex heex",
    "go": "go",
    "haskell": "hs lhs",
    "html": "htm html ejs",
    "java": "java jsp",
    "js": "js jsx mjs cjs vue",
    "json": "json",
    "kotlin": "kt kts",
    "lua": "lua",
    "md": "md mdx markdown mkd",
    "php": "php phtml",
    "py": "py pyi",
    "r": "R r Rmd",
    "ruby": "rb gemspec rbw",
    "rust": "rs",
    "scala": "scala sbt",
    "sh": "sh bash zsh ksh",
    "sql": "sql",
    "svelte": "svelte",
    "swift": "swift",
    "toml": "toml",
    "ts": "ts tsx mts cts",
    "txt": "txt",
    "vue": "vue",
    "xml": "xml xsd xsl svg",
    "yaml": "yaml yml",
    "zig": "zig",
}
_ALSO = {
    "bash": "sh",
    "c++": "cpp",
    "csharp": "cs",
    "javascript": "js",
    "kt": "kotlin",
    "markdown": "md",
    "python": "py",
    "rb": "ruby",
    "rs": "rust",
    "shell": "sh",
    "tsx": "ts",
    "typescript": "ts",
    "jsx": "js",
    "yml": "yaml",
}
TYPES = MappingProxyType({name: tuple(f"*.{ending}" for ending in text.split()) for name, text in _ENDINGS.items()})


def globs_of(name: str) -> tuple[str, ...]:
    """Empty for no type: all files match."""
    if not name:
        return ()
    known = TYPES.get(_ALSO.get(name.lower(), name.lower()))
    if known is None:
        raise WorkspaceError(
            f"Unknown file type {name[:40]!r}.", remedy=f"Known: {', '.join(TYPES)}. For others, use glob."
        )
    return known


MOST_FILES = 200
_WILD = frozenset("*?[{\\")


class GlobArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pattern: Annotated[str, msgspec.Meta(min_length=1, description="As in src/**/*.ts; *.py is at any depth.")]
    path: Annotated[str, msgspec.Meta(description="Folder to look in.")] = "."


def glob(context: ToolContext, given: GlobArguments) -> ToolResult:
    with local_remedies():
        path, pattern = _begin(context.folder, given)
        asked = FindFilesArguments(glob=[pattern], path=path, sort=FileOrder.NEWEST, limit=MOST_FILES)
        found = cast("FindFilesResult", find_files(context, asked).data)
    lines = list(map(one_line, found.files)) or ["No files found"]
    if found.truncated:
        more = f"{len(found.files)} of {found.total} shown. " if found.total > len(found.files) else ""
        lines.append(f"\n({more}The search or the list is incomplete: give a narrower pattern, or a path.)")
    elif not found.files and found.ignored:
        lines.append(f"({count_text(found.ignored, 'entry', 'entries')} in .gitignore skipped; pass one as `path`.)")
    return ToolResult(found, "\n".join(lines))


def _begin(folder: Folder, given: GlobArguments) -> tuple[str, str]:
    """The folder to search, and the pattern: one that starts with `/` or contains `..` starts in another folder."""
    names = given.pattern.split("/")
    if names[0] and ".." not in names:
        return given.path, given.pattern
    plain = next((n for n, name in enumerate(names[:-1]) if _WILD & set(name)), len(names) - 1)
    if ".." in names[plain:]:
        raise WorkspaceError("The pattern has .. after a wildcard.", remedy="Put .. before it.")
    start = "/".join(names[:plain])
    place = folder.path_of((start or "/") if not names[0] else f"{given.path}/{start}")
    return str(place), f"./{'/'.join(names[plain:])}"


USUAL_LIMIT = 250
MOST_AROUND = 20

_BETWEEN = re.compile(r"[,\s]+(?![^{]*\})")
"""Separates globs; a comma in braces is part of a glob."""

_Around = Annotated[int, msgspec.Meta(ge=0, le=MOST_AROUND)]


class OutputMode(enum.StrEnum):
    FILES = "files_with_matches"
    CONTENT = "content"
    COUNT = "count"


class GrepArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pattern: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_PATTERN_LENGTH)]
    path: Annotated[str, msgspec.Meta(description="File or folder.")] = "."
    glob: Annotated[str, msgspec.Meta(description="As in *.{ts,tsx}.")] = ""
    type: Annotated[str, msgspec.Meta(description="As in py, js, rust.")] = ""
    output_mode: OutputMode = OutputMode.FILES
    before: Annotated[_Around, msgspec.Meta(description="Lines before, in content.")] | None = msgspec.field(
        name="-B", default=None
    )
    after: _Around | None = msgspec.field(name="-A", default=None)
    context: _Around | None = msgspec.field(name="-C", default=None)
    numbers: Annotated[bool, msgspec.Meta(description="Line numbers, in content.")] = msgspec.field(
        name="-n", default=True
    )
    any_case: bool = msgspec.field(name="-i", default=False)
    head_limit: Annotated[int, msgspec.Meta(ge=0, description="Max lines or files.")] = USUAL_LIMIT


async def grep(context: ToolContext, given: GrepArguments) -> ToolResult:
    with local_remedies():
        case = CaseRule.IGNORE if given.any_case else CaseRule.SENSITIVE
        search = TextSearch(
            pattern=search_pattern(given.pattern, literal=False, case=case),
            path=given.path,
            globs=[one for one in _BETWEEN.split(given.glob) if one],
            kinds=globs_of(given.type),
            around=_around(given),
        )
        sheet = _sheet(context, given)
        passed_over = await run_search(context, search, sheet)
    return ToolResult(given, "\n".join([*sheet.text_lines(), *_notes(sheet, passed_over)]))


def _around(given: GrepArguments) -> ContextLines:
    if given.output_mode is not OutputMode.CONTENT:
        return ContextLines()
    both = given.context or 0
    return ContextLines(both if given.before is None else given.before, both if given.after is None else given.after)


def _notes(sheet: _Written, passed_over: SearchSummary) -> list[str]:
    notes = ["There is more: narrow the search, or raise head_limit."] if sheet.tray.is_full else []
    if passed_over.unseen:
        notes.append(passed_over.unseen)
    if not sheet.tray.lines and passed_over.ignored:
        left = count_text(passed_over.ignored, "entry", "entries")
        notes.append(f"{left} in .gitignore skipped; pass one as `path`.")
    if not sheet.tray.lines and passed_over.binary:
        notes.append(f"{count_text(passed_over.binary, 'binary file')} skipped.")
    return [f"\n({' '.join(notes)})"] if notes else []


def _sheet(context: ToolContext, given: GrepArguments) -> _Written:
    limit = min(given.head_limit or MAX_MATCHES, MAX_MATCHES)
    tray = AnswerBuffer(limit, context.settings.limits.output)
    match given.output_mode:
        case OutputMode.CONTENT:
            return _Content(tray, limit, given, context.folder.path_of(given.path).parts)
        case OutputMode.COUNT:
            return _Counts(tray)
        case OutputMode.FILES:
            return _Files(tray)


class _Written(MatchCollector):
    def __init__(self, tray: AnswerBuffer) -> None:
        self.tray = tray

    def text_lines(self) -> list[str]:
        return self.tray.lines or ["No files found"]


class _Files(_Written):
    def take(self, parts: tuple[str, ...], lines: Iterator[MatchedLine]) -> None:
        if next(lines, None) is not None:
            self.tray.takes(one_line(shown_path(parts)))

    def text_lines(self) -> list[str]:
        found = self.tray.lines
        return [f"Found {count_text(len(found), 'file')}", *found] if found else super().text_lines()


class _Counts(_Written):
    def __init__(self, tray: AnswerBuffer) -> None:
        super().__init__(tray)
        self._total = 0

    def take(self, parts: tuple[str, ...], lines: Iterator[MatchedLine]) -> None:
        count = sum(1 for _ in lines)
        if count and self.tray.takes(f"{one_line(shown_path(parts))}:{count}"):
            self._total += count

    def text_lines(self) -> list[str]:
        found = self.tray.lines
        total = f"{count_text(self._total, 'matching line')} in {count_text(len(found), 'file')}."
        return [*found, "", f"Found {total}"] if found else ["No matches found"]


class _Content(_Written):
    def __init__(self, tray: AnswerBuffer, limit: int, given: GrepArguments, alone: tuple[str, ...]) -> None:
        super().__init__(tray)
        self._limit = limit
        self._numbers = given.numbers
        self._parted = _around(given) != ContextLines()
        self._alone = alone
        """The requested path. If it is a file, its name is not repeated on each line."""

    def take(self, parts: tuple[str, ...], lines: Iterator[MatchedLine]) -> None:
        # Every match is at least one line; one more line shows that there are more.
        found = with_context(lines, most=self._limit + 1, room=self.tray.room)
        path = "" if parts == self._alone else one_line(shown_path(parts))
        before: int | None = None
        for number, text, is_match in chain.from_iterable(found):
            if self._parted and number - 1 != before and self.tray.lines and not self.tray.takes("--"):
                return
            before = number
            mark = ":" if is_match else "-"
            named = [*([path] if path else []), *([str(number)] if self._numbers else [])]
            if not self.tray.takes("".join(f"{name}{mark}" for name in named) + one_line(text)):
                return

    def text_lines(self) -> list[str]:
        return self.tray.lines or ["No matches found"]
