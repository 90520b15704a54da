"""What `.gitignore` files leave out, by git's own rules.

In: such a file's bytes. Out: `Rules`, which say of a path whether they ignore it, take it back, or say nothing.
`walk` asks the rules of the deepest folder first, and never looks below what is ignored, as git does. The files come
from a repository that nobody has looked at, so the patterns are matched by RE2 and not by Python's `re`.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Iterable
from dataclasses import dataclass

from toolcrib.workspace.patterns.globs import LONGEST, BadGlob, as_text, expression
from toolcrib.workspace.patterns.linear import Regex, Unusable, compiled

MOST_BYTES = 256 * 1024
MOST_PATTERNS = 5000
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
        found = [rule for line in lines if (rule := _rule(line)) is not None]
        rules = found[:MOST_PATTERNS]
        groups = [_group(tuple(rules[n : n + _TOGETHER])) for n in range(0, len(rules), _TOGETHER)]
        # The last rule that fits is the one that counts.
        self._groups = [group for group in reversed(groups) if group is not None]
        self.is_whole = len(rules) == len(found) and len(self._groups) == len(groups)
        """Whether every pattern counts, also where they are many or large."""

    @classmethod
    def of_file(cls, content: bytes) -> Rules | None:
        """None if it says nothing."""
        text = content[:MOST_BYTES].removeprefix(b"\xef\xbb\xbf").decode(errors="replace")
        rules = cls(line.removesuffix("\r") for line in text.split("\n"))
        return rules if rules._groups else None

    def verdict(self, path: str, *, is_folder: bool) -> Verdict | None:
        text = as_text(f"{path}/" if is_folder else path)
        for group in self._groups:
            if group.any_of.fullmatch(text) is not None:
                if group.one_verdict is not None:
                    return group.one_verdict
                return next(rule.verdict for rule in reversed(group.rules) if rule.regex.fullmatch(text))
        return None


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
