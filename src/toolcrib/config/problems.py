"""Records mistakes with file, line, key, the value found and the value expected.

In: mistakes that the readers find. Out: `Problem`s, collected in one `ProblemReport` per file (or variable, or flag).
Reporting a problem raises nothing; the reader decides what to ignore.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from toolcrib.config.masking import mask_text, printable
from toolcrib.config.model import KeyPath, Problem, Severity

_BARE_KEY = re.compile(r"[\w$-]+")
_LONGEST_QUOTE = 60
_SECTION = re.compile(r"(?i)(?:mcp[_-]?)?servers")


class ProblemReport:
    """The problems of one source, with the line of each key."""

    def __init__(self, source: str, lines: Mapping[KeyPath, int] | None = None) -> None:
        self.source = source
        self.lines: Mapping[KeyPath, int] = lines or {}
        self.problems: list[Problem] = []
        self.errors = 0
        self.unset: list[Problem] = []
        """The errors caused by an unset variable."""
        self.entry: tuple[KeyPath, str] = (), ""
        """The entry that is read now: where it is, and the server's name."""
        self.inputs: Mapping[str, str] = {}
        """What the source says about the values of `${input:NAME}`, by name."""

    def error(self, path: KeyPath, *, found: str, expected: str, suggestion: str = "", line: int | None = None) -> None:
        self.errors += 1
        self._add(Severity.ERROR, path, line, found=found, expected=expected, suggestion=suggestion)

    def warning(self, path: KeyPath, *, found: str, expected: str, suggestion: str = "") -> None:
        self._add(Severity.WARNING, path, found=found, expected=expected, suggestion=suggestion)

    def missing(self, path: KeyPath, variable: str) -> None:
        """`variable` is the name as written: `NAME` or `input:NAME`."""
        name = variable.removeprefix("input:")
        expected, other = f"a secret named {name}", ""
        if name == variable:
            expected = f"the environment variable {name}, or a secret of that name"
            other = f", set the variable where Toolcrib starts, or write ${{{name}:-default}}"
        elif about := self.inputs.get(name):
            expected += f" ({printable(about)})"
        self.errors += 1
        self._add(
            Severity.ERROR,
            path,
            found=f"${{{variable}}}, which is not set",
            expected=expected,
            suggestion=f"Run `toolcrib secret set {name}`{other}.",
            variable=variable,
        )
        self.unset.append(self.problems[-1])

    def _add(self, severity: Severity, path: KeyPath, line: int | None = None, **texts: str) -> None:
        place = line or self._line_of(path)
        file = printable(self.source)
        key, server = key_text(path), self._server_of(path)
        self.problems.append(Problem(severity=severity, file=file, key=key, line=place, server=server, **texts))

    def _server_of(self, path: KeyPath) -> str:
        begin, name = self.entry
        if begin and path[: len(begin)] == begin:
            return name
        within = len(path) > 1 and _SECTION.fullmatch(str(path[0])) is not None
        return str(path[1]) if within and isinstance(path[1], str) else ""

    def _line_of(self, path: KeyPath) -> int | None:
        for length in range(len(path), 0, -1):
            if line := self.lines.get(path[:length]):
                return line
        return None


def key_text(path: KeyPath) -> str:
    """`servers.files.args[0]`; a key that is not a plain word is quoted."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif _BARE_KEY.fullmatch(part) and part.isprintable():
            text += f".{part}" if text else part
        else:
            text += f"[{json.dumps(part)}]"
    return text


def describe(value: Any) -> str:
    """A value for a message: short, printable, known secrets hidden."""
    if isinstance(value, str):
        # Masked before it is shortened, so that no part of a secret is left.
        quote = mask_text(value)
        return f'"{quote}"' if len(quote) <= _LONGEST_QUOTE else f'"{quote[:_LONGEST_QUOTE]}…"'
    if isinstance(value, (bool, int, float)) or value is None:
        text = json.dumps(value)
        return text if len(text) <= _LONGEST_QUOTE else "a very long number"
    return describe_type(value)


def describe_type(value: Any) -> str:
    """The value's type, for places whose values are secrets."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "text"
        case Mapping():
            return "a mapping"
        case _:
            return "a list"


def sorted_problems(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Errors first, then by file and line."""
    return tuple(sorted(problems, key=lambda p: (p.severity is not Severity.ERROR, p.file, p.line or 0, p.key)))
