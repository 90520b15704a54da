"""The tools that read and write one file: read_file, write_file, edit_file.

In: a `ToolContext` and validated arguments. Out: `ToolResult`, or a `WorkspaceError` with a remedy. `folder` finds
files, `text_files` reads ranges, `edits` edits, `atomic_write` writes.
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

MAX_EDITED_BYTES = 32 * 1024 * 1024
"""Bytes of a file that is loaded into memory for an edit."""

FilePath = Annotated[str, msgspec.Meta(description="Relative to the workspace's folder.")]
Encoding = Annotated[
    str | None,
    msgspec.Meta(description='Default: UTF-8, or per byte order mark. "binary": base64.'),
]


class ReadFileArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: FilePath
    start_line: Annotated[int, msgspec.Meta(ge=1, description="First line to read.")] = 1
    lines: Annotated[int, msgspec.Meta(ge=1, description="How many; default: as many as fit.")] | None = None
    offset: Annotated[int, msgspec.Meta(ge=0, description="Start at this byte instead of a line.")] | None = None
    length: Annotated[int, msgspec.Meta(ge=1, description="Maximum bytes to read.")] | None = None
    encoding: Encoding = None


class ReadFileResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Defaults are left out: UTF-8, no byte order mark, LF line ends, the whole file."""

    kind: Literal["text", "binary"] = "text"
    text: str | None = None
    base64: str | None = None
    note: str = ""
    """What is not shown verbatim, and how to read it."""
    encoding: str = ""
    bom: bool = False
    newline: Literal["lf", "crlf", "cr", "mixed", "none"] | None = "lf"
    size: int | None = None
    first_line: int | None = None
    last_line: int | None = None
    """Set if only a part of the file is returned."""
    total_lines: int | None = None
    truncated: bool = False
    """Less than requested."""
    next_line: int | None = None
    next_offset: int | None = None
    """Where to continue; neither is set at the end of the file."""


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
        msgspec.Meta(description="overwrite (or create), create (fails if it exists), append."),
    ] = WriteMode.OVERWRITE
    encoding: Encoding = None
    make_dirs: Annotated[bool, msgspec.Meta(description="Create missing parent folders.")] = True


class WriteFileResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    path: str
    """The real path, links resolved."""
    written: int
    """Bytes."""
    created: bool = False
    size: int | None = None
    """Of the whole file, if it was appended to."""


class EditFileArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: FilePath
    old: OldText
    new: str
    all: ReplaceAll = False
    expected: ExpectedMatches | None = None
    more: Annotated[
        tuple[TextEdit, ...],
        msgspec.Meta(max_length=100, description="Further edits, in order. All are applied, or none."),
    ] = ()
    encoding: Annotated[str | None, msgspec.Meta(description="If it is not UTF-8.")] = None


