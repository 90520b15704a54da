"""What of a repository is dangerous: whatever git runs or follows later, when a person uses it outside.

In: the folder. Out: parts of `.git` that stay read-only while commands may commit, and folders of submodules. What is
not there is held by placeholders: a missing file that nobody protects is the oldest way in.

    config, config.worktree      name programs: core.fsmonitor, core.sshCommand, filters, aliases …
    hooks                        are programs
    commondir                    says that configuration and hooks are elsewhere
    info                         attributes choose filters; grafts rewrite history
    modules, worktrees           have configuration, hooks and pointers of their own
    objects/info                 alternates read objects from elsewhere
    remotes, branches            the old way to name where to fetch from

Some things can only be put right after a command (`Before.mend`): `rebase-merge`, `rebase-apply` and `sequencer` hold
commands that `git rebase --continue` runs, but their mere existence tells git that something is under way, so nothing
can stand in for them; a HEAD that is none makes git look for a repository in the folder itself; and a new submodule
brings a configuration that `git status` follows. Until then, while a command that may commit still runs, a person's
git can be led astray by these three. It cannot by anything where `.git` is read-only.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
from dataclasses import dataclass

from toolcrib.workspace.confined.folder import Folder, Spot
from toolcrib.workspace.sandbox.gitlinks import NotAnIndex, gitlinks
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
PINNED: tuple[tuple[str, ...], ...] = (("objects",), ("refs",))
"""Writable, but not to be renamed or removed: without them git would take the folder itself for a repository."""
UNDER_WAY = ("rebase-merge", "rebase-apply", "sequencer")
MOST_INDEX = 128 * 1024 * 1024
MOST_SUBMODULES = 100
DISARMED = ".git.disarmed"
_HEAD = re.compile(rb"(ref: refs/[^\0\n]+|[0-9a-f]{40}|[0-9a-f]{64})\n?")


def is_plain(folder: Folder) -> bool:
    """Whether all its parts are what git makes them. A link among them could be exchanged."""
    wanted = [
        *((part, Kind.FOLDER) for part in PINNED),
        *((part, Kind.FOLDER) for part in FOLDERS),
        *((part, Kind.FILE) for part, _ in FILES),
    ]
    found = [(look(folder, (GIT, *part)), kind) for part, kind in wanted]
    return all(there is None or there.kind is kind for there, kind in found) and all(
        look(folder, (GIT, *part)) is not None for part in PINNED
    )


def hold_missing(folder: Folder, placeholders: Placeholders) -> list[tuple[str, ...]]:
    """All parts to be mounted over, outer ones first; every one is there afterwards."""
    parts = list(PINNED)
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
    return parts


def under_way(folder: Folder) -> list[str]:
    return [name for name in UNDER_WAY if look(folder, (GIT, name)) is not None]


def submodules(folder: Folder) -> list[tuple[str, ...]]:
    """Where git goes in by itself, by the index of the folder's own `.git`."""
    try:
        names = [name for name in os.listdir(_at(folder, GIT)) if name.startswith("sharedindex.")]  # noqa: PTH208
    except OSError:
        return []
    found: list[tuple[str, ...]] = []
    for name in ["index", *names[:20]]:
        with contextlib.suppress(OSError, NotAnIndex):
            paths = [os.fsdecode(path).split("/") for path in gitlinks(_read(folder, f"{GIT}/{name}", MOST_INDEX))]
            found += [tuple(parts) for parts in paths if not {"", ".", ".."} & set(parts)]
    return list(dict.fromkeys(found))[:MOST_SUBMODULES]


@dataclass(frozen=True, kw_only=True)
class Before:
    """How a repository was before a command that may commit."""

    head: bytes
    submodules: frozenset[tuple[str, ...]]
    has_index: bool
    """One that can be read, or none."""
    under_way: frozenset[str]

    @classmethod
    def look(cls, folder: Folder) -> Before:
        head = b""
        with contextlib.suppress(OSError):
            head = _read(folder, f"{GIT}/HEAD", 4096)
        return cls(
            head=head,
            submodules=frozenset(submodules(folder)),
            has_index=_has_index(folder),
            under_way=frozenset(under_way(folder)),
        )

    def mend(self, folder: Folder) -> list[str]:
        """Puts right what could not be held, when nothing of the command runs any more; says what it did."""
        done: list[str] = []
        for name in UNDER_WAY:
            if name not in self.under_way and look(folder, (GIT, name)) is not None:
                with contextlib.suppress(OSError):
                    _remove(folder, f"{GIT}/{name}")
                    done.append(f"{GIT}/{name} was removed: what it says would be run later, outside.")
        if self.has_index and not _has_index(folder):
            with contextlib.suppress(OSError):
                os.rename(f"{GIT}/index", f"{GIT}/index.disarmed", src_dir_fd=folder.fd, dst_dir_fd=folder.fd)
                done.append(f"{GIT}/index is now index.disarmed: it cannot be read. `git reset` makes a new one.")
        for parts in submodules(folder):
            if parts not in self.submodules and look(folder, (*parts, GIT)) is not None:
                with contextlib.suppress(OSError):
                    _rename(folder, parts)
                    done.append(f"{'/'.join((*parts, GIT))} is now {DISARMED}: git would follow it by itself.")
        if self.head and not self._has_head(folder):
            _restore(folder, f"{GIT}/HEAD", self.head)
            done.append(f"{GIT}/HEAD was put back: it was none.")
        return done

    def _has_head(self, folder: Folder) -> bool:
        try:
            return bool(_HEAD.fullmatch(_read(folder, f"{GIT}/HEAD", 4096)))
        except OSError:
            return False


def _has_index(folder: Folder) -> bool:
    try:
        gitlinks(_read(folder, f"{GIT}/index", MOST_INDEX))
    except FileNotFoundError:
        return True
    except (OSError, NotAnIndex):
        return False
    return True


def _read(folder: Folder, path: str, most: int) -> bytes:
    """A regular file and nothing else; never through a link."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder.fd)
    with open(descriptor, "rb") as file:  # noqa: PTH123 - by descriptor
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{path} is no file")
        return file.read(most)


def _at(folder: Folder, path: str) -> str:
    return f"/proc/self/fd/{folder.fd}/{path}"


def _remove(folder: Folder, path: str) -> None:
    if stat.S_ISDIR(os.stat(path, dir_fd=folder.fd, follow_symlinks=False).st_mode):
        shutil.rmtree(path, dir_fd=folder.fd)
    else:
        os.unlink(path, dir_fd=folder.fd)


def _rename(folder: Folder, parts: tuple[str, ...]) -> None:
    place = folder.open_dir(Spot(parts))
    try:
        os.rename(GIT, f"{DISARMED}-{os.urandom(4).hex()}", src_dir_fd=place, dst_dir_fd=place)
    finally:
        os.close(place)


def _restore(folder: Folder, path: str, content: bytes) -> None:
    spare = f"{path}.toolcrib"
    with contextlib.suppress(FileNotFoundError):
        _remove(folder, spare)
    descriptor = os.open(spare, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644, dir_fd=folder.fd)
    with open(descriptor, "wb") as file:  # noqa: PTH123 - by descriptor
        file.write(content)
        if os.geteuid() == 0:
            os.fchown(descriptor, *folder.owner)
    with contextlib.suppress(IsADirectoryError, NotADirectoryError):
        os.rename(spare, path, src_dir_fd=folder.fd, dst_dir_fd=folder.fd)
        return
    _remove(folder, path)
    os.rename(spare, path, src_dir_fd=folder.fd, dst_dir_fd=folder.fd)
