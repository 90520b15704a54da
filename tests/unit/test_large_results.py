"""How a large result is shortened, and what `crib_result` answers."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from jsonschema_rs import validator_for

from toolcrib.config.layers import load
from toolcrib.config.paths import Paths
from toolcrib.errors import InvalidArguments
from toolcrib.gateway import large_results, result_text
from toolcrib.gateway.large_results import RESULT_KEY, limit_bytes, shorten
from toolcrib.gateway.result_text import page_starts, read_result, shape_of

ID = "r_0123456789ab"
LIMIT = 9000
ISSUE = {"title": "A bug", "user": {"login": "bob"}, "labels": ["x"], "body": "Line one\nLine two\n" * 20}
ISSUES = {"total": 400, "items": [{"id": number, **ISSUE} for number in range(400)]}
Json = dict[str, Any]


def text_result(*texts: str, **members: Any) -> bytes:
    return json.dumps({"content": [{"type": "text", "text": text} for text in texts], **members}).encode()


def structured_result(value: Any, **members: Any) -> bytes:
    return text_result(json.dumps(value), structuredContent=value, **members)


def shortened(result: bytes, limit: int = LIMIT, schema: Mapping[str, Any] | None = None) -> Json:
    made = shorten(result, ID, limit, schema)
    assert made is not None
    found: Json = json.loads(made)
    return found


def told(made: Json) -> str:
    text: str = made["content"][0]["text"]
    return text


def ask(result: bytes, limit: int = LIMIT, *, schema: Mapping[str, Any] | None = None, **wanted: Any) -> str:
    answer = large_results._answer(result, large_results._wanted({"id": ID, **wanted}), limit, schema)
    assert len(answer) <= limit
    return told(json.loads(answer))


def test_an_agent_gets_the_head_the_shape_and_how_to_read_the_rest() -> None:
    text = "\n".join(f"line {number}" for number in range(5000))
    made = shortened(text_result(text, _meta={"a": 1}, resultType="complete"))
    head, _, notes = told(made).rpartition("\n\n")
    assert head.endswith("\n")
    assert text.startswith(head)
    assert notes == (
        "[Text: 5,000 lines.]\n"
        f'[Shown: {len(head):,} of {len(text):,} characters. The rest: crib_result(id="{ID}", page=2), '
        'or search="…".]'
    )
    assert made == {"content": made["content"], "_meta": {"a": 1, RESULT_KEY: ID}, "resultType": "complete"}
    assert ask(text_result(text), page=2).startswith(text[len(head) :][:100])


def test_the_shape_of_json_shows_its_keys_types_and_lengths() -> None:
    made = shortened(structured_result(ISSUES))
    assert (
        "[JSON: {total: number, items: [400 of {id: number, title: text, user: {login: text}, labels: [1 of text], "
        "body: text of 360}]}]\n"
    ) in told(made)
    assert 'path="$.items[0:20]"' in told(made)
    assert "structuredContent" not in made


@pytest.mark.parametrize(
    ("value", "shape"),
    [
        ([], "[0]"),
        ({}, "{}"),
        ([[1, 2], [3]], "[2 of [2 of number]]"),
        ([None, 1], "[2 of null]"),
        ({"a b": True, "c": 1.5}, '{"a b": true, c: number}'),
        ([{"a": 1}, {"b": "x"}, 3], "[3 of {a: number, b: text}]"),
        ({str(number): number for number in range(1000)}, ""),
    ],
)
def test_shapes(value: Any, shape: str) -> None:
    assert shape_of(value, 300) == shape


def test_a_shape_takes_little_time_and_space_for_any_value() -> None:
    deep: Any = 1
    for _ in range(100):
        deep = {f"key {number}": deep for number in range(40)}
    assert len(shape_of(deep, 600)) <= 600
    assert len(shape_of([deep] * 1000, 600)) <= 600


def test_nothing_is_lost_all_pages_together_are_the_whole_text() -> None:
    chance = random.Random(7)  # noqa: S311 - any texts
    letters = ["a", "ä", "€", "😀", "\n", '"', "\\", "\0", "\x1b", " "]
    for _ in range(30):
        text = "".join(chance.choices(letters, weights=[chance.random() for _ in letters], k=20_000))
        limit = chance.choice((3000, 4000, 9000))
        head = told(shortened(text_result(text), limit)).rpartition("\n\n[Text")[0]
        starts = page_starts(text, large_results._page_bytes(limit))
        assert head == text[: starts[1]]
        pages = [ask(text_result(text), limit, page=number + 1) for number in range(len(starts))]
        assert "".join(page.rpartition("\n[Page ")[0] for page in pages) == text


def test_a_shortened_result_fits_whatever_is_in_it() -> None:
    hard = [
        text_result("\0" * 100_000),
        text_result("😀" * 50_000),
        text_result(*["x"] * 50_000),
        text_result(json.dumps([[]] * 100_000)),
        text_result(json.dumps({'"' * 1000: {"\0" * 50: "x" * 20_000}})),
        json.dumps(
            {"content": [{"type": "resource_link", "uri": f"x://{n}", "name": "n"} for n in range(999)]}
        ).encode(),
        json.dumps({"content": [{"type": "future", "text": "x" * 99_999}]}).encode(),
        json.dumps({"content": [{"type": "text", "text": 1}, None, "x" * 99_999]}).encode(),
        json.dumps({"content": [{"type": "resource", "resource": {"uri": "a://b", "text": "x" * 99_999}}]}).encode(),
        json.dumps({"structuredContent": {"a": "x" * 99_999}}).encode(),
        b'{"content":[{"type":"text","text":"' + b"x" * 99_999 + b'"}],"structuredContent":{"a":' + b"9" * 9999 + b"}}",
        b'{"content":[{"type":"text","text":"' + b"[" * 99_999 + b'"}]}',
        b'{"content":' + b"[" * 99_999 + b"]" * 99_999 + b"}",
        b'{"content":[' + b"{}," * 999_999 + b"{}]}",
    ]
    for result in hard:
        for limit in (3000, 9000):
            made = shorten(result, ID, limit, None)
            assert made is not None
            assert len(made) <= limit
            assert f'crib_result(id="{ID}", page=' in told(json.loads(made))
            ask(result, limit, page=1)
            ask(result, limit, search="x")


def test_small_results_and_other_answers_are_left_alone() -> None:
    for result in (
        text_result("x" * 5000),
        b'{"resultType":"task","taskId":"' + b"x" * 99_999 + b'"}',
        b'{"resultType":"input_required","content":[{"type":"text","text":"' + b"x" * 99_999 + b'"}]}',
        b'{"task":{"taskId":"' + b"x" * 99_999 + b'"}}',
        b'{"content":{"a":"' + b"x" * 99_999 + b'"}}',
        b"[" + b"1," * 9999 + b"1]",
    ):
        assert shorten(result, ID, LIMIT, None) is None


def test_the_same_data_as_text_and_as_structured_content_counts_once() -> None:
    value = {"text": "x" * (LIMIT - 1000)}
    assert len(structured_result(value)) > LIMIT
    assert shorten(structured_result(value), ID, LIMIT, None) is None


def test_pictures_are_not_counted_and_stay_and_so_do_a_few_links() -> None:
    picture = {"type": "image", "data": "A" * 50_000, "mimeType": "image/png"}
    blob = {"type": "resource", "resource": {"uri": "x://1", "blob": "A" * 50_000}}
    link = {"type": "resource_link", "uri": "x://2", "name": "two"}
    assert shorten(json.dumps({"content": [picture, blob, link]}).encode(), ID, LIMIT, None) is None
    text = {"type": "text", "text": "x\n" * 9000}
    made = shortened(json.dumps({"content": [picture, text, link, blob]}).encode())
    assert made["content"][1:] == [link, picture, blob]
    assert ", page=1)" in told(made)


def test_a_failure_is_shortened_and_stays_a_failure() -> None:
    schema = {"type": "object", "required": ["never"]}
    made = shortened(structured_result({"error": "x" * 99_999}, isError=True), schema=schema)
    assert made["isError"] is True
    assert "structuredContent" not in made
    made = shortened(b'{"isError":true,"content":[' + b"{}," * 1_000_000 + b"{}]}")
    assert made["isError"] is True


OPEN = {"type": "object", "properties": {"items": {"type": "array"}, "total": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("value", "schema"),
    [
        (ISSUES, OPEN),
        (ISSUES, {**OPEN, "additionalProperties": False}),
        ({"content": "x\n" * 50_000}, {"properties": {"content": {"type": "string"}}, "additionalProperties": False}),
        ({"numbers": list(range(99_999))}, {"properties": {"numbers": {"type": "array", "minItems": 1}}}),
    ],
)
def test_structured_content_stays_valid_and_names_the_id(value: Any, schema: Json) -> None:
    result = structured_result(value)
    made = shortened(result, schema=schema)
    assert validator_for(schema).is_valid(made["structuredContent"])
    assert f'crib_result(id="{ID}"' in json.dumps(made["structuredContent"], ensure_ascii=False).replace("\\", "")
    assert len(json.dumps(made)) <= LIMIT
    assert f'crib_result(id="{ID}", page=2)' in told(made)
    head = told(made).rpartition("\n\n[")[0]
    first, following = (ask(result, schema=schema, page=page).rpartition("\n[Page ")[0] for page in (1, 2))
    assert first.startswith(head)
    assert json.dumps(value).startswith(head + following)


@pytest.mark.parametrize(
    ("value", "schema"),
    [
        # Nothing in it can name the id.
        ({"n": list(range(99_999))}, {"properties": {"n": {"type": "array"}}, "additionalProperties": False}),
        ({"n": list(range(9999))}, {"properties": {"n": {"type": "array", "minItems": 9999}}}),
        ({"text": "x" * 99_999}, {"properties": {"text": {"pattern": "^x+$"}}}),
        ({str(number): number for number in range(30_000)}, {"type": "object"}),
        ({"text": "x" * 99_999}, {"$ref": "https://example.invalid/schema"}),
        ({"text": "x" * 99_999}, {"type": "nonsense"}),
    ],
)
def test_a_result_that_clients_would_refuse_if_shortened_stays_whole(value: Any, schema: Json) -> None:
    assert shorten(structured_result(value), ID, LIMIT, schema) is None


def test_structured_content_that_is_not_in_the_text_can_be_read_too() -> None:
    result = text_result("Found 400 issues.", structuredContent=ISSUES)
    made = shortened(result)
    assert told(made).startswith("Found 400 issues.\n{")
    assert ask(result, path="$.items[399].id") == "399"


@pytest.mark.parametrize("name", ["content", "result"])
def test_structured_content_that_only_wraps_the_text_is_not_read_twice(name: str) -> None:
    """So do servers in Python with tools that return text, and the filesystem server."""
    schema: Json = {"type": "object", "properties": {name: {"type": "string"}}, "required": [name]}
    text = json.dumps(ISSUES)
    result = text_result(text, structuredContent={name: text})
    made = shortened(result, schema=schema)
    assert f"of {len(text):,} characters" in told(made)
    assert "[JSON: {total: number, items: [400 of" in told(made)
    assert 'path="$.items[0:20]")' in made["structuredContent"][RESULT_KEY]
    assert ask(result, path="$.items[399].id") == "399"
    assert ask(result, search='"id": 399,').count('"id": 399,') == 1
    lines = "\n".join(f"line {number}" for number in range(5000))
    made = shortened(text_result(lines, structuredContent={name: lines}), schema=schema)
    assert f"of {len(lines):,} characters" in told(made)
    assert f'path="$.{name}")' in made["structuredContent"][RESULT_KEY]
    assert ask(text_result(lines, structuredContent={name: lines}), path=f"$.{name}", page=1).startswith("line 0\n")


def test_a_path_picks_values() -> None:
    for result in (structured_result(ISSUES), text_result(json.dumps(ISSUES))):
        assert ask(result, path="$.items[0:3].id") == "[0,1,2]"
        assert ask(result, path="$.items[1].title") == "A bug"
        assert json.loads(ask(result, path="items[7].user")) == {"login": "bob"}
        assert ask(result, path="$.items[5:6].id") == "[5]"
    several = text_result(*(json.dumps(one) for one in ISSUES["items"]))
    assert ask(several, path="$[3].id") == "3"
    with pytest.raises(InvalidArguments, match="not JSON"):
        ask(text_result("plain " * 9999), path="$.a")
    with pytest.raises(InvalidArguments, match="nothing at"):
        ask(structured_result(ISSUES), path="$.items[400]")


def test_what_a_path_leads_to_has_pages_too_and_can_be_searched() -> None:
    result = structured_result(ISSUES)
    first = ask(result, path="$.items")
    assert "[JSON: [400 of {id: number" in first
    assert "\n[Page 1 of " in first
    pages = [ask(result, path="$.items", page=number).rpartition("\n[Page ")[0] for number in range(2, 1000)[:3]]
    assert all(page in json.dumps(ISSUES["items"], separators=(",", ":")) for page in pages)
    assert ask(result, path="$.items[*].id", search="399").startswith("line 1, page 1: ")


def test_search_finds_lines_regardless_of_case_and_never_reads_a_pattern() -> None:
    text = "\n".join(f"line {number} Größe (a+)+$" for number in range(3000)) + "\nİstanbul ENDS here"
    result = text_result(text)
    assert ask(result, search="LINE 2999") == "line 3000, page 12: line 2999 Größe (a+)+$"
    assert ask(result, search="ends HERE").endswith("İstanbul ENDS here")
    assert ask(result, search="nowhere") == "No line contains it."
    many = ask(result, search="(A+)+$")
    assert many.startswith("3,000 matches. The first places:\nline 1, page 1: line 0 Größe (a+)+$\n")
    assert "[Page 1 of" in many
    one_line = ask(text_result("x" * 50_000 + "needle" + "y" * 50_000), search="NEEDLE")
    assert one_line == f"line 1, page 8: …{'x' * 120}needle{'y' * 120}…"


@pytest.mark.parametrize(
    "arguments",
    [
        *({}, {"id": 3}, {"id": ID, "page": 0}, {"id": ID, "page": 999}, {"id": ID, "page": "two"}),
        *({"id": ID, "search": "x" * 300}, {"id": ID, "path": "$..x"}, {"id": ID, "path": "$" * 3000}),
    ],
)
def test_wrong_arguments_are_explained(arguments: Json) -> None:
    with pytest.raises(InvalidArguments):
        large_results._answer(structured_result(ISSUES), large_results._wanted(arguments), LIMIT, None)


def test_a_page_may_be_given_as_text() -> None:
    assert "[Page 2 of" in ask(structured_result(ISSUES), page="2")


def test_a_result_with_too_many_values_is_read_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_text, "MAX_VALUES", 1000)
    result = structured_result(ISSUES)
    assert "[Text: 1 lines.]" in told(shortened(result))
    assert '"total"' in ask(result, search="total")
    in_text = text_result(json.dumps(ISSUES))
    found = read_result(in_text)
    assert found is not None
    assert found.text == json.dumps(ISSUES)
    with pytest.raises(InvalidArguments, match="not JSON"):
        ask(in_text, path="$.total")


async def test_twenty_megabytes_are_read_beside_the_event_loop() -> None:
    """Other tasks run meanwhile: the thread gives up the interpreter many times."""
    result = text_result("word and more words\n" * 1_000_000)
    work = asyncio.create_task(asyncio.to_thread(shorten, result, ID, LIMIT, None))
    turns = 0
    while not work.done():
        await asyncio.sleep(0)
        turns += 1
    assert (await work) is not None
    assert turns > 10


@pytest.mark.parametrize(
    ("client", "most"),
    [("claude-code", 50_000), ("codex-mcp-client", 10_000), ("gemini-cli-mcp-client-x", 40_000), ("", 75_000)],
)
def test_the_limit_follows_the_client_unless_it_is_set(client: str, most: int) -> None:
    assert most * 0.85 < limit_bytes(client, None) <= most
    assert limit_bytes(client, 2000) == 6000
    assert limit_bytes(client, 0) == 0


@pytest.mark.parametrize(
    ("written", "tokens"),
    [("off", 0), ("'off'", 0), ("0", 0), ("1000", 1000), ("999", None), ("-1", None), ("many", None), ("true", None)],
)
def test_the_setting(tmp_path: Path, written: str, tokens: int | None) -> None:
    (tmp_path / "config.yml").write_text(f"result_tokens: {written}\n")
    config = load(paths=Paths.of_user({"TOOLCRIB_HOME": str(tmp_path), "HOME": "/"}), root=None, environ={"HOME": "/"})
    assert config.settings.result_tokens == tokens
    assert bool(config.problems) is (tokens is None)
