"""`project_diff`: what has changed in the folder's git repository.

In: one path or all, staged or not, since which revision. Out: the state of every changed path, lines added and deleted
per file, and the diff itself as far as it fits, with a word on how to get the rest. `git` asks git and reads it.
"""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Sequence
from typing import Annotated, TypeVar

import msgspec

from toolcrib.errors import WorkspaceError
from toolcrib.workspace.confined.beneath import Last
from toolcrib.workspace.confined.folder import Folder, Spot
from toolcrib.workspace.running import git
from toolcrib.workspace.running.command import Turn
from toolcrib.workspace.running.git import Change, FileStat
from toolcrib.workspace.tool import Done, Scene
from toolcrib.workspace.words import count_words, fitting, room_of

Listed = TypeVar("Listed", str, Change, FileStat)

NAME = "project_diff"
MOST_LISTED = 500
"""Paths in a result."""
MOST_SHOWN = 200
"""Files whose diff is asked for at once."""
MOST_NAMES = 200_000
"""Bytes of their names."""

_PLAIN = ("--no-ext-diff", "--no-textconv", "--no-color", "--find-renames", "--ignore-submodules=dirty")


class ProjectDiff(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: Annotated[str, msgspec.Meta(description="Only this file or folder.")] = "."
    staged: Annotated[bool, msgspec.Meta(description="Only what is staged.")] = False
    base: Annotated[str, msgspec.Meta(description="Compare with this branch, tag or commit.")] = "HEAD"
    stat_only: Annotated[bool, msgspec.Meta(description="Names and numbers, no diff.")] = False
    limit: Annotated[int, msgspec.Meta(description="Characters of diff, at most.", ge=1)] | None = None


class Differs(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    branch: str
    base: str = ""
    """If it is not HEAD."""
    changes: list[Change] = []
    """Against HEAD, as git status."""
    untracked: list[str] = []
    files: list[FileStat] = []
    """Against base, where no diff was asked for."""
    added: int = 0
    deleted: int = 0
    diff: str = ""
    not_shown: list[str] = []
    """Files whose diff is missing or cut: each can be asked for as `path`."""
    more: int = 0
    """Paths left out of the lists, at least."""


async def project_diff(scene: Scene, given: ProjectDiff) -> Done:
    folder = scene.folder
    git.check_revision(given.base)
    spot = _inside(folder, given.path)
    path = git.exactly("/".join(spot.parts))
    git.check_repository(folder)
    turn = Turn(scene, NAME)
    status = await git.status_of(turn, path)
    # What is hidden is masked in the sandbox: it always differs, and git could not read it.
    masked = [git.without(change.path) for change in status.changes if not _seen(folder, change.path)]
    base = await git.commit_of(turn, given.base) if status.has_commits else await git.empty_tree(turn)
    against = ("--cached", base) if given.staged else (base,)
    numbers = await _diff(turn, folder, ("--numstat", "-z", *against), (path, *masked), git.MOST_LISTED)
    files = [file for file in git.read_numstat(numbers.out) if _seen(folder, file.path, file.was)]
    changes = [change for change in status.changes if _seen(folder, change.path, change.was)]
    untracked = [path for path in status.untracked if _seen(folder, path)]
    if not (changes or untracked or files):
        # A deleted file still has a diff; a path that never was has not, and says so here.
        folder.status(spot)
    limit = min(scene.settings.limits.output, given.limit or scene.settings.limits.output)
    text, missing = ("", []) if given.stat_only else await _shown(turn, folder, against, files, limit)
    room = scene.settings.limits.output // 4
    result = Differs(
        branch=_told(status.branch),
        base="nothing (no commit yet)" if not status.has_commits else given.base if given.base != "HEAD" else "",
        changes=_first([_named(change) for change in changes], room),
        untracked=_first([_told(name) for name in untracked], room),
        files=_first([_named(file) for file in files], 2 * room) if given.stat_only else [],
        added=sum(file.added for file in files),
        deleted=sum(file.deleted for file in files),
        diff=text,
        not_shown=_first([_told(name) for name in missing], room),
    )
    left_out = len(changes) - len(result.changes) + len(untracked) - len(result.untracked)
    if given.stat_only:
        left_out += len(files) - len(result.files)
    result = msgspec.structs.replace(result, more=left_out + (not status.is_whole) + numbers.is_cut)
    return Done(result, told(result, len(files)))


def _first(rows: list[Listed], room: int) -> list[Listed]:
    """As many as there is room for in JSON."""
    ends = itertools.accumulate(len(msgspec.json.encode(row)) + 1 for row in rows[:MOST_LISTED])
    return rows[: sum(1 for _ in itertools.takewhile(lambda end: end <= room, ends))]


def _inside(folder: Folder, path: str) -> Spot:
    """What leads out is refused, as everywhere. A file that is gone has a diff all the same, and a link has its own."""
    spot = folder.spot(path)
    try:
        with folder.reaching(spot):
            pass
    except WorkspaceError as error:
        gone = isinstance(error.__cause__, OSError) and error.__cause__.errno in (errno.ENOENT, errno.ENOTDIR)
        if not gone:
            raise
        return spot
    with folder.reaching(spot, Last.LINK) as (_, real):
        return real


async def _diff(turn: Turn, folder: Folder, words: Sequence[str], paths: Sequence[str], limit: int) -> git.Answer:
    if sum(len(os.fsencode(path)) for path in paths) > 2 * MOST_NAMES:
        raise WorkspaceError("Too many files are hidden here for one diff.", remedy="Ask for one `path`.")
    answer = await git.ask(turn, "diff", *_PLAIN, *words, "--", *paths, limit=limit)
    if answer.code:
        raise git.why_not(folder, answer.err)
    return answer


async def _shown(
    turn: Turn, folder: Folder, against: tuple[str, ...], files: Sequence[FileStat], limit: int
) -> tuple[str, list[str]]:
    """The diff of the first files, and the names of those that it does not show whole."""
    asked: list[str] = []
    names: list[str] = []
    size = 0
    for file in files[:MOST_SHOWN]:
        size += len(os.fsencode(file.path)) + len(os.fsencode(file.was))
        if size > MOST_NAMES:
            break
        asked.append(file.path)
        # Both names, or git would not see that it is a renamed file.
        names += (git.exactly(name) for name in (file.path, file.was) if name)
    rest = [file.path for file in files[len(asked) :]]
    if not asked:
        return "", rest
    # A character has four bytes at most.
    answer = await _diff(turn, folder, ("--patch", "--src-prefix=a/", "--dst-prefix=b/", *against), names, 4 * limit)
    text = readable(answer.out)
    if room_of(text) <= limit and not answer.is_cut:
        return text, rest
    text = fitting(text, limit)
    text = text[: text.rfind("\n") + 1] or text
    whole = max(0, text.count("\ndiff --git ") + text.startswith("diff --git ") - 1)
    return text, asked[whole:] + rest


def readable(raw: bytes) -> str:
    """A diff as text that shows what is there: only control characters are marked, and CR LF is LF."""
    text = raw.decode("utf-8", "replace").replace("\r\n", "\n")
    return "".join(char if char >= " " or char in "\n\t" else "\ufffd" for char in text)


def _seen(folder: Folder, *paths: str) -> bool:
    """What the settings hide is hidden here too."""
    return all(folder.readable(Spot(tuple(part for part in path.split("/") if part))) for path in paths if path)


Row = TypeVar("Row", Change, FileStat)


def _named(row: Row) -> Row:
    return msgspec.structs.replace(row, path=_told(row.path), was=_told(row.was))


def _told(path: str) -> str:
    return os.fsencode(path).decode("utf-8", "replace")


def told(result: Differs, differing: int) -> str:
    count = len(result.changes)
    state = f"{count} changed, {len(result.untracked)} untracked" if count or result.untracked else "clean"
    differ = count_words(differing, "file differs", "files differ") if differing else "nothing differs"
    numbers = f" (+{result.added} -{result.deleted})" if differing else ""
    parts = [f"On {result.branch}: {state}; {differ} from {result.base or 'HEAD'}{numbers}"]
    parts += (f"{one.path}: {_states(one)}" for one in result.changes)
    parts += (f"{path}: untracked" for path in result.untracked)
    parts += (f"{one.path} {'binary' if one.binary else f'+{one.added} -{one.deleted}'}" for one in result.files)
    if result.more:
        parts.append(f"{result.more} or more paths are left out; name a `path`.")
    if result.not_shown:
        names = ", ".join(result.not_shown[:10]) + (" …" if len(result.not_shown) > 10 else "")
        parts.append(f"The diff is cut. Not shown whole: {names}. Ask again with one of these as `path`.")
    if result.diff:
        parts.append(result.diff)
    return "\n".join(parts)


def _states(change: Change) -> str:
    staged = f"staged {change.staged}" if change.staged else ""
    both = ", ".join(part for part in (staged, change.unstaged) if part)
    return f"{both} (was {change.was})" if change.was else both
