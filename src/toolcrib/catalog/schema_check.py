"""Checks arguments against a tool's full schema.

In: a tool and the arguments of a call, raw or decoded. Out: the decoded arguments, or `InvalidArguments` with the path
of each error (`arguments.filters[0].name`) and a message that a model can act on. Used by `calls`.

`$schema` selects draft 4, 6, 7, 2019-09 or 2020-12 (the default). Nothing is ever fetched: a `$ref` that leaves the
schema makes the schema unusable. `format` is not enforced, because servers disagree on what a date is. If a schema is
unusable, arguments pass unchecked and the server decides; the log has one warning.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

import msgspec
from jsonschema_rs import (
    FancyRegexOptions,
    RegexOptions,
    ValidationError,
    ValidationErrorKind,
    Validator,
    validator_for,
)

from toolcrib.catalog.schema_cost import SchemaCost
from toolcrib.catalog.schema_refs import SCHEMA_LISTS, SCHEMA_MAPS, SINGLE_SCHEMAS
from toolcrib.catalog.tool import Tool
from toolcrib.config.model import WORKSPACE
from toolcrib.errors import InvalidArguments

log = logging.getLogger(__name__)

MAX_ERRORS = 5
MAX_VALUE_LENGTH = 80
_MAX_VALIDATORS = 2048
_MAX_LISTING_COST = 20_000
"""Visits (`schema_cost`) up to which all errors are listed: at most a tenth of a second."""

_LINEAR = RegexOptions(size_limit=1 << 20, dfa_size_limit=1 << 20)
_BACKTRACKING = FancyRegexOptions(backtrack_limit=100_000, size_limit=1 << 20, dfa_size_limit=1 << 20)
"""Only for patterns with look-around or back references, which the linear engine does not support."""


@dataclass(frozen=True, kw_only=True)
class CallerView:
    """A tool as its caller sees it, if the checked arguments differ from the caller's."""

    schema: Mapping[str, Any]
    own: Callable[[], Mapping[str, str]]
    """The arguments that the caller gave, with the caller's names. Errors may mention only these."""


class CompiledSchema:
    """A tool's validator and its cost."""

    __slots__ = ("cost", "patterns", "schema", "validator", "warned", "with_nulls")

    def __init__(self, schema: Mapping[str, Any], patterns: RegexOptions | FancyRegexOptions) -> None:
        self.schema = schema
        self.patterns = patterns
        self.validator = _validator(schema, patterns)
        self.with_nulls = False
        self.cost = SchemaCost(schema)
        self.warned = False

    def accepts(self, value: Any) -> bool:
        """Strictly by JSON Schema's rules. False if checking would take too long."""
        return self.cost.affordable(value) and self.validator.is_valid(value)

    def errors(self, arguments: dict[str, Any]) -> list[ValidationError]:
        """The first few errors, or only the first one if listing them all would take too long."""
        if self.validator.is_valid(arguments):
            return []
        if not self.with_nulls and _holds_null(arguments):
            self.with_nulls = True
            # If a reference points into a part that moved, keep the original schema.
            with suppress(ValueError):
                self.validator = _validator(_with_nulls_inside(self.schema), self.patterns)
            return self.errors(arguments)
        if self.cost.visits(arguments) <= _MAX_LISTING_COST:
            return list(islice(self.validator.iter_errors(arguments), MAX_ERRORS))
        try:
            self.validator.validate(arguments)
        except ValidationError as error:
            return [error]
        return []


class ArgumentChecker:
    """Checks arguments and caches the compiled schemas of recently used tools."""

    def __init__(self, *, kept: int = _MAX_VALIDATORS) -> None:
        self._kept = kept
        self._compiled: OrderedDict[Tool, CompiledSchema | None] = OrderedDict()

    def check(
        self, tool: Tool, arguments: bytes | msgspec.Raw | dict[str, Any] | None, *, seen: CallerView | None = None
    ) -> dict[str, Any]:
        """The decoded arguments. None (a call without `arguments`) means {}."""
        decoded = _decode(tool, arguments)
        if tool.server == WORKSPACE:
            # The workspace checks them itself, with its own messages, and tolerates common slips of models ("3" for 3).
            return decoded
        compiled = self._compiled_for(tool)
        if compiled is None:
            return decoded
        if compiled.cost.multiplies and not compiled.cost.affordable(decoded):
            if not compiled.warned:
                compiled.warned = True
                log.warning("%s: checking these arguments would take too long, so they pass unchecked", tool.display)
            return decoded
        try:
            errors = compiled.errors(decoded)
        except (ValueError, RecursionError) as error:
            why = "" if seen else f": {_cut(str(error))}"
            raise _invalid(tool, [((), f"cannot be checked{why}")], seen) from (None if seen else error)
        if errors and seen:
            own = seen.own()
            raise _invalid(tool, [_discreet(error, own) for error in errors], seen)
        if errors:
            raise _invalid(tool, [(error.instance_path, _expected(error)) for error in errors])
        return decoded

    def _compiled_for(self, tool: Tool) -> CompiledSchema | None:
        if tool in self._compiled:
            self._compiled.move_to_end(tool)
            return self._compiled[tool]
        compiled = self._compiled[tool] = _compile(tool)
        if len(self._compiled) > self._kept:
            self._compiled.popitem(last=False)
        return compiled


