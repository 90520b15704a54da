"""The folder that tools work in. All access to its files goes through here.

In: paths as a model gives them. Out: `FolderPath`s, which are checked names, and descriptors of files that are beneath
the folder despite links and concurrent renames. `confined_open` opens paths and explains errors, `protected_paths`
lists the paths that tools may not use. The tools and the sandbox use it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from toolcrib.errors import WorkspaceError
from toolcrib.workspace import protected_paths
from toolcrib.workspace.confined_open import (
    FinalLink,
    explain_os_error,
    file_kind,
    open_beneath,
    path_beneath,
)
from toolcrib.workspace.globs import IgnoreRules
from toolcrib.workspace.protected_paths import check_root, own_environment

MAX_PATH_LENGTH = 4095
MAX_NAME_LENGTH = 255
_MAX_SHOWN_LENGTH = 200
_SPECIAL = frozenset("*?[]{}!#\\/ ")
"""Characters that make a pattern more than a plain name."""
_RELATIVE = "Paths are relative to the workspace's folder, as in src/main.py."


@dataclass(frozen=True, slots=True)
class FolderPath:
    """A path in the folder: plain names, never `..`."""

    parts: tuple[str, ...] = ()

    def __str__(self) -> str:
        """For people and models; bytes that are not UTF-8 become �."""
        return os.fsencode("/".join(self.parts)).decode(errors="replace") or "."

    def __truediv__(self, name: str) -> FolderPath:
        return FolderPath((*self.parts, name))

    @property
    def parent(self) -> FolderPath:
        return FolderPath(self.parts[:-1])

    @property
    def name(self) -> str:
        return self.parts[-1] if self.parts else "."


class Folder:
    def __init__(
        self,
        root: Path,
        *,
        hidden: Sequence[str] = (),
        guarded: Sequence[str] = (),
        repositories: bool = False,
        above: str = "",
        unfit: Sequence[Path] = (),
        home: Path | None = None,
    ) -> None:
        """`hidden`, `guarded`: case-insensitive .gitignore patterns, relative to `above`. `repositories`: whether tools
        may create git repositories. `unfit`: Toolcrib's own folders."""
        if not hasattr(os, "O_PATH") or not Path("/proc/self/fd").is_dir():
            raise WorkspaceError("The workspace needs Linux with /proc.", remedy="Use it there, or in a container.")
        self.given = Path(os.path.normpath(root.absolute()))
        try:
            self.fd = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise WorkspaceError(
                f"{root} cannot be a workspace: {error.strerror}.", remedy="Choose an existing folder."
            ) from error
        try:
            # The real path of the opened folder; the given path may lead elsewhere by now.
            self.root = Path(f"/proc/self/fd/{self.fd}").readlink()
            check_root(self.root, unfit, home=home)
        except BaseException:
            self.close()
            raise
        self.running = tuple(own_environment(self.root))
        """Paths in the folder that Toolcrib itself runs from: write access to them would escape the confinement."""
        status = os.fstat(self.fd)
        self.owner = (status.st_uid, status.st_gid)
        self.writing = threading.Lock()
        """Held from reading a file to replacing it, so that no change is lost."""
        self.repositories = repositories
        way = tuple(above.split("/")) if above else ()
        self._hidden = _Patterns("hidden", hidden, way, str.casefold)
        self._guarded = _Patterns("guarded", guarded, way, protected_paths.normalized)
        self.guarded_names = self._guarded.names

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def same(self) -> bool:
        """Whether the path still leads to the folder that was opened."""
        try:
            return os.path.samestat(self.root.stat(), os.fstat(self.fd))
        except OSError:
            return False

    def check_same(self) -> None:
        """A tool must not work in a folder that was moved or replaced."""
        if not self.same():
            raise WorkspaceError(
                f"{self.root} is no longer the folder that was opened: it was moved, removed or replaced.",
                remedy="Nothing works here until the user restarts this server.",
            )

    def path_of(self, path: str) -> FolderPath:
        """Checks the syntax of a path from a model, not whether it exists."""
        if "\0" in path:
            raise WorkspaceError("The path holds a NUL byte.", remedy=_RELATIVE)
        try:
            raw = path.encode()
        except UnicodeEncodeError:
            raise WorkspaceError("The path is not valid Unicode.", remedy=_RELATIVE) from None
        if len(raw) > MAX_PATH_LENGTH:
            raise WorkspaceError(
                f"The path is {len(raw)} bytes long; the maximum is {MAX_PATH_LENGTH}.", remedy=_RELATIVE
            )
        parts = self._down(path) if path.startswith("/") else _plain(path.split("/"))
        if parts is None:
            raise WorkspaceError(f"{path[:_MAX_SHOWN_LENGTH]} is outside the workspace.", remedy=_RELATIVE)
        if long := next((part for part in parts if len(part.encode()) > MAX_NAME_LENGTH), None):
            raise WorkspaceError(f"The name {long[:40]}… is longer than {MAX_NAME_LENGTH} bytes.", remedy="Shorten it.")
        return FolderPath(parts)

    def _down(self, path: str) -> tuple[str, ...] | None:
        """The part of an absolute path below the root: its real path, or the one given."""
        way = _plain(path.split("/"))
        for top in (self.root.parts[1:], self.given.parts[1:]):
            if way is not None and way[: len(top)] == top:
                return way[len(top) :]
        return None

    def readable(self, real: FolderPath) -> bool:
        """Judged by names alone: not a run log, and not hidden."""
        return not protected_paths.is_run_log(real.parts) and not self._hidden.fit(real.parts)

    def guarded(self, real: FolderPath) -> bool:
        """Judged by names alone: whether programs other than git and Toolcrib obey it."""
        return self._guarded.fit(real.parts)

    def why_not_writable(self, real: FolderPath) -> str:
        """Judged by names alone: not git's or Toolcrib's own, guarded, hidden, or part of the environment Toolcrib runs
        in. Empty if writing is allowed."""
        if name := protected_paths.protected_name(real.parts):
            owner = "git" if "git" in protected_paths.normalized(name) else "Toolcrib"
            return f"{name} belongs to {owner} and is off limits to tools"
        if any(real.parts[: len(place)] == place for place in self.running):
            return "it belongs to the Python environment that Toolcrib itself runs in"
        if self._hidden.fit(real.parts):
            return "it is hidden by the workspace's settings"
        if pattern := self._guarded.first(real.parts):
            return (
                f"{pattern} configures other programs. The user can allow it: "
                f'guarded: {{"{pattern}": off}} in workspace.yml (a project\'s file needs `toolcrib trust`)'
            )
        return self._why_not_git(real)

    def _why_not_git(self, real: FolderPath) -> str:
        """In a folder with a HEAD, the file could create a repository or change the existing one."""
        for depth, name in enumerate(real.parts):
            if protected_paths.normalized(name) in protected_paths.GIT_PARTS and self._has_head(
                FolderPath(real.parts[:depth])
            ):
                return f"{FolderPath(real.parts[:depth])} has a git HEAD, and {name} would be part of that repository"
        return ""

    def _has_head(self, folder: FolderPath) -> bool:
        try:
            found = open_beneath(self.fd, (*folder.parts, protected_paths.HEAD), FinalLink.LINK)
        except OSError:
            return False
        try:
            mode = os.fstat(found).st_mode
            if stat.S_ISLNK(mode):
                return protected_paths.is_head_link(os.readlink("", dir_fd=found))
            if not stat.S_ISREG(mode):
                return False
            with open(f"/proc/self/fd/{found}", "rb") as file:  # noqa: PTH123 - by descriptor
                return protected_paths.is_head(file.read(protected_paths.HEAD_BYTES))
        except OSError:
            # An unreadable file may be a HEAD.
            return True
        finally:
            os.close(found)

    @contextlib.contextmanager
    def opened(self, place: FolderPath, last: FinalLink = FinalLink.TARGET) -> Iterator[tuple[int, FolderPath]]:
        """Yields a descriptor (O_PATH) and the real path; refuses paths that may not be read."""
        self._check_readable(place, place)
        try:
            descriptor = open_beneath(self.fd, place.parts, last)
        except OSError as error:
            raise explain_os_error(error, self, place) from error
        try:
            real = self._real_path(descriptor, place)
            self._check_readable(real, place)
            yield descriptor, real
        finally:
            os.close(descriptor)

    def open_file(self, place: FolderPath) -> int:
        """Opens a regular file for reading; the caller closes it."""
        with self.opened(place) as (descriptor, _):
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                what = file_kind(status.st_mode)
                raise WorkspaceError(
                    f"{place} is a {what}, not a file.",
                    remedy="List what is in it." if what == "folder" else "Only regular files can be read.",
                )
            return self._again(descriptor, os.O_RDONLY | os.O_NONBLOCK, place)

    def open_dir(self, place: FolderPath) -> int:
        """Opens a folder for listing and as a base for other paths; the caller closes it."""
        with self.opened(place) as (descriptor, _):
            mode = os.fstat(descriptor).st_mode
            if not stat.S_ISDIR(mode):
                raise WorkspaceError(
                    f"{place} is a {file_kind(mode)}, not a folder.", remedy="Name the folder it is in."
                )
            return self._again(descriptor, os.O_RDONLY | os.O_DIRECTORY, place)

    def status(self, place: FolderPath) -> os.stat_result:
        """Does not follow a link."""
        with self.opened(place, FinalLink.LINK) as (descriptor, _):
            return os.fstat(descriptor)

    def real_path(self, descriptor: int) -> FolderPath:
        """The current real path of an open descriptor; raises OSError (EXDEV) if it left the folder."""
        return FolderPath(path_beneath(self.fd, descriptor))

    def _real_path(self, descriptor: int, place: FolderPath) -> FolderPath:
        try:
            return self.real_path(descriptor)
        except OSError as error:
            raise explain_os_error(error, self, place) from error

    def _again(self, descriptor: int, flags: int, place: FolderPath) -> int:
        """Reopens the same file with more access than O_PATH gives."""
        try:
            return os.open(f"/proc/self/fd/{descriptor}", flags | os.O_CLOEXEC)
        except OSError as error:
            raise explain_os_error(error, self, place) from error

    def _check_readable(self, real: FolderPath, asked: FolderPath) -> None:
        if not self.readable(real):
            why = (
                "a Toolcrib run log" if protected_paths.is_run_log(real.parts) else "hidden by the workspace's settings"
            )
            raise WorkspaceError(
                f"{asked} cannot be read: it is {why}.", remedy="Work without it.", data={"path": str(asked)}
            )


