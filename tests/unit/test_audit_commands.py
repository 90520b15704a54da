"""`toolcrib audit`, `toolcrib audit verify`, and the commands behind them."""

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
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pytest import MonkeyPatch

from parts.audit_logs import LIMIT, opened
from toolcrib.audit.entry import AuditEntry, EntryKind
from toolcrib.audit.log import AuditLog
from toolcrib.calls.door import PROCESS
from toolcrib.cli.app import run
from toolcrib.cli.audit_commands import AuditRows
from toolcrib.commands.all import registry
from toolcrib.commands.audit import parse_time
from toolcrib.commands.registry import CommandContext, Via
from toolcrib.core.crib import Crib
from toolcrib.core.project import Project
from toolcrib.errors import Denied, UsageError
from toolcrib.identity.principal import CLIENT, OWNER, Principal, RequestContext

pytestmark = pytest.mark.req("KSI-5")

DATABASE = "state/mcp_sessions.db"
BEGIN = 1_700_000_000.0
Output = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: MonkeyPatch) -> Path:
    monkeypatch.setenv("TOOLCRIB_HOME", str(tmp_path))
    monkeypatch.delenv("CLAUDE_PROJECT_DIR", raising=False)
    (tmp_path / "project" / ".git" / "HEAD").mkdir(parents=True)
    (tmp_path / "state").mkdir(mode=0o700)
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path


def call(audit_log: AuditLog, number: int, outcome: str = "ok", **fields: Any) -> None:
    entry = {"call": f"c{number}", "at": BEGIN + number, "agent": "reviewer", "conversation": "default"}
    entry |= {"tool": "files:read_file", "server": "files", "decision": "allow", "rule": "profile developer: allow *"}
    entry |= fields
    if outcome != "denied":
        audit_log.note(AuditEntry(kind=EntryKind.INTENT, **entry))
    if outcome:
        done = {"outcome": outcome, "duration": 0.0123, "size": 2048, "result": b"hello world"}
        audit_log.note(AuditEntry(kind=EntryKind.OUTCOME, **entry, **done))


def fill(home: Path, *calls: dict[str, Any]) -> None:
    async def work() -> None:
        async with opened(home / DATABASE, home / "state") as (audit_log, _):
            for place, fields in enumerate(calls, 1):
                if isinstance(fields.get("kind"), EntryKind):
                    audit_log.note(AuditEntry(at=BEGIN + place, **fields))
                else:
                    call(audit_log, **{"number": place, **fields})
            await audit_log.flush()

    asyncio.run(work())


@pytest.fixture
def filled(home: Path) -> Path:
    denied = {"tool": "git:push", "server": "git", "decision": "deny", "rule": "agent reviewer: deny git:*"}
    change = {"outcome": "agent added", "detail": {"profile": "read-only", "workdir": None}}
    fill(
        home,
        {},
        {"outcome": "denied", **denied},
        {"outcome": "", "tool": "slow:wait", "server": "slow", "agent": "builder"},
        {"kind": EntryKind.CHANGE, "agent": "reviewer", **change},
        {"kind": EntryKind.GAP, "detail": {"entries": 7, "from": BEGIN + 1, "to": BEGIN + 2}},
    )
    return home


def entries(output: Output, *args: str) -> Any:
    assert run(["audit", *args, "--json"]) == 0
    return json.loads(output.readouterr().out)


def lines(output: Output, *args: str) -> list[str]:
    assert run(["audit", *args]) == 0
    return [" ".join(line.split()) for line in output.readouterr().out.splitlines()]


def test_the_table_has_one_line_per_call_change_and_gap(filled: Path, capsys: Output) -> None:
    heading, first, denied, running, change, gap = lines(capsys)
    assert heading == "time agent conversation tool decision outcome took size tokens note"
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(BEGIN + 1))
    assert first == f"{when} reviewer default files:read_file allow ok 12.3 ms 2.0 kB 2 -"
    assert "git:push deny denied" in denied
    assert denied.endswith("agent reviewer: deny git:*")
    assert "slow:wait allow running - - -" in running
    assert change.endswith("change - - - agent added: profile read-only, workdir null")
    begin, end = (time.strftime("%H:%M:%S", time.localtime(BEGIN + n)) for n in (1, 2))
    assert gap.endswith(f"7 entries could not be written between {begin} and {end}")
    assert len(lines(capsys, "-n", "4")) == 5, "-n counts calls"
    assert "files:read_file" in lines(capsys, "--server", "files", "-n", "1")[1]


def test_json_has_the_entries_and_filters_apply(filled: Path, capsys: Output) -> None:
    everything = ["intent", "outcome", "outcome", "intent", "change", "gap"]
    for words, kinds in (
        ("", everything),
        ("--agent builder", ["intent"]),
        ("--outcome denied", ["outcome"]),
        ("--outcome agent\nadded", ["change"]),
        ("--tool read_file", ["intent", "outcome"]),
        ("--tool g*:*", ["outcome"]),
        ("--server slow", ["intent"]),
        ("--session none", []),
        ("--since 1h", []),
        ("--until 1h", everything),
        ("-n 2", ["change", "gap"]),
    ):
        args = [word.replace("\n", " ") for word in words.split(" ") if word]
        assert [entry["kind"] for entry in entries(capsys, *args)["entries"]] == kinds, words