def matches(schema: Mapping[str, Any], value: dict[str, Any]) -> bool:
    """Whether the value certainly matches: not if the schema cannot be used, or checking would take too long."""
    try:
        compiled = compile_schema(schema)
        affordable = not compiled.cost.multiplies or compiled.cost.affordable(value)
        return affordable and compiled.validator.is_valid(value)
    except (ValueError, RecursionError):
        return False


def check_is_mapping(name: str, arguments: object) -> None:
    """For a program's arguments, before they are encoded as JSON."""
    if arguments is not None and not isinstance(arguments, Mapping):
        raise InvalidArguments(
            f"The arguments for {name} must be a mapping, not {type(arguments).__name__}.",
            remedy='Pass them by name, such as {"zone": "UTC"}.',
        )


def compile_schema(schema: Mapping[str, Any]) -> CompiledSchema:
    """Raises ValueError or RecursionError if the schema cannot be used."""
    try:
        return CompiledSchema(schema, _LINEAR)
    except ValueError:
        return CompiledSchema(schema, _BACKTRACKING)


def _compile(tool: Tool) -> CompiledSchema | None:
    """None if the schema cannot be used."""
    try:
        return compile_schema(tool.input_schema)
    except (ValueError, RecursionError) as error:
        problem = _cut(str(error).partition("\n")[0], 300)
    log.warning("%s: its schema cannot be used, so arguments pass unchecked: %s", tool.display, problem)
    return None


def _validator(schema: Any, patterns: RegexOptions | FancyRegexOptions) -> Validator:
    return validator_for(schema, pattern_options=patterns, offline=True, validate_formats=False)


def _holds_null(value: Any) -> bool:
    if isinstance(value, dict | list):
        return any(map(_holds_null, value.values() if isinstance(value, dict) else value))
    return value is None


