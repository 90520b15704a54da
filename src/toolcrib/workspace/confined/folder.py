"""The folder that tools work in, and the only way to its files.

In: paths as a model gives them. Out: `Spot`s, which are checked names, and descriptors of what lies there: beneath the
folder, whatever links and renames do meanwhile. `beneath` finds the way, `names` knows what is not for tools, `refusal`
says why not; `files`, `walk` and the sandbox stand on this.
"""

from __future__ import annotations

import contextlib
import functools
import os
import stat
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from toolcrib.errors import WorkspaceError
from toolcrib.workspace.confined import names
from toolcrib.workspace.confined.beneath import Last, lies_at, reach, step
from toolcrib.workspace.confined.refusal import kind_of, refusal
from toolcrib.workspace.confined.roots import check_root, running_us
from toolcrib.workspace.patterns.ignores import Rules

__all__ = ["Folder", "Spot", "check_root"]

LONGEST_PATH = 4095
LONGEST_NAME = 255
_SHOWN = 200
_RELATIVE = "Paths are relative to the workspace's folder, as in src/main.py."


@dataclass(frozen=True, slots=True)
class Spot:
    """A place in the folder: plain names, never `..`."""

    parts: tuple[str, ...] = ()

    def __str__(self) -> str:
        """For people and models; bytes that are no UTF-8 show as �."""
        return os.fsencode("/".join(self.parts)).decode(errors="replace") or "."

    def __truediv__(self, name: str) -> Spot:
        return Spot((*self.parts, name))

    @property
    def parent(self) -> Spot:
        return Spot(self.parts[:-1])

    @property
    def name(self) -> str:
        return self.parts[-1] if self.parts else "."


