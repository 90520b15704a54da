"""A signature is one short line, whatever the server wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.audit.row import count_tokens
from toolcrib.catalog import Catalog
from toolcrib.catalog.tool import Tool
from toolcrib.config.model import NameStyle
from toolcrib.listing.signature import signature

CATALOGS = sorted((Path(__file__).parents[3] / "shared" / "data" / "catalogs").glob("*.json"))


def tool_of(schema: Any, description: str = "") -> Tool:
    definition = json.dumps({"name": "t", "description": description, "inputSchema": schema}).encode()
    return next(iter(Catalog.build({"s": (definition,)}, version=1).tools))


def line(schema: Any, description: str = "") -> str:
    return signature(tool_of(schema, description), "s_t")


def of(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


TEXT, TEXTS = {"type": "string"}, {"type": "array", "items": {"type": "string"}}
VALUE = {"anyOf": [TEXT, {"type": "array", "items": {"$ref": "#/$defs/V"}}]}
FORKS = {str(n): {"anyOf": [{"$ref": f"#/$defs/{n + 1}"}] * 2} for n in range(60)}
POINT = of("x", x={"type": "number"}, y={"type": "number"})


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (of(), "s_t()"),
        ({"type": "object", "additionalProperties": False}, "s_t()"),
        ({"type": "object"}, "s_t(…)"),
        (of("owner", labels=TEXTS, owner=TEXT), "s_t(owner: string, labels?: string[])"),
        (of(**dict.fromkeys("abcd", TEXT)), "s_t(a?: string, b?: string, c?: string, …)"),
        (of(p={"enum": ["open", "closed", 3, None, "all"]}), "s_t(p?: open|closed|3|null|…)"),
        (of(p={"const": "x"}), "s_t(p?: x)"),
        (of(p={"type": ["integer", "null"]}), "s_t(p?: integer)"),
        (of(p={"anyOf": [TEXT, {"type": "null"}, TEXTS]}), "s_t(p?: string|string[])"),
        (of(p={"type": "array", "items": {"enum": ["a", "b"]}}), "s_t(p?: (a|b)[])"),
        (of("p", p=POINT), "s_t(p: {x: number, …})"),
        (of("p", p={"type": "array", "items": POINT}), "s_t(p: {x: number, …}[])"),
        (of("p", p={"$ref": "#/$defs/P"}) | {"$defs": {"P": POINT}}, "s_t(p: {x: number, …})"),
        (of("p", p={"$ref": "#/$defs/P"}) | {"$defs": {"P": {"$ref": "#/$defs/P"}}}, "s_t(p: any)"),
        # A value that contains others of its kind, and twice as many forms at each of 60 levels.
        (of("p", p={"$ref": "#/$defs/V"}) | {"$defs": {"V": VALUE}}, "s_t(p: string|(string|any[])[])"),
        (of("p", p={"$ref": "#/$defs/0"}) | {"$defs": FORKS}, "s_t(p: any)"),
        (of("p", p=True), "s_t(p: any)"),
        (of("_id", _id=TEXT), "s_t(_id: string)"),
        (of("a\nb", **{"a\nb": TEXT}), "s_t(a b: string)"),
        (None, "s_t(…)"),
        ({"type": "object", "properties": [], "required": "a"}, "s_t()"),
    ],
)
def test_parameters_are_shown_with_their_types(schema: Any, expected: str) -> None:
    assert line(schema) == expected


@pytest.mark.parametrize(
    ("description", "expected"),
    [
        ("Creates an issue. It needs a title.", "Creates an issue."),
        ("# Title\n\nCreates an issue\nin a project.\n\nArgs:\n  title", "Title Creates an issue in a project."),
        ("Creates an issue, e.g. a bug. More.", "Creates an issue, e.g. a bug."),
        ("Creates\r\n\t\x1b[31m an\u2028issue\u202e", "Creates [31m an issue"),
        ("word " * 100, "word word word word word word word word word word word word word word word word word…"),
    ],
)
def test_a_clause_of_the_description_follows(description: str, expected: str) -> None:
    assert line(of(), description) == f"s_t() - {expected}"


def test_the_required_parameters_and_some_description_are_left_of_a_long_tool() -> None:
    names = [f"a_rather_long_parameter_{n}" for n in range(9)]
    made = line(of(*names, **dict.fromkeys(names, TEXT)), "It does many things with all of these parameters.")
    assert made == (
        "s_t(a_rather_long_parameter_0: string, a_rather_long_parameter_1: string, "
        "a_rather_long_parameter_2: string, …)"
        " - It does many things with all of these parameters."
    )


SHAPES = st.sampled_from([TEXT, TEXTS, POINT, {}, True, {"type": 3}, {"enum": {}}, {"anyOf": [None]}, {"$ref": 1}])


@given(st.text(max_size=300), st.dictionaries(st.text(max_size=60), SHAPES, max_size=12))
def test_a_hostile_server_cannot_break_the_line(text: str, properties: dict[str, Any]) -> None:
    text = text.encode(errors="ignore").decode()
    properties = {name.encode(errors="ignore").decode(): shape for name, shape in properties.items()}
    made = line(of(*list(properties)[:6], **properties), text)
    assert made.splitlines() == [made]
    assert made.isprintable()
    assert len(made) < 400


@pytest.mark.skipif(not CATALOGS, reason="needs the catalogs of real servers")
def test_eight_hits_of_the_most_verbose_servers_fit_into_an_answer() -> None:
    catalogs = {path.stem: json.loads(path.read_text())["tools"] for path in CATALOGS}
    raw = {server: tuple(json.dumps(tool).encode() for tool in tools) for server, tools in catalogs.items()}
    tools = Catalog.build(raw, version=1).by_public(NameStyle.SERVER)
    counts = sorted(count_tokens(signature(tool, name).encode()).tokens for name, tool in tools.items())  # type: ignore[union-attr]
    assert sum(counts[-8:]) <= 400
