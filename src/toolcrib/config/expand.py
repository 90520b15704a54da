"""`${VAR}` in a text.

In: a text as it was written and the environment. Out: an `Expansion`, always: what is missing or
malformed is told in it, never raised. What a variable holds is not expanded again.

    ${VAR}  ${env:VAR}      the variable, which must be set (it may be empty)
    ${VAR:-default}         the default where the variable is unset or empty
    $${                     a literal ${ ; any other $ stands for itself
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_REFERENCE = re.compile(
    r"(?P<literal>\$\$\{)"
    r"|\$\{(?:env:)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^{}]*))?\}"
    r"|(?P<malformed>\$\{[^}]{0,40}\}?)"
)


@dataclass(frozen=True, kw_only=True)
class Expansion:
    text: str
    """Where something is missing or malformed the text is incomplete and must not be used."""
    variables: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    malformed: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        return not self.missing and not self.malformed


def references(text: str) -> Iterator[tuple[str, bool]]:
    """The variables that a text names, and whether each has a default."""
    for found in _REFERENCE.finditer(text):
        if found["name"]:
            yield found["name"], found["default"] is not None


def expand(text: str, environ: Mapping[str, str]) -> Expansion:
    if "${" not in text:
        return Expansion(text=text)
    variables: list[str] = []
    missing: list[str] = []
    malformed: list[str] = []

    def value(found: re.Match[str]) -> str:
        if found["literal"]:
            return "${"
        if found["malformed"]:
            malformed.append(found["malformed"])
            return ""
        name, default = found["name"], found["default"]
        variables.append(name)
        held = environ.get(name)
        if held is None and default is None:
            missing.append(name)
        if default is not None and not held:
            return str(default)
        return held or ""

    return Expansion(
        text=_REFERENCE.sub(value, text),
        variables=tuple(variables),
        missing=tuple(dict.fromkeys(missing)),
        malformed=tuple(malformed),
    )
