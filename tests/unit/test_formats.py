"""Definitions for OpenAI, Anthropic and Google, and how they are reverted in their models' arguments."""

from __future__ import annotations

import json
from typing import Any

import pytest
from anthropic.types import ToolParam
from google.genai.types import FunctionDeclaration
from openai.types.chat import ChatCompletionToolParam
from openai.types.responses import FunctionToolParam
from pydantic import TypeAdapter

from toolcrib.catalog import Catalog
from toolcrib.catalog.offered_tool import OfferedTool
from toolcrib.core.toolbox import Tools
from toolcrib.errors import ConfigError
from toolcrib.formats import anthropic, google, openai
from toolcrib.formats.definition import Adaptation
from toolcrib.formats.undo import undo_arguments

DEFAULT_10, UNIQUE = 'As JSON Schema: {"default": 10}', 'As JSON Schema: {"uniqueItems": true}'
FORMATS: dict[str, Any] = {"openai": openai, "anthropic": anthropic, "google": google}
STRICT = {"openai": {"strict": True}, "anthropic": {"strict": True}}
TOOL = Catalog.build({"s": (b'{"name": "t"}',)}, version=1).tools[0]


def offer(schema: dict[str, Any], *, name: str = "find", **options: dict[str, Any]) -> OfferedTool:
    return OfferedTool(tool=TOOL, name=name, description="Finds.", schema=schema, options=options)


def properties(**given: Any) -> dict[str, Any]:
    return {"type": "object", "properties": given}


def strict(schema: dict[str, Any]) -> dict[str, Any]:
    return openai.definition(offer(schema, **STRICT)).schema


def undone(schema: dict[str, Any], **arguments: Any) -> dict[str, Any]:
    return openai.definition(offer(schema, **STRICT)).undo(arguments)


def whats(adaptations: tuple[Adaptation, ...]) -> list[tuple[str, str]]:
    return [(adaptation.path, adaptation.what) for adaptation in adaptations]


SEARCH = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "properties": {
        "query": {"type": "string", "minLength": 1},
        "limit": {"type": "integer", "default": 10, "exclusiveMinimum": 0},
        "order": {"type": "string", "enum": ["up", "down"]},
    },
    "required": ["query"],
    "additionalProperties": False,
}


@pytest.mark.req("ENG-8")
def test_openai_and_anthropic_get_the_whole_schema_and_strict_only_on_request() -> None:
    wire, adaptations, undo = openai.definition(offer(SEARCH))
    function = {"name": "find", "description": "Finds.", "parameters": SEARCH, "strict": False}
    assert wire == {"type": "function", "function": function}
    assert openai.definition(offer(SEARCH), "responses").wire == {"type": "function", **function}
    assert adaptations == ()
    assert undo({"query": None}) == {"query": None}
    wire, adaptations, _ = anthropic.definition(offer(SEARCH))
    assert wire == {"name": "find", "description": "Finds.", "input_schema": SEARCH}
    assert adaptations == ()


@pytest.mark.req("ENG-7")
def test_openai_strict_makes_optional_properties_required_and_nullable() -> None:
    definition = openai.definition(offer(SEARCH, **STRICT))
    assert definition.wire["function"] == {
        "name": "find",
        "description": "Finds.",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {
                "query": {"type": "string", "minLength": 1},
                "limit": {"type": ["integer", "null"], "exclusiveMinimum": 0, "description": DEFAULT_10},
                "order": {"anyOf": [{"type": "string", "enum": ["up", "down"]}, {"type": "null"}]},
            },
            "required": ["query", "limit", "order"],
            "additionalProperties": False,
        },
    }
    assert whats(definition.adaptations) == [
        ("#/properties/limit", "default was moved into the description"),
        ("#/properties/limit", "it became required, null if absent"),
        ("#/properties/order", "it became required, null if absent"),
        ("#", "$schema was removed"),
    ]
    assert {(one.tool, one.provider) for one in definition.adaptations} == {("find", "openai")}
    assert definition.undo({"query": "x", "limit": None, "order": "up"}) == {"query": "x", "order": "up"}


def test_a_null_that_the_tool_accepts_is_kept() -> None:
    schema = properties(a={"type": ["string", "null"]}, b={"anyOf": [{"type": "integer"}, {"type": "null"}]})
    assert strict(schema)["properties"] == schema["properties"]
    assert undone(schema, a=None, b=None) == {"a": None, "b": None}


