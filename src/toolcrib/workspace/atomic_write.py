"""Files that change all at once or not at all.

In: a place in the folder and bytes. Out: the file with these bytes, on the disk, or the file as it was. A temporary
file in the same folder takes the other's name when it is complete. All steps go through the descriptor of the folder
it lies in. `tools.files` writes what models write; `open_own_folder` is for files of the server itself.
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
    """What happens to folders on the way that are not there."""

    MADE = enum.auto()
    NEEDED = enum.auto()


class ExistingFile(enum.Enum):
    """What happens to a file that is there already."""

    REPLACED = enum.auto()
    REPLACED_IF_SAME = enum.auto()
    """As it was when it was looked at: nobody else's change is lost."""
    REFUSED = enum.auto()


@dataclass(frozen=True, kw_only=True)
class WriteTarget:
    """Where a file is, or will be."""

    folder: Folder
    asked: FolderPath
    real: FolderPath
    dirfd: int
    before: os.stat_result | None

    def open(self) -> int:
        """What is there, for reading; the very file that `before` describes."""
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
    """The file that may be written there, links resolved; whatever may not is refused."""
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
    there: WriteTarget, data: bytes, *, existing: ExistingFile, after: int | None = None
) -> os.stat_result:
    """The file gets these bytes, or what `after` (a descriptor) holds and then these. Gives what it is then."""
    _check_head(there, data, after)
    name = f".toolcrib-{os.urandom(8).hex()}.tmp"
    try:
        made = os.open(
            name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666, dir_fd=there.dirfd
        )
        try:
            try:
                _set_mode_and_owner(made, there)
                if after is not None:
                    _copy(after, made)
                _write(made, data)
                os.fsync(made)
                _rename(there, name, existing)
                # Its new name counts as a change.
                status = os.fstat(made)
            finally:
                os.close(made)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=there.dirfd)
            raise
        os.fsync(there.dirfd)
    except OSError as error:
        raise explain_os_error(error, there.folder, there.asked) from error
    return status


def open_own_folder(folder: Folder, place: FolderPath) -> int:
    """A folder of the server's own, made if need be. Never through a link, which a project could have laid."""
    here = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder.fd)
    try:
        return _down(folder, here, place.parts)
    except OSError as error:
        raise explain_os_error(error, folder, place) from error


def _parent(folder: Folder, asked: FolderPath, parents: MissingFolders) -> int:
    above = asked.parent
    if parents is MissingFolders.NEEDED:
        return folder.open_dir(above)
    there = above
    while there.parts and not _is_there(folder, there):
        there = there.parent
    here = folder.open_dir(there)
    try:
        missing = above.parts[len(there.parts) :]
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
    """Takes `here` over; gives the last folder."""
    for name in names:
        try:
            made = _make(here, name)
            below = open_child(here, name, os.O_RDONLY | os.O_DIRECTORY)
        finally:
            os.close(here)
        here = below
        # Only an empty one: by now the name may lead to another folder of the project.
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
    """Where a link leads; anything else, and what is not there yet, is at its own place."""
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


def _check_head(there: WriteTarget, data: bytes, after: int | None) -> None:
    """Without a HEAD that git accepts no folder becomes a repository, in whatever order its files are written."""
    if there.folder.repositories or protected_paths.normalized(there.real.name) != protected_paths.normalized(
        protected_paths.HEAD
    ):
        return
    start = os.pread(after, protected_paths.HEAD_BYTES, 0) if after is not None else b""
    if protected_paths.is_head((start + data)[: protected_paths.HEAD_BYTES]):
        raise WorkspaceError(
            f"{there.asked} cannot be written: with this content git would take its folder for a repository, whose "
            "configuration can start programs.",
            remedy="Write other content or another name. A person can allow it: repositories: true in workspace.yml "
            "(a project's file needs `toolcrib trust`).",
            data={"path": str(there.asked)},
        )


def _check_fit(there: WriteTarget, before: os.stat_result) -> None:
    why = why_not_replaceable(before)
    if not why and not os.access(there.real.name, os.W_OK, dir_fd=there.dirfd, effective_ids=True):
        why = "its permissions do not allow it"
    if why:
        raise WorkspaceError(
            f"{there.asked} cannot be written: {why}.", remedy="Write another file.", data={"path": str(there.asked)}
        )


def why_not_replaceable(before: os.stat_result) -> str:
    """Why a file that is there cannot be written; empty if it can."""
    if stat.S_ISLNK(before.st_mode):
        return "it changed meanwhile"
    if not stat.S_ISREG(before.st_mode):
        return f"it is a {file_kind(before.st_mode)}, not a file"
    if before.st_nlink > 1:
        return f"it has {before.st_nlink} names (hard links), of which others may lie outside"
    # Replacing it would work, but whoever made it read-only meant it.
    if not before.st_mode & 0o222:
        return f"it is read-only (mode {stat.S_IMODE(before.st_mode):04o})"
    return ""


def _set_mode_and_owner(made: int, there: WriteTarget) -> None:
    """Mode and owner: those of the file before; root's new files belong to the folder's owner."""
    before = there.before
    if _gives_away(there.folder) or (before is not None and os.geteuid() == 0):
        os.fchown(made, *((before.st_uid, before.st_gid) if before else there.folder.owner))
    if before is not None:
        # Without setuid and setgid, which the system, too, takes away when a file is written.
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


def _rename(there: WriteTarget, name: str, existing: ExistingFile) -> None:
    final = there.real.name
    if existing is ExistingFile.REFUSED:
        os.link(name, final, src_dir_fd=there.dirfd, dst_dir_fd=there.dirfd, follow_symlinks=False)
        os.unlink(name, dir_fd=there.dirfd)
        return
    if existing is ExistingFile.REPLACED_IF_SAME and not _is_same(there):
        raise _changed(there.asked)
    os.rename(name, final, src_dir_fd=there.dirfd, dst_dir_fd=there.dirfd)


def _is_same(there: WriteTarget) -> bool:
    try:
        now = os.stat(there.real.name, dir_fd=there.dirfd, follow_symlinks=False)
    except FileNotFoundError:
        return there.before is None
    return there.before is not None and file_version(now) == file_version(there.before)


def file_version(status: os.stat_result) -> tuple[int, ...]:
    """Another one after any change of the file, also one of equal size whose time was set back."""
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _changed(asked: FolderPath) -> WorkspaceError:
    return WorkspaceError(
        f"{asked} was changed by somebody else meanwhile; nothing was written.", remedy="Read it again."
    )
