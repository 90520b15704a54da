"""A condition on a call's arguments: `path under src`, `mode one_of a, b`, `sql matches select .*`.

In: the decoded arguments of a call, and the `PathContext` for paths. Out: whether the condition surely holds (required
for an allow), or whether it may hold (enough for a deny). A value that cannot be checked never surely holds and always
may hold. Only `rule` evaluates conditions.

A condition reads arguments as the most lenient server might: keys in any case, `a.b` as one key or as two, every
element of a list.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from jsonschema_rs import RegexOptions, validator_for

from toolcrib.errors import ConfigError
from toolcrib.policy.paths import MOST_PATHS, PathContext, encodable, folded_text, is_plain

Scalar = str | int | float | bool | None

LONGEST = 10_000
"""Maximum length of a checked value; longer values cannot be checked."""
MOST_VALUES = 256
"""Maximum number of values of one argument; with more, none can be checked."""
MOST_CHOICES = 1000
LONGEST_WORD = 1000
"""Maximum length of a pattern, a folder or a choice in a rule."""

_LINE = re.compile(r"(.+?) (under|one_of|matches) (.+)", re.DOTALL)
_CHOICES = re.compile(r'\s*"(?:[^"\\]|\\.)*"\s*(?=,|$)|[^,"]+(?=,|$)')
_JSON_WORD = re.compile(r"true|false|null|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?")
_LINEAR = RegexOptions(size_limit=1 << 20, dfa_size_limit=1 << 20)


@dataclass(frozen=True)
class Under:
    """A path inside a folder, both as written and after resolving links."""

    path: str

    def __post_init__(self) -> None:
        _word(self.path, "a folder")
        if not is_plain(self.path):
            raise ConfigError(
                f"{self.path!r} cannot be used as a folder.",
                remedy='Give an absolute path ("/srv/data") or one relative to the agent\'s folder ("src").',
            )

    def __str__(self) -> str:
        return f"under {self.path}"

    @property
    def relative(self) -> bool:
        """Whether it is relative to the agent's folder."""
        return not self.path.startswith("/")

    def surely(self, value: Any, paths: PathContext) -> bool:
        path, folder = paths.resolver.value(value), paths.folder(self.path)
        return path is not None and folder is not None and path.surely_in(folder)

    def maybe(self, value: Any, paths: PathContext) -> bool:
        if value is None:
            return False
        path, folder = paths.resolver.value(value), paths.folder(self.path)
        return path is None or folder is None or path.maybe_in(folder)


@dataclass(frozen=True, eq=False)
class OneOf:
    """Exactly one of these values; a number never equals a string, and true never equals 1."""

    values: tuple[Scalar, ...]

    def __post_init__(self) -> None:
        if not self.values or len(self.values) > MOST_CHOICES:
            raise ConfigError(f"one_of takes 1 to {MOST_CHOICES} values.", remedy='For instance ["read", "list"].')
        for value in self.values:
            if not (value is None or isinstance(value, str | int | float)) or (
                isinstance(value, float) and not math.isfinite(value)
            ):
                raise ConfigError(
                    f"one_of takes strings, numbers, true, false and null, not {type(value).__name__}.",
                    remedy='For instance ["read", "list"].',
                )
            if isinstance(value, str) and value:
                _word(value, "a choice")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OneOf) and repr(self.values) == repr(other.values)

    def __hash__(self) -> int:
        return hash(repr(self.values))

    def __str__(self) -> str:
        return f"one_of {', '.join(map(_choice, self.values))}"

    def surely(self, value: Any, paths: PathContext) -> bool:
        return any(_kind(value) == _kind(choice) and value == choice for choice in self.values)

    def maybe(self, value: Any, paths: PathContext) -> bool:
        if value is None and None not in self.values:
            return False
        if _kind(value) not in {_kind(choice) for choice in self.values}:
            return True
        if isinstance(value, str) and len(value) > LONGEST:
            return True
        return _loose(value) in {_loose(choice) for choice in self.values}


@dataclass(frozen=True)
class Matches:
    """A string that matches a regular expression in full."""

    pattern: str

    def __post_init__(self) -> None:
        _word(self.pattern, "a pattern")
        try:
            _fits(self.pattern)
        except ValueError:
            raise ConfigError(
                f"{self.pattern!r} is not a valid pattern.",
                remedy="Write a regular expression with small counts, without look-around or backreferences.",
            ) from None

    def __str__(self) -> str:
        return f"matches {self.pattern}"

    def surely(self, value: Any, paths: PathContext) -> bool:
        return _readable(value) and _fits(self.pattern)(value)

    def maybe(self, value: Any, paths: PathContext) -> bool:
        return value is not None and (not _readable(value) or _fits(self.pattern)(value))


ConditionTest = Under | OneOf | Matches


