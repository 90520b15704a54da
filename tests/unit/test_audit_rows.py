"""The row of an audit entry: shapes instead of values, masked secrets, sizes, tokens, hashes."""

from __future__ import annotations

import hmac
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parts.sizes import sized
from toolcrib.audit import row as tokens
from toolcrib.audit.chain import ChainKeys
from toolcrib.audit.entry import MAX_PARSED_BYTES, AuditEntry, EntryKind, LargeArguments
from toolcrib.audit.row import MAX_SHAPE_BYTES, MAX_VALUE_LENGTH, RowMaker, shape_of
from toolcrib.config.masking import Masker
from toolcrib.store import audit
from toolcrib.store.database import Database

pytestmark = pytest.mark.req("KSI-5")

KEYS = ChainKeys(b"k" * 32)
SECRET = "hunter2hunter2"
INTENT, OUTCOME, CHANGE = EntryKind.INTENT, EntryKind.OUTCOME, EntryKind.CHANGE


def row_of(arguments: Any = None, *, secret: str = SECRET, values: bool = False, **fields: Any) -> dict[str, Any]:
    maker = RowMaker(key=KEYS.arguments, mask=Masker({secret: "KEY of server docs"}), values=values)
    encoded = json.dumps(arguments).encode() if isinstance(arguments, dict) else arguments
    return maker.row(1, AuditEntry(**{"kind": INTENT, "arguments": encoded, **fields}))


def test_arguments_are_recorded_as_their_shape_and_as_values_only_if_enabled() -> None:
    arguments = {"path": "confidential", "options": {"deep": True, "n": 3, "f": 1.5, "no": None}, "list": ["a", 1]}
    row = row_of(arguments)
    assert json.loads(row["shape"]) == {
        "path": "string(12)",
        "options": {"deep": "boolean", "n": "integer", "f": "number", "no": "null"},
        "list": ["string(1)", "integer"],
    }
    assert row["arguments"] is None
    assert "confidential" not in json.dumps(row)
    assert json.loads(row_of(arguments, values=True)["arguments"]) == arguments


def test_values_are_recorded_without_secrets() -> None:
    row = row_of({SECRET: "x", "text": f"is {SECRET}.", "api_key": "abc"}, values=True)
    assert json.loads(row["arguments"]) == {"****": "x", "text": "is ****.", "api_key": "****"}
    assert "hunter2" not in json.dumps(row)


def test_a_secret_is_masked_in_every_text_and_not_cut_in_half() -> None:
    texts = dict.fromkeys(("agent", "conversation", "tool", "server", "rule", "outcome"), f"because of {SECRET}")
    assert SECRET not in json.dumps(row_of(kind=CHANGE, detail={"a": [SECRET], SECRET: 1}, **texts))
    secret = "s3cr3t" * 10
    assert "s3c" not in row_of(secret=secret, kind=OUTCOME, conversation="c" * 190 + secret)["conversation"]


def test_arguments_that_needed_approval_are_kept_as_the_owner_saw_them() -> None:
    arguments = {"command": f"ls;key=$(touch x) {SECRET}", "token": "Bearer abcdefgh"}
    kept = row_of(arguments, values=True, decision="ask")["arguments"]
    shown = {"command": "ls;key=$(touch x) [secret KEY of server docs]", "token": "Bearer abcdefgh"}
    assert json.loads(kept) == shown


def test_the_hash_is_keyed_and_independent_of_the_order_of_keys() -> None:
    digest = row_of({"a": 1, "b": [2]})["arguments_hash"]
    assert digest == row_of({"b": [2], "a": 1})["arguments_hash"]
    assert digest != row_of({"a": 1, "b": [3]})["arguments_hash"]
    other = RowMaker(key=b"other", mask=Masker(), values=False)
    assert other.row(1, AuditEntry(kind=INTENT, arguments=b'{"a":1,"b":[2]}'))["arguments_hash"] != digest


LARGE = b'"' + b"x" * MAX_PARSED_BYTES + b'"'


@pytest.mark.parametrize(
    "raw",
    [b"not json", b"\xff", b"[" * 100_000, b'{"a":' * 5000 + b"1" + b"}" * 5000, LARGE],
    ids=["no JSON", "no UTF-8", "deep list", "deep object", "large"],
)
def test_of_arguments_that_are_not_parsed_the_size_and_a_hash_are_recorded(raw: bytes) -> None:
    row = row_of(LargeArguments.of(raw) if raw is LARGE else raw, values=True)
    assert json.loads(row["shape"]) == f"{len(raw)} bytes"
    assert row["arguments"] is None
    assert len(row["arguments_hash"]) == 64
    if raw is LARGE:
        digest = LargeArguments.of(raw).digest
        assert row["arguments_hash"] == hmac.digest(KEYS.arguments, digest, "sha256").hex()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, width=32) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(st.dictionaries(st.text(), JSON))
def test_every_shape_is_small(arguments: dict[str, Any]) -> None:
    shape = shape_of(arguments, str)
    assert len(shape.encode()) <= MAX_SHAPE_BYTES
    json.loads(shape)


