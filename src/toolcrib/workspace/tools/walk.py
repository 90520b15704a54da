"""Walks a folder in order, safe against concurrent changes.

In: a folder, a start, depth and time limits. Out: one `FolderEntry` after another, sorted by name, a folder before its
contents. Every step opens one name in an open folder and never follows a link, so it cannot be led outside. `globs`
applies `.gitignore`. `listing`, `project_structure` and `search_text` walk; `workspace` uses it to suggest places of a
file that a model looked for in the wrong folder.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import itertools
import os
import stat
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from toolcrib.config.paths import PROJECT_FOLDER
from toolcrib.errors import ToolcribError, WorkspaceError
from toolcrib.workspace.confined_open import FileKind, open_child
from toolcrib.workspace.folder import Folder, FolderPath
from toolcrib.workspace.globs import MAX_IGNORE_BYTES, MAX_IGNORE_WEIGHT, IgnoreRules, IgnoreRulesCache, IgnoreVerdict
from toolcrib.workspace.protected_paths import GIT_FOLDER, normalized
from toolcrib.workspace.text import is_utf8

MAX_DEPTH = 100
"""Levels below the start; each keeps a descriptor open."""
MAX_FOLDER_NAMES = 200_000
"""Names that are read of one folder; they are sorted in memory."""
MAX_ENTRIES = 500_000
MAX_RULES = 20 * MAX_IGNORE_WEIGHT
"""Weight of all `.gitignore` files in one walk: two seconds at worst."""
_IGNORE_FILE = ".gitignore"
_known_rules = IgnoreRulesCache()


class IgnoredFiles(enum.Enum):
    LEFT_OUT = enum.auto()
    SHOWN = enum.auto()


class WalkLimit(enum.StrEnum):
    """Why a walk is incomplete, as a model reads it."""

    TIME = "timed out"
    ENTRIES = f"there are more than {MAX_ENTRIES:,} entries"
    ONE_FOLDER = f"a folder has more than {MAX_FOLDER_NAMES:,} names"
    RULES = "the .gitignore files are too large or too many to apply them all"
    DEPTH = f"folders are more than {MAX_DEPTH} levels deep"


@dataclass(frozen=True, slots=True)
class FolderEntry:
    parts: tuple[str, ...]
    kind: FileKind
    folder: int
    """The descriptor of its folder; open until the next step."""

    @property
    def name(self) -> str:
        return self.parts[-1]

    def status(self) -> os.stat_result:
        """Does not follow a link."""
        return os.stat(self.name, dir_fd=self.folder, follow_symlinks=False)

    def open(self) -> int:
        """For reading; raises OSError if it is no longer a regular file."""
        return open_regular(self.folder, self.name)


def open_regular(above: int, name: str) -> int:
    descriptor = open_child(above, name, os.O_RDONLY)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file")
    return descriptor


@dataclass(slots=True)
class _Level:
    """One open folder of the walk."""

    descriptor: int
    parts: tuple[str, ...]
    rules: tuple[tuple[int, IgnoreRules], ...]
    """Each with the depth of its folder."""
    names: Iterator[tuple[str, FileKind]] = field(default_factory=lambda: iter(()))


class FolderWalk:
    """Walks once. Then `stops` says why it is incomplete, and `left_out` is the number of ignored entries."""

    def __init__(
        self,
        folder: Folder,
        start: FolderPath,
        *,
        depth: int | None = None,
        ignored: IgnoredFiles = IgnoredFiles.LEFT_OUT,
        until: float,
    ) -> None:
        """`until`: by the monotonic clock."""
        self._folder = folder
        self._start = start
        self._depth = depth
        self._ignored = ignored
        self._until = until
        self._seen = 0
        self._rules_left = MAX_RULES
        self._base = 0
        self.only: Collection[tuple[str, ...]] | None = None
        """If set, only these entries are visited. It must include their parent folders."""
        self.stops: list[WalkLimit] = []
        self.left_out = 0
        self.unreadable = 0

    def __iter__(self) -> Iterator[FolderEntry]:
        """Raises WorkspaceError if the start is not a folder or may not be read."""
        levels: list[_Level] = []
        try:
            levels.append(self._begin())
            while levels:
                level = levels[-1]
                entry = self._next(level)
                if entry is None:
                    os.close(levels.pop().descriptor)
                    continue
                yield entry
                if self._is_over():
                    return
                if entry.kind is FileKind.FOLDER and (below := self._down(level, entry, len(levels))):
                    levels.append(below)
        finally:
            for level in levels:
                os.close(level.descriptor)

    def relative(self, entry: FolderEntry) -> tuple[str, ...]:
        """The path of the entry relative to the start."""
        return entry.parts[self._base :]

    def _is_over(self) -> bool:
        self._seen += 1
        if self._seen >= MAX_ENTRIES:
            self._stop(WalkLimit.ENTRIES)
            return True
        return self._is_late()

    def _is_late(self) -> bool:
        """Checked at every step: the patterns of an unreviewed repository may make any of them slow."""
        if time.monotonic() <= self._until:
            return False
        self._stop(WalkLimit.TIME)
        return True

    def _stop(self, why: WalkLimit) -> None:
        if why not in self.stops:
            self.stops.append(why)

    def _begin(self) -> _Level:
        descriptor = self._folder.open_dir(self._start)
        try:
            # The real path, because the start may be a link.
            real = self._folder.real_path(descriptor).parts
            refuse_git(real, self._start)
            self._base = len(real)
            level = _Level(descriptor, real, ())
            if any(is_toolcrib_folder(name) for name in real):
                # Toolcrib's own files are ignored by git, but here they were named explicitly.
                self._ignored = IgnoredFiles.SHOWN
            if self._ignored is IgnoredFiles.LEFT_OUT:
                level.rules = self._rules_above(real) + self._rules_in(descriptor, real)
            level.names = self._names(level)
        except BaseException:
            os.close(descriptor)
            raise
        return level

    def _rules_above(self, parts: tuple[str, ...]) -> tuple[tuple[int, IgnoreRules], ...]:
        """Empty if the rules ignore the start itself, because it was named explicitly."""
        rules: tuple[tuple[int, IgnoreRules], ...] = ()
        for length in range(len(parts)):
            above = self._folder.open_dir(FolderPath(parts[:length]))
            try:
                rules += self._rules_in(above, parts[:length])
            finally:
                os.close(above)
            if self._is_ignored(rules, parts[: length + 1], FileKind.FOLDER):
                return ()
        return rules

    def _rules_in(self, descriptor: int, parts: tuple[str, ...]) -> tuple[tuple[int, IgnoreRules], ...]:
        if self._is_late():
            return ()
        try:
            opened = open_regular(descriptor, _IGNORE_FILE)
        except OSError:
            return ()
        with os.fdopen(opened, "rb") as file:
            content = file.read(MAX_IGNORE_BYTES + 1)
        if self._rules_left <= 0:
            self._stop(WalkLimit.RULES)
            return ()
        rules = _known_rules.of_file(content)
        self._rules_left -= rules.weight
        if not rules.is_whole:
            self._stop(WalkLimit.RULES)
        return ((len(parts), rules),) if rules else ()

    def _down(self, level: _Level, entry: FolderEntry, depth: int) -> _Level | None:
        if depth == self._depth:
            return None
        if depth >= MAX_DEPTH:
            self._stop(WalkLimit.DEPTH)
            return None
        try:
            descriptor = open_child(level.descriptor, entry.name, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            # Deleted, not permitted, or no longer a folder.
            self.unreadable += 1
            return None
        below = _Level(descriptor, entry.parts, level.rules)
        try:
            if self._ignored is IgnoredFiles.LEFT_OUT:
                below.rules += self._rules_in(descriptor, entry.parts)
            below.names = self._names(below)
        except OSError:
            os.close(descriptor)
            self.unreadable += 1
            return None
        return below

    def _names(self, level: _Level) -> Iterator[tuple[str, FileKind]]:
        found: list[tuple[str, FileKind]] = []
        with os.scandir(level.descriptor) as names:
            for name in names:
                if len(found) >= MAX_FOLDER_NAMES:
                    self._stop(WalkLimit.ONE_FOLDER)
                    break
                if self._is_late():
                    break
                with contextlib.suppress(OSError):
                    found.append((name.name, _kind(name)))
        found.sort()
        return iter(found)

    def _next(self, level: _Level) -> FolderEntry | None:
        for name, kind in level.names:
            if self._is_late():
                return None
            parts = (*level.parts, name)
            # Ignored entries are counted even if only some entries are visited.
            if self._is_left_out(parts, kind, level.rules):
                continue
            if self.only is not None and parts not in self.only:
                continue
            return FolderEntry(parts, kind, level.descriptor)
        return None

    def _is_left_out(self, parts: tuple[str, ...], kind: FileKind, rules: tuple[tuple[int, IgnoreRules], ...]) -> bool:
        if normalized(parts[-1]) == GIT_FOLDER or not self._folder.readable(FolderPath(parts)):
            return True
        if self._ignored is IgnoredFiles.SHOWN:
            return False
        if is_toolcrib_folder(parts[-1]):
            return True
        if rules and self._is_ignored(rules, parts, kind):
            self.left_out += 1
            return True
        return False

    def _is_ignored(self, rules: tuple[tuple[int, IgnoreRules], ...], parts: tuple[str, ...], kind: FileKind) -> bool:
        """When time is up, an entry counts as ignored, so that nothing is shown by mistake."""
        for length, some in reversed(rules):
            if self._is_late():
                return True
            verdict = some.verdict("/".join(parts[length:]), is_folder=kind is FileKind.FOLDER)
            if verdict is not None:
                return verdict is IgnoreVerdict.IGNORED
        return False


def refuse_git(real: tuple[str, ...], asked: FolderPath) -> None:
    if any(normalized(name) == GIT_FOLDER for name in real):
        raise WorkspaceError(
            f"{asked} belongs to git and is not listed or searched.",
            remedy="project_diff shows what changed; read_file reads a single file of it.",
        )


def is_toolcrib_folder(name: str) -> bool:
    return normalized(name) == PROJECT_FOLDER


def _kind(name: os.DirEntry[str]) -> FileKind:
    if name.is_symlink():
        return FileKind.LINK
    if name.is_dir(follow_symlinks=False):
        return FileKind.FOLDER
    return FileKind.FILE if name.is_file(follow_symlinks=False) else FileKind.OTHER


SUGGESTION_SECONDS = 0.3
SUGGESTION_ENTRIES = 20_000
MAX_SUGGESTIONS = 3


def is_missing_path(error: ToolcribError) -> bool:
    """Whether `explain_os_error` reported a missing path."""
    return isinstance(error, WorkspaceError) and "near" in error.data and bool(error.data.get("path"))


def suggest_places(folder: Folder, error: ToolcribError) -> ToolcribError:
    asked = str(error.data["path"])
    name = asked.rpartition("/")[2]
    walk = FolderWalk(folder, FolderPath(), until=time.monotonic() + SUGGESTION_SECONDS)
    entries = itertools.islice(walk, SUGGESTION_ENTRIES)
    same = ("/".join(entry.parts) for entry in entries if entry.name == name)
    found = list(itertools.islice(filter(is_utf8, same), MAX_SUGGESTIONS))
    if not found:
        return error
    near = list(dict.fromkeys([*found, *error.data["near"]]))[:MAX_SUGGESTIONS]
    return WorkspaceError(error.message, remedy=f"Did you mean {', '.join(near)}?", data={"path": asked, "near": near})
