"""Run logs: whole lines, private, without secrets; reading, continuing and following them. No file is trusted."""

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
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parts.run_logs import CALL, NEW, NO_PROCESS, OLD, SEALS, log_event, message, metadata, summary, write_log
from toolcrib.coding_agents import run_history
from toolcrib.coding_agents.client_spec import TokenUsage
from toolcrib.coding_agents.process_alive import process_started_at
from toolcrib.coding_agents.run_folder import LogSeals
from toolcrib.coding_agents.run_log import MAX_LOGS, RunLog, ValueMasker
from toolcrib.coding_agents.run_result import RunMetadata, RunStatus, RunSummary, ToolListSize
from toolcrib.errors import NotFound, ToolcribError, UsageError
from toolcrib.run_events import AgentEvent, AgentEventKind, ToolStatus

pytestmark = pytest.mark.req("FRG-7")

TOKEN = "tcb_abcdefgh12345678"
KEY = 'pass"word/1 é'
SESSION, OTHER_SESSION = (f"{digit}b5a3c9e-6f0a-4c7c-9d1e-2f3a4b5c6d7e" for digit in "09")
OTHER_SEALS = LogSeals(b"x" * 32)


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def line_of(kind: str, value: Any) -> bytes:
    return json.dumps({kind: value.to_json()}).encode() + b"\n"


def open_log(root: Path, about: RunMetadata | None = None, **given: Any) -> RunLog:
    return RunLog.open(root, about or metadata(), seals=SEALS, **given)


def logged(log: RunLog, *events: AgentEvent) -> RunLog:
    """Events and a summary, even if they cannot be written."""
    for event in events or [message("hello")]:
        log.event(event)
    log.end(summary())
    return log


@pytest.fixture
def small_files() -> Iterator[int]:
    """A full disk: no file can grow beyond so many bytes."""
    most = 4096
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    yield most
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, ignored)


@pytest.mark.req("FRG-6")
def test_a_log_has_the_metadata_every_event_and_the_summary(tmp_path: Path):
    about = metadata(governed=("its own tools",))
    call = AgentEvent(
        kind=AgentEventKind.TOOL, provider="claude", role="tool", raw={"type": "user", "n": [1, None, 2.5]}, call="7",
        tool_name="read_file", tool_args={"path": "é\n"}, tool_status=ToolStatus.DENIED, tool_duration_ms=1.5,
        server="workspace", decision="deny", rule="profile nothing: nothing",
    )  # fmt: skip
    usage = TokenUsage(input=17, output=306, cached=45_662, cache_write=3314, reported={"x": 1})
    listing = ToolListSize(mode="thin", tools=12, bytes=9000, tokens=2500)
    end = summary(usage=usage, tools={"workspace:read_file": 1}, denials=1, listing=listing)
    hello = message("hello")
    path = write_log(tmp_path, about, hello, call, end=end)
    assert path == tmp_path / ".toolcrib" / "runs" / f"{about.run_id}.jsonl"
    assert list(run_history.log_entries(found(tmp_path))) == [about, hello, call, end]
    first, greeting, called, tokens, last = records(path)
    for sealed in (first["metadata"], last["summary"]):
        assert re.fullmatch("[0-9a-f]{64}", sealed.pop("seal"))
    assert first == {"metadata": about.to_json() | {"governed": ["its own tools"], "ungoverned": []}}
    assert (greeting, called) == ({"event": hello.to_json()}, {"event": call.to_json()})
    reported = {"input_tokens": 17, "cache_creation_tokens": 3314, "cache_read_tokens": 45_662, "output_tokens": 306}
    listed = {"mode": "thin", "tools": 12, "list_tokens": 2500, "list_tokens_estimated": False}
    assert tokens == {"token_usage": reported | listed}
    assert last == {"summary": end.to_json()}


def test_only_the_owner_can_read_a_log_and_git_ignores_it(tmp_path: Path):
    subprocess.run(["git", "init", "-q", tmp_path], check=True, timeout=20)
    path = write_log(tmp_path, metadata(), end=summary())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert subprocess.check_output(["git", "-C", tmp_path, "status", "--porcelain"], timeout=20) == b""
    path.parent.chmod(0o755)
    write_log(tmp_path, metadata(NEW))
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700, "the permissions of others are removed"


