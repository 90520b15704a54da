"""One call of a tool that runs commands: how long it may take, where it runs, how its end is told.

In: the scene, the tool's name, what the model asked for. Out: what the sandbox's commands gave, or a `WorkspaceError`
that says why none was run. `shell`, `testing`, `linting`, `diff` and `interpreter` run everything through a `Turn`.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from toolcrib.errors import WorkspaceError
from toolcrib.workspace.confined.folder import Folder, Spot
from toolcrib.workspace.running.printed import shown
from toolcrib.workspace.sandbox.model import Command, Ending, Finished
from toolcrib.workspace.tool import Scene
from toolcrib.workspace.words import room_of

HERE = Spot(())
LONGEST_ARGUMENT = 100_000
"""Bytes. Linux takes 131,072 for one argument."""
NO_ENV: Mapping[str, str] = MappingProxyType({})

OnOutput = Callable[[str, bytes], None]


class Turn:
    """The time of one call. Several commands of one call share it."""

    def __init__(self, scene: Scene, tool: str, asked: float | None = None) -> None:
        self.scene = scene
        limit = min(scene.settings.limits.seconds[tool], scene.session.left())
        if asked is not None:
            if not asked > 0:
                raise WorkspaceError(f"`seconds` is {asked:g}.", remedy="Give more than 0, or leave it out.")
            limit = min(limit, asked)
        self.tool = tool
        self.limit = limit
        self.used = 0.0
        """Seconds of commands; waiting for the sandbox's self-test is not the call's fault."""

    async def run(
        self,
        argv: Sequence[str],
        *,
        cwd: Spot = HERE,
        writes: bool = True,
        env: Mapping[str, str] = NO_ENV,
        stdin: bytes = b"",
        on_output: OnOutput | None = None,
        reports: bool = False,
        most: float | None = None,
        keeps: bool = False,
    ) -> Finished:
        """Runs one command in the sandbox, no longer than the turn has left, or `most`."""
        sandbox = await self.scene.sandbox()
        left = self.limit - self.used
        if left <= 0:
            raise WorkspaceError(
                f"{self.tool} was not done after {self.limit:.3g} seconds.", remedy=more_time(self.tool)
            )
        command = Command(
            argv=tuple(argv),
            cwd=cwd,
            seconds=left if most is None else min(left, most),
            writes=writes and not self.scene.settings.read_only,
            env=env,
            stdin=stdin,
            reports=reports,
            name=self.tool,
            keeps=keeps,
        )
        began = time.monotonic()
        try:
            return await sandbox.run(command, on_output=on_output)
        finally:
            took = time.monotonic() - began
            self.used += took
            self.scene.session.ran(took)


def more_time(tool: str) -> str:
    return f"Ask for less at once; `limits.seconds.{tool}` in .toolcrib/workspace.yml allows more."


def how_it_ended(finished: Finished, turn: Turn) -> str:
    """In words, without a full stop."""
    if finished.ending is Ending.TIMEOUT:
        return f"Ended at the time limit of {turn.limit:.3g} s"
    if finished.ending is not Ending.EXITED:
        return f"Ended at the {finished.ending}" if finished.ending is not Ending.CANCELLED else "Cancelled"
    if finished.signal is None:
        return f"Exit code {finished.code}"
    # Inside, a signal shows as 128 + its number, which a command may also give by itself.
    by = f"by signal {_signal_name(finished.signal)}"
    return f"Ended {by}" if finished.code is None else f"Exit code {finished.code} (as {by})"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


def printed(finished: Finished, limit: int) -> tuple[str, str]:
    """stdout and stderr as a model gets them: together within the limit, each at least half of it if it needs that."""
    out, err = finished.stdout, finished.stderr
    if out.total + err.total <= limit:
        # So little is not kept as a file, so nothing may be left out.
        return shown(out, None), shown(err, None)
    stdout = shown(out, max(limit // 2, limit - err.total))
    return stdout, shown(err, max(limit // 2, limit - room_of(stdout)))


def kept_as(finished: Finished) -> str | None:
    return finished.stdout.kept or finished.stderr.kept


class Gathered:
    """The beginning of what a command prints to stdout, where more of it is wanted than a model gets to see."""

    def __init__(self, limit: int) -> None:
        self.stdout = bytearray()
        self.is_cut = False
        self._limit = limit

    def take(self, stream: str, chunk: bytes) -> None:
        if stream == "stdout":
            room = self._limit - len(self.stdout)
            self.stdout += chunk[:room]
            self.is_cut = self.is_cut or len(chunk) > room


def real_place(folder: Folder, path: str) -> Spot:
    """A file or folder inside, by its real place, as for `real_folder`."""
    with folder.reaching(folder.spot(path)) as (_, real):
        return real


def real_folder(folder: Folder, path: str) -> Spot:
    """A folder inside, by its real place: links that lead to it are resolved now, not by the command."""
    spot = folder.spot(path)
    descriptor = folder.open_dir(spot)
    try:
        return folder.lies_at(descriptor)
    finally:
        os.close(descriptor)
