"""Reading logs again: cheap lists, ids, conversations, following; and nothing in a file is trusted."""

from __future__ import annotations

import json
import os
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
from toolcrib.coding_agents.process_alive import process_started_at
from toolcrib.coding_agents.run_folder import LogSeals
from toolcrib.coding_agents.run_log import RunLog
from toolcrib.coding_agents.run_result import RunMetadata, RunStatus, RunSummary
from toolcrib.errors import NotFound, ToolcribError, UsageError
from toolcrib.run_events import AgentEvent, AgentEventKind

pytestmark = pytest.mark.req("FRG-7")

OLD, NEW = "20261115-100000-00000a", "20261116-100000-00000b"
SESSION = "0b5a3c9e-6f0a-4c7c-9d1e-2f3a4b5c6d7e"


def line(path: Path, number: int, record: Any) -> None:
    """Puts another record in the place of a line; bytes as they are."""
    lines = path.read_bytes().splitlines(keepends=True)
    lines[number - 1] = record if isinstance(record, bytes) else json.dumps(record).encode() + b"\n"
    path.write_bytes(b"".join(lines))


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """Lives until its standard input is closed."""
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


def test_runs_are_listed_newest_first_with_what_became_of_them(tmp_path: Path) -> None:
    assert recorded(tmp_path) == []
    written(tmp_path, metadata(OLD), message("hi"), end=summary(status=RunStatus.TIMEOUT))
    written(tmp_path, metadata(NEW), message("hi"))
    written(tmp_path, metadata("20261114-100000-00000a", pid_began=NOBODY), message("hi"))
    listed = [(run.run_id, run.status) for run in recorded(tmp_path)]
    assert listed == [(NEW, RunStatus.RUNNING), (OLD, RunStatus.TIMEOUT), ("20261114-100000-00000a", RunStatus.KILLED)]


def test_a_run_whose_process_is_gone_was_killed_also_if_another_has_its_number(
    tmp_path: Path, process: subprocess.Popen[bytes]
) -> None:
    born = process_started_at(process.pid)
    assert born is not None
    written(tmp_path, metadata(NEW, pid=process.pid, pid_began=born))
    written(tmp_path, metadata(OLD, pid=process.pid, pid_began=born - 1))
    assert [run.status for run in recorded(tmp_path)] == [RunStatus.RUNNING, RunStatus.KILLED]
    end(process)
    assert [run.status for run in recorded(tmp_path)] == [RunStatus.KILLED, RunStatus.KILLED]


def test_a_run_is_found_by_last_by_its_id_and_by_a_beginning_that_is_its_own(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="has no recorded runs"):
        found(tmp_path)
    written(tmp_path, metadata(OLD), end=summary())
    written(tmp_path, metadata(NEW), end=summary())
    for which, run_id in (("last", NEW), (OLD, OLD), ("20261115", OLD), (NEW[:-1], NEW)):
        assert found(tmp_path, which).run_id == run_id
    with pytest.raises(UsageError, match="2 runs begin with 2026"):
        found(tmp_path, "2026")
    for nothing in ("", "2027", "../" + NEW, "/etc/passwd", "notes"):
        with pytest.raises(NotFound, match="There is no run"):
            found(tmp_path, nothing)


@pytest.mark.req("FRG-6")
def test_what_was_written_is_what_is_read(tmp_path: Path) -> None:
    events = [message(f"{number}", raw={"n": number}) for number in range(3)]
    about, over = metadata(governed=("a",)), summary(tools={"x": 1})
    written(tmp_path, about, *events, end=over)
    assert list(run_history.log_entries(found(tmp_path))) == [about, *events, over]


def test_a_list_reads_the_first_and_the_last_line_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, metadata(), *(message("x" * 1000) for _ in range(2000)), end=summary(text="y" * 200_000))
    line(path, 1000, b"nonsense\n")
    decoded: list[int] = []
    real = json.loads

    def loads(text: Any, **options: Any) -> Any:
        decoded.append(len(text))
        return real(text, **options)

    monkeypatch.setattr(json, "loads", loads)
    (run,) = recorded(tmp_path)
    assert run.summary is not None
    assert run.summary.text == "y" * 200_000
    assert len(decoded) == 2