def test_nulls_inside_lists_unions_and_definitions_are_removed() -> None:
    node = {"type": "object", "properties": {"n": {"type": "string"}, "next": {"$ref": "#/$defs/Node"}}}
    schema = {
        **properties(
            all={"type": "array", "items": {"$ref": "#/$defs/Node"}},
            either={"anyOf": [{"type": "string"}, {"$ref": "#/$defs/Node"}]},
        ),
        "$defs": {"Node": node},
    }
    written = {"n": None, "next": {"n": "x", "next": None}}
    restored = {"next": {"n": "x"}}
    assert undone(schema, all=[written], either=written) == {"all": [restored], "either": restored}
    assert undone(schema, all=None, either="x") == {"either": "x"}


def test_an_object_with_unknown_names_becomes_a_list_of_entries() -> None:
    schema = properties(env={"type": "object", "additionalProperties": {"type": "string", "enum": ["on", "off"]}})
    schema["required"] = ["env"]
    entry = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "value": {"type": "string", "enum": ["on", "off"]}},
        "required": ["name", "value"],
        "additionalProperties": False,
    }
    assert strict(schema)["properties"]["env"] == {"type": "array", "items": entry}
    assert undone(schema, env=[{"name": "A", "value": "on"}]) == {"env": {"A": "on"}}
    assert undone(schema, env={"A": "on"}) == {"env": {"A": "on"}}


def test_further_properties_have_their_own_property() -> None:
    schema = {**properties(a={"type": "string"}), "required": ["a"], "additionalProperties": {"type": "integer"}}
    assert list(strict(schema)["properties"]) == ["a", "further_properties"]
    assert undone(schema, a="x", further_properties=[{"name": "b", "value": 1}]) == {"a": "x", "b": 1}


@pytest.mark.parametrize("free", [{}, {"type": "object"}, {"type": "object", "additionalProperties": True}])
def test_an_unspecified_value_becomes_json_text(free: dict[str, Any]) -> None:
    schema = {**properties(a=free), "required": ["a"]}
    assert list(strict(schema)["properties"]["a"]["properties"]) == ["json"]
    assert undone(schema, a={"json": '{"b": [1, null]}'}) == {"a": {"b": [1, None]}}
    assert undone(schema, a={"json": "not json"}) == {"a": "not json"}
    assert undone(schema, a={"b": 1}) == {"a": {"b": 1}}


def test_enums_become_strings_or_a_union_of_scalars() -> None:
    schema = {**properties(a={"enum": [[1, 2], {"b": 1}]}), "required": ["a"]}
    assert strict(schema)["properties"]["a"] == {"type": "string", "enum": ["[1, 2]", '{"b": 1}']}
    assert undone(schema, a='{"b": 1}') == {"a": {"b": 1}}
    found = strict({**properties(a={"enum": ["x", 1, None]}), "required": ["a"]})["properties"]["a"]
    assert found == {"anyOf": [{"type": "string", "enum": ["x"]}, {"type": "integer", "enum": [1]}, {"type": "null"}]}


EITHER = {
    "type": "object",
    "properties": {"id": {"type": "integer"}, "name": {"type": "string"}},
    "anyOf": [{"required": ["id"]}, {"required": ["name"]}],
}


@pytest.mark.parametrize("key", ["anyOf", "oneOf"])
@pytest.mark.parametrize("format_", [openai, anthropic])
def test_a_union_at_the_root_becomes_one_argument_and_is_restored(format_: Any, key: str) -> None:
    schema = {**EITHER, key: EITHER["anyOf"]}
    schema = {name: value for name, value in schema.items() if name == key or name not in ("anyOf", "oneOf")}
    wire, adaptations, undo = format_.definition(offer(schema))
    sent = wire.get("input_schema") or wire["function"]["parameters"]
    assert sent == {"type": "object", "properties": {"arguments": schema}, "required": ["arguments"]}
    assert whats(adaptations) == [("#", "the whole schema became the property arguments")]
    assert undo({"arguments": {"id": 1}}) == {"id": 1}
    assert undo({"id": 1}) == {"id": 1}


def test_strict_and_google_expand_each_branch_of_a_root_union() -> None:
    found = strict(EITHER)["properties"]["arguments"]["anyOf"]
    assert [form["properties"]["id"]["type"] for form in found] == ["integer", ["integer", "null"]]
    assert undone(EITHER, arguments={"id": None, "name": "x"}) == {"name": "x"}
    sent = google.definition(offer(EITHER)).wire["parametersJsonSchema"]["properties"]["arguments"]
    assert [form["required"] for form in sent["anyOf"]] == [["id"], ["name"]]


