"""Linear-time regular expressions (RE2), the patterns of `search_text`, and the matching lines of a file.

In: an expression, or a pattern from a model; an open file. Out: a compiled expression that searches bytes; a
`SearchPattern` with the equivalent ripgrep options; `MatchedLine`s in order. Patterns come from a model or an
unreviewed repository, and Python's `re` would hang on some of them and block the whole server. Features that RE2 and
ripgrep don't share (look-around, back-references) are refused. `globs` and `tools.search_text` build on it.
"""

from __future__ import annotations

import codecs
import enum
import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from toolcrib.errors import WorkspaceError

MAX_REGEX_MEMORY = 16 * 1024 * 1024
"""Bytes for one compiled expression. One that needs more is refused at compile time."""


class BadRegex(Exception):
    """An expression that cannot be compiled, with RE2's message."""


class RegexMatch(Protocol):
    def start(self) -> int: ...
    def end(self) -> int: ...


class Regex(Protocol):
    def search(self, text: bytes, pos: int = ..., endpos: int = ...) -> RegexMatch | None: ...
    def fullmatch(self, text: bytes) -> RegexMatch | None: ...


class RegexSet:
    """Many expressions as one automaton: finds those that match a whole text."""

    def __init__(self, expressions: Sequence[str]) -> None:
        """Raises `BadRegex` if they are too large in total."""
        re2 = _re2()
        self._set = re2.Set.FullMatchSet(_options())
        try:
            for expression in (*expressions, _NUL):
                self._set.Add(expression)
            self._set.Compile()
        except re2.error as error:
            raise BadRegex(str(error)) from None
        # An automaton that ran out of memory matches nothing.
        if not self._set.Match(b"\0"):
            raise BadRegex("the expressions are too large in total")

    def last_match(self, text: bytes) -> int | None:
        """The index of the last expression that matches."""
        matches = self._set.Match(text)
        return max(matches) if matches else None


_NUL = r"\x{0}"


def compile_regex(expression: str, *, ignore_case: bool = False, across_lines: bool = True) -> Regex:
    """Works on UTF-8. Without `across_lines`, nothing matches a line end, and ^ and $ match at each line's ends."""
    re2, options = _re2(), _options()
    options.case_sensitive = not ignore_case
    options.never_nl = not across_lines
    try:
        if not across_lines:
            # Compiled alone first: a stray bracket must not pair with the brackets added around it.
            re2.compile(expression, options)
            expression = f"(?m:{expression})"
        made: Regex = re2.compile(expression, options)
    except re2.error as error:
        raise BadRegex(error.args[0].decode(errors="replace")) from None
    return made


def _re2() -> Any:
    import re2  # type: ignore[import-untyped] # noqa: PLC0415 - 15 ms of the daemon's start, and seldom needed

    return re2


def _options() -> Any:
    options = _re2().Options()
    options.never_capture = True
    options.log_errors = False
    options.max_mem = MAX_REGEX_MEMORY
    return options


MAX_PATTERN_LENGTH = 2000


class CaseRule(enum.StrEnum):
    SENSITIVE = "sensitive"
    IGNORE = "ignore"
    SMART = "smart"
    """Case is ignored unless the pattern contains a capital letter."""


@dataclass(frozen=True, kw_only=True)
class SearchPattern:
    regex: Regex
    ripgrep: tuple[str, ...]
    """ripgrep options for the pattern."""
    carriage_returns: bool
    """Whether the pattern contains them. Otherwise they belong to the line end, as in Windows files."""


@dataclass(frozen=True, slots=True)
class _Token:
    """One character, one escape, or a class's opening bracket with its modifiers."""

    place: int
    text: str
    in_class: bool = False