class Folder:
    def __init__(
        self,
        root: Path,
        *,
        hidden: Sequence[str] = (),
        above: str = "",
        unfit: Sequence[Path] = (),
        home: Path | None = None,
    ) -> None:
        """`hidden`: globs as in .gitignore, of whatever case, which start `above`. `unfit`: Toolcrib's own folders."""
        if not hasattr(os, "O_PATH") or not Path("/proc/self/fd").is_dir():
            raise WorkspaceError("The workspace needs Linux with /proc.", remedy="Use it there, or in a container.")
        self.given = Path(os.path.normpath(root.absolute()))
        try:
            self.fd = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise WorkspaceError(
                f"{root} cannot be a workspace: {error.strerror}.", remedy="Name a folder that exists."
            ) from error
        try:
            # The place of what was opened, whatever the path leads to by now.
            self.root = Path(f"/proc/self/fd/{self.fd}").readlink()
            check_root(self.root, unfit, home=home)
        except BaseException:
            self.close()
            raise
        self.running = tuple(running_us(self.root))
        """Names of what runs us, where that lies in the folder: who can change it is not confined."""
        there = os.fstat(self.fd)
        self.owner = (there.st_uid, there.st_gid)
        self.writing = threading.Lock()
        """Held from reading a file to replacing it, so that no change is lost."""
        self._hidden = tuple(hidden)
        self._above = tuple(above.split("/")) if above else ()
        self._is_hidden_below = functools.lru_cache(maxsize=1024)(self._hides)

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
        """What is done in a folder that was moved or replaced is not done where the caller believes."""
        if not self.same():
            raise WorkspaceError(
                f"{self.root} is no longer the folder that was opened: it was moved, removed or replaced.",
                remedy="Nothing works here until a person starts this again.",
            )

    def spot(self, path: str) -> Spot:
        """Checks a path as a model gives it; says nothing about what is there."""
        if "\0" in path:
            raise WorkspaceError("The path holds a NUL byte.", remedy=_RELATIVE)
        try:
            raw = path.encode()
        except UnicodeEncodeError:
            raise WorkspaceError("The path is not valid Unicode.", remedy=_RELATIVE) from None
        if len(raw) > LONGEST_PATH:
            raise WorkspaceError(f"The path is {len(raw)} bytes long; {LONGEST_PATH} is the most.", remedy=_RELATIVE)
        parts = self._down(path) if path.startswith("/") else _plain(path.split("/"))
        if parts is None:
            raise WorkspaceError(f"{path[:_SHOWN]} is outside the workspace.", remedy=_RELATIVE)
        if long := next((part for part in parts if len(part.encode()) > LONGEST_NAME), None):
            raise WorkspaceError(f"The name {long[:40]}… is longer than {LONGEST_NAME} bytes.", remedy="Shorten it.")
        return Spot(parts)

    def _down(self, path: str) -> tuple[str, ...] | None:
        """Names below the root in an absolute path: as the root really is, or as it was given."""
        way = _plain(path.split("/"))
        for top in (self.root.parts[1:], self.given.parts[1:]):
            if way is not None and way[: len(top)] == top:
                return way[len(top) :]
        return None

    def readable(self, real: Spot) -> bool:
        """By its names: no log of a run, nothing hidden."""
        return not names.is_run_log(real.parts) and not self._is_hidden(real)

    def writable(self, real: Spot) -> bool:
        """By its names: neither git's nor Toolcrib's own, nothing hidden, nothing that runs us."""
        return not self.why_not_writable(real)

    def why_not_writable(self, real: Spot) -> str:
        """Empty if its names allow it."""
        if name := names.guarded(real.parts):
            return f"{name} belongs to {'git' if 'git' in names.folded(name) else 'Toolcrib'} and is not for tools"
        if any(real.parts[: len(place)] == place for place in self.running):
            return "it belongs to the Python environment that Toolcrib itself runs in"
        return "it is hidden by the workspace's settings" if self._is_hidden(real) else ""

    @contextlib.contextmanager
    def reaching(self, spot: Spot, last: Last = Last.TARGET) -> Iterator[tuple[int, Spot]]:
        """A descriptor (O_PATH) of what is there, and where it really lies; what may not be read is refused."""
        self._check_readable(spot, spot)
        try:
            descriptor = reach(self.fd, spot.parts, last)
        except OSError as error:
            raise refusal(error, self, spot) from error
        try:
            real = self._lies_at(descriptor, spot)
            self._check_readable(real, spot)
            yield descriptor, real
        finally:
            os.close(descriptor)

    def open_file(self, spot: Spot) -> int:
        """A regular file, for reading; the caller closes it."""
        with self.reaching(spot) as (descriptor, _):
            there = os.fstat(descriptor)
            if not stat.S_ISREG(there.st_mode):
                what = kind_of(there.st_mode)
                raise WorkspaceError(
                    f"{spot} is a {what}, not a file.",
                    remedy="List what is in it." if what == "folder" else "Only regular files can be read.",
                )
            return self._again(descriptor, os.O_RDONLY | os.O_NONBLOCK, spot)

    def open_dir(self, spot: Spot) -> int:
        """A folder, for listing and for going on from; the caller closes it."""
        with self.reaching(spot) as (descriptor, _):
            mode = os.fstat(descriptor).st_mode
            if not stat.S_ISDIR(mode):
                raise WorkspaceError(f"{spot} is a {kind_of(mode)}, not a folder.", remedy="Name the folder it is in.")
            return self._again(descriptor, os.O_RDONLY | os.O_DIRECTORY, spot)

    def open_at(self, dirfd: int, name: str, flags: int) -> int:
        """One name down from an opened folder, never through a link."""
        return step(dirfd, name, flags)

    def status(self, spot: Spot) -> os.stat_result:
        """Of the link itself, if it is one."""
        with self.reaching(spot, Last.LINK) as (descriptor, _):
            return os.fstat(descriptor)

    def lies_at(self, descriptor: int) -> Spot:
        """Where something that was opened really lies now; OSError (EXDEV) if no longer in the folder."""
        return Spot(lies_at(self.fd, descriptor))

    def _lies_at(self, descriptor: int, spot: Spot) -> Spot:
        try:
            return self.lies_at(descriptor)
        except OSError as error:
            raise refusal(error, self, spot) from error

    def _again(self, descriptor: int, flags: int, spot: Spot) -> int:
        """The very same thing, opened for more than O_PATH allows."""
        try:
            return os.open(f"/proc/self/fd/{descriptor}", flags | os.O_CLOEXEC)
        except OSError as error:
            raise refusal(error, self, spot) from error

    def _check_readable(self, real: Spot, asked: Spot) -> None:
        if not self.readable(real):
            why = "a log of Toolcrib's runs" if names.is_run_log(real.parts) else "hidden by the workspace's settings"
            raise WorkspaceError(
                f"{asked} cannot be read: it is {why}.", remedy="Work without it.", data={"path": str(asked)}
            )

    def _is_hidden(self, real: Spot) -> bool:
        if not self._hidden or not real.parts:
            return False
        return self._is_hidden_below(real.parts[:-1]) or self._matches((*self._above, *real.parts))

    def _hides(self, folder: tuple[str, ...]) -> bool:
        way = (*self._above, *folder)
        return any(self._matches(way[:length]) for length in range(1, len(way) + 1))

    def _matches(self, parts: tuple[str, ...]) -> bool:
        return self._rules.verdict("/".join(parts).casefold(), is_folder=True) is not None

    @functools.cached_property
    def _rules(self) -> Rules:
        rules = Rules(pattern.casefold() for pattern in self._hidden)
        if not rules.is_whole:
            raise WorkspaceError("The patterns of `hidden:` are too many or too large.", remedy="Name fewer places.")
        return rules


def _plain(parts: Sequence[str]) -> tuple[str, ...] | None:
    """Without `.` and `..`, as written; None if they lead out."""
    way: list[str] = []
    for part in parts:
        if part == "..":
            if not way:
                return None
            way.pop()
        elif part not in ("", "."):
            way.append(part)
    return tuple(way)