def test_a_wrapped_root_has_updated_references_and_an_unused_name() -> None:
    schema = {**EITHER, "properties": {"id": {"type": "integer"}, "name": {"$ref": "#/properties/id"}}}
    sent = anthropic.definition(offer(schema)).wire["input_schema"]
    assert sent["properties"]["arguments"]["properties"]["name"] == {"$ref": "#/properties/arguments/properties/id"}
    schema = {**EITHER, "properties": {"arguments": {"type": "object"}}}
    assert list(anthropic.definition(offer(schema)).wire["input_schema"]["properties"]) == ["arguments_"]


def test_all_of_and_a_reference_at_the_root_are_merged_into_it() -> None:
    schema = {
        "$ref": "#/$defs/Base",
        "allOf": [{"properties": {"b": {"type": "string"}}, "required": ["b"]}],
        "$defs": {"Base": {"type": "object", "properties": {"a": {"enum": ["x"]}}, "required": ["a"]}},
    }
    sent = anthropic.definition(offer(schema)).wire["input_schema"]
    merged = {"properties": {"a": {"enum": ["x"]}, "b": {"type": "string"}}, "required": ["a", "b"]}
    assert sent == {"$defs": schema["$defs"], "type": "object", **merged}


def test_argument_names_that_anthropic_rejects_are_renamed_and_restored() -> None:
    long = "x" * 70
    named = {"filter[id]": {"type": "string"}, "filter_id_": {"type": "string"}, long: {}}
    schema = {**properties(**named), "required": [long]}
    wire, adaptations, undo = anthropic.definition(offer(schema))
    names = list(wire["input_schema"]["properties"])
    assert names[1] == "filter_id_" and len(set(names)) == 3
    assert all(len(name) <= 64 and "[" not in name for name in names)
    assert wire["input_schema"]["required"] == [names[2]]
    assert undo(dict(zip(names, "abc", strict=True))) == {"filter[id]": "a", "filter_id_": "b", long: "c"}
    assert [path for path, _ in whats(adaptations)] == ["#/properties/filter[id]", f"#/properties/{long}"]


def test_google_gets_known_keywords_and_the_others_in_descriptions() -> None:
    schema = {
        "type": "object",
        "definitions": {"Mode": {"const": "r"}},
        "properties": {
            "mode": {"$ref": "#/definitions/Mode", "description": "How."},
            "count": {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 9},
            "part": {"type": "number", "exclusiveMinimum": 0},
            "at": {"type": "string", "format": "uri", "description": "Where."},
            "tags": {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
            "pair": {"prefixItems": [{"type": "string"}, {"type": "integer"}], "type": "array"},
        },
    }
    wire, adaptations, undo = google.definition(offer(schema))
    assert wire["parametersJsonSchema"] == {
        "type": "object",
        "$defs": {"Mode": {"type": "string", "enum": ["r"]}},
        "properties": {
            "mode": {"anyOf": [{"$ref": "#/$defs/Mode"}], "description": "How."},
            "count": {"type": "integer", "minimum": 1, "maximum": 8},
            "part": {"type": "number", "description": 'As JSON Schema: {"exclusiveMinimum": 0}'},
            "at": {"type": "string", "description": 'Where.\nAlso, as JSON Schema: {"format": "uri"}'},
            "tags": {"type": "array", "items": {"type": "string"}, "description": UNIQUE},
            "pair": {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}]},
        },
    }
    changed = {f"#/properties/{name}" for name in ("mode", "count", "part", "at", "tags")}
    assert {path for path, _ in whats(adaptations)} == {"#/definitions/Mode", *changed}
    assert undo({"mode": "r"}) == {"mode": "r"}


def test_google_gets_no_schema_that_must_contain_itself() -> None:
    def tree(required: list[str]) -> Any:
        kids = {"type": "array", "items": {"$ref": "#/$defs/Tree"}}
        node = {"type": "object", "properties": {"kids": kids}, "required": required}
        schema = {**properties(top={"$ref": "#/$defs/Tree"}), "$defs": {"Tree": node}}
        return google.definition(offer(schema)).wire["parametersJsonSchema"]["$defs"]["Tree"]["properties"]["kids"]

    assert tree([])["items"] == {"$ref": "#/$defs/Tree"}
    assert tree(["kids"])["items"] == {"type": "object", "description": "Same form as Tree."}


