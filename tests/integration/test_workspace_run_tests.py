"""run_tests in a real sandbox, with projects that behave and projects that do not."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from parts.sandboxes import SOMEBODY, own
from parts.small_project import Place, is_running, make_project, place_in, run_pytest, shell, size_of
from toolcrib.errors import WorkspaceError
from toolcrib.workspace.tools.lint import RunLintArguments, run_lint
from toolcrib.workspace.tools.project_diff import ProjectDiffArguments, project_diff

pytestmark = [pytest.mark.slow, pytest.mark.req("FRG-1")]

SECRET = "hunter2-of-the-server"


@pytest.fixture
async def place(tmp_path: Path, bwrap: Path) -> AsyncIterator[Place]:
    async with place_in(make_project(tmp_path / "project"), environ={"API_TOKEN": SECRET}) as place:
        yield place


@pytest.mark.req("FRG-9")
async def test_a_real_project_is_broken_and_mended(place: Place) -> None:
    assert (await run_pytest(place)).outcome == "passed"
    # Of another length: within one second Python takes a file of the same length for unchanged.
    place.write("src/sums/__init__.py", "def add(a: int, b: int) -> int:\n    return a - b - 0\n")
    broken = await run_pytest(place)
    assert (broken.outcome, broken.failed, broken.passed, broken.collected) == ("failed", 1, 0, None)
    (failure,) = broken.failures
    assert (failure.id, failure.file, failure.line) == ("tests/test_sums.py::test_add", "tests/test_sums.py", 5)
    assert failure.message == ""
    assert "-1 == 5" in failure.traceback
    assert "add(2, 3)" in failure.traceback
    place.write("src/sums/__init__.py", "def add(a: int, b: int) -> int:\n    return sum((a, b))\n")
    mended = await run_pytest(place, last_failed=True)
    assert (mended.outcome, mended.passed) == ("passed", 1)


@pytest.mark.req("FRG-9")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
async def test_a_project_of_somebody_else_is_worked_on_as_that_one(tmp_path: Path, bwrap: Path) -> None:
    root = make_project(tmp_path / "project")
    async with place_in(root) as place:
        place.commit()
    own(root, "somebody")
    async with place_in(root) as place:
        place.write("tests/test_who.py", f"import os\ndef test_who():\n    assert os.getuid() == {SOMEBODY}\n")
        assert (await run_pytest(place)).passed == 2
        assert {one.state for one in (await place.do(run_lint, RunLintArguments())).data.tools} == {"ran"}
        assert (await place.do(project_diff, ProjectDiffArguments())).data.untracked == ["tests/test_who.py"]
        assert (await shell(place, "touch made; seq 20000")).output_file
        owners = {path.lstat().st_uid for path in root.rglob("*") if path.name != "test_who.py"}
        assert owners == {SOMEBODY}


EVERYTHING = """
import warnings
import pytest

def test_good(): warnings.warn("careful")

def test_bad():
    print("some words")
    assert {"a": 1} == {"a": 2}

@pytest.mark.skip(reason="not now")
def test_skipped(): pass

@pytest.mark.xfail
def test_known(): assert 0

@pytest.mark.xfail
def test_surprise(): pass

@pytest.fixture
def broken(): raise RuntimeError("in a fixture")

def test_error(broken): pass

