"""Which file a path means, for one decision.

In: paths as a call or a rule gives them, and the folders that relative ones start at. Out: where they are, as they are
written and where links lead; None for whatever cannot be judged. `condition` asks; `permission` makes a `PathResolver`
for each decision. Reads links, and nothing else.
"""

from __future__ import annotations

import os
import re
import unicodedata
from typing import Any, NamedTuple

LONGEST_PATH = 1024
DEEPEST_PATH = 32
MOST_PATHS = 64
"""Paths in one argument; of more, none can be judged."""
LONGEST_WAY = 256
"""Names on the way to a file, those in links included: more than any real one has, and a circle of links ends here."""
MOST_LOOKS = 2048
"""Names that one decision looks up on the disk: nobody else is served meanwhile."""

# What a server may take for something else than a path from the folder it works in: home, a variable, an option,
# a quoted or padded name. A `./` before it makes it plain.
_ODD_START = re.compile(r"[~$'\"\s-]|[a-zA-Z][a-zA-Z0-9+.-]*://|file:", re.IGNORECASE)
_ODD_PART = re.compile(r"[\\\0]|%[0-9a-fA-F]{2}|\s\Z")


def is_plain(path: str) -> bool:
    """Whether all servers read it as the same path."""
    if not path or len(path) > LONGEST_PATH or path.count("/") > DEEPEST_PATH or not encodable(path) or _odd(path):
        return False
    # A server may read letters by what they stand for. Then they must stand for no `..`, separator or escape; an
    # accent that is a letter of its own is no harm, nor is one dot of an ellipsis among other letters.
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
    """The same for all that a lenient file system or server does not tell apart: cases, compositions of letters."""
    return unicodedata.normalize("NFKC", text).casefold()


class ResolvedPath(NamedTuple):
    """One path."""

    written: str
    """Without `.`, `..` and repeated slashes."""
    real: tuple[str, ...]
    """Where links lead; of a call's path also where they lead if `..` is taken away first, as some servers do."""
    folded: frozenset[str]

    def surely_in(self, folder: ResolvedPath) -> bool:
        real = folder.real[0]
        if not (_inside(self.written, folder.written) or _inside(self.written, real)):
            return False
        return all(_inside(place, real) for place in self.real)

    def maybe_in(self, folder: ResolvedPath) -> bool:
        return any(_inside(place, root) for place in self.folded for root in folder.folded)


class PathResolver:
    """What one decision sees of the disk: every name once, and no more than `MOST_LOOKS` of them."""

    __slots__ = ("_folder", "_home", "_links", "_roots", "_values")

    def __init__(self, folder: str | None) -> None:
        """`folder` is where the server works that gets the call. None: nobody knows."""
        self._folder = folder
        self._home: str | None = None
        self._links: dict[str, str | None] = {}
        self._values: dict[str, ResolvedPath | None] = {}
        self._roots: dict[str, ResolvedPath | None] = {}

    def value(self, value: Any) -> ResolvedPath | None:
        """A path in a call: a relative one means what it means to the server, wherever the agent itself works."""
        if not isinstance(value, str):
            return None
        if value not in self._values:
            self._values[value] = self._value(value)
        return self._values[value]

    def root(self, path: str) -> ResolvedPath | None:
        """A folder in a rule, whole."""
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
                # A process works in the real folder, whatever links it was sent there by.
                self._home = self._followed(self._folder) if self._folder else None
            if self._home is None:
                return None
            raw = f"{self._home}/{value}"
        written = _normal(raw)
        ways = (raw,) if written == raw else (raw, written)
        return _places(written, [self._followed(way) for way in ways])

    def _followed(self, path: str) -> str | None:
        """Where links lead, as the system goes: a link before the `..` after it."""
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
    """What the paths of one agent's rules, and of one call, are judged on."""

    __slots__ = ("base", "resolver")

    def __init__(self, base: str | None, resolver: PathResolver) -> None:
        self.base = base
        """The agent's folder, where relative folders of its rules start. None: it has none."""
        self.resolver = resolver
        """Shared by all agents whose rules take part in the decision."""

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
    """None: it is no link, or is not there."""
    try:
        return os.readlink(path)  # noqa: PTH115 - a Path would take away what it thinks is superfluous
    except OSError:
        return None


def _normal(path: str) -> str:
    """Without `.`, `..` and repeated slashes; also without the two at the front that POSIX would keep."""
    return "/" + os.path.normpath(path).lstrip("/")


def _inside(path: str, root: str) -> bool:
    return path == root or path.startswith(root if root.endswith("/") else f"{root}/")
