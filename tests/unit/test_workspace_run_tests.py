"""run_tests without a sandbox: pytest's arguments, its reports, and which Python."""

from __future__ import annotations

import ast
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parts.finished import finished
from parts.scenes import scene_in
from toolcrib.errors import WorkspaceError
from toolcrib.workspace.sandbox.command import CommandEnding, SandboxResult
from toolcrib.workspace.settings.model import WorkspaceSettings
from toolcrib.workspace.tool import ToolContext
from toolcrib.workspace.tools import pytest_report, run_tests
from toolcrib.workspace.tools.run_tests import (
    MAX_CATEGORIES,
    MAX_FAILURES,
    MAX_RUNNING,
    PytestProgress,
    RunTestsArguments,
    plugin_source,
    pytest_arguments,
    run_tests_result,
    run_tests_text,
)
from toolcrib.workspace.tools.runner import (
    CommandRunner,
    FoundPrograms,
    Interpreter,
    interpreter_candidates,
    read_answers,
)

pytestmark = pytest.mark.req("FRG-1")


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[ToolContext]:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_a.py").write_text("")
    (tmp_path / "-rf").write_text("")
    (tmp_path / "@args").write_text("")
    with scene_in(tmp_path) as scene:
        yield scene


# pytest's arguments


def test_tests_are_named_so_that_none_is_an_option(scene: ToolContext) -> None:
    given_paths = ["tests", "./tests/test_a.py::TestX::test_y[a::b]", "-rf", "@args", str(scene.folder.root / "tests")]
    said = pytest_arguments(
        scene,
        RunTestsArguments(paths=given_paths, select="--version", marker="-x", max_failures=2, last_failed=True),
    )
    assert said == (
        "-q", "--tb=short", "--color=no", "-k=--version", "-m=-x", "--last-failed", "--maxfail=2",
        "./tests", "./tests/test_a.py::TestX::test_y[a::b]", "./-rf", "./@args", "./tests",
    )  # fmt: skip


@pytest.mark.req("FRG-9")
@pytest.mark.parametrize(
    "path", ["../x", "/etc/passwd", "..::x", "a\0b", "nosuch.py", "tests/test_a.py::a\0", "x" * 5000]
)
def test_paths_of_tests_stay_inside(scene: ToolContext, path: str) -> None:
    with pytest.raises(WorkspaceError):
        pytest_arguments(scene, RunTestsArguments(paths=["tests", path]))


def test_a_folder_that_cannot_be_written_gets_no_cache(tmp_path: Path) -> None:
    for read_only in (True, False):
        with scene_in(tmp_path, read_only=read_only) as scene:
            assert ("no:cacheprovider" in pytest_arguments(scene, RunTestsArguments())) is read_only


@pytest.fixture
def judged(tmp_path: Path) -> Iterator[ToolContext]:
    for name in ("src/test_s.py", "other/test_x.py", "other[x/a"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "src" / "link.py").symlink_to("../other/test_x.py")
    with scene_in(tmp_path) as scene:
        yield scene


@pytest.mark.req("FRG-9")
@pytest.mark.parametrize(
    "path",
    [
        "other/test_x.py::/../../src/test_s.py",
        "other::/../src",
        "other/test_x.py::a::/../../src/b",
        "other/test_x.py::a[/../../src/b]",
        "other/test_x.py::a/b[c]",
        "other[x/../src/test_s.py",
        "src/link.py::test_x",
        "other::test_x",
    ],
)
def test_no_test_is_named_so_that_a_rule_takes_it_for_another_place(judged: ToolContext, path: str) -> None:
    with pytest.raises(WorkspaceError):
        pytest_arguments(judged, RunTestsArguments(paths=[path]))