@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 2, 3])
def test_many(n): assert n
"""


async def test_every_outcome_is_counted(place: Place) -> None:
    place.write("tests/test_all.py", EVERYTHING)
    ran = await run_pytest(place, paths=["tests/test_all.py"])
    counts = (ran.passed, ran.failed, ran.errors, ran.skipped, ran.xfailed, ran.xpassed, ran.warnings)
    assert counts == (4, 1, 1, 1, 1, 1, 1)
    bad, error = ran.failures
    assert (bad.kind, error.kind) == ("failed", "error")
    assert "some words" in bad.output
    assert "in a fixture" in error.traceback
    assert place.heard[-1] == "9/9 tests done, 1 failed, 1 error"


async def test_tests_are_chosen_by_name_mark_node_and_number(place: Place) -> None:
    place.write("tests/test_all.py", EVERYTHING)
    assert (await run_pytest(place, select="many or good")).passed == 4
    assert (await run_pytest(place, marker="slow")).passed == 3
    assert (await run_pytest(place, paths=["tests/test_all.py::test_many[2]", "tests/test_sums.py"])).passed == 2
    stopped = await run_pytest(place, max_failures=1)
    assert stopped.failed + stopped.errors == 1
    assert stopped.collected == 10


async def test_arguments_that_look_like_options_are_none(place: Place) -> None:
    place.write("-p/test_dash.py", "def test_dash(): pass\n")
    place.write("@file/test_at.py", "def test_at(): pass\n")
    assert (await run_pytest(place, paths=["-p", "@file"])).passed == 2
    assert (await run_pytest(place, select="--help")).outcome in ("no_tests", "usage_error")
    assert (await run_pytest(place, marker="--version")).outcome in ("no_tests", "usage_error")
    for wrong in ("--help", "--rootdir=/", "-rf", "../outside", "/etc", "tests/none.py"):
        with pytest.raises(WorkspaceError):
            await run_pytest(place, paths=[wrong])


async def test_no_tests_and_a_wrong_configuration_are_told(place: Place) -> None:
    assert (await run_pytest(place, select="nothing_like_it")).outcome == "no_tests"
    place.write("pytest.ini", "[pytest]\naddopts = --no-such-option\n")
    wrong = await run_pytest(place)
    assert wrong.outcome == "usage_error"
    assert "--no-such-option" in wrong.printed


async def test_a_file_that_cannot_be_collected_is_an_error_with_its_place(place: Place) -> None:
    place.write("tests/test_broken.py", "import no_such_module\n")
    ran = await run_pytest(place)
    assert (ran.outcome, ran.errors) == ("interrupted", 1)
    (failure,) = ran.failures
    assert (failure.kind, failure.file) == ("error", "tests/test_broken.py")
    assert "no_such_module" in failure.traceback


async def test_a_project_that_ends_the_process_has_not_passed(place: Place) -> None:
    place.write("tests/test_end.py", "import os\n\ndef test_first(): pass\n\ndef test_end(): os._exit(0)\n")
    ran = await run_pytest(place, paths=["tests/test_end.py"])
    assert (ran.outcome, ran.passed, ran.running) == ("crashed", 1, ["tests/test_end.py::test_end"])
    assert "test_end" in ran.ending
    place.write("conftest.py", "import os\nos._exit(0)\n")
    assert (await run_pytest(place)).outcome == "crashed"


@pytest.mark.req("FRG-10")
async def test_a_test_that_hangs_is_ended_with_all_it_started_and_named(place: Place) -> None:
    mark = f"mark-{uuid.uuid4().hex}"
    place.write(
        "tests/test_hang.py",
        "import subprocess, time\n\ndef test_fine(): pass\n\ndef test_hang():\n"
        f"    subprocess.Popen(['sh', '-c', 'sleep 300; : {mark}'], start_new_session=True)\n    time.sleep(300)\n",
    )
    # So long that it comes to the test that hangs, however busy the machine is.
    usual = (await run_pytest(place, paths=["tests/test_sums.py"])).seconds
    ran = await run_pytest(place, paths=["tests/test_hang.py"], seconds=2 + 3 * usual)
    assert (ran.outcome, ran.passed, ran.running) == ("stopped", 1, ["tests/test_hang.py::test_hang"])
    assert "time limit" in ran.ending
    assert not is_running(mark)


async def test_fifty_megabytes_of_output_leave_a_small_result(place: Place) -> None:
    place.write("tests/test_loud.py", "def test_loud():\n    print('x' * 50_000_000)\n    assert 0\n")
    place.write("conftest.py", "import os\ndef pytest_unconfigure():\n    os.write(1, b'y' * 1_000_000)\n")
    ran = await run_pytest(place, paths=["tests/test_loud.py"])
    assert ran.failed == 1
    assert 1000 < len(ran.failures[0].output) < 3000
    assert size_of(ran) < 100_000


async def test_hundreds_of_failures_leave_a_small_result(place: Place) -> None:
    place.write(
        "tests/test_many.py",
        "import pytest\n@pytest.mark.parametrize('n', range(300))\ndef test_many(n): assert n < 0, 'long ' * 500\n",
    )
    ran = await run_pytest(place, paths=["tests/test_many.py"])
    assert ran.failed == 300
    assert len(ran.failures) + ran.more_failures == 300
    assert size_of(ran) < 200_000


@pytest.mark.req("FRG-9")
async def test_a_hostile_project_reaches_nothing_outside(place: Place, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    canary.write_text("alive")
    reach = f"""
import os, pathlib, socket
SEEN = []
def attempt(do):
    try:
        SEEN.append(do())
    except OSError:
        pass
