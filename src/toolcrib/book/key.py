"""A key: 32 random bytes in a file of the owner's.

In: the file. Out: the key; made at first use. The book has one: whoever can read it can write a chain that verifies,
which is why the head is worth writing down elsewhere. The logs of runs have another.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from toolcrib.errors import StoreError

_LENGTH = 32


def read_key(file: Path) -> bytes | None:
    """None: there is none."""
    try:
        text = file.read_text()
        if file.stat().st_mode & 0o077:
            file.chmod(0o600)
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise _unusable(file, f"cannot be read: {error}") from error
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != _LENGTH:
        raise _unusable(file, "is not a key")
    return key


def make_key(file: Path) -> bytes:
    """Of two who make it at once, both get the same."""
    draft = file.with_name(f".{file.name}.{secrets.token_hex(6)}")
    try:
        # With the database elsewhere, a command without a daemon is the first who needs the folder.
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w") as stream:
            stream.write(secrets.token_bytes(_LENGTH).hex())
            stream.flush()
            # A key that a power failure takes along would leave rows that nobody can verify.
            os.fsync(descriptor)
        with contextlib.suppress(FileExistsError):
            os.link(draft, file)
    except OSError as error:
        raise _unusable(file, f"cannot be made: {error.strerror or error}") from error
    finally:
        draft.unlink(missing_ok=True)
    key = read_key(file)
    if key is None:
        raise _unusable(file, "vanished while it was made")
    return key


def _unusable(file: Path, what: str) -> StoreError:
    return StoreError(
        f"The key {file} {what}.", remedy="Free some space, check its permissions, or put back a backup of it."
    )
