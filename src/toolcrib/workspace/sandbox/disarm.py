"""What a command has made and other programs would run or obey: git repositories, and files that are guarded.

In: what was in the folder before and is there now. Out: what was done, in words. What is new gets another name, by
which no program knows it; nothing is removed. `floor` has it done when the last command has ended: until then, and
where a server is killed before, it is in force.
"""

from __future__ import annotations

from toolcrib.workspace.confined.folder import Folder
from toolcrib.workspace.sandbox.git import put_aside
from toolcrib.workspace.sandbox.placeholders import Placeholders
from toolcrib.workspace.sandbox.survey import Found, Kind, Parts, Survey

_SLACK = 1.0
"""Seconds that a file system's clock may be behind ours."""


def disarm(folder: Folder, before: Survey, now: Survey) -> list[str]:
    done: list[str] = []
    repositories = [] if folder.repositories else _repositories(folder, before, now)
    guarded = _new(before, before.guarded, _held(before.guarded), now.guarded)
    # The deepest first: what it lies in may get another name as well.
    for found in sorted({*repositories, *guarded}, key=lambda found: -len(found.parts)):
        path = "/".join(found.parts)
        why = (
            "a new git repository's configuration can start programs (repositories: true in workspace.yml keeps them)"
            if found in repositories
            else "other programs obey it (guarded: in workspace.yml decides)"
        )
        try:
            done.append(f"{path} is now {put_aside(folder, found.parts)}: {why}.")
        except OSError as error:
            done.append(f"{path} could not be renamed ({error.strerror}). Look at it first: {why}.")
    return done


def _repositories(folder: Folder, before: Survey, now: Survey) -> list[Found]:
    # An empty folder is none; it may hold the place for the command of another server.
    holders = Placeholders(folder)
    made = [
        found
        for found in _new(before, before.repositories, _held(before.repositories), now.repositories)
        if not holders.may_be_one("/".join(found.parts), None)
    ]
    # Another file may have made one of a folder that had a HEAD already.
    completed = [found for found in now.bare if found not in before.bare and found in before.heads]
    return [*made, *_new(before, before.heads, _held(before.bare), now.heads), *completed]


def _held(known: list[Found]) -> set[Parts]:
    """Commands could not change these, so whatever is there now is a person's."""
    return {found.parts for found in known if found.kind is not Kind.LINK}


def _new(before: Survey, known: list[Found], held: set[Parts], there: list[Found]) -> list[Found]:
    """If not all of the folder was looked at before, what has not changed since is not new."""
    return [
        found
        for found in there
        if found not in known
        and found.parts not in held
        and (before.is_whole or found.changed >= before.began - _SLACK)
    ]