def spread():
    # The sandbox has a /tmp of its own: there a write may succeed, and reach nobody.
    attempt(lambda: pathlib.Path({str(canary)!r}).read_text())
    attempt(lambda: pathlib.Path({str(canary)!r}).write_text("dead") and None)
    attempt(lambda: pathlib.Path({str(canary)!r}).unlink())
    attempt(lambda: pathlib.Path({str(Path.home())!r}, ".pwned").write_text("x"))
    attempt(lambda: pathlib.Path("/usr/pwned").write_text("x"))
    attempt(lambda: pathlib.Path(".git/hooks/post-checkout").write_text("x"))
    attempt(lambda: socket.create_connection(("127.0.0.1", 22), 1))
"""
    place.commit()
    place.write("conftest.py", reach + "spread()\n")
    place.write("tests/test_reach.py", "from conftest import SEEN\ndef test_reach():\n    assert not any(SEEN)\n")
    place.write("tests/test_env.py", f"import os\ndef test_env():\n    assert {SECRET!r} not in os.environ.values()\n")
    ran = await run_pytest(place, paths=["tests/test_reach.py", "tests/test_env.py"])
    assert (ran.passed, ran.failures) == (2, [])
    assert canary.read_text() == "alive"
    assert not (place.root / ".git/hooks/post-checkout").exists()
    assert not Path("/usr/pwned").exists()
    assert not (Path.home() / ".pwned").exists()


async def test_forged_reports_lie_about_the_project_only(place: Place) -> None:
    """The pipe is open in the tests' own process: what it says is believed for counts, and must break nothing."""
    place.write(
        "conftest.py",
        "import os\n"
        "for number in range(3, 40):\n"
        "    try:\n"
        '        os.write(number, b\'[\' * 100_000 + b\'\\n\' + b\'{"is": "outcome", "category": "passed"}\\n\' * 3)\n'
        "    except OSError:\n"
        "        pass\n",
    )
    ran = await run_pytest(place)
    assert ran.outcome == "passed"
    assert ran.passed in (1, 4)
    assert size_of(ran) < 10_000


@pytest.mark.req("FRG-9")
async def test_in_read_only_mode_tests_run_and_write_nothing(tmp_path: Path, bwrap: Path) -> None:
    async with place_in(make_project(tmp_path / "project"), read_only=True) as place:
        place.write("tests/test_write.py", "def test_write():\n    open('made', 'w')\n")
        before = sorted(place.root.rglob("*"))
        ran = await run_pytest(place)
        assert (ran.passed, ran.failed) == (1, 1)
        assert "Read-only file system" in ran.failures[0].traceback or "Permission denied" in ran.failures[0].traceback
        assert sorted(place.root.rglob("*")) == before


# Which Python


async def test_a_python_without_pytest_is_told_with_what_was_tried(tmp_path: Path, bwrap: Path) -> None:
    async with place_in(make_project(tmp_path / "project"), python="tools/python") as place:
        with pytest.raises(WorkspaceError, match="there is no Python here") as caught:
            await run_pytest(place)
        assert "A person must install pytest" in caught.value.remedy
        place.write("tools/python", "#!/bin/sh\nexec /usr/bin/env false\n").chmod(0o755)
        with pytest.raises(
            WorkspaceError, match=r"none of these has it: tools/python \(cannot be run here\)"
        ) as caught:
            await run_pytest(place)
        assert "If tools/python leads out" in caught.value.remedy


async def test_a_venv_of_the_project_is_found_again_when_it_changes(place: Place) -> None:
    assert (await run_pytest(place)).outcome == "passed"
    used = place.root / "used"
    place.write(".venv/bin/python", f'#!/bin/sh\ntouch {used}\nexec {sys.executable} "$@"\n').chmod(0o755)
    place.write(".venv/pyvenv.cfg", "home = /usr/bin\n")
    assert (await run_pytest(place)).outcome == "passed"
    assert used.exists()


@pytest.mark.req("FRG-9")
async def test_a_hostile_python_of_the_project_runs_in_the_sandbox_too(place: Place, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    forged = '{"python": "/bin/sh", "version": "9", "modules": ["pytest"]}'
    place.write(".venv/bin/python", f"#!/bin/sh\ntouch {canary}\necho '{forged}'\n").chmod(0o755)
    ran = await run_pytest(place)
    assert ran.outcome == "passed"
    assert not canary.exists()
