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
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from toolcrib.config.paths import Paths, private_folder, unusable_path
from toolcrib.errors import StoreError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_KEY_BYTES = 32
_NONCE_BYTES = 12


class CredentialKind(enum.StrEnum):
    SECRET = "secret"  # noqa: S105 - a kind
    """A value for `${NAME}` in the configuration."""
    ACCOUNT = "account"
    """A sign-in at a server."""


class Vault:
    def __init__(self, paths: Paths) -> None:
        self._folder = paths.credentials

    def get(self, kind: CredentialKind, name: str) -> bytes | None:
        """None if there is no such entry. Raises `StoreError` if it cannot be read."""
        held = self._read(self._file(kind, name))
        return None if held is None else held[1]

    def put(self, kind: CredentialKind, name: str, value: bytes) -> None:
        """The entry is stored durably when this returns."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        plain = json.dumps({"name": name}).encode() + b"\n" + value
        sealed = nonce + self._cipher().encrypt(nonce, plain, _binding(self._file(kind, name)))
        self._write(self._file(kind, name), sealed)

    def delete(self, kind: CredentialKind, name: str) -> bool:
        """Returns whether there was such an entry."""
        try:
            self._file(kind, name).unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise unusable_path(error, self._folder) from error
        return True

    def names(self, kind: CredentialKind) -> tuple[str, ...]:
        try:
            files = sorted((self._folder / kind).iterdir())
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise unusable_path(error, self._folder) from error
        held = (self._read(file) for file in files if not file.name.startswith("."))
        return tuple(sorted(one[0] for one in held if one is not None))

    @contextlib.contextmanager
    def lock(self, kind: CredentialKind, name: str, *, wait: bool = True) -> Iterator[int]:
        """Yields the lock's descriptor. A child process that inherits it keeps the lock if this process is killed.

        Raises `BlockingIOError` if another holds it and `wait` is false.
        """
        place = self._folder / "locks" / self._file(kind, name).name
        private_folder(self._folder)
        private_folder(place.parent)
        descriptor = os.open(place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield descriptor
        finally:
            # Not unlocked: a child that inherited the descriptor holds the lock until it ends.
            os.close(descriptor)

    def _file(self, kind: CredentialKind, name: str) -> Path:
        return self._folder / kind / hashlib.sha256(f"{kind}\0{name}".encode()).hexdigest()[:32]

    def _read(self, file: Path) -> tuple[str, bytes] | None:
        """An entry's name and value."""
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - loads OpenSSL

        try:
            sealed = file.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise unusable_path(error, file) from error
        try:
            plain = self._cipher().decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], _binding(file))
            head, _, value = plain.partition(b"\n")
            return str(json.loads(head)["name"]), value
        except (InvalidTag, ValueError, KeyError) as error:
            raise StoreError(
                f"{file} cannot be decrypted with the key beside it.",
                remedy="Restore the folder from a backup, or delete this file and enter the value again.",
            ) from error

    def _write(self, file: Path, content: bytes) -> None:
        try:
            private_folder(self._folder)
            private_folder(file.parent)
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
            folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise unusable_path(error, file) from error

    def _cipher(self) -> AESGCM:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - loads OpenSSL

        return AESGCM(self._key())

    def _key(self) -> bytes:
        """Created at first use; the first of several processes wins."""
        place = self._folder / "key"
        while True:
            with contextlib.suppress(FileNotFoundError):
                if len(key := place.read_bytes()) == _KEY_BYTES:
                    return key
                raise StoreError(f"{place} is not a key.", remedy="Restore it from a backup.")
            private_folder(self._folder)
            made = self._folder / f".key-{secrets.token_hex(8)}"
            self._write(made, secrets.token_bytes(_KEY_BYTES))
            with contextlib.suppress(FileExistsError):
                os.link(made, place)
            made.unlink()


def _binding(file: Path) -> bytes:
    """An entry's file is of no use under another name or to another user."""
    return f"{file.parent.name}/{file.name}/{os.geteuid()}".encode()


class ConfigVariables(Mapping[str, str]):
    """The environment's variables, and the vault's secrets for names that are not set there."""

    def __init__(self, environ: Mapping[str, str], vault: Vault) -> None:
        self._environ = environ
        self._vault = vault

    def __getitem__(self, name: str) -> str:
        if name in self._environ:
            return self._environ[name]
        held = self._vault.get(CredentialKind.SECRET, name)
        if held is None:
            raise KeyError(name)
        return held.decode()

    def __iter__(self) -> Iterator[str]:
        yield from self._environ
        yield from (name for name in self._vault.names(CredentialKind.SECRET) if name not in self._environ)

    def __len__(self) -> int:
        return sum(1 for _ in self)