_LINES = "the search is line by line"
_NEVER: tuple[tuple[str, str, str], ...] = (
    (r"\(\?<?[=!]", "look-around is not supported", "Match more of the line, or search twice and compare."),
    (r"\(\?P[=>]|\\[1-9]|\\[kg][<{'0-9]", "back-references are not supported", "Write out the repeated text."),
    (r"\(\?(?:[>#(]|[a-zA-Z]*x)", "atomic groups, comments, conditions and (?x) are not supported", "Leave it out."),
    (r"\(\?[imsU]*-[imsU]*m", _LINES, "Leave the flag m out."),
    (r"\\[AzZ]", _LINES, "Use ^ and $ for line ends."),
    (r"\\n|\n", "a match never spans lines", "Search for one of the lines, with context lines."),
)
_REFUSED = [(re.compile(expression), why, remedy) for expression, why, remedy in _NEVER]
_ESCAPE = re.compile(r"\\(?:Q.*?(?:\\E|\Z)|[pPx]\{[^}]*\}|[pP].|x[0-9A-Fa-f]{2}|.)", re.DOTALL)
_CLASS_NAME = re.compile(r"\[:\^?[a-z]{1,10}:\]")
_REPETITION = re.compile(r"\{\d{1,4}(?:,\d{0,4})?\}")

# The defaults differ: in ripgrep \w and \d match Unicode, in RE2 only ASCII.
_ASCII = {"d": "0-9", "s": r"\t\n\f\r ", "w": "0-9A-Za-z_"}
_RUST_ESCAPES = frozenset(r"\.+*?()|[]{}^$#&-~")


def search_pattern(pattern: str, *, literal: bool, case: CaseRule) -> SearchPattern:
    """Raises WorkspaceError with the position of an unsupported part."""
    tokens = [_Token(place, text) for place, text in enumerate(pattern)] if literal else list(_tokens(pattern))
    _refuse_what_no_engine_has(pattern, tokens, literal=literal)
    ignore_case = case is not CaseRule.SENSITIVE
    if case is CaseRule.SMART and any(token.text.isupper() for token in tokens if token.text[0] != "\\" or literal):
        ignore_case = False
    try:
        expression = re.sub(r"\W", _quoted, pattern) if literal else pattern
        regex = compile_regex(expression, ignore_case=ignore_case, across_lines=False)
    except BadRegex as error:
        raise _bad_pattern(pattern, str(error)) from None
    except UnicodeEncodeError:
        raise _bad_pattern(pattern, "it is not valid Unicode") from None
    arguments = ("--fixed-strings", f"--regexp={pattern}") if literal else (f"--regexp={_for_ripgrep(tokens)}",)
    return SearchPattern(
        regex=regex,
        ripgrep=("--ignore-case" if ignore_case else "--case-sensitive", *arguments),
        carriage_returns="\r" in pattern or (not literal and any(token.text == r"\r" for token in tokens)),
    )


def _quoted(found: re.Match[str]) -> str:
    return f"\\x{{{ord(found[0]):x}}}"


def _tokens(pattern: str) -> Iterator[_Token]:
    at = 0
    in_class = False
    while at < len(pattern):
        begin = at
        if pattern[at] == "\\" and (escape := _ESCAPE.match(pattern, at)):
            at = escape.end()
        elif in_class and (name := _CLASS_NAME.match(pattern, at)):
            at = name.end()
        elif pattern[at] == "[" and not in_class:
            at += 1
            at += pattern[at : at + 1] == "^"
            # As the first character of a class, it is literal.
            at += pattern[at : at + 1] == "]"
            yield _Token(begin, pattern[begin:at])
            in_class = True
            continue
        else:
            at += 1
        if in_class and pattern[begin] == "]":
            in_class = False
            yield _Token(begin, "]")
        else:
            yield _Token(begin, pattern[begin:at], in_class)


def _refuse_what_no_engine_has(pattern: str, tokens: list[_Token], *, literal: bool) -> None:
    for token in tokens:
        if token.in_class or token.text.startswith(r"\Q") or (literal and token.text != "\n"):
            continue
        if token.text[0] in "\\(\n":
            for expression, why, remedy in _REFUSED:
                if expression.match(pattern, token.place):
                    raise WorkspaceError(
                        f"The pattern cannot be used: {why} (at character {token.place + 1}).", remedy=remedy
                    )


def _bad_pattern(pattern: str, why: str) -> WorkspaceError:
    """RE2's message ends with the invalid part."""
    part = why.rpartition(": ")[2]
    place = f", at character {pattern.find(part) + 1}" if part and part != why and part in pattern else ""
    return WorkspaceError(
        f"The pattern is invalid: {why}{place}.",
        remedy="A backslash escapes a special character; literal: true takes the pattern as plain text.",
        data={"argument": "literal"},
    )


