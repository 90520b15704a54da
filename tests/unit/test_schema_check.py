"""Arguments are checked against the whole schema, in bounded time, with errors that name the place."""

from __future__ import annotations

import json
import logging
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.catalog import Catalog, Tool
from toolcrib.catalog.schema_check import ArgumentChecker
from toolcrib.errors import InvalidArguments

CATALOGS = sorted((Path(__file__).parents[3] / "shared" / "data" / "catalogs").glob("*.json"))
OWN_CATALOG = [
    {"name": "none", "inputSchema": {"type": "object"}},
    {
        "name": "pydantic",
        "inputSchema": {
            "$defs": {"Filter": {"type": "object", "properties": {"all": {"items": {"$ref": "#/$defs/Filter"}}}}},
            "type": "object",
            "properties": {"filter": {"anyOf": [{"$ref": "#/$defs/Filter"}, {"type": "null"}]}},
        },
    },
    {
        "name": "zod",
        "inputSchema": {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "type": "object",
            "properties": {"a": {"type": "string"}, "b": {"$ref": "#/properties/a"}},
            "additionalProperties": False,
        },
    },
]


def tool(schema: Any) -> Tool:
    raw = json.dumps({"name": "t", "inputSchema": schema}).encode()
    return Catalog.build({"s": (raw,)}, version=1).tools[0]


def errors(schema: Any, arguments: Any) -> list[tuple[str, str]]:
    with pytest.raises(InvalidArguments) as raised:
        ArgumentChecker().check(tool(schema), arguments)
    return [(error["path"], error["message"]) for error in raised.value.data["errors"]]


def test_arguments_that_fit_come_back_decoded() -> None:
    checked = tool({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})
    assert ArgumentChecker().check(checked, b'{"n": 3}') == {"n": 3}
    assert ArgumentChecker().check(checked, {"n": 3}) == {"n": 3}


def test_a_reference_with_an_encoded_slash_is_followed() -> None:
    schema = {"$ref": "#/$defs/a%2Fb", "$defs": {"a": {"b": {"properties": {"n": {"type": "integer"}}}}}}
    assert [path for path, _ in errors(schema, {"n": "three"})] == ["arguments.n"]


@pytest.mark.req("BNS-5")
def test_an_error_names_the_path_and_what_was_expected() -> None:
    schema = {
        "type": "object",
        "properties": {
            "filters": {"type": "array", "items": {"properties": {"name": {"type": "string"}, "a b": {"const": 1}}}},
            "mode": {"enum": ["fast", "slow"]},
            "limit": {"maximum": 10},
        },
        "required": ["query"],
        "additionalProperties": False,
    }
    given_arguments = {"filters": [{"name": 3, "a b": 2}], "mode": "odd", "limit": 11}
    assert sorted(errors(schema, given_arguments)) == [
        ("arguments", 'needs the property "query"'),
        ("arguments.filters[0].name", "must be of type string, not 3"),
        ('arguments.filters[0]["a b"]', "must be 1, not 2"),
        ("arguments.limit", "does not satisfy maximum 10: 11"),
        ("arguments.mode", 'must be one of "fast", "slow", not "odd"'),
    ]


