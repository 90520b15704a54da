"""Which project a folder belongs to."""

from __future__ import annotations

from pathlib import Path

from toolcrib.config.paths import CONFIG_NAMES, PROJECT_FOLDER, WORKSPACE_NAMES

_SETTINGS = (*CONFIG_NAMES, *WORKSPACE_NAMES)


def project_of(folder: Path) -> Path:
    """The nearest folder upwards with settings of ours or a git repository, else the folder itself."""
    here = folder.resolve()
    for one in (here, *here.parents):
        if is_project(one):
            return one
    return here


def is_project(folder: Path) -> bool:
    """Whether the folder itself says that it is one."""
    return _is_repository(folder / ".git") or any((folder / PROJECT_FOLDER / name).exists() for name in _SETTINGS)


def _is_repository(mark: Path) -> bool:
    """A worktree and a submodule have a file there. An empty folder is none: git does not take it for one either."""
    return mark.is_file() or (mark / "HEAD").exists()
