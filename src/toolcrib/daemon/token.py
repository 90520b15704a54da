"""The owner's token: made at the first start, kept in a file that only the owner can read."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from toolcrib.agents.token import mint
from toolcrib.config.private import private_folder
from toolcrib.errors import ConfigError


def owner_token(file: Path) -> str:
    private_folder(file.parent)
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return _read(file)
    token = mint()
    try:
        with os.fdopen(descriptor, "w") as stream:
            stream.write(token + "\n")
            stream.flush()
            os.fsync(stream.fileno())
    except OSError:
        # Half a token would be refused at every later start.
        file.unlink()
        raise
    return token


def _read(file: Path) -> str:
    mode = stat.S_IMODE(file.stat().st_mode)
    if mode & 0o077:
        raise ConfigError(
            f"{file} can be read by others (mode {mode:o}).",
            remedy=f"Remove it (a new token is made at the next start), or: chmod 600 {file}",
        )
    token = file.read_text().strip()
    if len(token) < 32:
        raise ConfigError(f"{file} holds no token.", remedy="Remove it; a new one is made at the next start.")
    return token