def test_an_incomplete_last_line_is_ignored(tmp_path: Path) -> None:
    path = written(tmp_path, metadata(pid_began=NOBODY), message("one"))
    for torn in (b'{"event": {"ki', b'{"summary": {}}'):
        whole = path.read_bytes()
        path.write_bytes(whole + torn)
        run = found(tmp_path)
        assert run.status is RunStatus.KILLED
        assert len(list(run_history.log_entries(run))) == 2
        path.write_bytes(whole)


def test_a_log_that_has_no_first_line_yet_is_no_run_yet(tmp_path: Path) -> None:
    path = written(tmp_path, metadata(OLD))
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


@pytest.mark.parametrize(("number", "record", "output"), WRONG)
def test_a_mistake_in_a_log_is_reported_with_file_and_line(
    tmp_path: Path, number: int, record: Any, output: str
) -> None:
    path = written(tmp_path, metadata(NEW), message("hi"), end=summary())
    line(path, number, record)
    with pytest.raises(ToolcribError) as caught:
        list(run_history.log_entries(found(tmp_path, NEW)))
    where = "its last line" if number == 3 else f"line {number}"
    assert caught.value.message.startswith(f"{path}, {where}: this is {output}")
    assert caught.value.remedy


def test_one_bad_log_is_reported_and_the_others_are_listed(tmp_path: Path) -> None:
    written(tmp_path, metadata(OLD), end=summary())
    line(written(tmp_path, metadata(NEW), end=summary()), 1, b"nonsense\n")
    problems: list[ToolcribError] = []
    assert [run.run_id for run in run_history.recorded_runs(tmp_path, SEALS, problems.append)] == [OLD]
    assert [NEW in problem.message for problem in problems] == [True]


@pytest.mark.parametrize("kind", ["link", "folder", "fifo"])
def test_what_is_no_file_is_not_read(tmp_path: Path, kind: str) -> None:
    path = written(tmp_path, metadata(OLD), end=summary())
    planted = path.with_name(f"{NEW}.jsonl")
    {"link": lambda: planted.symlink_to(path), "folder": planted.mkdir, "fifo": lambda: os.mkfifo(planted)}[kind]()
    with pytest.raises(ToolcribError, match=NEW):
        found(tmp_path, NEW)


def test_logs_behind_a_link_are_not_the_projects(tmp_path: Path) -> None:
    other, project = tmp_path / "other", tmp_path / "project"
    other.mkdir()
    project.mkdir()
    written(other, metadata(NEW), end=summary())
    (project / ".toolcrib").symlink_to(other / ".toolcrib")
    with pytest.raises(ToolcribError, match="is a link, not a folder"):
        found(project, "last")


def test_a_conversation_continues_in_its_newest_session(tmp_path: Path) -> None:
    written(tmp_path, metadata(OLD, profile="read-only"), end=summary(session=SESSION))
    written(tmp_path, metadata(NEW, conversation="other"), end=summary(session="x"))
    later = metadata("20261117-100000-00000a", profile="developer", pid_began=NOBODY)
    written(tmp_path, later, message("killed before it said who it is"))
    current = state(tmp_path, "c0ffee")
    assert (current.conversation, current.provider, current.profile) == ("c0ffee", "claude", "developer")
    assert current.session == SESSION
    assert state(tmp_path) == current
    with pytest.raises(NotFound, match="no conversation nobody"):
        state(tmp_path, "nobody")


def test_the_last_conversation_is_that_of_the_client_who_is_to_go_on(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="There is no conversation with claude yet in"):
        state(tmp_path)
    written(tmp_path, metadata(OLD, conversation="ours"), end=summary(session=SESSION))
    written(tmp_path, metadata(NEW, conversation="theirs", provider="codex"), end=summary(session=SESSION))
    assert state(tmp_path).conversation == "ours"
    assert state(tmp_path, "last", "codex").conversation == "theirs"
    assert state(tmp_path, "theirs").provider == "codex", "for an error that says so"
    with pytest.raises(NotFound, match="There is no conversation with gemini yet in"):
        state(tmp_path, "last", "gemini")


def test_a_killed_run_continues_in_its_last_logged_session(tmp_path: Path) -> None:
    other = "1b5a3c9e-6f0a-4c7c-9d1e-2f3a4b5c6d7e"
    log = RunLog.open(tmp_path, metadata(NEW, pid_began=NOBODY), seals=SEALS)
    for session in ("", other, other, SESSION):
        log.session(session)
        log.event(message("working"))
    assert log.path.read_bytes().count(b'\n{"session":') == 2
    assert state(tmp_path).session == SESSION
    run = found(tmp_path, NEW)
    assert [type(one) for one in run_history.log_entries(run)] == [RunMetadata, *[AgentEvent] * 4]


