"""Read, Write, Edit and Bash: their arguments and results.

In: arguments in Claude Code's form. Out: text for the model. The workspace's `read_file`, `write_file`, `edit_file` and
`run_shell_safe` do the work; `table` lists the tools.
"""

from __future__ import annotations

from typing import Annotated, cast

import msgspec

from toolcrib.agent_loop.coding.remedies import local_remedies
from toolcrib.errors import WorkspaceError
from toolcrib.workspace.text import size_text
from toolcrib.workspace.tool import ToolContext, ToolResult
from toolcrib.workspace.tools.files import (
    EditFileArguments,
    ReadFileArguments,
    ReadFileResult,
    WriteFileArguments,
    WriteMode,
    edit_file,
    read_file,
    write_file,
)
from toolcrib.workspace.tools.shell import RunShellArguments, RunShellResult, run_shell_safe

MOST_LINES = 2000

_ENDS = {"cr": "\r"}


class ReadArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    file_path: str
    offset: Annotated[int, msgspec.Meta(ge=0, description="First line.")] = 1
    limit: Annotated[int, msgspec.Meta(ge=1, description="Number of lines.")] = MOST_LINES


def read(context: ToolContext, given: ReadArguments) -> ToolResult:
    with local_remedies():
        asked = ReadFileArguments(path=given.file_path, start_line=max(given.offset, 1), lines=given.limit)
        found = cast("ReadFileResult", read_file(context, asked).data)
    if found.kind == "binary":
        raise WorkspaceError(
            f"{given.file_path} is not text ({size_text(found.size or 0)}).", remedy="Only text can be read."
        )
    if not found.text:
        return ToolResult(found, "The file exists but is empty.")
    return ToolResult(found, "\n".join([*_numbered(found), *_notes(given, found)]))


def _numbered(found: ReadFileResult) -> list[str]:
    end = _ENDS.get(found.newline or "", "\n")
    lines = (found.text or "").removesuffix(end).split(end)
    plain = (line.removesuffix("\r") for line in lines)
    return [f"{number}\t{line}" for number, line in enumerate(plain, found.first_line or 1)]


def _notes(given: ReadArguments, found: ReadFileResult) -> list[str]:
    notes: list[str] = []
    if found.note:
        notes.append("Bytes that are not UTF-8 show as \ufffd; Edit keeps them.")
    if found.next_offset is not None:
        notes.append(f"Line {found.last_line} is too long to show whole. Continue with offset: {_after(found)}.")
    elif found.next_line is not None and (found.truncated or given.limit == MOST_LINES):
        of = f" of {found.total_lines}" if found.total_lines else ""
        notes.append(f"Lines {found.first_line}-{found.last_line}{of}. Continue with offset: {_after(found)}.")
    return [f"\n({' '.join(notes)})"] if notes else []


def _after(found: ReadFileResult) -> int:
    return (found.last_line or 1) + 1


class WriteArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    file_path: str
    content: str


class EditArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    file_path: str
    old_string: Annotated[str, msgspec.Meta(description="Empty: create a file.")]
    new_string: str
    replace_all: bool = False


def write(context: ToolContext, given: WriteArguments) -> ToolResult:
    with local_remedies():
        return write_file(context, WriteFileArguments(path=given.file_path, content=given.content))


def edit(context: ToolContext, given: EditArguments) -> ToolResult:
    with local_remedies():
        if not given.old_string:
            return write_file(
                context, WriteFileArguments(path=given.file_path, content=given.new_string, mode=WriteMode.CREATE)
            )
        asked = EditFileArguments(
            path=given.file_path, old=given.old_string, new=given.new_string, all=given.replace_all
        )
        done = edit_file(context, asked)
    # The model wrote the change itself, so a diff would only repeat it.
    return ToolResult(done.data, done.text.partition("\n")[0])


class BashArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    command: str
    timeout: Annotated[float, msgspec.Meta(gt=0, description="Milliseconds.")] | None = None
    description: Annotated[str, msgspec.Meta(description="Summary for the user.")] = ""


async def bash(context: ToolContext, given: BashArguments) -> ToolResult:
    seconds = None if given.timeout is None else given.timeout / 1000
    with local_remedies():
        ran = cast(
            "RunShellResult",
            (await run_shell_safe(context, RunShellArguments(command=given.command, seconds=seconds))).data,
        )
    printed = [text.rstrip("\n") for text in (ran.stdout, ran.stderr) if text.strip("\n")]
    notes = [f"(Output truncated; full output: {ran.output_file})"] if ran.output_file else []
    lines = [*printed, *notes, *ran.notes]
    if ran.exit_code != 0:
        raise WorkspaceError("\n".join([ran.ending or f"Exit code {ran.exit_code}", *lines]))
    return ToolResult(ran, "\n".join(lines) or "(No output)")