@dataclass(frozen=True, kw_only=True)
class Condition:
    argument: str
    """The path to a value: `path`, `filter.name`."""
    test: ConditionTest

    def __post_init__(self) -> None:
        _word(self.argument, "an argument's name")
        if not all(self.argument.split(".")):
            raise ConfigError(f"{self.argument!r} is not an argument's name.", remedy="Write `name` or `outer.inner`.")

    def __str__(self) -> str:
        return f"{self.argument} {self.test}"

    def surely(self, arguments: Any, paths: PathContext) -> bool:
        """There is a value, and every value passes the test."""
        found = self._found(arguments)
        return found.whole and bool(found.values) and all(self.test.surely(value, paths) for value in found.values)

    def maybe(self, arguments: Any, paths: PathContext) -> bool:
        """A value passes the test or cannot be checked."""
        found = self._found(arguments)
        return found.unclear or any(self.test.maybe(value, paths) for value in found.values)

    def _found(self, arguments: Any) -> _Found:
        found = _find(arguments, self.argument)
        # Each path needs a lookup of every folder on its way.
        if isinstance(self.test, Under) and len(found.values) > MOST_PATHS:
            found.unclear = True
        return found


def condition_from(text: str) -> Condition:
    """Parses a condition as `str` writes it: `path under src`, `mode one_of read, list`."""
    found = _LINE.fullmatch(text)
    if found is None:
        raise ConfigError(
            f"{text!r} is not a condition.",
            remedy="Write `path under src`, `mode one_of read, list` or `sql matches select .*`.",
        )
    argument, test, rest = found.groups()
    return Condition(argument=argument, test=_TESTS[test](rest))


_TESTS: Mapping[str, Callable[[str], ConditionTest]] = {
    "under": Under,
    "matches": Matches,
    "one_of": lambda text: OneOf(_choices(text)),
}


def _choices(text: str) -> tuple[Scalar, ...]:
    words = _CHOICES.findall(text)
    if ",".join(words) != text:
        raise ConfigError(f"{text!r} is not a list of values.", remedy='Write `read, list`; in quotes: `"a, b", "1"`.')
    return tuple(_value(word.strip()) for word in words)


def _value(word: str) -> Scalar:
    """As in JSON, except that a plain word needs no quotes."""
    if not word.startswith('"') and not _JSON_WORD.fullmatch(word):
        return word
    try:
        value: Scalar = json.loads(word)
    except ValueError:
        raise ConfigError(f"{word} is not quoted correctly.", remedy="Quote as in JSON.") from None
    return value


def _choice(value: Scalar) -> str:
    """The inverse of `_value`."""
    if not isinstance(value, str):
        return json.dumps(value)
    plain = value and value == value.strip() and not set(value) & set(',"') and not _JSON_WORD.fullmatch(value)
    return value if plain else json.dumps(value, ensure_ascii=False)


class _Found:
    """The values of an argument, and whether they are complete."""

    __slots__ = ("missing", "unclear", "values")

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.missing = False
        self.unclear = False

    @property
    def whole(self) -> bool:
        return not self.missing and not self.unclear


def _find(arguments: Any, argument: str) -> _Found:
    found = _Found()
    keys = tuple(argument.casefold().split("."))
    waiting: list[tuple[Any, tuple[str, ...]]] = [(arguments, keys)]
    looked = 0
    while waiting:
        node, rest = waiting.pop()
        looked += 1
        if looked > MOST_VALUES:
            found.unclear = True
            break
        if isinstance(node, list | tuple):
            waiting += [(item, rest) for item in node[: MOST_VALUES + 1]]
        elif not rest:
            found.values.append(node)
        elif isinstance(node, Mapping):
            steps = _steps(node, rest)
            found.missing |= not steps
            waiting += steps
        elif node is None:
            found.missing = True
        else:
            found.unclear = True
    return found


def _steps(node: Mapping[Any, Any], keys: tuple[str, ...]) -> list[tuple[Any, tuple[str, ...]]]:
    """Every key of the object that the next keys, alone or joined by dots, may refer to."""
    wanted = {".".join(keys[:count]): keys[count:] for count in range(1, len(keys) + 1)}
    return [
        (value, wanted[folded_text])
        for key, value in node.items()
        if isinstance(key, str) and (folded_text := key.casefold()) in wanted
    ]


def _kind(value: Any) -> str:
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return type(value).__name__
    return "number" if isinstance(value, int | float) else "other"


def _loose(value: Any) -> str:
    return folded_text(value.strip()) if isinstance(value, str) else _told(value)


def _told(value: Scalar) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case float() if value.is_integer():
            return str(int(value))
        case _:
            return str(value)


def _readable(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= LONGEST and encodable(value)


@functools.lru_cache(maxsize=1024)
def _fits(pattern: str) -> Callable[[Any], bool]:
    """Raises ValueError. The engine needs linear time for every pattern."""
    # Alone first: a pattern must not close the group around it.
    for whole in (pattern, f"^(?s:{pattern})$"):
        validator = validator_for({"pattern": whole}, pattern_options=_LINEAR, offline=True)
    return validator.is_valid


def _word(text: Any, what: str) -> None:
    if not isinstance(text, str) or not text.strip() or len(text) > LONGEST_WORD or not text.isprintable():
        raise ConfigError(
            f"{what.capitalize()} must be printable text of 1 to {LONGEST_WORD} characters.",
            remedy=f"Give {what} on one line.",
        )
