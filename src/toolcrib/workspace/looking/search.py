"""`search_text`: the lines of files that a pattern fits.

In: a pattern, where to look, how much to show. Out: lines with their place and what stands around. `walk` gives the
files and `grep` searches them, in a thread; where that takes long, `ripgrep` says meanwhile which others to open. There
is one meaning of a match, whoever helps to find it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
import time
from collections.abc import Generator
from typing import Annotated

import msgspec

from toolcrib.workspace.confined.folder import Spot
from toolcrib.workspace.looking.answer import Tray, incomplete, is_utf8, left_out, one_line, shown, time_for
from toolcrib.workspace.looking.grep import Binary, Line, lines_of
from toolcrib.workspace.looking.look import shown_ignored
from toolcrib.workspace.looking.ripgrep import files_worth_opening
from toolcrib.workspace.looking.walk import Kind, Stop, Walk, refuse_git
from toolcrib.workspace.patterns.dialect import LONGEST, CaseRule, Pattern, understood
from toolcrib.workspace.patterns.globs import Globs
from toolcrib.workspace.tool import Done, Scene
from toolcrib.workspace.words import count_words

log = logging.getLogger(__name__)

NAME = "search_text"
PATIENCE = 0.3
"""Seconds alone, before ripgrep is asked. To start it in the sandbox costs 20 to 40 ms and a core, and most searches
are done sooner: 8,000 files are read to the end in 0.2 s, and what is frequent fills the answer at once. Asked after
0.1 s it made that 0.26 s (`bench/workspace.py`); it is for trees several times as large."""
MOST_MATCHES = 1000
MOST_CONTEXT = 10


class SearchText(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pattern: Annotated[
        str,
        msgspec.Meta(min_length=1, max_length=LONGEST, description="A regular expression (RE2), matched line by line."),
    ]
    path: Annotated[str, msgspec.Meta(description="A folder or a file.")] = "."
    glob: Annotated[list[str], msgspec.Meta(description="Only files that fit, such as *.py; !x leaves out.")] = []
    literal: Annotated[bool, msgspec.Meta(description="The pattern is plain text.")] = False
    case: Annotated[CaseRule, msgspec.Meta(description="smart: a capital letter in the pattern counts.")] = (
        CaseRule.SENSITIVE
    )
    context: Annotated[int, msgspec.Meta(ge=0, le=MOST_CONTEXT, description="Lines around each match.")] = 0
    ignored: Annotated[bool, msgspec.Meta(description="Also what .gitignore leaves out.")] = False
    limit: Annotated[int, msgspec.Meta(ge=1, le=MOST_MATCHES, description="Most matching lines.")] = 100


class Matching(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    path: str
    lines: list[str]
    """With their numbers: `12: text` matches, `13- text` stands beside a match."""
    escaped: bool = False


class TextFound(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    files: list[Matching]
    matches: int
    """Lines that match, of those that are shown."""
    binary: int = 0
    """Files that were skipped because they are no text."""
    ignored: int = 0
    """How many entries .gitignore left out, at least: what is not looked into is not counted."""
    truncated: bool = False
    note: str = ""


async def search_text(scene: Scene, given: SearchText) -> Done:
    pattern = understood(given.pattern, literal=given.literal, case=given.case)
    search = _Search(scene, given, pattern)
    work = asyncio.ensure_future(asyncio.to_thread(search.go))
    hint: asyncio.Task[None] | None = None
    try:
        done, _ = await asyncio.wait([work], timeout=PATIENCE)
        if not done:
            hint = asyncio.create_task(_narrow(scene, search))
        found = await asyncio.shield(work)
    finally:
        search.is_given_up = True
        if hint is not None:
            hint.cancel()
        # Soon: a thread that nobody waits for stops at the next file, and a process at once.
        await asyncio.wait([task for task in (work, hint) if task is not None])
    if hint is not None and not hint.cancelled() and (fault := hint.exception()):
        log.warning("ripgrep could not be asked", exc_info=fault)
    return found


async def _narrow(scene: Scene, search: _Search) -> None:
    """While the thread goes on by itself."""
    if search.walk is not None:
        ignored = shown_ignored(search.given.ignored)
        found = await files_worth_opening(
            scene, search.pattern, search.start, globs=search.globs, ignored=ignored, until=search.until
        )
        if found is not None:
            search.walk.only = {parts[:length] for parts in found for length in range(1, len(parts) + 1)}


class _Search:
    def __init__(self, scene: Scene, given: SearchText, pattern: Pattern) -> None:
        self.given = given
        self.pattern = pattern
        self.globs = given.glob
        self.until = time_for(scene, NAME)
        self.is_given_up = False
        self._folder = scene.folder
        self._fits = Globs(self.globs) if self.globs else None
        self._tray = Tray(given.limit, scene.settings.limits.output)
        self._files: list[Matching] = []
        self._matches = 0
        self._binary = 0
        self._is_late = False
        self.start, self.walk = self._begin()

    def _begin(self) -> tuple[Spot, Walk | None]:
        """Where it really lies, links resolved. A file that is named is searched whatever .gitignore says of it."""
        asked = self._folder.spot(self.given.path)
        with self._folder.reaching(asked) as (descriptor, real):
            refuse_git(real.parts, asked)
            is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        ignored = shown_ignored(self.given.ignored)
        return real, Walk(self._folder, real, ignored=ignored, until=self.until) if is_folder else None

    def go(self) -> Done:
        """To the end, or until the answer is full or the time is up."""
        files = self._opened()
        try:
            for parts, descriptor in files:
                try:
                    self._look_into(parts, descriptor)
                finally:
                    os.close(descriptor)
                if self._tray.is_full or self._is_over():
                    break
        finally:
            files.close()
        return self._answer()

    def _is_over(self) -> bool:
        self._is_late = self._is_late or time.monotonic() > self.until
        return self._is_late or self.is_given_up

    def _opened(self) -> Generator[tuple[tuple[str, ...], int]]:
        if self.walk is None:
            yield self.start.parts, self._folder.open_file(self.start)
            return
        for entry in self.walk:
            if entry.kind is not Kind.FILE or (self._fits and not self._fits.matches(self.walk.way(entry))):
                continue
            try:
                descriptor = entry.open(self._folder)
            except OSError:
                continue
            yield entry.parts, descriptor

    def _look_into(self, parts: tuple[str, ...], descriptor: int) -> None:
        most = self.given.limit - self._matches
        lines: list[Line] = []
        try:
            for line in lines_of(descriptor, self.pattern, self.given.context, is_over=self._is_over):
                lines.append(line)
                if len(lines) > most:
                    # One more than is shown, to know that there are more.
                    break
        except Binary:
            self._binary += 1
            return
        except OSError:
            return
        self._take(parts, lines)

    def _take(self, parts: tuple[str, ...], lines: list[Line]) -> None:
        path = shown(parts) if lines else ""
        found = Matching(path=path, lines=[], escaped=not is_utf8("/".join(parts)))
        last = 0
        for number, line in enumerate(lines):
            new = _numbered(line, last, lines[number + 1].number if number + 1 < len(lines) else None)
            last = line.number + len(line.after)
            if not self._tray.takes(*map(one_line, new if number else [path, *new])):
                return
            if not number:
                self._files.append(found)
            self._matches += 1
            found.lines.extend(new)

    def _answer(self) -> Done:
        data = TextFound(
            files=self._files,
            matches=self._matches,
            binary=self._binary,
            ignored=self.walk.left_out if self.walk is not None else 0,
            truncated=bool(note := self._note()),
            note=note,
        )
        where = f" in {count_words(len(data.files), 'file')}" if data.files else ""
        skipped = f" ({count_words(data.binary, 'binary file')} skipped)" if data.binary else ""
        head = f"{count_words(data.matches, 'match', 'matches')}{where}{left_out(data.ignored, 'searched')}{skipped}"
        return Done(data, "\n".join([head, *self._tray.lines, *([note] if note else [])]))

    def _note(self) -> str:
        if self._tray.is_full:
            return "There are more matches. Narrow the pattern, path or glob, or raise the limit."
        if self._is_late:
            return f"Not everything was searched: {Stop.TIME}. Narrow the path or glob."
        return incomplete(self.walk, "Narrow the path or glob.") if self.walk is not None else ""


def _numbered(line: Line, last: int, following: int | None) -> list[str]:
    """A match and the lines around it that are not shown with the match before, whose last line is `last`, and are
    not the next match or shown with it.
    """
    before = [f"{n}- {text}" for n, text in enumerate(line.before, line.number - len(line.before)) if n > last]
    after = [f"{n}- {text}" for n, text in enumerate(line.after, line.number + 1) if not following or n < following]
    return [*before, f"{line.number}: {line.text}", *after]
