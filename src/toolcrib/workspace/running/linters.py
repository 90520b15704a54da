"""The linters that `run_lint` knows: what shows that a project uses one, how it is called, how its findings are read.

In: the project's configuration files and what a linter printed; both are the project's own, so sizes are bounded and
shapes are checked. Out: names, arguments and findings. `linting` runs them.
"""

from __future__ import annotations

import configparser
import contextlib
import os
import posixpath
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from toolcrib.errors import WorkspaceError
from toolcrib.workspace.confined.folder import Folder, Spot
from toolcrib.workspace.running.interpreter import Found
from toolcrib.workspace.running.printed import clean

MOST_CONFIG = 256 * 1024
MOST_TEXT = 1000

Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    tool: str
    file: str
    line: int
    column: int
    code: str
    message: str
    severity: str


class NotRead(Exception):
    """A linter did not come to an end that has findings; its message says why."""


@dataclass(frozen=True, kw_only=True)
class Used:
    """What a project's files say about linters."""

    names: tuple[str, ...]
    mypy_knows_its_files: bool = False


@dataclass(frozen=True, kw_only=True)
class Linter:
    name: str
    words: Callable[[tuple[str, ...], Used, Found, tuple[str, ...]], tuple[str, ...]]
    read: Callable[[bytes, str], Finding]
    """One line of what it prints; the root is taken off file names."""
    cache_in_tmp: Mapping[str, str]
    """For a folder that cannot be written."""


def used_in(folder: Folder) -> Used:
    """ruff and mypy as configured; ruff alone, with its defaults, where neither is."""
    tool = _toml(folder, "pyproject.toml").get("tool")
    tables = tool if isinstance(tool, dict) else {}
    mypy = tables.get("mypy")
    sections: list[Mapping[str, object]] = [mypy] if isinstance(mypy, dict) else []
    for name in ("mypy.ini", ".mypy.ini", "setup.cfg"):
        sections += _ini_section(folder, name, "mypy")
    ruff = "ruff" in tables or any(_text(folder, name) is not None for name in ("ruff.toml", ".ruff.toml"))
    names = (*(("ruff",) if ruff or not sections else ()), *(("mypy",) if sections else ()))
    knows = any(key in section for section in sections for key in ("files", "packages", "modules"))
    return Used(names=names, mypy_knows_its_files=knows)


def _text(folder: Folder, name: str) -> str | None:
    """A small file of the project; None if there is none that can be read."""
    try:
        descriptor = folder.open_file(Spot((name,)))
    except WorkspaceError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        return file.read(MOST_CONFIG).decode("utf-8", "replace")


def _toml(folder: Folder, name: str) -> dict[str, Any]:
    try:
        return tomllib.loads(_text(folder, name) or "")
    except (tomllib.TOMLDecodeError, RecursionError):
        return {}


def _ini_section(folder: Folder, name: str, section: str) -> list[Mapping[str, object]]:
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read_string(_text(folder, name) or "")
    except configparser.Error:
        return []
    return [parser[section]] if parser.has_section(section) else []


def _ruff_words(_: tuple[str, ...], __: Used, ___: Found, paths: tuple[str, ...]) -> tuple[str, ...]:
    # A project may have `fix = true`; what is asked for here is to look.
    return ("check", "--output-format=json-lines", "--no-fix", "--quiet", "--", *(paths or (".",)))


def _mypy_words(start: tuple[str, ...], used: Used, found: Found, paths: tuple[str, ...]) -> tuple[str, ...]:
    words = ["--output=json", "--no-pretty", "--no-error-summary"]
    tests = found.start("pytest") or tuple(python.path for python in found.pythons)
    if tests and tests[0] != start[0]:
        # The project's packages are where its tests run, and this mypy is not there.
        words.append(f"--python-executable={tests[0]}")
    if paths or not used.mypy_knows_its_files:
        words += ("--", *(paths or (".",)))
    return tuple(words)


class _Where(msgspec.Struct, frozen=True):
    row: Count
    column: Count


class _RuffFinding(msgspec.Struct, frozen=True):
    filename: str
    message: str
    location: _Where | None = None
    code: str | None = None
    severity: str = "error"


class _MypyFinding(msgspec.Struct, frozen=True):
    file: str
    line: Annotated[int, msgspec.Meta(ge=-1, le=1_000_000_000)]
    column: Annotated[int, msgspec.Meta(ge=-1, le=1_000_000_000)]
    message: str
    severity: str
    code: str | None = None


def _read_ruff(line: bytes, root: str) -> Finding:
    row = msgspec.json.decode(line, type=_RuffFinding)
    where = row.location or _Where(0, 0)
    return _finding("ruff", root, row.filename, where, row.code, row.message, row.severity)


def _read_mypy(line: bytes, root: str) -> Finding:
    row = msgspec.json.decode(line, type=_MypyFinding)
    # mypy counts columns from 0; -1 stands for no place.
    where = _Where(max(row.line, 0), row.column + 1)
    return _finding("mypy", root, row.file, where, row.code, row.message, row.severity)


def read_findings(linter: Linter, printed: bytes, code: int, root: str) -> list[Finding]:
    """One JSON object a line; other lines are passed over. A linter that ended with an error and found nothing has
    not done its work; mypy ends so at a syntax error too, but that is a finding.
    """
    found = []
    for line in printed.splitlines():
        with contextlib.suppress(msgspec.MsgspecError, RecursionError):
            found.append(linter.read(line, root))
    if code and not found:
        raise NotRead(f"{linter.name} ended with exit code {code} and no finding that can be read")
    return found


def _finding(tool: str, root: str, file: str, where: _Where, code: str | None, message: str, severity: str) -> Finding:
    return Finding(
        tool=tool,
        file=clean(posixpath.normpath(file.removeprefix(f"{root}/")))[:MOST_TEXT],
        line=where.row,
        column=where.column,
        code=clean(code or "")[:100],
        message=clean(message)[:MOST_TEXT],
        severity=clean(severity)[:20],
    )


LINTERS: Mapping[str, Linter] = {
    "ruff": Linter(
        name="ruff",
        words=_ruff_words,
        read=_read_ruff,
        cache_in_tmp={"RUFF_CACHE_DIR": "/tmp/ruff"},  # noqa: S108
    ),
    "mypy": Linter(
        name="mypy",
        words=_mypy_words,
        read=_read_mypy,
        cache_in_tmp={"MYPY_CACHE_DIR": "/tmp/mypy"},  # noqa: S108
    ),
}
