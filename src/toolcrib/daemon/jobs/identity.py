"""Which daemon a job belongs to, where several share a store.

In: the state folder. Out: a name that stays the same from start to start, and that no other home has. Only the holder
of the daemon's lock comes here.
"""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path

from toolcrib.config.private import private_folder
from toolcrib.errors import StoreError

_FILE = "daemon.id"
_NAME = re.compile(r"[0-9a-f]{16}")


def daemon_id(state: Path) -> str:
    file = state / _FILE
    try:
        private_folder(state)
        if file.exists() and _NAME.fullmatch(name := file.read_text().strip()):
            return name
        name = secrets.token_hex(8)
        # Whole or not at all: jobs that wait are found by it.
        fresh = file.with_suffix(".new")
        fresh.write_text(name + "\n")
        os.replace(fresh, file)  # noqa: PTH105 - the same in fewer words
    except OSError as error:
        raise StoreError(f"{file} cannot be used: {error.strerror}.", remedy="Check its permissions.") from error
    return name
