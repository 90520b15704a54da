"""Patterns of paths: globs such as `**/*.py` or `!*.min.js`, and what `.gitignore` files leave out.

In: patterns of a person or a model, or the bytes of a `.gitignore`. Out: whether a path fits, or is ignored. The
tools choose files by globs; `tools.walk` asks the `.gitignore` of the deepest folder first, as git does.

A glob without a slash fits a name at any depth; `*` and `?` stop at a slash, `**` as a whole name does not;
`[a-z]`, `[!a-z]`, `{a,b}` and `\\` as usual; a leading `!` leaves out.

Not `pathspec`: it judges whole paths of files, while a walk has to know of each folder whether to go in. Asked folder
by folder, version 1.1.1 differed from git in one of ten random trees, and this in none of 1,200
(tests/unit/test_workspace_walk.py).
"""

from __future__ import annotations

import enum
import re
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from toolcrib.errors import WorkspaceError
from toolcrib.workspace.regex import BadRegex, Regex, RegexSet, compile_regex

LONGEST_GLOB = 1000
MOST_ALTERNATIVES = 256
MOST_GLOB_WEIGHT = 1_000_000
"""Characters of all patterns together as one expression: half a second's work."""
_DEEPEST_BRACES = 8
_NOTHING = r"[^\x{0}-\x{10FFFF}]"
_POSIX = {
    "alnum": "09AZaz",
    "alpha": "AZaz",
    "blank": "\t\t  ",
    "cntrl": "\x00\x1f\x7f\x7f",
    "digit": "09",
    "graph": "!~",
    "lower": "az",
    "print": " ~",
    "punct": "!/:@[`{~",
    "space": "\t\r  ",
    "upper": "AZ",
    "xdigit": "09AFaf",
}
"""First and last characters, pair after pair."""


class BadGlob(Exception):
    """A pattern that means nothing; `place` is where in it, from 1."""

    def __init__(self, why: str, place: int) -> None:
        super().__init__(why)
        self.place = place


