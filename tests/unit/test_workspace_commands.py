"""The workspace's commands without a sandbox: what is started, and how what is printed reaches a model."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parts.finished import finished
from parts.scenes import scene_in
from toolcrib.errors import WorkspaceError
from toolcrib.workspace.sandbox.command import CommandEnding, SandboxResult
from toolcrib.workspace.text import (
    MAX_OPEN_LINE,
    MAX_PROGRESS,
    PROGRESS_PAUSE,
    ProgressLines,
    clean_text,
    collapse_repeats,
    head_and_tail,
    json_size,
)
from toolcrib.workspace.tool import ToolContext
from toolcrib.workspace.tools.runner import CommandRunner, StdoutCollector, ending_text, output_texts, real_folder
from toolcrib.workspace.tools.shell import shell_argv

pytestmark = pytest.mark.req("FRG-1")

ODD = "".join(map(chr, [*range(9), *range(11, 32), 127, *range(128, 160)]))


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[ToolContext]:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_a.py").write_text("")
    (tmp_path / "-rf").write_text("")
    (tmp_path / "@args").write_text("")
    with scene_in(tmp_path) as scene:
        yield scene


# What is printed


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b(Bplain\x1b=", "plain"),
        ("10%\r50%\r100%\nend", "100%\nend"),
        ("dos\r\nlines\r\n", "dos\nlines\n"),
        ("a\0b\x07", "a\ufffdb\ufffd"),
        ("tab\tstays — ünïcode ✓", "tab\tstays — ünïcode ✓"),
        ("cut \x1b[", "cut "),
    ],
)
def test_control_sequences_do_not_reach_a_model(raw: str, shown: str) -> None:
    assert clean_text(raw) == shown


@given(st.text(alphabet=st.characters(codec="utf-8") | st.sampled_from("\x1b[]0;m\r\n\x07\\")))
def test_cleaned_text_has_no_control_character(text: str) -> None:
    shown = clean_text(text)
    assert not set(shown) & set(ODD)
    assert clean_text(shown) == shown


@given(st.text(), st.integers(min_value=2, max_value=50))
def test_a_text_is_cut_in_the_middle_and_says_so(text: str, limit: int) -> None:
    shown = head_and_tail(text, limit)
    if len(text) <= limit:
        assert shown == text
    else:
        assert "left out" in shown
        assert len(shown) <= limit + 60


@given(st.lists(st.text("ab é\t", max_size=40), max_size=60), st.integers(min_value=100, max_value=2000))
def test_output_is_cut_at_the_ends_of_lines_and_fits_as_json(lines: list[str], limit: int) -> None:
    told = f"{chr(10).join(lines)}\n"
    out, _ = output_texts(finished(out=told.encode()), limit)
    # What is shorter than the limit is not kept as a file, and so is shown whole.
    if json_size(collapse_repeats(told)) <= limit or len(told.encode()) <= limit:
        assert out == collapse_repeats(told)
        return
    assert json_size(out) <= limit + 50
    head, tail = re.split(r"\n\[… [^\n]* left out …\]\n", out)
    *above, last = head.split("\n")
    first, *below = tail.split("\n")
    whole = (*lines, "")
    assert all(line in whole or "repeated" in line for line in (*above, *below))
    # A line that makes up half of what is shown is cut rather than left out.
    assert last in whole or "repeated" in last or len(last) + 1 >= len(head) // 2
    assert first in whole or "repeated" in first or len(first) + 1 >= len(tail) // 2


def test_a_line_that_comes_again_and_again_is_told_once() -> None:
    flood = b"fork: retry\n" * 5000
    out, err = output_texts(finished(out=b"a\na\na\nb\n", err=b"first\n" + flood + b"last\n"), 1000)
    assert out == "a\na\na\nb\n"
    assert err == "first\nfork: retry\n[… repeated 4,999 times more …]\nlast\n"


def test_of_very_much_output_the_beginning_and_the_end_are_told() -> None:
    raw = b"".join(b"line %d\n" % number for number in range(200_000))
    out, _ = output_texts(finished(out=raw), 1000)
    assert out.startswith("line 0\nline 1\n")
    assert out.endswith("line 199998\nline 199999\n")
    assert "[… 2.3 MB left out …]" in out


def test_both_streams_share_the_room_and_neither_starves() -> None:
    out, err = output_texts(finished(out=b"o" * 5000, err=b"e" * 5000), 1000)
    assert 400 < out.count("o") <= 520
    assert 400 < err.count("e") <= 520
    out, err = output_texts(finished(out=b"o" * 900, err=b"e" * 50), 1000)
    assert (out, err) == ("o" * 900, "e" * 50)


@given(
    st.lists(st.text(alphabet=st.characters(codec="utf-8", exclude_categories=("Cc",)), max_size=20), max_size=30),
    st.lists(st.integers(min_value=1, max_value=40), max_size=40),
)
def test_lines_are_told_whole_however_the_bytes_come(lines: list[str], cuts: list[int]) -> None:
    raw = "\n".join(lines).encode()

    async def follow() -> list[str]:
        heard: list[str] = []
        stream = ProgressLines(heard.append)
        rest = raw
        for size in (*cuts, len(raw)):
            stream.take("stdout", rest[:size])
            rest = rest[size:]
        stream.take("stdout", rest)
        stream.close()
        return heard

    heard = asyncio.run(follow())
    # An empty end is no line.
    expected = lines[:-1] if lines and not lines[-1] else lines
    assert "\n".join(heard) == "\n".join(expected)


async def test_progress_is_told_seldom_and_in_small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[tuple[float, str]] = []
    timers: list[tuple[float, Callable[[], None]]] = []
    now = 0.0
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "time", lambda: now)
    monkeypatch.setattr(loop, "call_at", lambda when, do: timers.append((when, do)) or SimpleNamespace(cancel=None))
    stream = ProgressLines(lambda text: heard.append((now, text)))
    for now in itertools.takewhile(lambda at: at < 3.5 * PROGRESS_PAUSE, itertools.count(0, PROGRESS_PAUSE / 10)):
        stream.take("stdout", b"a line of output\n" * 200)
        stream.take("stderr", b"x" * 1000)
        for timer in [one for one in timers if one[0] <= now]:
            timers.remove(timer)
            timer[1]()
    monkeypatch.undo()
    assert [round(at / PROGRESS_PAUSE) for at, _ in heard] == [0, 1, 2, 3]
    assert all(len(text) <= 2 * MAX_PROGRESS + 60 for _, text in heard)
    assert "lines left out" in heard[1][1]


async def test_a_line_without_end_is_told_and_not_kept_for_ever() -> None:
    heard: list[str] = []
    stream = ProgressLines(heard.append)
    for _ in range(100):
        stream.take("stdout", b"y" * 10_000)
    assert len(stream._open["stdout"]) <= MAX_OPEN_LINE
    stream.close()
    assert 0 < sum(map(len, heard)) <= 2 * MAX_PROGRESS + 60


async def test_bytes_that_are_no_text_are_replaced() -> None:
    heard: list[str] = []
    stream = ProgressLines(heard.append)
    stream.take("stdout", b"caf\xc3")
    stream.take("stdout", b"\xa9 \xff\n")
    stream.close()
    assert heard == ["café \ufffd"]


@given(st.lists(st.binary(max_size=30)), st.integers(min_value=0, max_value=100))
def test_what_is_gathered_is_the_beginning_and_knows_whether_it_is_all(chunks: list[bytes], limit: int) -> None:
    gathered = StdoutCollector(limit)
    for chunk in chunks:
        gathered.take("stdout", chunk)
        gathered.take("stderr", b"other")
    whole = b"".join(chunks)
    assert bytes(gathered.stdout) == whole[:limit]
    assert gathered.is_cut == (len(whole) > limit)


# What is started


def test_a_line_goes_to_a_shell_that_cannot_take_it_for_options() -> None:
    shell, *rest = shell_argv("-x; echo")
    assert Path(shell).exists()
    assert rest == ["-c", "--", "-x; echo"]


def test_a_list_is_run_as_it_is() -> None:
    assert shell_argv(["ls", "-l", "a b", ""]) == ("ls", "-l", "a b", "")


@pytest.mark.parametrize("command", ["", "  \n", [], [""], "a\0b", ["ls", "\0"], "\ud800", ["x"] * 5000, "x" * 200_000])
def test_what_cannot_be_a_command_is_refused_with_a_remedy(command: str | list[str]) -> None:
    with pytest.raises(WorkspaceError) as caught:
        shell_argv(command)
    assert caught.value.remedy


def test_a_command_runs_in_a_folder_inside_by_its_real_place(scene: ToolContext) -> None:
    (scene.folder.root / "link").symlink_to("tests")
    (scene.folder.root / "out").symlink_to("/etc")
    assert str(real_folder(scene.folder, "link")) == "tests"
    assert str(real_folder(scene.folder, ".")) == "."
    for path in ("out", "..", "/etc", "tests/test_a.py", "nowhere"):
        with pytest.raises(WorkspaceError):
            real_folder(scene.folder, path)


@pytest.mark.req("FRG-10")
def test_a_turn_is_as_short_as_the_shortest_limit(tmp_path: Path) -> None:
    with scene_in(tmp_path, session_seconds=100.0) as scene:
        assert CommandRunner(scene, "run_shell_safe").limit == 100.0
        assert CommandRunner(scene, "run_shell_safe", 5).limit == 5
        assert CommandRunner(scene, "run_shell_safe", 5000).limit == 100.0
        scene.session.count_seconds(60)
        assert CommandRunner(scene, "run_shell_safe").limit == 40.0
        assert CommandRunner(scene, "project_diff").limit == 30.0
        for wrong in (0.0, -1.0, float("nan")):
            with pytest.raises(WorkspaceError):
                CommandRunner(scene, "run_shell_safe", wrong)
        scene.session.count_seconds(60)
        with pytest.raises(WorkspaceError):
            CommandRunner(scene, "run_shell_safe")


@pytest.mark.parametrize(
    ("how", "words_for_it"),
    [
        (finished(code=3), "Exit code 3"),
        (finished(code=None, signal=9), "Ended by signal SIGKILL"),
        (finished(code=137, signal=9), "Exit code 137 (as by signal SIGKILL)"),
        (finished(code=None, signal=250), "Ended by signal 250"),
        (finished(code=None, ending=CommandEnding.TIMEOUT), "Ended at the time limit of 120 s"),
        (finished(code=None, ending=CommandEnding.MEMORY), "Ended at the memory limit"),
    ],
)
def test_every_ending_has_words(scene: ToolContext, how: SandboxResult, words_for_it: str) -> None:
    assert ending_text(how, CommandRunner(scene, "run_shell_safe")) == words_for_it
