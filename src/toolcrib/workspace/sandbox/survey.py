"""Searches the folder for paths that a command must not touch: repositories, submodules, hidden files, sockets.

In: the folder, and paths that are already known. Out: a `Survey` of paths with device and inode, so that `inner` can
check that exactly these were mounted. The search is bounded. If files are hidden, exceeding a bound is an error, since
a missed file would be visible. Otherwise one large search at the start finds the paths, and the small search before
each command visits them again. Each step opens one name and never follows a link, because a running command can
replace a folder with a link at any moment.

A folder that commands cannot list is masked entirely: it may contain anything, and its owner can reopen it.
Submodules are listed in git's index (versions 2 to 4). git enters them and obeys their configuration, so their `.git`
matters as much as the one at the top. The index is untrusted input, so parsing it is bounded in memory and time.
"""

from __future__ import annotations

import contextlib
import os
import stat
import struct
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from toolcrib.errors import WorkspaceError
from toolcrib.workspace import protected_paths
from toolcrib.workspace.confined_open import FileKind
from toolcrib.workspace.folder import Folder, FolderPath

_STEP = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LIST_AND_ENTER = 0o5


@contextlib.contextmanager
def open_inside(folder: Folder, parts: Sequence[str]) -> Iterator[int]:
    """Yield a descriptor (O_PATH) of a folder; OSError if any of the names is missing, no folder, or a link."""
    descriptor = os.dup(folder.fd)
    try:
        for name in parts:
            below = os.open(name, _STEP, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = below
        yield descriptor
    finally:
        os.close(descriptor)


def commands_may_enter(folder: Folder, descriptor: int) -> bool:
    """Whether commands could list and enter that folder."""
    if os.geteuid() != 0:
        return os.access(f"/proc/self/fd/{descriptor}", os.R_OK | os.X_OK)
    # Commands run as the owner and without capabilities, root or not.
    there = os.fstat(descriptor)
    uid, gid = folder.owner
    shift = 6 if there.st_uid == uid else 3 if there.st_gid == gid else 0
    return (there.st_mode >> shift) & _LIST_AND_ENTER == _LIST_AND_ENTER


_HEADER = struct.Struct(">4sII")
_MODE_AT = 24
_STAT_SIZE = 40
_HASHES = (20, 32)
"""Bytes of an object ID: SHA-1, SHA-256."""
_GITLINK = 0o160000
_EXTENDED = 0x4000
MAX_INDEX_PATH_LENGTH = 4096
MAX_INDEX_ENTRIES = 2_000_000
MAX_SUBMODULES = 250
_MAX_NUMBER_LENGTH = 5
_CLOCK_EVERY = 10_000


class NotAnIndex(ValueError):
    """git would not read it either, or we cannot parse it."""


class IndexTooLarge(NotAnIndex):
    """The index is implausibly large, or takes too long to read."""


def submodule_links(data: bytes, until: float = float("inf")) -> list[bytes]:
    """Paths of submodules; NotAnIndex if it cannot be parsed, IndexTooLarge if it exceeds a bound."""
    if not data:
        return []
    for hash_size in _HASHES:
        try:
            found = _links(data, hash_size, until)
        except IndexTooLarge:
            raise
        except (NotAnIndex, struct.error, IndexError):
            continue
        if b"" in found:
            # In a split index a changed entry has no name. git never turns a file into a submodule that way.
            raise NotAnIndex("a submodule without a path")
        return found
    raise NotAnIndex("no index of version 2, 3 or 4")


def _links(data: bytes, hash_size: int, until: float) -> list[bytes]:
    found: list[bytes] = []
    for number, (path, mode) in enumerate(_entries(data, hash_size)):
        if mode & 0o170000 == _GITLINK:
            found.append(path)
        if len(found) > MAX_SUBMODULES:
            raise IndexTooLarge(f"more than {MAX_SUBMODULES} submodules")
        if number % _CLOCK_EVERY == 0 and time.monotonic() > until:
            raise IndexTooLarge("takes too long to read")
    return found


def _entries(data: bytes, hash_size: int) -> Iterator[tuple[bytes, int]]:
    mark, version, count = _HEADER.unpack_from(data)
    if mark != b"DIRC" or version not in {2, 3, 4}:
        raise NotAnIndex("not an index")
    if count > MAX_INDEX_ENTRIES:
        raise IndexTooLarge(f"more than {MAX_INDEX_ENTRIES} files")
    at = _HEADER.size
    before = b""
    for _ in range(count):
        begin = at
        (mode,) = struct.unpack_from(">I", data, begin + _MODE_AT)
        if mode & 0o170000 not in {0o040000, 0o100000, 0o120000, _GITLINK}:
            raise NotAnIndex("an entry of unknown kind")
        at = begin + _STAT_SIZE + hash_size
        (flags,) = struct.unpack_from(">H", data, at)
        at += 4 if version >= 3 and flags & _EXTENDED else 2
        if version == 4:
            cut, at = _number(data, at)
            if cut > len(before):
                raise NotAnIndex("a path of negative length")
            end = _end_of_path(data, at)
            path = before[: len(before) - cut] + data[at:end]
            at = end + 1
            if len(path) > MAX_INDEX_PATH_LENGTH:
                raise NotAnIndex("a path that is too long")
        else:
            end = _end_of_path(data, at)
            path = data[at:end]
            at = begin + (end - begin + 8) // 8 * 8
        before = path
        yield path, mode


def _end_of_path(data: bytes, at: int) -> int:
    end = data.find(b"\0", at, at + MAX_INDEX_PATH_LENGTH + 1)
    if end < 0:
        raise NotAnIndex("a path that is too long")
    return end


def _number(data: bytes, at: int) -> tuple[int, int]:
    """git's offset encoding: seven bits per byte, most significant first."""
    value, begin = data[at] & 0x7F, at
    while data[at] & 0x80:
        at += 1
        if at - begin >= _MAX_NUMBER_LENGTH:
            raise NotAnIndex("a number that is too long")
        value = ((value + 1) << 7) | (data[at] & 0x7F)
    return value, at + 1


MAX_MASKS = 500
MAX_PATHS = 1000
"""Per kind; every mount slows down every command."""
MAX_MOUNT_PATH_LENGTH = 3500
"""The kernel cannot mount at longer paths; only commands create them."""
NOT_WALKED = frozenset({"node_modules", "__pycache__", ".venv", "venv", ".tox", ".nox"})
"""Large generated folders, in which people don't run git."""
GIT = ".git"
TOOLCRIB = ".toolcrib"
_HEAD = protected_paths.HEAD.casefold()
Parts = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class SurveyBounds:
    entries: int
    depth: int
    seconds: float
    packages: bool = False
    """Whether to search the `NOT_WALKED` folders too."""


BEFORE_A_COMMAND = SurveyBounds(entries=20_000, depth=8, seconds=5)
AT_THE_START = SurveyBounds(entries=500_000, depth=32, seconds=20, packages=True)
HIDING = SurveyBounds(entries=200_000, depth=64, seconds=20)


@dataclass(frozen=True, kw_only=True)
class SurveyedPath:
    parts: Parts
    kind: FileKind
    device: int
    inode: int
    changed: float = field(default=0, compare=False)
    """The ctime, which programs cannot set."""


@dataclass(kw_only=True)
class Survey:
    began: float = field(default_factory=time.time)
    repositories: list[SurveyedPath] = field(default_factory=list)
    """Every `.git` below the top level."""
    heads: list[SurveyedPath] = field(default_factory=list)
    """HEAD files, by which git recognizes a bare repository."""
    bare: list[SurveyedPath] = field(default_factory=list)
    """The heads whose folder is a complete repository."""
    guarded: list[SurveyedPath] = field(default_factory=list)
    """Topmost paths that control other programs."""
    own: list[SurveyedPath] = field(default_factory=list)
    """Every `.toolcrib` below the top level."""
    hidden: list[SurveyedPath] = field(default_factory=list)
    """Topmost hidden paths."""
    closed: list[SurveyedPath] = field(default_factory=list)
    """Folders that cannot be listed or entered."""
    sockets: list[SurveyedPath] = field(default_factory=list)
    """Connections to processes outside."""
    running: list[SurveyedPath] = field(default_factory=list)
    """Our own interpreter and packages, if they are in the folder."""
    submodules: list[Parts] = field(default_factory=list)
    """Folders that git enters, whether or not they exist."""
    unreadable: str = ""
    """Why the submodules cannot be determined."""
    under_way: list[str] = field(default_factory=list)
    """Unfinished git operations, as names in `.git`."""
    is_whole: bool = True
    """False if a bound ended the search."""
    is_crowded: bool = False
    """Whether paths were dropped for lack of room; a command's paths may have displaced the user's."""

    @property
    def is_empty(self) -> bool:
        places = (self.repositories, self.bare, self.own, self.hidden, self.closed, self.sockets, self.running)
        # At the top level there is no parent to replace.
        is_guarded = any(len(found.parts) > 1 for found in self.guarded)
        return not (any(places) or is_guarded or self.submodules or self.unreadable or self.under_way)

    def where(self, is_so: Callable[[SurveyedPath], bool]) -> Survey:
        return replace(
            self,
            repositories=list(filter(is_so, self.repositories)),
            bare=list(filter(is_so, self.bare)),
            guarded=list(filter(is_so, self.guarded)),
            own=list(filter(is_so, self.own)),
            hidden=list(filter(is_so, self.hidden)),
            closed=list(filter(is_so, self.closed)),
            sockets=list(filter(is_so, self.sockets)),
            running=list(filter(is_so, self.running)),
        )

    def known(self) -> list[Parts]:
        """Paths that the next search must visit, however many files exist by then."""
        kinds = (self.repositories, self.heads, self.guarded, self.own, self.sockets)
        return [found.parts for kind in kinds for found in kind]


def look_at(folder: Folder, parts: Parts) -> SurveyedPath | None:
    """The path as it is now (a link is not followed); None if it is missing, or a parent is a link."""
    try:
        with open_inside(folder, parts[:-1]) as place:
            return surveyed_path(parts, os.stat(parts[-1], dir_fd=place, follow_symlinks=False))
    except (FileNotFoundError, NotADirectoryError):
        return None


def survey(folder: Folder, bounds: SurveyBounds, *, hides: bool, known: Iterable[Parts] = ()) -> Survey:
    surveyor = _Surveyor(folder, bounds, hides=hides)
    for parts in known:
        surveyor.revisit(parts)
    # The most important paths are at the top; visit them however many files there are.
    for name in (protected_paths.HEAD, *folder.guarded_names):
        surveyor.revisit((name,))
    surveyor.find_git_sockets()
    surveyor.walk()
    return surveyor.result


class _Surveyor:
    def __init__(self, folder: Folder, bounds: SurveyBounds, *, hides: bool) -> None:
        self._folder = folder
        self._bounds = bounds
        self._hides = hides
        self._left = bounds.entries
        self._end = time.monotonic() + bounds.seconds
        self._seen: set[Parts] = set()
        self._waiting: deque[Parts] = deque([()])
        self.result = Survey()

    def revisit(self, parts: Parts) -> None:
        """Visit a known path. If a parent folder has been closed since, record the parent instead."""
        if self._hides and not self._folder.readable(FolderPath(parts)):
            return
        for length in range(1, len(parts)):
            if not self._enters(parts[:length]):
                return
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), open_inside(self._folder, parts[:-1]) as place:
            self._sort(parts, os.stat(parts[-1], dir_fd=place, follow_symlinks=False))

    def find_git_sockets(self) -> None:
        """git's own servers listen at the top of `.git`."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            with open_inside(self._folder, (GIT,)) as place:
                descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=place)
            try:
                with os.scandir(descriptor) as entries:
                    for entry in entries:
                        with contextlib.suppress(FileNotFoundError):
                            there = entry.stat(follow_symlinks=False)
                            if stat.S_ISSOCK(there.st_mode):
                                self._add(self.result.sockets, (GIT, entry.name), there, MAX_PATHS)
            finally:
                os.close(descriptor)

    def walk(self) -> None:
        """Visit all entries breadth-first, without following links or entering hidden folders."""
        while self._waiting:
            if self._left < 0:
                return
            if time.monotonic() > self._end:
                self._give_up()
                return
            parts = self._waiting.popleft()
            if self._enters(parts):
                with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
                    self._list(parts)

    def _enters(self, parts: Parts) -> bool:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            with open_inside(self._folder, parts) as place:
                if commands_may_enter(self._folder, place):
                    return True
                there = os.fstat(place)
            if not parts:
                raise WorkspaceError(
                    f"{self._folder.root} cannot be listed, so nothing in it can be protected from commands.",
                    remedy=f"`chmod u+rwx {self._folder.root}`.",
                )
            self._add(self.result.closed, parts, there, MAX_MASKS)
        return False

    def _list(self, parts: Parts) -> None:
        with open_inside(self._folder, parts) as place:
            descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=place)
        try:
            with os.scandir(descriptor) as entries:
                for entry in entries:
                    self._left -= 1
                    if self._left < 0:
                        self._give_up()
                        return
                    if parts or entry.name not in {GIT, TOOLCRIB}:
                        with contextlib.suppress(FileNotFoundError):
                            self._entry((*parts, entry.name), entry)
        finally:
            os.close(descriptor)

    def _entry(self, parts: Parts, entry: os.DirEntry[str]) -> None:
        is_hidden = self._hides and not self._folder.readable(FolderPath(parts))
        is_folder = entry.is_dir(follow_symlinks=False)
        is_plain = is_folder or entry.is_file(follow_symlinks=False) or entry.is_symlink()
        is_guarded = not is_hidden and self._guards(parts)
        if is_hidden or is_guarded or not is_plain or entry.name.casefold() in {GIT, TOOLCRIB, _HEAD}:
            self._sort(parts, entry.stat(follow_symlinks=False), is_hidden=is_hidden)
        if is_folder and not is_hidden and self._goes_into(parts):
            self._waiting.append(parts)

    def _sort(self, parts: Parts, there: os.stat_result, *, is_hidden: bool = False) -> None:
        name = parts[-1].casefold()
        if is_hidden:
            self._add(self.result.hidden, parts, there, MAX_MASKS)
        elif name == GIT:
            self._add(self.result.repositories, parts, there, MAX_PATHS)
        elif name == TOOLCRIB:
            self._add(self.result.own, parts, there, MAX_PATHS)
        elif stat.S_ISSOCK(there.st_mode):
            self._add(self.result.sockets, parts, there, MAX_PATHS)
        elif name == _HEAD and self._is_head(parts, there):
            self._add(self.result.heads, parts, there, MAX_PATHS)
        elif self._guards(parts) and not self._guards(parts[:-1]):
            self._add(self.result.guarded, parts, there, MAX_PATHS)

    def _guards(self, parts: Parts) -> bool:
        """Not in packages, which may contain many and which people don't open."""
        return self._folder.guarded(FolderPath(parts)) and NOT_WALKED.isdisjoint(parts)

    def _is_head(self, parts: Parts, there: os.stat_result) -> bool:
        """Also records the path as bare if its folder is a complete repository."""
        if parts in self._seen or any(part.casefold() == GIT for part in parts):
            return False
        with contextlib.suppress(OSError), open_inside(self._folder, parts[:-1]) as place:
            if stat.S_ISLNK(there.st_mode):
                is_one = protected_paths.is_head_link(os.readlink(parts[-1], dir_fd=place))
            else:
                is_one = stat.S_ISREG(there.st_mode) and protected_paths.is_head(_start(place, parts[-1]))
            if is_one and (_has(place, "commondir") or (_has(place, "objects") and _has(place, "refs"))):
                self.result.bare.append(surveyed_path(parts, there))
            return is_one
        return False

    def _add(self, kind: list[SurveyedPath], parts: Parts, there: os.stat_result, most: int) -> None:
        if parts in self._seen:
            return
        fits = most == MAX_MASKS or len(os.fsencode(self._folder.root.joinpath(*parts))) <= MAX_MOUNT_PATH_LENGTH
        if fits and len(kind) < most:
            self._seen.add(parts)
            kind.append(surveyed_path(parts, there))
        elif most == MAX_MASKS:
            raise WorkspaceError(
                f"Commands cannot run: more than {MAX_MASKS} files are hidden or folders unreadable.",
                remedy="Hide parent folders instead of single files; make folders readable with `chmod u+rx`.",
            )
        else:
            self.result.is_whole = False
            self.result.is_crowded = self.result.is_crowded or fits

    def _goes_into(self, parts: Parts) -> bool:
        name = parts[-1].casefold()
        is_passed_by = name == GIT or (parts[-1] in NOT_WALKED and not self._bounds.packages)
        if name == TOOLCRIB or (is_passed_by and not self._hides):
            return False
        if len(parts) < self._bounds.depth:
            return True
        self._give_up()
        return False

    def _give_up(self) -> None:
        self.result.is_whole = False
        if self._hides:
            raise WorkspaceError(
                "The folder has too many files or levels to guarantee that hidden files stay hidden from "
                f"commands ({self._bounds.entries} files, {self._bounds.depth} levels, {self._bounds.seconds} s).",
                remedy="Remove unneeded files, hide nothing, or open a smaller folder as the workspace.",
            )


def _start(place: int, name: str) -> bytes:
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=place)
    with open(descriptor, "rb") as file:  # noqa: PTH123 - by descriptor
        return file.read(protected_paths.HEAD_BYTES)


def _has(place: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=place, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def surveyed_path(parts: Parts, there: os.stat_result) -> SurveyedPath:
    return SurveyedPath(
        parts=parts,
        kind=FileKind.of(there.st_mode),
        device=there.st_dev,
        inode=there.st_ino,
        changed=there.st_ctime,
    )
