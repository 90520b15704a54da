"""Tools that run commands, without a sandbox: arguments, and how output, reports and findings are read."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import itertools
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parts.finished import finished
from parts.tool_context import make_files, refused, tool_context
from toolcrib.errors import WorkspaceError
from toolcrib.workspace import text as texts
from toolcrib.workspace.folder import Folder
from toolcrib.workspace.sandbox.command import CommandEnding, SandboxResult
from toolcrib.workspace.settings.model import WorkspaceSettings
from toolcrib.workspace.text import ProgressLines, clean_text, collapse_repeats, head_and_tail, json_size
from toolcrib.workspace.tool import ToolContext
from toolcrib.workspace.tools import project_diff, pytest_report, run_tests, runner
from toolcrib.workspace.tools.lint import LINTERS, ConfiguredLinters, LinterFailed, configured_linters, read_findings
from toolcrib.workspace.tools.project_diff import GitChange, GitFileStat, diff_text
from toolcrib.workspace.tools.run_tests import PytestProgress, RunTestsArguments, plugin_source, run_tests_result
from toolcrib.workspace.tools.runner import CommandRunner, FoundPrograms, Interpreter, output_texts
from toolcrib.workspace.tools.shell import shell_argv

pytestmark = pytest.mark.req("FRG-1")

ODD = "".join(map(chr, [*range(9), *range(11, 32), 127, *range(128, 160)]))


@pytest.fixture
def context(tmp_path: Path) -> Iterator[ToolContext]:
    make_files(tmp_path, ("tests/test_a.py", "-rf", "@args", "src/test_s.py", "other/test_x.py", "other[x/a"))
    (tmp_path / "src" / "link.py").symlink_to("../other/test_x.py")
    with tool_context(tmp_path) as context:
        yield context


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    with contextlib.closing(Folder(tmp_path)) as folder:
        yield folder


def test_control_sequences_are_removed():
    cases = {
        "\x1b[1;31mred\x1b[0m": "red",
        "\x1b]0;title\x07text": "text",
        "\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\": "link",
        "\x1b(Bplain\x1b=": "plain",
        "10%\r50%\r100%\nend": "100%\nend",
        "dos\r\nlines\r\n": "dos\nlines\n",
        "a\0b\x07": "a\ufffdb\ufffd",
        "tab\tstays — ünïcode ✓": "tab\tstays — ünïcode ✓",
        "cut \x1b[": "cut ",
    }
    assert {raw: clean_text(raw) for raw in cases} == cases


@given(st.text(st.characters(codec="utf-8") | st.sampled_from("\x1b[]0;m\r\n\x07\\")), st.integers(2, 50))
def test_shown_text_has_no_control_character_and_is_cut_in_the_middle(text: str, limit: int):
    cleaned = clean_text(text)
    assert not set(cleaned) & set(ODD)
    assert clean_text(cleaned) == cleaned
    shown = head_and_tail(text, limit)
    assert shown == text if len(text) <= limit else "left out" in shown and len(shown) <= limit + 60


@given(st.lists(st.text("ab é\t", max_size=40), max_size=60), st.integers(min_value=100, max_value=2000))
def test_output_is_cut_at_line_ends_and_fits_as_json(lines: list[str], limit: int):
    printed = f"{chr(10).join(lines)}\n"
    out, _ = output_texts(finished(out=printed.encode()), limit)
    # Output below the limit is not kept as a file, so all of it is shown.
    if json_size(collapse_repeats(printed)) <= limit or len(printed.encode()) <= limit:
        assert out == collapse_repeats(printed)
        return
    assert json_size(out) <= limit + 50
    head, tail = re.split(r"\n\[… [^\n]* left out …\]\n", out)
    *above, last = head.split("\n")
    first, *below = tail.split("\n")
    whole = (*lines, "")
    assert all(line in whole or "repeated" in line for line in (*above, *below))
    # A line that fills half of the result is cut, not left out.
    assert last in whole or "repeated" in last or len(last) + 1 >= len(head) // 2
    assert first in whole or "repeated" in first or len(first) + 1 >= len(tail) // 2


def test_a_result_has_repeated_lines_once_both_ends_and_both_streams():
    flood = b"fork: retry\n" * 5000
    out, err = output_texts(finished(out=b"a\na\na\nb\n", err=b"first\n" + flood + b"last\n"), 1000)
    assert out == "a\na\na\nb\n"
    assert err == "first\nfork: retry\n[… repeated 4,999 times more …]\nlast\n"
    out, _ = output_texts(finished(out=b"".join(b"line %d\n" % number for number in range(200_000))), 1000)
    assert out.startswith("line 0\nline 1\n")
    assert out.endswith("line 199998\nline 199999\n")
    assert "[… 2.3 MB left out …]" in out
    out, err = output_texts(finished(out=b"o" * 5000, err=b"e" * 5000), 1000)
    assert 400 < out.count("o") <= 520
    assert 400 < err.count("e") <= 520
    assert output_texts(finished(out=b"o" * 900, err=b"e" * 50), 1000) == ("o" * 900, "e" * 50)


def chunks_of(raw: bytes, sizes: list[int]) -> Iterator[bytes]:
    for start, end in itertools.pairwise([0, *itertools.accumulate(sizes), len(raw)]):
        yield raw[start:end]


def progress(*chunks: bytes) -> list[str]:
    async def follow() -> list[str]:
        sent: list[str] = []
        stream = ProgressLines(sent.append)
        for chunk in chunks:
            stream.take("stdout", chunk)
            assert len(stream._open["stdout"]) <= texts.MAX_OPEN_LINE
        stream.close()
        return sent

    return asyncio.run(follow())


@given(
    st.lists(st.text(alphabet=st.characters(codec="utf-8", exclude_categories=("Cc",)), max_size=20), max_size=30),
    st.lists(st.integers(min_value=1, max_value=40), max_size=40),
)
def test_progress_consists_of_whole_lines_for_any_chunks(lines: list[str], cuts: list[int]):
    raw = "\n".join(lines).encode()
    sent = progress(*chunks_of(raw, cuts))
    # An empty end is not a line.
    assert "\n".join(sent) == "\n".join(lines[:-1] if lines and not lines[-1] else lines)


async def test_progress_is_sent_in_intervals_and_small_pieces(monkeypatch: pytest.MonkeyPatch):
    sent: list[tuple[float, str]] = []
    timers: list[tuple[float, Callable[[], None]]] = []
    now, pause = 0.0, texts.PROGRESS_PAUSE
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "time", lambda: now)
    monkeypatch.setattr(loop, "call_at", lambda when, do: timers.append((when, do)) or SimpleNamespace(cancel=None))
    stream = ProgressLines(lambda text: sent.append((now, text)))
    for now in itertools.takewhile(lambda at: at < 3.5 * pause, itertools.count(0, pause / 10)):
        stream.take("stdout", b"a line of output\n" * 200)
        stream.take("stderr", b"x" * 1000)
        for timer in [one for one in timers if one[0] <= now]:
            timers.remove(timer)
            timer[1]()
    monkeypatch.undo()
    assert [round(at / pause) for at, _ in sent] == [0, 1, 2, 3]
    assert all(len(text) <= 2 * texts.MAX_PROGRESS + 60 for _, text in sent)
    assert "lines left out" in sent[1][1]


def test_an_endless_line_is_sent_in_part_and_invalid_bytes_are_replaced():
    assert 0 < sum(map(len, progress(*[b"y" * 10_000] * 100))) <= 2 * texts.MAX_PROGRESS + 60
    assert progress(b"caf\xc3", b"\xa9 \xff\n") == ["café \ufffd"]


@given(st.lists(st.binary(max_size=30)), st.integers(min_value=0, max_value=100))
def test_the_collector_keeps_the_beginning_of_stdout_and_notes_a_cut(chunks: list[bytes], limit: int):
    collector = runner.StdoutCollector(limit)
    for chunk in chunks:
        collector.take("stdout", chunk)
        collector.take("stderr", b"other")
    whole = b"".join(chunks)
    assert (bytes(collector.stdout), collector.is_cut) == (whole[:limit], len(whole) > limit)


def test_a_command_line_is_never_an_option_of_the_shell_and_a_list_is_run_unchanged():
    shell, *rest = shell_argv("-x; echo")
    assert Path(shell).exists()
    assert rest == ["-c", "--", "-x; echo"]
    assert shell_argv(["ls", "-l", "a b", ""]) == ("ls", "-l", "a b", "")
    for command in ("", "  \n", [], [""], "a\0b", ["ls", "\0"], "\ud800", ["x"] * 5000, "x" * 200_000):
        assert refused("", shell_argv, command).remedy


def test_a_command_runs_in_the_real_path_of_a_folder_inside(context: ToolContext):
    (context.folder.root / "link").symlink_to("tests")
    (context.folder.root / "out").symlink_to("/etc")
    assert str(runner.real_folder(context.folder, "link")) == "tests"
    assert str(runner.real_folder(context.folder, ".")) == "."
    for path in ("out", "..", "/etc", "tests/test_a.py", "nowhere"):
        refused("", runner.real_folder, context.folder, path)


@pytest.mark.req("FRG-10")
def test_the_shortest_time_limit_applies(tmp_path: Path):
    with tool_context(tmp_path, session_seconds=100.0) as context:
        assert CommandRunner(context, "run_shell_safe").limit == 100.0
        assert CommandRunner(context, "run_shell_safe", 5).limit == 5
        assert CommandRunner(context, "run_shell_safe", 5000).limit == 100.0
        context.session.count_seconds(60)
        assert CommandRunner(context, "run_shell_safe").limit == 40.0
        assert CommandRunner(context, "project_diff").limit == 30.0
        for wrong in (0.0, -1.0, float("nan")):
            refused("", CommandRunner, context, "run_shell_safe", wrong)
        context.session.count_seconds(60)
        refused("", CommandRunner, context, "run_shell_safe")


def test_every_ending_has_a_text(context: ToolContext):
    for end, text in (
        (finished(code=3), "Exit code 3"),
        (finished(code=None, signal=9), "Ended by signal SIGKILL"),
        (finished(code=137, signal=9), "Exit code 137 (like signal SIGKILL)"),
        (finished(code=None, signal=250), "Ended by signal 250"),
        (finished(code=None, ending=CommandEnding.TIMEOUT), "Ended at the time limit of 120 s"),
        (finished(code=None, ending=CommandEnding.MEMORY), "Ended at the memory limit"),
    ):
        assert runner.ending_text(end, CommandRunner(context, "run_shell_safe")) == text


# run_tests


def pytest_arguments(context: ToolContext, *paths: str, **given_arguments: Any) -> tuple[str, ...]:
    return run_tests.pytest_arguments(context, RunTestsArguments(paths=[*paths], **given_arguments))


def test_a_test_is_never_an_option_of_pytest(context: ToolContext):
    nested = "src/test_s.py::TestA::test_b[a/b-../c]"
    paths = ["tests", "./tests/test_a.py::TestX::test_y[a::b]", nested, "-rf", "@args", f"{context.folder.root}/tests"]
    assert pytest_arguments(context, *paths, select="--version", marker="-x", max_failures=2, last_failed=True) == (
        "-q", "--tb=short", "--color=no", "-k=--version", "-m=-x", "--last-failed", "--maxfail=2",
        "./tests", "./tests/test_a.py::TestX::test_y[a::b]", f"./{nested}", "./-rf", "./@args", "./tests",
    )  # fmt: skip


@pytest.mark.req("FRG-9")
@pytest.mark.parametrize(
    "path",
    [
        *("../x", "/etc/passwd", "..::x", "a\0b", "nosuch.py", "tests/test_a.py::a\0", "x" * 5000),
        # A policy rule would read these as another path.
        *("other/test_x.py::/../../src/test_s.py", "other::/../src", "other/test_x.py::a::/../../src/b"),
        *("other/test_x.py::a[/../../src/b]", "other/test_x.py::a/b[c]", "other[x/../src/test_s.py"),
        *("src/link.py::test_x", "other::test_x"),
    ],
)
def test_paths_of_tests_stay_inside(context: ToolContext, path: str):
    refused("", pytest_arguments, context, "tests", path)


@pytest.mark.req("FRG-9")
@given(test=st.text(alphabet="a/.[]:", max_size=16))
def test_a_test_id_never_leads_to_another_file(context: ToolContext, test: str):
    path = f"other/test_x.py::{test}"
    with contextlib.suppress(WorkspaceError):
        pytest_arguments(context, path)
        assert os.path.normpath(path).startswith("other/test_x.py::")


@given(path=st.text(max_size=30), select=st.text(max_size=30), marker=st.text(max_size=30))
def test_a_models_text_never_becomes_a_separate_argument(context: ToolContext, path: str, select: str, marker: str):
    with contextlib.suppress(WorkspaceError):
        found = pytest_arguments(context, f"tests/test_a.py::{path}", select=select, marker=marker)
        assert len(found) == 4 + bool(select) + bool(marker)
        ours = [word for word in found if not word.startswith(("-k=", "-m=", "./"))]
        assert ours == ["-q", "--tb=short", "--color=no"]


def test_a_read_only_workspace_gets_no_pytest_cache(tmp_path: Path):
    for read_only in (True, False):
        with tool_context(tmp_path, read_only=read_only) as context:
            assert ("no:cacheprovider" in pytest_arguments(context)) is read_only


def lines_of(*rows: object) -> bytes:
    return b"".join(msgspec.json.encode(row) + b"\n" for row in rows)


def progress_of(*pieces: bytes) -> PytestProgress:
    progress = PytestProgress()
    for piece in pieces:
        progress.take(piece)
    return progress


FAILURE = {"is": "failure", "category": "failed", "id": "t.py::a", "file": "t.py", "line": 3, "message": "no"}
FAILED, PASSED = ({"is": "outcome", "category": category} for category in ("failed", "passed"))
SAMPLE = lines_of(
    {"is": "collected", "total": 2, "deselected": 1},
    {"is": "start", "id": "t.py::a"},
    FAILED,
    FAILURE,
    {"is": "finish", "id": "t.py::a"},
    {"is": "start", "id": "t.py::b"},
    PASSED,
    {"is": "finish", "id": "t.py::b"},
    {"is": "end", "code": 1, "warnings": 4},
)


@given(st.lists(st.integers(min_value=1, max_value=200)))
def test_a_report_is_read_in_any_chunks(cuts: list[int]):
    found = progress_of(*chunks_of(SAMPLE, cuts))
    assert found.counts == {"failed": 1, "passed": 1}
    assert (found.total, found.deselected, found.warnings, found.code, found.done) == (2, 1, 4, 1, 2)
    assert [one.id for one in found.failures] == ["t.py::a"]
    assert not found.running


KEYS = ("id", "category", "total", "deselected", "code", "warnings", "line", "file", "message", "trace")
HOSTILE = st.one_of(
    st.binary(),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=5,
    ).map(msgspec.json.encode),
    st.fixed_dictionaries(
        {"is": st.sampled_from(["collected", "start", "finish", "outcome", "failure", "internal", "end", "x"])},
        optional=dict.fromkeys(KEYS, st.integers() | st.text(max_size=5) | st.none()),
    ).map(lambda row: msgspec.json.encode(row, enc_hook=str)),
)


@given(st.lists(HOSTILE, max_size=10))
def test_a_hostile_report_is_ignored(pieces: list[bytes]):
    found = progress_of(*(piece + b"\n" for piece in pieces))
    before = found.counts["passed"]
    found.take(lines_of(PASSED))
    assert found.counts["passed"] == before + 1
    assert all(type(count) is int and count >= 0 for count in (found.total or 0, found.deselected, found.warnings))


def test_a_report_uses_limited_memory():
    found = progress_of(b"[" * 100_000 + b"\n", b"z" * 300_000, b"z" * 300_000 + b"\n")
    for number in range(500):
        start, outcome = {"is": "start", "id": f"t.py::{number}"}, {"is": "outcome", "category": f"odd {number}"}
        found.take(lines_of(FAILURE, start, outcome, {**FAILURE, "message": "m" * 6000}))
    kept = (len(found.failures), len(found.running), len(found.counts))
    assert kept == (run_tests.MAX_FAILURES, run_tests.MAX_RUNNING, run_tests.MAX_CATEGORIES)
    assert max(len(one.message) for one in found.failures) <= 5000
    found.take(SAMPLE)
    assert found.code == 1
    assert progress_of(lines_of({"is": "internal", "trace": "\x1b[31mwhy"})).internal == "why"


@pytest.mark.parametrize(("name", "flood"), [("MAX_EVENT_BYTES", b"x" * 2000), ("MAX_EVENTS", b"\n" * 2000)])
def test_an_endless_report_is_read_in_part(name: str, flood: bytes, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(run_tests, name, 1500)
    assert progress_of(flood + b"\n", SAMPLE).code is None


def test_the_plugin_needs_only_pytest_and_an_old_python():
    imported = set()
    for node in ast.walk(ast.parse(plugin_source(), feature_version=(3, 8))):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or "").split(".")[0])
    assert imported - {"pytest"} <= sys.stdlib_module_names
    assert len(plugin_source().encode()) < 100_000


def test_the_plugin_reports_nothing_from_a_forked_child():
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb", buffering=0) as reader, os.fdopen(writing, "wb"):
        reporter = pytest_report.Reporter(writing)
        reporter.report("start", id="mine")
        reporter.owner += 1
        reporter.report("start", id="the child's")
        assert reader.read(1000) == b'{"is": "start", "id": "mine"}\n'


@pytest.mark.parametrize(
    ("end", "row", "outcome", "ending"),
    [
        (finished(code=0), {"is": "end", "code": 0, "warnings": 0}, "passed", ""),
        (finished(code=1), {"is": "end", "code": 1, "warnings": 4}, "failed", ""),
        (finished(code=5), {"is": "end", "code": 5, "warnings": 0}, "no_tests", "No test"),
        (finished(code=4, err=b"no such option"), {"is": "end", "code": 4, "warnings": 0}, "usage_error", "use"),
        (finished(code=0), {"is": "start", "id": "t.py::x"}, "crashed", "t.py::x"),
        (finished(code=None, signal=11), {"is": "start", "id": "t.py::x"}, "crashed", "SIGSEGV"),
        (finished(code=None, ending=CommandEnding.TIMEOUT), {"is": "start", "id": "t.py::x"}, "stopped", "t.py::x"),
        (finished(code=77), {"is": "end", "code": 77, "warnings": 0}, "failed", "77"),
    ],
)
def test_the_end_of_a_run_has_an_outcome(
    context: ToolContext, end: SandboxResult, row: object, outcome: str, ending: str
):
    result = run_tests_result(end, progress_of(lines_of(row)), CommandRunner(context, "run_tests"))
    assert result.outcome == outcome
    assert ending in result.ending
    assert run_tests.run_tests_text(result, 10_000).startswith(outcome.replace("_", " ").upper())


def test_failures_share_the_output_limit(tmp_path: Path):
    rows = [lines_of(FAILED, {**FAILURE, "trace": "t" * 4000, "id": str(number)}) for number in range(100)]
    with tool_context(tmp_path, output=10_000) as context:
        result = run_tests_result(finished(code=1), progress_of(*rows), CommandRunner(context, "run_tests"))
    assert [bool(one.traceback) for one in result.failures][:4] == [True, True, False, False]
    assert len(result.failures) + result.more_failures == 100
    assert len(run_tests.run_tests_text(result, 10_000)) < 10_100
    assert len(msgspec.json.encode(result)) < 10_500


def test_a_result_has_only_what_happened_and_paths_relative_to_the_root(context: ToolContext):
    command = CommandRunner(context, "run_tests")
    trace = "t.py:3: in a\nE   assert 1 == 2\nE    + where"
    found = progress_of(
        lines_of({"is": "collected", "total": 1, "deselected": 0}, FAILED),
        lines_of({**FAILURE, "message": "assert 1 == 2\n + where", "trace": trace}, {"is": "finish", "id": "t.py::a"}),
        lines_of({"is": "end", "code": 1, "warnings": 1}),
    )
    result = run_tests_result(finished(code=1), found, command)
    assert json.loads(msgspec.json.encode(result)) == {
        "outcome": "failed",
        "failed": 1,
        "warnings": 1,
        "seconds": 1.5,
        "failures": [{"id": "t.py::a", "file": "t.py", "line": 3, "traceback": trace}],
    }
    assert run_tests.run_tests_text(result, 10_000).startswith("FAILED: 1 failed, 1 warning in 1.5 s.\n")
    files = (f"{context.folder.root}/tests/test_a.py", "/usr/lib/x.py")
    found = progress_of(*(lines_of({**FAILURE, "file": file}) for file in files))
    shown = [one.file for one in run_tests_result(finished(code=1), found, command).failures]
    assert shown == ["tests/test_a.py", "/usr/lib/x.py"]


def test_a_projects_venv_comes_first_and_a_configured_python_is_the_only_one(context: ToolContext):
    root = context.folder.root
    found = runner.interpreter_candidates(context.folder, WorkspaceSettings())
    assert found[0] == f"{root}/.venv/bin/python"
    assert found[-2:] == ("python3", sys.executable)
    configured = {
        "tools/bin/python": f"{root}/tools/bin/python",
        "/opt/python": "/opt/python",
        "python3.13": "python3.13",
    }
    for python, path in configured.items():
        assert runner.interpreter_candidates(context.folder, WorkspaceSettings(python=python)) == (path,)


def test_only_answers_about_candidates_are_accepted():
    answers = lines_of(
        {"python": "/evil", "modules": ["pytest"]},
        {"python": "b", "modules": ["pytest", "evil"]},
        {"python": "a", "modules": []},
        {"program": "rm"},
        {"program": "pytest"},
        {"program": "ruff"},
    )
    found = runner.read_answers(b"noise\n[[[\n" + answers, ("a", "b"))
    assert found == FoundPrograms(
        pythons=(Interpreter(path="a", modules=frozenset()), Interpreter(path="b", modules=frozenset({"pytest"}))),
        programs=frozenset({"ruff"}),
    )
    started = {name: found.start(name) for name in ("pytest", "ruff", "mypy")}
    assert started == {"pytest": ("b", "-m", "pytest"), "ruff": ("ruff",), "mypy": None}


@given(st.binary(), st.booleans())
def test_hostile_output_of_interpreters_linters_and_git_is_ignored(raw: bytes, after_good: bool):
    found = runner.read_answers(raw, ("a",))
    assert not found.programs - {"ruff", "mypy"}
    assert all(python.path == "a" for python in found.pythons)
    for linter, good in ((LINTERS["ruff"], RUFF), (LINTERS["mypy"], MYPY)):
        assert len(read_findings(linter, raw + b"\n" + good, 1, "/p")) >= 2
    status = project_diff.read_status(STATUS + raw if after_good else raw)
    assert len(status.changes) >= (4 if after_good else 0)
    for file in project_diff.read_numstat(raw):
        assert file.added >= 0 and file.path


# run_lint

RUFF_ONLY, MYPY_ONLY = ConfiguredLinters(names=("ruff",)), ConfiguredLinters(names=("mypy",))
BOTH = ConfiguredLinters(names=("ruff", "mypy"), mypy_has_files=True)


@pytest.mark.parametrize(
    ("files", "used"),
    [
        ({}, RUFF_ONLY),
        ({"pyproject.toml": "[tool.ruff]"}, RUFF_ONLY),
        ({"pyproject.toml": "[tool.mypy]\nstrict = true"}, MYPY_ONLY),
        ({"pyproject.toml": '[tool.mypy]\nfiles = ["a"]\n[tool.ruff.lint]'}, BOTH),
        ({"ruff.toml": ""}, RUFF_ONLY),
        ({".ruff.toml": "", "mypy.ini": "[mypy]\npackages = a"}, BOTH),
        ({"setup.cfg": "[mypy]\n"}, MYPY_ONLY),
        ({"setup.cfg": "[flake8]\n"}, RUFF_ONLY),
        ({"pyproject.toml": "not = toml = at all"}, RUFF_ONLY),
        ({"pyproject.toml": "tool = 3"}, RUFF_ONLY),
        ({"pyproject.toml": "x = " + "[" * 100_000}, RUFF_ONLY),
        ({"mypy.ini": "no section\n"}, RUFF_ONLY),
    ],
)
def test_the_projects_files_choose_its_linters(folder: Folder, files: dict[str, str], used: ConfiguredLinters):
    make_files(folder.root, files)
    assert configured_linters(folder) == used


@pytest.mark.req("FRG-9")
def test_configuration_is_not_read_through_a_link_that_leads_out(
    folder: Folder, tmp_path_factory: pytest.TempPathFactory
):
    outside = tmp_path_factory.mktemp("outside") / "pyproject.toml"
    outside.write_text("[tool.mypy]")
    (folder.root / "pyproject.toml").symlink_to(outside)
    assert configured_linters(folder).names == ("ruff",)


RUFF = (
    b'{"cell":null,"code":"F401","end_location":{"column":10,"row":1},"filename":"/root/p/a.py","fix":null,'
    b'"location":{"column":8,"row":1},"message":"`os` imported but unused","severity":"error","url":"u"}\n'
    b'{"cell":null,"code":null,"filename":"/root/p/b.py","location":{"column":7,"row":1},"message":"syntax"}\n'
)
MYPY = (
    b'{"file": "a.py", "line": 4, "column": 11, "message": "Incompatible", "code": "return-value", '
    b'"severity": "error"}\n{"file": "./b/../c.py", "line": -1, "column": -1, "message": "m", "code": null, '
    b'"severity": "note"}\n'
)


def test_findings_have_one_form_and_a_failed_linter_is_an_error():
    ruff = read_findings(LINTERS["ruff"], RUFF, 1, "/root/p")
    mypy = read_findings(LINTERS["mypy"], MYPY, 1, "/root/p")
    assert [(one.tool, one.file, one.line, one.column, one.code, one.severity) for one in ruff + mypy] == [
        ("ruff", "a.py", 1, 8, "F401", "error"),
        ("ruff", "b.py", 1, 7, "", "error"),
        ("mypy", "a.py", 4, 12, "return-value", "error"),
        ("mypy", "c.py", 0, 0, "", "note"),
    ]
    for name, linter in LINTERS.items():
        assert read_findings(linter, b"", 0, "/p") == [], name
        for output, code in ((b"usage: --output\n", 2), (b"", 1)):
            with pytest.raises(LinterFailed):
                read_findings(linter, output, code, "/p")


def test_a_path_is_never_an_option_of_a_linter():
    found = FoundPrograms(pythons=(Interpreter(path="p", modules=frozenset({"mypy"})),), programs=frozenset())
    none = ConfiguredLinters(names=())
    for linter in LINTERS.values():
        assert linter.arguments(("p", "-m", "x"), none, found, ("./-a", "./b"))[-3:] == ("--", "./-a", "./b")
    mypy = LINTERS["mypy"].arguments
    with_files = ConfiguredLinters(names=(), mypy_has_files=True)
    assert mypy(("p", "-m", "mypy"), with_files, found, ())[-1] == "--no-error-summary"
    assert "--python-executable=p" in mypy(("mypy",), none, found, ())


# project_diff


def test_only_a_single_revision_reaches_git():
    for base in ("main", "HEAD~3", "v1.2", "feature/a-b_c+d#1", "@{upstream}", "HEAD@{1}", "abc123^2", "größe"):
        assert project_diff.check_revision(base) == base
    for base in (
        *("", "-x", "--output=/tmp/x", "a..b", "a...b", "HEAD:file", ":/text", "a b", "a\nb", "a\0", "^main", "main;x"),
        *("$(x)", "`x`", "x" * 300, ".git", "a*"),
    ):
        refused("", project_diff.check_revision, base)


@given(st.text(max_size=20))
def test_a_revision_is_never_an_option_or_two_words(base: str):
    with contextlib.suppress(WorkspaceError):
        good = project_diff.check_revision(base)
        assert not good.startswith("-")
        assert not set(good) & set(" \t\n\0:;*?[\\$`'\"<>|&")
        assert ".." not in good


STATUS = (
    b"# branch.oid abc\0# branch.head main\0# branch.ab +1 -0\0"
    b"1 M. N... 100644 100644 100644 aaa bbb a b.py\0"
    b"2 R. N... 100644 100644 100644 aaa bbb R100 new name.py\0old name.py\0"
    b"1 .D N... 100644 100644 000000 aaa bbb gone.py\0"
    b"u UU N... 100644 100644 100644 100644 a b c fight.py\0"
    b"? new\n line.txt\0? dir/\0"
)


def test_gits_status_numbers_and_diff_are_read():
    status = project_diff.read_status(STATUS)
    assert (status.branch, status.has_commits) == ("main", True)
    assert status.changes == (
        GitChange(path="a b.py", staged="modified"),
        GitChange(path="new name.py", staged="renamed", was="old name.py"),
        GitChange(path="gone.py", unstaged="deleted"),
        GitChange(path="fight.py", unstaged="conflict"),
    )
    assert status.untracked == ("new\n line.txt", "dir/")
    assert not project_diff.read_status(b"# branch.oid (initial)\0# branch.head main\0").has_commits
    raw = b"1\t2\ta\tb.py\0" + b"-\t-\tx.png\0" + b"3\t0\t\0old\0new\0" + b"junk\0" + b"9" * 40 + b"\t1\tbig\0"
    assert project_diff.read_numstat(raw) == (
        GitFileStat(path="a\tb.py", added=1, deleted=2),
        GitFileStat(path="x.png", added=0, deleted=0, binary=True),
        GitFileStat(path="new", was="old", added=3, deleted=0),
        GitFileStat(path="big", added=0, deleted=1),
    )
    assert diff_text(b"+a\r\n-\x1b[31mb\0\n+caf\xc3\xa9\xff\t.\n") == "+a\n-\ufffd[31mb\ufffd\n+café\ufffd\t.\n"


def test_the_error_without_a_repository_names_one_elsewhere(tmp_path: Path):
    (tmp_path / "up" / "sub").mkdir(parents=True)
    with contextlib.closing(Folder(tmp_path / "up" / "sub")) as folder:
        refused("not a git repository", project_diff.check_repository, folder)
        (tmp_path / "up" / ".git").mkdir()
        error = refused("starts above it", project_diff.check_repository, folder)
        assert f"--root {tmp_path / 'up'}" in error.remedy
        (folder.root / ".git").write_text("gitdir: /somewhere/else/.git/worktrees/sub\n")
        project_diff.check_repository(folder)
        assert "/somewhere/else" in str(project_diff.git_failure(folder, "fatal: not a git repository"))
        (folder.root / ".git").write_bytes(b"gitdir: ../\0\xff\x1b[31m" + b"x" * 10_000)
        message = str(project_diff.git_failure(folder, "fatal"))
        assert "\x1b" not in message
        assert len(message) < 1000
