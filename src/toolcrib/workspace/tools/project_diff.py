"""`project_diff`: changes in the folder's git repository.

In: an optional path, staged or not, a base revision. Out: the state of every changed path, lines added and deleted per
file, and as much of the diff as fits, with how to get the rest.

A repository's configuration can name programs (fsmonitor, filters, hooks, external diffs, textconv). Most are switched
off; filters, which cannot be, run in the sandbox with the folder read-only, as all of git does here.
"""

from __future__ import annotations

import errno
import itertools
import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import msgspec

from toolcrib.errors import WorkspaceError
from toolcrib.workspace.confined_open import FinalLink
from toolcrib.workspace.folder import Folder, FolderPath
from toolcrib.workspace.sandbox.command import CommandEnding
from toolcrib.workspace.text import count_text, decode_output, fit_json, json_size
from toolcrib.workspace.tool import ToolContext, ToolResult
from toolcrib.workspace.tools.runner import CommandRunner, StdoutCollector, ending_text

MAX_LISTING_BYTES = 1024 * 1024
"""Bytes that are read of a listing (status, numstat)."""

_DOT_GIT = FolderPath((".git",))
_LOOK_ONLY = (
    "--no-pager",
    "--no-optional-locks",
    # With an explicit repository, git neither searches for one nor checks its owner or another work tree.
    "--git-dir=.git",
    "--work-tree=.",
    *("-c", "core.fsmonitor=false"),
    *("-c", "core.hooksPath=/dev/null"),
    *("-c", "core.pager=cat"),
    *("-c", "core.quotePath=false"),
    *("-c", "protocol.allow=never"),
)
_ENV = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C.UTF-8",
}
_REVISION = re.compile(r"(?!.*\.\.)[\w@][\w./@{}~^+#-]{0,199}")

GitState = Literal["", "modified", "added", "deleted", "renamed", "copied", "retyped", "conflict"]
_GIT_STATES: dict[str, GitState] = {
    "M": "modified",
    "A": "added",
    "D": "deleted",
    "R": "renamed",
    "C": "copied",
    "T": "retyped",
    "U": "conflict",
}


class GitChange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One changed path, staged or not."""

    path: str
    staged: GitState = ""
    unstaged: GitState = ""
    was: str = ""


class GitFileStat(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    path: str
    added: int = 0
    deleted: int = 0
    was: str = ""
    binary: bool = False


@dataclass(frozen=True, kw_only=True)
class GitStatus:
    branch: str
    has_commits: bool
    is_whole: bool
    changes: tuple[GitChange, ...]
    untracked: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class GitOutput:
    code: int
    out: bytes
    is_cut: bool
    err: str


async def run_git(
    turn: CommandRunner, *arguments: str, limit: int = MAX_LISTING_BYTES, stdin: bytes = b""
) -> GitOutput:
    gathered = StdoutCollector(limit)
    finished = await turn.run(
        ("git", *_LOOK_ONLY, *arguments), writes=False, env=_ENV, stdin=stdin, on_output=gathered.take
    )
    if finished.ending is not CommandEnding.EXITED and not (
        finished.ending is CommandEnding.OUTPUT and gathered.is_cut
    ):
        raise WorkspaceError(f"git {arguments[0]}: {ending_text(finished, turn)}.", remedy="Set `path`.")
    reason = decode_output(finished.stderr.head).strip()
    if finished.code == 127:
        raise WorkspaceError("git is not installed in the sandbox.", remedy="The user must install git.")
    return GitOutput(code=finished.code or 0, out=bytes(gathered.stdout), is_cut=gathered.is_cut, err=reason)


def literal_pathspec(path: str) -> str:
    """A pathspec that matches exactly this name, whatever characters it contains."""
    return f":(literal){path}" if path else "."


def check_revision(base: str) -> str:
    """Refuses options, ranges, and files in a revision."""
    if not _REVISION.fullmatch(base):
        raise WorkspaceError(
            f"`base` is not a revision: {base[:80]!r}.",
            remedy="Give one branch, tag or commit, such as main, v1.2, HEAD~3 or a hash.",
        )
    return base


async def commit_of(turn: CommandRunner, base: str) -> str:
    """The hash of a revision. Only the hash is passed to git's other commands."""
    found = await run_git(
        turn, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{check_revision(base)}^{{commit}}"
    )
    name = found.out.decode("ascii", "replace").strip()
    if found.code or not re.fullmatch(r"[0-9a-f]{40,64}", name):
        raise WorkspaceError(
            f"There is no revision {base!r} in this repository.",
            remedy="Give a branch, tag or commit that `git log` or `git branch` shows.",
        )
    return name


