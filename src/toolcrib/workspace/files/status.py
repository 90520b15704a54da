"""`stat_file`: what one entry of the folder is, without opening it.

In: a path. Out: its kind, size, mode and time, where a link leads, and whether it can be written. `files` reads and
writes.
"""

from __future__ import annotations

import datetime
import os
import stat

import msgspec

from toolcrib.errors import WorkspaceError
from toolcrib.workspace.confined.atomic import why_unfit
from toolcrib.workspace.confined.beneath import Last
from toolcrib.workspace.confined.folder import Folder, Spot
from toolcrib.workspace.confined.refusal import kind_of
from toolcrib.workspace.files.files import FilePath
from toolcrib.workspace.tool import Done, Scene
from toolcrib.workspace.words import count_words


class StatFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: FilePath


class FileStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    kind: str
    size: int
    mode: str
    modified: str
    writable: bool = True
    why_not: str = ""
    """Why it cannot be written."""
    target: str = ""
    """Of a link: where it leads."""


def stat_file(scene: Scene, given: StatFile) -> Done:
    folder = scene.folder
    spot = folder.spot(given.path)
    with folder.reaching(spot, Last.LINK) as (descriptor, real):
        there = os.fstat(descriptor)
        leads = _target_of(folder, spot) if stat.S_ISLNK(there.st_mode) else ""
    why_not = _why_not_writable(scene, real, there)
    result = FileStatus(
        kind=kind_of(there.st_mode),
        size=there.st_size,
        mode=f"{stat.S_IMODE(there.st_mode):04o}",
        modified=_iso(there.st_mtime),
        writable=not why_not,
        why_not=why_not,
        target=leads,
    )
    to = f" to {leads}" if leads else ""
    said = "writable" if result.writable else f"not writable: {why_not}"
    size = count_words(result.size, "byte")
    return Done(result, f"{spot}: {result.kind}{to}, {size}, mode {result.mode}, {result.modified}, {said}.")


def _target_of(folder: Folder, spot: Spot) -> str:
    """Where a link leads; nothing is told about what lies outside."""
    try:
        with folder.reaching(spot) as (_, real):
            return str(real)
    except WorkspaceError as error:
        return f"nowhere: {error.message}"


def _why_not_writable(scene: Scene, real: Spot, there: os.stat_result) -> str:
    if scene.settings.read_only:
        return "the workspace is read-only"
    if why := scene.folder.why_not_writable(real):
        return why
    if stat.S_ISLNK(there.st_mode):
        return "it is a link; what it leads to is judged by itself"
    if stat.S_ISDIR(there.st_mode):
        return "" if there.st_mode & 0o222 else "it is read-only"
    return why_unfit(there)


def _iso(moment: float) -> str:
    try:
        return datetime.datetime.fromtimestamp(moment, datetime.UTC).isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):
        # A file's time may lie beyond all calendars.
        return f"{moment:.0f} s after 1970"
