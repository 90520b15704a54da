"""Protects the dangerous parts of a repository: whatever git runs or follows later, when the user runs it outside.

In: the folder. Out: the parts of `.git` that stay read-only while commands may commit, and submodule folders. Missing
parts are held by placeholders: empty files and folders where a command could otherwise create something dangerous. A
mount point cannot be created, replaced or renamed, but only existing paths can be mounted over. Commands of several
servers may need the same placeholder: each holds a shared lock on it, and the last one removes it. A killed server
leaves an empty folder or file behind; the next command takes it over and removes it.

    config, config.worktree      name programs: core.fsmonitor, core.sshCommand, filters, aliases …
    hooks                        programs
    commondir                    points to configuration and hooks elsewhere
    info                         attributes choose filters; grafts rewrite history
    modules, worktrees           have their own configuration, hooks and pointers
    objects/info                 alternates read objects from elsewhere
    remotes, branches            legacy files that name where to fetch from

Three things can only be repaired after a command (`RepositoryState.repair`). `rebase-merge`, `rebase-apply` and
`sequencer` hold commands that `git rebase --continue` runs, but placeholders are impossible: if they exist, git assumes
that an operation is in progress. An invalid HEAD makes git look for a repository in the folder itself. And a new
submodule brings a configuration that `git status` follows. While a command that may commit runs, these three can
mislead the user's git. If `.git` is read-only, nothing can.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import stat
import time
from dataclasses import dataclass
from types import TracebackType

from toolcrib.errors import WorkspaceError
from toolcrib.workspace.confined_open import FileKind
from toolcrib.workspace.folder import Folder
from toolcrib.workspace.sandbox.survey import (
    GIT,
    MAX_SUBMODULES,
    IndexTooLarge,
    NotAnIndex,
    commands_may_enter,
    look_at,
    open_inside,
    submodule_links,
)

PLACEHOLDER_BIT = stat.S_ISVTX
"""A mode bit without other meaning here. Empty files of the user lack it and are never removed."""
_TRIES = 200


@dataclass(frozen=True, kw_only=True)
class HeldPlaceholder:
    place: int
    """The folder that it lies in."""
    name: str
    descriptor: int
    content: bytes | None
    """None for a folder."""

    def is_there(self) -> bool:
        try:
            there = os.stat(self.name, dir_fd=self.place, follow_symlinks=False)
        except OSError:
            return False
        return os.path.samestat(there, os.fstat(self.descriptor))

    def remove(self) -> None:
        """Removes it if no other command holds it and it is unchanged."""
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        with contextlib.suppress(OSError):
            if self.is_there() and _is_ours(self.descriptor, self.content):
                if self.content is None:
                    os.rmdir(self.name, dir_fd=self.place)
                else:
                    os.unlink(self.name, dir_fd=self.place)

    def close(self) -> None:
        os.close(self.descriptor)
        os.close(self.place)


class Placeholders:
    """Removed in reverse order."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._held: list[HeldPlaceholder] = []

    def __enter__(self) -> Placeholders:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._held:
            held = self._held.pop()
            try:
                held.remove()
            finally:
                held.close()

    def may_be_one(self, path: str, content: bytes | None) -> bool:
        """Whether the path could be a placeholder: another server's, or a leftover."""
        try:
            held = self._reach(path, content)
        except OSError:
            return False
        try:
            return _is_plain(held.descriptor, content)
        finally:
            held.close()

    def may_lead_to_one(self, path: str) -> bool:
        """Whether the folder was created as a parent of a placeholder."""
        try:
            held = self._reach(path, None)
        except OSError:
            return False
        try:
            return bool(os.fstat(held.descriptor).st_mode & PLACEHOLDER_BIT)
        finally:
            held.close()

    def hold(self, path: str, content: bytes | None) -> None:
        """Holds a file with this content, or an empty folder (None); creates it if missing."""
        for _ in range(_TRIES):
            try:
                self._make(path, content)
                held = self._reach(path, content)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise WorkspaceError(
                    f"{path} cannot be protected from commands: {error.strerror}.",
                    remedy="Make the folder writable by its owner, or use read-only mode.",
                ) from error
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(held.descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
                if held.is_there():
                    self._held.append(held)
                    return
            held.close()
            # Another process is just removing it.
            time.sleep(0.001)
        raise WorkspaceError(f"{path} is constantly created and removed by other programs.", remedy="Try again.")

    def _make(self, path: str, content: bytes | None) -> None:
        *way, name = path.split("/")
        with open_inside(self._folder, way) as place:
            try:
                if content is None:
                    os.mkdir(name, PLACEHOLDER_BIT | 0o755, dir_fd=place)
                    descriptor = _open(place, name, content)
                else:
                    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                    descriptor = os.open(name, flags, PLACEHOLDER_BIT | 0o644, dir_fd=place)
            except FileExistsError:
                return
            try:
                if content:
                    os.write(descriptor, content)
                # The opened folder may not be the one we created; then its owner must not change.
                if os.geteuid() == 0 and (content is not None or _is_ours(descriptor, content)):
                    os.fchown(descriptor, *self._folder.owner)
            finally:
                os.close(descriptor)

    def _reach(self, path: str, content: bytes | None) -> HeldPlaceholder:
        *way, name = path.split("/")
        with open_inside(self._folder, way) as place:
            descriptor = _open(place, name, content)
            return HeldPlaceholder(place=os.dup(place), name=name, descriptor=descriptor, content=content)


def _open(place: int, name: str, content: bytes | None) -> int:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | (os.O_DIRECTORY if content is None else 0)
    return os.open(name, flags, dir_fd=place)


def _is_plain(descriptor: int, content: bytes | None) -> bool:
    there = os.fstat(descriptor)
    if content is None:
        return stat.S_ISDIR(there.st_mode) and not os.listdir(descriptor)
    return stat.S_ISREG(there.st_mode) and there.st_size == len(content) and os.pread(descriptor, 64, 0) == content


def _is_ours(descriptor: int, content: bytes | None) -> bool:
    return bool(os.fstat(descriptor).st_mode & PLACEHOLDER_BIT) and _is_plain(descriptor, content)


PROTECTED_FOLDERS: tuple[tuple[str, ...], ...] = (
    ("hooks",),
    ("info",),
    ("modules",),
    ("worktrees",),
    ("remotes",),
    ("branches",),
    ("objects", "info"),
)
PROTECTED_FILES: tuple[tuple[tuple[str, ...], bytes], ...] = (
    (("config",), b""),
    (("config.worktree",), b""),
    # git fails with an empty one; this content means "here".
    (("commondir",), b".\n"),
)
PINNED_FOLDERS: tuple[tuple[str, ...], ...] = (("objects",), ("refs",))
"""Writable, but protected from renaming: without them git would treat the folder itself as a repository."""
GIT_OPERATIONS = ("rebase-merge", "rebase-apply", "sequencer")
MAX_INDEX_SIZE = 128 * 1024 * 1024
MAX_SHARED_INDEXES = 100
MAX_SUBMODULE_DEPTH = 32
INDEX_SECONDS = 10.0
"""Time limit for reading all indexes of a repository."""
_KEPT_OF_NAME = 50
"""Characters kept, so that the new name is not too long for the file system."""
_HEAD = re.compile(rb"(ref: refs/[^\0\n]+|[0-9a-f]{40}|[0-9a-f]{64})\n?")


def is_plain_repository(folder: Folder) -> bool:
    """Whether all parts have the type that git gives them. A link among them could be replaced."""
    wanted = [
        *((part, FileKind.FOLDER) for part in PINNED_FOLDERS),
        *((part, FileKind.FOLDER) for part in PROTECTED_FOLDERS),
        *((part, FileKind.FILE) for part, _ in PROTECTED_FILES),
    ]
    found = [(look_at(folder, (GIT, *part)), kind) for part, kind in wanted]
    return all(there is None or there.kind is kind for there, kind in found) and all(
        look_at(folder, (GIT, *part)) is not None for part in PINNED_FOLDERS
    )


def hold_missing(folder: Folder, placeholders: Placeholders) -> list[tuple[str, ...]]:
    """Creates missing parts. Returns all parts to mount over, outer ones first."""
    protected = [*((part, None) for part in PROTECTED_FOLDERS), *PROTECTED_FILES]
    for part, content in protected:
        path = "/".join((GIT, *part))
        if look_at(folder, (GIT, *part)) is None or placeholders.may_be_one(path, content):
            placeholders.hold(path, content)
    return [*PINNED_FOLDERS, *(part for part, _ in protected)]


def git_operations_under_way(folder: Folder) -> list[str]:
    return [name for name in GIT_OPERATIONS if look_at(folder, (GIT, name)) is not None]


def submodule_paths(folder: Folder) -> list[tuple[str, ...]]:
    """Submodule paths in the index of the folder's `.git`. Raises NotAnIndex if it cannot be read."""
    until = time.monotonic() + INDEX_SECONDS
    found: list[tuple[str, ...]] = []
    for name in _indexes(folder):
        try:
            data = _read(folder, f"{GIT}/{name}", MAX_INDEX_SIZE + 1)
            if len(data) > MAX_INDEX_SIZE:
                raise IndexTooLarge("too large")
            paths = [os.fsdecode(path).split("/") for path in submodule_links(data, until)]
        except FileNotFoundError:
            continue
        except (OSError, NotAnIndex) as error:
            raise NotAnIndex(f"{GIT}/{name}: {error}") from error
        # git itself rejects such names.
        found += [tuple(parts) for parts in paths if not {"", ".", "..", GIT} & {part.casefold() for part in parts}]
    if any(len(parts) > MAX_SUBMODULE_DEPTH for parts in found) or len(set(found)) > MAX_SUBMODULES:
        raise IndexTooLarge(f"{GIT}: submodules too many or too deep")
    return list(dict.fromkeys(found))


def _indexes(folder: Folder) -> list[str]:
    try:
        with open_inside(folder, (GIT,)) as place:
            names = [name for name in os.listdir(f"/proc/self/fd/{place}") if name.startswith("sharedindex.")]  # noqa: PTH208
    except (FileNotFoundError, NotADirectoryError):
        return []
    if len(names) > MAX_SHARED_INDEXES:
        raise IndexTooLarge(f"{GIT}: more than {MAX_SHARED_INDEXES} shared indexes")
    return ["index", *names]


@dataclass(frozen=True, kw_only=True)
class RepositoryState:
    """The state of a repository before any command that may commit."""

    head: bytes
    submodules: frozenset[tuple[str, ...]]
    has_index: bool
    """Whether the index could be read."""
    under_way: frozenset[str]

    @classmethod
    def look(cls, folder: Folder) -> RepositoryState:
        head = b""
        with contextlib.suppress(OSError):
            head = _read(folder, f"{GIT}/HEAD", 4096)
        there = _submodules_or_none(folder)
        return cls(
            head=head,
            submodules=frozenset(there or ()),
            has_index=there is not None,
            under_way=frozenset(git_operations_under_way(folder)),
        )

    def repair(self, folder: Folder) -> list[str]:
        """Repairs what could not be protected, once nothing runs. Returns what it did."""
        done: list[str] = []
        _open_parents(folder, (GIT,))
        for name in GIT_OPERATIONS:
            if name not in self.under_way and look_at(folder, (GIT, name)) is not None:
                with contextlib.suppress(OSError):
                    _remove_operation(folder, name)
                    done.append(f"{GIT}/{name} was removed: git would run its commands unsandboxed.")
        there = _submodules_or_none(folder)
        if self.has_index and there is None:
            _quarantine_indexes(folder)
            done.append(f"{GIT}/index, now quarantined.index, could not be read. `git reset` creates a new one.")
        for parts in there or ():
            if parts in self.submodules:
                continue
            with contextlib.suppress(OSError):
                if look_at(folder, (*parts, GIT)) is not None:
                    name = quarantine(folder, (*parts, GIT))
                    done.append(f"{'/'.join((*parts, GIT))} was renamed {name}: git would follow its configuration.")
        if self.head and not self._has_head(folder):
            _restore(folder, "HEAD", self.head)
            done.append(f"{GIT}/HEAD was restored: it was invalid.")
        return done

    def _has_head(self, folder: Folder) -> bool:
        try:
            return bool(_HEAD.fullmatch(_read(folder, f"{GIT}/HEAD", 4096)))
        except OSError:
            return False


def _submodules_or_none(folder: Folder) -> list[tuple[str, ...]] | None:
    try:
        return submodule_paths(folder)
    except (NotAnIndex, PermissionError):
        return None


def _open_parents(folder: Folder, parts: tuple[str, ...]) -> None:
    """Makes folders on the path accessible again, which a command may have closed to prevent repairs."""
    for length in range(1, len(parts) + 1):
        with contextlib.suppress(OSError), open_inside(folder, parts[:length]) as place:
            if not commands_may_enter(folder, place):
                os.chmod(f"/proc/self/fd/{place}", stat.S_IMODE(os.fstat(place).st_mode) | stat.S_IRWXU)  # noqa: PTH101


def quarantine(folder: Folder, parts: tuple[str, ...]) -> str:
    """Renames it so that no program recognises it; returns the new name. Opens folders that a command has closed."""
    name = f"{parts[-1][:_KEPT_OF_NAME]}.quarantined-{os.urandom(4).hex()}"
    _open_parents(folder, parts[:-1])
    with open_inside(folder, parts[:-1]) as place:
        try:
            os.rename(parts[-1], name, src_dir_fd=place, dst_dir_fd=place)
        except PermissionError:
            os.chmod(f"/proc/self/fd/{place}", stat.S_IMODE(os.fstat(place).st_mode) | stat.S_IRWXU)  # noqa: PTH101
            os.rename(parts[-1], name, src_dir_fd=place, dst_dir_fd=place)
    return name


def _quarantine_indexes(folder: Folder) -> None:
    with contextlib.suppress(OSError), open_inside(folder, (GIT,)) as place:
        for name in os.listdir(f"/proc/self/fd/{place}"):  # noqa: PTH208 - by descriptor
            if name == "index" or name.startswith("sharedindex."):
                with contextlib.suppress(OSError):
                    os.rename(name, f"quarantined.{name}", src_dir_fd=place, dst_dir_fd=place)


def _read(folder: Folder, path: str, most: int) -> bytes:
    """Reads a regular file, never through a link."""
    *way, name = path.split("/")
    with open_inside(folder, way) as place:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=place)
    with open(descriptor, "rb") as file:  # noqa: PTH123 - by descriptor
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{path} is not a regular file")
        return file.read(most)


