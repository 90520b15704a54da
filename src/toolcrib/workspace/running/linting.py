"""`run_lint`: ruff and mypy, where the project uses them, in the sandbox.

In: which files, which linters. Out: their findings in one form. `linters` says which a project uses, how each is
called and how its findings are read; `interpreter` says where each is. Nothing is fixed: a model that wants that has
`edit_file`, or the linter's own way in a shell, where it sees what was changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec

from toolcrib.errors import WorkspaceError
from toolcrib.workspace.confined.folder import Folder
from toolcrib.workspace.running.command import Gathered, Turn, how_it_ended, printed, real_place
from toolcrib.workspace.running.interpreter import Found, install, look
from toolcrib.workspace.running.linters import LINTERS, Finding, Linter, NotRead, Used, read_findings, used_in
from toolcrib.workspace.running.printed import ends
from toolcrib.workspace.sandbox.model import Ending
from toolcrib.workspace.tool import Done, Scene
from toolcrib.workspace.words import count_words, room_of

NAME = "run_lint"
MOST_PATHS = 200
MOST_FINDINGS = 200
LAST_WORDS = 2000
MOST_PRINTED = 4 * 1024 * 1024
"""Bytes of a linter's output that are read."""

State = Literal["ran", "not_available", "failed"]


Name = Literal["ruff", "mypy"]


class RunLint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    paths: Annotated[list[str], msgspec.Meta(description="Files or folders. Default: the project.")] = []
    tools: Annotated[list[Name], msgspec.Meta(description="Default: those that the project uses.")] = []
    seconds: Annotated[float | None, msgspec.Meta(description="End it after so long; never above the limit.")] = None


class LinterRan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    tool: str
    state: State = "ran"
    findings: int
    detail: str = ""


class LintRan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    findings: list[str]
    """One a line: file:line:column, the rule, what is wrong."""
    tools: list[LinterRan]
    more: int = 0
    """Findings that are only counted."""
    note: str = ""


async def run_lint(scene: Scene, given: RunLint) -> Done:
    paths = _checked(scene.folder, given.paths)
    turn = Turn(scene, NAME, given.seconds)
    used = used_in(scene.folder)
    wanted = tuple(dict.fromkeys(given.tools)) or used.names
    found = await look(turn, *wanted)
    findings: list[Finding] = []
    ran: list[LinterRan] = []
    for name in wanted:
        new, state = await _lint(turn, LINTERS[name], used, found, paths)
        findings += new
        ran.append(state)
    findings.sort(key=lambda finding: (finding.severity != "error", finding.file, finding.line, finding.column))
    result = gathered_from(findings, ran, scene.settings.limits.output)
    text = told(result)
    clean = not findings and all(one.state == "ran" for one in ran)
    return Done(result, text, failure="" if clean else text.partition("\n")[0])


def gathered_from(findings: Sequence[Finding], ran: list[LinterRan], room: int) -> LintRan:
    lines: list[str] = []
    for finding in findings[:MOST_FINDINGS]:
        line = _line(finding)
        room -= room_of(line) + 1
        if room < 0:
            break
        lines.append(line)
    more = len(findings) - len(lines)
    codes = Counter(finding.code or finding.tool for finding in findings).most_common(5) if more else ()
    common = ", ".join(f"{code} ({count:,})" for code, count in codes)
    note = f"{more:,} more are not shown; name `paths` for others. The most frequent of all: {common}." if more else ""
    return LintRan(findings=lines, tools=ran, more=more, note=note)


def _line(finding: Finding) -> str:
    kind = "" if finding.severity == "error" else f"{finding.severity}: "
    place = f"{finding.file}:{finding.line}:{finding.column}"
    return " ".join(f"{place} {finding.code or finding.tool} {kind}{finding.message}".split())


async def _lint(
    turn: Turn, linter: Linter, used: Used, found: Found, paths: tuple[str, ...]
) -> tuple[list[Finding], LinterRan]:
    start = found.start(linter.name)
    if start is None:
        detail = f"It is not installed where the sandbox sees it. {install(linter.name)}"
        return [], LinterRan(tool=linter.name, state="not_available", findings=0, detail=detail)
    if turn.scene.progress:
        turn.scene.progress(f"{linter.name} runs")
    words = linter.words(start, used, found, paths)
    env = linter.cache_in_tmp if turn.scene.settings.read_only else {}
    gathered = Gathered(MOST_PRINTED)
    finished = await turn.run((*start, *words), env={**env, "NO_COLOR": "1"}, on_output=gathered.take)
    try:
        if finished.ending is not Ending.EXITED or finished.code is None:
            raise NotRead(how_it_ended(finished, turn))
        findings = read_findings(linter, bytes(gathered.stdout), finished.code, str(turn.scene.folder.root))
    except NotRead as error:
        stdout, stderr = printed(finished, LAST_WORDS)
        words_left = ends("\n".join(part.strip() for part in (stderr, stdout) if part.strip()), LAST_WORDS)
        detail = f"{error}: {words_left}" if words_left else str(error)
        return [], LinterRan(tool=linter.name, state="failed", findings=0, detail=detail)
    detail = "It found more than was read; name fewer `paths`." if gathered.is_cut else ""
    return findings, LinterRan(tool=linter.name, findings=len(findings), detail=detail)


def _checked(folder: Folder, paths: list[str]) -> tuple[str, ...]:
    """Each lies in the folder, and none can be taken for an option."""
    if len(paths) > MOST_PATHS:
        raise WorkspaceError(f"{len(paths)} paths are too many.", remedy="Name folders.")
    return tuple(f"./{'/'.join(real_place(folder, path).parts)}" for path in paths)


def told(ran: LintRan) -> str:
    states = ", ".join(
        f"{one.tool}: {count_words(one.findings, 'finding') if one.state == 'ran' else one.state.replace('_', ' ')}"
        for one in ran.tools
    )
    complete = all(one.state == "ran" for one in ran.tools)
    first = "FINDINGS" if ran.findings else "CLEAN" if complete else "NOT DONE"
    details = (f"{one.tool}: {one.detail}" for one in ran.tools if one.detail)
    return "\n".join([f"{first}: {states}", *details, *ran.findings, *([ran.note] if ran.note else [])])
