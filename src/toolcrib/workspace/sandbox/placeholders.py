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
from dataclasses import dataclass
from types import TracebackType

from toolcrib.errors import WorkspaceError
from toolcrib.workspace.confined.folder import Folder
from toolcrib.workspace.sandbox.steps import inside

MARK = stat.S_ISVTX
"""A bit of the mode that means nothing here. What a person has made empty lacks it and is never removed."""
_TRIES = 200


@dataclass(frozen=True, kw_only=True)
class Held:
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
        """Only by the last who holds it, and only if it is still what was made."""
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
    """Made in order, removed in the opposite one."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._held: list[Held] = []

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

    def hold_folder(self, path: str) -> None:
        """An empty folder, made if it is not there."""
        self._hold(path, None)

    def hold_file(self, path: str, content: bytes = b"") -> None:
        self._hold(path, content)

    def may_be_one(self, path: str, content: bytes | None) -> bool:
        """Whether what is there could be a placeholder: another server's, or one that was left."""
        try:
            held = self._reach(path, content)
        except OSError:
            return False
        try:
            return _is_plain(held.descriptor, content)
        finally:
            held.close()

    def may_lead_to_one(self, path: str) -> bool:
        """Whether the folder there was made on the way to a placeholder."""
        try:
            held = self._reach(path, None)
        except OSError:
            return False
        try:
            return bool(os.fstat(held.descriptor).st_mode & MARK)
        finally:
            held.close()

    def _hold(self, path: str, content: bytes | None) -> None:
        for _ in range(_TRIES):
            try:
                self._make(path, content)
                held = self._reach(path, content)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise WorkspaceError(
                    f"{path} cannot be kept from being made by commands: {error.strerror}.",
                    remedy="Make the folder writable for its owner, or use read-only mode.",
                ) from error
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(held.descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
                if held.is_there():
                    self._held.append(held)
                    return
            held.close()
            # Somebody is just removing it.
            time.sleep(0.001)
        raise WorkspaceError(f"{path} is made and removed by others all the time.", remedy="Try again.")

    def _make(self, path: str, content: bytes | None) -> None:
        *way, name = path.split("/")
        with inside(self._folder, way) as place:
            try:
                if content is None:
                    os.mkdir(name, MARK | 0o755, dir_fd=place)
                    descriptor = _open(place, name, content)
                else:
                    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                    descriptor = os.open(name, flags, MARK | 0o644, dir_fd=place)
            except FileExistsError:
                return
            try:
                if content:
                    os.write(descriptor, content)
                # A folder that was opened may no longer be the one that was made: then it is not ours to give away.
                if os.geteuid() == 0 and (content is not None or _is_ours(descriptor, content)):
                    os.fchown(descriptor, *self._folder.owner)
            finally:
                os.close(descriptor)

    def _reach(self, path: str, content: bytes | None) -> Held:
        *way, name = path.split("/")
        with inside(self._folder, way) as place:
            descriptor = _open(place, name, content)
            return Held(place=os.dup(place), name=name, descriptor=descriptor, content=content)


def _open(place: int, name: str, content: bytes | None) -> int:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | (os.O_DIRECTORY if content is None else 0)
    return os.open(name, flags, dir_fd=place)


def _is_plain(descriptor: int, content: bytes | None) -> bool:
    there = os.fstat(descriptor)
    if content is None:
        return stat.S_ISDIR(there.st_mode) and not os.listdir(descriptor)
    return stat.S_ISREG(there.st_mode) and there.st_size == len(content) and os.pread(descriptor, 64, 0) == content


def _is_ours(descriptor: int, content: bytes | None) -> bool:
    return bool(os.fstat(descriptor).st_mode & MARK) and _is_plain(descriptor, content)
