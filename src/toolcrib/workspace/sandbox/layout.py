"""The mounts over the folder while a command runs: for git's and Toolcrib's files, hidden files, and sockets.

In: the folder, the settings, whether the command may write. Out: bubblewrap's arguments, and the mounts that `inner`
has to find. `git_protection` protects the dangerous parts of a repository, `survey` finds the paths.

The arguments are paths, and a running command could replace a parent folder with a link. So below the top level only
paths that `folder_lock` has settled are mounted over, and `inner` compares each with the device and inode seen here.
If one differs, nothing is run.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from toolcrib.errors import WorkspaceError
from toolcrib.workspace.confined_open import FileKind
from toolcrib.workspace.folder import Folder, FolderPath
from toolcrib.workspace.sandbox import git_protection
from toolcrib.workspace.sandbox.git_protection import Placeholders
from toolcrib.workspace.sandbox.survey import (
    BEFORE_A_COMMAND,
    GIT,
    HIDING,
    TOOLCRIB,
    NotAnIndex,
    Survey,
    SurveyedPath,
    look_at,
    open_inside,
    survey,
    surveyed_path,
)
from toolcrib.workspace.settings.model import GitMode, WorkspaceSettings


@dataclass(kw_only=True)
class MountLayout:
    root: Path
    places: dict[tuple[str, ...], tuple[SurveyedPath, bool]] = field(default_factory=dict)
    """Paths mounted on themselves, which prevents renaming and replacing; True for read-only."""
    masks: list[SurveyedPath] = field(default_factory=list)
    own: list[list[SurveyedPath]] = field(default_factory=list)
    """The readable rest of each `.toolcrib`, starting with the folder itself."""

    def fix(self, found: SurveyedPath, *, read_only: bool) -> None:
        if found.parts not in self.places or read_only:
            self.places[found.parts] = (found, read_only)

    def at(self, parts: tuple[str, ...]) -> str:
        return str(self.root.joinpath(*parts))

    def arguments(self) -> list[str]:
        """For bubblewrap. Outer paths come first, because a mount hides earlier mounts below it."""
        mounts: list[tuple[int, list[str]]] = []
        for parts, (_, read_only) in self.places.items():
            mounts.append((len(parts), ["--ro-bind" if read_only else "--bind", self.at(parts), self.at(parts)]))
        mounts += [(len(found.parts), self._mask(found)) for found in self.masks]
        mounts += [(len(own[0].parts), self._own_arguments(own)) for own in self.own]
        return [word for _, arguments in sorted(mounts, key=lambda mount: mount[0]) for word in arguments]

    def expected(self) -> tuple[list[tuple[bytes, int, int, bool]], list[tuple[bytes, int]]]:
        """For `inner`: paths with device, inode and whether read-only; masks with the device they must not be on."""
        places = [*self.places.values(), *((found, True) for own in self.own for found in own[1:])]
        masks = [*self.masks, *(own[0] for own in self.own)]
        return (
            [(os.fsencode(self.at(found.parts)), found.device, found.inode, only) for found, only in places],
            [(os.fsencode(self.at(found.parts)), found.device) for found in masks],
        )

    def covers(self, parts: tuple[str, ...]) -> bool:
        """Whether a mask makes the path unreachable."""
        return any(parts[: len(found.parts)] == found.parts for found in self.masks)

    def _mask(self, found: SurveyedPath) -> list[str]:
        path = self.at(found.parts)
        if found.kind is FileKind.FOLDER:
            return ["--perms", "0555", "--size", "4096", "--tmpfs", path, "--remount-ro", path]
        # Mounted without device access, so it cannot be opened.
        return ["--ro-bind", "/dev/null", path]

    def _own_arguments(self, own: list[SurveyedPath]) -> list[str]:
        path = self.at(own[0].parts)
        arguments = ["--perms", "0755", "--size", "65536", "--tmpfs", path]
        for entry in own[1:]:
            arguments += ["--ro-bind", self.at(entry.parts), self.at(entry.parts)]
        return [*arguments, "--remount-ro", path]


def survey_folder(folder: Folder, settings: WorkspaceSettings, known: Iterable[tuple[str, ...]] = ()) -> Survey:
    """The paths to protect in the folder."""
    hides = bool(settings.hidden)
    seen = survey(folder, HIDING if hides else BEFORE_A_COMMAND, hides=hides, known=known)
    try:
        seen.submodules = git_protection.submodule_paths(folder)
    except NotAnIndex as error:
        seen.unreadable = str(error)
        return seen
    except PermissionError as error:
        seen.unreadable = f"{GIT}: {error.strerror}"
        return seen
    seen.under_way = git_protection.git_operations_under_way(folder)
    there = [look_at(folder, parts) for parts in folder.running]
    seen.running = [found for found in there if found is not None and found.kind in {FileKind.FOLDER, FileKind.FILE}]
    return seen


def lay_out_mounts(
    folder: Folder, mode: GitMode, seen: Survey, placeholders: Placeholders, *, writes: bool
) -> MountLayout:
    """`seen` holds the paths that may be mounted over."""
    layout = MountLayout(root=folder.root)
    there = os.fstat(folder.fd)
    layout.fix(surveyed_path((), there), read_only=not writes)
    layout.masks += [found for found in [*seen.hidden, *seen.closed, *seen.sockets] if found.kind is not FileKind.LINK]
    if writes:
        if seen.unreadable:
            raise _index_error(seen.unreadable)
        if seen.is_crowded:
            raise crowd_error()
        _repository(layout, folder, mode, seen, placeholders)
        for parts in seen.submodules:
            _submodule(layout, folder, parts, placeholders)
        bare = [_repository_at(folder, head) for head in seen.bare]
        # A link cannot be mounted over, so a command may replace it; that is repaired afterwards.
        guarded = [found for found in seen.guarded if found.kind is not FileKind.LINK]
        for found in [*seen.repositories, *bare, *guarded, *seen.running]:
            _make_read_only(layout, folder, found)
        for found in layout.masks:
            _pin_parents(layout, folder, found)
    _own_files(layout, folder, placeholders, writes=writes)
    for found in seen.own:
        _nested_own_files(layout, folder, found, writes=writes)
    return layout


def _repository(layout: MountLayout, folder: Folder, mode: GitMode, seen: Survey, placeholders: Placeholders) -> None:
    found = look_at(folder, (GIT,))
    if found is None or placeholders.may_be_one(GIT, None):
        placeholders.hold(GIT, None)
        layout.fix(_must_be_there(folder, (GIT,)), read_only=True)
        return
    if found.kind is FileKind.LINK:
        raise _link_error(GIT)
    may_commit = mode is GitMode.COMMIT and found.kind is FileKind.FOLDER and git_protection.is_plain_repository(folder)
    layout.fix(found, read_only=not may_commit)
    if may_commit:
        for part in [*git_protection.hold_missing(folder, placeholders), *((name,) for name in seen.under_way)]:
            layout.fix(_must_be_there(folder, (GIT, *part)), read_only=part not in git_protection.PINNED_FOLDERS)


def _repository_at(folder: Folder, head: SurveyedPath) -> SurveyedPath:
    if len(head.parts) > 1:
        return _must_be_there(folder, head.parts[:-1])
    raise WorkspaceError(
        "The folder itself is a bare git repository: commands could change its configuration, which can "
        "start programs.",
        remedy=f"If you did not create it, remove {head.parts[0]}. Or open another folder, or use read-only mode.",
    )


def _submodule(layout: MountLayout, folder: Folder, parts: tuple[str, ...], placeholders: Placeholders) -> None:
    """git enters submodules, so neither their `.git` nor their folder may be replaced."""
    if layout.covers(parts):
        return
    for length in range(1, len(parts) + 1):
        path = "/".join(parts[:length])
        found = look_at(folder, parts[:length])
        if found is None or placeholders.may_be_one(path, None) or placeholders.may_lead_to_one(path):
            placeholders.hold(path, None)
        elif found.kind is FileKind.LINK:
            raise _submodule_error(parts, parts[:length])
        elif found.kind is not FileKind.FOLDER:
            # git does not enter it unless it is a folder.
            layout.fix(found, read_only=False)
            _pin_parents(layout, folder, found)
            return
    place = (*parts, GIT)
    found = look_at(folder, place)
    if found is None or placeholders.may_be_one("/".join(place), None):
        placeholders.hold("/".join(place), None)
    _make_read_only(layout, folder, _must_be_there(folder, place))


def _make_read_only(layout: MountLayout, folder: Folder, found: SurveyedPath) -> None:
    """A link cannot be mounted over, so its parent folder becomes read-only."""
    if layout.covers(found.parts):
        return
    if found.kind is FileKind.LINK:
        found = _must_be_there(folder, found.parts[:-1])
    if found.kind in {FileKind.FOLDER, FileKind.FILE}:
        layout.fix(found, read_only=True)
        _pin_parents(layout, folder, found)


def _own_files(layout: MountLayout, folder: Folder, placeholders: Placeholders, *, writes: bool) -> None:
    """Mounts an empty folder over `.toolcrib`, and binds the readable entries into it. This hides logs of later
    runs, too."""
    found = look_at(folder, (TOOLCRIB,))
    if found is None and not writes:
        return
    if found is None or placeholders.may_be_one(TOOLCRIB, None):
        placeholders.hold(TOOLCRIB, None)
        found = _must_be_there(folder, (TOOLCRIB,))
    if found.kind is not FileKind.FOLDER:
        raise _link_error(TOOLCRIB)
    layout.own.append([found, *_readable_entries(folder, found.parts)])


def _nested_own_files(layout: MountLayout, folder: Folder, found: SurveyedPath, *, writes: bool) -> None:
    """The `.toolcrib` of another project inside this one."""
    if found.kind is not FileKind.FOLDER:
        if writes:
            _make_read_only(layout, folder, found)
    elif not layout.covers(found.parts):
        layout.own.append([found, *_readable_entries(folder, found.parts)])
        if writes:
            _pin_parents(layout, folder, found)


def _readable_entries(folder: Folder, parts: tuple[str, ...]) -> list[SurveyedPath]:
    try:
        with open_inside(folder, parts) as place:
            names = sorted(os.listdir(f"/proc/self/fd/{place}"))[:100]  # noqa: PTH208 - by descriptor
    except PermissionError:
        return []
    entries = [look_at(folder, (*parts, name)) for name in names if folder.readable(FolderPath((*parts, name)))]
    return [entry for entry in entries if entry is not None and entry.kind in {FileKind.FOLDER, FileKind.FILE}]


def _pin_parents(layout: MountLayout, folder: Folder, found: SurveyedPath) -> None:
    """Prevents renaming the parent folders: otherwise the next command would find hidden files at another path, and a
    sandbox that is being set up would mount over the wrong one."""
    for length in range(1, len(found.parts)):
        layout.fix(_must_be_there(folder, found.parts[:length]), read_only=False)


def _must_be_there(folder: Folder, parts: tuple[str, ...]) -> SurveyedPath:
    found = look_at(folder, parts)
    if found is None:
        raise WorkspaceError(f"{'/'.join(parts)} has just been removed.", remedy="Try again.")
    return found


def _link_error(name: str) -> WorkspaceError:
    return WorkspaceError(
        f"{name} in the workspace's folder is a link or a file, which cannot be protected from commands.",
        remedy=f"Replace it with a folder (for {GIT}: a file that git created is fine too).",
    )


def closed_error(error: PermissionError) -> WorkspaceError:
    return WorkspaceError(
        f"The folder cannot be protected: {error.filename or 'a folder in it'} cannot be entered.",
        remedy="Run `chmod u+rwx` on it.",
    )


def _submodule_error(parts: tuple[str, ...], link: tuple[str, ...]) -> WorkspaceError:
    return WorkspaceError(
        f"{GIT}/index names a submodule at {'/'.join(parts)}, and {'/'.join(link)} is a link: a command could "
        "replace it with a folder that git enters.",
        remedy="Remove the submodule from the index (`git rm --cached`), or replace the link with a folder.",
    )


def crowd_error() -> WorkspaceError:
    return WorkspaceError(
        "The folder has too many repositories, hidden files and similar paths to protect each of them from commands.",
        remedy="Remove repositories that commands have created, hide whole folders instead of files, or open a smaller "
        "folder as the workspace.",
    )


def _index_error(why: str) -> WorkspaceError:
    return WorkspaceError(
        f"The submodules cannot be determined, so commands could replace them: {why}.",
        remedy="`git update-index --no-split-index` or `git reset` rewrites it. Commands that only read still work.",
    )
