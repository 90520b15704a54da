"""`search_text`: the lines of files that a pattern fits.

In: a pattern, where to look, how much to show. Out: lines with their place and what stands around. `walk` gives the
files and `grep` searches them, in a thread; where that takes long, `ripgrep` says meanwhile which others to open. There
is one meaning of a match, whoever helps to find it. What is found is written on a `Sheet`, of which a program may bring
its own.
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Protocol

import msgspec

from toolcrib.workspace.confined.folder import Spot
from toolcrib.workspace.looking.answer import Tray, incomplete, is_utf8, left_out, one_line, shown, time_for
from toolcrib.workspace.looking.grep import Around, Binary, Line, lines_of, written_around
from toolcrib.workspace.looking.look import shown_ignored
from toolcrib.workspace.looking.ripgrep import files_worth_opening
from toolcrib.workspace.looking.walk import Ignored, Kind, Stop, Walk, refuse_git
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
_NARROW = "Narrow the path or glob."


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


class Sheet(Protocol):
    """Where what is found is written down, file after file, until it is full."""

    tray: Tray

    def take(self, parts: tuple[str, ...], lines: Iterator[Line]) -> None:
        """What matches in one file, as it is found: whoever has enough of it stops. It raises `Binary` at any time,
        and what came before does not count then.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class Search:
    """What is looked for, and where."""

    pattern: Pattern
    path: str = "."
    globs: Sequence[str] = ()
    kinds: Sequence[str] = ()
    """More globs: a file has to fit both."""
    around: Around = field(default_factory=Around)
    ignored: Ignored = Ignored.LEFT_OUT


async def search_text(scene: Scene, given: SearchText) -> Done:
    search = Search(
        pattern=understood(given.pattern, literal=given.literal, case=given.case),
        path=given.path,
        globs=given.glob,
        around=Around(given.context, given.context),
        ignored=shown_ignored(given.ignored),
    )
    listed = _Listed(given.limit, scene.settings.limits.output)
    return _told(listed, await searched(scene, search, listed))


async def searched(scene: Scene, search: Search, sheet: Sheet) -> Searched:
    """Fills the sheet."""
    going = _Going(scene, search, sheet)
    work = asyncio.ensure_future(asyncio.to_thread(going.go))
    hint: asyncio.Task[None] | None = None
    try:
        done, _ = await asyncio.wait([work], timeout=PATIENCE)
        if not done:
            hint = asyncio.create_task(_narrow(scene, going))
        found = await asyncio.shield(work)
    finally:
        going.is_given_up = True
        if hint is not None:
            hint.cancel()
        # Soon: a thread that nobody waits for stops at the next file, and a process at once.
        await asyncio.wait([task for task in (work, hint) if task is not None])
    if hint is not None and not hint.cancelled() and (fault := hint.exception()):
        log.warning("ripgrep could not be asked", exc_info=fault)
    return found


async def _narrow(scene: Scene, going: _Going) -> None:
    """While the thread goes on by itself."""
    if going.walk is not None:
        search = going.search
        found = await files_worth_opening(
            scene, search.pattern, going.start, globs=search.globs, ignored=search.ignored, until=going.until
        )
        if found is not None:
            going.walk.only = {parts[:length] for parts in found for length in range(1, len(parts) + 1)}


@dataclass(frozen=True, kw_only=True)
class Searched:
    """What was passed over, beside what stands on the sheet."""

    binary: int
    ignored: int
    unseen: str
    """Why not everything was searched; empty if it was, or if the sheet was full first."""


class _Going:
    def __init__(self, scene: Scene, search: Search, sheet: Sheet) -> None:
        self.search = search
        self.until = time_for(scene, NAME)
        self.is_given_up = False
        self._sheet = sheet
        self._folder = scene.folder
        self._fits = [Globs(globs) for globs in (search.globs, search.kinds) if globs]
        self._binary = 0
        self._is_late = False
        self.start, self.walk = self._begin()

    def _begin(self) -> tuple[Spot, Walk | None]:
        """Where it really lies, links resolved. A file that is named is searched whatever .gitignore says of it."""
        asked = self._folder.spot(self.search.path)
        with self._folder.reaching(asked) as (descriptor, real):
            refuse_git(real.parts, asked)
            is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        return real, Walk(self._folder, real, ignored=self.search.ignored, until=self.until) if is_folder else None

    def go(self) -> Searched:
        """To the end, or until the sheet is full or the time is up."""
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
        return Searched(binary=self._binary, ignored=ignored, unseen=self._unseen())

    def _is_over(self) -> bool:
        self._is_late = self._is_late or time.monotonic() > self.until
        return self._is_late or self.is_given_up

    def _opened(self) -> Generator[tuple[tuple[str, ...], int]]:
        if self.walk is None:
            yield self.start.parts, self._folder.open_file(self.start)
            return
        for entry in self.walk:
            if entry.kind is not Kind.FILE or not self._fit(self.walk.way(entry)):
                continue
            try:
                descriptor = entry.open(self._folder)
            except OSError:
                continue
            yield entry.parts, descriptor

    def _fit(self, way: Sequence[str]) -> bool:
        return all(globs.matches(way) for globs in self._fits)

    def _look_into(self, parts: tuple[str, ...], descriptor: int) -> None:
        lines = lines_of(descriptor, self.search.pattern, self.search.around, is_over=self._is_over)
        try:
            self._sheet.take(parts, lines)
        except Binary:
            self._binary += 1
        except OSError:
            return

    def _unseen(self) -> str:
        if self._sheet.tray.is_full:
            return ""
        if self._is_late:
            return f"Not everything was searched: {Stop.TIME}. {_NARROW}"
        return incomplete(self.walk, _NARROW) if self.walk is not None else ""


class _Listed:
    """Files with the lines of theirs that match, as many as fit."""

    def __init__(self, limit: int, size: int) -> None:
        self.tray = Tray(limit, size)
        self.files: list[Matching] = []
        self.matches = 0
        self._limit = limit

    def take(self, parts: tuple[str, ...], lines: Iterator[Line]) -> None:
        # One more than is shown, to know that there are more.
        matches = written_around(lines, most=self._limit - self.matches + 1, room=self.tray.room)
        path = shown(parts) if matches else ""
        found = Matching(path=path, lines=[], escaped=not is_utf8("/".join(parts)))
        for number, written in enumerate(matches):
            new = [f"{line.number}{':' if line.is_match else '-'} {line.text}" for line in written]
            if not self.tray.takes(*map(one_line, new if number else [path, *new])):
                return
            if not number:
                self.files.append(found)
            self.matches += 1
            found.lines.extend(new)


def _told(listed: _Listed, searched: Searched) -> Done:
    full = "There are more matches. Narrow the pattern, path or glob, or raise the limit."
    note = full if listed.tray.is_full else searched.unseen
    data = TextFound(
        files=listed.files,
        matches=listed.matches,
        binary=searched.binary,
        ignored=searched.ignored,
        truncated=bool(note),
        note=note,
    )
    where = f" in {count_words(len(data.files), 'file')}" if data.files else ""
    skipped = f" ({count_words(data.binary, 'binary file')} skipped)" if data.binary else ""
    head = f"{count_words(data.matches, 'match', 'matches')}{where}{left_out(data.ignored, 'searched')}{skipped}"
    return Done(data, "\n".join([head, *listed.tray.lines, *([note] if note else [])]))
