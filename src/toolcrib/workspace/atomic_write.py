"""Atomic writes: a file changes completely or not at all.

In: a path in the folder and bytes. Out: the file with these bytes, synced to disk, or the file as it was. A complete
temporary file in the same folder is renamed over the target. Every step goes through the descriptor of the parent
folder. `tools.files` writes for models; `open_own_folder` is for the server's own files.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass

from toolcrib.errors import WorkspaceError
from toolcrib.workspace import protected_paths
from toolcrib.workspace.confined_open import FinalLink, explain_os_error, file_kind, open_beneath, open_child
from toolcrib.workspace.folder import Folder, FolderPath


class MissingFolders(enum.Enum):
    """What to do about missing parent folders."""

    MADE = enum.auto()
    NEEDED = enum.auto()


class ExistingFile(enum.Enum):
    """What to do about a file that already exists."""

    REPLACED = enum.auto()
    REPLACED_IF_SAME = enum.auto()
    """Only if it is unchanged since it was examined, so that no other change is lost."""
    REFUSED = enum.auto()


@dataclass(frozen=True, kw_only=True)
class WriteTarget:
    """The path of a file to write, whether it exists yet or not."""

    folder: Folder
    asked: FolderPath
    real: FolderPath
    dirfd: int
    before: os.stat_result | None

    def open(self) -> int:
        """Opens the existing file for reading: exactly the one that `before` describes."""
        if self.before is None:
            raise explain_os_error(OSError(errno.ENOENT, ""), self.folder, self.asked)
        try:
            descriptor = open_child(self.dirfd, self.real.name, os.O_RDONLY)
        except OSError as error:
            raise explain_os_error(error, self.folder, self.asked) from error
        if not os.path.samestat(os.fstat(descriptor), self.before):
            os.close(descriptor)
            raise _changed(self.asked)
        return descriptor

    def read(self, most: int) -> bytes:
        with os.fdopen(self.open(), "rb") as stream:
            return stream.read(most)


@contextlib.contextmanager
def open_target(folder: Folder, asked: FolderPath, parents: MissingFolders) -> Iterator[WriteTarget]:
    """Resolves links and checks that the file may be written."""
    _check_writable(folder, asked, asked)
    if not asked.parts:
        raise WorkspaceError("The workspace itself is a folder.", remedy="Name a file in it.")
    place = _resolved(folder, asked)
    dirfd = _parent(folder, place, parents)
    try:
        found = _target(folder, asked, dirfd, place.name)
        _check_writable(folder, found.real, asked)
        if found.before is not None:
            _check_fit(found, found.before)
        yield found
    finally:
        os.close(dirfd)


def write_atomically(
    target: WriteTarget, data: bytes, *, existing: ExistingFile, after: int | None = None
) -> os.stat_result:
    """Writes `data`, or the content of the descriptor `after` followed by `data`. Returns the file's new status."""
    _check_head(target, data, after)
    name = f".toolcrib-{os.urandom(8).hex()}.tmp"
    try:
        made = os.open(
            name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666, dir_fd=target.dirfd
        )
        try:
            try:
                _set_mode_and_owner(made, target)
                if after is not None:
                    _copy(after, made)
                _write(made, data)
                os.fsync(made)
                _rename(target, name, existing)
                # After the rename, which changes ctime.
                status = os.fstat(made)
            finally:
                os.close(made)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=target.dirfd)
            raise
        os.fsync(target.dirfd)
    except OSError as error:
        raise explain_os_error(error, target.folder, target.asked) from error
    return status


def open_own_folder(folder: Folder, place: FolderPath) -> int:
    """Opens one of the server's own folders and creates it if needed. Never follows a link: a project could have
    planted it."""
    here = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder.fd)
    try:
        return _down(folder, here, place.parts)
    except OSError as error:
        raise explain_os_error(error, folder, place) from error


def _parent(folder: Folder, asked: FolderPath, parents: MissingFolders) -> int:
    above = asked.parent
    if parents is MissingFolders.NEEDED:
        return folder.open_dir(above)
    existing = above
    while existing.parts and not _is_there(folder, existing):
        existing = existing.parent
    here = folder.open_dir(existing)
    try:
        missing = above.parts[len(existing.parts) :]
        real = folder.real_path(here)
        _check_writable(folder, FolderPath((*real.parts, *missing, asked.name)), asked)
    except BaseException:
        os.close(here)
        raise
    try:
        return _down(folder, here, missing)
    except OSError as error:
        raise explain_os_error(error, folder, asked) from error


def _is_there(folder: Folder, place: FolderPath) -> bool:
    try:
        os.close(open_beneath(folder.fd, place.parts))
    except FileNotFoundError:
        return False
    except OSError as error:
        raise explain_os_error(error, folder, place) from error
    return True


def _down(folder: Folder, here: int, names: tuple[str, ...]) -> int:
    """Closes `here` and returns the descriptor of the last folder."""
    for name in names:
        try:
            made = _make(here, name)
            below = open_child(here, name, os.O_RDONLY | os.O_DIRECTORY)
        finally:
            os.close(here)
        here = below
        # Only if empty: by now the name may lead to another folder of the project.
        if made and _gives_away(folder) and not os.listdir(here):  # noqa: PTH208
            os.fchown(here, *folder.owner)
    return here