@pytest.mark.parametrize(
    ("place", "failure"),
    [
        (".toolcrib", "is a link, not a folder"),
        (".toolcrib/runs", "is a link, not a folder"),
        (".toolcrib/runs/20261116-100000-00000a.jsonl", "File exists"),
    ],
)
def test_a_planted_link_is_not_followed_and_the_run_continues(tmp_path: Path, place: str, failure: str):
    outside, link = tmp_path / "outside", tmp_path / "project" / place
    link.parent.mkdir(parents=True, exist_ok=True)
    if link.suffix:
        outside.write_text("mine")
    else:
        outside.mkdir()
    link.symlink_to(outside)
    assert failure in logged(open_log(tmp_path / "project")).failure
    assert outside.read_text() == "mine" if link.suffix else list(outside.iterdir()) == []


def test_a_log_that_cannot_be_written_is_reported_and_the_run_continues(tmp_path: Path):
    log = open_log(tmp_path)
    log.event(message("one"))
    log.path.unlink()
    assert logged(log).failure == f"{log.path} was removed during the run."
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / ".toolcrib").write_text("a file")
    log = logged(open_log(tmp_path / "project"))
    assert log.failure == f"{log.path} cannot be written: .toolcrib is a file, not a folder."


def test_a_killed_run_leaves_whole_lines_up_to_the_last_event(tmp_path: Path):
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


def test_each_line_is_one_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    log = open_log(tmp_path)
    writes: list[bytes] = []
    real = os.write

    def write(descriptor: int, data: Any) -> int:
        writes.append(bytes(data))
        return real(descriptor, data)

    monkeypatch.setattr(os, "write", write)
    logged(log, message("x" * 200_000), message("two\nlines"))
    assert len(writes) == 3
    assert all(one.endswith(b"}\n") and one.count(b"\n") == 1 for one in writes)


def test_a_full_disk_is_reported_once_and_leaves_complete_lines(tmp_path: Path, small_files: int):
    log = open_log(tmp_path)
    log.event(message("fits"))
    assert log.failure == ""
    log.event(message("x" * small_files))
    failure = log.failure
    assert "cannot be written: File too large" in failure
    log.event(message("y" * small_files))
    assert log.failure == failure
    logged(log, message("fits again"))
    texts = [record["event"]["text"] for record in records(log.path)[1:-1]]
    assert texts == ["fits", f"2 lines are missing here: {failure}", "fits again"]
    assert "summary" in records(log.path)[-1]


def test_no_form_of_a_secret_is_in_the_log(tmp_path: Path):
    secrets = [KEY, "31415926", "short", "finished", "output"]
    log = open_log(tmp_path, metadata(prompt=f"use {KEY}"), secrets=secrets)
    raw = {KEY: [{"deep": [f"x{KEY}x", 31415926]}], "quoted": json.dumps({"k": KEY})}
    args = {"a": KEY, "b": "short", "url": "https://x/?k=pass%22word%2F1%20%C3%A9"}
    log.event(replace(CALL, text=f"Bearer {TOKEN}", raw=raw, tool_args=args))
    usage = TokenUsage(output=31415926, reported={"k": KEY})
    log.end(summary(text=f"it was {KEY}", error=TOKEN, usage=usage, tools={KEY: 2}))
    text = log.path.read_text()
    for form in (KEY, json.dumps(KEY)[1:-1], json.dumps(KEY, ensure_ascii=False)[1:-1], "pass%22", TOKEN):
        assert form not in text
    _, called, tokens, last = records(log.path)
    assert tokens["token_usage"]["output_tokens"] == 31415926, "a number of tokens is no secret"
    assert called["event"]["raw"] == {"****": [{"deep": ["x****x", "****"]}], "quoted": '{"k": "****"}'}
    assert called["event"]["tool_args"]["b"] == "short", "short words occur in too many texts"
    assert last["summary"]["status"] == "finished", "Toolcrib's own words stay"
    assert last["summary"]["usage"] == {
        "input": None,
        "output": 31415926,
        "cached": None,
        "cache_write": None,
        "reported": {"k": "****"},
    }
    masked = ValueMasker(["secret-1", "secret-2"])({"secret-1": 1, "secret-2": 2})
    assert masked == {"****": 1, "*****": 2}, "keys that are equal once masked keep both values"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@pytest.mark.req("FRG-6")