@pytest.mark.parametrize(
    ("schema", "arguments", "message"),
    [
        ({"additionalProperties": False}, {"x": 1}, "must be an empty object"),
        ({"properties": {"a": {}}, "additionalProperties": False}, {"x": 1}, 'must not have "x"'),
        ({"properties": {"a": {"pattern": "^b"}}}, {"a": "c"}, 'must match "^b", not "c"'),
        ({"properties": {"a": False}}, {"a": 1}, "must be left out"),
        ({"properties": {"a": {"type": ["string", "null"]}}}, {"a": 1}, "must be of type null or string, not 1"),
        (
            {
                "properties": {
                    "a": {"anyOf": [{"type": "string"}, {"properties": {"k": {"const": 1}}, "type": "object"}]}
                }
            },
            {"a": {"k": 2}},
            "fits none of the allowed forms: "
            'arguments.a must be of type string, not {"k":2}, or arguments.a.k must be 1, not 2',
        ),
        (
            {"properties": {"a": {"oneOf": [{"minimum": 1}, {"minimum": 2}]}}},
            {"a": 3},
            "must fit exactly one of the allowed forms, but 3 fits several",
        ),
        (
            {"propertyNames": {"maxLength": 1}},
            {"ab": 1},
            'has a property whose name is not allowed: it does not satisfy maxLength 1: "ab"',
        ),
        ({"properties": {"a": {"multipleOf": 2}}}, {"a": 3}, "does not satisfy multipleOf 2: 3"),
        ({"properties": {"a": {"uniqueItems": True}}}, {"a": [1, 1]}, "does not satisfy uniqueItems: [1,1]"),
    ],
)
@pytest.mark.req("BNS-5")
def test_each_kind_of_error_says_what_was_expected(schema: Any, arguments: Any, message: str) -> None:
    assert [text for _, text in errors(schema, arguments)] == [message]


@pytest.mark.req("BNS-5")
def test_the_error_carries_the_full_schema_and_a_text_to_act_on() -> None:
    schema = {"type": "object", "required": ["path"], "x": [1]}
    with pytest.raises(InvalidArguments) as raised:
        ArgumentChecker().check(tool(schema), None)
    assert raised.value.data["schema"] == schema
    assert raised.value.text() == (
        'The arguments do not fit s:t: arguments needs the property "path". Correct these and call again.'
    )


def test_at_most_five_errors_are_told_and_long_values_are_cut() -> None:
    told = errors({"additionalProperties": {"type": "integer"}}, {f"p{n}": "x" * 10_000 for n in range(50)})
    assert len(told) == 5
    assert all(len(message) < 130 for _, message in told)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (b"[1]", "must be an object, not [1]"),
        (b'"text"', 'must be an object, not "text"'),
        (b'{"a":', "is not valid JSON: Input data was truncated"),
        (b'{"a":1e999}', "is not valid JSON: Number out of range - at `$[...]`"),
        (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "is nested too deeply"),
    ],
)
@pytest.mark.req("BNS-10")
def test_arguments_that_are_no_object_are_refused(arguments: bytes, message: str) -> None:
    assert errors({}, arguments) == [("arguments", message)]


def test_arguments_that_are_not_utf8_are_refused() -> None:
    assert "is not valid JSON" in errors({}, b'{"a":"\xff"}')[0][1]


def test_decoded_arguments_that_nest_without_bound_are_refused() -> None:
    deep: dict[str, Any] = {}
    for _ in range(50_000):
        deep = {"a": deep}
    assert "cannot be checked" in errors({"properties": {"b": {}}, "required": ["b"]}, deep)[0][1]
    while deep:  # taken apart level by level: freeing it at once would recurse
        deep = deep["a"]


@pytest.mark.parametrize(
    ("draft", "schema", "wrong"),
    [
        ("http://json-schema.org/draft-04/schema#", {"maximum": 3, "exclusiveMaximum": True}, 3),
        ("http://json-schema.org/draft-06/schema#", {"exclusiveMaximum": 3}, 3),
        ("http://json-schema.org/draft-07/schema#", {"if": {"type": "integer"}, "then": {"minimum": 9}}, 3),
        ("http://json-schema.org/draft-07/schema", {"items": [{"type": "string"}]}, [3]),
        ("https://json-schema.org/draft/2019-09/schema", {"contains": {"const": 1}, "minContains": 2}, [1]),
        ("https://json-schema.org/draft/2020-12/schema", {"prefixItems": [{"type": "string"}]}, [3]),
        (None, {"prefixItems": [{"type": "string"}]}, [3]),
    ],
)
@pytest.mark.req("BNS-5")
def test_each_draft_counts_by_its_own_rules(draft: str | None, schema: Any, wrong: Any) -> None:
    whole = {"type": "object", "properties": {"a": schema}}
    if draft:
        whole["$schema"] = draft
    assert errors(whole, {"a": wrong})