def _with_nulls_inside(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with null wherever the server intends to allow it, including outside JSON Schema's rules: OpenAPI's
    `nullable`, a default of null, null in only one of `type` and `enum`."""
    fixed = dict(schema)
    for key, value in schema.items():
        if key in SCHEMA_MAPS and isinstance(value, dict):
            fixed[key] = {name: _with_nulls(sub) for name, sub in value.items()}
        elif key in SCHEMA_LISTS and isinstance(value, list):
            fixed[key] = [_with_nulls(sub) for sub in value]
        elif key in SINGLE_SCHEMAS - _INVERTING:
            fixed[key] = _with_nulls(value)
    return fixed


def _with_nulls(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    fixed = _with_nulls_inside(schema)
    types, options = schema.get("type"), schema.get("enum")
    types = types if isinstance(types, list) else [types] if isinstance(types, str) else []
    options = options if isinstance(options, list) else []
    meant = schema.get("nullable") is True or schema.get("x-nullable") is True or None in options or "null" in types
    if not meant and ("default" not in schema or schema["default"] is not None):
        return fixed
    if _ELSEWHERE & schema.keys():
        return {"anyOf": [fixed, {"type": "null"}]}
    if types:
        fixed["type"] = [*types, *({"null"} - set(types))]
    if options and None not in options:
        fixed["enum"] = [*options, None]
    return fixed


_ELSEWHERE = frozenset({"$ref", "$dynamicRef", "$recursiveRef", "allOf", "anyOf", "oneOf", "not", "if", "const"})
"""Rules that also apply to null but are not lists of allowed values."""
_INVERTING = frozenset({"not", "if"})
"""Keywords whose schema must not accept more, because the whole schema would then accept less."""


def _decode(tool: Tool, arguments: Any) -> dict[str, Any]:
    if isinstance(arguments, bytes | msgspec.Raw):
        try:
            arguments = msgspec.json.decode(arguments)
        except RecursionError:
            raise _invalid(tool, [((), "are nested too deeply")]) from None
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise _invalid(tool, [((), f"are not valid JSON: {_cut(str(error))}")]) from error
    if arguments is None:
        return {}
    if not isinstance(arguments, dict):
        raise _invalid(tool, [((), f"must be an object, not {_shown(arguments)}")])
    return arguments


def _discreet(error: ValidationError, own: Mapping[str, str]) -> tuple[Sequence[str | int], str]:
    """The error, without values that the caller did not give."""
    path = error.instance_path
    if path and path[0] in own:
        return [own[str(path[0])], *path[1:]], _expected(error)
    if not path and isinstance(error.kind, ValidationErrorKind.Required):
        return (), _expected(error)
    return (), "conflict with fixed arguments of this tool, which you cannot set"


def _invalid(
    tool: Tool, errors: Sequence[tuple[Sequence[str | int], str]], seen: CallerView | None = None
) -> InvalidArguments:
    unique = dict.fromkeys((_path(path), message) for path, message in errors)
    places = [{"path": path, "message": message} for path, message in unique]
    listed = "; ".join(f"{place['path']} {place['message']}" for place in places)
    return InvalidArguments(
        f"The arguments do not match {_cut(tool.display)}: {listed}.",
        remedy="Correct these and call again.",
        data={"errors": places, "schema": tool.input_schema if seen is None else seen.schema},
    )


def _path(parts: Sequence[str | int]) -> str:
    path = "arguments"
    for part in parts:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            path += f".{_cut(part)}" if part.isidentifier() else f"[{_shown(part)}]"
    return _cut(path, 300)


def _expected(error: ValidationError) -> str:
    """The expected value, and the one that was given."""
    kind = error.kind
    match kind:
        case ValidationErrorKind.Required():
            text = f"must have {_shown(kind.property)}"
        case ValidationErrorKind.AdditionalProperties() | ValidationErrorKind.UnevaluatedProperties():
            text = f"must not have {_list(kind.unexpected)}"
        case ValidationErrorKind.Type():
            text = f"must be of type {' or '.join(kind.types)}, not {_shown(error.instance)}"
        case ValidationErrorKind.Enum():
            text = f"must be one of {_list(kind.options)}, not {_shown(error.instance)}"
        case ValidationErrorKind.Constant():
            text = f"must be {_shown(kind.expected_value)}, not {_shown(error.instance)}"
        case ValidationErrorKind.Pattern():
            text = f"must match {_shown(kind.pattern)}, not {_shown(error.instance)}"
        case ValidationErrorKind.AnyOf() | ValidationErrorKind.OneOfNotValid():
            text = f"matches none of the allowed forms: {_alternatives(kind.context)}"
        case ValidationErrorKind.OneOfMultipleValid():
            text = f"must match exactly one of the allowed forms, but {_shown(error.instance)} matches several"
        case ValidationErrorKind.FalseSchema() if error.schema_path[-1:] == ["additionalProperties"]:
            text = "must be an empty object"
        case ValidationErrorKind.FalseSchema():
            text = "must be left out"
        case ValidationErrorKind.PropertyNames():
            text = f"has a property whose name is not allowed: it {_expected(kind.error)}"
        case _:
            limit = getattr(kind, "limit", getattr(kind, "multiple_of", None))
            stated = kind.name if limit is None else f"{kind.name} {limit}"
            text = f"does not satisfy {stated}: {_shown(error.instance)}"
    return text


def _alternatives(context: list[list[ValidationError]]) -> str:
    """Why each form does not fit. Nested forms are left out, because their number multiplies."""
    reasons = []
    for branch in context[:MAX_ERRORS]:
        for error in branch[:1]:
            nested = isinstance(error.kind, ValidationErrorKind.AnyOf | ValidationErrorKind.OneOfNotValid)
            why = "matches none of several forms" if nested else _expected(error)
            reasons.append(f"{_path(error.instance_path)} {why}")
    return _cut(", or ".join(reasons), 400)


def _list(values: Sequence[Any]) -> str:
    more = ", …" if len(values) > 20 else ""
    return ", ".join(_shown(value) for value in values[:20]) + more


def _shown(value: Any) -> str:
    try:
        text = msgspec.json.encode(value).decode()
    except (msgspec.MsgspecError, RecursionError, ValueError, TypeError):
        text = type(value).__name__
    return _cut(text)


def _cut(text: str, limit: int = MAX_VALUE_LENGTH) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
