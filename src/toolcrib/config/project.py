"""Which project a folder belongs to."""

from __future__ import annotations

from pathlib import Path

MARKS = (".toolcrib", ".git")


def project_of(folder: Path) -> Path:
    """The nearest folder upwards with `.toolcrib` or `.git`, else the folder itself."""
    here = folder.resolve()
    for one in (here, *here.parents):
        if any((one / mark).exists() for mark in MARKS):
            return one
    return here