def _for_ripgrep(tokens: list[_Token]) -> str:
    return "".join(
        _rust_in_class(token) if token.in_class else _rust(token, tokens, n) for n, token in enumerate(tokens)
    )


def _rust(token: _Token, tokens: list[_Token], number: int) -> str:
    text = token.text
    if text[0] != "\\":
        if text == "{" and not _REPETITION.match("".join(one.text for one in tokens[number : number + 12])):
            return r"\{"
        is_name = text == "<" and [one.text for one in tokens[max(0, number - 2) : number]] == ["(", "?"]
        return "P<" if is_name else text
    kind = text[1]
    if kind in "bB":
        return f"(?-u:{text})"
    if kind.lower() in _ASCII:
        return f"[{'^' if kind.isupper() else ''}{_ASCII[kind.lower()]}]"
    if kind == "Q":
        return "".join(_escaped(c) for c in text[2:].removesuffix(r"\E"))
    return text if kind.isalnum() else _escaped(kind)


def _rust_in_class(token: _Token) -> str:
    text = token.text
    if text in ("[", "&", "~"):
        # They would start a nested class or combine classes.
        return f"\\{text}"
    if text[0] != "\\":
        return text
    kind = text[1]
    if kind.lower() in _ASCII:
        return f"[^{_ASCII[kind.lower()]}]" if kind.isupper() else _ASCII[kind]
    return text if kind.isalnum() else _escaped(kind)


def _escaped(character: str) -> str:
    return f"\\{character}" if character in _RUST_ESCAPES else character


PIECE_BYTES = 1024 * 1024
_FIRST_PIECE = 64 * 1024
"""Smaller: it holds most files completely, and shows most binary ones."""
MAX_LINE_LENGTH = 8 * PIECE_BYTES
"""A longer line is searched in pieces of this size, as if they were several lines."""
MAX_SHOWN_CHARACTERS = 300
"""Shown characters of a line."""
_BEFORE_MATCH = 100
_CUT = "…"


@dataclass(frozen=True, slots=True)
class ContextLines:
    """Lines before and after a match that are shown with it."""

    before: int = 0
    after: int = 0


class IsBinary(Exception):
    """The file contains a NUL byte, so it is not text."""


@dataclass(frozen=True, slots=True)
class MatchedLine:
    number: int
    text: str
    before: list[str]
    after: list[str]


class ShownLine(NamedTuple):
    """A line of the result: a match or a context line."""

    number: int
    text: str
    is_match: bool


@dataclass(slots=True)
class _Piece:
    data: bytes
    begin: int
    """Data before it was searched with the previous piece and is kept for context lines."""
    stop: int
    """Data after it is searched with the next piece."""
    first_line: int
    """The number of the line that the data begins with."""


def matching_lines(
    descriptor: int, pattern: SearchPattern, around: ContextLines, *, is_over: Callable[[], bool]
) -> Iterator[MatchedLine]:
    """Raises `IsBinary` at a NUL byte; ignore the lines that came before it then."""
    for piece in _pieces(descriptor, max(around.before, around.after), keep_returns=pattern.carriage_returns):
        if is_over():
            return
        yield from _lines(piece, pattern, around)


def with_context(matches: Iterator[MatchedLine], *, most: int, room: int) -> list[list[ShownLine]]:
    """Each match of a file with its context lines, none of them twice. Stops after `most` matches, or when the `room`
    (characters) is full.
    """
    found: list[list[ShownLine]] = []
    last = 0
    line = next(matches, None)
    while line is not None and len(found) < most and room >= 0:
        following = next(matches, None)
        before = enumerate(line.before, line.number - len(line.before))
        after = enumerate(line.after, line.number + 1)
        end = math.inf if following is None else following.number
        written = [
            *(ShownLine(number, text, is_match=False) for number, text in before if number > last),
            ShownLine(line.number, line.text, is_match=True),
            *(ShownLine(number, text, is_match=False) for number, text in after if number < end),
        ]
        found.append(written)
        # In JSON, a line takes at least its characters.
        room -= sum(len(text) for _, text, _ in written)
        last = line.number + len(line.after)
        line = following
    return found


