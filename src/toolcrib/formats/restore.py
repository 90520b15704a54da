"""Converts a model's values back to the server's schema.

In: a value in the form that `writer` asked the model for. Out: the value in the form of the server's schema. A value in
any other form stays unchanged, because a model may have written the server's form directly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from jsonschema_rs import FancyRegexOptions, Validator, validator_for

from toolcrib.formats.definition import Schema, Undo, unchanged

Restore = Callable[[Any], Any]

_PATTERNS = FancyRegexOptions(backtrack_limit=100_000)

NAME, VALUE, TEXT = "name", "value", "json"
"""Keys of an entry of an object with unknown property names, and of a value written as JSON text."""


def restore_json_text(value: Any) -> Any:
    """`{"json": "[1, 2]"}` is [1, 2]."""
    if not isinstance(value, dict) or set(value) != {TEXT} or not isinstance(value[TEXT], str):
        return value
    try:
        return msgspec.json.decode(value[TEXT])
    except (msgspec.DecodeError, RecursionError):
        return value[TEXT]


@dataclass(frozen=True)
class RestoreChoice:
    """An enum value that is not a scalar, given as its JSON text."""

    values: Mapping[str, Any]

    def __call__(self, value: Any) -> Any:
        return self.values.get(value, value) if isinstance(value, str) else value


@dataclass(frozen=True)
class RestoreEntries:
    """An object given as a list of names and values."""

    value: Restore | None

    def __call__(self, value: Any) -> Any:
        if not isinstance(value, list) or not all(_is_entry(item) for item in value):
            return value
        return {item[NAME]: self.value(item[VALUE]) if self.value else item[VALUE] for item in value}


def _is_entry(item: Any) -> bool:
    return isinstance(item, dict) and set(item) == {NAME, VALUE} and isinstance(item[NAME], str)


@dataclass(frozen=True, kw_only=True)
class RestoreProperties:
    """An object, property by property."""

    properties: Mapping[str, Restore]
    absent_if_null: frozenset[str] = frozenset()
    further: str = ""
    """The property whose entries are the properties that the schema does not name."""
    entries: Restore | None = None
    others: Restore | None = None
    """For properties that the schema does not name, if they are written like the others."""

    def __call__(self, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        result = {}
        for name, item in value.items():
            if item is None and name in self.absent_if_null:
                continue
            restore = self.properties.get(name, self.others)
            result[name] = restore(item) if restore else item
        if self.entries and isinstance(more := self.entries(value.get(self.further)), dict):
            del result[self.further]
            result = {**more, **result}
        return result


@dataclass(frozen=True)
class RestoreItems:
    item: Restore

    def __call__(self, value: Any) -> Any:
        return [self.item(item) for item in value] if isinstance(value, list) else value


@dataclass
class RestoreReference:
    """A definition that is still being written, or refers to itself."""

    restores: Mapping[str, Restore | None]
    name: str

    def __call__(self, value: Any) -> Any:
        restore = self.restores.get(self.name)
        return restore(value) if restore else value


@dataclass
class RestoreUnion:
    """Uses the first branch that the value fits."""

    branches: list[tuple[Schema, Restore | None]]
    definitions: Mapping[str, Any]
    _validators: list[Validator] = field(default_factory=list)

    def __call__(self, value: Any) -> Any:
        if not self._validators:
            shared = {"$defs": dict(self.definitions)}
            self._validators = [
                validator_for({**shared, **branch}, offline=True, pattern_options=_PATTERNS)
                for branch, _ in self.branches
            ]
        for validator, (_, restore) in zip(self._validators, self.branches, strict=True):
            if _fits(validator, value):
                return restore(value) if restore else value
        return value


def _fits(validator: Validator, value: Any) -> bool:
    try:
        return validator.is_valid(value)
    except ValueError:
        # A pattern reached its backtracking limit.
        return False


@dataclass(frozen=True)
class RestoreWrapped:
    """Arguments given as the only property of another object."""

    key: str
    inner: Restore | None

    def __call__(self, value: Any) -> Any:
        if isinstance(value, dict) and set(value) == {self.key}:
            value = value[self.key]
        return self.inner(value) if self.inner else value


@dataclass(frozen=True)
class RestoreRenamed:
    names: Mapping[str, str]
    """From the provider's names to the server's."""
    inner: Restore | None

    def __call__(self, value: Any) -> Any:
        if isinstance(value, dict):
            value = {self.names.get(name, name): item for name, item in value.items()}
        return self.inner(value) if self.inner else value


def undo_of(restore: Restore | None) -> Undo:
    """For all arguments of a call. The result is always an object."""
    if restore is None:
        return unchanged

    def undo(arguments: dict[str, Any]) -> dict[str, Any]:
        result = restore(arguments)
        return result if isinstance(result, dict) else arguments

    return undo