async def test_google_names_begin_with_a_letter_and_calls_use_them() -> None:
    definition = google.definition(offer(SEARCH, name="3d_view"))
    assert definition.name == definition.wire["name"] == "_3d_view"
    assert ("name", "the tool was renamed to _3d_view") in whats(definition.adaptations)
    assert openai.definition(offer(SEARCH, name="3d_view")).name == "3d_view"
    called: list[Any] = []

    async def call(tool: Any, arguments: dict[str, Any], *, timeout: float | None) -> None:
        called.append((tool, arguments))

    await Tools([offer(SEARCH, name="3d_view")], call=call).call("_3d_view", {"query": "x"})
    assert called == [(TOOL, {"query": "x"})]


@pytest.mark.parametrize("reference", ["https://example.org/x.json", "#/$defs/Gone", "other.json#/a", "#gone", 7])
def test_a_dangling_reference_moves_into_the_description(reference: Any) -> None:
    schema = properties(a={"$ref": reference})
    for definition in (format_.definition(offer(schema)) for format_ in (openai, anthropic, google)):
        assert "#/properties/a" in [path for path, _ in whats(definition.adaptations)]
        assert '"$ref": ' not in json.dumps(definition.wire)
    sent = anthropic.definition(offer(schema)).wire["input_schema"]["properties"]["a"]
    assert sent == ({} if reference == 7 else {"description": f"See {reference}."})


def test_references_by_anchor_and_by_the_schema_s_own_address_are_followed() -> None:
    schema = {
        "$id": "https://example.org/tool",
        **properties(a={"$ref": "#mode"}, b={"$ref": "https://example.org/tool#/$defs/Mode"}),
        "$defs": {"Mode": {"$anchor": "mode", "enum": ["r", "w"]}},
    }
    sent = google.definition(offer(schema)).wire["parametersJsonSchema"]
    assert sent["properties"] == {"a": {"$ref": "#/$defs/Mode"}, "b": {"$ref": "#/$defs/Mode"}}
    assert sent["$defs"] == {"Mode": {"type": "string", "enum": ["r", "w"]}}


def test_old_drafts_are_updated() -> None:
    schema = properties(
        a={"type": "string", "required": True},
        b={"type": "number", "minimum": 0, "exclusiveMinimum": True},
        c={"type": "array", "items": [{"type": "string"}], "additionalItems": False},
    )
    assert anthropic.definition(offer(schema)).wire["input_schema"] == {
        **properties(
            a={"type": "string"},
            b={"type": "number", "exclusiveMinimum": 0},
            c={"type": "array", "prefixItems": [{"type": "string"}], "items": False},
        ),
        "required": ["a"],
    }


def test_invalid_schemas_are_repaired_and_listed() -> None:
    schema = properties(a={"type": "String"}, b={"type": "any"}, c={"enum": []}, d=[], e={"required": ["x", "x", 3]})
    wire, adaptations, _ = anthropic.definition(offer(schema))
    mended = {"a": {"type": "string"}, "b": {}, "c": {}, "d": {}, "e": {"required": ["x"]}}
    assert wire["input_schema"]["properties"] == mended
    assert [path for path, _ in whats(adaptations)] == [f"#/properties/{name}" for name in "abcde"]


def test_openai_gets_items_for_every_list_and_an_object_for_every_schema() -> None:
    wire, adaptations, _ = openai.definition(offer(properties(a={"type": "array"}, b=True, c=False)))
    completed = {"a": {"type": "array", "items": {}}, "b": {}, "c": {"not": {}}}
    assert wire["function"]["parameters"]["properties"] == completed
    assert len(adaptations) == 3


def test_a_tool_without_a_schema_accepts_an_object() -> None:
    assert openai.definition(offer({})).wire["function"]["parameters"] == {"type": "object", "properties": {}}
    assert anthropic.definition(offer({})).wire["input_schema"] == {"type": "object"}
    assert google.definition(offer({})).wire["parametersJsonSchema"] == {"type": "object"}
    assert strict({}) == {"type": "object", "properties": {}, "required": [], "additionalProperties": False}


def test_a_schema_beyond_openais_limits_is_not_strict() -> None:
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(11):
        deep = properties(a=deep)
    many = properties(a={"enum": [f"v{index}" for index in range(1_001)]})
    wide = properties(**{f"p{index}": {"type": "string"} for index in range(5_001)})
    long = properties(a={"enum": ["x" * 120_000]})
    limits = ((deep, "10 nested objects"), (many, "1000 values"), (wide, "5000 properties"), (long, "120000 char"))
    for schema, limit in limits:
        definition = openai.definition(offer(schema, **STRICT))
        assert definition.wire["function"]["strict"] is False
        assert definition.wire["function"]["parameters"] == schema
        assert [one.what for one in definition.adaptations] == ["strict was set to false"]
        assert limit in definition.adaptations[0].why


