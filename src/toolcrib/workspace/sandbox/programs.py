"""Where the server's own programs are: bubblewrap, nsenter, ripgrep.

In: a name and the server's search path. Out: the program, or None. A folder of the workspace never counts, whatever the
path says: what lies there may be the model's, and these run before there is a sandbox.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

USUAL_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"


def find_program(name: str, environ: Mapping[str, str], root: Path) -> Path | None:
    folders = [Path(entry) for entry in environ.get("PATH", USUAL_PATH).split(":") if entry.startswith("/")]
    for program in (folder / name for folder in folders):
        if os.access(program, os.X_OK) and program.is_file() and not _lies_in(root, program):
            return program
    return None


def _lies_in(root: Path, program: Path) -> bool:
    """As it is written, or where its links lead."""
    return any(Path(os.path.normpath(place)).is_relative_to(root) for place in (program, program.resolve()))
