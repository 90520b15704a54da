"""Glob: files by their names.

In: a pattern, which may be absolute. Out: paths, the newest first. The workspace's `find_files` looks.
"""

from __future__ import annotations

from typing import Annotated, cast

import msgspec

from toolcrib.agent.coding.words import in_these_words
from toolcrib.errors import WorkspaceError
from toolcrib.workspace.confined.folder import Folder
from toolcrib.workspace.looking.answer import one_line
from toolcrib.workspace.looking.look import FilesFound, FindFiles, Sort, find_files
from toolcrib.workspace.tool import Done, Scene
from toolcrib.workspace.words import count_words

MOST_FILES = 200
_WILD = frozenset("*?[{\\")


class Glob(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pattern: Annotated[str, msgspec.Meta(min_length=1, description="As in src/**/*.ts; *.py is at any depth.")]
    path: Annotated[str, msgspec.Meta(description="Folder to look in.")] = "."


def glob(scene: Scene, given: Glob) -> Done:
    with in_these_words():
        path, pattern = _begin(scene.folder, given)
        asked = FindFiles(glob=[pattern], path=path, sort=Sort.NEWEST, limit=MOST_FILES)
        found = cast("FilesFound", find_files(scene, asked).data)
    lines = list(map(one_line, found.files)) or ["No files found"]
    if found.truncated:
        more = f"{len(found.files)} of {found.total} shown. " if found.total > len(found.files) else ""
        lines.append(f"\n({more}Not everything was looked at or is shown: give a narrower pattern, or a path.)")
    elif not found.files and found.ignored:
        lines.append(f"({count_words(found.ignored, 'entry', 'entries')} of .gitignore left out; `path` can name one.)")
    return Done(found, "\n".join(lines))


def _begin(folder: Folder, given: Glob) -> tuple[str, str]:
    """Where to look, and for what: a pattern that begins with `/` or holds `..` begins at another place."""
    names = given.pattern.split("/")
    if names[0] and ".." not in names:
        return given.path, given.pattern
    plain = next((n for n, name in enumerate(names[:-1]) if _WILD & set(name)), len(names) - 1)
    if ".." in names[plain:]:
        raise WorkspaceError("The pattern goes back with .. after a wildcard.", remedy="Write it without that.")
    start = "/".join(names[:plain])
    place = folder.spot((start or "/") if not names[0] else f"{given.path}/{start}")
    return str(place), f"./{'/'.join(names[plain:])}"
