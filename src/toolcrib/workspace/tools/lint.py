"""`run_lint`: ruff and mypy, where the project uses them, in the sandbox.

In: files and linters to run; the project's configuration and the linters' output, both untrusted, so their size and
shape are checked. Out: findings in one form. `runner` finds the linters. Nothing is fixed: for that, a model has
`edit_file`, or the linter's own fix option in a shell, where it sees the changes.
"""

from __future__ import annotations

import configparser
import contextlib
import os
import posixpath
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec

from toolcrib.errors import WorkspaceError
from toolcrib.workspace.folder import Folder, FolderPath
from toolcrib.workspace.sandbox.command import CommandEnding
from toolcrib.workspace.text import clean_text, count_text, head_and_tail, json_size
from toolcrib.workspace.tool import ToolContext, ToolResult
from toolcrib.workspace.tools.runner import (
    CommandRunner,
    FoundPrograms,
    StdoutCollector,
    ending_text,
    find_programs,
    install_remedy,
    output_texts,
    real_path,
)

MAX_CONFIG_BYTES = 256 * 1024
MAX_MESSAGE_LENGTH = 1000

Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)]


class LintFinding(msgspec.Struct, frozen=True, kw_only=True):
    tool: str
    file: str
    line: int
    column: int
    code: str
    message: str
    severity: str


class LinterFailed(Exception):
    """A linter failed; the message says why."""


@dataclass(frozen=True, kw_only=True)
class ConfiguredLinters:
    """The linters that a project configures."""

    names: tuple[str, ...]
    mypy_has_files: bool = False


@dataclass(frozen=True, kw_only=True)
class Linter:
    name: str
    arguments: Callable[[tuple[str, ...], ConfiguredLinters, FoundPrograms, tuple[str, ...]], tuple[str, ...]]
    read: Callable[[bytes, str], LintFinding]
    """Parses one output line; file names become relative to the root."""
    cache_in_tmp: Mapping[str, str]
    """Environment for a read-only folder."""


def configured_linters(folder: Folder) -> ConfiguredLinters:
    """ruff and mypy if configured; only ruff, with its defaults, if neither is."""
    tool = _toml(folder, "pyproject.toml").get("tool")
    tables = tool if isinstance(tool, dict) else {}
    mypy = tables.get("mypy")
    sections: list[Mapping[str, object]] = [mypy] if isinstance(mypy, dict) else []
    for name in ("mypy.ini", ".mypy.ini", "setup.cfg"):
        sections += _mypy_section(folder, name)
    ruff = "ruff" in tables or any(_text(folder, name) is not None for name in ("ruff.toml", ".ruff.toml"))
    names = (*(("ruff",) if ruff or not sections else ()), *(("mypy",) if sections else ()))
    has_files = any(key in section for section in sections for key in ("files", "packages", "modules"))
    return ConfiguredLinters(names=names, mypy_has_files=has_files)


def _text(folder: Folder, name: str) -> str | None:
    """The content of a small project file; None if it cannot be read."""
    try:
        descriptor = folder.open_file(FolderPath((name,)))
    except WorkspaceError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        return file.read(MAX_CONFIG_BYTES).decode("utf-8", "replace")


def _toml(folder: Folder, name: str) -> dict[str, Any]:
    try:
        return tomllib.loads(_text(folder, name) or "")
    except (tomllib.TOMLDecodeError, RecursionError):
        return {}


def _mypy_section(folder: Folder, name: str) -> list[Mapping[str, object]]:
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read_string(_text(folder, name) or "")
    except configparser.Error:
        return []
    return [parser["mypy"]] if parser.has_section("mypy") else []


def _ruff_arguments(
    _: tuple[str, ...], __: ConfiguredLinters, ___: FoundPrograms, paths: tuple[str, ...]
) -> tuple[str, ...]:
    # A project may have `fix = true`, but this tool only checks.
    return ("check", "--output-format=json-lines", "--no-fix", "--quiet", "--", *(paths or (".",)))


