"""Checks the type of one value and expands its variables.

In: `ConfigField`s, the environment and the user's secrets. Out: text, lists, tables, numbers, booleans; None after
reporting a problem. All settings are read through this module, so nothing reaches a server unchecked. A variable's
value is not expanded again.

    ${VAR}  ${env:VAR}      the variable, which must be set (it may be empty), or the secret of that name
    ${VAR:-default}         the default if the variable is unset or empty, and there is no such secret
    ${input:NAME}           the secret of that name
    $${                     a literal ${ ; any other $ is literal
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolcrib.config.keys import ConfigField
from toolcrib.config.masking import printable
from toolcrib.config.model import WORKSPACE_FOLDER, KeyPath, Layer
from toolcrib.config.problems import ProblemReport, describe, describe_type
from toolcrib.errors import StoreError

INPUT = "input:"
"""Before the name of a secret that the environment can't set."""
SECRET_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"  # noqa: S105 - a pattern
_REFERENCE = re.compile(
    r"(?P<literal>\$\$\{)"
    r"|\$\{(?:env:)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^{}]*))?\}"
    rf"|\$\{{(?P<input>{INPUT}{SECRET_NAME})\}}"
    r"|(?P<malformed>\$\{[^}]{0,40}\}?)"
)


@dataclass(frozen=True, kw_only=True)
class Expansion:
    text: str
    """Incomplete, and not to be used, if `missing` or `malformed` has items."""
    variables: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    malformed: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        return not self.missing and not self.malformed


class Secrets:
    """The user's secrets, as one load of the configuration sees them."""

    def __init__(self, read: Callable[[str], str | None] = lambda _: None) -> None:
        """`read` raises `StoreError` for a secret that cannot be read."""
        self._read = read
        self.used: dict[str, str] = {}
        """The secrets that were looked up, by name."""

    def get(self, name: str) -> str | None:
        if name not in self.used and (value := self._read(name)) is not None:
            self.used[name] = value
        return self.used.get(name)

    def __contains__(self, name: str) -> bool:
        """Also true if it cannot be read."""
        try:
            return name in self.used or self._read(name) is not None
        except StoreError:
            return True


def references(text: str) -> Iterator[tuple[str, bool]]:
    """The variables in a text, and whether each has a default."""
    for found in _REFERENCE.finditer(text):
        if name := found["name"] or found["input"]:
            yield name, found["default"] is not None


def expand(text: str, value_of: Callable[[str], str | None]) -> Expansion:
    """`value_of` gets each name as written: `NAME` or `input:NAME`."""
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
        name, default = found["name"] or found["input"], found["default"]
        variables.append(name)
        held = value_of(name)
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


class Interpolation(enum.Enum):
    """Whether `${VAR}` in a text is expanded."""

    WITH_VARIABLES = "with variables"
    LITERAL = "literal"
    """Not expanded, because a program can insert variables itself."""


@dataclass(frozen=True, kw_only=True)
class EntryContext:
    """Everything outside an entry that affects its meaning."""

    layer: Layer
    environ: Mapping[str, str]
    home: Path
    secrets: Secrets = field(default_factory=Secrets)
    file: Path | None = None
    root: Path | None = None
    """For a project's file: the project's root, where relative paths start."""
    spelling: Interpolation = Interpolation.WITH_VARIABLES
    neutral: Path | None = None
    """For the user's own entries: the folder in which servers without a `cwd` start."""


_MERE_TEXT = object()


