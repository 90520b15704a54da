"""Path patterns: globs such as `**/*.py` or `!*.min.js`, and `.gitignore` rules.

In: patterns from a person or a model, or the bytes of a `.gitignore`. Out: whether a path matches or is ignored. Tools
select files by globs; `tools.walk` checks the `.gitignore` of the deepest folder first, as git does.

A glob without a slash matches a name at any depth. `*` and `?` stop at a slash; `**` as a whole name does not.
`[a-z]`, `[!a-z]`, `{a,b}` and `\\` work as usual. A leading `!` excludes.

We don't use `pathspec`: it judges whole file paths, but a walk must decide for each folder whether to enter it. Applied
folder by folder, version 1.1.1 differed from git in one of ten random trees; this module differed in none of 1,200
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

MAX_GLOB_LENGTH = 1000
MAX_ALTERNATIVES = 256
MAX_GLOB_WEIGHT = 1_000_000
"""Characters of all patterns combined into one expression, which takes half a second."""
_MAX_BRACE_DEPTH = 8
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
"""Pairs of first and last character."""


class BadGlob(Exception):
    """An invalid pattern; `place` is the position of the error, from 1."""

    def __init__(self, why: str, place: int) -> None:
        super().__init__(why)
        self.place = place


class Globs:
    """A path matches if it matches any pattern and none of those that begin with `!`."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._wanted = _any_of([p for p in patterns if not p.startswith("!")])
        self._unwanted = _any_of([p[1:] for p in patterns if p.startswith("!")])

    def matches(self, way: Sequence[str]) -> bool:
        """`way`: the path, as names relative to the folder that the patterns start in."""
        text = path_bytes("/".join(way))
        if self._unwanted is not None and self._unwanted.fullmatch(text) is not None:
            return False
        return self._wanted is None or self._wanted.fullmatch(text) is not None


def path_bytes(path: str) -> bytes:
    """A byte that is not UTF-8 counts as one character, so that `*` matches it."""
    return path.encode("utf-8", "replace")


def _any_of(patterns: Sequence[str]) -> Regex | None:
    if not patterns:
        return None
    regexes: list[str] = []
    left = MAX_GLOB_WEIGHT
    try:
        for pattern in patterns:
            regexes.append(f"(?:{_pattern(pattern)})")
            left -= len(regexes[-1])
            if left < 0:
                raise BadRegex
        return compile_regex("|".join(regexes))
    except BadRegex:
        raise WorkspaceError(
            "The glob patterns are too large in total.", remedy="Give fewer or simpler ones, in several calls."
        ) from None


def _pattern(pattern: str) -> str:
    try:
        if len(pattern) > MAX_GLOB_LENGTH:
            raise BadGlob(f"it is longer than {MAX_GLOB_LENGTH} characters", MAX_GLOB_LENGTH + 1)
        if not pattern:
            raise BadGlob("it is empty", 1)
        return "|".join(_whole(one) for one in expand_braces(pattern))
    except BadGlob as error:
        raise WorkspaceError(
            f"The glob {pattern[:MAX_GLOB_LENGTH]!r} is invalid: {error}, at character {error.place}.",
            remedy="A backslash escapes the next character. Examples: *.py, src/**/*.ts, {src,tests}/**.",
        ) from None


def _whole(pattern: str) -> str:
    anchored = pattern.startswith(("/", "./"))
    body = pattern.removeprefix("./").removeprefix("/")
    if body.endswith("/"):
        body += "**"
    start = "" if anchored or "/" in body else "(?:[^/]+/)*"
    return start + glob_expression(body)


def expand_braces(pattern: str) -> list[str]:
    """Expands braces into patterns without braces."""
    finished, at = _alternatives(pattern, 0, 0)
    if at < len(pattern):
        raise BadGlob("a } has no {", at + 1)
    return finished


def _alternatives(pattern: str, at: int, depth: int) -> tuple[list[str], int]:
    """Reads up to the end or the closing }; a comma separates only inside braces."""
    finished: list[str] = []
    begun = [""]
    while at < len(pattern):
        character = pattern[at]
        if character == "{":
            if depth == _MAX_BRACE_DEPTH:
                raise BadGlob("braces are nested too deeply", at + 1)
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
        if len(finished) + len(begun) > MAX_ALTERNATIVES:
            raise BadGlob(f"its braces expand to more than {MAX_ALTERNATIVES} patterns", at)
    return finished + begun, at


def _end_of_one(pattern: str, at: int) -> int:
    """The position after one character, escaped character or class."""
    if pattern[at] == "\\":
        return at + 2
    return character_class(pattern, at)[1] if pattern[at] == "[" else at + 1


def glob_expression(pattern: str, *, prefix: int = 0) -> str:
    """The RE2 expression for a pattern without braces, which matches the whole path. After `prefix` characters, `**`
    counts as the start of a name."""
    parts: list[str] = []
    at = 0
    while at < len(pattern):
        character = pattern[at]
        if character in "*[":
            regex, at = _stars(pattern, at, prefix) if character == "*" else character_class(pattern, at)
            parts.append(regex)
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
    """The RE2 expression for the class that begins at the bracket, and its end. It never matches a slash."""
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
        raise BadGlob(f"[:{name}:] is not a class", at + 1)
    pairs = _POSIX[name]
    return [(ord(pairs[n]), ord(pairs[n + 1])) for n in range(0, len(pairs), 2)]


