"""Empty things that stand where something dangerous could be made, while a command runs.

In: the folder, and names that are not there. Out: they are there, and gone again afterwards. What is mounted over
cannot be made, replaced or renamed; but only what exists can be mounted over.

Several commands of several servers may need the same one: each holds a shared lock on it, and the last removes it.
A server that is killed leaves an empty folder or file behind; the next command takes it over and removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time
from types import TracebackType

from toolcrib.errors import WorkspaceError
from toolcrib.workspace.confined.folder import Folder

MARK = stat.S_ISVTX
"""A bit of the mode that means nothing here. What a person has made empty lacks it and is never removed."""
_TRIES = 200


class Placeholders:
    """Made in order, removed in the opposite one."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._held: list[tuple[str, int, bytes | None]] = []

    def __enter__(self) -> Placeholders:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._held:
            path, descriptor, content = self._held.pop()
            try:
                self._remove(path, descriptor, content)
            finally:
                os.close(descriptor)

    def hold_folder(self, path: str) -> None:
        """An empty folder, made if it is not there."""
        self._hold(path, None)

    def hold_file(self, path: str, content: bytes = b"") -> None:
        self._hold(path, content)

    def may_be_one(self, path: str, content: bytes | None) -> bool:
        """Whether what is there could be a placeholder: another server's, or one that was left."""
        try:
            descriptor = self._open(path, content)
        except OSError:
            return False
        try:
            return _is_plain(descriptor, content)
        finally:
            os.close(descriptor)

    def _hold(self, path: str, content: bytes | None) -> None:
        for _ in range(_TRIES):
            try:
                self._make(path, content)
                descriptor = self._open(path, content)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise WorkspaceError(
                    f"{path} cannot be kept from being made by commands: {error.strerror}.",
                    remedy="Make the folder writable for its owner, or use read-only mode.",
                ) from error
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
                if self._is_there(path, descriptor):
                    self._held.append((path, descriptor, content))
                    return
            os.close(descriptor)
            # Somebody is just removing it.
            time.sleep(0.001)
        raise WorkspaceError(f"{path} is made and removed by others all the time.", remedy="Try again.")

    def _make(self, path: str, content: bytes | None) -> None:
        try:
            if content is None:
                os.mkdir(path, MARK | 0o755, dir_fd=self._folder.fd)
            else:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
                descriptor = os.open(path, flags, MARK | 0o644, dir_fd=self._folder.fd)
                try:
                    os.write(descriptor, content)
                finally:
                    os.close(descriptor)
        except FileExistsError:
            return
        if os.geteuid() == 0:
            os.chown(path, *self._folder.owner, dir_fd=self._folder.fd, follow_symlinks=False)

    def _open(self, path: str, content: bytes | None) -> int:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | (os.O_DIRECTORY if content is None else 0)
        return os.open(path, flags, dir_fd=self._folder.fd)

    def _is_there(self, path: str, descriptor: int) -> bool:
        try:
            there = os.stat(path, dir_fd=self._folder.fd, follow_symlinks=False)
        except OSError:
            return False
        return os.path.samestat(there, os.fstat(descriptor))

    def _remove(self, path: str, descriptor: int, content: bytes | None) -> None:
        """Only by the last who holds it, and only if it is still what was made."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        with contextlib.suppress(OSError):
            if self._is_there(path, descriptor) and _is_ours(descriptor, content):
                if content is None:
                    os.rmdir(path, dir_fd=self._folder.fd)
                else:
                    os.unlink(path, dir_fd=self._folder.fd)


def _is_plain(descriptor: int, content: bytes | None) -> bool:
    there = os.fstat(descriptor)
    if content is None:
        return stat.S_ISDIR(there.st_mode) and not os.listdir(descriptor)
    return stat.S_ISREG(there.st_mode) and there.st_size == len(content) and os.pread(descriptor, 64, 0) == content


def _is_ours(descriptor: int, content: bytes | None) -> bool:
    return bool(os.fstat(descriptor).st_mode & MARK) and _is_plain(descriptor, content)
