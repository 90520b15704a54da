"""What `.gitignore` files leave out, by git's own rules.

In: such a file's bytes. Out: `Rules`, which say of a path whether they ignore it, take it back, or say nothing.
`walk` asks the rules of the deepest folder first, and never looks below what is ignored, as git does. The files come
from a repository that nobody has looked at, so the patterns are matched by RE2 and not by Python's `re`.
"""

from __future__ import annotations

import enum
import functools
import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from toolcrib.workspace.patterns.globs import LONGEST, BadGlob, as_text, expression
from toolcrib.workspace.patterns.linear import Regex, Unusable, compiled

MOST_BYTES = 128 * 1024
MOST_PATTERNS = 5000
MOST_WEIGHT = 200_000
"""Characters of the expressions of one file. More takes over a tenth of a second to compile, and longer to match."""
MOST_KEPT = 5 * MOST_WEIGHT
"""Of all files whose rules are kept for the next walk."""
_TOGETHER = 100
"""Patterns in one expression. Nearly all paths fit none of them, and one look says so."""


class Verdict(enum.Enum):
    IGNORED = enum.auto()
    KEPT = enum.auto()
    """A `!` took it back."""


@dataclass(frozen=True)
class _Rule:
    verdict: Verdict
    expression: str

    @functools.cached_property
    def regex(self) -> Regex:
        return compiled(self.expression)


@dataclass(frozen=True, slots=True)
class _Group:
    rules: tuple[_Rule, ...]
    any_of: Regex
    one_verdict: Verdict | None
    """Which rule it is matters only where they differ."""


class Rules:
    """Of one file. Paths are relative to the folder that it lies in."""

    def __init__(self, lines: Iterable[str]) -> None:
        rules: list[_Rule] = []
        self.weight = 0
        is_cut = False
        for rule in filter(None, map(_rule, lines)):
            is_cut = len(rules) == MOST_PATTERNS or self.weight + len(rule.expression) > MOST_WEIGHT
            if is_cut:
                break
            rules.append(rule)
            self.weight += len(rule.expression)
        groups = [_group(tuple(rules[n : n + _TOGETHER])) for n in range(0, len(rules), _TOGETHER)]
        # The last rule that fits is the one that counts.
        self._groups = [group for group in reversed(groups) if group is not None]
        self.is_whole = not is_cut and len(self._groups) == len(groups)
        """Whether every pattern counts, also where they are many or large."""

    @classmethod
    def of_file(cls, content: bytes) -> Rules:
        """A line that was cut off is none: it could fit more than was meant."""
        is_cut = len(content) > MOST_BYTES
        lines = content[:MOST_BYTES].removeprefix(b"\xef\xbb\xbf").decode(errors="replace").split("\n")
        rules = cls(line.removesuffix("\r") for line in (lines[:-1] if is_cut else lines))
        rules.is_whole = rules.is_whole and not is_cut
        return rules

    def __bool__(self) -> bool:
        """Whether it says anything."""
        return bool(self._groups)

    def verdict(self, path: str, *, is_folder: bool) -> Verdict | None:
        text = as_text(f"{path}/" if is_folder else path)
        for group in self._groups:
            if group.any_of.fullmatch(text) is not None:
                if group.one_verdict is not None:
                    return group.one_verdict
                return next(rule.verdict for rule in reversed(group.rules) if rule.regex.fullmatch(text))
        return None


class Known:
    """Rules by the content of their files: a repository may hold the same one many times, and is walked often."""

    def __init__(self) -> None:
        self._rules: OrderedDict[bytes, Rules] = OrderedDict()
        self._weight = 0
        self._lock = threading.Lock()

    def of_file(self, content: bytes) -> Rules:
        with self._lock:
            if (known := self._rules.get(content)) is not None:
                self._rules.move_to_end(content)
                return known
        rules = Rules.of_file(content)
        with self._lock:
            if content not in self._rules:
                self._rules[content] = rules
                self._weight += len(content) + rules.weight
            while self._weight > MOST_KEPT:
                old, gone = self._rules.popitem(last=False)
                self._weight -= len(old) + gone.weight
        return rules


def _group(rules: tuple[_Rule, ...]) -> _Group | None:
    verdicts = {rule.verdict for rule in rules}
    try:
        any_of = compiled("|".join(f"(?:{rule.expression})" for rule in rules))
    except Unusable:
        # Larger than any pattern that ignores something.
        return None
    return _Group(rules, any_of, verdicts.pop() if len(verdicts) == 1 else None)


def _rule(line: str) -> _Rule | None:
    pattern = _without_spaces(line)
    if not pattern or pattern.startswith("#") or len(pattern) > LONGEST:
        return None
    verdict = Verdict.KEPT if pattern.startswith("!") else Verdict.IGNORED
    pattern = pattern.removeprefix("!")
    folders_only = pattern.endswith("/")
    pattern = pattern.removesuffix("/")
    anchored = "/" in pattern
    pattern = pattern.removeprefix("/")
    if not pattern:
        return None
    try:
        body = expression(pattern)
    except BadGlob:
        # Git takes it for a pattern that fits nothing.
        return None
    start = "" if anchored else "(?:[^/]+/)*"
    return _Rule(verdict, f"{start}{body}{'/' if folders_only else '/?'}")


def ignores_something(pattern: str) -> bool:
    """Whether it can leave anything out, which a comment or a `!` cannot."""
    rule = _rule(pattern)
    return rule is not None and rule.verdict is Verdict.IGNORED and Rules([pattern]).is_whole


def _without_spaces(line: str) -> str:
    """Spaces at the end do not count, unless a backslash stands before them."""
    end = len(line.rstrip(" "))
    escapes = end - len(line[:end].rstrip("\\"))
    return line[: end + 1] if escapes % 2 and end < len(line) else line[:end]