class _Patterns:
    """Globs from the settings; a path matches if it or a parent folder does. Plain names and `*.ending` are compared
    without a regular expression, because every file in the folder is checked before every command."""

    def __init__(self, key: str, patterns: Sequence[str], above: tuple[str, ...], fold: Callable[[str], str]) -> None:
        self._key = key
        self._patterns = tuple(patterns)
        self._above = above
        self._fold = fold
        folded = [pattern.casefold() for pattern in patterns]
        self.names = frozenset(pattern for pattern in folded if _SPECIAL.isdisjoint(pattern))
        self._ends = tuple(pattern[1:] for pattern in folded if _is_ending(pattern))
        self._others = [one for one in folded if one not in self.names and not _is_ending(one)]
        self._fit_below = functools.lru_cache(maxsize=1024)(self._fit_folder)

    def fit(self, parts: tuple[str, ...]) -> bool:
        if not self._patterns or not parts:
            return False
        return self._fit_below(parts[:-1]) or self._matches((*self._above, *parts))

    def first(self, parts: tuple[str, ...]) -> str:
        """The first pattern that matches; empty if none does."""
        if not self.fit(parts):
            return ""
        each = (_Patterns(self._key, [pattern], self._above, self._fold) for pattern in self._patterns)
        return next(one._patterns[0] for one in each if one.fit(parts))

    def _fit_folder(self, folder: tuple[str, ...]) -> bool:
        way = (*self._above, *folder)
        return any(self._matches(way[:length]) for length in range(1, len(way) + 1))

    def _matches(self, parts: tuple[str, ...]) -> bool:
        name = self._fold(parts[-1])
        if name in self.names or name.endswith(self._ends):
            return True
        if not self._others:
            return False
        return self._rules.verdict("/".join(map(self._fold, parts)), is_folder=True) is not None

    @functools.cached_property
    def _rules(self) -> IgnoreRules:
        rules = IgnoreRules(self._others)
        if not rules.is_whole:
            raise WorkspaceError(
                f"The patterns of `{self._key}:` are too many or too large.", remedy="Use fewer patterns."
            )
        return rules


def _is_ending(pattern: str) -> bool:
    return pattern.startswith("*") and _SPECIAL.isdisjoint(pattern[1:])


def _plain(parts: Sequence[str]) -> tuple[str, ...] | None:
    """Resolves `.` and `..` lexically; None if they lead outside."""
    way: list[str] = []
    for part in parts:
        if part == "..":
            if not way:
                return None
            way.pop()
        elif part not in ("", "."):
            way.append(part)
    return tuple(way)