@given(value=JSON)
def test_a_value_without_secrets_is_unchanged(value: Any):
    assert ValueMasker(["a secret that does not occur"])(value) == value


@pytest.mark.req("FRG-6")
def test_any_output_of_a_program_becomes_a_line_of_json(tmp_path: Path):
    deep: Any = "bottom"
    for _ in range(5000):
        deep = [deep]
    large = 10**400
    log = open_log(tmp_path)
    log.event(message("\ud800 half a pair", raw={"inf": float("inf"), "deep": deep, "set": {1}, 5: "number"}))
    log.event(message("x", raw={"n": large, "deep": [-large]}))
    log.end(summary(usage=TokenUsage(input=large, reported={"n": large})))
    _, odd, long, _, last = records(log.path)
    assert odd["event"]["text"] == "\ud800 half a pair"
    assert odd["event"]["raw"].items() >= {"inf": "inf", "5": "number"}.items()
    assert long["event"]["raw"] == {"n": large, "deep": [-large]}
    assert last["summary"]["usage"]["input"] == large


def test_the_newest_logs_and_those_of_running_runs_are_kept(tmp_path: Path):
    write_log(tmp_path, metadata("20250101-000000-00000a"))
    for number in range(MAX_LOGS + 5):
        about = metadata(f"20260101-{number:06d}-00000a", pid_began=NO_PROCESS)
        write_log(tmp_path, about, end=summary() if number % 2 else None)
    folder = tmp_path / ".toolcrib" / "runs"
    (folder / "notes.jsonl").write_text("the person's own")
    write_log(tmp_path, metadata(NEW), end=summary(status=RunStatus.FAILED))
    left = sorted(path.name for path in folder.glob("*.jsonl"))
    # The running one exceeds the limit; finished old ones are removed in its place.
    assert left[:2] == ["20250101-000000-00000a.jsonl", "20260101-000006-00000a.jsonl"]
    assert left[-1] == "notes.jsonl"
    assert len(left) - 2 == MAX_LOGS


def test_planted_logs_do_not_displace_real_ones_and_are_not_deleted(tmp_path: Path):
    ours = [write_log(tmp_path, metadata(f"20260101-{number:06d}-00000a"), end=summary()) for number in range(3)]
    fake = write_log(tmp_path, metadata("29990101-000000-00000a"), end=summary(), seals=OTHER_SEALS)
    theirs = [fake.with_name(f"29990102-{number:06d}-00000a.jsonl") for number in range(MAX_LOGS)]
    for path in theirs:
        path.write_bytes(fake.read_bytes().replace(b"29990101-000000", path.name[:15].encode()))
    new = write_log(tmp_path, metadata(NEW), end=summary())
    assert set(new.parent.glob("*.jsonl")) == {*ours, fake, *theirs, new}


@pytest.mark.parametrize("letter", ["x", "é", "\x00", "\ud800"])
def test_a_log_of_a_long_prompt_and_a_long_answer_can_be_read(tmp_path: Path, letter: str):
    much = letter * 5_000_000
    about = metadata(prompt=much, prompt_bytes=5_000_000)
    usage = TokenUsage(input=1, reported={"a": 1, "much": much})
    end = summary(text=much, error=much, session=much, model=much, remedy=much, usage=usage, tools={"a": 1, much: 2})
    write_log(tmp_path, about, message(much), end=end)
    (run,) = recorded(tmp_path)
    assert (run.sealed, run.status, run.metadata.prompt_bytes) == (True, RunStatus.FINISHED, 5_000_000)
    for text, most in ((run.metadata.prompt, 65536), (run.summary.text, 1048576), (run.summary.error, 65536)):
        assert text == f"{letter * most} … (5000000 characters in all)"
    assert (run.summary.usage.input, run.summary.usage.reported, run.summary.tools) == (1, {}, {"a": 1})
    _, event, _ = run_history.log_entries(run)
    assert isinstance(event, AgentEvent)
    assert event.text == much, "an event is complete"


