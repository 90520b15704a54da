"""`search_text`: the lines of files that match a pattern.

In: a pattern, a path, how much to show. Out: matching lines with their position and context. `walk` finds the files and
`regex` searches them, in a thread. If that takes long, ripgrep in the sandbox finds out which of the remaining files to
open. Its answer is only a hint: we still walk, read and match ourselves, so a planted link, a rule that ripgrep reads
differently, or a forged answer can hide a file but never show one. Matches go to a `MatchCollector`; a program can
provide its own.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import stat
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Protocol

import msgspec

from toolcrib.errors import WorkspaceError
from toolcrib.workspace.confined_open import FileKind
from toolcrib.workspace.folder import FolderPath
from toolcrib.workspace.globs import Globs
from toolcrib.workspace.regex import (
    MAX_PATTERN_LENGTH,
    CaseRule,
    ContextLines,
    IsBinary,
    MatchedLine,
    SearchPattern,
    matching_lines,
    search_pattern,
    with_context,
)
from toolcrib.workspace.sandbox.command import CommandEnding, SandboxCommand
from toolcrib.workspace.sandbox.system import find_program
from toolcrib.workspace.text import (
    AnswerBuffer,
    count_text,
    ignored_note,
    incomplete_note,
    is_utf8,
    looking_deadline,
    one_line,
    shown_path,
)
from toolcrib.workspace.tool import ToolContext, ToolResult
from toolcrib.workspace.tools.listing import ignored_files
from toolcrib.workspace.tools.runner import StdoutCollector
from toolcrib.workspace.tools.walk import FolderWalk, IgnoredFiles, WalkLimit, is_toolcrib_folder, refuse_git

RIPGREP = "rg"
MAX_OUTPUT_BYTES = 4 * 1024 * 1024
"""Bytes of file names. With more, nearly every file matches and nothing is gained."""
_ALIKE_IN_BOTH = re.compile(r"[\w*.-]+")
_FOUND, _NOTHING = 0, 1

_OPTIONS = (
    "--files-with-matches",
    "--null",
    "--no-config",
    "--no-messages",
    "--no-mmap",
    "--hidden",
    "--no-require-git",
    "--no-ignore-global",
    "--no-ignore-parent",
    "--no-ignore-dot",
    "--no-ignore-exclude",
)


async def files_worth_opening(
    context: ToolContext,
    pattern: SearchPattern,
    start: FolderPath,
    *,
    globs: Sequence[str],
    ignored: IgnoredFiles,
    until: float,
) -> set[tuple[str, ...]] | None:
    """Paths from the root; they include every matching file."""
    program = find_program(RIPGREP, context.environ, context.folder.root)
    if program is None:
        return None
    names = StdoutCollector(MAX_OUTPUT_BYTES)
    argv = (
        str(program.resolve()),
        *_OPTIONS,
        *_ripgrep_options(pattern, start, globs, ignored),
        "--",
        f"./{'/'.join(start.parts)}",
    )
    try:
        sandbox = await context.sandbox()
        if sandbox.refusal is not None:
            return None
        command = SandboxCommand(argv=argv, seconds=max(0.1, until - time.monotonic()), writes=False, keeps=False)
        finished = await sandbox.run(command, on_output=names.take)
    except (WorkspaceError, OSError):
        return None
    if finished.ending is not CommandEnding.EXITED or finished.code not in (_FOUND, _NOTHING) or names.is_cut:
        # It refused the pattern, could not read a file that we might, or found too many files to help.
        return None
    return {tuple(name.removeprefix("./").split("/")) for name in os.fsdecode(bytes(names.stdout)).split("\0")[:-1]}


def _ripgrep_options(
    pattern: SearchPattern, start: FolderPath, globs: Sequence[str], ignored: IgnoredFiles
) -> list[str]:
    options = list(pattern.ripgrep)
    if not pattern.carriage_returns:
        options.append("--crlf")
    if ignored is IgnoredFiles.SHOWN or any(is_toolcrib_folder(name) for name in start.parts):
        options.append("--no-ignore")
    # Only globs that mean the same in both; all are checked afterwards anyway.
    if globs and all(_ALIKE_IN_BOTH.fullmatch(glob) and "**" not in glob for glob in globs):
        options += [f"--glob={glob}" for glob in globs]
    return [*options, "--glob=!.git", "--glob=!.toolcrib/runs"]


log = logging.getLogger(__name__)

NAME = "search_text"
RIPGREP_AFTER = 0.3
"""Seconds before ripgrep starts. Starting it in the sandbox costs 20 to 40 ms and a core, and most searches finish
sooner: reading 8,000 files takes 0.2 s, and frequent matches fill the result at once. Starting ripgrep after 0.1 s
turned these 0.2 s into 0.26 s (`bench/workspace.py`); it pays off for trees several times as large."""
MAX_MATCHES = 1000
MAX_CONTEXT = 10
_NARROW_ADVICE = "Narrow the path or glob."


class SearchTextArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pattern: Annotated[
        str,
        msgspec.Meta(
            min_length=1, max_length=MAX_PATTERN_LENGTH, description="A regular expression (RE2), matched line by line."
        ),
    ]
    path: Annotated[str, msgspec.Meta(description="A folder or a file.")] = "."
    glob: Annotated[list[str], msgspec.Meta(description="Only matching files, such as *.py; !x excludes.")] = []
    literal: Annotated[bool, msgspec.Meta(description="The pattern is plain text.")] = False
    case: Annotated[CaseRule, msgspec.Meta(description="smart: sensitive if the pattern has a capital.")] = (
        CaseRule.SENSITIVE
    )
    context: Annotated[int, msgspec.Meta(ge=0, le=MAX_CONTEXT, description="Lines around each match.")] = 0
    ignored: Annotated[bool, msgspec.Meta(description="Include files ignored by .gitignore.")] = False
    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_MATCHES, description="Maximum matching lines.")] = 100


class FileMatches(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    path: str
    lines: list[str]
    """With line numbers: `12: text` is a match, `13- text` a context line."""
    escaped: bool = False


class SearchTextResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    files: list[FileMatches]
    matches: int
    """Matching lines among those shown."""
    binary: int = 0
    """Files that were skipped because they are not text."""
    ignored: int = 0
    """Minimum number of entries that .gitignore left out; their contents are not counted."""
    truncated: bool = False
    note: str = ""


class MatchCollector(Protocol):
    """Collects matches, file by file, until it is full."""

    tray: AnswerBuffer

    def take(self, parts: tuple[str, ...], lines: Iterator[MatchedLine]) -> None:
        """Takes the matches of one file as they are found, and may stop early. `lines` can raise `IsBinary` at any
        time; then discard the lines that came before.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class TextSearch:
    pattern: SearchPattern
    path: str = "."
    globs: Sequence[str] = ()
    kinds: Sequence[str] = ()
    """More globs: a file must match both."""
    around: ContextLines = field(default_factory=ContextLines)
    ignored: IgnoredFiles = IgnoredFiles.LEFT_OUT