def test_a_session_only_in_printed_output_is_not_continued(tmp_path: Path) -> None:
    reported = {"type": "system", "subtype": "init", "session_id": SESSION}
    init = AgentEvent(kind=AgentEventKind.LOG, provider="claude", raw=reported)
    written(tmp_path, metadata(NEW, pid_began=NOBODY), init)
    assert state(tmp_path).session == ""


def planted(root: Path, run_id: str, **given: Any) -> Path:
    """A log that somebody else put there, in the form that Toolcrib writes."""
    about = metadata(run_id, **given)
    return written(root, about, session=SESSION, end=summary(session=SESSION), seals=LogSeals(b"x" * 32))


@pytest.mark.parametrize("key", [None, b"x" * 32])
def test_a_planted_log_is_marked_and_does_not_influence_the_next_run(tmp_path: Path, key: bytes | None) -> None:
    written(tmp_path, metadata(OLD, profile="read-only"), end=summary(session=SESSION))
    before = state(tmp_path)
    for number, conversation in enumerate(("c0ffee", "other")):
        about = metadata(f"29990101-00000{number}-00000a", profile="developer", conversation=conversation)
        written(tmp_path, about, end=summary(session="9" + SESSION[1:]), seals=LogSeals(key))
    assert [run.sealed for run in recorded(tmp_path)] == [False, False, True]
    assert state(tmp_path) == before
    assert state(tmp_path, "c0ffee") == before
    assert before.profile == "read-only"
    with pytest.raises(NotFound, match="1 that came from elsewhere, or were changed or moved, are not trusted"):
        state(tmp_path, "other")


def test_without_a_key_nothing_is_trusted(tmp_path: Path) -> None:
    written(tmp_path, metadata(NEW), end=summary(session=SESSION), seals=LogSeals(None))
    (run,) = run_history.recorded_runs(tmp_path, LogSeals(None))
    assert (run.sealed, run.status) == (False, RunStatus.FINISHED)
    with pytest.raises(NotFound, match="not trusted"):
        run_history.conversation_state(tmp_path, "last", "claude", LogSeals(None))


def changed(path: Path, number: int, kind: str, **fields: Any) -> None:
    record = json.loads(path.read_text().splitlines()[number - 1])
    line(path, number, {kind: record[kind] | fields})


@pytest.mark.parametrize(
    ("number", "kind", "field", "value"),
    [
        (1, "metadata", "profile", "owner"),
        (1, "metadata", "conversation", "other"),
        (1, "metadata", "provider", "codex"),
        (1, "metadata", "prompt", "something else"),
        (1, "metadata", "new", "field"),
        (1, "metadata", "seal", "é"),
        (1, "metadata", "seal", None),
        (2, "summary", "session", "9" + SESSION[1:]),
        (2, "summary", "status", "failed"),
        (2, "summary", "session_usage", {"input": 7}),
    ],
)
def test_a_line_that_was_changed_is_not_trusted(tmp_path: Path, number: int, kind: str, field: str, value: Any) -> None:
    path = written(tmp_path, metadata(NEW), end=summary(session=SESSION))
    assert found(tmp_path, NEW).sealed
    changed(path, number, kind, **{field: value})
    assert not found(tmp_path, NEW).sealed
    for which in ("last", "c0ffee", "other"):
        with pytest.raises(NotFound):
            state(tmp_path, which)