def test_the_parts_of_a_wide_or_long_tree_that_are_not_shown_are_counted() -> None:
    assert json.loads(shape_of({"list": list(range(10))}, str)) == {"list": ["integer"] * 3 + ["+7"]}
    wide = json.loads(shape_of({f"k{n}": n for n in range(40)}, str))
    assert (len(wide), wide["…"]) == (33, "+8")
    huge = {f"{n}" + "k" * 60: {f"{m}" + "k" * 60: m for m in range(30)} for n in range(30)}
    assert json.loads(shape_of(huge, str)) == "object(30)"


def test_values_and_details_are_cut() -> None:
    assert len(row_of({"text": "x" * 10_000}, values=True)["arguments"]) == MAX_VALUE_LENGTH
    assert len(row_of(kind=CHANGE, detail={"text": "x" * 10_000})["detail"]) == MAX_VALUE_LENGTH


@pytest.fixture(params=["with the extra", "without"])
def estimated(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[bool]:
    if request.param == "without":
        monkeypatch.setitem(sys.modules, "rs_bpe.bpe", None)
    tokens._counter.cache_clear()
    yield request.param == "without"
    tokens._counter.cache_clear()


def test_tokens_are_counted_or_without_the_extra_estimated(estimated: bool) -> None:
    row = row_of(kind=OUTCOME, result=b"hello world")
    assert (row["tokens"], row["tokens_estimated"]) == tokens.count_tokens(b"hello world") == (2, estimated)
    row = row_of(kind=OUTCOME)
    assert (row["tokens"], row["tokens_estimated"]) == (None, False)
    assert tokens.count_tokens(b"\xff\xfe") is not None
    assert tokens.count_tokens(b"x" * (tokens.MAX_COUNTED_BYTES + 1)) is None
    if estimated:
        assert (tokens.count_tokens(b""), tokens.count_tokens(b" ")) == ((0, True), (1, True))


@pytest.mark.parametrize(
    "text",
    [
        Path(tokens.__file__).read_text(),
        " ".join(f"The {word} of a tool's result, as a server may give it." for word in ("size", "name", "meaning")),
        json.dumps({"content": [{"type": "text", "text": "3 files changed"}], "isError": False, "_meta": {"n": 12345}}),
        '{"name": "read_file", "inputSchema": {"type": "object", "properties": {"path": {"type": "string"}}}}',
        "Инструменты проверяют, что большие изменения ничего не ломают.",
        "今天我们讨论了新的权限模型和下一步的测试并记录谁在何时使用了哪一个工具",
    ],
)
def test_an_estimate_is_close_to_the_count(text: str) -> None:
    counted = tokens.count_tokens(text.encode())
    assert counted is not None
    assert not counted.estimated
    assert tokens.estimate_tokens(text.encode()) == pytest.approx(counted.tokens, rel=0.3)


ANY_TEXT = st.text(st.characters(categories=None), max_size=30)
TEXTS = ("call", "agent", "session", "conversation", "tool", "server", "decision", "rule", "mode", "outcome")
ENTRIES = st.builds(
    AuditEntry,
    kind=st.sampled_from(EntryKind),
    at=st.floats(),
    arguments=st.none() | st.binary(max_size=50) | st.builds(lambda tree: json.dumps(tree).encode(), JSON),
    duration=st.floats(),
    size=st.integers(),
    result=st.none() | st.binary(max_size=50),
    detail=st.none() | st.dictionaries(st.text(), JSON, max_size=3),
    **{**dict.fromkeys(TEXTS, ANY_TEXT), "conversation": ANY_TEXT | st.just("c" * 1000)},
)


@pytest.fixture
def database(store_url: str) -> Iterator[Database]:
    with Database.open(store_url) as opened:
        yield opened


@settings(max_examples=sized(30, 500), deadline=None)
@given(entries=st.lists(ENTRIES, min_size=1, max_size=4))
def test_any_entry_is_read_back_with_its_hash(database: Database, entries: list[AuditEntry]) -> None:
    make = RowMaker(key=KEYS.arguments, mask=Masker(), values=True)
    rows = [make.row(number, entry) for number, entry in enumerate(entries, 1)]
    for row in rows:
        row["hash"] = KEYS.link("", row.values())
    database.write(audit.delete_through, 0, 2**62, "")
    database.write(audit.append, rows)
    found = database.read(audit.page, 0, 10)
    assert [tuple(row) for row in found] == [tuple(row.values()) for row in rows]
    assert [row[-1] for row in found] == [KEYS.link("", tuple(row)[:-1]) for row in found]


def test_a_row_has_the_columns_of_the_table_in_their_order() -> None:
    assert (*row_of(kind=EntryKind.GAP), "hash") == audit.COLUMNS


def test_importing_the_rows_does_not_load_the_token_counter(tmp_path: Path) -> None:
    code = "import sys, toolcrib.audit.row; sys.exit('rs_bpe' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60, cwd=tmp_path).returncode == 0