class ValueReader:
    """Reads the values of one server and remembers the original text of those with `${VAR}`."""

    def __init__(self, context: EntryContext, report: ProblemReport, *, kept: Mapping[str, str] | None = None) -> None:
        """`kept` are variables that are expanded later, and a placeholder for each until then."""
        self.context = context
        self.report = report
        self.spelled: dict[KeyPath, str] = {}
        self.supplied: dict[str, str] = {}
        """The expanded variables and secrets, and their values."""
        self.secrets_used: set[str] = set()
        """The names of those that are the user's secrets."""
        self._kept = kept or {}

    def _value_of(self, name: str) -> str | None:
        plain = name.removeprefix(INPUT)
        held = self._kept.get(name) or (self.context.environ.get(name) if name == plain else None)
        if held is None and (held := self.context.secrets.get(plain)) is not None:
            self.secrets_used.add(plain)
        if held and name not in self._kept:
            self.supplied[plain] = held
        return held

    def text(self, field: ConfigField, *, into: KeyPath, secret: bool = False) -> str | None:
        """`into` is the value's key in `spelled`. Whole numbers and booleans are accepted as text."""
        value = field.value
        if isinstance(value, bool):
            value = "true" if value else "false"
        elif isinstance(value, int):
            value = str(value)
        if not isinstance(value, str):
            hint = "Put it in quotes." if isinstance(value, float) else ""
            self.report.error(field.path, found=describe_type(value), expected="text", suggestion=hint)
            return None
        expanded = self._expanded(value, field.path)
        if expanded is None:
            return None
        if bad := _unusable_character(expanded):
            found = f"text with {bad}" if secret or expanded != value else f"{describe(value)}, which has {bad}"
            self.report.error(field.path, found=found, expected="text without it")
            return None
        if self._has_variables(value):
            self.spelled[into] = value
        return expanded

    def _has_variables(self, value: str) -> bool:
        return self.context.spelling is Interpolation.WITH_VARIABLES and "${" in value

    def _expanded(self, value: str, path: KeyPath) -> str | None:
        if not self._has_variables(value):
            return value
        try:
            expansion = expand(value, self._value_of)
        except StoreError as error:
            found = f"a secret that cannot be read: {error.message.removesuffix('.')}"
            self.report.error(path, found=found, expected="a readable one", suggestion=error.remedy)
            return None
        for name in expansion.missing:
            self.report.missing(path, name)
        for malformed in expansion.malformed:
            self.report.error(
                path,
                found=f"{printable(malformed)}",
                expected="${VAR}, ${VAR:-default} or ${input:NAME}",
                suggestion="Write $${ for a literal ${.",
            )
        return expansion.text if expansion.complete else None

    def texts(self, field: ConfigField, *, into: str) -> tuple[str, ...] | None:
        if not isinstance(field.value, list):
            self.report.error(field.path, found=describe(field.value), expected="a list of strings")
            return None
        texts = [self.text(item, into=(into, position)) for position, item in field.parts().items()]
        return tuple(text for text in texts if text is not None)

    def table(self, field: ConfigField, *, into: str) -> dict[str, str] | None:
        """A mapping of names to texts, which count as secrets."""
        if not isinstance(field.value, Mapping):
            self.report.error(field.path, found=describe_type(field.value), expected="a mapping of names to strings")
            return None
        texts = {name: self.text(one, into=(into, name), secret=True) for name, one in field.parts().items()}
        return {name: text for name, text in texts.items() if text is not None}

    def number(self, field: ConfigField, *, least: float, most: float, whole: bool = False) -> float | None:
        value = self._filled(field)
        if value is None:
            return None
        if isinstance(value, str):
            value = _as_number(value)
        wanted = "a whole number" if whole else "a number"
        good = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not good or not least <= value <= most or (whole and value != int(value)):
            self.report.error(
                field.path, found=describe(field.value), expected=f"{wanted} from {least:g} to {most:.12g}"
            )
            return None
        return float(value)

    def flag(self, field: ConfigField) -> bool | None:
        value = self._filled(field)
        if value is None:
            return None
        if isinstance(value, str):
            value = {"true": True, "false": False}.get(value.lower())
        if not isinstance(value, bool):
            self.report.error(field.path, found=describe(field.value), expected="true or false")
            return None
        return value

    def _filled(self, field: ConfigField) -> Any:
        """A number or boolean may come from a variable, but not from quoted text. None after reporting a problem."""
        if not isinstance(field.value, str):
            return field.value
        return self._expanded(field.value, field.path) if self._has_variables(field.value) else _MERE_TEXT

    def folder_or_file(self, field: ConfigField, *, into: KeyPath) -> Path | None:
        """An absolute path; `~` is the home folder; relative paths are only accepted in a project."""
        text = self.text(field, into=into)
        if text is None:
            return None
        if self.context.root is not None:
            text = text.replace(WORKSPACE_FOLDER, str(self.context.root))
        if text == "~" or text.startswith("~/"):
            return self.context.home / text[2:]
        if Path(text).is_absolute():
            return Path(text)
        if text and self.context.root is not None:
            return self.context.root / text
        self.report.error(
            field.path,
            found=describe(field.value),
            expected="an absolute path, or one that starts with ~/",
            suggestion="Only a project's file may use relative paths.",
        )
        return None


def _as_number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _unusable_character(text: str) -> str:
    if "\0" in text:
        return "a NUL character"
    if any("\ud800" <= character <= "\udfff" for character in text):
        return "half of a surrogate pair"
    return ""
