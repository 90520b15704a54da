"""What `search_text` takes for a pattern: the syntax that RE2 and ripgrep share, both linear in time.

In: a pattern, and how it is meant. Out: a `Pattern` that searches lines, and the words that make ripgrep find the same
lines or more. What neither knows (look-around, back-references) is refused with what would work. `grep` and
`ripgrep` search with it.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator
from dataclasses import dataclass

from toolcrib.errors import WorkspaceError
from toolcrib.workspace.patterns.linear import Case, Regex, Unusable, compiled

LONGEST = 2000


class CaseRule(enum.StrEnum):
    SENSITIVE = "sensitive"
    IGNORE = "ignore"
    SMART = "smart"
    """Ignored, unless the pattern holds a capital letter."""


@dataclass(frozen=True, kw_only=True)
class Pattern:
    regex: Regex
    ripgrep: tuple[str, ...]
    """Options that name the pattern."""
    carriage_returns: bool
    """Whether it speaks of them; else they belong to the line's end, as in files from Windows."""


@dataclass(frozen=True, slots=True)
class _Token:
    """One character, one escape, or a class's bracket with what belongs to it."""

    place: int
    text: str
    in_class: bool = False


_LINES = "the search goes line by line"
_NEVER: tuple[tuple[str, str, str], ...] = (
    (r"\(\?<?[=!]", "look-around is not supported", "Match more of the line, or search twice and compare."),
    (r"\(\?P[=>]|\\[1-9]|\\[kg][<{'0-9]", "back-references are not supported", "Write the repeated text out."),
    (r"\(\?(?:[>#(]|[a-zA-Z]*x)", "atomic groups, comments, conditions and (?x) are not supported", "Leave it out."),
    (r"\(\?[imsU]*-[imsU]*m", _LINES, "Leave the flag m out."),
    (r"\\[AzZ]", _LINES, "Use ^ and $ for a line's ends."),
    (r"\\n|\n", "a match never goes over a line's end", "Search for one of the lines, with context lines around."),
)
_REFUSED = [(re.compile(expression), why, remedy) for expression, why, remedy in _NEVER]
_ESCAPE = re.compile(r"\\(?:Q.*?(?:\\E|\Z)|[pPx]\{[^}]*\}|[pP].|x[0-9A-Fa-f]{2}|.)", re.DOTALL)
_CLASS_NAME = re.compile(r"\[:\^?[a-z]{1,10}:\]")
_REPETITION = re.compile(r"\{\d{1,4}(?:,\d{0,4})?\}")

# The two differ where nothing is said: ripgrep takes all of Unicode for letters, RE2 only ASCII.
_ASCII = {"d": "0-9", "s": r"\t\n\f\r ", "w": "0-9A-Za-z_"}
_RUST_ESCAPES = frozenset(r"\.+*?()|[]{}^$#&-~")


def understood(pattern: str, *, literal: bool, case: CaseRule) -> Pattern:
    """Raises WorkspaceError with the place of what cannot be used."""
    tokens = [_Token(place, text) for place, text in enumerate(pattern)] if literal else list(_tokens(pattern))
    _refuse_what_no_engine_has(pattern, tokens, literal=literal)
    how = Case.SENSITIVE if case is CaseRule.SENSITIVE else Case.IGNORE
    if case is CaseRule.SMART and any(token.text.isupper() for token in tokens if token.text[0] != "\\" or literal):
        how = Case.SENSITIVE
    try:
        regex = compiled(re.sub(r"\W", _quoted, pattern) if literal else pattern, how, across_lines=False)
    except Unusable as error:
        raise _wrong(pattern, str(error)) from None
    except UnicodeEncodeError:
        raise _wrong(pattern, "it is not valid Unicode") from None
    words = ("--fixed-strings", f"--regexp={pattern}") if literal else (f"--regexp={_for_ripgrep(tokens)}",)
    return Pattern(
        regex=regex,
        ripgrep=("--ignore-case" if how is Case.IGNORE else "--case-sensitive", *words),
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
            # First in a class, it does not end it.
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


def _wrong(pattern: str, why: str) -> WorkspaceError:
    """RE2 names the part that it stumbled over."""
    part = why.rpartition(": ")[2]
    place = f", at character {pattern.find(part) + 1}" if part and part != why and part in pattern else ""
    return WorkspaceError(
        f"The pattern is not usable: {why}{place}.",
        remedy="A backslash makes a special character an ordinary one; literal: true takes the whole text as it is.",
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
        # They would begin a class within the class, or put classes together.
        return f"\\{text}"
    if text[0] != "\\":
        return text
    kind = text[1]
    if kind.lower() in _ASCII:
        return f"[^{_ASCII[kind.lower()]}]" if kind.isupper() else _ASCII[kind]
    return text if kind.isalnum() else _escaped(kind)


def _escaped(character: str) -> str:
    return f"\\{character}" if character in _RUST_ESCAPES else character
