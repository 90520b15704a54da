"""Exact replacements in a text.

In: a text and an edit. Out: the new text and the number of matches, or a `WorkspaceError` with the nearest lines. Line
ends are preserved. `files` reads and writes the text.
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterator
from typing import Annotated

import msgspec

from toolcrib.errors import WorkspaceError
from toolcrib.workspace.text import valid_unicode
from toolcrib.workspace.tools.text_files import NewlineStyle, check_unicode, newline_style

_MAX_LINES = 5000
"""Lines of a text that are searched for similar ones."""
_MAX_LINE_LENGTH = 160
_MAX_NAMED_LINES = 5
_CONTEXT = 2
_MAX_DIFF_LENGTH = 4096
_MAX_COMPARED_LINES = 1000
_ENDS = "\r\n"


OldText = Annotated[str, msgspec.Meta(description="Exact text to replace, with enough context to be unique.")]
ReplaceAll = Annotated[bool, msgspec.Meta(description="Replace every match.")]
ExpectedMatches = Annotated[int, msgspec.Meta(ge=1, description="Expected number of matches; fails otherwise.")]


class TextEdit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One exact replacement."""

    old: OldText
    new: str
    all: ReplaceAll = False
    expected: ExpectedMatches | None = None


def apply_edit(text: str, edit: TextEdit) -> tuple[str, int]:
    """The new text, and the number of replacements."""
    newline = newline_style(text)
    if not edit.old:
        raise WorkspaceError("old is empty.", remedy="Pass the text to replace; write_file writes files.")
    check_unicode(edit.new, "new")
    old, new = _as_text_has(text, newline, edit)
    count = text.count(old)
    if old == new:
        raise WorkspaceError("The old text and the new are the same.", remedy="Give the replacement text.")
    if not count:
        raise _not_found(text, newline, edit.old)
    wanted = edit.expected if edit.expected is not None else count if edit.all else 1
    if count != wanted:
        raise _other_count(text, newline, old, count, wanted)
    return text.replace(old, new), count


def _as_text_has(text: str, newline: NewlineStyle, edit: TextEdit) -> tuple[str, str]:
    """Converts line ends to those of the text: a model always writes LF."""
    if newline in (NewlineStyle.CRLF, NewlineStyle.CR):
        return _with(edit.old, newline.whole), _with(edit.new, newline.whole)
    if newline is NewlineStyle.MIXED and edit.old not in text:
        return _with(edit.old, "\r\n"), _with(edit.new, "\r\n")
    return edit.old, edit.new


def _with(text: str, end: str) -> str:
    return text if "\r" in text else text.replace("\n", end)


def _other_count(text: str, newline: NewlineStyle, old: str, count: int, wanted: int) -> WorkspaceError:
    lines = list(itertools.islice(_line_numbers(text, newline, old), _MAX_NAMED_LINES))
    where = ", ".join(map(str, lines)) + (" …" if count > len(lines) else "")
    times = "once" if wanted == 1 else f"{wanted} times"
    return WorkspaceError(
        f"The text to replace occurs {count} times (lines {where}), not {times}.",
        remedy=f"Add surrounding text, or set all: true or expected: {count}.",
        data={"matches": count, "lines": lines, "argument": "all"},
    )


def _line_numbers(text: str, newline: NewlineStyle, old: str) -> Iterator[int]:
    line, place = 1, 0
    while (found := text.find(old, place)) >= 0:
        line += text.count(newline.end, place, found)
        yield line
        line += text.count(newline.end, found, found + len(old))
        place = found + len(old)


def _not_found(text: str, newline: NewlineStyle, old: str) -> WorkspaceError:
    wanted = next((line.strip() for line in old.splitlines() if line.strip()), "")
    near = _near(text, newline, wanted[:_MAX_LINE_LENGTH]) if wanted else []
    if not near:
        return WorkspaceError(
            "The text to replace was not found in the file.", remedy="Read the file, and copy the text from it."
        )
    shown = "\n".join(f"{number}: {valid_unicode(line)}" for number, line in near)
    return WorkspaceError(
        "The text to replace was not found in the file.",
        remedy=f"It must match exactly, including white space. The nearest lines are:\n{shown}",
        data={"near": [number for number, _ in near]},
    )


def _near(text: str, newline: NewlineStyle, wanted: str) -> list[tuple[int, str]]:
    lines = [line.rstrip(_ENDS)[:_MAX_LINE_LENGTH] for line in itertools.islice(_split(text, newline.end), _MAX_LINES)]
    numbers: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        if wanted in line:
            numbers.setdefault(line.strip(), number)
    found = list(numbers)[:3]
    if not found:
        for number, line in enumerate(lines, 1):
            numbers.setdefault(line.strip(), number)
        found = difflib.get_close_matches(wanted, numbers, 3, 0.6)
    return sorted((numbers[line], lines[numbers[line] - 1]) for line in found)


def _split(text: str, end: str) -> Iterator[str]:
    """Lines with their ends; `splitlines` would also split at form feeds and the like."""
    place = 0
    while (found := text.find(end, place)) >= 0:
        yield text[place : found + 1]
        place = found + 1
    if place < len(text):
        yield text[place:]


def short_diff(before: str, after: str) -> str:
    """A unified diff without file names; shortened if it is long."""
    end = newline_style(before).end
    old, new = list(_split(before, end)), list(_split(after, end))
    same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(old, new, strict=False)))
    tails = zip(reversed(old[same:]), reversed(new[same:]), strict=False)
    tail = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], tails))
    removed, added = len(old) - same - tail, len(new) - same - tail
    if max(removed, added) > _MAX_COMPARED_LINES:
        return f"@@ -{same + 1},{removed} +{same + 1},{added} @@\n(too many lines to show)\n"
    top = max(same - _CONTEXT, 0)
    a, b = old[top : len(old) - max(tail - _CONTEXT, 0)], new[top : len(new) - max(tail - _CONTEXT, 0)]
    return valid_unicode(_cut("".join(_hunks(difflib.SequenceMatcher(None, a, b), a, b, top))))


def _hunks(matcher: difflib.SequenceMatcher[str], a: list[str], b: list[str], top: int) -> Iterator[str]:
    for group in matcher.get_grouped_opcodes(_CONTEXT):
        i1, i2, j1, j2 = group[0][1], group[-1][2], group[0][3], group[-1][4]
        yield f"@@ -{top + i1 + 1},{i2 - i1} +{top + j1 + 1},{j2 - j1} @@\n"
        for tag, a1, a2, b1, b2 in group:
            if tag == "equal":
                yield from _marked(" ", a[a1:a2])
                continue
            yield from _marked("-", a[a1:a2])
            yield from _marked("+", b[b1:b2])


def _marked(mark: str, lines: list[str]) -> Iterator[str]:
    return (f"{mark}{line.rstrip(_ENDS)[:_MAX_LINE_LENGTH]}\n" for line in lines)


def _cut(text: str) -> str:
    if len(text) <= _MAX_DIFF_LENGTH:
        return text
    return text[: text.rfind("\n", 0, _MAX_DIFF_LENGTH) + 1] + "…\n"
