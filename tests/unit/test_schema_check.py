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
DRAFT_7, DRAFT_2020 = "http://json-schema.org/draft-07/schema#", "https://json-schema.org/draft/2020-12/schema"
PYDANTIC = {
    "$defs": {"Filter": {"type": "object", "properties": {"all": {"items": {"$ref": "#/$defs/Filter"}}}}},
    "type": "object",
    "properties": {"filter": {"anyOf": [{"$ref": "#/$defs/Filter"}, {"type": "null"}]}},
}
ZOD = {
    "$schema": DRAFT_7,
    "type": "object",
    "properties": {"a": {"type": "string"}, "b": {"$ref": "#/properties/a"}},
    "additionalProperties": False,
}


def tool(schema: Any) -> Tool:
    raw = json.dumps({"name": "t", "inputSchema": schema}).encode()
    return Catalog.build({"s": (raw,)}, version=1).tools[0]


def check(schema: Any, arguments: Any) -> Any:
    return ArgumentChecker().check(tool(schema), arguments)


def errors(schema: Any, arguments: Any) -> list[tuple[str, str]]:
    with pytest.raises(InvalidArguments) as raised:
        check(schema, arguments)
    return [(error["path"], error["message"]) for error in raised.value.data["errors"]]


def test_valid_arguments_are_returned_decoded_and_an_encoded_slash_in_a_reference_is_followed() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    assert check(schema, b'{"n": 3}') == check(schema, {"n": 3}) == {"n": 3}
    schema = {"$ref": "#/$defs/a%2Fb", "$defs": {"a": {"b": {"properties": {"n": {"type": "integer"}}}}}}
    assert [path for path, _ in errors(schema, {"n": "three"})] == ["arguments.n"]


@pytest.mark.req("BNS-5")
def test_an_error_has_the_path_and_the_expected_value() -> None:
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
        ("arguments", 'must have "query"'),
        ("arguments.filters[0].name", "must be of type string, not 3"),
        ('arguments.filters[0]["a b"]', "must be 1, not 2"),
        ("arguments.limit", "does not satisfy maximum 10: 11"),
        ("arguments.mode", 'must be one of "fast", "slow", not "odd"'),
    ]


ANY_OF = {"properties": {"a": {"anyOf": [{"type": "string"}, {"properties": {"k": {"const": 1}}, "type": "object"}]}}}
ANY_OF_ERROR = (
    'matches none of the allowed forms: arguments.a must be of type string, not {"k":2}, '
    "or arguments.a.k must be 1, not 2"
)
ONE_OF_ERROR = "must match exactly one of the allowed forms, but 3 matches several"
NAME_ERROR = 'has a property whose name is not allowed: it does not satisfy maxLength 1: "ab"'


@pytest.mark.parametrize(
    ("schema", "arguments", "message"),
    [
        ({"additionalProperties": False}, {"x": 1}, "must be an empty object"),
        ({"properties": {"a": {}}, "additionalProperties": False}, {"x": 1}, 'must not have "x"'),
        ({"properties": {"a": {"pattern": "^b"}}}, {"a": "c"}, 'must match "^b", not "c"'),
        ({"properties": {"a": False}}, {"a": 1}, "must be left out"),
        ({"properties": {"a": {"type": ["string", "null"]}}}, {"a": 1}, "must be of type null or string, not 1"),
        (ANY_OF, {"a": {"k": 2}}, ANY_OF_ERROR),
        ({"properties": {"a": {"oneOf": [{"minimum": 1}, {"minimum": 2}]}}}, {"a": 3}, ONE_OF_ERROR),
        ({"propertyNames": {"maxLength": 1}}, {"ab": 1}, NAME_ERROR),
        ({"properties": {"a": {"multipleOf": 2}}}, {"a": 3}, "does not satisfy multipleOf 2: 3"),
        ({"properties": {"a": {"uniqueItems": True}}}, {"a": [1, 1]}, "does not satisfy uniqueItems: [1,1]"),
    ],
)
@pytest.mark.req("BNS-5")
def test_each_kind_of_error_describes_the_expected_value(schema: Any, arguments: Any, message: str) -> None:
    assert [text for _, text in errors(schema, arguments)] == [message]


@pytest.mark.req("BNS-5")
def test_the_error_has_the_full_schema_and_a_remedy() -> None:
    schema = {"type": "object", "required": ["path"], "x": [1]}
    with pytest.raises(InvalidArguments) as raised:
        check(schema, None)
    assert raised.value.data["schema"] == schema
    text = 'The arguments do not match s:t: arguments must have "path". Correct these and call again.'
    assert raised.value.text() == text


