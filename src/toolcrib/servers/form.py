"""The form that a server asks a person to fill in: MCP's restricted JSON Schema.

In: the schema of an elicitation, as the server sent it, and a person's values. Out: the fields, with what each expects
in words; the values as the server gets them, with the defaults of fields that were left out. `identity.approvals` and
the library check answers with it, and `cli.approval_commands` shows and reads the fields.
"""

from __future__ import annotations

import datetime
import enum
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

from toolcrib.errors import InvalidArguments

_MAX_CHOICES = 30
"""Choices that `expected` lists."""
_MAX_SHOWN = 80


class FieldKind(enum.StrEnum):
    TEXT = "string"
    NUMBER = "number"
    INTEGER = "integer"
    BOOLEAN = "boolean"
    CHOICE = "choice"
    CHOICES = "choices"
    OTHER = "other"
    """Not in the specification: any JSON value, which the server checks."""


@dataclass(frozen=True, kw_only=True)
class FormField:
    name: str
    kind: FieldKind
    title: str = ""
    description: str = ""
    required: bool = False
    default: Any = None
    """None if there is none, or it does not match the schema."""
    choices: Mapping[str, str] = field(default_factory=dict)
    """The title of each value; empty where it has none."""
    schema: Mapping[str, Any] = field(default_factory=dict)

    @property
    def expected(self) -> str:
        """What it accepts, in words."""
        match self.kind:
            case FieldKind.TEXT:
                form = _FORMATS.get(str(self.schema.get("format")))
                return f"{'text' if form is None else form.name}{_range(self.schema, 'Length', ' characters')}"
            case FieldKind.INTEGER | FieldKind.NUMBER:
                return f"a {'whole ' * (self.kind is FieldKind.INTEGER)}number{_range(self.schema, 'imum', '')}"
            case FieldKind.BOOLEAN:
                return "true or false"
            case FieldKind.CHOICE:
                return f"one of {self._listed}"
            case FieldKind.CHOICES:
                return f"any of {self._listed}{_range(self.schema, 'Items', ' of them')}"
            case _:
                return "a JSON value"

    @property
    def _listed(self) -> str:
        listed = [
            f"{_shown(value)} ({_shown(title)})" if title else _shown(value) for value, title in self.choices.items()
        ]
        more = [f"{len(listed) - _MAX_CHOICES} more"] if len(listed) > _MAX_CHOICES else []
        return ", ".join([*listed[:_MAX_CHOICES], *more])

    def accepts(self, value: Any) -> bool:
        match self.kind:
            case FieldKind.TEXT:
                form = _FORMATS.get(str(self.schema.get("format")))
                fits = isinstance(value, str) and _within(self.schema, "Length", len(value))
                return fits and (form is None or form.matches(value))
            case FieldKind.INTEGER | FieldKind.NUMBER:
                return _is_number(value, whole=self.kind is FieldKind.INTEGER) and _within(self.schema, "imum", value)
            case FieldKind.BOOLEAN:
                return isinstance(value, bool)
            case FieldKind.CHOICE:
                return isinstance(value, str) and value in self.choices
            case FieldKind.CHOICES:
                return (
                    isinstance(value, list)
                    and all(isinstance(one, str) and one in self.choices for one in value)
                    and len(set(value)) == len(value)
                    and _within(self.schema, "Items", len(value))
                )
            case _:
                return value is not None


def form_fields(schema: Mapping[str, Any]) -> tuple[FormField, ...]:
    properties, required = schema.get("properties"), schema.get("required")
    needed = {one for one in required if isinstance(one, str)} if isinstance(required, list) else set()
    listed = properties.items() if isinstance(properties, dict) else ()
    return tuple(_field(name, one if isinstance(one, dict) else {}, required=name in needed) for name, one in listed)


