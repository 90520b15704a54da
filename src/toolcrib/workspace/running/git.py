"""git, asked so that it only looks: its arguments, and how its answers are read.

In: a turn and what is asked for. Out: what git printed, and records made of it. `diff` puts them together.

A repository's own configuration can name programs (fsmonitor, filters, hooks, external diffs, textconv). What can be
switched off is; what cannot (filters) runs in the sandbox, like all of git here, with the folder read-only.
"""

from __future__ import annotations

import dataclasses
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from toolcrib.errors import WorkspaceError
from toolcrib.workspace.confined.folder import Folder, Spot
from toolcrib.workspace.running.command import Gathered, Turn, how_it_ended
from toolcrib.workspace.running.printed import plain
from toolcrib.workspace.sandbox.model import Ending

MOST_LISTED = 1024 * 1024
"""Bytes of a listing (status, numstat) that are read."""

_DOT_GIT = Spot((".git",))
_LOOK_ONLY = (
    "--no-pager",
    "--no-optional-locks",
    # Named, the repository needs no search, no ownership that git likes, and cannot claim another work tree.
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

What = Literal["", "modified", "added", "deleted", "renamed", "copied", "retyped", "conflict"]
_WHAT: dict[str, What] = {
    "M": "modified",
    "A": "added",
    "D": "deleted",
    "R": "renamed",
    "C": "copied",
    "T": "retyped",
    "U": "conflict",
}


class Change(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One path that differs, in the index or beside it."""

    path: str
    staged: What = ""
    unstaged: What = ""
    was: str = ""


class FileStat(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    path: str
    added: int = 0
    deleted: int = 0
    was: str = ""
    binary: bool = False


@dataclass(frozen=True, kw_only=True)
class Status:
    branch: str
    has_commits: bool
    is_whole: bool
    changes: tuple[Change, ...]
    untracked: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Answer:
    code: int
    out: bytes
    is_cut: bool
    err: str


async def ask(turn: Turn, *words: str, limit: int = MOST_LISTED, stdin: bytes = b"") -> Answer:
    gathered = Gathered(limit)
    finished = await turn.run(
        ("git", *_LOOK_ONLY, *words), writes=False, env=_ENV, stdin=stdin, on_output=gathered.take
    )
    if finished.ending is not Ending.EXITED and not (finished.ending is Ending.OUTPUT and gathered.is_cut):
        raise WorkspaceError(f"git {words[0]}: {how_it_ended(finished, turn)}.", remedy="Ask for one `path`.")
    said = plain(finished.stderr.head).strip()
    if finished.code == 127:
        raise WorkspaceError("git is not installed where the sandbox sees it.", remedy="A person must install git.")
    return Answer(code=finished.code or 0, out=bytes(gathered.stdout), is_cut=gathered.is_cut, err=said)


def exactly(path: str) -> str:
    """A pathspec that means this very name, whatever characters it has."""
    return f":(literal){path}" if path else "."


def without(path: str) -> str:
    return f":(exclude,literal){path}"


def check_revision(base: str) -> str:
    """A revision that cannot be an option, a range, or a file in a revision."""
    if not _REVISION.fullmatch(base):
        raise WorkspaceError(
            f"`base` is no revision: {base[:80]!r}.",
            remedy="Give one branch, tag or commit, as in main, v1.2, HEAD~3 or a hash.",
        )
    return base


async def commit_of(turn: Turn, base: str) -> str:
    """The hash of a revision; nothing but this reaches git's other commands."""
    found = await ask(
        turn, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{check_revision(base)}^{{commit}}"
    )
    name = found.out.decode("ascii", "replace").strip()
    if found.code or not re.fullmatch(r"[0-9a-f]{40,64}", name):
        raise WorkspaceError(
            f"There is no revision {base!r} in this repository.",
            remedy="Give a branch, tag or commit that `git log` or `git branch` shows.",
        )
    return name


async def empty_tree(turn: Turn) -> str:
    """What a repository without commits is compared with."""
    return (await ask(turn, "hash-object", "-t", "tree", "--stdin")).out.decode("ascii", "replace").strip()


def check_repository(folder: Folder) -> None:
    """Raises where git could find nothing, with what is there instead."""
    try:
        folder.status(_DOT_GIT)
    except WorkspaceError:
        above = next((up for up in folder.root.parents if os.path.lexists(up / ".git")), None)
        if above is None:
            raise WorkspaceError(
                "This folder is not a git repository.",
                remedy="Work without project_diff; only a person can make it one, since commands cannot write .git.",
            ) from None
        raise WorkspaceError(
            f"The git repository of this folder begins above it, in {above}, where the workspace cannot look.",
            remedy=f"A person can start the workspace with --root {above}.",
        ) from None


def why_not(folder: Folder, said: str) -> WorkspaceError:
    """What a failed `git status` means."""
    try:
        is_file = stat.S_ISREG(folder.status(_DOT_GIT).st_mode)
        elsewhere = _points_to(folder) if is_file else ""
    except WorkspaceError:
        elsewhere = ""
    if elsewhere and not Path(os.path.normpath(folder.root / elsewhere)).is_relative_to(folder.root):
        return WorkspaceError(
            f"This folder's repository is kept in {elsewhere}, outside the workspace, where git cannot look from here.",
            remedy="A clone of its own works; a person can also put that folder under `readable:` in workspace.yml.",
        )
    return WorkspaceError(f"git cannot read this repository: {said[:500] or 'it did not say why'}.")


def _points_to(folder: Folder) -> str:
    with os.fdopen(folder.open_file(_DOT_GIT), "rb") as file:
        return plain(file.read(300)).removeprefix("gitdir:").strip()


async def status_of(turn: Turn, path: str) -> Status:
    answer = await ask(
        turn, "status", "--porcelain=v2", "-z", "--branch", "--ignore-submodules=dirty", "--untracked-files=normal",
        "--", path,
    )  # fmt: skip
    if answer.code:
        raise why_not(turn.scene.folder, answer.err)
    return dataclasses.replace(read_status(answer.out), is_whole=not answer.is_cut)


def read_status(raw: bytes) -> Status:
    """`status --porcelain=v2 -z --branch`. What does not look like it is passed over."""
    branch, has_commits = "", True
    changes: list[Change] = []
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
    return Status(
        branch=branch, has_commits=has_commits, is_whole=True, changes=tuple(changes), untracked=tuple(untracked)
    )


_FIELDS = {"1": 7, "2": 8, "u": 9}
"""Fields before the path, by the kind of a record."""


def _change(kind: str, letters: str, path: str, was: str) -> Change:
    if kind == "u":
        return Change(path=path, unstaged="conflict")
    return Change(path=path, staged=_WHAT.get(letters[:1], ""), unstaged=_WHAT.get(letters[1:2], ""), was=was)


def read_numstat(raw: bytes) -> tuple[FileStat, ...]:
    """`diff --numstat -z`. What does not look like it is passed over."""
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
            is_binary = added == b"-"
            found.append(
                FileStat(
                    path=os.fsdecode(path),
                    was=os.fsdecode(was),
                    added=_number(added),
                    deleted=_number(deleted),
                    binary=is_binary,
                )
            )
    return tuple(found)


def _number(digits: bytes) -> int:
    return int(digits) if digits.isdigit() and len(digits) < 12 else 0