def test_anthropic_strict_closes_objects_and_keeps_optional_properties() -> None:
    schema = properties(a={"type": "integer", "minimum": 1}, b={"type": ["string", "null"]})
    wire, _, undo = anthropic.definition(offer(schema, **STRICT))
    assert wire["strict"] is True
    assert wire["input_schema"] == {
        "type": "object",
        "properties": {
            "a": {"type": "integer", "description": 'As JSON Schema: {"minimum": 1}'},
            "b": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        },
        "required": [],
        "additionalProperties": False,
    }
    assert undo({"b": None}) == {"b": None}


@pytest.mark.parametrize(
    "schema",
    [
        {**properties(a={"$ref": "#/$defs/Node"}), "$defs": {"Node": properties(next={"$ref": "#/$defs/Node"})}},
        properties(**{f"p{index}": {"type": "string"} for index in range(25)}),
        {
            **(wide := properties(**{f"p{index}": {"type": ["string", "null"]} for index in range(17)})),
            "required": [*wide["properties"]],
        },
    ],
    ids=["refers to itself", "many optional", "many unions"],
)
def test_a_schema_beyond_anthropics_limits_is_not_strict(schema: dict[str, Any]) -> None:
    wire, adaptations, _ = anthropic.definition(offer(schema, **STRICT))
    assert "strict" not in wire
    assert wire["input_schema"] == schema
    assert whats(adaptations) == [("#", "strict was removed")]


@pytest.mark.req("ENG-7")
@pytest.mark.parametrize("given", [{"strict": True}, {"function": {"strict": True}}])
def test_both_spellings_of_strict_reach_both_interfaces(given: dict[str, Any]) -> None:
    assert openai.definition(offer(SEARCH, openai=given)).wire["function"]["strict"] is True
    assert openai.definition(offer(SEARCH, openai=given), "responses").wire["strict"] is True


@pytest.mark.req("ENG-7")
def test_options_reach_the_wire_of_their_provider_only() -> None:
    cache = {"cache_control": {"type": "ephemeral"}}
    made = offer(SEARCH, anthropic={**cache, "defer_loading": True}, google={"behavior": "BLOCKING"}, openai=cache)
    plain = anthropic.definition(offer(SEARCH)).wire
    assert anthropic.definition(made).wire == {**plain, **cache, "defer_loading": True}
    assert google.definition(made).wire["behavior"] == "BLOCKING"
    assert openai.definition(made).wire["cache_control"] == {"type": "ephemeral"}
    assert set(openai.definition(made).wire) == {"type", "function", "cache_control"}


@pytest.mark.parametrize(
    ("provider", "options"),
    [
        ("openai", {"name": "other"}),
        ("openai", {"function": {"parameters": {}}}),
        ("openai", {"function": 3}),
        ("openai", {"strict": "yes"}),
        ("anthropic", {"input_schema": {}}),
        ("google", {"parametersJsonSchema": {}}),
    ],
)
def test_options_cannot_set_name_description_or_schema(provider: str, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as raised:
        FORMATS[provider].definition(offer(SEARCH, **{provider: options}))
    assert raised.value.remedy


def test_arguments_from_an_unknown_model_are_undone() -> None:
    made = offer(SEARCH, **STRICT)
    assert undo_arguments(made, {"query": "x", "limit": None}) == {"query": "x"}
    assert undo_arguments(made, {"query": "x"}) == {"query": "x"}
    assert undo_arguments(offer(EITHER), {"arguments": {"id": 1}}) == {"id": 1}
    assert undo_arguments(offer(properties(**{"a[b]": {}})), {"a_b_": 1}) == {"a[b]": 1}


def test_definitions_have_the_types_of_the_sdks() -> None:
    for schema in (SEARCH, EITHER):
        made = offer(schema, **STRICT)
        chat, responses = openai.definition(made).wire, openai.definition(made, "responses").wire
        assert TypeAdapter(ChatCompletionToolParam).validate_python(chat) == chat
        assert TypeAdapter(FunctionToolParam).validate_python(responses) == responses
        tool = anthropic.definition(made).wire
        assert TypeAdapter(ToolParam).validate_python(tool) == tool
        declaration = google.definition(made).wire
        read = FunctionDeclaration.model_validate(declaration)
        assert read.model_dump(by_alias=True, exclude_none=True) == declaration
