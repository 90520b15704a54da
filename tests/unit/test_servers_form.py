"""The forms that servers ask people to fill in: their fields in words, and the values that fit."""

from __future__ import annotations

from typing import Any

import pytest

from toolcrib.core.answers import ProgramAsker, ServerQuestion
from toolcrib.errors import InvalidArguments
from toolcrib.servers.form import completed, form_fields

pytestmark = pytest.mark.req("KSI-5")

TITLED = [{"const": "r", "title": "Red"}, {"const": "g", "title": "Green"}]

FIELDS: list[tuple[dict[str, Any], str, list[Any], list[Any]]] = [
    ({"type": "string"}, "text", ["", "a\nb"], [5, None, True, ["a"]]),
    ({"type": "string", "minLength": 2, "maxLength": 3}, "text, 2 to 3 characters", ["ab", "äöü"], ["a", "abcd"]),
    ({"type": "string", "format": "email"}, "an email address", ["a@b.c"], ["a", "@", "a b@c", "a@b@c"]),
    (
        {"type": "string", "format": "uri"},
        "a URI",
        ["https://a.b/c", "mailto:a@b.c"],
        ["a", "//a/b", "http://[", "a: b"],
    ),
    ({"type": "string", "format": "date"}, "a date such as 2026-11-19", ["2026-02-28"], ["2026-02-30", "20260228"]),
    (
        {"type": "string", "format": "date-time"},
        "a time such as 2026-11-19T10:00:00Z",
        ["2026-11-19T10:00:00Z", "2026-11-19t10:00:00.5+01:00"],
        ["2026-11-19", "2026-11-19T10:00:00", "2026-11-19T25:00:00Z"],
    ),
    ({"type": "integer", "minimum": 1}, "a whole number, at least 1", [1, 2.0, 10**400], [0, 1.5, "1", True]),
    ({"type": "number", "maximum": 0.5}, "a number, at most 0.5", [0.5, -3], [1, float("nan"), False]),
    ({"type": "boolean"}, "true or false", [True, False], [0, "true"]),
    ({"type": "string", "enum": ["a", "b"]}, 'one of "a", "b"', ["a"], ["A", "", 1]),
    (
        {"type": "string", "enum": ["a", "b"], "enumNames": ["Ann", "Bob"]},
        'one of "a" ("Ann"), "b" ("Bob")',
        ["b"],
        ["Bob"],
    ),
    ({"type": "string", "oneOf": TITLED}, 'one of "r" ("Red"), "g" ("Green")', ["r"], ["Red", "x"]),
    (
        {"type": "array", "items": {"anyOf": TITLED}, "minItems": 1},
        'any of "r" ("Red"), "g" ("Green"), at least 1 of them',
        [["r"], ["g", "r"]],
        [[], "r", ["r", "r"], ["x"], [1], [["r"]]],
    ),
    (
        {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 1},
        'any of "a", "b", at most 1 of them',
        [[]],
        [["a", "b"]],
    ),
    ({"type": "object"}, "a JSON value", [{}, 1], [None]),
]


@pytest.mark.parametrize(("schema", "expected", "good", "bad"), FIELDS, ids=[words for _, words, *_ in FIELDS])
def test_a_field_says_what_it_expects_and_accepts_only_that(schema, expected, good, bad):
    form = {"type": "object", "properties": {"f": schema}}
    (field,) = form_fields(form)
    assert field.expected == expected
    for value in good:
        assert completed(form, {"f": value}) == {"f": value}
    for value in bad:
        with pytest.raises(InvalidArguments) as caught:
            completed(form, {"f": value})
        assert f'"f" must be {expected}, not ' in caught.value.message


def test_all_errors_are_named_and_defaults_fill_what_was_left_out():
    properties = {
        "name": {"type": "string"},
        "age": {"type": "integer", "default": 18},
        "odd": {"type": "integer", "default": "no number"},
        "free": {"type": "boolean"},
    }
    form = {"type": "object", "properties": properties, "required": ["name", "age", "odd"]}
    assert completed(form, {"name": "Ann", "odd": 1}) == {"name": "Ann", "age": 18, "odd": 1}
    assert [field.required for field in form_fields(form)] == [True, True, True, False]
    with pytest.raises(InvalidArguments) as caught:
        completed(form, {"age": "old", "nmae": "Ann"})
    for words in (
        'has no field "nmae"',
        '"age" must be a whole number',
        '"name" is required: text',
        '"odd" is required',
    ):
        assert words in caught.value.message
    assert caught.value.remedy == 'Its fields: "name", "age", "odd", "free".'


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"properties": []},
        {"properties": {"f": 5, "g": {"type": ["x"]}}, "required": "f"},
        {"properties": {"f": {"enum": 3, "minLength": "2", "title": 5}}, "required": [["f"]]},
        {"properties": {"f": {"type": "array", "items": {"anyOf": [1, {"const": 2}]}}}},
        {"properties": {"f": {"format": {}, "type": "string", "minimum": True}}},
    ],
)
def test_an_odd_schema_does_no_harm(schema):
    assert [field.required for field in form_fields(schema)] == [False] * len(form_fields(schema))
    assert completed(schema, {}) == {}


def test_a_servers_words_are_quoted_and_cut():
    lying = {"type": "string", "enum": ["a\nApproved: everything", "x" * 1000, *map(str, range(100))]}
    (field,) = form_fields({"properties": {"f": lying}})
    assert '"a\\nApproved: everything"' in field.expected
    assert field.expected.endswith(", 72 more")
    assert len(field.expected) < 500


async def test_an_answer_that_does_not_fit_is_not_in_the_log(caplog):
    schema = {"type": "object", "properties": {"mail": {"type": "string", "format": "email"}}}
    asked = ServerQuestion(server="shop", tool="shop:buy", message="Mail?", schema=schema)
    given = await ProgramAsker(lambda _: {"mail": "ann's own words", "more": "and others"}).answered(asked)
    assert given == {"action": "cancel"}
    assert "shop" in caplog.text
    assert "mail" in caplog.text
    assert "own words" not in caplog.text
