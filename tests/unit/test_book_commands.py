"""The book as people and programs see it: `toolcrib audit`, `toolcrib audit verify`, and the commands behind them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import time
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from toolcrib.book import Book
from toolcrib.book.entry import Entry, Kind
from toolcrib.cli.app import run
from toolcrib.cli.audit_commands import joined
from toolcrib.commands.all import registry
from toolcrib.commands.audit import moment
from toolcrib.commands.registry import Context, Via
from toolcrib.crib import Crib, Project
from toolcrib.errors import Denied, UsageError
from toolcrib.policy import CLIENT, OWNER, Caller
from toolcrib.store import Store
from toolcrib.store.commits import Commits

pytestmark = pytest.mark.req("KSI-5")

LIMIT = 10.0


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TOOLCRIB_HOME", str(tmp_path))
    monkeypatch.delenv("CLAUDE_PROJECT_DIR", raising=False)
    (tmp_path / "project" / ".git").mkdir(parents=True)
    (tmp_path / "state").mkdir(mode=0o700)
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path


@contextlib.asynccontextmanager
async def opened(home: Path) -> AsyncIterator[Book]:
    store = await Store.open(home / "state" / "mcp_sessions.db")
    commits = Commits(store)
    book = await Book.open(store, commits, folder=home / "state", secrets=str)
    try:
        yield book
    finally:
        await book.close()
        await commits.close()
        await store.close()


def call(book: Book, number: int, outcome: str = "ok", **fields: Any) -> None:
    entry: dict[str, Any] = {
        "call": f"c{number}",
        "at": 1_700_000_000.0 + number,
        "agent": "reviewer",
        "conversation": "default",
        "tool": "files:read_file",
        "server": "files",
        "decision": "allow",
        "rule": "profile developer: allow *",
        **fields,
    }
    if outcome != "denied":
        book.note(Entry(kind=Kind.INTENT, **entry))
    if outcome:
        done = {"outcome": outcome, "duration": 0.0123, "size": 2048, "result": b"hello world"}
        book.note(Entry(kind=Kind.OUTCOME, **entry, **done))


async def fill(home: Path) -> None:
    async with opened(home) as book:
        call(book, 1)
        call(book, 2, "denied", tool="git:push", server="git", decision="deny", rule="agent reviewer: deny git:*")
        call(book, 3, "", tool="slow:wait", server="slow", agent="builder")
        detail = {"profile": "read-only", "workdir": None}
        book.note(Entry(kind=Kind.CHANGE, at=1_700_000_004.0, agent="reviewer", outcome="agent added", detail=detail))
        book.note(
            Entry(
                kind=Kind.GAP, at=1_700_000_005.0, detail={"entries": 7, "from": 1_700_000_001.0, "to": 1_700_000_002.0}
            )
        )
        await book.kept()


@pytest.fixture
def filled(home: Path) -> Path:
    asyncio.run(fill(home))
    return home


def test_people_get_one_line_for_a_call_and_for_everything_else(
    filled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["audit"]) == 0
    heading, *lines = capsys.readouterr().out.splitlines()
    assert heading.split() == [
        "time",
        "agent",
        "conversation",
        "tool",
        "decision",
        "outcome",
        "took",
        "size",
        "tokens",
        "note",
    ]
    first, denied, running, change, gap = (" ".join(line.split()) for line in lines)
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(1_700_000_001))
    assert first == f"{when} reviewer default files:read_file allow ok 12.3 ms 2.0 kB 2 -"
    assert "git:push deny denied" in denied
    assert denied.endswith("agent reviewer: deny git:*")
    assert "slow:wait allow not over - - -" in running
    assert change.endswith("change - - - agent added: profile read-only, workdir null")
    begin, end = (time.strftime("%H:%M:%S", time.localtime(1_700_000_000 + n)) for n in (1, 2))
    assert gap.endswith(f"7 entries could not be written between {begin} and {end}")


def test_lines_are_calls_not_entries(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["audit", "-n", "4"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 5
    assert run(["audit", "--server", "files", "-n", "1"]) == 0
    assert "files:read_file" in capsys.readouterr().out.splitlines()[1]


def test_programs_get_the_entries_and_filters_reach_them(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["audit", "--json"]) == 0
    entries = json.loads(capsys.readouterr().out)["entries"]
    assert [entry["kind"] for entry in entries] == ["intent", "outcome", "outcome", "intent", "change", "gap"]
    for words, kinds in (
        (["--agent", "builder"], ["intent"]),
        (["--outcome", "denied"], ["outcome"]),
        (["--tool", "read_file"], ["intent", "outcome"]),
        (["--tool", "g*:*"], ["outcome"]),
        (["--server", "slow"], ["intent"]),
        (["--session", "none"], []),
        (["--since", "1h"], []),
        (["--until", "1h"], [entry["kind"] for entry in entries]),
        (["-n", "2"], ["change", "gap"]),
    ):
        assert run(["audit", *words, "--json"]) == 0
        assert [entry["kind"] for entry in json.loads(capsys.readouterr().out)["entries"]] == kinds, words


def test_nothing_that_fits_is_said(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["audit", "--agent", "nobody"]) == 0
    assert "Nothing in the book fits" in capsys.readouterr().err


def test_an_intent_outside_of_what_was_found_does_not_make_two_lines() -> None:
    rows = [
        {
            "kind": kind,
            "seq": seq,
            "call": call,
            "at": 0.0,
            "agent": "",
            "conversation": "",
            "tool": "t",
            "decision": "",
        }
        | {"outcome": "ok", "duration": 0.0, "size": 0, "tokens": None, "rule": "", "detail": None}
        for seq, kind, call in (
            (1, "outcome", "a"),
            (2, "intent", "b"),
            (3, "intent", "c"),
            (4, "outcome", "c"),
            (5, "outcome", "b"),
            (6, "outcome", ""),
            (7, "outcome", ""),
        )
    ]
    assert len(joined(rows)) == 5


@pytest.mark.parametrize("words", [["--since", "yesterday"], ["--until", "1y"], ["--since", "99999-01-01"]])
def test_a_time_that_is_none_is_refused_with_what_to_write(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["audit", *words]) == UsageError.exit_code
    assert "2026-11-16T10:00" in capsys.readouterr().err


def test_times_are_ago_or_as_they_stand() -> None:
    assert moment(None) is None
    for text, ago in (("90s", 90), ("30m", 1800), ("1h", 3600), ("1.5h", 5400), ("2d", 172_800), (" 1w ", 604_800)):
        assert moment(text) == pytest.approx(time.time() - ago, abs=5)
    assert moment("2026-11-16T10:00") == datetime(2026, 11, 16, 10).timestamp()
    assert moment("2026-11-16T10:00+00:00") == 1_794_823_200


def test_verify_says_that_all_is_well_and_what_the_head_is(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["audit", "verify", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["ok"], report["entries"]) == (True, 6)
    assert run(["audit", "verify", "--expect", report["head"]]) == 0
    assert report["head"] in capsys.readouterr().out
    assert run(["audit", "verify", "--expect", f"3:{'0' * 64}"]) == 9
    assert run(["audit", "verify", "--expect", "what"]) == 2


def test_verify_names_the_entry_that_was_changed_and_fails(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.closing(sqlite3.connect(filled / "state" / "mcp_sessions.db")) as database:
        database.execute("UPDATE audit SET outcome = 'ok' WHERE seq = 3")
        database.commit()
    assert run(["audit", "verify"]) == 9
    assert "Entry 3 is not what was written" in capsys.readouterr().err
    assert run(["audit", "verify", "--json"]) == 9
    report = json.loads(capsys.readouterr().out)
    assert (report["ok"], report["seq"], report["entries"]) == (False, 3, 2)


def test_there_is_nothing_to_follow_without_a_daemon(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["audit", "-f"]) == 7
    assert "Leave -f out" in capsys.readouterr().err


def context(book: Book, emit: Any, caller: Caller = OWNER) -> Context:
    crib = cast(Crib, SimpleNamespace(book=book))
    return Context(
        crib=crib, project=cast(Project, None), caller=caller, host=cast(Any, None), via=Via.SOCKET, emit=emit
    )


async def test_who_follows_sees_what_there_is_and_then_what_comes_once_and_in_order(home: Path) -> None:
    seen: list[int] = []
    came = asyncio.Event()

    async def emit(event: dict[str, Any]) -> None:
        seen.append(event["entry"]["seq"])
        came.set()

    async def until(number: int) -> None:
        async with asyncio.timeout(LIMIT):
            while not seen or seen[-1] < number:
                came.clear()
                await came.wait()

    async with opened(home) as book:
        for number in range(3):
            call(book, number)
        await book.kept()
        params = {"agent": "reviewer", "limit": 2}
        following = asyncio.create_task(registry.run("audit:follow", params, context(book, emit)))
        await until(6)
        call(book, 10, agent="builder")
        call(book, 11)
        await book.kept()
        await until(10)
        call(book, 12, agent="builder")
        await book.kept()
        call(book, 13)
        await book.kept()
        await until(14)
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await following
    assert seen == [5, 6, 9, 10, 13, 14]


@pytest.mark.req("KSI-7")
@pytest.mark.parametrize("name", ["audit:query", "audit:follow", "audit:verify"])
async def test_the_book_is_the_owners_alone(name: str) -> None:
    async def nowhere(event: dict[str, Any]) -> None:
        raise AssertionError(event)

    with pytest.raises(Denied):
        await registry.run(name, {}, context(cast(Book, None), nowhere, CLIENT))
