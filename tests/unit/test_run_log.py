"""A run's log: whole lines, for the person alone, without secrets, and never the end of the run."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parts.run_logs import NOBODY, SEALS, message, metadata, summary, written
from toolcrib.coding_agents import run_history
from toolcrib.coding_agents.client_spec import TokenUsage
from toolcrib.coding_agents.run_folder import LogSeals
from toolcrib.coding_agents.run_log import MAX_LOGS, RunLog, ValueMasker
from toolcrib.coding_agents.run_result import RunStatus
from toolcrib.run_events import AgentEvent, AgentEventKind, ToolStatus

pytestmark = pytest.mark.req("FRG-7")

TOKEN = "tcb_abcdefgh12345678"
KEY = 'pass"word/1 é'


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def small_files() -> Iterator[int]:
    """A disk that is full, as far as this process can tell: no file may grow beyond so many bytes."""
    most = 4096
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    yield most
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, ignored)


@pytest.mark.req("FRG-6")
def test_a_log_has_the_metadata_then_every_event_whole_then_the_summary(tmp_path: Path) -> None:
    about = metadata(governed=("its own tools",))
    call = AgentEvent(
        kind=AgentEventKind.TOOL,
        provider="claude",
        role="tool",
        raw={"type": "user", "n": [1, None, 2.5]},
        tool_name="read_file",
        tool_args={"path": "é\n"},
        tool_status=ToolStatus.DENIED,
        tool_duration_ms=1.5,
        server="workspace",
        decision="deny",
        rule="profile nothing: nothing",
        call="7",
    )
    end = summary(
        usage=TokenUsage(input=10, output=2, cached=5, reported={"x": 1}), tools={"workspace:read_file": 1}, denials=1
    )
    path = written(tmp_path, about, message("hello"), call, end=end)
    assert path == tmp_path / ".toolcrib" / "runs" / f"{about.run_id}.jsonl"
    first, hello, called, last = records(path)
    for sealed in (first["metadata"], last["summary"]):
        assert re.fullmatch("[0-9a-f]{64}", sealed.pop("seal"))
    assert first == {"metadata": about.to_json() | {"governed": ["its own tools"], "ungoverned": []}}
    assert hello["event"]["text"] == "hello"
    assert called == {"event": call.to_json()}
    assert last == {"summary": end.to_json()}


def test_only_the_person_can_read_it_and_git_does_not_see_it(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True, timeout=20)
    path = written(tmp_path, metadata(), end=summary())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    seen = subprocess.run(["git", "-C", tmp_path, "status", "--porcelain"], check=True, capture_output=True, timeout=20)
    assert seen.stdout == b""
    path.parent.chmod(0o755)
    written(tmp_path, metadata("20261116-100000-00000b"))
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700, "rights that others had are taken back"


@pytest.mark.parametrize("place", [".toolcrib", ".toolcrib/runs"])
def test_a_planted_link_is_not_followed_and_the_run_continues(tmp_path: Path, place: str) -> None:
    outside, project = tmp_path / "outside", tmp_path / "project"
    outside.mkdir()
    (project / place).parent.mkdir(parents=True, exist_ok=True)
    (project / place).symlink_to(outside)
    log = RunLog.open(project, metadata(), seals=SEALS)
    assert "is a link, not a folder" in log.failure
    log.event(message("hello"))
    log.end(summary())
    assert list(outside.iterdir()) == []


def test_a_file_that_waits_in_the_logs_place_is_not_written_over(tmp_path: Path) -> None:
    folder = tmp_path / ".toolcrib" / "runs"
    folder.mkdir(parents=True)
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (folder / "20261116-100000-00000a.jsonl").symlink_to(precious)
    log = RunLog.open(tmp_path, metadata(), seals=SEALS)
    log.event(message("hello"))
    log.end(summary())
    assert "File exists" in log.failure
    assert precious.read_text() == "mine"


def test_a_killed_run_leaves_whole_lines_up_to_the_last_event(tmp_path: Path) -> None:
    program = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from parts.run_logs import SEALS, message, metadata
from toolcrib.coding_agents.run_log import RunLog
log = RunLog.open(Path(sys.argv[1]), metadata(), seals=SEALS)
for number in range(50):
    log.event(message(f"{number} " + "x" * 3000))
os.kill(os.getpid(), signal.SIGKILL)
"""
    tests = str(Path(__file__).parents[1])
    ended = subprocess.run([sys.executable, "-c", program, str(tmp_path), tests], timeout=60, check=False)
    assert ended.returncode == -signal.SIGKILL
    (path,) = (tmp_path / ".toolcrib" / "runs").glob("*.jsonl")
    texts = [record["event"]["text"].split()[0] for record in records(path)[1:]]
    assert texts == [str(number) for number in range(50)]


