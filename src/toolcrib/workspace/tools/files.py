"""The tools that read and write one file: read_file, write_file, edit_file.

In: a `ToolContext` and what a model gave, checked against its schema. Out: `ToolResult`, or a `WorkspaceError` that
says what would work. `folder` finds files, `text_files` reads ranges, `edits` edits, `atomic_write` writes.
"""

from __future__ import annotations

import base64
import contextlib
import enum
import os
import time
from typing import Annotated, Literal

import msgspec

from toolcrib.errors import WorkspaceError
from toolcrib.workspace.atomic_write import ExistingFile, MissingFolders, WriteTarget, open_target, write_atomically
from toolcrib.workspace.folder import FolderPath
from toolcrib.workspace.session import Overwriting
from toolcrib.workspace.text import count_text, count_undecodable, valid_unicode
from toolcrib.workspace.tool import ToolContext, ToolResult
from toolcrib.workspace.tools.edits import ExpectedMatches, OldText, ReplaceAll, TextEdit, apply_edit, short_diff
from toolcrib.workspace.tools.text_files import (
    BINARY,
    SAMPLE_BYTES,
    NewlineStyle,
    TextEncoding,
    TextRange,
    TextSource,
    check_unicode,
    describe_binary,
    detect_encoding,
    encoding_to_write,
    no_such_byte,
    read_from,
    read_lines,
)

MOST_EDITED = 32 * 1024 * 1024
"""A larger file is not taken into memory whole."""

FilePath = Annotated[str, msgspec.Meta(description="Relative to the workspace's folder.")]
Encoding = Annotated[
    str | None,
    msgspec.Meta(description='Default: UTF-8, or what its byte order mark says. "binary": base64.'),
]


class ReadFileArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: FilePath
    start_line: Annotated[int, msgspec.Meta(ge=1, description="First line to read.")] = 1
    lines: Annotated[int, msgspec.Meta(ge=1, description="How many; default: as many as fit.")] | None = None
    offset: Annotated[int, msgspec.Meta(ge=0, description="Start at this byte instead of a line.")] | None = None
    length: Annotated[int, msgspec.Meta(ge=1, description="At most so many bytes.")] | None = None
    encoding: Encoding = None


class ReadFileResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is usual is not said: UTF-8, without a byte order mark, lines that end with LF, all of the file."""

    kind: Literal["text", "binary"] = "text"
    text: str | None = None
    base64: str | None = None
    note: str = ""
    """What is not shown as it is, and how it can be read."""
    encoding: str = ""
    bom: bool = False
    newline: Literal["lf", "crlf", "cr", "mixed", "none"] | None = "lf"
    size: int | None = None
    first_line: int | None = None
    last_line: int | None = None
    """Where only a part of the file is given."""
    total_lines: int | None = None
    truncated: bool = False
    """Less than was asked for."""
    next_line: int | None = None
    next_offset: int | None = None
    """What to go on with; neither where the file ends."""


class WriteMode(enum.StrEnum):
    OVERWRITE = "overwrite"
    CREATE = "create"
    APPEND = "append"


_EXISTING = {
    WriteMode.OVERWRITE: ExistingFile.REPLACED,
    WriteMode.CREATE: ExistingFile.REFUSED,
    WriteMode.APPEND: ExistingFile.REPLACED_IF_SAME,
}


class WriteFileArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: FilePath
    content: str
    mode: Annotated[
        WriteMode,
        msgspec.Meta(description="overwrite (makes a missing file), create (refuses one that is there), append."),
    ] = WriteMode.OVERWRITE
    encoding: Encoding = None
    make_dirs: Annotated[bool, msgspec.Meta(description="Make folders on the way that are missing.")] = True


class WriteFileResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    path: str
    """Where it really lies, if a link led there."""
    written: int
    """Bytes."""
    created: bool = False
    size: int | None = None
    """Of the whole file, if there was something before."""


class EditFileArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: FilePath
    old: OldText
    new: str
    all: ReplaceAll = False
    expected: ExpectedMatches | None = None
    more: Annotated[
        tuple[TextEdit, ...],
        msgspec.Meta(max_length=100, description="Further edits, in order. All are made, or none."),
    ] = ()
    encoding: Annotated[str | None, msgspec.Meta(description="If it is not UTF-8.")] = None


class EditFileResult(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    matches: int
    diff: str


def read_file(context: ToolContext, given: ReadFileArguments) -> ToolResult:
    if given.offset is not None and (given.start_line > 1 or given.lines is not None):
        raise WorkspaceError("A range is given by lines or by offset, not by both.", remedy="Leave one of them out.")
    target = context.folder.path_of(given.path)
    descriptor = context.folder.open_file(target)
    try:
        before = os.fstat(descriptor)
        size = before.st_size
        head = os.pread(descriptor, min(SAMPLE_BYTES, size), 0)
        if given.encoding == BINARY:
            return _read_binary(context, given, target, descriptor, size)
        form = detect_encoding(head, given.encoding)
        if form is None:
            return _binary_result(target, head, size)
        source = TextSource(descriptor, form, head=head, end=context.deadline)
        found, newline = _find(context, given, source)
        _note_shown(context, descriptor, before, found)
        return _text_result(target, form, source, found, newline)
    finally:
        os.close(descriptor)


def _find(context: ToolContext, given: ReadFileArguments, source: TextSource) -> tuple[TextRange, NewlineStyle]:
    newline = source.newline()
    room = context.settings.limits.read
    most = min(room, given.length or room)
    if given.offset is not None:
        return read_from(source, offset=given.offset, most=most, room=room), newline
    lines = read_lines(source, line_end=newline.end, start=given.start_line, count=given.lines, most=most, room=room)
    return lines, newline


def _note_shown(context: ToolContext, descriptor: int, before: os.stat_result, found: TextRange) -> None:
    """What was read is of the file as it was `before`: a change during the reading makes it another one."""
    lines = found.lines
    if lines is not None and context.session.overwriting is Overwriting.KNOWN:
        # Gone from the folder by now: so nobody will replace it here.
        with contextlib.suppress(OSError):
            context.session.note_shown(context.folder.real_path(descriptor).parts, before, lines)


def _text_result(
    target: FolderPath, form: TextEncoding, source: TextSource, found: TextRange, newline: NewlineStyle
) -> ToolResult:
    note = _odd_bytes(count_undecodable(found.text))
    is_whole = found.total is not None and (found.first or 1, found.last or 0) == (1, found.total)
    data = ReadFileResult(
        size=None if is_whole else source.size,
        text=valid_unicode(found.text),
        encoding="" if form.encoding == "utf-8" else form.encoding,
        bom=form.mark != b"",
        # Of a file that begins with a very long line nothing is known.
        newline=None if newline is NewlineStyle.NONE and source.size > SAMPLE_BYTES else newline.value,
        first_line=None if is_whole else found.first,
        last_line=None if is_whole else found.last,
        total_lines=found.total,
        note=note,
        truncated=found.cut,
        next_line=found.next_line,
        next_offset=found.next_offset,
    )
    return ToolResult(data, f"{target}{_range(found)}{f' ({note})' if note else ''}\n{data.text}")


def _range(found: TextRange) -> str:
    if found.first is None:
        said = "" if found.total is None else " is empty"
    else:
        said = f", lines {found.first}-{found.last}" + (f" of {found.total}" if found.total is not None else "")
    if found.next_line is not None:
        return f"{said} (go on with start_line: {found.next_line})"
    return said if found.next_offset is None else f"{said} (cut; go on with offset: {found.next_offset})"


def _odd_bytes(count: int) -> str:
    if not count:
        return ""
    odd = "1 byte is no UTF-8 and shows" if count == 1 else f"{count:,} bytes are no UTF-8 and show"
    return f"{odd} as \ufffd; edit_file keeps such bytes; name the encoding to read them."


def _read_binary(
    context: ToolContext, given: ReadFileArguments, target: FolderPath, descriptor: int, size: int
) -> ToolResult:
    # In base64 three bytes take up four.
    most = max(context.settings.limits.read // 4 * 3, 3)
    offset = given.offset or 0
    if offset > size:
        raise no_such_byte(offset, size)
    data = os.pread(descriptor, min(most, given.length or most), offset)
    ends = offset + len(data)
    more = ends if ends < size and data else None
    result = ReadFileResult(
        kind="binary",
        size=size,
        base64=base64.b64encode(data).decode(),
        encoding=BINARY,
        truncated=more is not None and given.length != len(data),
        next_offset=more,
    )
    rest = "" if more is None else f" (go on with offset: {more})"
    return ToolResult(result, f"{target}, bytes {offset}-{ends} of {size} in base64{rest}\n{result.base64}")


def _binary_result(target: FolderPath, head: bytes, size: int) -> ToolResult:
    note = f'It is {describe_binary(head)}. encoding: "binary" gives base64; an encoding\'s name reads it as text.'
    data = ReadFileResult(kind="binary", size=size, note=note)
    return ToolResult(data, f"{target}: {count_text(size, 'byte')}. {note}")


def write_file(context: ToolContext, given: WriteFileArguments) -> ToolResult:
    folder = context.folder
    target = folder.path_of(given.path)
    content = _content(given)
    parents = MissingFolders.MADE if given.make_dirs else MissingFolders.NEEDED
    with folder.writing, open_target(folder, target, parents) as there:
        if there.before is not None and given.mode is WriteMode.CREATE:
            raise WorkspaceError(
                f"{target} exists already.",
                remedy="mode: overwrite replaces it; edit_file changes it.",
                data={"argument": "mode"},
            )
        kept = there.before.st_size if there.before is not None and given.mode is WriteMode.APPEND else 0
        data = content if isinstance(content, bytes) else _encoded(content, given.encoding, there, appended=kept > 0)
        _check_room(context, target, kept + len(data))
        existing = _existing(context, given.mode, there)
        context.session.count_written(len(data))
        if kept:
            context.session.note_changed(there.real.parts, there.before, _append(there, data))
        else:
            context.session.note_written(there.real.parts, write_atomically(there, data, existing=existing))
    result = WriteFileResult(
        path=str(there.real),
        created=there.before is None,
        written=len(data),
        size=kept + len(data) if kept else None,
    )
    did = "Appended to" if kept else "Created" if result.created else "Overwrote"
    in_all = f", {kept + len(data):,} in all" if kept else ""
    return ToolResult(result, f"{did} {result.path}: {count_text(len(data), 'byte')} written{in_all}.")


def _existing(context: ToolContext, mode: WriteMode, there: WriteTarget) -> ExistingFile:
    if mode is not WriteMode.OVERWRITE or context.session.overwriting is Overwriting.ANY:
        return _EXISTING[mode]
    if there.before is not None:
        context.session.check_known(there.real.parts, there.before)
    return ExistingFile.REPLACED_IF_SAME


def _content(given: WriteFileArguments) -> bytes | str:
    """Checked before anything is touched."""
    if given.encoding != BINARY:
        check_unicode(given.content, "content")
        return given.content
    try:
        return base64.b64decode(given.content, validate=True)
    except ValueError as error:
        raise WorkspaceError(f"content is no base64: {error}.", remedy="Or leave encoding out.") from error


def _encoded(content: str, encoding: str | None, there: WriteTarget, *, appended: bool) -> bytes:
    form = encoding_to_write(encoding, b"" if there.before is None else there.read(4))
    data = form.bytes_of(content, "content")
    return data[len(form.mark) :] if appended or content.startswith("\ufeff") else data


def _append(there: WriteTarget, data: bytes) -> os.stat_result:
    """By a copy, as every write: a reader sees all of it or nothing, and a full disk leaves the file as it was."""
    descriptor = there.open()
    try:
        return write_atomically(there, data, existing=ExistingFile.REPLACED_IF_SAME, after=descriptor)
    finally:
        os.close(descriptor)


def _check_room(context: ToolContext, target: FolderPath, size: int) -> None:
    most = context.settings.limits.file_size
    if size > most:
        raise WorkspaceError(
            f"{target} would be {size} bytes long; {most} is the most.", remedy="Write several smaller files."
        )
    if time.monotonic() > context.deadline:
        raise WorkspaceError(f"{target} was not written: time is up.", remedy="Try again.")


def edit_file(context: ToolContext, given: EditFileArguments) -> ToolResult:
    target = context.folder.path_of(given.path)
    with context.folder.writing, open_target(context.folder, target, MissingFolders.NEEDED) as there:
        if there.before is not None and there.before.st_size > MOST_EDITED:
            raise WorkspaceError(
                f"{target} is too large to edit: {there.before.st_size} bytes; {MOST_EDITED} is the most.",
                remedy="Change it by a command, as with sed.",
            )
        raw = there.read(MOST_EDITED)
        form = detect_encoding(raw[:SAMPLE_BYTES], given.encoding)
        if form is None or given.encoding == BINARY:
            raise WorkspaceError(
                f"{target} is {describe_binary(raw)}.",
                remedy="If it is text, name its encoding, as in latin-1 or cp1252.",
                data={"argument": "encoding"},
            )
        before = form.text_of(raw, str(target))
        after, matches = before, 0
        first = TextEdit(old=given.old, new=given.new, all=given.all, expected=given.expected)
        for edit in (first, *given.more):
            after, count = apply_edit(after, edit)
            matches += count
        data = form.bytes_of(after, "new")
        _check_room(context, target, len(data))
        context.session.count_written(len(data))
        context.session.note_changed(
            there.real.parts, there.before, write_atomically(there, data, existing=ExistingFile.REPLACED_IF_SAME)
        )
    changed = short_diff(before, after)
    result = EditFileResult(path=str(there.real), matches=matches, diff=changed)
    return ToolResult(result, f"Edited {result.path} in {count_text(matches, 'place')}.\n{changed}")