def _pieces(descriptor: int, context: int, *, keep_returns: bool) -> Iterator[_Piece]:
    data = b""
    begin = 0
    first_line = 1
    size = _FIRST_PIECE
    held = b""
    while True:
        new = os.read(descriptor, size)
        is_last = len(new) < size
        if b"\0" in new:
            raise IsBinary
        if size == _FIRST_PIECE:
            new = new.removeprefix(codecs.BOM_UTF8)
            size = PIECE_BYTES
        if not keep_returns:
            new, held = _with_plain_ends(held + new, is_last=is_last)
        data += new
        # The context lines after the last searched line must be in `data` too.
        stop = len(data) if is_last else _back(data, len(data), context + 1)
        if stop <= begin and not is_last:
            if len(data) - begin < MAX_LINE_LENGTH:
                continue
            stop = len(data)
        yield _Piece(data, begin, stop, first_line)
        if is_last:
            return
        kept = _back(data, stop, context + 1)
        first_line += data.count(b"\n", 0, kept)
        data = data[kept:]
        begin = stop - kept


def _with_plain_ends(new: bytes, *, is_last: bool) -> tuple[bytes, bytes]:
    """Also returns a trailing CR to hold back: its LF may come with the next piece."""
    held = b"\r" if new.endswith(b"\r") and not is_last else b""
    new = new.removesuffix(held)
    return new.replace(b"\r\n", b"\n") if b"\r" in new else new, held


def _back(data: bytes, end: int, lines: int) -> int:
    """The start of the line that is `lines` line ends before `end`; 0 if there are fewer."""
    for _ in range(lines):
        end = data.rfind(b"\n", 0, end)
        if end < 0:
            return 0
    return end + 1


def _lines(piece: _Piece, pattern: SearchPattern, around: ContextLines) -> Iterator[MatchedLine]:
    data = piece.data
    # The final line end does not start an empty line.
    end = piece.stop - 1 if data[piece.stop - 1 : piece.stop] == b"\n" else piece.stop
    at = piece.begin
    counted, number = 0, piece.first_line
    while at <= end and at < piece.stop:
        found = pattern.regex.search(data, at, end)
        if found is None:
            return
        first = data.rfind(b"\n", 0, found.start()) + 1
        last = data.find(b"\n", found.start(), piece.stop)
        last = piece.stop if last < 0 else last
        number += data.count(b"\n", counted, first)
        counted = first
        text = _shown(data[first:last], found.start() - first)
        yield MatchedLine(number, text, _before(data, first, around.before), _after(data, last, around.after))
        at = last + 1


def _before(data: bytes, first: int, context: int) -> list[str]:
    begin = _back(data, first, context + 1)
    return [_start(line) for line in data[begin:first].split(b"\n")[:-1]] if context else []


def _after(data: bytes, last: int, context: int) -> list[str]:
    lines: list[str] = []
    while len(lines) < context and last + 1 < len(data):
        first = last + 1
        last = data.find(b"\n", first)
        last = len(data) if last < 0 else last
        lines.append(_start(data[first:last]))
    return lines


def _start(line: bytes) -> str:
    # A character takes at most four bytes.
    text = line[: MAX_SHOWN_CHARACTERS * 4 + 4].decode(errors="replace").removesuffix("\r")
    return text[:MAX_SHOWN_CHARACTERS] + _CUT if len(text) > MAX_SHOWN_CHARACTERS else text


def _shown(line: bytes, at: int) -> str:
    """The line, or the part around the match if it is long."""
    if len(line) <= MAX_SHOWN_CHARACTERS:
        return line.decode(errors="replace").removesuffix("\r")
    begin = max(0, at - _BEFORE_MATCH * 4)
    window = line[begin : at + MAX_SHOWN_CHARACTERS * 4]
    text = window.decode(errors="replace").removesuffix("\r")
    offset = len(line[begin:at].decode(errors="replace"))
    skip = max(0, offset - _BEFORE_MATCH)
    cut_before = begin + skip > 0
    kept = text[skip : skip + MAX_SHOWN_CHARACTERS]
    cut_after = skip + MAX_SHOWN_CHARACTERS < len(text) or at + MAX_SHOWN_CHARACTERS * 4 < len(line)
    return f"{_CUT if cut_before else ''}{kept}{_CUT if cut_after else ''}"