def _mypy_arguments(
    start: tuple[str, ...], used: ConfiguredLinters, found: FoundPrograms, paths: tuple[str, ...]
) -> tuple[str, ...]:
    arguments = ["--output=json", "--no-pretty", "--no-error-summary"]
    tests = found.start("pytest") or tuple(python.path for python in found.pythons)
    if tests and tests[0] != start[0]:
        # This mypy is outside the environment that has the project's packages.
        arguments.append(f"--python-executable={tests[0]}")
    if paths or not used.mypy_has_files:
        arguments += ("--", *(paths or (".",)))
    return tuple(arguments)


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


def _read_ruff(line: bytes, root: str) -> LintFinding:
    row = msgspec.json.decode(line, type=_RuffFinding)
    where = row.location or _Where(0, 0)
    return _finding("ruff", root, row.filename, where, row.code, row.message, row.severity)


def _read_mypy(line: bytes, root: str) -> LintFinding:
    row = msgspec.json.decode(line, type=_MypyFinding)
    # mypy counts columns from 0; -1 means no position.
    where = _Where(max(row.line, 0), row.column + 1)
    return _finding("mypy", root, row.file, where, row.code, row.message, row.severity)


def read_findings(linter: Linter, printed: bytes, code: int, root: str) -> list[LintFinding]:
    """Parses one JSON object per line and skips other lines. A linter that exits with an error and no finding has
    failed. mypy also exits that way at a syntax error, but reports it as a finding.
    """
    found = []
    for line in printed.splitlines():
        with contextlib.suppress(msgspec.MsgspecError, RecursionError):
            found.append(linter.read(line, root))
    if code and not found:
        raise LinterFailed(f"{linter.name} ended with exit code {code} and no readable finding")
    return found


def _finding(
    tool: str, root: str, file: str, where: _Where, code: str | None, message: str, severity: str
) -> LintFinding:
    return LintFinding(
        tool=tool,
        file=clean_text(posixpath.normpath(file.removeprefix(f"{root}/")))[:MAX_MESSAGE_LENGTH],
        line=where.row,
        column=where.column,
        code=clean_text(code or "")[:100],
        message=clean_text(message)[:MAX_MESSAGE_LENGTH],
        severity=clean_text(severity)[:20],
    )


LINTERS: Mapping[str, Linter] = {
    "ruff": Linter(
        name="ruff",
        arguments=_ruff_arguments,
        read=_read_ruff,
        cache_in_tmp={"RUFF_CACHE_DIR": "/tmp/ruff"},  # noqa: S108
    ),
    "mypy": Linter(
        name="mypy",
        arguments=_mypy_arguments,
        read=_read_mypy,
        cache_in_tmp={"MYPY_CACHE_DIR": "/tmp/mypy"},  # noqa: S108
    ),
}


NAME = "run_lint"
MAX_PATHS = 200
MAX_FINDINGS = 200
MAX_FAILURE_OUTPUT = 2000
MAX_OUTPUT_BYTES = 4 * 1024 * 1024
"""Bytes that are read of a linter's output."""

LinterState = Literal["ran", "not_available", "failed"]


LinterName = Literal["ruff", "mypy"]


class RunLintArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    paths: Annotated[list[str], msgspec.Meta(description="Files or folders. Default: the project.")] = []
    tools: Annotated[list[LinterName], msgspec.Meta(description="Default: those the project uses.")] = []
    seconds: Annotated[float | None, msgspec.Meta(description="Time limit; never above the configured one.")] = None


class LinterResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    tool: str
    state: LinterState = "ran"
    findings: int
    detail: str = ""


class RunLintResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    findings: list[str]
    """One per line: file:line:column, rule, message."""
    tools: list[LinterResult]
    more: int = 0
    """Findings that are counted but not shown."""
    note: str = ""


