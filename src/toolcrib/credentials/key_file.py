"""A random key in a file of its own, made when it is first needed.

In: the file's path. Out: the key. Used for the audit log, the logs of runs and the handles that clients get.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from toolcrib.errors import StoreError

_KEY_LENGTH = 32


def read_key(file: Path) -> bytes | None:
    """None if the file does not exist."""
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
    if len(key) != _KEY_LENGTH:
        raise _unusable(file, "is not a key")
    return key


def make_key(file: Path) -> bytes:
    """Two processes that call this at the same time get the same key."""
    draft = file.with_name(f".{file.name}.{secrets.token_hex(6)}")
    try:
        # If the database is elsewhere, a command without a daemon may be the first to need the folder.
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w") as stream:
            stream.write(secrets.token_bytes(_KEY_LENGTH).hex())
            stream.flush()
            # Without the key, rows that survive a power failure could not be verified.
            os.fsync(descriptor)
        with contextlib.suppress(FileExistsError):
            os.link(draft, file)
    except OSError as error:
        raise _unusable(file, f"cannot be created: {error.strerror or error}") from error
    finally:
        draft.unlink(missing_ok=True)
    key = read_key(file)
    if key is None:
        raise _unusable(file, "disappeared while it was created")
    return key


def _unusable(file: Path, what: str) -> StoreError:
    return StoreError(
        f"The key {file} {what}.", remedy="Free some disk space, check its permissions, or restore it from a backup."
    )
