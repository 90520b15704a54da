"""Which Python of the project runs its tests and linters.

In: the settings, the folder, and what is found by asking each candidate inside the sandbox. Out: the words that start
a module with the first interpreter that has it. `testing` and `linting` ask.

What a candidate says is the project's own word (a `.venv` in a repository is as hostile as the rest of it); it only
decides which program runs next, and that one runs in the sandbox too.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import msgspec

from toolcrib.errors import WorkspaceError
from toolcrib.workspace.confined.folder import Folder, Spot
from toolcrib.workspace.running.command import Turn
from toolcrib.workspace.settings.model import Settings
from toolcrib.workspace.tool import Scene

VENVS = (".venv", "venv", "env")
PROGRAMS = ("ruff", "mypy")
"""What also runs without a Python of the project."""
MODULES = ("pytest", *PROGRAMS)
MOST_SECONDS = 20.0
"""For asking all candidates: one that hangs shall not take the time of the tests."""

_ASK = """
import json, sys
sys.path[:] = [entry for entry in sys.path if entry]
from importlib.util import find_spec
names = [name for name in sys.argv[2:] if find_spec(name)]
print(json.dumps({"python": sys.argv[1], "version": sys.version.split()[0], "modules": names}), flush=True)
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
    version: str = ""
    modules: tuple[str, ...] = ()
    program: str = ""


@dataclass(frozen=True, kw_only=True)
class Interpreter:
    path: str
    """As the sandbox starts it."""
    version: str
    modules: frozenset[str]


@dataclass(frozen=True, kw_only=True)
class Found:
    """What can be run in one folder."""

    pythons: tuple[Interpreter, ...]
    programs: frozenset[str]
    """Linters that are there without a Python of the project."""

    def start(self, module: str) -> tuple[str, ...] | None:
        for python in self.pythons:
            if module in python.modules:
                return (python.path, "-m", module)
        return (module,) if module in self.programs else None


_known: WeakKeyDictionary[Folder, tuple[object, Found]] = WeakKeyDictionary()


async def look(turn: Turn, *wanted: str) -> Found:
    """Asks the candidates, unless it is known already who has all of `wanted`. Only finds are remembered: what is
    missing may be installed at any time.
    """
    scene = turn.scene
    mark = (scene.settings.python, tuple(_changed(scene.folder, venv) for venv in VENVS))
    known = _known.get(scene.folder)
    if known is not None and known[0] == mark and all(known[1].start(module) for module in wanted):
        return known[1]
    candidates = names(scene.folder, scene.settings)
    finished = await turn.run(
        ("/bin/sh", "-c", _ASK_ALL, "sh", _ASK, " ".join(MODULES), *candidates),
        writes=False,
        env={"PYTHONDONTWRITEBYTECODE": "1"},
        most=MOST_SECONDS,
    )
    found = read_answers(finished.stdout.head, candidates)
    _known[scene.folder] = (mark, found)
    return found


def forget(folder: Folder) -> None:
    """What was found turned out to be gone."""
    _known.pop(folder, None)


def names(folder: Folder, settings: Settings) -> tuple[str, ...]:
    """The candidates, the likeliest first. One that a person has named is the only one."""
    if settings.python:
        # A path in the settings is meant from the root, a bare name is looked up inside.
        named = str(folder.root / settings.python) if "/" in settings.python else settings.python
        return (named,)
    venvs = (str(folder.root / venv / "bin" / "python") for venv in VENVS)
    return tuple(dict.fromkeys((*venvs, "python3", sys.executable)))


def read_answers(printed: bytes, candidates: tuple[str, ...]) -> Found:
    pythons: dict[str, Interpreter] = {}
    programs: set[str] = set()
    for line in printed.splitlines():
        try:
            answer = msgspec.json.decode(line, type=_Answer)
        except (msgspec.MsgspecError, RecursionError):
            continue
        if answer.python in candidates:
            pythons.setdefault(
                answer.python,
                Interpreter(
                    path=answer.python, version=answer.version[:40], modules=frozenset(MODULES) & {*answer.modules}
                ),
            )
        if answer.program in PROGRAMS:
            programs.add(answer.program)
    ordered = tuple(pythons[name] for name in candidates if name in pythons)
    return Found(pythons=ordered, programs=frozenset(programs))


def none_has(scene: Scene, found: Found, module: str) -> WorkspaceError:
    root = f"{scene.folder.root}/"
    known = [python.path for python in found.pythons]
    # Of the places where an environment may be, only those where there is something.
    there = [name for name in names(scene.folder, scene.settings) if name in known or os.path.lexists(name)]
    named = ", ".join(f"{name.removeprefix(root)}{'' if name in known else ' (cannot be run here)'}" for name in there)
    message = f"{module} cannot be run: {f'none of these has it: {named}' if there else 'there is no Python here'}."
    lost = next((name for name in there if name not in known), None)
    hint = (
        f" If {lost.removeprefix(root)} leads out of the folder, where it leads belongs under `readable:`."
        if lost
        else ""
    )
    return WorkspaceError(message, remedy=install(module) + hint)


def install(module: str) -> str:
    """Not for a model to do: commands have no network, as a rule."""
    return (
        f"A person must install {module}, as in a .venv of this folder, or name a Python that has it as `python:` in "
        "workspace.yml."
    )


def _changed(folder: Folder, venv: str) -> int:
    try:
        return folder.status(Spot((venv, "pyvenv.cfg"))).st_mtime_ns
    except WorkspaceError:
        return 0