def test_draft_seven_does_not_know_later_keywords() -> None:
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", "properties": {"a": {"prefixItems": [False]}}}
    assert ArgumentChecker().check(tool(schema), {"a": [1]}) == {"a": [1]}


def test_a_format_is_a_note() -> None:
    for draft in ("http://json-schema.org/draft-07/schema#", "https://json-schema.org/draft/2020-12/schema"):
        schema = {"$schema": draft, "properties": {"when": {"type": "string", "format": "date"}}}
        assert ArgumentChecker().check(tool(schema), {"when": "tomorrow"})


@pytest.mark.req("BNS-10")
def test_a_remote_reference_is_never_fetched(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        listener.settimeout(0.2)
        for key in ("$ref", "$schema", "$dynamicRef"):
            schema = {key: f"http://127.0.0.1:{port}/schema.json", "type": "object"}
            assert ArgumentChecker().check(tool(schema), {"a": 1}) == {"a": 1}
        with pytest.raises(TimeoutError):
            listener.accept()
    assert caplog.text.count("its schema cannot be used") == 3


@pytest.mark.req("BNS-10")
def test_a_reference_to_a_file_is_never_read(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text('{"required": ["b"]}')
    assert ArgumentChecker().check(tool({"$ref": (tmp_path / "s.json").as_uri()}), {}) == {}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "objekt"},
        {"properties": 7},
        {"properties": {"a": {"pattern": "("}}},
        {"properties": {"a": {"pattern": "(a{1000}){1000}"}}},
        {"$ref": "#/nowhere"},
        {"$ref": "#"},
        {"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"anyOf": [{"$ref": "#"}]}}},
    ],
)
@pytest.mark.req("BNS-10")
def test_arguments_for_a_broken_schema_pass_and_the_log_says_so_once(
    schema: Any, caplog: pytest.LogCaptureFixture
) -> None:
    checked, checker = tool(schema), ArgumentChecker()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert checker.check(checked, b'{"a": 1}') == {"a": 1}
    assert caplog.text.count("s:t: its schema cannot be used, so arguments pass unchecked") == 1


def test_a_broken_schema_still_wants_an_object() -> None:
    with pytest.raises(InvalidArguments, match="must be an object"):
        ArgumentChecker().check(tool({"type": "objekt"}), b"7")


@pytest.mark.parametrize("pattern", ["^(a+)+$", "^(a|a)*$", "^(?=a)(a+)+$", r"^(a+)+\1$"])
@pytest.mark.req("BNS-10")
def test_no_pattern_takes_long(pattern: str) -> None:
    started = time.process_time()
    with pytest.raises(InvalidArguments):
        ArgumentChecker().check(tool({"properties": {"a": {"pattern": pattern}}}), {"a": "a" * 5_000 + "b"})
    assert time.process_time() - started < 60, "a pattern that backtracks takes longer than anybody lives"


def test_a_pattern_with_look_ahead_is_understood() -> None:
    schema = {"properties": {"a": {"pattern": "^(?!x)"}}}
    assert ArgumentChecker().check(tool(schema), {"a": "y"})
    assert errors(schema, {"a": "xy"})


def doubling(levels: int) -> dict[str, Any]:
    """Definitions that each name the next one twice."""
    definitions = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(levels)}
    return {"$ref": "#/$defs/d0", "$defs": {**definitions, f"d{levels}": {"required": ["x"]}}}


@pytest.mark.req("BNS-10")
def test_references_that_multiply_without_bound_pass_unchecked_and_quickly(caplog: pytest.LogCaptureFixture) -> None:
    started = time.process_time()
    assert ArgumentChecker().check(tool(doubling(50)), {}) == {}
    itself = {"properties": {"a": {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}}, "additionalProperties": False}
    deep: dict[str, Any] = {"b": 1}
    for _ in range(60):
        deep = {"a": deep}
    assert ArgumentChecker().check(tool(itself), deep) == deep
    assert time.process_time() - started < 60
    assert caplog.text.count("would take too long") == 2


