"""The depth and the number of values of a JSON text, counted without parsing it."""

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
def test_the_depth_is_that_of_the_parsed_value(value: Any, limit: int, ascii: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii).encode()
    assert deeper_than(limit, text) is (depth(value) > limit)


@given(st.binary(max_size=400), st.integers(0, 20))
def test_any_bytes_have_a_depth(text: bytes, limit: int) -> None:
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
def test_brackets_in_strings_do_not_count(text: bytes, deep: bool) -> None:
    assert deeper_than(128, text) is deep


def number_of(value: Any) -> int:
    """An empty object or list counts as two, which is its cost."""
    if not isinstance(value, dict | list):
        return 1
    inner = value.values() if isinstance(value, dict) else value
    return 1 + max(1, sum(map(number_of, inner)))


@given(value=values, size=st.integers(1, 9), ascii=st.booleans())
def test_values_are_counted_across_chunks(value: Any, size: int, ascii: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii).encode()
    counter = ValueCounter()
    for start in range(0, len(text), size):
        counter.add(text[start : start + size])
    assert (counter.values, counter.deepest) == (number_of(value), depth(value))
