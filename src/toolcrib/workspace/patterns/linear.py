"""Regular expressions whose time grows with the text only, never with the pattern's cleverness.

In: an expression in RE2's syntax. Out: something that searches bytes. `globs`, `ignores` and `dialect` build on it:
what they match with comes from a model or from a repository that nobody has looked at, and Python's own `re` would hang
on it while it holds the whole server up. RE2 lets other threads run meanwhile.
"""

from __future__ import annotations

import enum
from typing import Protocol

MOST_MEMORY = 16 * 1024 * 1024
"""For one compiled expression. What needs more is refused when it is compiled."""


class Case(enum.StrEnum):
    SENSITIVE = "sensitive"
    IGNORE = "ignore"


class Unusable(Exception):
    """An expression that cannot be compiled, in RE2's words."""


class Found(Protocol):
    def start(self) -> int: ...
    def end(self) -> int: ...


class Regex(Protocol):
    def search(self, text: bytes, pos: int = ..., endpos: int = ...) -> Found | None: ...
    def fullmatch(self, text: bytes) -> Found | None: ...


def compiled(expression: str, case: Case = Case.SENSITIVE, *, across_lines: bool = True) -> Regex:
    """Works on UTF-8. Not `across_lines`: nothing in it matches a line's end, and ^ and $ stand at those of each."""
    import re2  # type: ignore[import-untyped] # noqa: PLC0415 - seldom needed, and 15 ms

    options = re2.Options()
    options.never_capture = True
    options.log_errors = False
    options.max_mem = MOST_MEMORY
    options.case_sensitive = case is Case.SENSITIVE
    options.never_nl = not across_lines
    try:
        if not across_lines:
            # On its own first: a stray bracket must not pair with those put around it.
            re2.compile(expression, options)
            expression = f"(?m:{expression})"
        made: Regex = re2.compile(expression, options)
    except re2.error as error:
        raise Unusable(error.args[0].decode(errors="replace")) from None
    return made
