"""The folder of a project's run logs, `.toolcrib/runs/`, and the seals that prove that Toolcrib wrote a log.

In: a project's root, which may be untrusted; the user's key. Out: a descriptor of the folder, opened without following
links, and the names of its logs; a seal for a line, and whether a seal is valid. `run_log` seals the lines that
`run_history` trusts; a log without a valid seal does not decide how a conversation continues.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import hashlib
import hmac
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from toolcrib.config.paths import PROJECT_FOLDER, RUNS, Paths
from toolcrib.credentials.key_file import make_key, read_key
from toolcrib.errors import StoreError
from toolcrib.workspace.confined_open import file_kind, open_child

LOG_SUFFIX = ".jsonl"

_RUN_ID = re.compile(r"[0-9]{8}-[0-9]{6}-[0-9a-f]{6}")
_IGNORE = ".gitignore"
_MAKE = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class MissingFolder(enum.Enum):
    """How to handle a missing folder."""

    CREATE = enum.auto()
    RAISE = enum.auto()
    """FileNotFoundError."""


def runs_folder(root: Path) -> Path:
    return root / PROJECT_FOLDER / RUNS


def is_run_id(text: str) -> bool:
    return _RUN_ID.fullmatch(text) is not None


@contextlib.contextmanager
def entered_runs_folder(root: Path, missing: MissingFolder) -> Iterator[int]:
    """Raises OSError; its message names the component if that is not a folder."""
    here = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name, mode in ((PROJECT_FOLDER, 0o777), (RUNS, 0o700)):
            if missing is MissingFolder.CREATE:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, mode, dir_fd=here)
            below = _below(here, name)
            os.close(here)
            here = below
        if missing is MissingFolder.CREATE:
            _make_private(here)
        yield here
    finally:
        os.close(here)


def create_log(folder: int, name: str) -> int:
    """Creates a file that only the user can access."""
    return os.open(name, _MAKE, 0o600, dir_fd=folder)


def run_ids(folder: int) -> list[str]:
    """The ids of the runs with a log here, newest first."""
    with os.scandir(folder) as found:
        ids = [entry.name.removesuffix(LOG_SUFFIX) for entry in found if entry.name.endswith(LOG_SUFFIX)]
    return sorted(filter(is_run_id, ids), reverse=True)


def _below(here: int, name: str) -> int:
    try:
        return open_child(here, name, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            kind = file_kind(os.stat(name, dir_fd=here, follow_symlinks=False).st_mode)
            raise OSError(error.errno, f"{name} is a {kind}, not a folder", name) from error
        raise


def _make_private(folder: int) -> None:
    state = os.fstat(folder)
    if state.st_uid == os.geteuid() and state.st_mode & 0o077:
        os.fchmod(folder, stat.S_IRWXU)
    # Prompts and logs must not end up in the project's git history.
    with contextlib.suppress(FileExistsError):
        descriptor = create_log(folder, _IGNORE)
        try:
            os.write(descriptor, b"*\n")
        finally:
            os.close(descriptor)


SEAL = "seal"
"""The field of a line."""


@dataclass(frozen=True)
class LogSeals:
    key: bytes | None = field(repr=False)
    """None: nothing is sealed and nothing is trusted."""

    @classmethod
    def of_user(cls, environ: Mapping[str, str]) -> Self:
        """For reading."""
        with contextlib.suppress(StoreError):
            return cls(read_key(Paths.of_user(environ).runs_key))
        return cls(None)

    @classmethod
    def made(cls, environ: Mapping[str, str]) -> Self:
        """For writing: creates a missing key."""
        file = Paths.of_user(environ).runs_key
        with contextlib.suppress(StoreError):
            return cls(read_key(file) or make_key(file))
        return cls(None)

    def sealed(self, root: Path, run_id: str, kind: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The fields with their seal."""
        if self.key is None:
            return dict(fields)
        return {**fields, SEAL: _seal(self.key, root, run_id, kind, fields)}

    def fits(self, root: Path, run_id: str, kind: str, fields: Mapping[str, Any]) -> bool:
        """Whether the fields, as read, carry a valid seal."""
        seal = fields.get(SEAL)
        if self.key is None or not isinstance(seal, str):
            return False
        bare = {name: value for name, value in fields.items() if name != SEAL}
        try:
            right = _seal(self.key, root, run_id, kind, bare)
        except RecursionError:
            return False
        return hmac.compare_digest(right.encode(), seal.encode(errors="replace"))


def _seal(key: bytes, root: Path, run_id: str, kind: str, fields: Mapping[str, Any]) -> str:
    # The text must be the same when the line is written and when it is read back.
    content = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    message = json.dumps([kind, os.fsencode(root.resolve()).hex(), run_id, content])
    return hmac.new(key, message.encode(), hashlib.sha256).hexdigest()
