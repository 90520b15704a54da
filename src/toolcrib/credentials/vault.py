"""The user's secrets and accounts at rest.

In: a kind, a name and a value. Out: the value, until it is deleted. Each entry is a file of its own, encrypted with a
key in the same folder: that protects a copy of a single file, and no more. Neighbours: `config` expands `${NAME}` with
secrets, `servers.account` keeps sign-ins.
"""

from __future__ import annotations

import contextlib
import enum
import fcntl
import hashlib
import json
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from toolcrib.config.paths import Paths, private_folder, unusable_path
from toolcrib.errors import StoreError

_KEY_BYTES = 32
_RESTORE = "Restore {} from a backup, or remove it with everything beside it and enter the values again."


class CredentialKind(enum.StrEnum):
    SECRET = "secret"  # noqa: S105 - a kind
    """A value for `${NAME}` in the configuration."""
    ACCOUNT = "account"
    """A sign-in at a server."""


@dataclass(frozen=True, kw_only=True)
class _Entry:
    name: str
    value: bytes


class Vault:
    """Safe to use from several threads and processes. Its methods read and write the disk."""

    def __init__(self, paths: Paths) -> None:
        self.paths = paths
        self._folder = paths.credentials

    def get(self, kind: CredentialKind, name: str) -> bytes | None:
        """None if there is no such entry. Raises `StoreError` if it cannot be read."""
        entry = self._read(self._file(kind, name))
        return None if entry is None else entry.value

    def secret(self, name: str) -> str | None:
        """A secret's text."""
        value = self.get(CredentialKind.SECRET, name)
        return None if value is None else value.decode()

    def put(self, kind: CredentialKind, name: str, value: bytes) -> None:
        """The entry is stored durably when this returns."""
        file = self._file(kind, name)
        plain = json.dumps({"name": name}).encode() + b"\n" + value
        try:
            private_folder(self._folder)
            private_folder(file.parent)
            _replace(file, _sealing().seal(plain, self._made_key(), _binding(file)))
            # The key and the folders may be new too; an entry without its key would be lost.
            for folder in (file.parent, self._folder, self._folder.parent):
                _sync(folder)
        except OSError as error:
            raise unusable_path(error, file) from error

    def delete(self, kind: CredentialKind, name: str) -> bool:
        """Returns whether there was such an entry. It is gone for good when this returns."""
        file = self._file(kind, name)
        try:
            file.unlink()
            _sync(file.parent)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise unusable_path(error, file) from error
        return True

    def names(self, kind: CredentialKind) -> tuple[str, ...]:
        """The entries that can be read; `damaged` has the others."""
        return tuple(sorted(one.name for one in self._all(kind).values() if isinstance(one, _Entry)))

    def damaged(self, kind: CredentialKind) -> dict[Path, str]:
        """The files of entries that cannot be read, and why. Their names are unknown."""
        return {file: one.message for file, one in self._all(kind).items() if isinstance(one, StoreError)}

    def _all(self, kind: CredentialKind) -> dict[Path, _Entry | StoreError]:
        try:
            files = sorted((self._folder / kind).iterdir())
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise unusable_path(error, self._folder) from error
        found: dict[Path, _Entry | StoreError] = {}
        for file in files:
            if not file.name.startswith("."):
                try:
                    entry = self._read(file)
                except StoreError as error:
                    found[file] = error
                else:
                    found |= {} if entry is None else {file: entry}
        return found

    def folder(self, kind: CredentialKind) -> Path:
        """Its modification time changes with every entry that is stored or deleted."""
        return self._folder / kind

    @contextlib.contextmanager
    def lock(self, kind: CredentialKind, name: str, *, wait: bool = True) -> Iterator[int]:
        """Yields the lock's descriptor. A child process that inherits it keeps the lock if this process is killed.

        Raises `BlockingIOError` if another holds it and `wait` is false.
        """
        place = self._folder / "locks" / self._file(kind, name).name
        private_folder(self._folder)
        private_folder(place.parent)
        try:
            descriptor = os.open(place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise unusable_path(error, place) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield descriptor
        finally:
            # Not unlocked: a child that inherited the descriptor holds the lock until it ends.
            os.close(descriptor)

    def _file(self, kind: CredentialKind, name: str) -> Path:
        return self._folder / kind / hashlib.sha256(f"{kind}\0{name}".encode()).hexdigest()[:32]

    def _read(self, file: Path) -> _Entry | None:
        try:
            sealed = file.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise unusable_path(error, file) from error
        # Somebody who can change the folder can put a key and entries of their own there.
        private_folder(self._folder)
        key = self._key()
        if key is None:
            raise StoreError(f"{self._folder / 'key'} is missing.", remedy=_RESTORE.format(self._folder / "key"))
        plain = _sealing().unseal(sealed, key, _binding(file))
        if plain is None:
            raise StoreError(
                f"{file} cannot be decrypted with the key beside it.",
                remedy="Restore the folder from a backup, or delete this file and enter the value again.",
            )
        head, _, value = plain.partition(b"\n")
        return _Entry(name=json.loads(head)["name"], value=value)

    def _key(self) -> bytes | None:
        place = self._folder / "key"
        try:
            key, mode = place.read_bytes(), stat.S_IMODE(place.stat().st_mode)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise unusable_path(error, place) from error
        if mode & 0o077:
            raise StoreError(
                f"{place} can be read by others (mode {mode:o}).",
                remedy=f"Run `chmod 600 {place}`. If others use this machine, replace your secrets.",
            )
        if len(key) != _KEY_BYTES:
            raise StoreError(f"{place} is damaged.", remedy=_RESTORE.format(place))
        return key

    def _made_key(self) -> bytes:
        """Created at first use; the first of several processes wins."""
        while (key := self._key()) is None:
            made = self._folder / f".key-{secrets.token_hex(8)}"
            try:
                _replace(made, secrets.token_bytes(_KEY_BYTES))
                with contextlib.suppress(FileExistsError):
                    os.link(made, self._folder / "key")
            finally:
                made.unlink(missing_ok=True)
        return key


def _sealing() -> ModuleType:
    from toolcrib.credentials import sealing  # noqa: PLC0415 - loads OpenSSL

    return sealing


def _binding(file: Path) -> bytes:
    """An entry's file is of no use under another name or to another user."""
    return f"{file.parent.name}/{file.name}/{os.geteuid()}".encode()


def _replace(file: Path, content: bytes) -> None:
    """The content is durable on return; the file's name, when its folder is synced."""
    descriptor, temporary = tempfile.mkstemp(prefix=".", dir=file.parent)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        Path(temporary).replace(file)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
