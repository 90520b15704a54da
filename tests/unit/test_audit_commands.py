"""The audit log as people and programs see it: `toolcrib audit`, `toolcrib audit verify`, and the commands behind
them.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from toolcrib.audit.entry import AuditEntry, EntryKind
from toolcrib.audit.log import AuditLog
from toolcrib.calls.door import PROCESS
from toolcrib.cli.app import run
from toolcrib.cli.audit_commands import AuditRows
from toolcrib.commands.all import registry
from toolcrib.commands.audit import parse_time
from toolcrib.commands.registry import CommandContext, Via
from toolcrib.config.masking import Masker
from toolcrib.core.crib import Crib
from toolcrib.core.project import Project
from toolcrib.errors import Denied, UsageError
from toolcrib.identity.principal import CLIENT, OWNER, Principal, RequestContext
from toolcrib.store.commits import GroupCommit
from toolcrib.store.database import Store

pytestmark = pytest.mark.req("KSI-5")

LIMIT = 60.0


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TOOLCRIB_HOME", str(tmp_path))
    monkeypatch.delenv("CLAUDE_PROJECT_DIR", raising=False)
    (tmp_path / "project" / ".git" / "HEAD").mkdir(parents=True)
    (tmp_path / "state").mkdir(mode=0o700)
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path


@contextlib.asynccontextmanager
async def opened(home: Path) -> AsyncIterator[AuditLog]:
    store = await Store.open(home / "state" / "mcp_sessions.db")
    commits = GroupCommit(store)
    audit_log = await AuditLog.open(store, commits, folder=home / "state", mask=Masker())
    try:
        yield audit_log
    finally:
        await audit_log.close()
        await commits.close()
        await store.close()


def call(audit_log: AuditLog, number: int, outcome: str = "ok", **fields: Any) -> None:
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
        audit_log.note(AuditEntry(kind=EntryKind.INTENT, **entry))
    if outcome:
        done = {"outcome": outcome, "duration": 0.0123, "size": 2048, "result": b"hello world"}
        audit_log.note(AuditEntry(kind=EntryKind.OUTCOME, **entry, **done))


async def fill(home: Path) -> None:
    async with opened(home) as audit_log:
        call(audit_log, 1)
        call(audit_log, 2, "denied", tool="git:push", server="git", decision="deny", rule="agent reviewer: deny git:*")
        call(audit_log, 3, "", tool="slow:wait", server="slow", agent="builder")
        detail = {"profile": "read-only", "workdir": None}
        audit_log.note(
            AuditEntry(
                kind=EntryKind.CHANGE, at=1_700_000_004.0, agent="reviewer", outcome="agent added", detail=detail
            )
        )
        audit_log.note(
            AuditEntry(
                kind=EntryKind.GAP,
                at=1_700_000_005.0,
                detail={"entries": 7, "from": 1_700_000_001.0, "to": 1_700_000_002.0},
            )
        )
        await audit_log.flush()


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
    assert "slow:wait allow running - - -" in running
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


def test_nothing_that_fits_is_said_and_whether_there_is_such_an_agent(
    filled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["audit", "--agent", "nobody"]) == 0
    said = capsys.readouterr().err
    assert "No entry of the audit log matches" in said
    assert "There is no agent nobody now" in said
    for words in (["--agent", "owner"], ["--agent", "reviewer", "--since", "1h"]):
        assert run(["audit", *words]) == 0
        said = capsys.readouterr().err
        assert "No entry of the audit log matches" in said
        assert ("There is no agent" in said) == ("reviewer" in words)


def test_an_outcome_that_is_none_is_refused_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["audit", "--outcome", "bogus"]) == UsageError.exit_code
    assert "tool_error, error, timeout" in capsys.readouterr().err
    assert run(["audit", "--outcome", "agent added"]) == 0


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def crowded(home: Path) -> Path:
    async def work() -> None:
        async with opened(home) as audit_log:
            long = {"agent": "an-agent-with-a-long-name", "conversation": "5b2f-" * 12, "tool": "warehouse:" + "x" * 60}
            call(audit_log, 1, at=time.time(), **long)
            call(audit_log, 2, "denied", rule="agent reviewer: deny git:* when branch matches main|release/.*", **long)
            await audit_log.flush()

    asyncio.run(work())
    return home


@pytest.mark.parametrize("width", [80, 100, 120])
def test_on_a_terminal_every_call_has_one_line_that_fits(
    crowded: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: int
) -> None:
    screen = Screen()
    monkeypatch.setattr("sys.stdout", screen)
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("NO_COLOR", "1")
    assert run(["audit"]) == 0
    heading, *lines = screen.getvalue().splitlines()
    assert len(lines) == 2
    assert all(len(line) <= width for line in (heading, *lines))
    assert {"time", "agent", "tool", "outcome", "note"} <= set(heading.split())
    assert "an-agent-wi" in lines[0]
    assert "warehouse:x" in lines[0]
    assert "…" in lines[0]
    assert "agent reviewer: den" in lines[1]
    assert "--json" in capsys.readouterr().err


def test_nothing_is_cut_in_a_pipe(crowded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["audit"]) == 0
    said = capsys.readouterr()
    assert "warehouse:" + "x" * 60 in said.out
    assert "5b2f-" * 12 in said.out
    assert "…" not in said.out
    assert said.err == ""


@pytest.mark.parametrize(("width", "words", "shown"), [("100", [], False), ("160", [], True), ("100", ["-v"], True)])
def test_the_rule_of_an_allowed_call_is_shown_where_there_is_room_or_on_request(
    filled: Path, monkeypatch: pytest.MonkeyPatch, width: str, words: list[str], shown: bool
) -> None:
    screen = Screen()
    monkeypatch.setattr("sys.stdout", screen)
    monkeypatch.setenv("COLUMNS", width)
    assert run(["audit", "--server", "files", *words]) == 0
    assert ("profile dev" in screen.getvalue()) is shown


@pytest.mark.parametrize(
    ("what", "detail", "note"),
    [
        ("rule added", {"rule": "agent reviewer: allow git:*"}, "rule added: allow git:*"),
        ("server believed", {"server": "time"}, "server believed: time"),
        ("profile added", {"profile": "p", "rules": ["allow a:*", "deny b:*"]}, "p, rules allow a:*; deny b:*"),
        (
            "agent added",
            {"profile": "p", "expires_at": datetime(2026, 11, 16, 10).timestamp()},
            "expires 2026-11-16 10:",
        ),
    ],
)
def test_changes_read_as_sentences(what: str, detail: dict[str, Any], note: str) -> None:
    entry = dict.fromkeys(("call", "conversation", "tool", "decision", "tokens", "tokens_estimated"), "")
    row = AuditRows().cells(
        {**entry, "kind": "change", "at": 0.0, "agent": "reviewer", "outcome": what, "detail": detail}
    )
    assert note in row[-1]
    assert "rule agent" not in row[-1]


def gone_process() -> int:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait(LIMIT)
    return ended.pid


def test_a_call_whose_process_is_gone_is_cut_off_and_one_under_way_is_not(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = {
        f"{PROCESS}-1": "running",
        f"{os.getpid():x}-17c0ffee-2": "cut off",
        f"{gone_process():x}-17c0ffee-3": "cut off",
        f"{os.getppid():x}-17c0ffee-4": "running",
    }

    async def work() -> None:
        async with opened(home) as audit_log:
            for place, one in enumerate(calls):
                call(audit_log, place, "", call=one)
            call(audit_log, 9, call=f"{gone_process():x}-17c0ffee-9")
            await audit_log.flush()

    asyncio.run(work())
    assert run(["audit", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["cut_off"] == [one for one, state in calls.items() if state == "cut off"]
    assert run(["audit"]) == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    for line, state in zip(lines, [*calls.values(), "ok"], strict=True):
        assert f" {state} " in line
        assert ("may have run" in line) == (state == "cut off")
    assert run(["audit", "--until", "1s", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cut_off"] == [], "the outcome may have come later"


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
        | {
            "outcome": "ok",
            "duration": 0.0,
            "size": 0,
            "tokens": None,
            "tokens_estimated": False,
            "rule": "",
            "detail": None,
        }
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
    assert len(AuditRows().joined(rows)) == 5


@pytest.mark.parametrize("words", [["--since", "yesterday"], ["--until", "1y"], ["--since", "99999-01-01"]])
def test_a_time_that_is_none_is_refused_with_what_to_write(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["audit", *words]) == UsageError.exit_code
    assert "2026-11-16T10:00" in capsys.readouterr().err


def test_times_are_ago_or_as_they_stand() -> None:
    assert parse_time(None) is None
    for text, ago in (("90s", 90), ("30m", 1800), ("1h", 3600), ("1.5h", 5400), ("2d", 172_800), (" 1w ", 604_800)):
        assert parse_time(text) == pytest.approx(time.time() - ago, abs=5)
    assert parse_time("2026-11-16T10:00") == datetime(2026, 11, 16, 10).timestamp()
    assert parse_time("2026-11-16T10:00+00:00") == 1_794_823_200


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
    assert "without -f" in capsys.readouterr().err


def context(audit_log: AuditLog, emit: Any, caller: Principal = OWNER) -> CommandContext:
    crib = cast(Crib, SimpleNamespace(services=SimpleNamespace(audit=audit_log)))
    return CommandContext(
        crib=crib,
        request=RequestContext(caller, cast(Project, None)),
        host=cast(Any, None),
        via=Via.SOCKET,
        emit=emit,
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

    async with opened(home) as audit_log:
        for number in range(3):
            call(audit_log, number)
        await audit_log.flush()
        params = {"agent": "reviewer", "limit": 2}
        following = asyncio.create_task(registry.run("audit:follow", params, context(audit_log, emit)))
        await until(6)
        call(audit_log, 10, agent="builder")
        call(audit_log, 11)
        await audit_log.flush()
        await until(10)
        call(audit_log, 12, agent="builder")
        await audit_log.flush()
        call(audit_log, 13)
        await audit_log.flush()
        await until(14)
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await following
    assert seen == [5, 6, 9, 10, 13, 14]


@pytest.mark.req("KSI-7")
@pytest.mark.parametrize("name", ["audit:query", "audit:follow", "audit:verify"])
async def test_the_audit_log_is_the_owners_alone(name: str) -> None:
    async def nowhere(event: dict[str, Any]) -> None:
        raise AssertionError(event)

    with pytest.raises(Denied):
        await registry.run(name, {}, context(cast(AuditLog, None), nowhere, CLIENT))


@pytest.mark.parametrize(("tokens", "estimated", "shown"), [(12, True, "~12"), (12, False, 12), (None, False, None)])
def test_tokens_that_are_an_estimate_are_shown_as_one(tokens: int | None, estimated: bool, shown: Any) -> None:
    texts = dict.fromkeys(("call", "conversation", "tool", "decision", "rule", "agent", "detail"), "")
    entry = {**texts, "kind": "outcome", "at": 0.0, "outcome": "ok", "duration": 0.1, "size": 1}
    assert AuditRows().cells({**entry, "tokens": tokens, "tokens_estimated": estimated})[-2] == shown
