"""What is written of an entry: enough to know what happened, nothing that must not be known."""

from __future__ import annotations

import hmac
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolcrib.audit import row as tokens
from toolcrib.audit.chain import ChainKeys
from toolcrib.audit.entry import MAX_PARSED_BYTES, AuditEntry, EntryKind, LargeArguments
from toolcrib.audit.row import MAX_SHAPE_BYTES, MAX_VALUE_LENGTH, RowMaker, shape_of
from toolcrib.config.masking import Masker
from toolcrib.store import audit
from toolcrib.store.database import Database

KEYS = ChainKeys(b"k" * 32)


def maker(*secrets: str, values: bool = False) -> RowMaker:
    return RowMaker(key=KEYS.arguments, mask=Masker(dict.fromkeys(secrets, "KEY of server docs")), values=values)


def row_of(arguments: Any, *secrets: str, values: bool = False) -> dict[str, Any]:
    entry = AuditEntry(kind=EntryKind.INTENT, arguments=json.dumps(arguments).encode())
    return maker(*secrets, values=values).row(1, entry)


@pytest.mark.req("KSI-5")
def test_arguments_are_written_as_their_shape() -> None:
    row = row_of({"path": "src/main.py!", "options": {"deep": True, "n": 3, "f": 1.5, "no": None}, "list": ["a", 1]})
    assert json.loads(row["shape"]) == {
        "path": "string(12)",
        "options": {"deep": "boolean", "n": "integer", "f": "number", "no": "null"},
        "list": ["string(1)", "integer"],
    }
    assert row["arguments"] is None


@pytest.mark.req("KSI-5")
def test_no_value_is_in_the_row_unless_that_is_switched_on() -> None:
    arguments = {"text": "confidential", "deep": [{"inner": "confidential"}]}
    assert "confidential" not in json.dumps(row_of(arguments))
    assert json.loads(row_of(arguments, values=True)["arguments"]) == arguments


@pytest.mark.req("KSI-5")
def test_values_are_written_without_secrets() -> None:
    row = row_of({"hunter2hunter2": "x", "text": "is hunter2hunter2.", "api_key": "abc"}, "hunter2hunter2", values=True)
    assert json.loads(row["arguments"]) == {"****": "x", "text": "is ****.", "api_key": "****"}
    assert "hunter2" not in json.dumps(row)


@pytest.mark.req("KSI-5")
def test_a_secret_is_hidden_in_every_text_of_the_row() -> None:
    secret = "hunter2hunter2"
    entry = AuditEntry(
        kind=EntryKind.CHANGE,
        agent=secret,
        conversation=secret,
        tool=secret,
        server=secret,
        rule=f"because of {secret}",
        outcome=secret,
        detail={"a": [secret], secret: 1},
    )
    assert secret not in json.dumps(maker(secret).row(1, entry))


def test_a_secret_is_not_cut_in_half() -> None:
    secret = "s3cr3t" * 10
    row = maker(secret).row(1, AuditEntry(kind=EntryKind.OUTCOME, conversation="c" * 190 + secret))
    assert "s3c" not in row["conversation"]


@pytest.mark.req("KSI-5")
def test_what_a_person_was_asked_about_is_kept_as_that_person_saw_it() -> None:
    raw = json.dumps({"command": "ls;key=$(touch x) hunter2hunter2", "token": "Bearer abcdefgh"}).encode()
    entry = AuditEntry(kind=EntryKind.INTENT, arguments=raw, decision="ask")
    kept = maker("hunter2hunter2", values=True).row(1, entry)["arguments"]
    shown = {"command": "ls;key=$(touch x) [secret KEY of server docs]", "token": "Bearer abcdefgh"}
    assert json.loads(kept) == shown


@pytest.mark.req("KSI-5")
def test_the_hash_is_of_what_the_arguments_say_and_keyed() -> None:
    same = [row_of({"a": 1, "b": [2]})["arguments_hash"], row_of({"b": [2], "a": 1})["arguments_hash"]]
    assert same[0] == same[1]
    assert row_of({"a": 1, "b": [3]})["arguments_hash"] != same[0]
    other = RowMaker(key=b"other", mask=Masker(), values=False)
    assert other.row(1, AuditEntry(kind=EntryKind.INTENT, arguments=b'{"a":1,"b":[2]}'))["arguments_hash"] != same[0]


@pytest.mark.parametrize(
    "raw",
    [b"not json", b"\xff", b"[" * 100_000, b'{"a":' * 5000 + b"1" + b"}" * 5000],
    ids=["no JSON", "no UTF-8", "deep list", "deep object"],
)
def test_arguments_that_cannot_be_looked_into_are_hashed_as_they_are(raw: bytes) -> None:
    row = maker(values=True).row(1, AuditEntry(kind=EntryKind.INTENT, arguments=raw))
    assert json.loads(row["shape"]) == f"{len(raw)} bytes"
    assert len(row["arguments_hash"]) == 64
    assert row["arguments"] is None


def test_of_large_arguments_the_size_and_a_keyed_hash_are_written() -> None:
    raw = b'"' + b"x" * MAX_PARSED_BYTES + b'"'
    large = LargeArguments.of(raw)
    row = maker(values=True).row(1, AuditEntry(kind=EntryKind.INTENT, arguments=large))
    assert json.loads(row["shape"]) == f"{len(raw)} bytes"
    assert row["arguments_hash"] == hmac.digest(KEYS.arguments, large.digest, "sha256").hex()
    assert row["arguments"] is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, width=32) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(st.dictionaries(st.text(), JSON))
def test_a_shape_is_small_whatever_it_is_of(arguments: dict[str, Any]) -> None:
    shape = shape_of(arguments, str)
    assert len(shape.encode()) <= MAX_SHAPE_BYTES
    json.loads(shape)