def test_the_number_and_length_of_errors_are_limited() -> None:
    found = errors({"additionalProperties": {"type": "integer"}}, {f"p{n}": "x" * 10_000 for n in range(50)})
    assert len(found) == 5
    assert all(len(message) < 130 for _, message in found)
    found = errors({"properties": {"a": {"items": {"type": "string"}}}}, {"a": list(range(100_000))})
    assert found == [("arguments.a[0]", "must be of type string, not 0")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (b"[1]", "must be an object, not [1]"),
        (b'"text"', 'must be an object, not "text"'),
        (b'{"a":', "are not valid JSON: Input data was truncated"),
        (b'{"a":1e999}', "are not valid JSON: Number out of range - at `$[...]`"),
        (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "are nested too deeply"),
    ],
)
@pytest.mark.req("BNS-10")
def test_arguments_that_are_not_a_json_object_are_refused(arguments: bytes, message: str) -> None:
    assert errors({}, arguments) == [("arguments", message)]
    assert "are not valid JSON" in errors({}, b'{"a":"\xff"}')[0][1]
    with pytest.raises(InvalidArguments, match="must be an object"):
        check({"type": "objekt"}, b"7")


def test_decoded_arguments_that_nest_too_deeply_are_refused() -> None:
    deep: dict[str, Any] = {}
    for _ in range(50_000):
        deep = {"a": deep}
    assert "cannot be checked" in errors({"properties": {"b": {}}, "required": ["b"]}, deep)[0][1]
    while deep:  # freed level by level, because freeing it at once would recurse
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
def test_each_draft_is_checked_by_its_own_rules(draft: str | None, schema: Any, wrong: Any) -> None:
    whole = {"type": "object", "properties": {"a": schema}}
    if draft:
        whole["$schema"] = draft
    assert errors(whole, {"a": wrong})


def test_keywords_of_later_drafts_and_formats_are_ignored() -> None:
    assert check({"$schema": DRAFT_7, "properties": {"a": {"prefixItems": [False]}}}, {"a": [1]}) == {"a": [1]}
    for draft in (DRAFT_7, DRAFT_2020):
        schema = {"$schema": draft, "properties": {"when": {"type": "string", "format": "date"}}}
        assert check(schema, {"when": "tomorrow"})


@pytest.mark.req("BNS-10")
def test_references_to_urls_and_files_are_never_followed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        listener.settimeout(0.2)
        for key in ("$ref", "$schema", "$dynamicRef"):
            schema = {key: f"http://127.0.0.1:{port}/schema.json", "type": "object"}
            assert check(schema, {"a": 1}) == {"a": 1}
        with pytest.raises(TimeoutError):
            listener.accept()
    assert caplog.text.count("its schema cannot be used") == 3
    (tmp_path / "s.json").write_text('{"required": ["b"]}')
    assert check({"$ref": (tmp_path / "s.json").as_uri()}, {}) == {}


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
def test_an_invalid_schema_is_logged_once_and_not_checked(schema: Any, caplog: pytest.LogCaptureFixture) -> None:
    checked, checker = tool(schema), ArgumentChecker()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert checker.check(checked, b'{"a": 1}') == {"a": 1}
    assert caplog.text.count("s:t: its schema cannot be used, so arguments pass unchecked") == 1


@pytest.mark.parametrize("pattern", ["^(a+)+$", "^(a|a)*$", "^(?=a)(a+)+$", r"^(a+)+\1$"])
@pytest.mark.req("BNS-10")
def test_patterns_do_not_backtrack_exponentially_and_may_use_look_ahead(pattern: str) -> None:
    started = time.process_time()
    assert errors({"properties": {"a": {"pattern": pattern}}}, {"a": "a" * 5_000 + "b"})
    assert time.process_time() - started < 60
    look_ahead = {"properties": {"a": {"pattern": "^(?!x)"}}}
    assert check(look_ahead, {"a": "y"})
    assert errors(look_ahead, {"a": "xy"})


def doubling(levels: int) -> dict[str, Any]:
    """Definitions that each refer to the next one twice."""
    definitions = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(levels)}
    return {"$ref": "#/$defs/d0", "$defs": {**definitions, f"d{levels}": {"required": ["x"]}}}