async def search_text(context: ToolContext, given: SearchTextArguments) -> ToolResult:
    search = TextSearch(
        pattern=search_pattern(given.pattern, literal=given.literal, case=given.case),
        path=given.path,
        globs=given.glob,
        around=ContextLines(given.context, given.context),
        ignored=ignored_files(given.ignored),
    )
    listed = _MatchList(given.limit, context.settings.limits.output)
    return _result(listed, await run_search(context, search, listed))


async def run_search(context: ToolContext, search: TextSearch, sheet: MatchCollector) -> SearchSummary:
    """Fills `sheet`."""
    going = _RunningSearch(context, search, sheet)
    work = asyncio.ensure_future(asyncio.to_thread(going.go))
    hint: asyncio.Task[None] | None = None
    try:
        done, _ = await asyncio.wait([work], timeout=RIPGREP_AFTER)
        if not done:
            hint = asyncio.create_task(_ask_ripgrep(context, going))
        found = await asyncio.shield(work)
    finally:
        going.is_given_up = True
        if hint is not None:
            hint.cancel()
        # This is short: an abandoned thread stops at the next file, and a process at once.
        await asyncio.wait([task for task in (work, hint) if task is not None])
    if hint is not None and not hint.cancelled() and (fault := hint.exception()):
        log.warning("ripgrep failed", exc_info=fault)
    return found


async def _ask_ripgrep(context: ToolContext, going: _RunningSearch) -> None:
    """Runs while the thread continues."""
    if going.walk is not None:
        search = going.search
        found = await files_worth_opening(
            context, search.pattern, going.start, globs=search.globs, ignored=search.ignored, until=going.until
        )
        if found is not None:
            going.walk.only = {parts[:length] for parts in found for length in range(1, len(parts) + 1)}


@dataclass(frozen=True, kw_only=True)
class SearchSummary:
    """What a search skipped; the matches are in the collector."""

    binary: int
    ignored: int
    unseen: str
    """Why the search is incomplete; empty if it is complete or stopped because the collector was full."""


