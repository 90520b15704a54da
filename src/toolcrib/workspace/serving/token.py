"""The token of a workspace server on a port: whoever shows it may use the tools.

In: the environment, or a file that only its owner can read. Out: the token, and the file that clients find it in.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from toolcrib.errors import ConfigError

VARIABLE = "TOOLCRIB_WORKSPACE_TOKEN"
SHORTEST = 32
"""Characters; what can be guessed is no token."""


@dataclass(frozen=True, kw_only=True)
class Token:
    value: str
    where: str
    """For a person: where a client finds it. Never the token itself."""


@contextlib.contextmanager
def token(environ: Mapping[str, str], file: Path | None, fallback: Path) -> Iterator[Token]:
    """From the variable, from the named file (made if it is not there), or a new one, which ends with the server."""
    if file is None and VARIABLE in environ:
        yield Token(value=_checked(environ[VARIABLE], VARIABLE), where=f"${VARIABLE}")
    elif file is not None:
        if not os.path.lexists(file):
            _write(file, mint())
        yield Token(value=_read(file), where=f"the content of {file.absolute()}")
    else:
        fallback.unlink(missing_ok=True)
        value = mint()
        _write(fallback, value)
        try:
            yield Token(value=value, where=f"the content of {fallback}")
        finally:
            fallback.unlink(missing_ok=True)


def mint() -> str:
    return secrets.token_urlsafe(32)


def _write(file: Path, value: str) -> None:
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(f"{file} cannot be made: {error.strerror}.", remedy="Choose another --token-file.") from error
    with os.fdopen(descriptor, "w") as stream:
        stream.write(value + "\n")


def _read(file: Path) -> str:
    """Judged by what was opened, so that nothing can be put in its place in between."""
    try:
        with file.open("rb") as stream:
            found = os.fstat(stream.fileno())
            content = stream.read(4096)
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}.", remedy="Choose another --token-file.") from error
    if not stat.S_ISREG(found.st_mode) or found.st_mode & 0o077 or found.st_uid not in (0, os.geteuid()):
        raise ConfigError(f"{file} can be read or changed by others.", remedy=f"chmod 600 {file}, and make it yours.")
    return _checked(content.decode(errors="replace").strip(), str(file))


def _checked(value: str, where: str) -> str:
    if len(value) < SHORTEST or not value.isascii() or not value.isprintable() or " " in value:
        raise ConfigError(
            f"{where} holds no token: at least {SHORTEST} printable characters without spaces.",
            remedy="Leave it out; the server makes one.",
        )
    return value