def test_a_wide_or_long_tree_is_counted_where_it_is_not_shown() -> None:
    assert json.loads(shape_of({"list": list(range(10))}, str)) == {"list": ["integer"] * 3 + ["+7"]}
    wide = json.loads(shape_of({f"k{n}": n for n in range(40)}, str))
    assert (len(wide), wide["…"]) == (33, "+8")
    huge = {f"{n}" + "k" * 60: {f"{m}" + "k" * 60: m for m in range(30)} for n in range(30)}
    assert json.loads(shape_of(huge, str)) == "object(30)"


@pytest.mark.req("KSI-5")
def test_values_and_details_are_cut() -> None:
    assert len(row_of({"text": "x" * 10_000}, values=True)["arguments"]) == MAX_VALUE_LENGTH
    row = maker().row(1, AuditEntry(kind=EntryKind.CHANGE, detail={"text": "x" * 10_000}))
    assert len(row["detail"]) == MAX_VALUE_LENGTH


@pytest.mark.req("KSI-5")
def test_tokens_of_a_result_are_counted() -> None:
    assert tokens.count_tokens(b"hello world") == (2, False)
    assert tokens.count_tokens(b"\xff\xfe") is not None
    assert tokens.count_tokens(b"x" * (tokens.MAX_COUNTED_BYTES + 1)) is None
    assert counted_in(AuditEntry(kind=EntryKind.OUTCOME, result=b"hello world")) == (2, False)
    assert counted_in(AuditEntry(kind=EntryKind.OUTCOME)) == (None, False)


def counted_in(entry: AuditEntry) -> tuple[int | None, bool]:
    row = maker().row(1, entry)
    return row["tokens"], row["tokens_estimated"]


@pytest.fixture
def without_extra(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(sys.modules, "rs_bpe.bpe", None)
    tokens._counter.cache_clear()
    yield
    tokens._counter.cache_clear()


@pytest.mark.usefixtures("without_extra")
def test_without_the_extra_tokens_are_estimated_and_marked_so() -> None:
    assert counted_in(AuditEntry(kind=EntryKind.OUTCOME, result=b"hello world")) == (2, True)
    assert counted_in(AuditEntry(kind=EntryKind.OUTCOME)) == (None, False)
    assert tokens.count_tokens(b"x" * (tokens.MAX_COUNTED_BYTES + 1)) is None
    assert tokens.count_tokens(b"") == (0, True)
    assert tokens.count_tokens(b" ") == (1, True)


@pytest.mark.parametrize(
    "text",
    [
        Path(tokens.__file__).read_text(),
        " ".join(f"The {word} of a tool's result, as a server may give it." for word in ("size", "name", "meaning")),
        json.dumps({"content": [{"type": "text", "text": "3 files changed"}], "isError": False, "_meta": {"n": 12345}}),
        json.dumps(
            {"name": "read_file", "inputSchema": {"type": "object", "properties": {"path": {"type": "string"}}}}
        ),
        "Инструменты проверяют, что большие изменения ничего не ломают.",
        "今天我们讨论了新的权限模型和下一步的测试并记录谁在何时使用了哪一个工具",
    ],
)
def test_an_estimate_is_near_the_count(text: str) -> None:
    counted = tokens.count_tokens(text.encode())
    assert counted is not None
    assert not counted.estimated
    assert tokens.estimate_tokens(text.encode()) == pytest.approx(counted.tokens, rel=0.3)


ANY_TEXT = st.text(st.characters(categories=None), max_size=30)
ENTRIES = st.builds(
    AuditEntry,
    kind=st.sampled_from(EntryKind),
    at=st.floats(),
    call=ANY_TEXT,
    agent=ANY_TEXT,
    session=ANY_TEXT,
    conversation=ANY_TEXT | st.just("c" * 1000),
    tool=ANY_TEXT,
    server=ANY_TEXT,
    decision=ANY_TEXT,
    rule=ANY_TEXT,
    mode=ANY_TEXT,
    arguments=st.none() | st.binary(max_size=50) | st.builds(lambda tree: json.dumps(tree).encode(), JSON),
    outcome=ANY_TEXT,
    duration=st.floats(),
    size=st.integers(),
    result=st.none() | st.binary(max_size=50),
    detail=st.none() | st.dictionaries(st.text(), JSON, max_size=3),
)


@pytest.mark.req("KSI-5")
@settings(max_examples=60, deadline=None)
@given(entries=st.lists(ENTRIES, min_size=1, max_size=4))
def test_any_entry_is_read_back_with_the_hash_that_it_was_given(written: Database, entries: list[AuditEntry]) -> None:
    make = maker(values=True)
    rows = [make.row(number, entry) for number, entry in enumerate(entries, 1)]
    for row in rows:
        row["hash"] = KEYS.link("", row.values())
    written.write(audit.delete_through, 0, 2**62, "")
    written.write(audit.append, rows)
    found = written.read(audit.page, 0, 10)
    assert [tuple(row) for row in found] == [tuple(row.values()) for row in rows]
    assert [row[-1] for row in found] == [KEYS.link("", tuple(row)[:-1]) for row in found]


@pytest.fixture
def written(store_url: str) -> Any:
    with Database.open(store_url) as database:
        yield database


def test_the_columns_of_a_row_are_those_of_the_table_in_their_order() -> None:
    assert (*maker().row(1, AuditEntry(kind=EntryKind.GAP)), "hash") == audit.COLUMNS


def test_loading_the_counter_waits_for_the_first_count(tmp_path: Path) -> None:
    import subprocess
    import sys

    code = "import sys, toolcrib.audit.row; sys.exit('rs_bpe' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=30, cwd=tmp_path).returncode == 0
