"""The keys that encrypt the vault's entries, in a file beside them or in the system's keyring.

In: the vault's folder. Out: its keys, the newest first. There is one; while the entries are encrypted again, there are
two. `vault` is the only user.
"""

from __future__ import annotations

import contextlib
import enum
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from toolcrib.config.paths import unusable_path
from toolcrib.credentials.system_keyring import KeyringEntry, SystemKeyring
from toolcrib.errors import StoreError

_KEY_BYTES = 32
_RESTORE = "Restore {} from a backup, or remove it with everything beside it and enter the values again."


class KeyStore(enum.StrEnum):
    """Where the key is."""

    FILE = "file"
    KEYRING = "keyring"


class VaultKeys:
    """Each file has a key, or the account of the system's keyring that has it."""

    def __init__(self, folder: Path) -> None:
        self._current = folder / "key"
        self._next = folder / "key.new"
        """Exists while entries may be encrypted with either key; new ones are encrypted with this one."""
        self._keyring = SystemKeyring()

    @property
    def unfinished(self) -> bool:
        return self._next.exists()

    def store(self) -> KeyStore:
        """Where the newest key is, or would be made. Raises `StoreError` if it cannot be read."""
        found = next(filter(None, map(_content, (self._next, self._current))), b"")
        return KeyStore.KEYRING if isinstance(found, KeyringEntry) else KeyStore.FILE

    def readable(self) -> Iterator[bytes | StoreError]:
        """The newest first; an error in the place of one that cannot be read."""
        for file in (self._next, self._current):
            try:
                if (key := self._key(file)) is not None:
                    yield key
            except StoreError as error:
                yield error

    def newest(self) -> bytes:
        """Created in a file at first use; the first of several processes wins."""
        if (key := self._key(self._next)) is not None:
            return key
        while (key := self._key(self._current)) is None:
            made = self._current.with_name(f".key-{secrets.token_hex(8)}")
            try:
                replace_file(made, secrets.token_bytes(_KEY_BYTES))
                with contextlib.suppress(FileExistsError):
                    os.link(made, self._current)
            finally:
                made.unlink(missing_ok=True)
        return key

    def missing(self) -> StoreError:
        return StoreError(f"{self._current} is missing.", remedy=_RESTORE.format(self._current))

    def begin(self, store: KeyStore, *, bus: str) -> None:
        """Makes the next key. Entries stay readable with the current one until `finish`."""
        key = content = secrets.token_bytes(_KEY_BYTES)
        if store is KeyStore.KEYRING:
            content = self._keyring.put(f"{self._current.parent}:{secrets.token_hex(8)}", key, bus=bus).encoded()
        replace_file(self._next, content)
        sync_folder(self._next.parent)

    def finish(self) -> None:
        """Every entry is encrypted with the next key, so the current one is removed."""
        before = _content(self._current)
        self._next.replace(self._current)
        sync_folder(self._current.parent)
        # A copy of this folder has the same account, but must not delete it.
        if isinstance(before, KeyringEntry) and before.account.startswith(f"{self._current.parent}:"):
            self._keyring.delete(before)

    def _key(self, file: Path) -> bytes | None:
        content = _content(file)
        return self._keyring.get(content) if isinstance(content, KeyringEntry) else content


def _content(file: Path) -> bytes | KeyringEntry | None:
    try:
        content, mode = file.read_bytes(), stat.S_IMODE(file.stat().st_mode)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unusable_path(error, file) from error
    if mode & 0o077:
        raise StoreError(
            f"{file} can be read by others (mode {mode:o}).",
            remedy=f"Run `chmod 600 {file}`. If others use this machine, replace your secrets.",
        )
    found = content if len(content) == _KEY_BYTES else KeyringEntry.decoded(content)
    if found is None:
        raise StoreError(f"{file} is damaged.", remedy=_RESTORE.format(file))
    return found


def replace_file(file: Path, content: bytes) -> None:
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


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