async def empty_tree(turn: CommandRunner) -> str:
    """The base for a repository without commits."""
    return (await run_git(turn, "hash-object", "-t", "tree", "--stdin")).out.decode("ascii", "replace").strip()


def check_repository(folder: Folder) -> None:
    """Raises if the folder is not the root of a repository."""
    try:
        folder.status(_DOT_GIT)
    except WorkspaceError:
        above = next((up for up in folder.root.parents if os.path.lexists(up / ".git")), None)
        if above is None:
            raise WorkspaceError(
                "This folder is not a git repository.",
                remedy="Work without project_diff; only the user can make it one, since commands cannot write .git.",
            ) from None
        raise WorkspaceError(
            f"The git repository of this folder starts above it, in {above}, outside the workspace.",
            remedy=f"The user can start the workspace with --root {above}.",
        ) from None


def git_failure(folder: Folder, reason: str) -> WorkspaceError:
    """Explains why `git status` failed."""
    try:
        is_file = stat.S_ISREG(folder.status(_DOT_GIT).st_mode)
        elsewhere = _points_to(folder) if is_file else ""
    except WorkspaceError:
        elsewhere = ""
    if elsewhere and not Path(os.path.normpath(folder.root / elsewhere)).is_relative_to(folder.root):
        return WorkspaceError(
            f"This folder's repository is in {elsewhere}, outside the workspace, where git cannot read it.",
            remedy="A full clone works; the user can also add that folder to `readable:` in workspace.yml.",
        )
    return WorkspaceError(f"git cannot read this repository: {reason[:500] or 'it gave no reason'}.")


def _points_to(folder: Folder) -> str:
    with os.fdopen(folder.open_file(_DOT_GIT), "rb") as file:
        return decode_output(file.read(300)).removeprefix("gitdir:").strip()


async def status_of(turn: CommandRunner, path: str) -> GitStatus:
    answer = await run_git(
        turn, "status", "--porcelain=v2", "-z", "--branch", "--ignore-submodules=dirty", "--untracked-files=normal",
        "--", path,
    )  # fmt: skip
    if answer.code:
        raise git_failure(turn.context.folder, answer.err)
    return read_status(answer.out, is_whole=not answer.is_cut)


def read_status(raw: bytes, *, is_whole: bool = True) -> GitStatus:
    """Parses `status --porcelain=v2 -z --branch`; skips anything else."""
    branch, has_commits = "", True
    changes: list[GitChange] = []
    untracked: list[str] = []
    records = iter(raw.split(b"\0"))
    for record in records:
        kind, _, rest = os.fsdecode(record).partition(" ")
        if kind == "#":
            key, _, value = rest.partition(" ")
            if key == "branch.head":
                branch = value
            has_commits = has_commits and (key, value) != ("branch.oid", "(initial)")
        elif kind == "?" and rest:
            untracked.append(rest)
        elif kind in _FIELDS and len(fields := rest.split(" ", _FIELDS[kind])) == _FIELDS[kind] + 1:
            was = os.fsdecode(next(records, b"")) if kind == "2" else ""
            changes.append(_change(kind, fields[0], fields[-1], was))
    return GitStatus(
        branch=branch, has_commits=has_commits, is_whole=is_whole, changes=tuple(changes), untracked=tuple(untracked)
    )


_FIELDS = {"1": 7, "2": 8, "u": 9}
"""Number of fields before the path, by record type."""


def _change(kind: str, letters: str, path: str, was: str) -> GitChange:
    if kind == "u":
        return GitChange(path=path, unstaged="conflict")
    return GitChange(
        path=path, staged=_GIT_STATES.get(letters[:1], ""), unstaged=_GIT_STATES.get(letters[1:2], ""), was=was
    )


def read_numstat(raw: bytes) -> tuple[GitFileStat, ...]:
    """Parses `diff --numstat -z`; skips anything else."""
    found = []
    records = iter(raw.split(b"\0"))
    for record in records:
        added, tab, rest = record.partition(b"\t")
        deleted, tab_again, path = rest.partition(b"\t")
        if not (tab and tab_again):
            continue
        was = b""
        if not path:
            was, path = next(records, b""), next(records, b"")
        if path:
            found.append(
                GitFileStat(
                    path=os.fsdecode(path),
                    was=os.fsdecode(was),
                    added=_number(added),
                    deleted=_number(deleted),
                    binary=added == b"-",
                )
            )
    return tuple(found)