# Reading.


def set_line(path: Path, number: int, record: Any) -> None:
    """Replaces a line, by bytes or by JSON."""
    lines = path.read_bytes().splitlines(keepends=True)
    lines[number - 1] = record if isinstance(record, bytes) else json.dumps(record).encode() + b"\n"
    path.write_bytes(b"".join(lines))


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits until it is killed."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as one:
        yield one
        one.kill()


def recorded(root: Path) -> list[Any]:
    return list(run_history.recorded_runs(root, SEALS))


def found(root: Path, which: str = "last") -> Any:
    return run_history.find_run(root, which, SEALS)


def state(root: Path, which: str = "last", client: str = "claude") -> run_history.ConversationState:
    return run_history.conversation_state(root, which, client, SEALS)


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait(60)


def test_runs_are_listed_newest_first_with_their_status(tmp_path: Path, process: subprocess.Popen[bytes]):
    assert recorded(tmp_path) == []
    born = process_started_at(process.pid)
    assert born is not None
    write_log(tmp_path, metadata(OLD), message("hi"), end=summary(status=RunStatus.TIMEOUT))
    write_log(tmp_path, metadata(NEW, pid=process.pid, pid_began=born), message("hi"))
    other = "20261114-100000-00000a"
    write_log(tmp_path, metadata(other, pid=process.pid, pid_began=born - 1), message("hi"))
    expected = [(NEW, RunStatus.RUNNING), (OLD, RunStatus.TIMEOUT), (other, RunStatus.KILLED)]
    assert [(run.run_id, run.status) for run in recorded(tmp_path)] == expected
    end(process)
    assert recorded(tmp_path)[0].status is RunStatus.KILLED


def test_a_run_is_found_by_last_by_its_id_and_by_a_unique_beginning(tmp_path: Path):
    with pytest.raises(NotFound, match="has no recorded runs"):
        found(tmp_path)
    for run_id in (OLD, NEW):
        write_log(tmp_path, metadata(run_id), end=summary())
    for which, run_id in (("last", NEW), (OLD, OLD), ("20261115", OLD), (NEW[:-1], NEW)):
        assert found(tmp_path, which).run_id == run_id
    with pytest.raises(UsageError, match="2 runs begin with 2026"):
        found(tmp_path, "2026")
    for nothing in ("", "2027", "../" + NEW, "/etc/passwd", "notes"):
        with pytest.raises(NotFound, match="There is no run"):
            found(tmp_path, nothing)


def test_a_list_reads_only_first_and_last_lines_and_reports_bad_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = write_log(tmp_path, metadata(), *(message("x" * 1000) for _ in range(2000)), end=summary(text="y" * 200_000))
    set_line(path, 1000, b"nonsense\n")
    decoded: list[int] = []
    real = json.loads
    monkeypatch.setattr(json, "loads", lambda text, **options: decoded.append(len(text)) or real(text, **options))
    (run,) = recorded(tmp_path)
    assert run.summary.text == "y" * 200_000
    assert len(decoded) == 2
    set_line(write_log(tmp_path, metadata(NEW), end=summary()), 1, b"nonsense\n")
    problems: list[ToolcribError] = []
    assert list(run_history.recorded_runs(tmp_path, SEALS, problems.append)) == [run]
    assert [NEW in problem.message for problem in problems] == [True]


def test_an_incomplete_last_line_is_ignored(tmp_path: Path):
    path = write_log(tmp_path, metadata(OLD, pid_began=NO_PROCESS), message("one"))
    whole = path.read_bytes()
    for torn in (b'{"event": {"ki', b'{"summary": {}}'):
        path.write_bytes(whole + torn)
        run = found(tmp_path)
        assert run.status is RunStatus.KILLED
        assert len(list(run_history.log_entries(run))) == 2
    path.with_name(f"{NEW}.jsonl").touch()
    assert [run.run_id for run in recorded(tmp_path)] == [OLD]
    assert found(tmp_path).run_id == OLD
    with pytest.raises(NotFound, match="is still empty"):
        found(tmp_path, NEW)


