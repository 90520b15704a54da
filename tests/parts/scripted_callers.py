"""Callers without a model: each makes arguments from what it is shown and has two calls to get one right.

In: what a client sees (definitions, or answers to searches) and a function that calls. Out: the number of the call that
succeeded, or None. They prove that what is shown is enough to call a tool, not that a model chooses well.

The arguments are made without `toolcrib.listing.examples`, so that a mistake there is noticed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from jsonschema_rs import validator_for

from toolcrib.catalog.schema_check import ArgumentChecker
from toolcrib.catalog.tool import Tool
from toolcrib.errors import InvalidArguments

Schema = Mapping[str, Any]
MAX_CALLS = 2


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A result. A failure can have the schema to try again with."""

    succeeded: bool
    schema: Schema | None = None


Call = Callable[[str, dict[str, Any]], Answer]
Find = Callable[[str], Sequence[str]]
"""A query → the names of the tools found, best first."""
Describe = Callable[[str], Schema]
"""A tool's name → its definition."""


@dataclass(frozen=True, kw_only=True)
class Habit:
    """The values that a caller takes if the schema leaves them open."""

    text: str = "example"
    number: float = 1
    last: bool = False
    """The last of several values or alternatives."""
    null: bool = False
    """Null wherever it is allowed."""


HABITS = (
    Habit(),
    Habit(text="x", number=0),
    Habit(text="", number=100, last=True),
    Habit(text="https://example.com/a b", number=2_000_000_000, last=True, null=True),
    Habit(text="2026-01-31", number=-1, null=True),
)


def required_only(definition: Schema, call: Call, habit: Habit = HABITS[0]) -> int | None:
    return _two_calls(definition["name"], call, definition["inputSchema"], habit, all_of_them=False)


def all_arguments(definition: Schema, call: Call, habit: Habit = HABITS[0]) -> int | None:
    return _two_calls(definition["name"], call, definition["inputSchema"], habit, all_of_them=True)


def wrong_first(definition: Schema, call: Call, habit: Habit = HABITS[0]) -> int | None:
    """Its first call has every argument wrapped in an object that nobody asked for."""
    name, schema = definition["name"], definition["inputSchema"]
    first = call(name, {key: {"value": value} for key, value in made(schema, habit, all_of_them=True).items()})
    if first.succeeded:
        return 1
    second = call(name, made(first.schema or schema, habit, all_of_them=False))
    return MAX_CALLS if second.succeeded else None


def search_then_call(
    query: str, wanted: str, find: Find, describe: Describe, call: Call, habit: Habit = HABITS[0]
) -> int | None:
    """Takes the wanted tool if it is among those found, otherwise the first one."""
    found = find(query)
    if not found:
        return None
    return required_only(describe(wanted if wanted in found else found[0]), call, habit)


def without_searching(name: str, describe: Describe, call: Call, habit: Habit = HABITS[0]) -> int | None:
    """Guesses the name and calls without arguments; a failure without a schema makes it ask for the definition."""
    first = call(name, {})
    if first.succeeded:
        return 1
    second = call(name, made(first.schema or describe(name)["inputSchema"], habit, all_of_them=False))
    return MAX_CALLS if second.succeeded else None


Attempt = Callable[[Schema, Habit], int | None]
"""A definition → the number of the call that succeeded."""


def attempts(call: Call) -> Mapping[str, Attempt]:
    """The five callers, each for one definition."""
    return {
        "required only": lambda definition, habit: required_only(definition, call, habit),
        "all arguments": lambda definition, habit: all_arguments(definition, call, habit),
        "wrong first": lambda definition, habit: wrong_first(definition, call, habit),
        "search then call": lambda definition, habit: search_then_call(
            "any", definition["name"], lambda _: ["other", definition["name"]], lambda _: definition, call, habit
        ),
        "without searching": lambda definition, habit: without_searching(
            definition["name"], lambda _: definition, call, habit
        ),
    }


def first_calls(definition: Schema, tool: Tool) -> Iterator[bool]:
    """Whether each first call that the callers make from this definition fits the tool's whole schema."""
    check = validator_for(msgspec.json.decode(tool.render("x"))["inputSchema"], validate_formats=False)
    for habit in HABITS:
        for all_of_them in (False, True):
            yield check.is_valid(made(definition["inputSchema"], habit, all_of_them=all_of_them))