def test_references_that_multiply_a_little_are_checked() -> None:
    assert errors(doubling(8), {}) == [("arguments", 'needs the property "x"')]


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#n", "$defs": {"n": {"$anchor": "n", "required": ["x"]}}},
        {"properties": {"a": {"$ref": "sub"}}, "$defs": {"s": {"$id": "sub", "type": "string"}}},
    ],
)
def test_references_by_other_means_than_a_path_pass_unchecked(schema: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert ArgumentChecker().check(tool(schema), {"a": 1}) == {"a": 1}
    assert "references" in caplog.text


def test_a_schema_that_refers_to_itself_checks_a_tree_of_arguments() -> None:
    schema = {
        "properties": {"name": {"type": "string"}, "children": {"type": "array", "items": {"$ref": "#"}}},
        "required": ["name"],
    }
    tree: dict[str, Any] = {"name": "leaf"}
    for _ in range(20):
        tree = {"name": "node", "children": [tree, {"name": "other"}]}
    assert ArgumentChecker().check(tool(schema), tree) == tree
    assert errors(schema, {"name": "a", "children": [{"name": "b", "children": [{"name": 1}]}]}) == [
        ("arguments.children[0].children[0].name", "must be of type string, not 1")
    ]


def test_large_wrong_arguments_are_told_one_error() -> None:
    told = errors({"properties": {"a": {"items": {"type": "string"}}}}, {"a": list(range(100_000))})
    assert told == [("arguments.a[0]", "must be of type string, not 0")]


def test_compiled_schemas_are_kept_up_to_a_bound() -> None:
    tools = [tool({"type": "object", "title": str(n)}) for n in range(10)]
    checker = ArgumentChecker(kept=3)
    for one in tools:
        checker.check(one, {})
    assert list(checker._compiled) == tools[-3:]
    checker.check(tools[-3], {})
    checker.check(tools[0], {})
    assert list(checker._compiled) == [tools[-1], tools[-3], tools[0]]


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda sub: (
        st.lists(sub, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "$ref", "type"]), sub, max_size=3)
    ),
    max_leaves=8,
)
_keywords = st.sampled_from(
    ["type", "properties", "items", "$ref", "anyOf", "allOf", "not", "enum", "required", "$defs", "pattern", "maximum"]
)
_like_a_schema = st.recursive(
    _json | st.sampled_from(["object", "string", "#", "#/properties/a", "#/$defs/a"]),
    lambda sub: st.dictionaries(_keywords, sub, max_size=4) | st.lists(sub, max_size=2),
    max_leaves=12,
)


@pytest.mark.req("BNS-10")
@given(st.dictionaries(_keywords, _like_a_schema, max_size=4), _json)
def test_whatever_comes_it_is_an_answer_or_invalid_arguments(schema: dict[str, Any], arguments: Any) -> None:
    raw = json.dumps(arguments).encode("utf-8", "surrogatepass")
    try:
        assert ArgumentChecker().check(tool(schema), raw) == ({} if arguments is None else arguments)
    except InvalidArguments as error:
        assert error.data["errors"]


@pytest.mark.parametrize("catalog", [None, *CATALOGS], ids=lambda path: path.stem if path else "own")
@pytest.mark.req("BNS-5")
def test_every_schema_of_a_real_catalog_is_used(catalog: Path | None, caplog: pytest.LogCaptureFixture) -> None:
    definitions = json.loads(catalog.read_text())["tools"] if catalog else OWN_CATALOG
    raw = tuple(json.dumps(one).encode() for one in definitions)
    tools = Catalog.build({"s": raw}, version=1).tools
    assert [json.loads(one.raw()) for one in tools] == definitions
    checker = ArgumentChecker()
    for one in tools:
        required = one.input_schema.get("required", [])
        if required:
            with pytest.raises(InvalidArguments, match=r"needs the property|must|fits|satisfy"):
                checker.check(one, {})
        else:
            checker.check(one, {})
    assert caplog.text == ""


