"""Which project this process works in.

In: the environment and the working folder. Out: an absolute folder. The bridge and every command decide it alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from toolcrib.config.paths import project_of
from toolcrib.errors import UsageError


def project_root(environ: Mapping[str, str], cwd: Path) -> Path:
    """`CLAUDE_PROJECT_DIR` where a client says it, else the nearest folder upwards with `.toolcrib` or `.git`, else
    the working folder itself."""
    said = environ.get("CLAUDE_PROJECT_DIR", "")
    if said and Path(said).is_dir():
        return Path(said).resolve()
    return project_of(cwd)


def working_folder() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError as error:
        raise UsageError("The working folder no longer exists.", remedy="Go to one that does.") from error