WRONG: list[tuple[int, Any, str]] = [
    (1, b"\xff\xfe\n", "not JSON"),
    (1, b"[" * 100_000 + b"]" * 100_000 + b"\n", "nested too deeply"),
    (1, b"1" * 5000 + b"\n", "not JSON"),
    (1, ["metadata"], "neither metadata nor an event nor a summary"),
    (1, {"metadata": {}, "event": {}}, "neither metadata nor an event nor a summary"),
    (1, {"metadata": {"run_id": 5}}, "not a valid metadata"),
    (1, {"metadata": metadata(NEW).to_json() | {"run_id": OLD}}, "not the metadata of this run"),
    (1, {"metadata": metadata(NEW).to_json() | {"pid": "1"}}, "not a valid metadata"),
    (1, {"event": {"kind": "log", "provider": "x"}}, "not the metadata of this run"),
    (2, {"event": {"kind": "dance", "provider": "x"}}, "not a valid event"),
    (2, {"event": {"kind": "tool", "provider": "x", "tool_args": []}}, "not a valid event"),
    (2, {"event": {"kind": "tool", "provider": "x", "time": float("nan")}}, "not JSON"),
    (2, {"event": None}, "not a valid event"),
    (3, {"summary": {"status": "fine"}}, "not a valid summary"),
    (3, {"summary": summary().to_json() | {"tools": {"x": "y"}}}, "not a valid summary"),
]


@pytest.mark.parametrize(("number", "record", "error"), WRONG)
def test_a_mistake_in_a_log_is_reported_with_file_and_line(tmp_path: Path, number: int, record: Any, error: str):
    path = write_log(tmp_path, metadata(NEW), message("hi"), end=summary())
    set_line(path, number, record)
    with pytest.raises(ToolcribError) as caught:
        list(run_history.log_entries(found(tmp_path, NEW)))
    where = "its last line" if number == 3 else f"line {number}"
    assert caught.value.message.startswith(f"{path}, {where}: this is {error}")
    assert caught.value.remedy


def test_only_regular_files_in_a_real_folder_are_read(tmp_path: Path):
    path = write_log(tmp_path / "other", metadata(OLD), end=summary())
    planted = path.with_name(f"{NEW}.jsonl")
    for make in (lambda: planted.symlink_to(path), lambda: os.mkfifo(planted), planted.mkdir):
        planted.unlink(missing_ok=True)
        make()
        with pytest.raises(ToolcribError, match=NEW):
            found(tmp_path / "other", NEW)
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / ".toolcrib").symlink_to(tmp_path / "other" / ".toolcrib")
    with pytest.raises(ToolcribError, match="is a link, not a folder"):
        found(tmp_path / "project")


def test_a_conversation_continues_in_its_newest_session(tmp_path: Path):
    write_log(tmp_path, metadata(OLD, profile="read-only"), end=summary(session=SESSION))
    write_log(tmp_path, metadata(NEW, conversation="other"), end=summary(session="x"))
    later = metadata("20261117-100000-00000a", profile="developer", pid_began=NO_PROCESS)
    write_log(tmp_path, later, message("killed before its session was known"))
    current = state(tmp_path, "c0ffee")
    assert (current.conversation, current.provider, current.profile) == ("c0ffee", "claude", "developer")
    assert current.session == SESSION
    assert state(tmp_path) == current
    with pytest.raises(NotFound, match="no conversation nobody"):
        state(tmp_path, "nobody")
    with pytest.raises(NotFound, match="There is no conversation with codex yet in"):
        state(tmp_path, "last", "codex")
    theirs = metadata("20261118-100000-00000a", conversation="theirs", provider="codex")
    write_log(tmp_path, theirs, end=summary(session=SESSION))
    assert state(tmp_path) == current, "the last one of the same client"
    assert state(tmp_path, "last", "codex").conversation == "theirs"
    assert state(tmp_path, "theirs").provider == "codex"


