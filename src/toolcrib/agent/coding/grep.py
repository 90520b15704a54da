"""Grep: lines that a pattern fits, the files that have some, or how many.

In: a pattern, where to look, what to show. Out: lines as ripgrep prints them. The workspace searches and gives what it
finds to a `Sheet`; those for the three modes stand here.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator
from itertools import chain
from typing import Annotated

import msgspec

from toolcrib.agent.coding.file_types import globs_of
from toolcrib.agent.coding.words import in_these_words
from toolcrib.workspace.looking.answer import Tray, one_line, shown
from toolcrib.workspace.looking.grep import Around, Line, written_around
from toolcrib.workspace.looking.search import MOST_MATCHES, Search, Searched, Sheet, searched
from toolcrib.workspace.patterns.dialect import LONGEST, CaseRule, understood
from toolcrib.workspace.tool import Done, Scene
from toolcrib.workspace.words import count_words

USUAL_LIMIT = 250
MOST_AROUND = 20

_BETWEEN = re.compile(r"[,\s]+(?![^{]*\})")
"""Of globs in one text; a comma in braces is part of one."""

_Around = Annotated[int, msgspec.Meta(ge=0, le=MOST_AROUND)]


class OutputMode(enum.StrEnum):
    FILES = "files_with_matches"
    CONTENT = "content"
    COUNT = "count"


class Grep(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pattern: Annotated[str, msgspec.Meta(min_length=1, max_length=LONGEST)]
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
    head_limit: Annotated[int, msgspec.Meta(ge=0, description="Most lines, or files.")] = USUAL_LIMIT


async def grep(scene: Scene, given: Grep) -> Done:
    with in_these_words():
        case = CaseRule.IGNORE if given.any_case else CaseRule.SENSITIVE
        search = Search(
            pattern=understood(given.pattern, literal=False, case=case),
            path=given.path,
            globs=[one for one in _BETWEEN.split(given.glob) if one],
            kinds=globs_of(given.type),
            around=_around(given),
        )
        sheet = _sheet(scene, given)
        passed_over = await searched(scene, search, sheet)
    return Done(given, "\n".join([*sheet.told(), *_notes(sheet, passed_over)]))


def _around(given: Grep) -> Around:
    if given.output_mode is not OutputMode.CONTENT:
        return Around()
    both = given.context or 0
    return Around(both if given.before is None else given.before, both if given.after is None else given.after)


def _notes(sheet: _Written, passed_over: Searched) -> list[str]:
    notes = ["There is more: narrow the search, or raise head_limit."] if sheet.tray.is_full else []
    if passed_over.unseen:
        notes.append(passed_over.unseen)
    if not sheet.tray.lines and passed_over.ignored:
        left = count_words(passed_over.ignored, "entry", "entries")
        notes.append(f"{left} of .gitignore not searched; `path` can name one.")
    if not sheet.tray.lines and passed_over.binary:
        notes.append(f"{count_words(passed_over.binary, 'binary file')} skipped.")
    return [f"\n({' '.join(notes)})"] if notes else []


def _sheet(scene: Scene, given: Grep) -> _Written:
    limit = min(given.head_limit or MOST_MATCHES, MOST_MATCHES)
    tray = Tray(limit, scene.settings.limits.output)
    match given.output_mode:
        case OutputMode.CONTENT:
            return _Content(tray, limit, given, scene.folder.spot(given.path).parts)
        case OutputMode.COUNT:
            return _Counts(tray)
        case OutputMode.FILES:
            return _Files(tray)


class _Written(Sheet):
    def __init__(self, tray: Tray) -> None:
        self.tray = tray

    def told(self) -> list[str]:
        return self.tray.lines or ["No files found"]


class _Files(_Written):
    def take(self, parts: tuple[str, ...], lines: Iterator[Line]) -> None:
        if next(lines, None) is not None:
            self.tray.takes(one_line(shown(parts)))

    def told(self) -> list[str]:
        found = self.tray.lines
        return [f"Found {count_words(len(found), 'file')}", *found] if found else super().told()


class _Counts(_Written):
    def __init__(self, tray: Tray) -> None:
        super().__init__(tray)
        self._total = 0

    def take(self, parts: tuple[str, ...], lines: Iterator[Line]) -> None:
        count = sum(1 for _ in lines)
        if count and self.tray.takes(f"{one_line(shown(parts))}:{count}"):
            self._total += count

    def told(self) -> list[str]:
        found = self.tray.lines
        total = f"{count_words(self._total, 'matching line')} in {count_words(len(found), 'file')}."
        return [*found, "", f"Found {total}"] if found else ["No matches found"]


class _Content(_Written):
    def __init__(self, tray: Tray, limit: int, given: Grep, alone: tuple[str, ...]) -> None:
        super().__init__(tray)
        self._limit = limit
        self._numbers = given.numbers
        self._parted = _around(given) != Around()
        self._alone = alone
        """The file that was asked for, if it is one: its name is not repeated."""

    def take(self, parts: tuple[str, ...], lines: Iterator[Line]) -> None:
        # Every match is a line at least, and one more tells that there are more.
        found = written_around(lines, most=self._limit + 1, room=self.tray.room)
        path = "" if parts == self._alone else one_line(shown(parts))
        before: int | None = None
        for number, text, is_match in chain.from_iterable(found):
            if self._parted and number - 1 != before and self.tray.lines and not self.tray.takes("--"):
                return
            before = number
            mark = ":" if is_match else "-"
            named = [*([path] if path else []), *([str(number)] if self._numbers else [])]
            if not self.tray.takes("".join(f"{name}{mark}" for name in named) + one_line(text)):
                return

    def told(self) -> list[str]:
        return self.tray.lines or ["No matches found"]
