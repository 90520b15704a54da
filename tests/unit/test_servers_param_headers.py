"""`Mcp-Param-*` headers: the SDK's own rules are the measure."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.shared import inbound

from toolcrib.servers.param_headers import MARK, encode_header_value, headers_of, marked_properties

_scalar = st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.floats(allow_nan=False)
_keys = st.sampled_from(["a", "b", MARK, "properties", "items"])


def _schemas() -> st.SearchStrategy[Any]:
    leaf = st.fixed_dictionaries(
        {"type": st.sampled_from(["string", "integer", "boolean", "number", ["string"]])},
        optional={MARK: st.sampled_from(["Region", "region", "Zone", "A", "B", "bad name", "", 7])},
    )

    def grow(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        return st.fixed_dictionaries(
            {"type": st.just("object"), "properties": st.dictionaries(_keys, children, max_size=3)},
            optional={
                "anyOf": st.lists(children, max_size=2),
                "items": children,
                "$defs": st.dictionaries(_keys, children, max_size=1),
                "default": children,
            },
        )

    return st.recursive(leaf, grow, max_leaves=6)


def _sdk_headers(schema: Any, arguments: dict[str, Any]) -> dict[str, str]:
    if inbound.find_invalid_x_mcp_header(schema) is not None:
        return {}
    return inbound.mcp_param_headers(inbound.x_mcp_header_map(schema), arguments)


@pytest.mark.req("ENG-1")
@given(_schemas(), st.recursive(_scalar, lambda sub: st.dictionaries(_keys, sub, max_size=3), max_leaves=8))
def test_headers_are_those_that_the_sdk_would_send(schema: Any, arguments: Any) -> None:
    given_arguments = arguments if isinstance(arguments, dict) else {"a": arguments}
    assert headers_of(marked_properties(schema), given_arguments) == _sdk_headers(schema, given_arguments)


@given(st.text())
def test_header_values_survive_the_way(value: str) -> None:
    encoded = encode_header_value(value)
    assert encoded == inbound.encode_header_value(value)
    assert inbound.decode_header_value(encoded) == value
    assert encoded.isascii()
    assert encoded.isprintable()


def test_nested_properties_are_reached_and_absent_values_send_nothing() -> None:
    schema = {
        "properties": {
            "region": {"type": "string", MARK: "Region"},
            "o": {"properties": {"deep": {"type": "boolean", MARK: "Deep"}}},
            "gone": {"type": "integer", MARK: "Gone"},
        }
    }
    arguments = {"region": "süd", "o": {"deep": True}, "gone": None}
    assert headers_of(marked_properties(schema), arguments) == {
        "Mcp-Param-Region": "=?base64?c8O8ZA==?=",
        "Mcp-Param-Deep": "true",
    }


@pytest.mark.parametrize(
    "schema",
    [
        {MARK: "Root", "type": "string"},
        {"properties": {"a": {"type": "number", MARK: "A"}}},
        {"properties": {"a": {"type": "string", MARK: "bad name"}}},
        {"properties": {"a": {"type": "string", MARK: 7}}},
        {"properties": {"a": {"type": "string", MARK: "X"}, "b": {"type": "string", MARK: "x"}}},
        {"properties": {"a": {"type": "string", MARK: "A"}}, "anyOf": [{MARK: "B"}]},
        {"patternProperties": {"^a": {"type": "string", MARK: "A"}}},
        {"items": {"properties": {"a": {"type": "string", MARK: "A"}}}},
    ],
)
def test_one_invalid_mark_voids_them_all(schema: dict[str, Any]) -> None:
    assert marked_properties(schema) == {}


def test_an_integer_of_endless_digits_sends_no_header() -> None:
    marked = marked_properties({"properties": {"n": {"type": "integer", MARK: "N"}}})
    assert headers_of(marked, {"n": 10**5000}) == {}