DEFINED = {"S": {"type": "string"}, "N": {"type": ["string", "null"]}, "O": {"type": "string", "nullable": True}}
TAKES_NULL: list[Any] = [
    {},
    True,
    {"type": ["string", "null"], "minLength": 1, "format": "date"},
    {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
    {"oneOf": [{"type": "string"}, {"type": "null"}]},
    {"anyOf": [{"type": "integer"}, {"type": "string", "nullable": True}]},
    {"type": "string", "nullable": True},
    {"type": "string", "x-nullable": True},
    {"type": "string", "nullable": True, "enum": ["a", "b"]},
    {"$ref": "#/$defs/S", "nullable": True},
    {"allOf": [{"$ref": "#/$defs/S"}], "nullable": True},
    {"anyOf": [{"$ref": "#/$defs/S"}, {"type": "null"}]},
    {"$ref": "#/$defs/N"},
    {"$ref": "#/$defs/O"},
    {"enum": ["a", None]},
    {"type": "string", "enum": ["a", None]},
    {"type": ["string", "null"], "enum": ["a"]},
    {"const": None},
    {"const": "a", "default": None},
    {"type": "string", "default": None},
    {"type": ["object", "null"], "properties": {"a": {}}, "required": ["a"], "additionalProperties": False},
]
TAKES_NONE: list[Any] = [
    {"type": "string"},
    {"type": "string", "nullable": False, "default": "a"},
    {"enum": ["a"]},
    {"const": "a"},
    {"$ref": "#/$defs/S"},
    {"anyOf": [{"type": "string"}, {"type": "integer"}]},
    {"not": {"type": "null"}},
    False,
]
DRAFTS = ["https://json-schema.org/draft/2020-12/schema", "http://json-schema.org/draft-07/schema#"]


def optional(schema: Any, draft: str) -> Tool:
    root = {"$schema": draft, "type": "object", "properties": {"x": schema, "nullable": {"type": "integer"}}}
    definition = {"name": "t", "inputSchema": {**root, "$defs": DEFINED}}
    return Catalog.build({"s": (json.dumps(definition).encode(),)}, version=1).tools[0]


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("schema", TAKES_NULL, ids=json.dumps)
def test_null_is_taken_where_the_server_s_schema_means_it_to_be(schema: Any, draft: str) -> None:
    checker, tool = ArgumentChecker(), optional(schema, draft)
    assert checker.check(tool, b'{"x":null}') == {"x": None}
    with pytest.raises(InvalidArguments, match=r"arguments\.nullable"):
        checker.check(tool, b'{"x":null,"nullable":"no"}')
    if schema not in ({}, True):
        with pytest.raises(InvalidArguments, match=r"arguments\.x"):
            checker.check(tool, b'{"x":[1.5]}')


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("schema", TAKES_NONE, ids=json.dumps)
def test_null_is_refused_where_it_is_not(schema: Any, draft: str) -> None:
    with pytest.raises(InvalidArguments, match=r"arguments\.x"):
        ArgumentChecker().check(optional(schema, draft), b'{"x":null}')


def test_null_may_be_deeper_and_references_into_a_part_that_moves_change_nothing() -> None:
    inner = {"type": "array", "items": {"type": "object", "properties": {"y": {"type": "string", "nullable": True}}}}
    checker = ArgumentChecker()
    assert checker.check(optional(inner, DRAFTS[0]), b'{"x":[{"y":null}]}')
    moved = {"anyOf": [{"type": "string"}], "default": None, "$defs": {"D": {"type": "integer"}}}
    definition = {"name": "t", "inputSchema": {"properties": {"x": moved, "y": {"$ref": "#/properties/x/$defs/D"}}}}
    tool = Catalog.build({"s": (json.dumps(definition).encode(),)}, version=1).tools[0]
    for _ in range(2):
        with pytest.raises(InvalidArguments, match=r"arguments\.x"):
            checker.check(tool, b'{"x":null}')
