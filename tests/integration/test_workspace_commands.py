"""run_shell_safe in a real sandbox: what runs, what is told of it, and what is left when it is over."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from parts.small_project import Place, is_running, make_project, place_in, shell, size_of
from toolcrib.errors import WorkspaceError

pytestmark = [pytest.mark.slow, pytest.mark.req("FRG-1")]

SECRET = "hunter2-of-the-server"


@pytest.fixture
async def place(tmp_path: Path, bwrap: Path) -> AsyncIterator[Place]:
    async with place_in(make_project(tmp_path / "project"), environ={"API_TOKEN": SECRET}) as place:
        yield place


async def test_a_line_and_a_list_are_run_and_told_apart(place: Place) -> None:
    line = await shell(place, "printf 'one\\ntwo\\n' | sort -r | tee sorted.txt; echo oops >&2; exit 7")
    assert (line.exit_code, line.stdout, line.stderr, line.ending) == (7, "two\none\n", "oops\n", "")
    assert (place.root / "sorted.txt").read_text() == "two\none\n"
    words = await shell(place, ["printf", "%s|", "a b", "$HOME", "*", ""])
    assert (words.exit_code, words.stdout) == (0, "a b|$HOME|*||")


async def test_words_that_begin_with_a_dash_are_not_options_of_anything_around(place: Place) -> None:
    assert (await shell(place, "-x")).exit_code == 127
    assert (await shell(place, ["--bind", "/", "/"])).exit_code == 127
    assert "toolcrib" not in (await shell(place, ["echo", "--version"])).stdout
    assert (await shell(place, ["echo", "-e", "--", "-n"])).stdout == "-- -n\n"


async def test_a_signal_is_told_by_its_name(place: Place) -> None:
    ran = await shell(place, ["sh", "-c", "kill -SEGV $$"])
    assert (ran.exit_code, ran.ending) == (139, "Exit code 139 (as by signal SIGSEGV)")


async def test_a_program_that_is_not_there_is_a_result(place: Place) -> None:
    ran = await shell(place, ["no-such-program"])
    assert ran.exit_code == 127
    assert "no-such-program" in ran.stderr


async def test_text_of_any_kind_comes_back_as_text(place: Place) -> None:
    assert (await shell(place, "echo größe ✓ 日本語")).stdout == "größe ✓ 日本語\n"
    assert (await shell(place, r"printf 'a\0b\377c\033[31mred\033[0m\n'")).stdout == "a\ufffdb\ufffdcred\n"


async def test_it_runs_in_the_folder_that_was_named_and_in_no_other(place: Place) -> None:
    assert (await shell(place, "pwd", cwd="src/sums")).stdout == f"{place.root}/src/sums\n"
    (place.root / "out").symlink_to("/usr")
    for outside in ("..", "/", "out", "out/lib", "../project-evil", "pyproject.toml", "nowhere"):
        with pytest.raises(WorkspaceError):
            await shell(place, "pwd", cwd=outside)


async def test_stdin_reaches_the_command_and_ends(place: Place) -> None:
    assert (await shell(place, ["wc", "-c"], stdin="x" * 300_000)).stdout.strip() == "300000"
    assert (await shell(place, "cat")).stdout == ""
    assert (await shell(place, "true", stdin="x" * 300_000)).exit_code == 0


async def test_what_is_printed_is_told_while_the_command_runs(place: Place) -> None:
    running = asyncio.create_task(
        shell(place, "echo ready; until [ -e go ]; do sleep 0.02; done; echo gone", seconds=30)
    )
    await asyncio.wait_for(place.told.wait(), 60)
    assert place.heard == ["ready"]
    place.write("go", "")
    assert (await running).stdout == "ready\ngone\n"
    assert place.heard == ["ready", "gone"]


async def test_much_output_is_cut_and_all_of_it_kept_in_a_file(place: Place) -> None:
    ran = await shell(place, "seq 200000; echo last words >&2")
    assert ran.stdout.startswith("1\n2\n")
    assert ran.stdout.endswith("199999\n200000\n")
    assert "left out" in ran.stdout
    assert ran.stderr == "last words\n"
    assert size_of(ran) < 100_000
    assert ran.output_file is not None
    kept = (place.root / ran.output_file).read_text()
    assert all(f"{number}\n" in kept for number in (1, 99_999, 200_000))
    assert len(kept) > 1_000_000
    assert (await shell(place, ["tail", "-n", "1", ran.output_file])).exit_code == 0
    assert sum(map(len, place.heard)) < 100_000
    assert (await shell(place, "echo little")).output_file is None


async def test_one_endless_line_does_no_harm(place: Place) -> None:
    ran = await shell(place, "head -c 5000000 /dev/zero | tr '\\0' x")
    assert ran.exit_code == 0
    assert size_of(ran) < 100_000
    assert all(len(text) < 5000 for text in place.heard)


@pytest.mark.req("FRG-10")
async def test_at_the_time_limit_the_whole_tree_is_gone_and_what_was_printed_is_told(place: Place) -> None:
    mark = f"mark-{uuid.uuid4().hex}"
    tree = f"setsid sh -c 'sleep 300; : {mark}' & (sleep 300; : {mark}) & echo before; sleep 300; : {mark}"
    ran = await shell(place, tree, seconds=3)
    assert ran.ending == "Ended at the time limit of 3 s"
    assert (ran.exit_code, ran.stdout) == (None, "before\n")
    assert not is_running(mark)


async def test_a_process_left_in_the_background_is_gone(place: Place) -> None:
    mark = f"mark-{uuid.uuid4().hex}"
    ran = await shell(place, f"setsid sh -c 'sleep 300; : {mark}' >/dev/null 2>&1 & echo started", seconds=30)
    assert (ran.exit_code, ran.stdout) == (0, "started\n")
    assert not is_running(mark)


async def test_a_cancelled_call_takes_its_command_along(place: Place) -> None:
    mark = f"mark-{uuid.uuid4().hex}"
    running = asyncio.create_task(shell(place, f"echo up; sleep 300; : {mark}", seconds=60))
    await asyncio.wait_for(place.told.wait(), 60)
    assert is_running(mark)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not is_running(mark)


@pytest.mark.req("FRG-10")
async def test_a_session_pays_for_what_its_commands_take(tmp_path: Path, bwrap: Path) -> None:
    async with place_in(make_project(tmp_path / "project"), session_seconds=0.6) as place:
        ran = await shell(place, "sleep 30")
        assert "time limit" in ran.ending
        assert place.scene.session.seconds >= 0.5
        with pytest.raises(WorkspaceError):
            await shell(place, "true")


@pytest.mark.req("FRG-9")
async def test_no_secret_of_the_server_is_seen(place: Place) -> None:
    ran = await shell(place, "env; cat /proc/*/environ /proc/self/environ 2>/dev/null | tr '\\0' '\\n'; set")
    assert "PATH=" in ran.stdout
    assert SECRET not in ran.stdout + ran.stderr
    assert ran.output_file is None or SECRET not in (place.root / ran.output_file).read_text()
