"""Where a run's program is looked for, and where it looks for others in its turn.

In: PATH of the person's environment, the folder of the run. Out: a `SearchPath`: the folders that a program may be
taken from. What lies in the project may be the work of whoever wrote it, and an interpreter or a `git` from there
would run it. `program` finds by it; `runs.environment` hands it to the program.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from toolcrib.config.paths import home_of
from toolcrib.config.project import project_of


@dataclass(frozen=True, kw_only=True)
class SearchPath:
    folders: tuple[Path, ...]
    """The absolute ones: another would be looked for in the project."""
    not_beneath: tuple[Path, ...]
    """The run's own folders."""

    @classmethod
    def of(cls, environ: Mapping[str, str], workdir: Path) -> SearchPath:
        given = environ.get("PATH", os.defpath).split(os.pathsep)
        home = home_of(environ).resolve()
        own = {workdir.absolute(), workdir.resolve(), project_of(workdir)}
        return cls(
            folders=tuple(Path(folder) for folder in given if Path(folder).is_absolute()),
            # Whoever works in the home folder itself, or above it, has their programs there too.
            not_beneath=tuple(folder for folder in own if not home.is_relative_to(folder)),
        )

    @property
    def of_the_project(self) -> tuple[Path, ...]:
        return tuple(folder for folder in self.folders if self._is_of_the_project(folder))

    @property
    def kept(self) -> str:
        """PATH without the project's folders. An empty one would mean the working folder."""
        outside = [str(folder) for folder in self.folders if not self._is_of_the_project(folder)]
        return os.pathsep.join(outside) or os.defpath

    def why_not(self, file: Path) -> str:
        """Why a program is passed over; empty if it is not. Raises OSError."""
        real = file.resolve()
        # The link itself counts as well as what it leads to.
        link = file.parent.resolve() / file.name
        if any(place.is_relative_to(own) for own in self.not_beneath for place in (link, real)):
            return "it lies in the project that the run works in"
        if real.stat().st_mode & stat.S_IWOTH:
            return "every user of this machine can change it"
        return ""

    def _is_of_the_project(self, folder: Path) -> bool:
        # Where links lead round in a circle, `Path.resolve` would raise.
        places = (folder, Path(os.path.realpath(folder)))
        return any(place.is_relative_to(own) for own in self.not_beneath for place in places)
