"""What of a repository is dangerous: whatever git runs or follows later, when a person uses it outside.

In: the folder. Out: parts of `.git` that stay read-only while commands may commit. Those that are not there are held
by placeholders: a missing file that nobody protects is the oldest way in.

    config, config.worktree      name programs: core.fsmonitor, core.sshCommand, filters, aliases …
    hooks                        are programs
    commondir                    says that configuration and hooks are elsewhere
    info                         attributes choose filters; grafts rewrite history
    modules, worktrees           have configuration, hooks and pointers of their own
    objects/info                 alternates read objects from elsewhere
    remotes, branches            the old way to name where to fetch from

`rebase-merge`, `rebase-apply` and `sequencer` hold commands that `git rebase --continue` runs, but their mere existence
tells git that something is under way. They cannot be held; `disarm` removes those that a command has left.
"""

from __future__ import annotations

from toolcrib.workspace.folder import Folder
from toolcrib.workspace.sandbox.placeholders import Placeholders
from toolcrib.workspace.sandbox.survey import GIT, Kind, look

FOLDERS: tuple[tuple[str, ...], ...] = (
    ("hooks",),
    ("info",),
    ("modules",),
    ("worktrees",),
    ("remotes",),
    ("branches",),
    ("objects", "info"),
)
FILES: tuple[tuple[tuple[str, ...], bytes], ...] = (
    (("config",), b""),
    (("config.worktree",), b""),
    # git dies of an empty one; this one says that everything is where it is.
    (("commondir",), b".\n"),
)
PINNED = frozenset({("objects",)})
"""Writable, but not to be renamed away with what is read-only in it."""
UNDER_WAY = ("rebase-merge", "rebase-apply", "sequencer")


def is_plain(folder: Folder) -> bool:
    """Whether all its parts are what git makes them. A link among them could be exchanged."""
    wanted = [
        (("objects",), Kind.FOLDER),
        *((part, Kind.FOLDER) for part in FOLDERS),
        *((part, Kind.FILE) for part, _ in FILES),
    ]
    found = [(look(folder, (GIT, *part)), kind) for part, kind in wanted]
    return all(there is None or there.kind is kind for there, kind in found) and found[0][0] is not None


def hold_missing(folder: Folder, placeholders: Placeholders) -> list[tuple[str, ...]]:
    """All parts to be mounted over, outer ones first; every one is there afterwards."""
    parts: list[tuple[str, ...]] = [("objects",)]
    for part in FOLDERS:
        path = "/".join((GIT, *part))
        if look(folder, (GIT, *part)) is None or placeholders.may_be_one(path, None):
            placeholders.hold_folder(path)
        parts.append(part)
    for part, content in FILES:
        path = "/".join((GIT, *part))
        if look(folder, (GIT, *part)) is None or placeholders.may_be_one(path, content):
            placeholders.hold_file(path, content)
        parts.append(part)
    parts += [(name,) for name in UNDER_WAY if look(folder, (GIT, name)) is not None]
    return parts
