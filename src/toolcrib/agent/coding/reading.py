"""Read: a file's lines with their numbers.

In: a path and a range. Out: `number, tab, text` for each line, and how to go on where there is more. The workspace's
`read_file` reads.
"""

from __future__ import annotations

from typing import Annotated, cast

import msgspec

from toolcrib.agent.coding.words import in_these_words
from toolcrib.errors import WorkspaceError
from toolcrib.workspace.files.files import FileText, ReadFile, read_file
from toolcrib.workspace.tool import Done, Scene
from toolcrib.workspace.words import size_words

MOST_LINES = 2000

_ENDS = {"cr": "\r"}


class Read(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    file_path: str
    offset: Annotated[int, msgspec.Meta(ge=0, description="First line.")] = 1
    limit: Annotated[int, msgspec.Meta(ge=1, description="Number of lines.")] = MOST_LINES


def read(scene: Scene, given: Read) -> Done:
    with in_these_words():
        asked = ReadFile(path=given.file_path, start_line=max(given.offset, 1), lines=given.limit)
        found = cast("FileText", read_file(scene, asked).data)
    if found.kind == "binary":
        raise WorkspaceError(
            f"{given.file_path} is no text ({size_words(found.size or 0)}).", remedy="Only text can be read."
        )
    if not found.text:
        return Done(found, "The file exists, and is empty.")
    return Done(found, "\n".join([*_numbered(found), *_notes(given, found)]))


def _numbered(found: FileText) -> list[str]:
    end = _ENDS.get(found.newline or "", "\n")
    lines = (found.text or "").removesuffix(end).split(end)
    plain = (line.removesuffix("\r") for line in lines)
    return [f"{number}\t{line}" for number, line in enumerate(plain, found.first_line or 1)]


def _notes(given: Read, found: FileText) -> list[str]:
    notes: list[str] = []
    if found.note:
        notes.append("Some bytes are no UTF-8 and show as \ufffd; Edit keeps them.")
    if found.next_offset is not None:
        notes.append(f"Line {found.last_line} is too long to be shown whole. Go on with offset: {_after(found)}.")
    elif found.next_line is not None and (found.truncated or given.limit == MOST_LINES):
        of = f" of {found.total_lines}" if found.total_lines else ""
        notes.append(f"These are lines {found.first_line}-{found.last_line}{of}. Go on with offset: {_after(found)}.")
    return [f"\n({' '.join(notes)})"] if notes else []


def _after(found: FileText) -> int:
    return (found.last_line or 1) + 1