def test_each_line_is_one_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = RunLog.open(tmp_path, metadata(), seals=SEALS)
    writes: list[bytes] = []
    real = os.write

    def write(descriptor: int, data: Any) -> int:
        writes.append(bytes(data))
        return real(descriptor, data)

    monkeypatch.setattr(os, "write", write)
    log.event(message("x" * 200_000))
    log.event(message("two\nlines"))
    log.end(summary())
    assert len(writes) == 3
    assert all(one.endswith(b"}\n") and one.count(b"\n") == 1 for one in writes)


def test_a_full_disk_is_reported_once_and_leaves_complete_lines(tmp_path: Path, small_files: int) -> None:
    log = RunLog.open(tmp_path, metadata(), seals=SEALS)
    log.event(message("fits"))
    assert log.failure == ""
    log.event(message("x" * small_files))
    shown = log.failure
    assert "cannot be written: File too large" in shown
    log.event(message("y" * small_files))
    assert log.failure == shown
    log.event(message("fits again"))
    log.end(summary())
    texts = [record["event"]["text"] for record in records(log.path)[1:-1]]
    assert texts == ["fits", f"2 lines are missing here: {shown}", "fits again"]
    assert "summary" in records(log.path)[-1]


def test_a_log_removed_during_the_run_is_reported(tmp_path: Path) -> None:
    log = RunLog.open(tmp_path, metadata(), seals=SEALS)
    log.event(message("one"))
    log.path.unlink()
    log.event(message("two"))
    log.end(summary())
    assert log.failure == f"{log.path} was removed during the run."


def test_a_folder_that_cannot_be_written_does_not_end_the_run(tmp_path: Path) -> None:
    (tmp_path / ".toolcrib").write_text("a file")
    log = RunLog.open(tmp_path, metadata(), seals=SEALS)
    log.event(message("hello"))
    log.end(summary())
    assert log.failure == f"{log.path} cannot be written: .toolcrib is a file, not a folder."


def test_no_secret_is_in_the_log_in_whatever_form_it_comes(tmp_path: Path) -> None:
    log = RunLog.open(
        tmp_path, metadata(prompt=f"use {KEY}"), seals=SEALS, secrets=[KEY, "31415926", "short", "finished", "output"]
    )
    log.event(
        AgentEvent(
            kind=AgentEventKind.TOOL,
            provider="claude",
            text=f"Bearer {TOKEN}",
            raw={KEY: [{"deep": [f"x{KEY}x", 31415926]}], "quoted": json.dumps({"k": KEY})},
            tool_name="t",
            tool_args={"a": KEY, "b": "short", "url": "https://x/?k=pass%22word%2F1%20%C3%A9"},
            tool_status=ToolStatus.OK,
        )
    )
    end = summary(
        text=f"it was {KEY}", error=TOKEN, usage=TokenUsage(output=31415926, reported={"k": KEY}), tools={KEY: 2}
    )
    log.end(end)
    text = log.path.read_text()
    for form in (KEY, json.dumps(KEY)[1:-1], json.dumps(KEY, ensure_ascii=False)[1:-1], "pass%22", TOKEN):
        assert form not in text
    _, called, last = records(log.path)
    assert called["event"]["raw"] == {"****": [{"deep": ["x****x", "****"]}], "quoted": '{"k": "****"}'}
    assert called["event"]["tool_args"]["b"] == "short", "what is short stands in too many texts"
    assert last["summary"]["status"] == "finished", "Toolcrib's own words stay, or nobody could read the log"
    assert last["summary"]["usage"] == {"input": None, "output": 31415926, "cached": None, "reported": {"k": "****"}}


def test_keys_that_look_alike_once_masked_keep_both_values() -> None:
    assert ValueMasker(["secret-1", "secret-2"])({"secret-1": 1, "secret-2": 2}) == {"****": 1, "*****": 2}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@pytest.mark.req("FRG-6")