@pytest.mark.req("FRG-9")
@given(test=st.text(alphabet="a/.[]:", max_size=16))
def test_whatever_stands_behind_a_file_a_path_stays_in_its_folder(judged: ToolContext, test: str) -> None:
    path = f"other/test_x.py::{test}"
    try:
        pytest_arguments(judged, RunTestsArguments(paths=[path]))
    except WorkspaceError:
        return
    assert os.path.normpath(path).startswith("other/test_x.py::")


def test_parameters_of_a_test_may_hold_a_path(judged: ToolContext) -> None:
    path = "src/test_s.py::TestA::test_b[a/b-../c]"
    assert pytest_arguments(judged, RunTestsArguments(paths=[path]))[-1] == f"./{path}"


@given(path=st.text(max_size=30), select=st.text(max_size=30), marker=st.text(max_size=30))
def test_no_text_of_a_model_becomes_a_word_of_its_own(scene: ToolContext, path: str, select: str, marker: str) -> None:
    try:
        said = pytest_arguments(
            scene, RunTestsArguments(paths=[f"tests/test_a.py::{path}"], select=select, marker=marker)
        )
    except WorkspaceError:
        return
    ours = 3 + bool(select) + bool(marker)
    assert len(said) == ours + 1
    assert [word for word in said if not word.startswith(("-k=", "-m=", "./"))] == ["-q", "--tb=short", "--color=no"]


# pytest's reports


def lines_of(*rows: object) -> bytes:
    return b"".join(msgspec.json.encode(row) + b"\n" for row in rows)


FAILURE = {"is": "failure", "category": "failed", "id": "t.py::a", "file": "t.py", "line": 3, "message": "no"}
SAMPLE = lines_of(
    {"is": "collected", "total": 2, "deselected": 1},
    {"is": "start", "id": "t.py::a"},
    {"is": "outcome", "category": "failed"},
    FAILURE,
    {"is": "finish", "id": "t.py::a"},
    {"is": "start", "id": "t.py::b"},
    {"is": "outcome", "category": "passed"},
    {"is": "finish", "id": "t.py::b"},
    {"is": "end", "code": 1, "warnings": 4},
)


def state_of(tally: PytestProgress) -> tuple[object, ...]:
    return (
        dict(tally.counts), [msgspec.structs.asdict(one) for one in tally.failures], dict(tally.running),
        tally.total, tally.deselected, tally.warnings, tally.code, tally.done,
    )  # fmt: skip


@given(st.lists(st.integers(min_value=1, max_value=200)))
def test_a_report_is_read_however_its_bytes_come(cuts: list[int]) -> None:
    tally, rest = PytestProgress(), SAMPLE
    for size in cuts:
        tally.take(rest[:size])
        rest = rest[size:]
    tally.take(rest)
    assert tally.counts == {"failed": 1, "passed": 1}
    assert (tally.total, tally.deselected, tally.warnings, tally.code, tally.done) == (2, 1, 4, 1, 2)
    assert [one.id for one in tally.failures] == ["t.py::a"]
    assert not tally.running


HOSTILE = st.one_of(
    st.binary(),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=5,
    ).map(lambda value: msgspec.json.encode(value) if not isinstance(value, bytes) else value),
    st.fixed_dictionaries(
        {"is": st.sampled_from(["collected", "start", "finish", "outcome", "failure", "internal", "end", "x"])},
        optional={
            name: st.integers() | st.text(max_size=5) | st.none()
            for name in (
                "id",
                "category",
                "total",
                "deselected",
                "code",
                "warnings",
                "line",
                "file",
                "message",
                "trace",
            )
        },
    ).map(lambda row: msgspec.json.encode(row, enc_hook=str)),
)


@given(st.lists(HOSTILE, max_size=10))
def test_a_hostile_report_is_passed_over(pieces: list[bytes]) -> None:
    tally = PytestProgress()
    for piece in pieces:
        tally.take(piece + b"\n")
    before = tally.counts["passed"]
    tally.take(lines_of({"is": "outcome", "category": "passed"}))
    assert tally.counts["passed"] == before + 1
    assert all(type(count) is int and count >= 0 for count in (tally.total or 0, tally.deselected, tally.warnings))