def _class_words(ranges: list[tuple[int, int]], *, negated: bool) -> str:
    slash = ord("/")
    if negated:
        inside = [*ranges, (slash, slash)]
    else:
        below = [(low, min(high, slash - 1)) for low, high in ranges if low < slash]
        inside = below + [(max(low, slash + 1), high) for low, high in ranges if high > slash]
    # A surrogate represents a byte that is not UTF-8; RE2 has no such characters.
    inside = [pair for pair in inside if not 0xD800 <= pair[0] <= 0xDFFF and not 0xD800 <= pair[1] <= 0xDFFF]
    if not inside:
        return f"[^{_code(slash)}]" if negated else _NOTHING
    return f"[{'^' if negated else ''}{''.join(f'{_code(low)}-{_code(high)}' for low, high in inside)}]"


def _code(number: int) -> str:
    return f"\\x{{{number:x}}}"


def _literal(character: str) -> str:
    return character if character.isalnum() or character in "_-/ " else _code(ord(character))


MAX_IGNORE_BYTES = 128 * 1024
MAX_IGNORE_PATTERNS = 5000
MAX_IGNORE_WEIGHT = 200_000
"""Characters of one file's expressions. More take over a tenth of a second to compile, and longer to match."""
MAX_KEPT_WEIGHT = 5 * MAX_IGNORE_WEIGHT
"""For all files whose rules are cached for the next walk."""
_TOGETHER = 10_000
"""Characters of the expressions in one set. Most paths match none of them, which one check finds out."""
_DEEP = re.compile(r"\*{2,}(?:/\*{2,}(?=/|\Z))*(?:/|\Z)")
"""Names at any depth. `**/**` is the same as `**`, and so is `***`."""
_SPECIAL = re.compile(r"[*?\[\\]")
"""Git compares the part before the first special character separately; a `**` after it begins the pattern."""


class IgnoreVerdict(enum.Enum):
    IGNORED = enum.auto()
    KEPT = enum.auto()
    """Re-included by a `!` pattern."""


@dataclass(frozen=True, slots=True)
class _Rule:
    verdict: IgnoreVerdict
    expression: str


class IgnoreRules:
    """The rules of one file. Paths are relative to the file's folder."""

    def __init__(self, lines: Iterable[str]) -> None:
        rules: list[_Rule] = []
        self.weight = 0
        is_cut = False
        for rule in filter(None, map(_parse_line, lines)):
            is_cut = len(rules) == MAX_IGNORE_PATTERNS or self.weight + len(rule.expression) > MAX_IGNORE_WEIGHT
            if is_cut:
                break
            rules.append(rule)
            self.weight += len(rule.expression)
        # The last matching rule decides.
        self._groups = [group for group in map(_group, reversed(list(_chunks(rules)))) if group is not None]
        self.is_whole = not is_cut and sum(len(verdicts) for _, verdicts in self._groups) == len(rules)
        """False if some patterns were dropped because they are too many or too large."""

    @classmethod
    def of_file(cls, content: bytes) -> IgnoreRules:
        """Drops a truncated last line: it could match more than intended."""
        is_cut = len(content) > MAX_IGNORE_BYTES
        lines = content[:MAX_IGNORE_BYTES].removeprefix(b"\xef\xbb\xbf").decode(errors="replace").split("\n")
        rules = cls(line.removesuffix("\r") for line in (lines[:-1] if is_cut else lines))
        rules.is_whole = rules.is_whole and not is_cut
        return rules

    def __bool__(self) -> bool:
        """Whether there are any rules."""
        return bool(self._groups)

    def verdict(self, path: str, *, is_folder: bool) -> IgnoreVerdict | None:
        text = path_bytes(f"{path}/" if is_folder else path)
        for regexes, verdicts in self._groups:
            if (number := regexes.last_match(text)) is not None:
                return verdicts[number]
        return None


class IgnoreRulesCache:
    """Rules by file content: a repository may contain the same file many times, and is walked often."""

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
            while self._weight > MAX_KEPT_WEIGHT:
                old, gone = self._rules.popitem(last=False)
                self._weight -= len(old) + gone.weight
        return rules


def _chunks(rules: Sequence[_Rule]) -> Iterator[tuple[_Rule, ...]]:
    """Chunks small enough to compile: a set of some 1,500 patterns with stars fails completely."""
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
        # Larger than any real ignore pattern.
        return None


def _parse_line(line: str) -> _Rule | None:
    pattern = _without_spaces(line)
    if not pattern or pattern.startswith("#") or len(pattern) > MAX_GLOB_LENGTH:
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
        # In git, such a pattern matches nothing.
        return None
    start = "" if anchored else "(?:[^/]+/)*"
    return _Rule(verdict, f"{start}{body}{'/' if folders_only else '/?'}")


def ignores_something(pattern: str) -> bool:
    """Whether it can ignore anything, which a comment or a `!` cannot."""
    rule = _parse_line(pattern)
    return rule is not None and rule.verdict is IgnoreVerdict.IGNORED and IgnoreRules([pattern]).is_whole


def _without_spaces(line: str) -> str:
    """Strips trailing spaces unless a backslash escapes them."""
    end = len(line.rstrip(" "))
    escapes = end - len(line[:end].rstrip("\\"))
    return line[: end + 1] if escapes % 2 and end < len(line) else line[:end]