def _number(digits: bytes) -> int:
    return int(digits) if digits.isdigit() and len(digits) < 12 else 0


Listed = TypeVar("Listed", str, GitChange, GitFileStat)

NAME = "project_diff"
MAX_LISTED = 500
"""Paths in a result."""
MAX_SHOWN = 200
"""Files in one diff."""
MAX_NAMES = 200_000
"""Bytes of the names of those files."""

_DIFF_OPTIONS = ("--no-ext-diff", "--no-textconv", "--no-color", "--find-renames", "--ignore-submodules=dirty")


class ProjectDiffArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: Annotated[str, msgspec.Meta(description="Only this file or folder.")] = "."
    staged: Annotated[bool, msgspec.Meta(description="Only staged changes.")] = False
    base: Annotated[str, msgspec.Meta(description="Compare with this branch, tag or commit.")] = "HEAD"
    stat_only: Annotated[bool, msgspec.Meta(description="Names and line counts, no diff.")] = False
    limit: Annotated[int, msgspec.Meta(description="Maximum characters of diff.", ge=1)] | None = None


class ProjectDiffResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    branch: str
    base: str = ""
    """If it is not HEAD."""
    changes: list[GitChange] = []
    """Against HEAD, like git status."""
    untracked: list[str] = []
    files: list[GitFileStat] = []
    """Against base; only with `stat_only`."""
    added: int = 0
    deleted: int = 0
    diff: str = ""
    not_shown: list[str] = []
    """Files whose diff is missing or cut; pass one as `path` to see it."""
    more: int = 0
    """Minimum number of paths left out of the lists."""


async def project_diff(context: ToolContext, given: ProjectDiffArguments) -> ToolResult:
    folder = context.folder
    check_revision(given.base)
    place = _inside(folder, given.path)
    path = literal_pathspec("/".join(place.parts))
    check_repository(folder)
    turn = CommandRunner(context, NAME)
    status = await status_of(turn, path)
    # Hidden files are masked in the sandbox, so they always differ and git cannot read them.
    masked = [f":(exclude,literal){change.path}" for change in status.changes if not _is_readable(folder, change.path)]
    base = await commit_of(turn, given.base) if status.has_commits else await empty_tree(turn)
    against = ("--cached", base) if given.staged else (base,)
    numbers = await _diff(turn, ("--numstat", "-z", *against), (path, *masked), MAX_LISTING_BYTES)
    files = [file for file in read_numstat(numbers.out) if _is_readable(folder, file.path, file.was)]
    changes = [change for change in status.changes if _is_readable(folder, change.path, change.was)]
    untracked = [path for path in status.untracked if _is_readable(folder, path)]
    if not (changes or untracked or files):
        # A deleted file has a diff. A path that never existed has none, and this raises.
        folder.status(place)
    limit = min(context.settings.limits.output, given.limit or context.settings.limits.output)
    text, missing = ("", []) if given.stat_only else await _shown(turn, against, files, limit)
    room = context.settings.limits.output // 4
    result = ProjectDiffResult(
        branch=_utf8(status.branch),
        base="nothing (no commit yet)" if not status.has_commits else given.base if given.base != "HEAD" else "",
        changes=_first([_named(change) for change in changes], room),
        untracked=_first([_utf8(name) for name in untracked], room),
        files=_first([_named(file) for file in files], 2 * room) if given.stat_only else [],
        added=sum(file.added for file in files),
        deleted=sum(file.deleted for file in files),
        diff=text,
        not_shown=_first([_utf8(name) for name in missing], room),
    )
    left_out = len(changes) - len(result.changes) + len(untracked) - len(result.untracked)
    if given.stat_only:
        left_out += len(files) - len(result.files)
    result = msgspec.structs.replace(result, more=left_out + (not status.is_whole) + numbers.is_cut)
    return ToolResult(result, project_diff_text(result, len(files)))


def _first(rows: list[Listed], room: int) -> list[Listed]:
    """The rows that fit into `room` bytes of JSON."""
    ends = itertools.accumulate(len(msgspec.json.encode(row)) + 1 for row in rows[:MAX_LISTED])
    return rows[: sum(1 for _ in itertools.takewhile(lambda end: end <= room, ends))]


