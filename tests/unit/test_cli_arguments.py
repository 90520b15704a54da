"""Words of a command line become a tool's arguments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.cli.tool_commands import arguments_from
from toolcrib.errors import InvalidArguments

SCHEMA: dict[str, Any] = {
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "ratio": {"type": "number"},
        "deep": {"type": "boolean"},
        "paths": {"type": "array", "items": {"type": "string"}},
        "sizes": {"type": "array", "items": {"$ref": "#/$defs/size"}},
        "options": {"type": "object"},
        "maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "maybe_text": {"type": ["string", "null"]},
        "level": {"enum": [1, 2, 3]},
        "colour": {"enum": ["red", "green"]},
        "size": {"$ref": "#/$defs/size"},
        "circle": {"$ref": "#/$defs/circle"},
    },
    "$defs": {"size": {"type": "integer"}, "circle": {"$ref": "#/$defs/circle"}},
}


@pytest.mark.req("BNS-5")
@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("text=5", "5"),
        ("text=a=b", "a=b"),
        ("text=", ""),
        ("text=@@handle", "@handle"),
        ("count=5", 5),
        ("count=-5", -5),
        ("ratio=5", 5),
        ("ratio=0.5", 0.5),
        ("ratio=1e3", 1000.0),
        ("deep=true", True),
        ("deep=False", False),
        ("paths=a.txt", ["a.txt"]),
        ('paths=["a", "b"]', ["a", "b"]),
        ("sizes=4", [4]),
        ('options={"a": null}', {"a": None}),
        ("maybe=3", 3),
        ("maybe=null", None),
        ("maybe_text=null", "null"),
        ("level=2", 2),
        ("colour=red", "red"),
        ("size=7", 7),
        ("circle=x", "x"),
        ("unknown=7", "7"),
        ("text:=7", 7),
        ('unknown:={"a": [1]}', {"a": [1]}),
    ],
)
def test_a_word_becomes_the_value_that_the_schema_asks_for(word: str, value: Any) -> None:
    (found,) = arguments_from([word], None, SCHEMA).values()
    assert found == value
    assert type(found) is type(value)


@pytest.mark.req("BNS-5")
@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("count=five", "count: found 'five', expected integer"),
        ("count=1.5", "expected integer"),
        ("ratio=nan", "expected number"),
        ("deep=maybe", "expected boolean"),
        ("options={a}", "expected JSON"),
        ("text:=NaN", "expected JSON"),
        ("text", "is not key=value"),
        ("=5", "is not key=value"),
        (":=5", "is not key=value"),
        ("text=@/no/such/file", "cannot be read"),
        ("paths=[1", "expected JSON"),
    ],
)
def test_a_word_that_cannot_be_read_is_an_error_that_names_it(word: str, said: str) -> None:
    with pytest.raises(InvalidArguments) as caught:
        arguments_from([word], None, SCHEMA)
    assert said in caught.value.text()


@pytest.mark.req("BNS-5")
def test_a_file_is_read_for_its_key(tmp_path: Path) -> None:
    text, numbers = tmp_path / "a.txt", tmp_path / "b.json"
    text.write_text("line\nline\n")
    numbers.write_text("[1, 2]")
    found = arguments_from([f"text=@{text}", f"sizes=@{numbers}"], None, SCHEMA)
    assert found == {"text": "line\nline\n", "sizes": [1, 2]}


@pytest.mark.req("BNS-5")
def test_single_words_win_over_the_whole_and_lists_may_be_repeated() -> None:
    words = ["count=2", "paths=a", "paths=b"]
    assert arguments_from(words, '{"count": 1, "paths": ["z"], "deep": true}', SCHEMA) == {
        "count": 2,
        "paths": ["a", "b"],
        "deep": True,
    }
    with pytest.raises(InvalidArguments, match="twice"):
        arguments_from(["count=1", "count=2"], None, SCHEMA)


@pytest.mark.req("BNS-5")
@pytest.mark.parametrize("whole", ["[1]", "nonsense", "", '{"a": Infinity}'])
def test_args_must_be_one_json_object(whole: str) -> None:
    with pytest.raises(InvalidArguments):
        arguments_from([], whole, SCHEMA)


@given(value=st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=5))
def test_json_is_sent_as_it_stands(value: Any) -> None:
    assert arguments_from([f"x:={json.dumps(value)}"], None, SCHEMA) == {"x": value}


@given(text=st.text().filter(lambda text: not text.startswith("@")))
def test_a_string_stays_the_string_it_is(text: str) -> None:
    assert arguments_from([f"text={text}"], None, SCHEMA) == {"text": text}


@given(
    word=st.text(),
    schema=st.dictionaries(
        st.sampled_from(["properties", "$defs", "type"]),
        st.recursive(st.text() | st.none(), lambda x: st.dictionaries(st.text(), x) | st.lists(x), max_leaves=6),
    ),
)
def test_no_word_and_no_schema_breaks_the_reader(word: str, schema: dict[str, Any]) -> None:
    try:
        arguments_from([word.replace("@", "")], None, schema)
    except InvalidArguments as error:
        assert error.text()