def test_a_seal_holds_for_its_run_and_its_project_alone(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    path = written(here, metadata(OLD), end=summary(session=SESSION))
    other = written(here, metadata(NEW), end=summary(session="9" + SESSION[1:]))
    moved = written(there, metadata("20260101-000000-00000a")).with_name(path.name)
    moved.write_bytes(path.read_bytes())
    assert not found(there, OLD).sealed, "of another project"
    line(path, 2, other.read_bytes().splitlines(keepends=True)[1])
    assert not found(here, OLD).sealed, "the end of another run"
    renamed = other.with_name("20261117-100000-00000b.jsonl")
    renamed.write_bytes(other.read_bytes().replace(NEW.encode(), b"20261117-100000-00000b"))
    assert not found(here, "20261117").sealed, "another name"
    assert found(here, NEW).sealed


def test_a_session_line_of_another_run_or_hand_is_not_trusted(tmp_path: Path) -> None:
    theirs = written(tmp_path, metadata(OLD), session=SESSION).read_bytes().splitlines(keepends=True)[1]
    for number, planted_line in enumerate(
        (theirs, b'{"session":{"session":"%s"}}\n' % SESSION.encode(), b'{"session":7}\n')
    ):
        path = written(tmp_path, metadata(f"20261118-10000{number}-00000a", conversation=f"c{number}"))
        path.write_bytes(path.read_bytes() + planted_line)
        assert state(tmp_path, f"c{number}").session == ""


def test_many_planted_logs_do_not_hide_the_real_ones(tmp_path: Path) -> None:
    real = written(tmp_path, metadata(OLD), end=summary(session=SESSION))
    fake = planted(tmp_path, "29990101-000000-00000a").read_bytes()
    for number in range(1100):
        real.with_name(f"29990102-{number:06d}-00000a.jsonl").write_bytes(fake)
    assert state(tmp_path).session == SESSION


def test_the_key_is_made_once_for_the_person_alone_and_a_bad_one_is_not_trusted(tmp_path: Path) -> None:
    environ = {"TOOLCRIB_HOME": str(tmp_path / "home"), "HOME": str(tmp_path)}
    file = tmp_path / "home" / "state" / "runs.key"
    assert LogSeals.of_user(environ).key is None
    assert not file.exists(), "whoever only reads makes nothing"
    made = LogSeals.made(environ)
    assert made.key is not None
    assert len(made.key) == 32
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert LogSeals.made(environ) == LogSeals.of_user(environ) == made
    assert made.key.hex() not in repr(made)
    for spoilt in ("", "no key", made.key.hex()[:-2]):
        file.write_text(spoilt)
        assert LogSeals.of_user(environ).key is None
        assert LogSeals.made(environ).key is None, "one that may come back is not written over"


@pytest.mark.parametrize("session", ["--dangerously-skip-permissions", "../../etc", "x\ny", ""])
def test_a_session_that_cannot_be_one_is_not_handed_on(tmp_path: Path, session: str) -> None:
    written(tmp_path, metadata(NEW), end=summary(session=session))
    assert state(tmp_path).session == ""


def test_following_yields_existing_and_new_entries_until_the_summary(tmp_path: Path) -> None:
    log = RunLog.open(tmp_path, metadata(), seals=SEALS)
    log.event(message("before"))
    later = [lambda: log.event(message("after")), lambda: log.end(summary())]
    seen = [type(one) for one in run_history.follow_log(found(tmp_path), wait=lambda _: later.pop(0)())]
    assert seen == [RunMetadata, AgentEvent, AgentEvent, RunSummary]
    assert not later


def test_following_puts_pieces_of_a_line_together(tmp_path: Path) -> None:
    path = written(tmp_path, metadata())
    whole = json.dumps({"event": message("in three pieces").to_json()}).encode() + b"\n"
    over = json.dumps({"summary": summary().to_json()}).encode() + b"\n"
    pieces = [whole[:10], whole[10:20], whole[20:] + over]

    def more(_: float) -> None:
        with path.open("ab") as stream:
            stream.write(pieces.pop(0))

    _, event, _ = run_history.follow_log(found(tmp_path), wait=more)
    assert isinstance(event, AgentEvent)
    assert event.text == "in three pieces"


def test_following_ends_with_the_process_and_loses_nothing(tmp_path: Path, process: subprocess.Popen[bytes]) -> None:
    log = RunLog.open(tmp_path, metadata(pid=process.pid, pid_began=process_started_at(process.pid)), seals=SEALS)

    def last_words(_: float) -> None:
        log.event(message("last words"))
        end(process)

    *_, last = run_history.follow_log(found(tmp_path), wait=last_words)
    assert isinstance(last, AgentEvent)
    assert last.text == "last words"


@given(content=st.binary(max_size=300) | st.text(max_size=300).map(str.encode), after=st.booleans())
def test_any_file_content_is_read_or_raises_a_toolcrib_error(tmp_path: Path, content: bytes, after: bool) -> None:
    path = tmp_path / ".toolcrib" / "runs" / f"{NEW}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    first = json.dumps({"metadata": metadata(NEW, pid_began=NOBODY).to_json()}).encode() + b"\n"
    path.write_bytes(first + content if after else content)
    try:
        run = found(tmp_path, NEW)
        list(run_history.log_entries(run))
        state(tmp_path)
    except ToolcribError as error:
        assert str(path) in error.message or "conversation" in error.message
