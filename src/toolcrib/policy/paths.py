"""Resolves paths for one decision.

In: the paths of a call or a rule, and the folders that relative paths start from. Out: each path as written and after
resolving links; None if it cannot be checked. `condition` uses it; `permission` creates a `PathResolver` for each
decision. It reads links, and nothing else on the disk.
"""

from __future__ import annotations

import os
import re
import unicodedata
from typing import Any, NamedTuple

LONGEST_PATH = 1024
DEEPEST_PATH = 32
MOST_PATHS = 64
"""Maximum number of paths in one argument; with more, none can be checked."""
LONGEST_WAY = 256
"""Maximum number of names in a resolved path, including links: more than real paths have. It ends a loop of links."""
MOST_LOOKS = 2048
"""Maximum number of lookups on the disk per decision, because they block the event loop."""

# Text that a server may not read as a path relative to its folder: a home folder, a variable, an option, a quoted or
# padded name. A leading `./` makes it plain.
_ODD_START = re.compile(r"[~$'\"\s-]|[a-zA-Z][a-zA-Z0-9+.-]*://|file:", re.IGNORECASE)
_ODD_PART = re.compile(r"[\\\0]|%[0-9a-fA-F]{2}|\s\Z")


def is_plain(path: str) -> bool:
    """Whether every server reads it as the same path."""
    if not path or len(path) > LONGEST_PATH or path.count("/") > DEEPEST_PATH or not encodable(path) or _odd(path):
        return False
    # A server may normalize Unicode. The result must contain no new `..`, separator or escape; a combining accent is
    # harmless, and so is the dot of an ellipsis among other letters.
    meant = unicodedata.normalize("NFKC", path)
    return meant == path or (not _odd(meant) and _turns(meant) == _turns(path))


def _odd(path: str) -> bool:
    return _ODD_START.match(path) is not None or _ODD_PART.search(path) is not None


def _turns(path: str) -> list[str]:
    return [name if name in ("", ".", "..") else "name" for name in path.split("/")]


def encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def folded_text(text: str) -> str:
    """The same for all spellings that a lenient file system or server treats alike: case, Unicode composition."""
    return unicodedata.normalize("NFKC", text).casefold()


class ResolvedPath(NamedTuple):
    written: str
    """Without `.`, `..` and repeated slashes."""
    real: tuple[str, ...]
    """After resolving links; for a call's path also after removing `..` first, as some servers do."""
    folded: frozenset[str]

    def surely_in(self, folder: ResolvedPath) -> bool:
        real = folder.real[0]
        if not (_inside(self.written, folder.written) or _inside(self.written, real)):
            return False
        return all(_inside(place, real) for place in self.real)

    def maybe_in(self, folder: ResolvedPath) -> bool:
        return any(_inside(place, root) for place in self.folded for root in folder.folded)


class PathResolver:
    """Looks up links for one decision: every name once, and at most `MOST_LOOKS` names."""

    __slots__ = ("_folder", "_home", "_links", "_roots", "_values")

    def __init__(self, folder: str | None) -> None:
        """`folder` is the working folder of the called server, None if unknown."""
        self._folder = folder
        self._home: str | None = None
        self._links: dict[str, str | None] = {}
        self._values: dict[str, ResolvedPath | None] = {}
        self._roots: dict[str, ResolvedPath | None] = {}

    def value(self, value: Any) -> ResolvedPath | None:
        """A path in a call. A relative path starts at the server's folder, not at the agent's."""
        if not isinstance(value, str):
            return None
        if value not in self._values:
            self._values[value] = self._value(value)
        return self._values[value]

    def root(self, path: str) -> ResolvedPath | None:
        """An absolute folder of a rule."""
        if path not in self._roots:
            written = _normal(path)
            self._roots[path] = _places(written, [self._followed(written)])
        return self._roots[path]

    def _value(self, value: str) -> ResolvedPath | None:
        if not is_plain(value):
            return None
        raw = value
        if not value.startswith("/"):
            if self._home is None:
                # The working folder of a process has its links resolved.
                self._home = self._followed(self._folder) if self._folder else None
            if self._home is None:
                return None
            raw = f"{self._home}/{value}"
        written = _normal(raw)
        ways = (raw,) if written == raw else (raw, written)
        return _places(written, [self._followed(way) for way in ways])

    def _followed(self, path: str) -> str | None:
        """Resolves links like the operating system: a link before the `..` after it."""
        if not path.startswith("/"):
            return None
        done, rest = "", path.split("/")[::-1]
        for _ in range(LONGEST_WAY):
            if not rest:
                return done or "/"
            name = rest.pop()
            if name in ("", "."):
                continue
            if name == "..":
                done = done.rpartition("/")[0]
                continue
            here = f"{done}/{name}"
            if here not in self._links:
                if len(self._links) >= MOST_LOOKS:
                    return None
                self._links[here] = _link(here)
            target = self._links[here]
            if target is None:
                done = here
                continue
            done = "" if target.startswith("/") else done
            rest += target.split("/")[::-1]
        return None


class PathContext:
    """Resolves the paths of one agent's rules and of one call."""

    __slots__ = ("base", "resolver")

    def __init__(self, base: str | None, resolver: PathResolver) -> None:
        self.base = base
        """The agent's folder, where its rules' relative folders start; None if it has none."""
        self.resolver = resolver
        """Shared by the agent and its parents in one decision."""

    def folder(self, path: str) -> ResolvedPath | None:
        """The folder that a rule names."""
        if path.startswith("/"):
            return self.resolver.root(path)
        return None if self.base is None else self.resolver.root(f"{self.base}/{path}")


def _places(written: str, real: list[str | None]) -> ResolvedPath | None:
    known = tuple(place for place in real if place is not None)
    if len(known) < len(real):
        return None
    return ResolvedPath(written, known, frozenset(map(folded_text, (written, *known))))


def _link(path: str) -> str | None:
    """None if it is not a link or does not exist."""
    try:
        return os.readlink(path)  # noqa: PTH115 - a Path would normalize the target
    except OSError:
        return None


def _normal(path: str) -> str:
    """Without `.`, `..` and repeated slashes, including the two leading ones that POSIX keeps."""
    return "/" + os.path.normpath(path).lstrip("/")


def _inside(path: str, root: str) -> bool:
    return path == root or path.startswith(root if root.endswith("/") else f"{root}/")