class _RunningSearch:
    def __init__(self, context: ToolContext, search: TextSearch, sheet: MatchCollector) -> None:
        self.search = search
        self.until = looking_deadline(context, NAME)
        self.is_given_up = False
        self._sheet = sheet
        self._folder = context.folder
        self._globs = [Globs(globs) for globs in (search.globs, search.kinds) if globs]
        self._binary = 0
        self._is_late = False
        self.start, self.walk = self._begin()

    def _begin(self) -> tuple[FolderPath, FolderWalk | None]:
        """Resolves links. A file named explicitly is searched even if .gitignore ignores it."""
        asked = self._folder.path_of(self.search.path)
        with self._folder.opened(asked) as (descriptor, real):
            refuse_git(real.parts, asked)
            is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        return real, FolderWalk(
            self._folder, real, ignored=self.search.ignored, until=self.until
        ) if is_folder else None

    def go(self) -> SearchSummary:
        """Searches to the end, or until the collector is full or time is up."""
        files = self._opened()
        try:
            for parts, descriptor in files:
                try:
                    self._look_into(parts, descriptor)
                finally:
                    os.close(descriptor)
                if self._sheet.tray.is_full or self._is_over():
                    break
        finally:
            files.close()
        ignored = self.walk.left_out if self.walk is not None else 0
        return SearchSummary(binary=self._binary, ignored=ignored, unseen=self._unseen())

    def _is_over(self) -> bool:
        self._is_late = self._is_late or time.monotonic() > self.until
        return self._is_late or self.is_given_up

    def _opened(self) -> Generator[tuple[tuple[str, ...], int]]:
        if self.walk is None:
            yield self.start.parts, self._folder.open_file(self.start)
            return
        for entry in self.walk:
            if entry.kind is not FileKind.FILE or not self._fits(self.walk.relative(entry)):
                continue
            try:
                descriptor = entry.open()
            except OSError:
                continue
            yield entry.parts, descriptor

    def _fits(self, way: Sequence[str]) -> bool:
        return all(globs.matches(way) for globs in self._globs)

    def _look_into(self, parts: tuple[str, ...], descriptor: int) -> None:
        lines = matching_lines(descriptor, self.search.pattern, self.search.around, is_over=self._is_over)
        try:
            self._sheet.take(parts, lines)
        except IsBinary:
            self._binary += 1
        except OSError:
            return

    def _unseen(self) -> str:
        if self._sheet.tray.is_full:
            return ""
        if self._is_late:
            return f"Incomplete: {WalkLimit.TIME}. {_NARROW_ADVICE}"
        return incomplete_note(self.walk, _NARROW_ADVICE) if self.walk is not None else ""


class _MatchList:
    """Files with their matching lines, as many as fit."""

    def __init__(self, limit: int, size: int) -> None:
        self.tray = AnswerBuffer(limit, size)
        self.files: list[FileMatches] = []
        self.matches = 0
        self._limit = limit

    def take(self, parts: tuple[str, ...], lines: Iterator[MatchedLine]) -> None:
        # One more than shown, to know whether there are more.
        matches = with_context(lines, most=self._limit - self.matches + 1, room=self.tray.room)
        path = shown_path(parts) if matches else ""
        found = FileMatches(path=path, lines=[], escaped=not is_utf8("/".join(parts)))
        for number, written in enumerate(matches):
            new = [f"{line.number}{':' if line.is_match else '-'} {line.text}" for line in written]
            if not self.tray.takes(*map(one_line, new if number else [path, *new])):
                return
            if not number:
                self.files.append(found)
            self.matches += 1
            found.lines.extend(new)


def _result(listed: _MatchList, searched: SearchSummary) -> ToolResult:
    full = "There are more matches. Narrow the pattern, path or glob, or raise the limit."
    note = full if listed.tray.is_full else searched.unseen
    data = SearchTextResult(
        files=listed.files,
        matches=listed.matches,
        binary=searched.binary,
        ignored=searched.ignored,
        truncated=bool(note),
        note=note,
    )
    where = f" in {count_text(len(data.files), 'file')}" if data.files else ""
    skipped = f" ({count_text(data.binary, 'binary file')} skipped)" if data.binary else ""
    head = f"{count_text(data.matches, 'match', 'matches')}{where}{ignored_note(data.ignored, 'searched')}{skipped}"
    return ToolResult(data, "\n".join([head, *listed.tray.lines, *([note] if note else [])]))