def defaults(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {one.name: one.default for one in form_fields(schema) if one.default is not None}


def completed(schema: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of the form, with the defaults of fields that were left out. Raises `InvalidArguments`, which names
    each wrong field and what it expects."""
    fields = {one.name: one for one in form_fields(schema)}
    content = {**defaults(schema), **values}
    unknown = [f"it has no field {_shown(name)}" for name in values if name not in fields]
    wrong = list(unknown)
    for name, one in fields.items():
        if name in content and not one.accepts(content[name]):
            wrong.append(f"{_shown(name)} must be {one.expected}, not {_shown(content[name])}")
        elif one.required and name not in content:
            wrong.append(f"{_shown(name)} is required: {one.expected}")
    if wrong:
        raise InvalidArguments(
            f"The answer does not fit the form: {'; '.join(wrong)}.",
            remedy=f"Its fields: {', '.join(map(_shown, fields)) or 'none'}." if unknown else "",
        )
    return content


def _field(name: str, schema: Mapping[str, Any], *, required: bool) -> FormField:
    items = schema.get("items")
    choices = _choices(schema)
    kind = FieldKind.CHOICE if choices else _KINDS.get(str(schema.get("type")), FieldKind.OTHER)
    if schema.get("type") == "array" and isinstance(items, dict) and (choices := _choices(items)):
        kind = FieldKind.CHOICES
    texts = {key: schema[key] for key in ("title", "description") if isinstance(schema.get(key), str)}
    made = FormField(name=name, kind=kind, required=required, choices=choices, schema=schema, **texts)
    default = schema.get("default")
    return replace(made, default=default) if default is not None and made.accepts(default) else made


_KINDS = {kind.value: kind for kind in (FieldKind.TEXT, FieldKind.NUMBER, FieldKind.INTEGER, FieldKind.BOOLEAN)}


def _choices(schema: Mapping[str, Any]) -> dict[str, str]:
    """The values of an enumeration, with their titles."""
    for key in ("oneOf", "anyOf"):
        options = schema.get(key)
        if isinstance(options, list):
            return {
                one["const"]: str(one.get("title", ""))
                for one in options
                if isinstance(one, dict) and isinstance(one.get("const"), str)
            }
    values, titles = schema.get("enum"), schema.get("enumNames")
    values = [one for one in values if isinstance(one, str)] if isinstance(values, list) else []
    titles = titles if isinstance(titles, list) and len(titles) == len(values) else [""] * len(values)
    return dict(zip(values, map(str, titles), strict=True))


def _bounds(schema: Mapping[str, Any], what: str) -> tuple[float | None, float | None]:
    low, high = schema.get(f"min{what}"), schema.get(f"max{what}")
    return low if _is_number(low) else None, high if _is_number(high) else None


def _within(schema: Mapping[str, Any], what: str, size: float) -> bool:
    low, high = _bounds(schema, what)
    return (low is None or size >= low) and (high is None or size <= high)


def _range(schema: Mapping[str, Any], what: str, unit: str) -> str:
    match _bounds(schema, what):
        case (None, None):
            return ""
        case (low, None):
            return f", at least {low}{unit}"
        case (None, high):
            return f", at most {high}{unit}"
        case (low, high):
            return f", {low} to {high}{unit}"


def _is_number(value: Any, *, whole: bool = False) -> bool:
    if isinstance(value, float):
        return math.isfinite(value) and (not whole or value.is_integer())
    return isinstance(value, int) and not isinstance(value, bool)


@dataclass(frozen=True, kw_only=True)
class TextFormat:
    name: str
    matches: Callable[[str], bool]


_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)", re.IGNORECASE)
_EMAIL = re.compile(r"[^@\s]+@[^@\s]+")
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:\S+")


def _is_date(text: str) -> bool:
    return _DATE.fullmatch(text) is not None and _parses(datetime.date.fromisoformat, text)


def _is_time(text: str) -> bool:
    return _TIME.fullmatch(text) is not None and _parses(datetime.datetime.fromisoformat, text.upper())


def _is_uri(text: str) -> bool:
    return _URI.fullmatch(text) is not None and _parses(urlsplit, text)


def _parses(parse: Callable[[str], object], text: str) -> bool:
    try:
        parse(text)
    except ValueError:
        return False
    return True


_FORMATS: Mapping[str, TextFormat] = {
    "email": TextFormat(name="an email address", matches=lambda text: _EMAIL.fullmatch(text) is not None),
    "uri": TextFormat(name="a URI", matches=_is_uri),
    "date": TextFormat(name="a date such as 2026-11-19", matches=_is_date),
    "date-time": TextFormat(name="a time such as 2026-11-19T10:00:00Z", matches=_is_time),
}


def _shown(value: Any) -> str:
    """As JSON, so that a server's text cannot imitate ours."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        text = type(value).__name__
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 1]}…"