@pytest.mark.req("BNS-10")
def test_exponential_references_are_not_checked(caplog: pytest.LogCaptureFixture) -> None:
    started = time.process_time()
    assert check(doubling(50), {}) == {}
    itself = {"properties": {"a": {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}}, "additionalProperties": False}
    deep: dict[str, Any] = {"b": 1}
    for _ in range(60):
        deep = {"a": deep}
    assert check(itself, deep) == deep
    assert time.process_time() - started < 60
    assert caplog.text.count("would take too long") == 2
    assert errors(doubling(8), {}) == [("arguments", 'must have "x"')]


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#n", "$defs": {"n": {"$anchor": "n", "required": ["x"]}}},
        {"properties": {"a": {"$ref": "sub"}}, "$defs": {"s": {"$id": "sub", "type": "string"}}},
    ],
)
def test_references_that_are_not_paths_are_not_checked(schema: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert check(schema, {"a": 1}) == {"a": 1}
    assert "references" in caplog.text


def test_a_recursive_schema_checks_nested_arguments() -> None:
    schema = {
        "properties": {"name": {"type": "string"}, "children": {"type": "array", "items": {"$ref": "#"}}},
        "required": ["name"],
    }
    tree: dict[str, Any] = {"name": "leaf"}
    for _ in range(20):
        tree = {"name": "node", "children": [tree, {"name": "other"}]}
    assert check(schema, tree) == tree
    found = errors(schema, {"name": "a", "children": [{"name": "b", "children": [{"name": 1}]}]})
    assert found == [("arguments.children[0].children[0].name", "must be of type string, not 1")]


def test_the_number_of_compiled_schemas_is_limited() -> None:
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
def test_any_arguments_are_accepted_or_invalid(schema: dict[str, Any], arguments: Any) -> None:
    raw = json.dumps(arguments).encode("utf-8", "surrogatepass")
    try:
        assert check(schema, raw) == ({} if arguments is None else arguments)
    except InvalidArguments as error:
        assert error.data["errors"]


@pytest.mark.parametrize("catalog", [None, *CATALOGS], ids=lambda path: path.stem if path else "own")
@pytest.mark.req("BNS-5")
def test_every_schema_of_a_real_catalog_is_checked(catalog: Path | None, caplog: pytest.LogCaptureFixture) -> None:
    own = [{"name": str(n), "inputSchema": schema} for n, schema in enumerate(({"type": "object"}, PYDANTIC, ZOD))]
    definitions = json.loads(catalog.read_text())["tools"] if catalog else own
    raw = tuple(json.dumps(one).encode() for one in definitions)
    tools = Catalog.build({"s": raw}, version=1).tools
    assert [json.loads(one.raw()) for one in tools] == definitions
    checker = ArgumentChecker()
    for one in tools:
        if one.input_schema.get("required", []):
            with pytest.raises(InvalidArguments, match=r"must|matches|satisfy"):
                checker.check(one, {})
        else:
            checker.check(one, {})
    assert caplog.text == ""


DEFINED = {"S": {"type": "string"}, "N": {"type": ["string", "null"]}, "O": {"type": "string", "nullable": True}}
ACCEPTS_NULL: list[Any] = [
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
REFUSES_NULL: list[Any] = [
    {"type": "string"},
    {"type": "string", "nullable": False, "default": "a"},
    {"enum": ["a"]},
    {"const": "a"},
    {"$ref": "#/$defs/S"},
    {"anyOf": [{"type": "string"}, {"type": "integer"}]},
    {"not": {"type": "null"}},
    False,
]


def optional(schema: Any, draft: str) -> dict[str, Any]:
    properties = {"x": schema, "nullable": {"type": "integer"}}
    return {"$schema": draft, "type": "object", "properties": properties, "$defs": DEFINED}


@pytest.mark.parametrize("draft", [DRAFT_2020, DRAFT_7])
@pytest.mark.parametrize("schema", ACCEPTS_NULL, ids=json.dumps)
def test_null_is_accepted_by_optional_and_nullable_schemas(schema: Any, draft: str) -> None:
    whole = optional(schema, draft)
    assert check(whole, b'{"x":null}') == {"x": None}
    assert [path for path, _ in errors(whole, b'{"x":null,"nullable":"no"}')] == ["arguments.nullable"]
    if schema not in ({}, True):
        assert errors(whole, b'{"x":[1.5]}')[0][0].startswith("arguments.x")


@pytest.mark.parametrize("draft", [DRAFT_2020, DRAFT_7])
@pytest.mark.parametrize("schema", REFUSES_NULL, ids=json.dumps)
def test_null_is_refused_by_other_schemas(schema: Any, draft: str) -> None:
    assert errors(optional(schema, draft), b'{"x":null}')[0][0].startswith("arguments.x")


def test_null_may_be_nested_and_references_into_a_nullable_schema_stay_valid() -> None:
    inner = {"type": "array", "items": {"type": "object", "properties": {"y": {"type": "string", "nullable": True}}}}
    assert check(optional(inner, DRAFT_2020), b'{"x":[{"y":null}]}')
    moved = {"anyOf": [{"type": "string"}], "default": None, "$defs": {"D": {"type": "integer"}}}
    checker = ArgumentChecker()
    checked = tool({"properties": {"x": moved, "y": {"$ref": "#/properties/x/$defs/D"}}})
    for _ in range(2):
        with pytest.raises(InvalidArguments, match=r"arguments\.x"):
            checker.check(checked, b'{"x":null}')