class Globs:
    """A path fits if any of the patterns does and none of those that begin with `!`."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._wanted = _any_of([p for p in patterns if not p.startswith("!")])
        self._unwanted = _any_of([p[1:] for p in patterns if p.startswith("!")])

    def matches(self, way: Sequence[str]) -> bool:
        """Of the names that lead to something from where the pattern begins."""
        text = path_bytes("/".join(way))
        if self._unwanted is not None and self._unwanted.fullmatch(text) is not None:
            return False
        return self._wanted is None or self._wanted.fullmatch(text) is not None


def path_bytes(path: str) -> bytes:
    """A byte of a name that is not UTF-8 counts as one character, so that `*` takes it."""
    return path.encode("utf-8", "replace")


def _any_of(patterns: Sequence[str]) -> Regex | None:
    if not patterns:
        return None
    words: list[str] = []
    left = MOST_GLOB_WEIGHT
    try:
        for pattern in patterns:
            words.append(f"(?:{_pattern(pattern)})")
            left -= len(words[-1])
            if left < 0:
                raise BadRegex
        return compile_regex("|".join(words))
    except BadRegex:
        raise WorkspaceError(
            "The glob patterns are too large together.", remedy="Give fewer or simpler ones, in several calls."
        ) from None


def _pattern(pattern: str) -> str:
    try:
        if len(pattern) > LONGEST_GLOB:
            raise BadGlob(f"it is longer than {LONGEST_GLOB} characters", LONGEST_GLOB + 1)
        if not pattern:
            raise BadGlob("it is empty", 1)
        return "|".join(_whole(one) for one in expand_braces(pattern))
    except BadGlob as error:
        raise WorkspaceError(
            f"The glob {pattern[:LONGEST_GLOB]!r} is not usable: {error}, at character {error.place}.",
            remedy="A backslash makes the next character an ordinary one. Examples: *.py, src/**/*.ts, {src,tests}/**.",
        ) from None


def _whole(pattern: str) -> str:
    anchored = pattern.startswith(("/", "./"))
    body = pattern.removeprefix("./").removeprefix("/")
    if body.endswith("/"):
        body += "**"
    start = "" if anchored or "/" in body else "(?:[^/]+/)*"
    return start + glob_expression(body)


def expand_braces(pattern: str) -> list[str]:
    """The patterns without braces that one with braces stands for."""
    finished, at = _alternatives(pattern, 0, 0)
    if at < len(pattern):
        raise BadGlob("a } has no {", at + 1)
    return finished


def _alternatives(pattern: str, at: int, depth: int) -> tuple[list[str], int]:
    """Reads up to the end or the } that closes; a comma counts only inside of braces."""
    finished: list[str] = []
    begun = [""]
    while at < len(pattern):
        character = pattern[at]
        if character == "{":
            if depth == _DEEPEST_BRACES:
                raise BadGlob("braces stand too deep in each other", at + 1)
            inner, end = _alternatives(pattern, at + 1, depth + 1)
            if end >= len(pattern):
                raise BadGlob("a { is not closed", at + 1)
            begun = [head + tail for head in begun for tail in inner]
            at = end + 1
        elif character == "}":
            break
        elif character == "," and depth:
            finished += begun
            begun = [""]
            at += 1
        else:
            end = _end_of_one(pattern, at)
            begun = [head + pattern[at:end] for head in begun]
            at = end
        if len(finished) + len(begun) > MOST_ALTERNATIVES:
            raise BadGlob(f"its braces stand for more than {MOST_ALTERNATIVES} patterns", at)
    return finished + begun, at


def _end_of_one(pattern: str, at: int) -> int:
    """After one character, one escaped character or one class."""
    if pattern[at] == "\\":
        return at + 2
    return character_class(pattern, at)[1] if pattern[at] == "[" else at + 1


def glob_expression(pattern: str, *, prefix: int = 0) -> str:
    """RE2's words for a pattern without braces, which fits the whole path. After `prefix` characters `**` counts as if
    a name began there."""
    parts: list[str] = []
    at = 0
    while at < len(pattern):
        character = pattern[at]
        if character in "*[":
            words, at = _stars(pattern, at, prefix) if character == "*" else character_class(pattern, at)
            parts.append(words)
            continue
        if character == "\\":
            at += 1
            if at == len(pattern):
                raise BadGlob("it ends in a backslash", at)
            character = pattern[at]
        elif character == "?":
            parts.append("[^/]")
            at += 1
            continue
        parts.append(_literal(character))
        at += 1
    return "".join(parts)


def _stars(pattern: str, at: int, prefix: int) -> tuple[str, int]:
    begins = at == 0 or pattern[at - 1] == "/"
    if (begins or at == prefix) and (deep := _DEEP.match(pattern, at)):
        if deep[0].endswith("/"):
            return "(?:[^/]+/)*" if begins else "(?s:.*/)?", deep.end()
        return "(?s:.+)" if begins else "(?s:.*)", deep.end()
    end = at + len(pattern[at:]) - len(pattern[at:].lstrip("*"))
    # A name is never empty.
    return "[^/]+" if begins and pattern[end : end + 1] in ("", "/") else "[^/]*", end


def character_class(pattern: str, at: int) -> tuple[str, int]:
    """RE2's words for the class that begins at the bracket, and where it ends. It never fits a slash."""
    begin = at
    at += 1
    negated = pattern[at : at + 1] in ("!", "^") and pattern[at : at + 1] != ""
    at += negated
    ranges: list[tuple[int, int]] = []
    first = True
    while first or pattern[at : at + 1] != "]":
        first = False
        if at >= len(pattern):
            raise BadGlob("a [ is not closed", begin + 1)
        if pattern.startswith("[:", at) and (end := pattern.find(":]", at + 2)) > 0:
            ranges += _posix(pattern[at + 2 : end], at)
            at = end + 2
            continue
        low, at = _member(pattern, at, begin)
        high = low
        if pattern[at : at + 1] == "-" and pattern[at + 1 : at + 2] not in ("]", ""):
            high, at = _member(pattern, at + 1, begin)
        if low <= high:
            ranges.append((low, high))
    return _class_words(ranges, negated=negated), at + 1