def test_a_killed_run_continues_in_its_last_logged_session(tmp_path: Path):
    log = open_log(tmp_path, metadata(NEW, pid_began=NO_PROCESS))
    for session in ("", OTHER_SESSION, OTHER_SESSION, SESSION):
        log.session(session)
        log.event(message("working"))
    assert log.path.read_bytes().count(b'\n{"session":') == 2
    assert state(tmp_path).session == SESSION
    assert [type(one) for one in run_history.log_entries(found(tmp_path))] == [RunMetadata, *[AgentEvent] * 4]
    init = log_event("", raw={"type": "system", "subtype": "init", "session_id": SESSION})
    write_log(tmp_path, metadata("20261117-100000-00000a", conversation="printed", pid_began=NO_PROCESS), init)
    assert state(tmp_path).session == "", "a session that was only printed does not count"


@pytest.mark.parametrize("key", [None, b"x" * 32])
def test_a_planted_log_is_marked_and_does_not_influence_the_next_run(tmp_path: Path, key: bytes | None):
    write_log(tmp_path, metadata(OLD, profile="read-only"), end=summary(session=SESSION))
    before = state(tmp_path)
    for number, conversation in enumerate(("c0ffee", "other")):
        about = metadata(f"29990101-00000{number}-00000a", profile="developer", conversation=conversation)
        write_log(tmp_path, about, end=summary(session=OTHER_SESSION), seals=LogSeals(key))
    assert [run.sealed for run in recorded(tmp_path)] == [False, False, True]
    assert state(tmp_path) == state(tmp_path, "c0ffee") == before
    assert before.profile == "read-only"
    with pytest.raises(NotFound, match=r"copied from elsewhere is not trusted \(1 found\)"):
        state(tmp_path, "other")


def test_a_changed_line_is_not_trusted(tmp_path: Path):
    about = {"profile": "owner", "conversation": "other", "provider": "codex", "prompt": "else", "new": "field"}
    over = {"session": OTHER_SESSION, "status": "failed", "session_usage": {"input": 7}}
    changes = [*(("metadata", one) for one in about.items()), *(("summary", one) for one in over.items())]
    for kind, (field, value) in (*changes, ("metadata", ("seal", "é")), ("metadata", ("seal", None))):
        path = write_log(tmp_path, metadata(NEW), end=summary(session=SESSION))
        assert found(tmp_path, NEW).sealed
        number = 1 if kind == "metadata" else 2
        set_line(path, number, {kind: records(path)[number - 1][kind] | {field: value}})
        assert not found(tmp_path, NEW).sealed, field
        for which in ("last", "c0ffee", "other"):
            with pytest.raises(NotFound):
                state(tmp_path, which)
        path.unlink()


def test_a_seal_is_valid_only_for_its_run_and_project(tmp_path: Path):
    here, there = tmp_path / "here", tmp_path / "there"
    path = write_log(here, metadata(OLD), end=summary(session=SESSION))
    other = write_log(here, metadata(NEW), end=summary(session=OTHER_SESSION))
    moved = write_log(there, metadata("20260101-000000-00000a")).with_name(path.name)
    moved.write_bytes(path.read_bytes())
    assert not found(there, OLD).sealed, "another project"
    set_line(path, 2, other.read_bytes().splitlines(keepends=True)[1])
    assert not found(here, OLD).sealed, "the summary of another run"
    renamed = other.with_name("20261117-100000-00000b.jsonl")
    renamed.write_bytes(other.read_bytes().replace(NEW.encode(), b"20261117-100000-00000b"))
    assert not found(here, "20261117").sealed, "another name"
    assert found(here, NEW).sealed


