"""The policy file that limits Gemini CLI's built-in tools below `all`.

In: the allowed tools, the run's folder. Out: the file's text. The rules override the user's rules and any approval
mode. They match a path as the model wrote it, not its target, so links into the protected folders are searched for
first and denied by name. Used by `gemini_launch`.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import unicodedata
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from toolcrib.coding_agents.client_spec import SERVER_NAME
from toolcrib.config.paths import PROJECT_FOLDER
from toolcrib.errors import UsageError

MAX_ENTRIES = 50_000
MAX_SECONDS = 2.0
MAX_ALIASES = 200


@dataclass(frozen=True, kw_only=True)
class LinkAliases:
    names: frozenset[str] = frozenset()
    """The last components of their paths."""
    are_all: bool = True
    """False if the folder is too large to be searched completely."""


def aliases_of(kept: Collection[str], workdir: Path, *, not_into: Collection[str]) -> LinkAliases:
    """`kept`: protected folders, in lower case; `not_into`: folders to skip.

    Raises UsageError if a protected folder is a link to the whole folder, or if there are too many links.
    """
    walk = _Walk(root=os.path.realpath(workdir), not_into=not_into)
    walk.go()
    # A protected folder may itself be a link, and its target has another name.
    places = {to for link, to in walk.links if link.name.lower() in kept and _lies_in(to, walk.root)}
    folders = " or ".join(sorted(kept))
    if walk.root in places:
        raise UsageError(f"In {workdir}, {folders} is a link to the folder itself.", remedy="Remove the link.")
    inside = _Inside(root=walk.root, kept=kept, places=places)
    names = {os.path.basename(place) for place in places}  # noqa: PTH119 - Path is slow for many
    names |= {link.name for link, to in walk.links if inside.has(to)} | set(inside.hard_links(walk.files))
    others = frozenset(name for name in names if name.lower() not in kept)
    if len(others) > MAX_ALIASES:
        raise UsageError(f"In {workdir}, {len(others)} links lead into {folders}.", remedy="Remove the links.")
    return LinkAliases(names=others, are_all=not walk.was_cut)


@dataclass(kw_only=True)
class _Walk:
    """Walks a folder without following links, up to the limits."""

    root: str
    not_into: Collection[str]
    links: list[tuple[os.DirEntry[str], str]] = field(default_factory=list)
    """Each with its target, which may not exist."""
    files: list[os.DirEntry[str]] = field(default_factory=list)
    was_cut: bool = False

    def go(self) -> None:
        waiting, left, until = deque([self.root]), MAX_ENTRIES, time.monotonic() + MAX_SECONDS
        while waiting and not self.was_cut:
            with contextlib.suppress(OSError), os.scandir(waiting.popleft()) as found:
                for entry in found:
                    left -= 1
                    if left < 0 or time.monotonic() > until:
                        self.was_cut = True
                        break
                    if entry.is_symlink():
                        self.links.append((entry, os.path.realpath(entry.path)))
                    elif entry.is_file():
                        self.files.append(entry)
                    elif entry.is_dir() and entry.name not in self.not_into:
                        waiting.append(entry.path)


@dataclass(frozen=True, kw_only=True)
class _Inside:
    """Tests whether a path is in a protected folder, whatever its name."""

    root: str
    kept: Collection[str]
    places: Collection[str]

    def has(self, path: str) -> bool:
        if not _lies_in(path, self.root):
            return False
        within = f"{path[len(self.root) :].lower()}{os.sep}"
        named = any(f"{os.sep}{name}{os.sep}" in within for name in self.kept)
        return named or any(_lies_in(path, place) for place in self.places)

    def hard_links(self, files: Iterable[os.DirEntry[str]]) -> Iterator[str]:
        inodes = {file.inode() for file in files if self.has(file.path) and _has_other_names(file)}
        return (file.name for file in files if file.inode() in inodes and not self.has(file.path))


def _lies_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder + os.sep)


def _has_other_names(file: os.DirEntry[str]) -> bool:
    with contextlib.suppress(OSError):
        return file.stat().st_nlink > 1
    return False


EDITS = ("replace", "write_file")
KEPT_FROM_IT = (PROJECT_FOLDER, ".gemini")
"""They hold the workspace's settings, and Gemini CLI's settings for later runs."""
_NOT_INTO = (".git", "node_modules")
"""Gemini CLI does not write there, but it would follow a link from there."""


def aliases(workdir: Path) -> LinkAliases:
    """Links through which it could write to a protected folder. Raises UsageError."""
    return aliases_of(KEPT_FROM_IT, workdir, not_into=_NOT_INTO)


def policy(own: tuple[str, ...], links: Collection[str], guarded: Collection[str] = ()) -> str:
    """`links`: other names of the protected folders. `guarded`: names of more files that it may not write."""
    rules = (
        f'mcpName = "{SERVER_NAME}"\ntoolName = "*"\ndecision = "allow"\npriority = 999\n',
        *(_never(pattern) for pattern in (_NAMES_THEM, *_name_these((*_NOT_INTO, "HEAD", *guarded, *sorted(links))))),
        f'toolName = {json.dumps(own)}\ndecision = "allow"\npriority = 998\n',
        'toolName = "*"\ndecision = "deny"\npriority = 997\n',
    )
    return "\n".join(f"[[rule]]\n{rule}" for rule in rules)


def _never(pattern: str) -> str:
    return f"toolName = {json.dumps(EDITS)}\nargsPattern = '{pattern}'\ndecision = \"deny\"\npriority = 999\n"


def _name_these(names: Iterable[str]) -> Iterator[str]:
    """One pattern each: Gemini CLI ignores a long pattern."""
    for name in names:
        # The file system may treat composed and decomposed accents as equal.
        for written in sorted({unicodedata.normalize(form, name) for form in ("NFC", "NFD")}):
            yield rf'"file_path":"(|[^"\\]*[/@]){_either_case(written)}[/"]'


def _either_case(name: str) -> str:
    return "".join(_character(letter) for letter in name)


def _character(letter: str) -> str:
    forms = {form for form in (letter, letter.lower(), letter.upper()) if len(form) == 1}
    written = sorted(map(_escaped, forms))
    return written[0] if len(written) == 1 else f"[{''.join(written)}]"


def _escaped(letter: str) -> str:
    """Escaped for a JavaScript pattern inside a quoted string."""
    if letter.isascii() and letter.isalnum():
        return letter
    units = letter.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))


_NAMES_THEM = r'"file_path":"[^"\\]*(\\|%[0-9a-fA-F][0-9a-fA-F]|({})[/"])'.format(
    "|".join(_either_case(name) for name in KEPT_FROM_IT)
)
"""Arguments that name one of these folders, in upper or lower case, or that contain an escape that only Gemini CLI
decodes."""
