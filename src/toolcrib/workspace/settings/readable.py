"""Which folders outside the workspace commands may be given to read.

In: a folder that a file of settings names. Out: why not, or nothing. A folder that holds a private one is as private
as that one; a link is judged by where it leads as well.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from toolcrib.config.paths import Paths, home_of

_KEYS = (".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".password-store", ".local/share/keyrings")
_SYSTEM = (Path("/proc"), Path("/sys"), Path("/dev"), Path("/run"), Path("/var/run"))


@dataclass(frozen=True, kw_only=True)
class Private:
    """What is nobody's business but the person's."""

    home: Path
    ours: tuple[Path, ...]
    """Toolcrib's own folders: tokens, the database, the daemon's socket."""

    @classmethod
    def of_user(cls, environ: Mapping[str, str]) -> Private:
        paths = Paths.of_user(environ)
        ours = (paths.config_dir, paths.state_dir, paths.cache_dir, paths.run_dir)
        return cls(home=home_of(environ), ours=ours)


def why_not_readable(folder: Path, private: Private) -> str:
    for place in {folder, _real(folder)}:
        if any(_holds(place, home) for home in {private.home, _real(private.home)}):
            return "It is your home, or holds it: name a folder inside."
        if any(_touch(place, own) for ours in private.ours for own in {ours, _real(ours)}):
            return "Toolcrib keeps its own files there."
        if any(_touch(place, _real(private.home / keys)) or _touch(place, private.home / keys) for keys in _KEYS):
            return "Keys are kept there."
        if any(_touch(place, system) for system in _SYSTEM):
            return "It belongs to the system and shows other processes."
    return ""


def within(root: Path, folder: Path) -> bool:
    """Whether a folder lies in the workspace, by its name or by where it leads: whoever works there could turn it."""
    return _holds(root, folder) or _holds(_real(root), folder) or _holds(_real(root), _real(folder))


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _holds(outer: Path, inner: Path) -> bool:
    return inner.is_relative_to(outer)


def _touch(one: Path, other: Path) -> bool:
    return _holds(one, other) or _holds(other, one)
