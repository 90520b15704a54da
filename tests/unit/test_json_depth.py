"""How deep a JSON text nests is known without parsing it, and without being fooled by what stands in strings."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.servers.wire import ValueCounter, deeper_than

pytestmark = pytest.mark.req("BNS-10")

values = st.recursive(
    st.none() | st.integers() | st.text('[]{}"\\\u00e9a', max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('[]{}"\\', max_size=4), inner, max_size=3),
    max_leaves=30,
)


def depth(value: Any) -> int:
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0


@given(value=values, limit=st.integers(0, 8), ascii=st.booleans())
def test_it_is_as_deep_as_its_parser_says(value: Any, limit: int, ascii: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii).encode()
    assert deeper_than(limit, text) is (depth(value) > limit)


@given(st.binary(max_size=400), st.integers(0, 20))
def test_any_bytes_get_an_answer(text: bytes, limit: int) -> None:
    assert deeper_than(limit, text) in (True, False)


@pytest.mark.parametrize(
    ("text", "deep"),
    [
        (b"[" * 128 + b"]" * 128, False),
        (b"[" * 129 + b"]" * 129, True),
        (b"[" * 129, True),
        (b"]" * 500 + b"[" * 500, False),
        (b"[],{}" * 500, False),
        (b'["' + b"[" * 500 + b'"]', False),
        (b'["\\"' + b"[" * 500 + b'"]', False),
        (b'["\\\\",' + b"[" * 500, True),
        (b'{"a":' * 200, True),
    ],
)
def test_edges(text: bytes, deep: bool) -> None:
    assert deeper_than(128, text) is deep


def number_of(value: Any) -> int:
    """As they are counted: an empty object or list counts as one more, which is what it costs."""
    if not isinstance(value, dict | list):
        return 1
    inner = value.values() if isinstance(value, dict) else value
    return 1 + max(1, sum(map(number_of, inner)))


@given(value=values, size=st.integers(1, 9), ascii=st.booleans())
def test_what_comes_in_pieces_is_counted_as_a_whole(value: Any, size: int, ascii: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii).encode()
    weight = ValueCounter()
    for start in range(0, len(text), size):
        weight.add(text[start : start + size])
    assert (weight.values, weight.deepest) == (number_of(value), depth(value))