def _member(pattern: str, at: int, begin: int) -> tuple[int, int]:
    if pattern[at] == "\\":
        at += 1
    if at >= len(pattern):
        raise BadGlob("a [ is not closed", begin + 1)
    return ord(pattern[at]), at + 1


def _posix(name: str, at: int) -> list[tuple[int, int]]:
    if name not in _POSIX:
        raise BadGlob(f"there is no class [:{name}:]", at + 1)
    pairs = _POSIX[name]
    return [(ord(pairs[n]), ord(pairs[n + 1])) for n in range(0, len(pairs), 2)]


def _class_words(ranges: list[tuple[int, int]], *, negated: bool) -> str:
    slash = ord("/")
    if negated:
        inside = [*ranges, (slash, slash)]
    else:
        below = [(low, min(high, slash - 1)) for low, high in ranges if low < slash]
        inside = below + [(max(low, slash + 1), high) for low, high in ranges if high > slash]
    # A surrogate stands for a byte that is not UTF-8; RE2 has no such characters.
    inside = [pair for pair in inside if not 0xD800 <= pair[0] <= 0xDFFF and not 0xD800 <= pair[1] <= 0xDFFF]
    if not inside:
        return f"[^{_code(slash)}]" if negated else _NOTHING
    return f"[{'^' if negated else ''}{''.join(f'{_code(low)}-{_code(high)}' for low, high in inside)}]"


def _code(number: int) -> str:
    return f"\\x{{{number:x}}}"


def _literal(character: str) -> str:
    return character if character.isalnum() or character in "_-/ " else _code(ord(character))


MOST_IGNORE_BYTES = 128 * 1024
MOST_IGNORE_PATTERNS = 5000
MOST_IGNORE_WEIGHT = 200_000
"""Characters of the expressions of one file. More takes over a tenth of a second to compile, and longer to match."""
MOST_KEPT_WEIGHT = 5 * MOST_IGNORE_WEIGHT
"""Of all files whose rules are kept for the next walk."""
_TOGETHER = 10_000
"""Characters of the expressions in one set. Nearly all paths fit none of them, and one look says so."""
_DEEP = re.compile(r"\*{2,}(?:/\*{2,}(?=/|\Z))*(?:/|\Z)")
"""Names at any depth. `**/**` is the same as `**`, and so is `***`."""
_SPECIAL = re.compile(r"[*?\[\\]")
"""Git compares what comes before the first special character by itself, and `**` after it begins the pattern."""


class IgnoreVerdict(enum.Enum):
    IGNORED = enum.auto()
    KEPT = enum.auto()
    """A `!` took it back."""


@dataclass(frozen=True, slots=True)
class _Rule:
    verdict: IgnoreVerdict
    expression: str


class IgnoreRules:
    """Of one file. Paths are relative to the folder that it lies in."""

    def __init__(self, lines: Iterable[str]) -> None:
        rules: list[_Rule] = []
        self.weight = 0
        is_cut = False
        for rule in filter(None, map(_parse_line, lines)):
            is_cut = len(rules) == MOST_IGNORE_PATTERNS or self.weight + len(rule.expression) > MOST_IGNORE_WEIGHT
            if is_cut:
                break
            rules.append(rule)
            self.weight += len(rule.expression)
        # The last rule that fits is the one that counts.
        self._groups = [group for group in map(_group, reversed(list(_chunks(rules)))) if group is not None]
        self.is_whole = not is_cut and sum(len(verdicts) for _, verdicts in self._groups) == len(rules)
        """Whether every pattern counts, also where they are many or large."""

    @classmethod
    def of_file(cls, content: bytes) -> IgnoreRules:
        """A line that was cut off is none: it could fit more than was meant."""
        is_cut = len(content) > MOST_IGNORE_BYTES
        lines = content[:MOST_IGNORE_BYTES].removeprefix(b"\xef\xbb\xbf").decode(errors="replace").split("\n")
        rules = cls(line.removesuffix("\r") for line in (lines[:-1] if is_cut else lines))
        rules.is_whole = rules.is_whole and not is_cut
        return rules

    def __bool__(self) -> bool:
        """Whether it says anything."""
        return bool(self._groups)

    def verdict(self, path: str, *, is_folder: bool) -> IgnoreVerdict | None:
        text = path_bytes(f"{path}/" if is_folder else path)
        for regexes, verdicts in self._groups:
            if (number := regexes.last_match(text)) is not None:
                return verdicts[number]
        return None


