"""The user's secrets and accounts at rest.

In: a kind, a name and a value. Out: the value, until it is deleted. Each entry is a file of its own, encrypted with one
key. In a file beside the entries, the key protects a copy of a single entry, and no more; in the system's keyring, also
a copy of the whole folder. Neighbours: `config` expands `${NAME}` with secrets, `servers.account` keeps sign-ins.
"""

from __future__ import annotations

import contextlib
import enum
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from toolcrib.config.paths import Paths, private_folder, unusable_path
from toolcrib.credentials.keys import KeyStore, VaultKeys, replace_file, sync_folder
from toolcrib.credentials.sealing import seal, unseal
from toolcrib.errors import AlreadyRunning, StoreError


class CredentialKind(enum.StrEnum):
    SECRET = "secret"  # noqa: S105 - a kind
    """A value for `${NAME}` in the configuration."""
    ACCOUNT = "account"
    """A sign-in at a server."""


@dataclass(frozen=True, kw_only=True)
class _Entry:
    name: str
    value: bytes = field(repr=False)


class Vault:
    """Safe to use from several threads and processes. Its methods read and write the disk."""

    def __init__(self, paths: Paths) -> None:
        self.paths = paths
        self._folder = paths.credentials
        self._keys = VaultKeys(self._folder)

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
            with self._key_stays():
                replace_file(file, seal(plain, self._keys.newest(), _binding(file)))
            # The key and the folders may be new too; an entry without its key would be lost.
            for folder in (file.parent, self._folder, self._folder.parent):
                sync_folder(folder)
        except OSError as error:
            raise unusable_path(error, file) from error

    def delete(self, kind: CredentialKind, name: str) -> bool:
        """Returns whether there was such an entry. It is gone for good when this returns."""
        file = self._file(kind, name)
        try:
            with self._key_stays():
                file.unlink()
            sync_folder(file.parent)
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

    def key_store(self) -> KeyStore:
        """Where the key is. Raises `StoreError` if that cannot be read."""
        return self._keys.store()

    def migrate(self, store: KeyStore, *, bus: str = "") -> int:
        """Makes a new key in this store, and encrypts every entry again. Returns the number of entries.

        `bus` is the address of the caller's session, where the keyring may be. If the process ends before, every
        entry stays readable, and the next migration completes this one first. Raises `AlreadyRunning` during a sign-in.
        """
        try:
            private_folder(self._folder)
            with self._locked(fcntl.LOCK_EX), self._without_sign_ins():
                for left in self._folder.glob("**/.*"):
                    # Of a process that was killed; nobody else writes here now.
                    left.unlink()
                if self._keys.unfinished:
                    self._encrypt_again()
                for file in self._files():
                    # Without its key, nothing is encrypted again: the key may come back.
                    self._plain(file, file.read_bytes())
                self._keys.begin(store, bus=bus)
                return self._encrypt_again()
        except OSError as error:
            raise unusable_path(error, self._folder) from error

    def _encrypt_again(self) -> int:
        """Entries that no key can decrypt stay as they are."""
        count = 0
        for file in self._files():
            if (plain := self._plain(file, file.read_bytes())) is not None:
                replace_file(file, seal(plain, self._keys.newest(), _binding(file)))
                sync_folder(file.parent)
                count += 1
        self._keys.finish()
        return count

    def _files(self) -> list[Path]:
        return sorted(file for kind in CredentialKind for file in self.folder(kind).glob("[!.]*"))

    def _key_stays(self) -> contextlib.AbstractContextManager[None]:
        """Until the block ends, no migration begins."""
        return self._locked(fcntl.LOCK_SH)

    @contextlib.contextmanager
    def _locked(self, operation: int) -> Iterator[None]:
        descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, operation)
            yield
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def _without_sign_ins(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for place in sorted((self._folder / "locks").glob("*")):
                descriptor = os.open(place, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
                stack.callback(os.close, descriptor)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise AlreadyRunning(
                        "A sign-in at a server, or its renewal, is in progress.", remedy="Try again when it has ended."
                    ) from None
            yield

    def _file(self, kind: CredentialKind, name: str) -> Path:
        return self._folder / kind / hashlib.sha256(f"{kind}\0{name}".encode()).hexdigest()[:32]

    def _read(self, file: Path) -> _Entry | None:
        try:
            return self._read_once(file)
        except StoreError as error:
            try:
                # A migration may have removed the key meanwhile.
                with self._key_stays():
                    return self._read_once(file)
            except OSError:
                raise error from None

    def _read_once(self, file: Path) -> _Entry | None:
        try:
            sealed = file.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise unusable_path(error, file) from error
        # Somebody who can change the folder can put a key and entries of their own there.
        private_folder(self._folder)
        plain = self._plain(file, sealed)
        if plain is None:
            raise StoreError(
                f"{file} cannot be decrypted with its key.",
                remedy="Restore the folder from a backup, or delete this file and enter the value again.",
            )
        head, _, value = plain.partition(b"\n")
        return _Entry(name=json.loads(head)["name"], value=value)

    def _plain(self, file: Path, sealed: bytes) -> bytes | None:
        """None if no key decrypts it. Raises `StoreError` if one that might cannot be read."""
        keys = tuple(self._keys.readable()) or (self._keys.missing(),)
        for key in keys:
            if isinstance(key, bytes) and (plain := unseal(sealed, key, _binding(file))) is not None:
                return bytes(plain)
        for failure in keys:
            if isinstance(failure, StoreError):
                raise failure
        return None


def _binding(file: Path) -> bytes:
    """An entry's file is of no use under another name or to another user."""
    return f"{file.parent.name}/{file.name}/{os.geteuid()}".encode()
