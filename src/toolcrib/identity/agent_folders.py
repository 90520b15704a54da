"""A private folder for each agent, with its token and its clients' configuration.

In: an agent's name. Out: `<state>/agents/<name>/`, mode 0700, for as long as the agent exists. Links below the base are
not followed; files have mode 0600 and are written atomically. `registry` creates and removes the folders;
`coding_agents` adds files.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import stat
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from toolcrib.errors import StoreError

_TOKEN = "token"  # noqa: S105 - a file's name
_NEXT = "token.new"
"""A token that replaces the other as soon as its digest is stored."""
_STORE = "store"
"""Identifies the agent's database."""
_ENTER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MAKE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_LARGEST = 64 * 1024


class AgentFolders:
    def __init__(self, base: Path, *, store: str = "") -> None:
        """`store` identifies the database: two databases may share a base without removing each other's folders."""
        self._base = base
        self._store = hashlib.sha256(store.encode()).hexdigest()[:16]

    def of(self, name: str) -> Path:
        """The agent's folder; it is removed with the agent."""
        return self._base / name

    def token_file(self, name: str) -> Path:
        return self.of(name) / _TOKEN

    def make(self, name: str, token: str) -> None:
        """Creates the folder with the token, and replaces any folder that an earlier agent of this name left."""
        with self._entered_base() as base:
            if self._is_anothers(name, base):
                raise StoreError(
                    f"Another of your databases already has an agent {name}.", remedy="Choose another name."
                )
            _remove(name, base)
            os.mkdir(name, 0o700, dir_fd=base)
            try:
                with _entered(name, base) as folder:
                    _write(_STORE, self._store, folder)
                    _write(_TOKEN, token, folder)
                os.fsync(base)
            except OSError:
                _remove(name, base)
                raise

    def stage(self, name: str, token: str) -> None:
        """Stores a new token beside the old one, durably."""
        with self._entered_base() as base:
            if not _is_there(name, base):
                os.mkdir(name, 0o700, dir_fd=base)
            with _entered(name, base) as folder:
                _write(_NEXT, token, folder)

    def settle(self, name: str, is_current: Callable[[str], bool]) -> None:
        """Makes a staged token the agent's token if it is current; otherwise deletes it."""
        with self._entered_base() as base:
            if not _is_there(name, base):
                return
            with _entered(name, base) as folder:
                try:
                    staged = _read(_NEXT, folder)
                except FileNotFoundError:
                    return
                if is_current(staged):
                    os.replace(_NEXT, _TOKEN, src_dir_fd=folder, dst_dir_fd=folder)
                else:
                    os.unlink(_NEXT, dir_fd=folder)
                os.fsync(folder)

    def put(self, name: str, file: str, text: str) -> Path:
        """Writes a private file beside the token."""
        with self._entered_base() as base, _entered(name, base) as folder:
            _write(file, text, folder)
        return self.of(name) / file

    def link(self, name: str, file: str, place: Path) -> None:
        """Links to a client's file elsewhere. The link is removed with the agent, its target is not."""
        with self._entered_base() as base, _entered(name, base) as folder:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(file, dir_fd=folder)
            os.symlink(place, file, dir_fd=folder)

    def get(self, name: str, file: str = _TOKEN) -> str | None:
        """The content of one of the agent's files; None if the file or the agent does not exist."""
        with self._entered_base() as base:
            try:
                with _entered(name, base) as folder:
                    return _read(file, folder)
            except FileNotFoundError:
                return None

    def remove(self, name: str) -> None:
        with self._entered_base() as base:
            _remove(name, base)

    def sweep(self, keep: Collection[str]) -> tuple[str, ...]:
        """Removes the folders of agents that no longer exist, and returns their names."""
        with self._entered_base() as base:
            with os.scandir(base) as found:
                strays = [e.name for e in found if e.name not in keep and (e.is_symlink() or e.is_dir())]
            strays = [name for name in strays if not self._is_anothers(name, base)]
            for name in strays:
                _remove(name, base)
        return tuple(sorted(strays))

    def _is_anothers(self, name: str, base: int) -> bool:
        try:
            with _entered(name, base) as folder:
                return _read(_STORE, folder) != self._store
        except OSError:
            # Half created, or a link: it belongs to no database.
            return False

    @contextlib.contextmanager
    def _entered_base(self) -> Iterator[int]:
        try:
            self._base.mkdir(mode=0o700, parents=True, exist_ok=True)
            with _entered(str(self._base), None) as base:
                yield base
        except OSError as error:
            where = self._base if error.filename is None else self._base / str(error.filename)
            raise StoreError(
                f"{where} cannot be used for an agent's files: {error.strerror or error}.",
                remedy="It must be your own folder, not a link, on a disk with free space.",
            ) from error


@contextlib.contextmanager
def _entered(name: str, within: int | None) -> Iterator[int]:
    if within is not None and (os.sep in name or name in (".", "..")):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
    folder = os.open(name, _ENTER, dir_fd=within)
    try:
        if os.fstat(folder).st_mode & 0o077:
            os.fchmod(folder, 0o700)
        yield folder
    finally:
        os.close(folder)


def _is_there(name: str, base: int) -> bool:
    try:
        os.stat(name, dir_fd=base, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _write(name: str, text: str, folder: int) -> None:
    part = f".{name}.part"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(part, dir_fd=folder)
    with os.fdopen(os.open(part, _MAKE, 0o600, dir_fd=folder), "w") as stream:
        stream.write(text + "\n")
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(part, name, src_dir_fd=folder, dst_dir_fd=folder)
    os.fsync(folder)


def _read(name: str, folder: int) -> str:
    with os.fdopen(os.open(name, _READ, dir_fd=folder), errors="replace") as stream:
        return stream.read(_LARGEST).strip()


def _remove(name: str, base: int) -> None:
    try:
        found = os.stat(name, dir_fd=base, follow_symlinks=False)
    except FileNotFoundError:
        return
    if stat.S_ISDIR(found.st_mode):
        shutil.rmtree(name, dir_fd=base)
    else:
        # A link instead of a folder: remove only the link, never its target.
        os.unlink(name, dir_fd=base)