def _inside(folder: Folder, path: str) -> FolderPath:
    """Refuses paths that lead outside. Allows a deleted file, which still has a diff, and does not follow a link."""
    place = folder.path_of(path)
    try:
        with folder.opened(place):
            pass
    except WorkspaceError as error:
        gone = isinstance(error.__cause__, OSError) and error.__cause__.errno in (errno.ENOENT, errno.ENOTDIR)
        if not gone:
            raise
        return place
    with folder.opened(place, FinalLink.LINK) as (_, real):
        return real


async def _diff(turn: CommandRunner, arguments: Sequence[str], paths: Sequence[str], limit: int) -> GitOutput:
    if sum(len(os.fsencode(path)) for path in paths) > 2 * MAX_NAMES:
        raise WorkspaceError("Too many files are hidden here for one diff.", remedy="Set `path`.")
    answer = await run_git(turn, "diff", *_DIFF_OPTIONS, *arguments, "--", *paths, limit=limit)
    if answer.code:
        raise git_failure(turn.context.folder, answer.err)
    return answer


async def _shown(
    turn: CommandRunner, against: tuple[str, ...], files: Sequence[GitFileStat], limit: int
) -> tuple[str, list[str]]:
    """The diff of the first files, and the names of files that it doesn't show completely."""
    asked: list[str] = []
    names: list[str] = []
    size = 0
    for file in files[:MAX_SHOWN]:
        size += len(os.fsencode(file.path)) + len(os.fsencode(file.was))
        if size > MAX_NAMES:
            break
        asked.append(file.path)
        # With only one name, git would not detect the rename.
        names += (literal_pathspec(name) for name in (file.path, file.was) if name)
    rest = [file.path for file in files[len(asked) :]]
    if not asked:
        return "", rest
    # A character has at most four bytes.
    answer = await _diff(turn, ("--patch", "--src-prefix=a/", "--dst-prefix=b/", *against), names, 4 * limit)
    text = diff_text(answer.out)
    if json_size(text) <= limit and not answer.is_cut:
        return text, rest
    text = fit_json(text, limit)
    text = text[: text.rfind("\n") + 1] or text
    whole = max(0, text.count("\ndiff --git ") + text.startswith("diff --git ") - 1)
    return text, asked[whole:] + rest


def diff_text(raw: bytes) -> str:
    """Decodes a diff: control characters become �, and CR LF becomes LF."""
    text = raw.decode("utf-8", "replace").replace("\r\n", "\n")
    return "".join(char if char >= " " or char in "\n\t" else "\ufffd" for char in text)


def _is_readable(folder: Folder, *paths: str) -> bool:
    """Whether none of the paths is hidden by the settings."""
    return all(folder.readable(FolderPath(tuple(part for part in path.split("/") if part))) for path in paths if path)


Row = TypeVar("Row", GitChange, GitFileStat)


def _named(row: Row) -> Row:
    return msgspec.structs.replace(row, path=_utf8(row.path), was=_utf8(row.was))


def _utf8(path: str) -> str:
    return os.fsencode(path).decode("utf-8", "replace")


def project_diff_text(result: ProjectDiffResult, differing: int) -> str:
    count = len(result.changes)
    state = f"{count} changed, {len(result.untracked)} untracked" if count or result.untracked else "clean"
    differ = count_text(differing, "file differs", "files differ") if differing else "nothing differs"
    numbers = f" (+{result.added} -{result.deleted})" if differing else ""
    parts = [f"On {result.branch}: {state}; {differ} from {result.base or 'HEAD'}{numbers}"]
    parts += (f"{one.path}: {_states(one)}" for one in result.changes)
    parts += (f"{path}: untracked" for path in result.untracked)
    parts += (f"{one.path} {'binary' if one.binary else f'+{one.added} -{one.deleted}'}" for one in result.files)
    if result.more:
        parts.append(f"{result.more} or more paths are left out; set `path`.")
    if result.not_shown:
        names = ", ".join(result.not_shown[:10]) + (" …" if len(result.not_shown) > 10 else "")
        parts.append(f"The diff is cut. Incomplete: {names}. Ask again with one of these as `path`.")
    if result.diff:
        parts.append(result.diff)
    return "\n".join(parts)


def _states(change: GitChange) -> str:
    staged = f"staged {change.staged}" if change.staged else ""
    both = ", ".join(part for part in (staged, change.unstaged) if part)
    return f"{both} (was {change.was})" if change.was else both
