"""`run_shell_safe`: a program or a command line, in the sandbox.

In: a command and the folder to run it in. Out: exit code, output, and the file with the whole output. The sandbox makes
it safe; commands are not filtered by their text, which never works. A command that ran is not a failed call, whatever
its exit code: the first line of the text and `ToolResult.failure` say how it ended.

There is no parameter for variables, because a command line can set them (`NAME=value command`), and none for the shell:
it is bash if available, otherwise sh.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from toolcrib.errors import WorkspaceError
from toolcrib.workspace.sandbox.command import CommandEnding
from toolcrib.workspace.text import ProgressLines
from toolcrib.workspace.tool import ToolContext, ToolResult
from toolcrib.workspace.tools.runner import (
    MAX_ARGUMENT_LENGTH,
    CommandRunner,
    ending_text,
    output_file,
    output_texts,
    real_folder,
)

NAME = "run_shell_safe"
SHELLS = ("/bin/bash", "/bin/sh")
MAX_ARGUMENTS = 4096
MAX_STDIN = 1024 * 1024


class RunShellArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    command: Annotated[str, msgspec.Meta(description="A command line for the shell.")] = ""
    argv: Annotated[list[str], msgspec.Meta(description="Instead: a program and its arguments.")] = []
    cwd: Annotated[str, msgspec.Meta(description="The folder to run in.")] = "."
    seconds: Annotated[float | None, msgspec.Meta(description="Time limit; never above the configured one.")] = None
    stdin: Annotated[str, msgspec.Meta(description="The command's input.")] = ""


class RunShellResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    exit_code: int | None = None
    """None if Toolcrib ended it. A signal is 128 + its number, as in a shell."""
    ending: str = ""
    """How it ended, if the exit code is not sufficient."""
    stdout: str
    stderr: str = ""
    seconds: float
    output_file: str | None = None
    """The file with the whole output, if it is cut above."""
    notes: list[str] = []
    """What was renamed or repaired after the command."""


async def run_shell_safe(context: ToolContext, given: RunShellArguments) -> ToolResult:
    if given.command and given.argv:
        raise WorkspaceError("`command` and `argv` are both given.", remedy="Give one of them.")
    argv = shell_argv(given.argv or given.command)
    stdin = _encoded(given.stdin, "stdin", MAX_STDIN)
    cwd = real_folder(context.folder, given.cwd)
    turn = CommandRunner(context, NAME, given.seconds)
    lines = ProgressLines(context.progress) if context.progress else None
    try:
        finished = await turn.run(argv, cwd=cwd, stdin=stdin, on_output=lines.take if lines else None, keeps=True)
    finally:
        if lines:
            lines.close()
    stdout, stderr = output_texts(finished, context.settings.limits.output)
    ending = ending_text(finished, turn)
    ran = RunShellResult(
        exit_code=finished.code,
        ending="" if finished.ending is CommandEnding.EXITED and finished.signal is None else ending,
        stdout=stdout,
        stderr=stderr,
        seconds=round(finished.seconds, 2),
        output_file=output_file(finished),
        notes=list(finished.notes),
    )
    return ToolResult(ran, _text(ran, ending), failure="" if finished.code == 0 else ending)


def shell_argv(command: str | list[str]) -> tuple[str, ...]:
    """A list runs as it is, a string in the shell; `--` keeps the shell from reading it as an option."""
    if isinstance(command, str):
        if not command.strip():
            raise WorkspaceError(
                "The command is empty.",
                remedy="Give a `command` line, or a list as `argv`.",
                data={"argument": "argv"},
            )
        _encoded(command, "command", MAX_ARGUMENT_LENGTH)
        shell = next((path for path in SHELLS if Path(path).exists()), SHELLS[-1])
        return (shell, "-c", "--", command)
    if not command or not command[0]:
        raise WorkspaceError("`argv` has no program.", remedy='Give for instance ["ls", "-l"].')
    if len(command) > MAX_ARGUMENTS:
        raise WorkspaceError(
            f"The command has {len(command)} arguments, more than {MAX_ARGUMENTS}.",
            remedy="Pass them as `stdin` to xargs, or in a file.",
        )
    for word in command:
        _encoded(word, "argv", MAX_ARGUMENT_LENGTH)
    return tuple(command)


def _encoded(text: str, name: str, limit: int) -> bytes:
    try:
        raw = text.encode()
    except UnicodeEncodeError:
        raise WorkspaceError(f"`{name}` has a lone surrogate.", remedy="Send it as valid Unicode.") from None
    if name != "stdin" and b"\0" in raw:
        raise WorkspaceError(f"`{name}` contains a NUL character.", remedy="Use printf '\\0' inside the command.")
    if len(raw) > limit:
        raise WorkspaceError(
            f"`{name}` is {len(raw)} bytes long, more than {limit}.", remedy="Write it to a file first."
        )
    return raw


def _text(ran: RunShellResult, ending: str) -> str:
    parts = [f"{ending} ({ran.seconds:g} s)"]
    if ran.output_file:
        parts.append(f"Output is cut; full output: {ran.output_file}")
    parts += ran.notes
    parts += [f"{name}:\n{text}" for name, text in (("stdout", ran.stdout), ("stderr", ran.stderr)) if text]
    if len(parts) == 1:
        parts.append("(no output)")
    return "\n".join(parts)
