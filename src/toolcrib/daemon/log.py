"""Where the daemon's own words go: a file that is turned over before it grows large."""

from __future__ import annotations

import logging
import logging.handlers
import os
from pathlib import Path

_BYTES = 5 * 1024 * 1024
_KEPT = 3


def log_to(file: Path, level: str) -> logging.Handler:
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600))
    handler = logging.handlers.RotatingFileHandler(file, maxBytes=_BYTES, backupCount=_KEPT, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("toolcrib").setLevel(level.upper())
    return handler