def checking(tools: Mapping[str, Tool]) -> Call:
    """Calls that succeed if the tool's whole schema accepts the arguments."""
    checker = ArgumentChecker()

    def call(name: str, arguments: dict[str, Any]) -> Answer:
        try:
            checker.check(tools[name].shown, msgspec.json.encode(arguments))
        except InvalidArguments as error:
            return Answer(succeeded=False, schema=(error.data or {}).get("schema"))
        return Answer(succeeded=True)

    return call


def _two_calls(name: str, call: Call, schema: Schema, habit: Habit, *, all_of_them: bool) -> int | None:
    for number in range(1, MAX_CALLS + 1):
        answer = call(name, made(schema, habit, all_of_them=all_of_them))
        if answer.succeeded:
            return number
        schema = answer.schema or schema
    return None


def made(schema: Schema, habit: Habit, *, all_of_them: bool) -> dict[str, Any]:
    """Arguments by a schema, without looking at anything else."""
    arguments = _value(schema, schema, habit, 3 if all_of_them else 0)
    return arguments if isinstance(arguments, dict) else {}


def _value(schema: Any, root: Schema, habit: Habit, levels: int) -> Any:
    """`levels` of optional properties are filled in."""
    if not isinstance(schema, Mapping) or levels < -30:
        return habit.text
    if "$ref" in schema:
        beside = {key: value for key, value in schema.items() if key != "$ref"}
        return _value({**_target(root, schema["$ref"]), **beside}, root, habit, levels)
    for key in ("anyOf", "oneOf"):
        if key in schema:
            nulls = [branch for branch in schema[key] if branch == {"type": "null"}]
            rest = [branch for branch in schema[key] if branch not in nulls]
            branch = nulls[0] if nulls and (habit.null or not rest) else rest[-1 if habit.last else 0]
            return _value(_merged(schema, key, [branch]), root, habit, levels)
    if "allOf" in schema:
        return _value(_merged(schema, "allOf", schema["allOf"]), root, habit, levels)
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return None if habit.null and None in schema["enum"] else schema["enum"][-1 if habit.last else 0]
    kinds = schema.get("type", "object" if "properties" in schema else "string")
    kinds = [kinds] if isinstance(kinds, str) else kinds
    kind = "null" if habit.null and "null" in kinds else next((one for one in kinds if one != "null"), "null")
    if kind == "object":
        return _object(schema, root, habit, levels)
    if kind == "array":
        count = max(schema.get("minItems", 0), min(schema.get("maxItems", 1), int(levels > 0)))
        return [_value(schema.get("items"), root, habit, levels - 1) for _ in range(count)]
    if kind in ("integer", "number"):
        return _number(schema, habit, kind)
    return {"boolean": habit.last, "null": None}.get(kind, _text(schema, habit))


def _object(schema: Schema, root: Schema, habit: Habit, levels: int) -> dict[str, Any]:
    properties, further = schema.get("properties", {}), schema.get("additionalProperties")
    names = [*properties] if levels > 0 else schema.get("required", [])
    values = {name: _value(properties.get(name, further), root, habit, levels - 1) for name in names}
    if levels > 0 and not properties and further is not False:
        values["key"] = _value(further, root, habit, levels - 1)
    return values


def _number(schema: Schema, habit: Habit, kind: str) -> float:
    lowest = schema.get("minimum", schema.get("exclusiveMinimum", -2e9 - 1) + 1)
    highest = schema.get("maximum", schema.get("exclusiveMaximum", 2e9 + 1) - 1)
    number = max(lowest, min(highest, habit.number))
    return int(number) if kind == "integer" else number


def _text(schema: Schema, habit: Habit) -> str:
    usual = {"uuid": "3f2504e0-4f89-41d3-9a0c-0305e82c3301", "date-time": "2026-01-31T12:00:00Z", "date": "2026-01-31"}
    text = usual.get(schema.get("format", ""), habit.text)
    return text.ljust(schema.get("minLength", 0), "z")[: schema.get("maxLength", 1 << 20)]


def _merged(schema: Schema, without: str, parts: Sequence[Any]) -> dict[str, Any]:
    whole = {key: value for key, value in schema.items() if key != without}
    for part in parts:
        if isinstance(part, Mapping):
            properties = {**whole.get("properties", {}), **part.get("properties", {})}
            required = [*whole.get("required", []), *part.get("required", [])]
            whole |= part
            if properties:
                whole["properties"] = properties
            if required:
                whole["required"] = required
    return whole


def _target(root: Schema, reference: str) -> Schema:
    node: Any = root
    for part in reference.removeprefix("#").split("/")[1:]:
        node = node[part.replace("~1", "/").replace("~0", "~")]
    assert isinstance(node, Mapping)
    return node
