"""Runs the commands of one tool call: time limit, folder, Python interpreter, and how they ended.

In: the call's context, the tool's name, the model's arguments. Out: results of the sandbox's commands, or a
`WorkspaceError` that says why none ran; for tests and linters, the first interpreter that has the module. The answers
of candidate interpreters are not trusted (a `.venv` in a repository is as hostile as the rest of it): they only decide
which program runs next, also in the sandbox. `shell`, `run_tests`, `lint` and `project_diff` run everything through a
`CommandRunner`.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from weakref import WeakKeyDictionary

import msgspec

from toolcrib.errors import WorkspaceError
from toolcrib.workspace.folder import Folder, FolderPath
from toolcrib.workspace.sandbox.command import CommandEnding, SandboxCommand, SandboxResult
from toolcrib.workspace.settings.model import WorkspaceSettings
from toolcrib.workspace.text import json_size, shown_output
from toolcrib.workspace.tool import ToolContext

FOLDER_ROOT = FolderPath(())
MAX_ARGUMENT_LENGTH = 100_000
"""Bytes. Linux allows 131,072 for one argument."""
NO_ENV: Mapping[str, str] = MappingProxyType({})

OnOutput = Callable[[str, bytes], None]


class CommandRunner:
    """The commands of one call, which share its time limit."""

    def __init__(self, context: ToolContext, tool: str, asked: float | None = None) -> None:
        self.context = context
        limit = min(context.settings.limits.seconds[tool], context.session.seconds_left())
        if asked is not None:
            if not asked > 0:
                raise WorkspaceError(f"`seconds` is {asked:g}.", remedy="Use more than 0, or omit it.")
            limit = min(limit, asked)
        self.tool = tool
        self.limit = limit
        self.used = 0.0
        """Seconds of commands, without waiting for the sandbox's self-test."""

    async def run(
        self,
        argv: Sequence[str],
        *,
        cwd: FolderPath = FOLDER_ROOT,
        writes: bool = True,
        env: Mapping[str, str] = NO_ENV,
        stdin: bytes = b"",
        on_output: OnOutput | None = None,
        reports: bool = False,
        most: float | None = None,
        keeps: bool = False,
    ) -> SandboxResult:
        """Runs one command in the sandbox, for at most the remaining time, or `most` seconds."""
        sandbox = await self.context.sandbox()
        left = self.limit - self.used
        if left <= 0:
            raise WorkspaceError(
                f"{self.tool} did not finish within {self.limit:.3g} seconds.", remedy=more_time_remedy(self.tool)
            )
        command = SandboxCommand(
            argv=tuple(argv),
            cwd=cwd,
            seconds=left if most is None else min(left, most),
            writes=writes and not self.context.settings.read_only,
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
            self.context.session.count_seconds(took)


def more_time_remedy(tool: str) -> str:
    return f"Do less per call, or raise `limits.seconds.{tool}` in .toolcrib/workspace.yml."


def ending_text(finished: SandboxResult, turn: CommandRunner) -> str:
    """How a command ended, without a full stop."""
    if finished.ending is CommandEnding.TIMEOUT:
        return f"Ended at the time limit of {turn.limit:.3g} s"
    if finished.ending is not CommandEnding.EXITED:
        return f"Ended at the {finished.ending}" if finished.ending is not CommandEnding.CANCELLED else "Cancelled"
    if finished.signal is None:
        return f"Exit code {finished.code}"
    # In the sandbox, a signal becomes exit code 128 + its number, which a command can also return.
    by = f"signal {_signal_name(finished.signal)}"
    return f"Ended by {by}" if finished.code is None else f"Exit code {finished.code} (like {by})"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


def output_texts(finished: SandboxResult, limit: int) -> tuple[str, str]:
    """stdout and stderr for a model: together within the limit, each up to at least half of it."""
    out, err = finished.stdout, finished.stderr
    if out.total + err.total <= limit:
        # Short output is not kept as a file, so nothing may be left out.
        return shown_output(out, None), shown_output(err, None)
    stdout = shown_output(out, max(limit // 2, limit - err.total))
    return stdout, shown_output(err, max(limit // 2, limit - json_size(stdout)))


def output_file(finished: SandboxResult) -> str | None:
    return finished.stdout.kept or finished.stderr.kept


class StdoutCollector:
    """Collects the beginning of stdout, up to a limit that may be larger than a model's."""

    def __init__(self, limit: int) -> None:
        self.stdout = bytearray()
        self.is_cut = False
        self._limit = limit

    def take(self, stream: str, chunk: bytes) -> None:
        if stream == "stdout":
            room = self._limit - len(self.stdout)
            self.stdout += chunk[:room]
            self.is_cut = self.is_cut or len(chunk) > room


def real_path(folder: Folder, path: str) -> FolderPath:
    """The real path of a file or folder inside, as in `real_folder`."""
    with folder.opened(folder.path_of(path)) as (_, real):
        return real


def real_folder(folder: Folder, path: str) -> FolderPath:
    """The real path of a folder inside: links are resolved now, not by the command."""
    target = folder.path_of(path)
    descriptor = folder.open_dir(target)
    try:
        return folder.real_path(descriptor)
    finally:
        os.close(descriptor)


VENVS = (".venv", "venv", "env")
PROGRAMS = ("ruff", "mypy")
"""Linters that can also run without the project's Python."""
MODULES = ("pytest", *PROGRAMS)
MAX_LOOKUP_SECONDS = 20.0
"""For probing all candidates: one that hangs must not use up the time of the tests."""

_ASK = """
import json, sys
sys.path[:] = [entry for entry in sys.path if entry]
from importlib.util import find_spec
names = [name for name in sys.argv[2:] if find_spec(name)]
print(json.dumps({"python": sys.argv[1], "modules": names}), flush=True)
"""
_ASK_ALL = """
ask=$1; modules=$2; shift 2
for python do
    command -v "$python" >/dev/null 2>&1 && "$python" -c "$ask" "$python" $modules 2>/dev/null </dev/null
done
for program in $modules; do
    command -v "$program" >/dev/null 2>&1 && printf '{"program": "%s"}\\n' "$program"
done
"""


class _Answer(msgspec.Struct, frozen=True):
    python: str = ""
    modules: tuple[str, ...] = ()
    program: str = ""


@dataclass(frozen=True, kw_only=True)
class Interpreter:
    path: str
    """As the sandbox starts it."""
    modules: frozenset[str]


@dataclass(frozen=True, kw_only=True)
class FoundPrograms:
    """Interpreters and linters that can run in one folder."""

    pythons: tuple[Interpreter, ...]
    programs: frozenset[str]
    """Linters that are installed as programs."""

    def start(self, module: str) -> tuple[str, ...] | None:
        for python in self.pythons:
            if module in python.modules:
                return (python.path, "-m", module)
        return (module,) if module in self.programs else None


_known: WeakKeyDictionary[Folder, tuple[object, FoundPrograms]] = WeakKeyDictionary()


async def find_programs(turn: CommandRunner, *wanted: str) -> FoundPrograms:
    """Probes the candidates, unless a cached result has all of `wanted`: a missing module may be installed at any
    time.
    """
    context = turn.context
    mark = (context.settings.python, tuple(_venv_changed(context.folder, venv) for venv in VENVS))
    known = _known.get(context.folder)
    if known is not None and known[0] == mark and all(known[1].start(module) for module in wanted):
        return known[1]
    candidates = interpreter_candidates(context.folder, context.settings)
    finished = await turn.run(
        ("/bin/sh", "-c", _ASK_ALL, "sh", _ASK, " ".join(MODULES), *candidates),
        writes=False,
        env={"PYTHONDONTWRITEBYTECODE": "1"},
        most=MAX_LOOKUP_SECONDS,
    )
    found = read_answers(finished.stdout.head, candidates)
    _known[context.folder] = (mark, found)
    return found


def forget_programs(folder: Folder) -> None:
    """Call it when a cached program turns out to be missing."""
    _known.pop(folder, None)


def interpreter_candidates(folder: Folder, settings: WorkspaceSettings) -> tuple[str, ...]:
    """The likeliest first. If the settings name an interpreter, it is the only one."""
    if settings.python:
        # A path is relative to the root; a bare name is looked up in the sandbox's PATH.
        named = str(folder.root / settings.python) if "/" in settings.python else settings.python
        return (named,)
    venvs = (str(folder.root / venv / "bin" / "python") for venv in VENVS)
    return tuple(dict.fromkeys((*venvs, "python3", sys.executable)))


def read_answers(printed: bytes, candidates: tuple[str, ...]) -> FoundPrograms:
    pythons: dict[str, Interpreter] = {}
    programs: set[str] = set()
    for line in printed.splitlines():
        try:
            answer = msgspec.json.decode(line, type=_Answer)
        except (msgspec.MsgspecError, RecursionError):
            continue
        if answer.python in candidates:
            modules = frozenset(MODULES) & {*answer.modules}
            pythons.setdefault(answer.python, Interpreter(path=answer.python, modules=modules))
        if answer.program in PROGRAMS:
            programs.add(answer.program)
    ordered = tuple(pythons[name] for name in candidates if name in pythons)
    return FoundPrograms(pythons=ordered, programs=frozenset(programs))


def missing_module_error(context: ToolContext, found: FoundPrograms, module: str) -> WorkspaceError:
    root = f"{context.folder.root}/"
    known = [python.path for python in found.pythons]
    # Only candidates that exist.
    pythons = [
        name
        for name in interpreter_candidates(context.folder, context.settings)
        if name in known or os.path.lexists(name)
    ]
    named = ", ".join(
        f"{name.removeprefix(root)}{'' if name in known else ' (cannot be run here)'}" for name in pythons
    )
    message = f"{module} cannot be run: {f'none of these has it: {named}' if pythons else 'there is no Python here'}."
    lost = next((name for name in pythons if name not in known), None)
    hint = f" If {lost.removeprefix(root)} leads out of the folder, add its target to `readable:`." if lost else ""
    return WorkspaceError(message, remedy=install_remedy(module) + hint)


def install_remedy(module: str) -> str:
    """A model cannot do it: by default, commands have no network."""
    return (
        f"The user must install {module}, for example in this folder's .venv, or set `python:` in workspace.yml to "
        "one that has it."
    )


def _venv_changed(folder: Folder, venv: str) -> int:
    try:
        return folder.status(FolderPath((venv, "pyvenv.cfg"))).st_mtime_ns
    except WorkspaceError:
        return 0
