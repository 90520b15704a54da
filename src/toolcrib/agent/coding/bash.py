"""Bash: a command line in the sandbox.

In: the line. Out: what it printed; where it failed, an error that begins with how it ended. The workspace's
`run_shell_safe` runs it.
"""

from __future__ import annotations

from typing import Annotated, cast

import msgspec

from toolcrib.agent.coding.words import in_these_words
from toolcrib.errors import WorkspaceError
from toolcrib.workspace.running.shell import RunShellSafe, ShellRan, run_shell_safe
from toolcrib.workspace.tool import Done, Scene


class Bash(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    command: str
    timeout: Annotated[float, msgspec.Meta(gt=0, description="Milliseconds.")] | None = None
    description: Annotated[str, msgspec.Meta(description="What it does, for the person who watches.")] = ""


async def bash(scene: Scene, given: Bash) -> Done:
    seconds = None if given.timeout is None else given.timeout / 1000
    with in_these_words():
        ran = cast("ShellRan", (await run_shell_safe(scene, RunShellSafe(command=given.command, seconds=seconds))).data)
    printed = [text.rstrip("\n") for text in (ran.stdout, ran.stderr) if text.strip("\n")]
    notes = [f"(Output is cut; all of it: {ran.output_file})"] if ran.output_file else []
    said = [*printed, *notes, *ran.notes]
    if ran.exit_code != 0:
        raise WorkspaceError("\n".join([ran.ending or f"Exit code {ran.exit_code}", *said]))
    return Done(ran, "\n".join(said) or "(No output)")