@pytest.mark.parametrize(
    ("words", "unknown"), [("--agent nobody", True), ("--agent owner", False), ("--agent reviewer --since 1h", True)]
)
def test_an_empty_result_is_reported_with_unknown_agents(
    filled: Path, capsys: Output, words: str, unknown: bool
) -> None:
    assert run(["audit", *words.split()]) == 0
    error = capsys.readouterr().err
    assert "No entry of the audit log matches" in error
    assert (f"There is no agent {words.split()[1]} now" in error) is unknown


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        ("--outcome bogus", "tool_error, error, timeout"),
        ("--since yesterday", "2026-11-16T10:00"),
        ("--until 1y", "2026-11-16T10:00"),
        ("--since 99999-01-01", "2026-11-16T10:00"),
    ],
)
def test_unknown_outcomes_and_times_are_refused_with_valid_ones(words: str, remedy: str, capsys: Output) -> None:
    assert run(["audit", *words.split()]) == UsageError.exit_code
    assert remedy in capsys.readouterr().err


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def on_terminal(monkeypatch: MonkeyPatch, width: int, *args: str) -> str:
    screen = Screen()
    with monkeypatch.context() as patch:
        patch.setattr("sys.stdout", screen)
        patch.setenv("NO_COLOR", "1")
        patch.setenv("COLUMNS", str(width))
        assert run(["audit", *args]) == 0
    return screen.getvalue()


@pytest.fixture
def crowded(home: Path) -> Path:
    long = {"agent": "an-agent-with-a-long-name", "conversation": "5b2f-" * 12, "tool": "warehouse:" + "x" * 60}
    rule = "agent reviewer: deny git:* when branch matches main|release/.*"
    fill(home, {"at": time.time(), **long}, {"outcome": "denied", "rule": rule, **long})
    return home


@pytest.mark.parametrize("width", [80, 100, 120])
def test_on_a_terminal_a_call_fits_on_a_line(
    crowded: Path, monkeypatch: MonkeyPatch, capsys: Output, width: int
) -> None:
    heading, allowed, denied = on_terminal(monkeypatch, width).splitlines()
    assert max(map(len, (heading, allowed, denied))) <= width
    assert {"time", "agent", "tool", "outcome", "note"} <= set(heading.split())
    assert [part for part in ("an-agent-wi", "warehouse:x", "…") if part not in allowed] == []
    assert "agent reviewer: den" in denied
    assert "--json" in capsys.readouterr().err


def test_nothing_is_cut_in_a_pipe(crowded: Path, capsys: Output) -> None:
    assert run(["audit"]) == 0
    output, error = capsys.readouterr()
    assert "warehouse:" + "x" * 60 in output
    assert "5b2f-" * 12 in output
    assert "…" not in output
    assert error == ""


@pytest.mark.parametrize(("width", "words", "shown"), [(100, [], False), (160, [], True), (100, ["-v"], True)])
def test_the_rule_of_an_allowed_call_is_shown_if_it_fits_or_with_v(
    filled: Path, monkeypatch: MonkeyPatch, width: int, words: list[str], shown: bool
) -> None:
    assert ("profile dev" in on_terminal(monkeypatch, width, "--server", "files", *words)) is shown


def cells(**fields: Any) -> Any:
    texts = dict.fromkeys(("call", "conversation", "tool", "decision", "rule", "agent", "detail", "tokens"), "")
    entry = {**texts, "at": 0.0, "outcome": "ok", "duration": 0.1, "size": 1, "tokens_estimated": False}
    return AuditRows().cells({**entry, **fields})


@pytest.mark.parametrize(
    ("what", "detail", "note"),
    [
        ("rule added", {"rule": "agent reviewer: allow git:*"}, "rule added: allow git:*"),
        ("server believed", {"server": "time"}, "server believed: time"),
        ("profile added", {"profile": "p", "rules": ["allow a:*", "deny b:*"]}, "p, rules allow a:*; deny b:*"),
        ("agent added", {"expires_at": datetime(2026, 11, 16, 10).timestamp()}, "expires 2026-11-16 10:"),
    ],
)
def test_changes_read_as_sentences(what: str, detail: dict[str, Any], note: str) -> None:
    shown = cells(kind="change", agent="reviewer", outcome=what, detail=detail)[-1]
    assert note in shown
    assert "rule agent" not in shown


@pytest.mark.parametrize(("tokens", "estimated", "shown"), [(12, True, "~12"), (12, False, 12), (None, False, None)])
def test_estimated_tokens_are_marked(tokens: int | None, estimated: bool, shown: Any) -> None:
    assert cells(kind="outcome", tokens=tokens, tokens_estimated=estimated)[-2] == shown