class IgnoreRulesCache:
    """Rules by the content of their files: a repository may hold the same one many times, and is walked often."""

    def __init__(self) -> None:
        self._rules: OrderedDict[bytes, IgnoreRules] = OrderedDict()
        self._weight = 0
        self._lock = threading.Lock()

    def of_file(self, content: bytes) -> IgnoreRules:
        with self._lock:
            if (known := self._rules.get(content)) is not None:
                self._rules.move_to_end(content)
                return known
        rules = IgnoreRules.of_file(content)
        with self._lock:
            if content not in self._rules:
                self._rules[content] = rules
                self._weight += len(content) + rules.weight
            while self._weight > MOST_KEPT_WEIGHT:
                old, gone = self._rules.popitem(last=False)
                self._weight -= len(old) + gone.weight
        return rules


def _chunks(rules: Sequence[_Rule]) -> Iterator[tuple[_Rule, ...]]:
    """So small that each is surely compiled: a set of some 1,500 patterns with stars fails as a whole."""
    chunk: list[_Rule] = []
    weight = 0
    for rule in rules:
        if weight + len(rule.expression) > _TOGETHER and chunk:
            yield tuple(chunk)
            chunk, weight = [], 0
        chunk.append(rule)
        weight += len(rule.expression)
    if chunk:
        yield tuple(chunk)


def _group(rules: tuple[_Rule, ...]) -> tuple[RegexSet, tuple[IgnoreVerdict, ...]] | None:
    try:
        return RegexSet([rule.expression for rule in rules]), tuple(rule.verdict for rule in rules)
    except BadRegex:
        # Larger than any pattern that ignores something.
        return None


def _parse_line(line: str) -> _Rule | None:
    pattern = _without_spaces(line)
    if not pattern or pattern.startswith("#") or len(pattern) > LONGEST_GLOB:
        return None
    verdict = IgnoreVerdict.KEPT if pattern.startswith("!") else IgnoreVerdict.IGNORED
    pattern = pattern.removeprefix("!")
    folders_only = pattern.endswith("/")
    pattern = pattern.removesuffix("/")
    anchored = "/" in pattern
    pattern = pattern.removeprefix("/")
    if not pattern:
        return None
    try:
        body = glob_expression(pattern, prefix=len(_SPECIAL.split(pattern, maxsplit=1)[0]) if anchored else 0)
    except BadGlob:
        # Git takes it for a pattern that fits nothing.
        return None
    start = "" if anchored else "(?:[^/]+/)*"
    return _Rule(verdict, f"{start}{body}{'/' if folders_only else '/?'}")


def ignores_something(pattern: str) -> bool:
    """Whether it can leave anything out, which a comment or a `!` cannot."""
    rule = _parse_line(pattern)
    return rule is not None and rule.verdict is IgnoreVerdict.IGNORED and IgnoreRules([pattern]).is_whole


def _without_spaces(line: str) -> str:
    """Spaces at the end do not count, unless a backslash stands before them."""
    end = len(line.rstrip(" "))
    escapes = end - len(line[:end].rstrip("\\"))
    return line[: end + 1] if escapes % 2 and end < len(line) else line[:end]