def _remove(folder: Folder, path: str) -> None:
    *way, name = path.split("/")
    with open_inside(folder, way) as place:
        if stat.S_ISDIR(os.stat(name, dir_fd=place, follow_symlinks=False).st_mode):
            shutil.rmtree(name, dir_fd=place)
        else:
            os.unlink(name, dir_fd=place)


def _remove_operation(folder: Folder, name: str) -> None:
    """Hides it from git, then removes as much as possible."""
    renamed = f"quarantined.{name}-{os.urandom(4).hex()}"
    with open_inside(folder, (GIT,)) as place:
        os.rename(name, renamed, src_dir_fd=place, dst_dir_fd=place)
    _open_parents(folder, (GIT, renamed))
    with contextlib.suppress(OSError):
        _remove(folder, f"{GIT}/{renamed}")


def _restore(folder: Folder, name: str, content: bytes) -> None:
    """Restores a file of `.git`."""
    spare = f"{name}.toolcrib"
    with contextlib.suppress(FileNotFoundError):
        _remove(folder, f"{GIT}/{spare}")
    with open_inside(folder, (GIT,)) as place:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(spare, flags, 0o644, dir_fd=place)
        with open(descriptor, "wb") as file:  # noqa: PTH123 - by descriptor
            file.write(content)
            if os.geteuid() == 0:
                os.fchown(descriptor, *folder.owner)
        with contextlib.suppress(IsADirectoryError, NotADirectoryError):
            os.rename(spare, name, src_dir_fd=place, dst_dir_fd=place)
            return
        _remove(folder, f"{GIT}/{name}")
        os.rename(spare, name, src_dir_fd=place, dst_dir_fd=place)
