"""Reading logs again: cheap lists, ids, conversations, following; and nothing in a file is believed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parts.run_logs import NOBODY, message, metadata, summary, written
from toolcrib.coding_agents.events import AgentEvent, Kind
from toolcrib.errors import NotFound, ToolcribError, UsageError
from toolcrib.runs import shelf
from toolcrib.runs.alive import began
from toolcrib.runs.log import RunLog
from toolcrib.runs.result import Metadata, Status, Summary

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


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait(20)


@pytest.mark.req("FRG-7")
def test_runs_are_listed_newest_first_with_what_became_of_them(tmp_path: Path) -> None:
    assert list(shelf.runs(tmp_path)) == []
    written(tmp_path, metadata(OLD), message("hi"), end=summary(status=Status.TIMEOUT))
    written(tmp_path, metadata(NEW), message("hi"))
    written(tmp_path, metadata("20261114-100000-00000a", pid_began=NOBODY), message("hi"))
    found = [(run.run_id, run.status) for run in shelf.runs(tmp_path)]
    assert found == [
        (NEW, Status.RUNNING),
        (OLD, Status.TIMEOUT),
        ("20261114-100000-00000a", Status.KILLED),
    ]


@pytest.mark.req("FRG-7")
def test_a_run_whose_process_is_gone_was_killed_also_if_another_has_its_number(
    tmp_path: Path, process: subprocess.Popen[bytes]
) -> None:
    born = began(process.pid)
    assert born is not None
    written(tmp_path, metadata(NEW, pid=process.pid, pid_began=born))
    written(tmp_path, metadata(OLD, pid=process.pid, pid_began=born - 1))
    assert [run.status for run in shelf.runs(tmp_path)] == [Status.RUNNING, Status.KILLED]
    end(process)
    assert [run.status for run in shelf.runs(tmp_path)] == [Status.KILLED, Status.KILLED]


@pytest.mark.req("FRG-7")
def test_a_run_is_found_by_last_by_its_id_and_by_a_beginning_that_is_its_own(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="No runs are on record"):
        shelf.find(tmp_path, "last")
    written(tmp_path, metadata(OLD), end=summary())
    written(tmp_path, metadata(NEW), end=summary())
    for which, run_id in (("last", NEW), (OLD, OLD), ("20261115", OLD), (NEW[:-1], NEW)):
        assert shelf.find(tmp_path, which).run_id == run_id
    with pytest.raises(UsageError, match="2 runs begin with 2026"):
        shelf.find(tmp_path, "2026")
    for nothing in ("", "2027", "../" + NEW, "/etc/passwd", "notes"):
        with pytest.raises(NotFound, match="There is no run"):
            shelf.find(tmp_path, nothing)


@pytest.mark.req("FRG-7", "FRG-6")
def test_what_was_written_is_what_is_read(tmp_path: Path) -> None:
    events = [message(f"{number}", raw={"n": number}) for number in range(3)]
    about, over = metadata(governed=("a",)), summary(tools={"x": 1})
    written(tmp_path, about, *events, end=over)
    assert list(shelf.entries(shelf.find(tmp_path, "last"))) == [about, *events, over]


@pytest.mark.req("FRG-7")
def test_a_list_reads_the_first_and_the_last_line_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, metadata(), *(message("x" * 1000) for _ in range(2000)), end=summary(text="y" * 200_000))
    line(path, 1000, b"nonsense\n")
    decoded: list[int] = []
    real = json.loads

    def loads(text: Any, **options: Any) -> Any:
        decoded.append(len(text))
        return real(text, **options)

    monkeypatch.setattr(json, "loads", loads)
    (run,) = shelf.runs(tmp_path)
    assert run.summary is not None
    assert run.summary.text == "y" * 200_000
    assert len(decoded) == 2


@pytest.mark.req("FRG-7")
def test_half_a_line_at_the_end_is_none(tmp_path: Path) -> None:
    path = written(tmp_path, metadata(pid_began=NOBODY), message("one"))
    for torn in (b'{"event": {"ki', b'{"summary": {}}'):
        whole = path.read_bytes()
        path.write_bytes(whole + torn)
        run = shelf.find(tmp_path, "last")
        assert run.status is Status.KILLED
        assert len(list(shelf.entries(run))) == 2
        path.write_bytes(whole)


@pytest.mark.req("FRG-7")
def test_a_log_that_has_no_first_line_yet_is_no_run_yet(tmp_path: Path) -> None:
    path = written(tmp_path, metadata(OLD))
    path.with_name(f"{NEW}.jsonl").touch()
    assert [run.run_id for run in shelf.runs(tmp_path)] == [OLD]
    assert shelf.find(tmp_path, "last").run_id == OLD
    with pytest.raises(NotFound, match="holds no line yet"):
        shelf.find(tmp_path, NEW)


WRONG: list[tuple[int, Any, str]] = [
    (1, b"\xff\xfe\n", "no JSON"),
    (1, b"[" * 100_000 + b"]" * 100_000 + b"\n", "nested too deeply"),
    (1, b"1" * 5000 + b"\n", "no JSON"),
    (1, ["metadata"], "neither metadata nor an event nor a summary"),
    (1, {"metadata": {}, "event": {}}, "neither metadata nor an event nor a summary"),
    (1, {"metadata": {"run_id": 5}}, "no metadata"),
    (1, {"metadata": metadata(NEW).to_json() | {"run_id": OLD}}, "not the metadata of this run"),
    (1, {"metadata": metadata(NEW).to_json() | {"pid": "1"}}, "no metadata"),
    (1, {"event": {"kind": "log", "provider": "x"}}, "not the metadata of this run"),
    (2, {"event": {"kind": "dance", "provider": "x"}}, "no event"),
    (2, {"event": {"kind": "tool", "provider": "x", "tool_args": []}}, "no event"),
    (2, {"event": {"kind": "tool", "provider": "x", "time": float("nan")}}, "no JSON"),
    (2, {"event": None}, "no event"),
    (3, {"summary": {"status": "fine"}}, "no summary"),
    (3, {"summary": summary().to_json() | {"tools": {"x": "y"}}}, "no summary"),
]


@pytest.mark.req("FRG-7")
@pytest.mark.parametrize(("number", "record", "said"), WRONG)
def test_what_is_wrong_with_a_log_is_told_with_file_and_line(
    tmp_path: Path, number: int, record: Any, said: str
) -> None:
    path = written(tmp_path, metadata(NEW), message("hi"), end=summary())
    line(path, number, record)
    with pytest.raises(ToolcribError) as caught:
        list(shelf.entries(shelf.find(tmp_path, NEW)))
    where = "its last line" if number == 3 else f"line {number}"
    assert caught.value.message.startswith(f"{path}, {where}: this is {said}")
    assert caught.value.remedy


@pytest.mark.req("FRG-7")
def test_one_bad_log_is_told_and_the_others_are_listed(tmp_path: Path) -> None:
    written(tmp_path, metadata(OLD), end=summary())
    line(written(tmp_path, metadata(NEW), end=summary()), 1, b"nonsense\n")
    problems: list[ToolcribError] = []
    assert [run.run_id for run in shelf.runs(tmp_path, problems.append)] == [OLD]
    assert [NEW in problem.message for problem in problems] == [True]


@pytest.mark.req("FRG-7")
@pytest.mark.parametrize("kind", ["link", "folder", "fifo"])
def test_what_is_no_file_is_not_read(tmp_path: Path, kind: str) -> None:
    path = written(tmp_path, metadata(OLD), end=summary())
    planted = path.with_name(f"{NEW}.jsonl")
    {"link": lambda: planted.symlink_to(path), "folder": planted.mkdir, "fifo": lambda: os.mkfifo(planted)}[kind]()
    with pytest.raises(ToolcribError, match=NEW):
        shelf.find(tmp_path, NEW)


@pytest.mark.req("FRG-7")
def test_logs_behind_a_link_are_not_the_projects(tmp_path: Path) -> None:
    other, project = tmp_path / "other", tmp_path / "project"
    other.mkdir()
    project.mkdir()
    written(other, metadata(NEW), end=summary())
    (project / ".toolcrib").symlink_to(other / ".toolcrib")
    with pytest.raises(ToolcribError, match="is a link, not a folder"):
        shelf.find(project, "last")


@pytest.mark.req("FRG-7")
def test_a_conversation_goes_on_where_its_newest_run_left_a_session(tmp_path: Path) -> None:
    written(tmp_path, metadata(OLD, profile="read-only"), end=summary(session=SESSION))
    written(tmp_path, metadata(NEW, conversation="other"), end=summary(session="x"))
    later = metadata("20261117-100000-00000a", profile="developer", pid_began=NOBODY)
    written(tmp_path, later, message("killed before it said who it is"))
    found = shelf.latest_of(tmp_path, "c0ffee")
    assert (found.conversation, found.provider, found.profile) == ("c0ffee", "claude", "developer")
    assert found.session == SESSION
    assert shelf.latest_of(tmp_path, "last") == found
    with pytest.raises(NotFound, match="no conversation nobody"):
        shelf.latest_of(tmp_path, "nobody")


@pytest.mark.req("FRG-7")
def test_a_killed_run_goes_on_in_the_session_that_the_program_told(tmp_path: Path) -> None:
    told = {"type": "system", "subtype": "init", "session_id": SESSION}
    init = AgentEvent(kind=Kind.LOG, provider="claude", raw=told)
    written(tmp_path, metadata(NEW, pid_began=NOBODY), init, message("working"))
    assert shelf.latest_of(tmp_path, "last").session == SESSION


@pytest.mark.req("FRG-7")
@pytest.mark.parametrize("planted", ["--dangerously-skip-permissions", "../../etc", "x\ny", ""])
def test_a_session_that_cannot_be_one_is_not_handed_on(tmp_path: Path, planted: str) -> None:
    written(tmp_path, metadata(NEW), end=summary(session=planted))
    assert shelf.latest_of(tmp_path, "last").session == ""


@pytest.mark.req("FRG-7")
def test_following_gives_what_is_there_and_what_comes_until_the_summary(tmp_path: Path) -> None:
    log = RunLog.open(tmp_path, metadata())
    log.event(message("before"))
    later = [lambda: log.event(message("after")), lambda: log.end(summary())]
    seen = [type(one) for one in shelf.follow(shelf.find(tmp_path, "last"), wait=lambda _: later.pop(0)())]
    assert seen == [Metadata, AgentEvent, AgentEvent, Summary]
    assert not later


@pytest.mark.req("FRG-7")
def test_following_puts_pieces_of_a_line_together(tmp_path: Path) -> None:
    path = written(tmp_path, metadata())
    whole = json.dumps({"event": message("in three pieces").to_json()}).encode() + b"\n"
    over = json.dumps({"summary": summary().to_json()}).encode() + b"\n"
    pieces = [whole[:10], whole[10:20], whole[20:] + over]

    def more(_: float) -> None:
        with path.open("ab") as stream:
            stream.write(pieces.pop(0))

    _, event, _ = shelf.follow(shelf.find(tmp_path, "last"), wait=more)
    assert isinstance(event, AgentEvent)
    assert event.text == "in three pieces"


@pytest.mark.req("FRG-7")
def test_following_ends_with_the_process_and_loses_nothing(tmp_path: Path, process: subprocess.Popen[bytes]) -> None:
    log = RunLog.open(tmp_path, metadata(pid=process.pid, pid_began=began(process.pid)))

    def last_words(_: float) -> None:
        log.event(message("last words"))
        end(process)

    *_, last = shelf.follow(shelf.find(tmp_path, "last"), wait=last_words)
    assert isinstance(last, AgentEvent)
    assert last.text == "last words"


@pytest.mark.req("FRG-7")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=300) | st.text(max_size=300).map(str.encode), after=st.booleans())
def test_whatever_a_file_holds_there_is_an_answer_or_an_error_of_ours(
    tmp_path: Path, content: bytes, after: bool
) -> None:
    path = tmp_path / ".toolcrib" / "runs" / f"{NEW}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    first = json.dumps({"metadata": metadata(NEW, pid_began=NOBODY).to_json()}).encode() + b"\n"
    path.write_bytes(first + content if after else content)
    try:
        run = shelf.find(tmp_path, NEW)
        list(shelf.entries(run))
        shelf.latest_of(tmp_path, "last")
    except ToolcribError as error:
        assert str(path) in error.message or "conversation" in error.message