def test_a_call_has_one_row_even_if_its_entries_are_apart_or_one_is_missing() -> None:
    kinds = ("outcome a", "intent b", "intent c", "outcome c", "outcome b", "outcome ", "outcome ")
    texts = dict.fromkeys(("agent", "conversation", "tool", "decision", "rule", "detail"), "")
    numbers = {"at": 0.0, "outcome": "ok", "duration": 0.0, "size": 0, "tokens": None, "tokens_estimated": False}
    rows = [
        {**texts, **numbers, "seq": seq, "kind": entry.split(" ")[0], "call": entry.split(" ")[1]}
        for seq, entry in enumerate(kinds)
    ]
    assert len(AuditRows().joined(rows)) == 5


def test_a_call_whose_process_ended_is_cut_off_and_others_are_running(home: Path, capsys: Output) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait(LIMIT)
    calls = {
        f"{PROCESS}-1": "running",
        f"{os.getpid():x}-17c0ffee-2": "cut off",
        f"{ended.pid:x}-17c0ffee-3": "cut off",
        f"{os.getppid():x}-17c0ffee-4": "running",
        f"{ended.pid:x}-17c0ffee-9": "ok",
    }
    fill(home, *({"call": one, "outcome": "ok" if state == "ok" else ""} for one, state in calls.items()))
    assert entries(capsys)["cut_off"] == [one for one, state in calls.items() if state == "cut off"]
    for line, state in zip(lines(capsys)[1:], calls.values(), strict=True):
        assert f" {state} " in line
        assert ("may have run" in line) == (state == "cut off")
    assert entries(capsys, "--until", "1s")["cut_off"] == [], "the outcome may be later"


def test_times_are_durations_before_now_or_dates() -> None:
    assert parse_time(None) is None
    for text, ago in (("90s", 90), ("30m", 1800), ("1h", 3600), ("1.5h", 5400), ("2d", 172_800), (" 1w ", 604_800)):
        assert parse_time(text) == pytest.approx(time.time() - ago, abs=5)
    assert parse_time("2026-11-16T10:00") == datetime(2026, 11, 16, 10).timestamp()
    assert parse_time("2026-11-16T10:00+00:00") == 1_794_823_200


def test_verify_prints_the_head_or_names_the_changed_entry(filled: Path, capsys: Output) -> None:
    report = entries(capsys, "verify")
    assert (report["ok"], report["entries"]) == (True, 6)
    assert run(["audit", "verify", "--expect", report["head"]]) == 0
    assert report["head"] in capsys.readouterr().out
    assert run(["audit", "verify", "--expect", f"3:{'0' * 64}"]) == 9
    assert run(["audit", "verify", "--expect", "what"]) == 2
    with contextlib.closing(sqlite3.connect(filled / DATABASE)) as database:
        database.execute("UPDATE audit SET outcome = 'ok' WHERE seq = 3")
        database.commit()
    capsys.readouterr()
    assert run(["audit", "verify"]) == 9
    assert "Entry 3 is not what was written" in capsys.readouterr().err
    assert run(["audit", "verify", "--json"]) == 9
    report = json.loads(capsys.readouterr().out)
    assert (report["ok"], report["seq"], report["entries"]) == (False, 3, 2)


def test_following_needs_a_daemon(capsys: Output) -> None:
    assert run(["audit", "-f"]) == 7
    assert "without -f" in capsys.readouterr().err


def context(audit_log: AuditLog | None, emit: Any, caller: Principal = OWNER) -> CommandContext:
    crib = cast(Crib, SimpleNamespace(services=SimpleNamespace(audit=audit_log)))
    request = RequestContext(caller, cast(Project, None))
    return CommandContext(crib=crib, request=request, host=cast(Any, None), via=Via.SOCKET, emit=emit)


async def test_following_emits_old_and_new_entries_once_and_in_order(home: Path) -> None:
    seen = [0]
    arrived = asyncio.Event()

    async def emit(event: dict[str, Any]) -> None:
        seen.append(event["entry"]["seq"])
        arrived.set()

    async def until(number: int) -> None:
        async with asyncio.timeout(LIMIT):
            while seen[-1] < number:
                arrived.clear()
                await arrived.wait()

    async with opened(home / DATABASE, home / "state") as (audit_log, _):

        async def calls(*numbers: int) -> None:
            """Those of 10 and 12 have another agent."""
            for number in numbers:
                call(audit_log, number, agent="builder" if number in (10, 12) else "reviewer")
            await audit_log.flush()

        await calls(0, 1, 2)
        params = {"agent": "reviewer", "limit": 2}
        following = asyncio.create_task(registry.run("audit:follow", params, context(audit_log, emit)))
        await until(6)
        await calls(10, 11)
        await until(10)
        await calls(12)
        await calls(13)
        await until(14)
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await following
    assert seen == [0, 5, 6, 9, 10, 13, 14]


@pytest.mark.req("KSI-7")
@pytest.mark.parametrize("name", ["audit:query", "audit:follow", "audit:verify"])
async def test_only_the_owner_may_read_the_audit_log(name: str) -> None:
    with pytest.raises(Denied):
        await registry.run(name, {}, context(None, pytest.fail, CLIENT))