class EditFileResult(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    matches: int
    diff: str


def read_file(context: ToolContext, given: ReadFileArguments) -> ToolResult:
    if given.offset is not None and (given.start_line > 1 or given.lines is not None):
        raise WorkspaceError("Use lines or offset, not both.", remedy="Omit one of them.")
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
    """Records the read under the status `before` it, so a change during the read makes it stale."""
    lines = found.lines
    if lines is not None and context.session.overwriting is Overwriting.KNOWN:
        # No longer in the folder, so it cannot be replaced here.
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
        # If the file starts with a very long line, no complete line was shown.
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
        range_text = "" if found.total is None else " is empty"
    else:
        range_text = f", lines {found.first}-{found.last}" + (f" of {found.total}" if found.total is not None else "")
    if found.next_line is not None:
        return f"{range_text} (continue with start_line: {found.next_line})"
    return range_text if found.next_offset is None else f"{range_text} (cut; continue with offset: {found.next_offset})"


def _odd_bytes(count: int) -> str:
    if not count:
        return ""
    odd = "1 byte is not UTF-8 and shows" if count == 1 else f"{count:,} bytes are not UTF-8 and show"
    return f"{odd} as \ufffd; edit_file keeps such bytes; name the encoding to read them."


def _read_binary(
    context: ToolContext, given: ReadFileArguments, target: FolderPath, descriptor: int, size: int
) -> ToolResult:
    # In base64, three bytes become four.
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
    rest = "" if more is None else f" (continue with offset: {more})"
    return ToolResult(result, f"{target}, bytes {offset}-{ends} of {size} in base64{rest}\n{result.base64}")


def _binary_result(target: FolderPath, head: bytes, size: int) -> ToolResult:
    note = f'It is {describe_binary(head)}. encoding: "binary" returns base64; another encoding reads it as text.'
    data = ReadFileResult(kind="binary", size=size, note=note)
    return ToolResult(data, f"{target}: {count_text(size, 'byte')}. {note}")


def write_file(context: ToolContext, given: WriteFileArguments) -> ToolResult:
    folder = context.folder
    target = folder.path_of(given.path)
    content = _content(given)
    parents = MissingFolders.MADE if given.make_dirs else MissingFolders.NEEDED
    with folder.writing, open_target(folder, target, parents) as opened:
        if opened.before is not None and given.mode is WriteMode.CREATE:
            raise WorkspaceError(
                f"{target} already exists.",
                remedy="mode: overwrite replaces it; edit_file changes it.",
                data={"argument": "mode"},
            )
        kept = opened.before.st_size if opened.before is not None and given.mode is WriteMode.APPEND else 0
        data = content if isinstance(content, bytes) else _encoded(content, given.encoding, opened, appended=kept > 0)
        _check_room(context, target, kept + len(data))
        existing = _existing(context, given.mode, opened)
        context.session.count_written(len(data))
        if kept:
            context.session.note_changed(opened.real.parts, opened.before, _append(opened, data))
        else:
            context.session.note_written(opened.real.parts, write_atomically(opened, data, existing=existing))
    result = WriteFileResult(
        path=str(opened.real),
        created=opened.before is None,
        written=len(data),
        size=kept + len(data) if kept else None,
    )
    did = "Appended to" if kept else "Created" if result.created else "Overwrote"
    in_all = f", {kept + len(data):,} in all" if kept else ""
    return ToolResult(result, f"{did} {result.path}: {count_text(len(data), 'byte')} written{in_all}.")


def _existing(context: ToolContext, mode: WriteMode, opened: WriteTarget) -> ExistingFile:
    if mode is not WriteMode.OVERWRITE or context.session.overwriting is Overwriting.ANY:
        return _EXISTING[mode]
    if opened.before is not None:
        context.session.check_known(opened.real.parts, opened.before)
    return ExistingFile.REPLACED_IF_SAME


def _content(given: WriteFileArguments) -> bytes | str:
    """Validates the content before anything is changed."""
    if given.encoding != BINARY:
        check_unicode(given.content, "content")
        return given.content
    try:
        return base64.b64decode(given.content, validate=True)
    except ValueError as error:
        raise WorkspaceError(f"content is not base64: {error}.", remedy="Or omit encoding.") from error


def _encoded(content: str, encoding: str | None, opened: WriteTarget, *, appended: bool) -> bytes:
    form = encoding_to_write(encoding, b"" if opened.before is None else opened.read(4))
    data = form.bytes_of(content, "content")
    return data[len(form.mark) :] if appended or content.startswith("\ufeff") else data


def _append(opened: WriteTarget, data: bytes) -> os.stat_result:
    """Writes a copy: a reader sees all of it or nothing, and a full disk leaves the file unchanged."""
    descriptor = opened.open()
    try:
        return write_atomically(opened, data, existing=ExistingFile.REPLACED_IF_SAME, after=descriptor)
    finally:
        os.close(descriptor)


def _check_room(context: ToolContext, target: FolderPath, size: int) -> None:
    most = context.settings.limits.file_size
    if size > most:
        raise WorkspaceError(
            f"{target} would be {size} bytes long; the maximum is {most}.", remedy="Write several smaller files."
        )
    if time.monotonic() > context.deadline:
        raise WorkspaceError(f"{target} was not written: timed out.", remedy="Try again.")


def edit_file(context: ToolContext, given: EditFileArguments) -> ToolResult:
    target = context.folder.path_of(given.path)
    with context.folder.writing, open_target(context.folder, target, MissingFolders.NEEDED) as opened:
        if opened.before is not None and opened.before.st_size > MAX_EDITED_BYTES:
            raise WorkspaceError(
                f"{target} is too large to edit: {opened.before.st_size} bytes; the maximum is {MAX_EDITED_BYTES}.",
                remedy="Change it with a command such as sed.",
            )
        raw = opened.read(MAX_EDITED_BYTES)
        form = detect_encoding(raw[:SAMPLE_BYTES], given.encoding)
        if form is None or given.encoding == BINARY:
            raise WorkspaceError(
                f"{target} is {describe_binary(raw)}.",
                remedy="If it is text, name its encoding, such as latin-1 or cp1252.",
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
            opened.real.parts, opened.before, write_atomically(opened, data, existing=ExistingFile.REPLACED_IF_SAME)
        )
    changed = short_diff(before, after)
    result = EditFileResult(path=str(opened.real), matches=matches, diff=changed)
    return ToolResult(result, f"Edited {result.path} in {count_text(matches, 'place')}.\n{changed}")