@given(value=JSON)
def test_what_holds_no_secret_is_kept_as_it_is(value: Any) -> None:
    assert ValueMasker(["a secret that nobody has"])(value) == value


@pytest.mark.req("FRG-6")
def test_whatever_a_program_prints_becomes_a_line_of_json(tmp_path: Path) -> None:
    deep: Any = "bottom"
    for _ in range(5000):
        deep = [deep]
    log = RunLog.open(tmp_path, metadata(), seals=SEALS)
    log.event(message("\ud800 half a pair", raw={"inf": float("inf"), "deep": deep, "set": {1}, 5: "number"}))
    log.end(summary())
    _, event, _ = records(log.path)
    assert event["event"]["text"] == "\ud800 half a pair"
    assert event["event"]["raw"]["inf"] == "inf"
    assert event["event"]["raw"]["5"] == "number"


def test_the_newest_logs_and_those_of_running_runs_are_kept(tmp_path: Path) -> None:
    alive = metadata("20250101-000000-00000a")
    written(tmp_path, alive)
    for number in range(MAX_LOGS + 5):
        about = metadata(f"20260101-{number:06d}-00000a", pid_began=NOBODY)
        written(tmp_path, about, end=summary() if number % 2 else None)
    folder = tmp_path / ".toolcrib" / "runs"
    (folder / "notes.jsonl").write_text("the person's own")
    written(tmp_path, metadata("20261116-100000-00000a"), end=summary(status=RunStatus.FAILED))
    left = sorted(path.name for path in folder.glob("*.jsonl"))
    assert left[0] == "20250101-000000-00000a.jsonl"
    assert left[-1] == "notes.jsonl"
    # The live one is beyond the number: what is old and over goes, whatever else has to stay.
    assert len(left) - 2 == MAX_LOGS
    assert left[1] == "20260101-000006-00000a.jsonl"


def test_planted_logs_take_no_room_from_ours_and_are_left_alone(tmp_path: Path) -> None:
    ours = [written(tmp_path, metadata(f"20260101-{number:06d}-00000a"), end=summary()) for number in range(3)]
    fake = written(tmp_path, metadata("29990101-000000-00000a"), end=summary(), seals=LogSeals(b"x" * 32))
    theirs = [fake.with_name(f"29990102-{number:06d}-00000a.jsonl") for number in range(MAX_LOGS)]
    for path in theirs:
        path.write_bytes(fake.read_bytes().replace(b"29990101-000000", path.name[:15].encode()))
    new = written(tmp_path, metadata("20261116-100000-00000a"), end=summary())
    assert set(new.parent.glob("*.jsonl")) == {*ours, fake, *theirs, new}


@pytest.mark.req("FRG-6")
def test_a_number_too_large_for_a_float_is_kept(tmp_path: Path) -> None:
    large = 10**400
    log = RunLog.open(tmp_path, metadata(), seals=SEALS)
    log.event(message("x", raw={"n": large, "deep": [-large]}))
    log.end(summary(usage=TokenUsage(input=large, reported={"n": large})))
    _, event, last = records(log.path)
    assert event["event"]["raw"] == {"n": large, "deep": [-large]}
    assert last["summary"]["usage"]["input"] == large


@pytest.mark.parametrize("letter", ["x", "é", "\x00", "\ud800"])
def test_a_log_of_a_long_prompt_and_a_long_answer_can_be_read(tmp_path: Path, letter: str) -> None:
    much = letter * 5_000_000
    about = metadata(prompt=much, prompt_bytes=5_000_000)
    shown = TokenUsage(input=1, reported={"a": 1, "much": much})
    over = summary(text=much, error=much, session=much, model=much, remedy=much, usage=shown, tools={"a": 1, much: 2})
    written(tmp_path, about, message(much), end=over)
    (run,) = run_history.recorded_runs(tmp_path, SEALS)
    assert (run.sealed, run.status, run.metadata.prompt_bytes) == (True, RunStatus.FINISHED, 5_000_000)
    assert run.summary is not None
    for text, most in ((run.metadata.prompt, 65536), (run.summary.text, 1048576), (run.summary.error, 65536)):
        assert text == f"{letter * most} … (5000000 characters in all)"
    assert (run.summary.usage.input, run.summary.usage.reported, run.summary.tools) == (1, {}, {"a": 1})
    _, event, _ = run_history.log_entries(run)
    assert isinstance(event, AgentEvent)
    assert event.text == much, "an event has all of it"