async def run_lint(context: ToolContext, given: RunLintArguments) -> ToolResult:
    paths = _checked(context.folder, given.paths)
    turn = CommandRunner(context, NAME, given.seconds)
    used = configured_linters(context.folder)
    wanted = tuple(dict.fromkeys(given.tools)) or used.names
    found = await find_programs(turn, *wanted)
    findings: list[LintFinding] = []
    ran: list[LinterResult] = []
    for name in wanted:
        new, state = await _lint(turn, LINTERS[name], used, found, paths)
        findings += new
        ran.append(state)
    findings.sort(key=lambda finding: (finding.severity != "error", finding.file, finding.line, finding.column))
    result = run_lint_result(findings, ran, context.settings.limits.output)
    text = run_lint_text(result)
    clean = not findings and all(one.state == "ran" for one in ran)
    return ToolResult(result, text, failure="" if clean else text.partition("\n")[0])


def run_lint_result(findings: Sequence[LintFinding], ran: list[LinterResult], room: int) -> RunLintResult:
    lines: list[str] = []
    for finding in findings[:MAX_FINDINGS]:
        line = _line(finding)
        room -= json_size(line) + 1
        if room < 0:
            break
        lines.append(line)
    more = len(findings) - len(lines)
    codes = Counter(finding.code or finding.tool for finding in findings).most_common(5) if more else ()
    common = ", ".join(f"{code} ({count:,})" for code, count in codes)
    note = f"{more:,} more are not shown; set `paths` for others. Most frequent overall: {common}." if more else ""
    return RunLintResult(findings=lines, tools=ran, more=more, note=note)


def _line(finding: LintFinding) -> str:
    kind = "" if finding.severity == "error" else f"{finding.severity}: "
    place = f"{finding.file}:{finding.line}:{finding.column}"
    return " ".join(f"{place} {finding.code or finding.tool} {kind}{finding.message}".split())


async def _lint(
    turn: CommandRunner, linter: Linter, used: ConfiguredLinters, found: FoundPrograms, paths: tuple[str, ...]
) -> tuple[list[LintFinding], LinterResult]:
    start = found.start(linter.name)
    if start is None:
        detail = f"It is not installed in the sandbox. {install_remedy(linter.name)}"
        return [], LinterResult(tool=linter.name, state="not_available", findings=0, detail=detail)
    if turn.context.progress:
        turn.context.progress(f"{linter.name} runs")
    arguments = linter.arguments(start, used, found, paths)
    env = linter.cache_in_tmp if turn.context.settings.read_only else {}
    gathered = StdoutCollector(MAX_OUTPUT_BYTES)
    finished = await turn.run((*start, *arguments), env={**env, "NO_COLOR": "1"}, on_output=gathered.take)
    try:
        if finished.ending is not CommandEnding.EXITED or finished.code is None:
            raise LinterFailed(ending_text(finished, turn))
        findings = read_findings(linter, bytes(gathered.stdout), finished.code, str(turn.context.folder.root))
    except LinterFailed as error:
        stdout, stderr = output_texts(finished, MAX_FAILURE_OUTPUT)
        output = head_and_tail("\n".join(part.strip() for part in (stderr, stdout) if part.strip()), MAX_FAILURE_OUTPUT)
        detail = f"{error}: {output}" if output else str(error)
        return [], LinterResult(tool=linter.name, state="failed", findings=0, detail=detail)
    detail = "Its output was cut; pass fewer `paths`." if gathered.is_cut else ""
    return findings, LinterResult(tool=linter.name, findings=len(findings), detail=detail)


def _checked(folder: Folder, paths: list[str]) -> tuple[str, ...]:
    """Each path is in the folder and cannot be mistaken for an option."""
    if len(paths) > MAX_PATHS:
        raise WorkspaceError(f"Too many paths ({len(paths)}).", remedy="Pass folders.")
    return tuple(f"./{'/'.join(real_path(folder, path).parts)}" for path in paths)


def run_lint_text(ran: RunLintResult) -> str:
    states = ", ".join(
        f"{one.tool}: {count_text(one.findings, 'finding') if one.state == 'ran' else one.state.replace('_', ' ')}"
        for one in ran.tools
    )
    complete = all(one.state == "ran" for one in ran.tools)
    first = "FINDINGS" if ran.findings else "CLEAN" if complete else "NOT DONE"
    details = (f"{one.tool}: {one.detail}" for one in ran.tools if one.detail)
    return "\n".join([f"{first}: {states}", *details, *ran.findings, *([ran.note] if ran.note else [])])