def test_what_is_kept_of_a_report_is_bounded() -> None:
    tally = PytestProgress()
    tally.take(b"[" * 100_000 + b"\n")
    tally.take(b"z" * 300_000)
    tally.take(b"z" * 300_000 + b"\n")
    for number in range(500):
        tally.take(
            lines_of(
                FAILURE,
                {"is": "start", "id": f"t.py::{number}"},
                {"is": "outcome", "category": f"odd {number}"},
                {"is": "failure", **FAILURE, "message": "m" * 6000},
            )
        )
    assert len(tally.failures) == MAX_FAILURES
    assert len(tally.running) == MAX_RUNNING
    assert len(tally.counts) == MAX_CATEGORIES
    assert max(len(one.message) for one in tally.failures) <= 5000
    tally.take(SAMPLE)
    assert tally.code == 1


@pytest.mark.parametrize(("name", "flood"), [("MAX_EVENT_BYTES", b"x" * 2000), ("MAX_EVENTS", b"\n" * 2000)])
def test_a_report_without_end_is_not_read_for_ever(name: str, flood: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_tests, name, 1500)
    tally = PytestProgress()
    tally.take(flood + b"\n")
    tally.take(SAMPLE)
    assert tally.code is None


def test_the_plugin_needs_nothing_of_ours_and_an_old_python() -> None:
    tree = ast.parse(plugin_source(), feature_version=(3, 8))
    imported = {
        name.split(".")[0]
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert imported - {"pytest"} <= sys.stdlib_module_names
    assert len(plugin_source().encode()) < 100_000


def test_the_plugin_tells_nothing_from_a_forked_child() -> None:
    reading, writing = os.pipe()
    try:
        reporter = pytest_report.Reporter(writing)
        reporter.report("start", id="mine")
        reporter.owner += 1
        reporter.report("start", id="the child's")
        assert os.read(reading, 1000) == b'{"is": "start", "id": "mine"}\n'
    finally:
        os.close(reading)
        os.close(writing)


@pytest.mark.parametrize(
    ("how", "said", "outcome", "says"),
    [
        (finished(code=0), lines_of({"is": "end", "code": 0, "warnings": 0}), "passed", ""),
        (finished(code=1), SAMPLE, "failed", ""),
        (finished(code=5), lines_of({"is": "end", "code": 5, "warnings": 0}), "no_tests", "No test"),
        (
            finished(code=4, err=b"no such option"),
            lines_of({"is": "end", "code": 4, "warnings": 0}),
            "usage_error",
            "use",
        ),
        (finished(code=0), lines_of({"is": "start", "id": "t.py::x"}), "crashed", "t.py::x"),
        (finished(code=None, signal=11), lines_of({"is": "start", "id": "t.py::x"}), "crashed", "SIGSEGV"),
        (
            finished(code=None, ending=CommandEnding.TIMEOUT),
            lines_of({"is": "start", "id": "t.py::x"}),
            "stopped",
            "t.py::x",
        ),
        (finished(code=77), lines_of({"is": "end", "code": 77, "warnings": 0}), "failed", "77"),
    ],
)
def test_the_end_of_a_run_is_told_as_what_it_was(
    scene: ToolContext, how: SandboxResult, said: bytes, outcome: str, says: str
) -> None:
    tally = PytestProgress()
    tally.take(said)
    ran = run_tests_result(how, tally, CommandRunner(scene, "run_tests"))
    assert (ran.outcome, says in ran.ending) == (outcome, True)
    assert run_tests_text(ran, 10_000).startswith(outcome.replace("_", " ").upper())


def test_failures_share_the_room_of_a_result(tmp_path: Path) -> None:
    tally = PytestProgress()
    one = {**FAILURE, "trace": "t" * 4000}
    for number in range(100):
        tally.take(lines_of({"is": "outcome", "category": "failed"}, {**one, "id": str(number)}))
    with scene_in(tmp_path, output=10_000) as scene:
        ran = run_tests_result(finished(code=1), tally, CommandRunner(scene, "run_tests"))
    assert [bool(one.traceback) for one in ran.failures][:4] == [True, True, False, False]
    assert len(ran.failures) + ran.more_failures == 100
    assert len(run_tests_text(ran, 10_000)) < 10_100
    assert len(msgspec.json.encode(ran)) < 10_500


def test_of_a_run_only_what_happened_is_told(scene: ToolContext) -> None:
    tally = PytestProgress()
    tally.take(
        lines_of(
            {"is": "collected", "total": 1, "deselected": 0},
            {"is": "outcome", "category": "failed"},
            {**FAILURE, "message": "assert 1 == 2\n + where", "trace": "t.py:3: in a\nE   assert 1 == 2\nE    + where"},
            {"is": "finish", "id": "t.py::a"},
            {"is": "end", "code": 1, "warnings": 1},
        )
    )
    ran = run_tests_result(finished(code=1), tally, CommandRunner(scene, "run_tests"))
    assert json.loads(msgspec.json.encode(ran)) == {
        "outcome": "failed",
        "failed": 1,
        "warnings": 1,
        "seconds": 1.5,
        "failures": [
            {
                "id": "t.py::a",
                "file": "t.py",
                "line": 3,
                "traceback": "t.py:3: in a\nE   assert 1 == 2\nE    + where",
            }
        ],
    }
    assert run_tests_text(ran, 10_000).startswith("FAILED: 1 failed, 1 warning in 1.5 s.\n")


def test_files_of_failures_are_named_from_the_root(scene: ToolContext) -> None:
    tally = PytestProgress()
    tally.take(
        lines_of({**FAILURE, "file": f"{scene.folder.root}/tests/test_a.py"}, {**FAILURE, "file": "/usr/lib/x.py"})
    )
    ran = run_tests_result(finished(code=1), tally, CommandRunner(scene, "run_tests"))
    assert [one.file for one in ran.failures] == ["tests/test_a.py", "/usr/lib/x.py"]


# Which Python


def test_a_venv_of_the_project_comes_first_and_a_named_python_is_the_only_one(scene: ToolContext) -> None:
    found = interpreter_candidates(scene.folder, WorkspaceSettings())
    assert found[0] == f"{scene.folder.root}/.venv/bin/python"
    assert found[-2:] == ("python3", sys.executable)
    assert interpreter_candidates(scene.folder, WorkspaceSettings(python="tools/bin/python")) == (
        f"{scene.folder.root}/tools/bin/python",
    )
    assert interpreter_candidates(scene.folder, WorkspaceSettings(python="/opt/python")) == ("/opt/python",)
    assert interpreter_candidates(scene.folder, WorkspaceSettings(python="python3.13")) == ("python3.13",)


def test_only_candidates_are_believed() -> None:
    said = lines_of(
        {"python": "/evil", "modules": ["pytest"]},
        {"python": "b", "modules": ["pytest", "evil"]},
        {"python": "a", "modules": []},
        {"program": "rm"},
        {"program": "pytest"},
        {"program": "ruff"},
    )
    found = read_answers(b"noise\n[[[\n" + said, ("a", "b"))
    assert found == FoundPrograms(
        pythons=(
            Interpreter(path="a", modules=frozenset()),
            Interpreter(path="b", modules=frozenset({"pytest"})),
        ),
        programs=frozenset({"ruff"}),
    )
    assert found.start("pytest") == ("b", "-m", "pytest")
    assert found.start("ruff") == ("ruff",)
    assert found.start("mypy") is None


@given(st.binary())
def test_hostile_answers_of_interpreters_are_passed_over(said: bytes) -> None:
    found = read_answers(said, ("a",))
    assert not found.programs - {"ruff", "mypy"}
    assert all(python.path == "a" for python in found.pythons)
