"""Paths into JSON values."""

from __future__ import annotations

from typing import Any

import pytest

from toolcrib.errors import InvalidArguments
from toolcrib.listing.json_path import find

VALUE: dict[str, Any] = {
    "items": [{"name": "a", "tags": ["x", "y"]}, {"name": "b"}, {"name": "c", "tags": []}],
    "a b": {'"': 1, "'": 2},
    "größe": 3,
    "none": None,
    "*": "star",
}


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("$", [VALUE]),
        ("", [VALUE]),
        ("$.items[0].name", ["a"]),
        ("items[0].name", ["a"]),
        (".items[-1].name", ["c"]),
        ("$.items[1:].name", ["b", "c"]),
        ("$.items[:-1].name", ["a", "b"]),
        ("$.items[0:99].name", ["a", "b", "c"]),
        ("$.items[*].tags", [["x", "y"], []]),
        ("$.items[*].tags[*]", ["x", "y"]),
        ('$["a b"]["\\""]', [1]),
        ("$['a b'].*", [1, 2]),
        ("$.größe", [3]),
        ("$.none", [None]),
        ('$["*"]', ["star"]),
    ],
)
def test_a_path_leads_to_these_values(path: str, found: list[Any]) -> None:
    assert find(VALUE, path) == found


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("$.item", "$ is an object with items, a b"),
        ("$.items.name", "$.items is a list of 3"),
        ("$.items[3]", "$.items is a list of 3"),
        ("$.items[-4]", "$.items is a list of 3"),
        ("$.items[*].nam", "$.items[*] is an object with name, tags"),
        ("$.none.x", "$.none is a single value"),
    ],
)
def test_a_path_to_nothing_says_where_it_ends(path: str, place: str) -> None:
    with pytest.raises(InvalidArguments) as raised:
        find(VALUE, path)
    assert place in raised.value.message


@pytest.mark.parametrize(
    "path",
    ["$..name", "$.items[?(@.name)]", "$.items[0", "$.items[0:1:2]", "$.items[9999999999999999]", '$["\\ud800"]', "$x"],
)
def test_other_paths_are_refused(path: str) -> None:
    with pytest.raises(InvalidArguments):
        find(VALUE, path)


def test_paths_and_errors_have_a_limited_length() -> None:
    with pytest.raises(InvalidArguments):
        find(VALUE, "$" + "[0]" * 500)
    with pytest.raises(InvalidArguments) as raised:
        find({"x" * 100_000: 1, **{str(number): 1 for number in range(1000)}}, "$." + "y" * 900)
    assert len(raised.value.message) < 600