def _make(here: int, name: str) -> bool:
    try:
        os.mkdir(name, dir_fd=here)
    except FileExistsError:
        return False
    os.fsync(here)
    return True


def _resolved(folder: Folder, asked: FolderPath) -> FolderPath:
    """The target of a link; any other path, existing or not, unchanged."""
    try:
        found = open_beneath(folder.fd, asked.parts, FinalLink.LINK)
    except FileNotFoundError:
        return asked
    except OSError as error:
        raise explain_os_error(error, folder, asked) from error
    try:
        is_link = stat.S_ISLNK(os.fstat(found).st_mode)
    finally:
        os.close(found)
    if not is_link:
        return asked
    with folder.opened(asked) as (_, real):
        return real


def _target(folder: Folder, asked: FolderPath, dirfd: int, name: str) -> WriteTarget:
    try:
        real = folder.real_path(dirfd) / name
        before = os.stat(name, dir_fd=dirfd, follow_symlinks=False)
    except FileNotFoundError:
        before = None
    except OSError as error:
        raise explain_os_error(error, folder, asked) from error
    return WriteTarget(folder=folder, asked=asked, real=real, dirfd=dirfd, before=before)


def _check_writable(folder: Folder, real: FolderPath, asked: FolderPath) -> None:
    if why := folder.why_not_writable(real):
        raise WorkspaceError(f"{asked} cannot be written: {why}.", remedy="Write elsewhere.", data={"path": str(asked)})


def _check_head(target: WriteTarget, data: bytes, after: int | None) -> None:
    """Refuses a HEAD that git would accept: without one, a folder cannot become a repository."""
    if target.folder.repositories or protected_paths.normalized(target.real.name) != protected_paths.normalized(
        protected_paths.HEAD
    ):
        return
    start = os.pread(after, protected_paths.HEAD_BYTES, 0) if after is not None else b""
    if protected_paths.is_head((start + data)[: protected_paths.HEAD_BYTES]):
        raise WorkspaceError(
            f"{target.asked} cannot be written: with this content git would treat its folder as a repository, whose "
            "configuration can start programs.",
            remedy="Write other content or another name. The user can allow it: repositories: true in workspace.yml "
            "(a project's file needs `toolcrib trust`).",
            data={"path": str(target.asked)},
        )


def _check_fit(target: WriteTarget, before: os.stat_result) -> None:
    why = why_not_replaceable(before)
    if not why and not os.access(target.real.name, os.W_OK, dir_fd=target.dirfd, effective_ids=True):
        why = "its permissions do not allow it"
    if why:
        raise WorkspaceError(
            f"{target.asked} cannot be written: {why}.", remedy="Use another file.", data={"path": str(target.asked)}
        )


def why_not_replaceable(before: os.stat_result) -> str:
    """Why an existing file cannot be replaced; empty if it can."""
    if stat.S_ISLNK(before.st_mode):
        return "it changed in the meantime"
    if not stat.S_ISREG(before.st_mode):
        return f"it is a {file_kind(before.st_mode)}, not a file"
    if before.st_nlink > 1:
        return f"it has {before.st_nlink} hard links, perhaps outside the folder"
    # Replacing it would work, but it is read-only on purpose.
    if not before.st_mode & 0o222:
        return f"it is read-only (mode {stat.S_IMODE(before.st_mode):04o})"
    return ""


def _set_mode_and_owner(made: int, target: WriteTarget) -> None:
    """Keeps mode and owner of the old file; files that root creates belong to the folder's owner."""
    before = target.before
    if _gives_away(target.folder) or (before is not None and os.geteuid() == 0):
        os.fchown(made, *((before.st_uid, before.st_gid) if before else target.folder.owner))
    if before is not None:
        # Without setuid and setgid, which the kernel also clears on a write.
        os.fchmod(made, before.st_mode & 0o777)


def _gives_away(folder: Folder) -> bool:
    return os.geteuid() == 0 and folder.owner != (0, 0)


def _copy(source: int, to: int) -> None:
    offset, left = 0, os.fstat(source).st_size
    while left > 0 and (count := os.sendfile(to, source, offset, left)):
        offset, left = offset + count, left - count


def _write(to: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(to, left) :]


def _rename(target: WriteTarget, name: str, existing: ExistingFile) -> None:
    final = target.real.name
    if existing is ExistingFile.REFUSED:
        os.link(name, final, src_dir_fd=target.dirfd, dst_dir_fd=target.dirfd, follow_symlinks=False)
        os.unlink(name, dir_fd=target.dirfd)
        return
    if existing is ExistingFile.REPLACED_IF_SAME and not _is_same(target):
        raise _changed(target.asked)
    os.rename(name, final, src_dir_fd=target.dirfd, dst_dir_fd=target.dirfd)


def _is_same(target: WriteTarget) -> bool:
    try:
        now = os.stat(target.real.name, dir_fd=target.dirfd, follow_symlinks=False)
    except FileNotFoundError:
        return target.before is None
    return target.before is not None and file_version(now) == file_version(target.before)


def file_version(status: os.stat_result) -> tuple[int, ...]:
    """Differs after any change, even one that keeps the size and resets the modification time."""
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _changed(asked: FolderPath) -> WorkspaceError:
    return WorkspaceError(f"{asked} changed in the meantime; nothing was written.", remedy="Read it again.")