def test_an_invalid_session_or_one_of_another_run_is_not_continued(tmp_path: Path):
    theirs = write_log(tmp_path, metadata(OLD), session=SESSION).read_bytes().splitlines(keepends=True)[1]
    planted = (theirs, b'{"session":{"session":"%s"}}\n' % SESSION.encode(), b'{"session":7}\n')
    for number, planted_line in enumerate(planted):
        path = write_log(tmp_path, metadata(f"20261118-10000{number}-00000a", conversation=f"c{number}"))
        path.write_bytes(path.read_bytes() + planted_line)
        assert state(tmp_path, f"c{number}").session == ""
    for number, session in enumerate(("--dangerously-skip-permissions", "../../etc", "x\ny", "")):
        write_log(tmp_path, metadata(f"20261119-10000{number}-00000a", conversation="c"), end=summary(session=session))
        assert state(tmp_path).session == ""


def test_many_planted_logs_do_not_hide_the_real_ones(tmp_path: Path):
    real = write_log(tmp_path, metadata(OLD), end=summary(session=SESSION))
    about = metadata("29990101-000000-00000a")
    fake = write_log(tmp_path, about, session=SESSION, end=summary(session=SESSION), seals=OTHER_SEALS).read_bytes()
    for number in range(1100):
        real.with_name(f"29990102-{number:06d}-00000a.jsonl").write_bytes(fake)
    assert state(tmp_path).session == SESSION


def test_the_key_is_created_once_and_private_and_an_invalid_one_is_not_trusted(tmp_path: Path):
    environ = {"TOOLCRIB_HOME": str(tmp_path / "home"), "HOME": str(tmp_path)}
    file = tmp_path / "home" / "state" / "runs.key"
    assert LogSeals.of_user(environ).key is None
    assert not file.exists(), "reading creates no key"
    made = LogSeals.made(environ)
    assert made.key is not None
    assert len(made.key) == 32
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert LogSeals.made(environ) == LogSeals.of_user(environ) == made
    assert made.key.hex() not in repr(made)
    for invalid in ("", "no key", made.key.hex()[:-2]):
        file.write_text(invalid)
        assert LogSeals.of_user(environ).key is None
        assert LogSeals.made(environ).key is None, "it is not replaced, because it may be restored"
    write_log(tmp_path, metadata(NEW), end=summary(session=SESSION), seals=LogSeals(None))
    (run,) = run_history.recorded_runs(tmp_path, LogSeals(None))
    assert (run.sealed, run.status) == (False, RunStatus.FINISHED), "without a key nothing is trusted"
    with pytest.raises(NotFound, match="not trusted"):
        run_history.conversation_state(tmp_path, "last", "claude", LogSeals(None))


def test_following_yields_existing_and_new_entries_until_the_summary(tmp_path: Path):
    log = open_log(tmp_path)
    log.event(message("before"))
    whole = line_of("event", message("in three pieces"))
    pieces = [whole[:10], whole[10:20], whole[20:] + line_of("summary", summary())]

    def append(_: float) -> None:
        with log.path.open("ab") as stream:
            stream.write(pieces.pop(0))

    first, before, event, last = run_history.follow_log(found(tmp_path), wait=append)
    assert [type(one) for one in (first, before, event, last)] == [RunMetadata, AgentEvent, AgentEvent, RunSummary]
    assert isinstance(event, AgentEvent)
    assert event.text == "in three pieces"
    assert not pieces


def test_following_ends_with_the_process_and_loses_nothing(tmp_path: Path, process: subprocess.Popen[bytes]):
    log = open_log(tmp_path, metadata(pid=process.pid, pid_began=process_started_at(process.pid)))

    def last_words(_: float) -> None:
        log.event(message("last words"))
        end(process)

    *_, last = run_history.follow_log(found(tmp_path), wait=last_words)
    assert isinstance(last, AgentEvent)
    assert last.text == "last words"


@given(content=st.binary(max_size=300) | st.text(max_size=300).map(str.encode), after=st.booleans())
def test_any_file_content_is_read_or_raises_a_toolcrib_error(tmp_path: Path, content: bytes, after: bool):
    path = tmp_path / ".toolcrib" / "runs" / f"{NEW}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    first = line_of("metadata", metadata(NEW, pid_began=NO_PROCESS))
    path.write_bytes(first + content if after else content)
    try:
        list(run_history.log_entries(found(tmp_path, NEW)))
        state(tmp_path)
    except ToolcribError as error:
        assert str(path) in error.message or "conversation" in error.message
