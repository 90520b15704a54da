"""The tools that run code (shell, tests, linters, diff) in a real sandbox, in ordinary and in hostile projects."""

from __future__ import annotations

import asyncio
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from parts.sandboxes import OTHER_UID, empty, give_to, needs_root, pids_with
from parts.small_project import SECRET, SandboxedProject, commit, make_files, open_project, project_sandbox
from parts.traps import git
from toolcrib.errors import WorkspaceError
from toolcrib.workspace.sandbox import Sandbox
from toolcrib.workspace.tools.project_diff import ProjectDiffArguments, project_diff

pytestmark = [
    *(pytest.mark.slow, pytest.mark.req("FRG-1"), pytest.mark.usefixtures("bwrap")),
    pytest.mark.asyncio(loop_scope="module"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandbox(tmp_path_factory: pytest.TempPathFactory, bwrap: Path) -> AsyncIterator[Sandbox]:
    """All tests share it, because a sandbox takes longer to open than most commands take."""
    root = tmp_path_factory.mktemp("code") / "project"
    root.mkdir()
    async with project_sandbox(root) as sandbox:
        yield sandbox


@pytest.fixture
def project(sandbox: Sandbox) -> Iterator[SandboxedProject]:
    make_files(sandbox.folder.root)
    yield SandboxedProject(sandbox)
    empty(sandbox.folder.root)


@pytest.fixture
def mark() -> str:
    """Finds a command's processes from outside."""
    return f"mark-{uuid.uuid4().hex}"


def size_of(result: msgspec.Struct) -> int:
    return len(msgspec.json.encode(result))


# ---- run_shell_safe


@pytest.mark.req("FRG-9")
async def test_a_command_gets_its_words_and_input_and_its_output_comes_back_as_text(project: SandboxedProject) -> None:
    line = await project.shell("printf 'one\\ntwo\\n' | sort -r | tee sorted.txt; echo oops >&2; exit 7")
    assert (line.exit_code, line.stdout, line.stderr, line.ending) == (7, "two\none\n", "oops\n", "")
    assert (project.root / "sorted.txt").read_text() == "two\none\n"
    printed = {
        ("printf", "%s|", "a b", "$HOME", "*", ""): "a b|$HOME|*||",
        ("echo", "-e", "--", "-n"): "-- -n\n",
        ("echo", "größe ✓ 日本語"): "größe ✓ 日本語\n",
        ("printf", r"a\0b\377c\033[31mred\033[0m\n"): "a\ufffdb\ufffdcred\n",
    }
    for argv, stdout in printed.items():
        result = await project.shell(list(argv))
        assert (result.exit_code, result.stdout) == (0, stdout)
    assert "toolcrib" not in (await project.shell(["echo", "--version"])).stdout
    missing = await project.shell(["no-such-program"])
    assert (missing.exit_code, "no-such-program" in missing.stderr) == (127, True)
    assert (await project.shell("-x")).exit_code == 127
    assert (await project.shell(["--bind", "/", "/"])).exit_code == 127
    killed = await project.shell(["sh", "-c", "kill -SEGV $$"])
    assert (killed.exit_code, killed.ending) == (139, "Exit code 139 (like signal SIGSEGV)")
    assert (await project.shell(["wc", "-c"], stdin="x" * 300_000)).stdout.strip() == "300000"
    assert (await project.shell("cat")).stdout == ""
    assert (await project.shell("true", stdin="x" * 300_000)).exit_code == 0
    # The server's secrets are not part of a command's environment.
    shown = await project.shell("env; cat /proc/*/environ /proc/self/environ 2>/dev/null | tr '\\0' '\\n'; set")
    assert "PATH=" in shown.stdout
    assert SECRET not in shown.stdout + shown.stderr
    assert shown.output_file is None or SECRET not in (project.root / shown.output_file).read_text()


async def test_a_command_runs_in_the_named_folder_inside_the_workspace(project: SandboxedProject) -> None:
    assert (await project.shell("pwd", cwd="src/sums")).stdout == f"{project.root}/src/sums\n"
    (project.root / "out").symlink_to("/usr")
    for outside in ("..", "/", "out", "out/lib", "../project-evil", "pyproject.toml", "nowhere"):
        with pytest.raises(WorkspaceError):
            await project.shell("pwd", cwd=outside)


async def test_output_is_reported_while_the_command_runs(project: SandboxedProject) -> None:
    line = "echo ready; until [ -e go ]; do sleep 0.02; done; echo gone"
    running = asyncio.create_task(project.shell(line, seconds=30))
    await asyncio.wait_for(project.has_progress.wait(), 60)
    assert project.progress == ["ready"]
    project.write("go", "")
    assert (await running).stdout == "ready\ngone\n"
    assert project.progress == ["ready", "gone"]


async def test_long_output_is_cut_and_kept_in_a_file(project: SandboxedProject) -> None:
    result = await project.shell("seq 200000; echo last words >&2")
    assert result.stdout.startswith("1\n2\n")
    assert result.stdout.endswith("199999\n200000\n")
    assert "left out" in result.stdout
    assert result.stderr == "last words\n"
    assert size_of(result) < 100_000
    assert result.output_file is not None
    kept = (project.root / result.output_file).read_text()
    assert all(f"{number}\n" in kept for number in (1, 99_999, 200_000))
    assert len(kept) > 1_000_000
    assert (await project.shell(["tail", "-n", "1", result.output_file])).exit_code == 0
    assert (await project.shell("echo little")).output_file is None
    one_line = await project.shell("head -c 5000000 /dev/zero | tr '\\0' x")
    assert (one_line.exit_code, size_of(one_line) < 100_000) == (0, True)
    assert sum(map(len, project.progress)) < 200_000
    assert all(len(text) < 5000 for text in project.progress)


@pytest.mark.req("FRG-10")
async def test_the_time_of_commands_counts_for_the_session(tmp_path: Path) -> None:
    async with open_project(tmp_path / "project", session_seconds=0.6) as project:
        assert "time limit" in (await project.shell("sleep 30")).ending
        assert project.context.session.seconds >= 0.5
        with pytest.raises(WorkspaceError):
            await project.shell("true")


# ---- run_tests


async def test_a_project_is_broken_and_repaired(project: SandboxedProject) -> None:
    assert (await project.run_tests()).outcome == "passed"
    # Of another length: Python takes a file of the same length for unchanged within one second.
    project.write("src/sums/__init__.py", "def add(a: int, b: int) -> int:\n    return a - b - 0\n")
    broken = await project.run_tests()
    assert (broken.outcome, broken.failed, broken.passed, broken.collected) == ("failed", 1, 0, None)
    (failure,) = broken.failures
    assert (failure.id, failure.file, failure.line) == ("tests/test_sums.py::test_add", "tests/test_sums.py", 5)
    assert failure.message == ""
    assert "-1 == 5" in failure.traceback
    assert "add(2, 3)" in failure.traceback
    project.write("src/sums/__init__.py", "def add(a: int, b: int) -> int:\n    return sum((a, b))\n")
    repaired = await project.run_tests(last_failed=True)
    assert (repaired.outcome, repaired.passed) == ("passed", 1)


@pytest.mark.req("FRG-9")
@needs_root
async def test_in_another_users_project_code_runs_as_that_user(tmp_path: Path) -> None:
    root = make_files(tmp_path / "project")
    commit(root)
    give_to("other", root)
    async with project_sandbox(root) as sandbox:
        project = SandboxedProject(sandbox)
        project.write("tests/test_who.py", f"import os\ndef test_who():\n    assert os.getuid() == {OTHER_UID}\n")
        assert (await project.run_tests()).passed == 2
        assert {linter.state for linter in (await project.lint()).tools} == {"ran"}
        assert (await project.diff()).untracked == ["tests/test_who.py"]
        assert (await project.shell("touch made; seq 20000")).output_file
        owners = {path.lstat().st_uid for path in root.rglob("*") if path.name != "test_who.py"}
        assert owners == {OTHER_UID}


EVERY_OUTCOME = """
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


async def test_outcomes_are_counted_and_tests_are_selected(project: SandboxedProject) -> None:
    project.write("tests/test_all.py", EVERY_OUTCOME)
    ran = await project.run_tests("tests/test_all.py")
    counts = (ran.passed, ran.failed, ran.errors, ran.skipped, ran.xfailed, ran.xpassed, ran.warnings)
    assert counts == (4, 1, 1, 1, 1, 1, 1)
    bad, error = ran.failures
    assert (bad.kind, error.kind) == ("failed", "error")
    assert "some words" in bad.output
    assert "in a fixture" in error.traceback
    assert project.progress[-1] == "9/9 tests done, 1 failed, 1 error"
    assert (await project.run_tests(select="many or good")).passed == 4
    assert (await project.run_tests(marker="slow")).passed == 3
    assert (await project.run_tests("tests/test_all.py::test_many[2]", "tests/test_sums.py")).passed == 2
    assert (await project.run_tests(select="nothing_like_it")).outcome == "no_tests"
    stopped = await project.run_tests(max_failures=1)
    assert (stopped.failed + stopped.errors, stopped.collected) == (1, 10)


async def test_arguments_are_never_options_of_pytest(project: SandboxedProject) -> None:
    project.write("-p/test_dash.py", "def test_dash(): pass\n")
    project.write("@file/test_at.py", "def test_at(): pass\n")
    assert (await project.run_tests("-p", "@file")).passed == 2
    assert (await project.run_tests(select="--help")).outcome in ("no_tests", "usage_error")
    assert (await project.run_tests(marker="--version")).outcome in ("no_tests", "usage_error")
    for wrong in ("--help", "--rootdir=/", "-rf", "../outside", "/etc", "tests/none.py"):
        with pytest.raises(WorkspaceError):
            await project.run_tests(wrong)


async def test_a_broken_file_a_wrong_configuration_and_a_crash_are_reported(project: SandboxedProject) -> None:
    project.write("tests/test_end.py", "import os\n\ndef test_first(): pass\n\ndef test_end(): os._exit(0)\n")
    ran = await project.run_tests("tests/test_end.py")
    assert (ran.outcome, ran.passed, ran.running) == ("crashed", 1, ["tests/test_end.py::test_end"])
    assert "test_end" in ran.ending
    project.write("tests/test_end.py", "import no_such_module\n")
    ran = await project.run_tests()
    assert (ran.outcome, ran.errors) == ("interrupted", 1)
    (failure,) = ran.failures
    assert (failure.kind, failure.file) == ("error", "tests/test_end.py")
    assert "no_such_module" in failure.traceback
    ini = project.write("pytest.ini", "[pytest]\naddopts = --no-such-option\n")
    wrong = await project.run_tests()
    assert (wrong.outcome, "--no-such-option" in wrong.printed) == ("usage_error", True)
    ini.unlink()
    project.write("conftest.py", "import os\nos._exit(0)\n")
    assert (await project.run_tests()).outcome == "crashed"


@pytest.mark.req("FRG-10")
async def test_a_test_that_hangs_is_named_and_its_processes_are_ended(project: SandboxedProject, mark: str) -> None:
    project.write(
        "tests/test_hang.py",
        "import subprocess, time\n\ndef test_fine(): pass\n\ndef test_hang():\n"
        f"    subprocess.Popen(['sh', '-c', 'sleep 300; : {mark}'], start_new_session=True)\n    time.sleep(300)\n",
    )
    # Long enough to reach the test that hangs, also on a busy machine.
    usual = (await project.run_tests("tests/test_sums.py")).seconds
    ran = await project.run_tests("tests/test_hang.py", seconds=2 + 3 * usual)
    assert (ran.outcome, ran.passed, ran.running) == ("stopped", 1, ["tests/test_hang.py::test_hang"])
    assert "time limit" in ran.ending
    assert not pids_with(mark)


async def test_much_output_and_many_failures_give_a_small_result(project: SandboxedProject) -> None:
    many = "import pytest\n@pytest.mark.parametrize('n', range(300))\ndef test_many(n): assert n < 0, 'long ' * 500\n"
    project.write("tests/test_many.py", many)
    ran = await project.run_tests("tests/test_many.py")
    assert ran.failed == len(ran.failures) + ran.more_failures == 300
    assert size_of(ran) < 200_000
    project.write("tests/test_loud.py", "def test_loud():\n    print('x' * 50_000_000)\n    assert 0\n")
    project.write("conftest.py", "import os\ndef pytest_unconfigure():\n    os.write(1, b'y' * 1_000_000)\n")
    ran = await project.run_tests("tests/test_loud.py")
    assert ran.failed == 1
    assert 1000 < len(ran.failures[0].output) < 3000
    assert size_of(ran) < 100_000


@pytest.mark.req("FRG-9")
async def test_a_hostile_project_reaches_nothing_outside(project: SandboxedProject, tmp_path: Path) -> None:
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
    # The sandbox has its own /tmp: a write there may succeed, but reaches nothing outside.
    attempt(lambda: pathlib.Path({str(canary)!r}).read_text())
    attempt(lambda: pathlib.Path({str(canary)!r}).write_text("dead") and None)
    attempt(lambda: pathlib.Path({str(canary)!r}).unlink())
    attempt(lambda: pathlib.Path({str(Path.home())!r}, ".pwned").write_text("x"))
    attempt(lambda: pathlib.Path("/usr/pwned").write_text("x"))
    attempt(lambda: pathlib.Path(".git/hooks/post-checkout").write_text("x"))
    attempt(lambda: socket.create_connection(("127.0.0.1", 22), 1))
"""
    project.commit()
    project.write("conftest.py", reach + "spread()\n")
    project.write("tests/test_reach.py", "from conftest import SEEN\ndef test_reach():\n    assert not any(SEEN)\n")
    project.write("tests/test_env.py", f"import os\ndef test_env(): assert {SECRET!r} not in os.environ.values()\n")
    ran = await project.run_tests("tests/test_reach.py", "tests/test_env.py")
    assert (ran.passed, ran.failures) == (2, [])
    assert canary.read_text() == "alive"
    made = (project.root / ".git/hooks/post-checkout", Path("/usr/pwned"), Path.home() / ".pwned")
    assert not [path for path in made if path.exists()]


async def test_forged_reports_change_only_the_counts(project: SandboxedProject) -> None:
    """The report's pipe is open in the process of the tests, so the project can write to it."""
    project.write(
        "conftest.py",
        "import os\n"
        "for number in range(3, 40):\n"
        "    try:\n"
        '        os.write(number, b\'[\' * 100_000 + b\'\\n\' + b\'{"is": "outcome", "category": "passed"}\\n\' * 3)\n'
        "    except OSError:\n"
        "        pass\n",
    )
    ran = await project.run_tests()
    assert (ran.outcome, ran.passed in (1, 4), size_of(ran) < 10_000) == ("passed", True, True)


async def test_a_missing_python_or_linter_is_reported_with_a_remedy(tmp_path: Path, bwrap: Path) -> None:
    environ = {"PATH": f"{bwrap.parent}:/usr/bin:/bin"}
    async with open_project(tmp_path / "project", environ=environ, python="tools/python") as project:
        linters = {linter.tool: linter for linter in (await project.lint()).tools}
        assert {linter.state for linter in linters.values()} == {"not_available"}
        assert "The user must install mypy" in linters["mypy"].detail
        with pytest.raises(WorkspaceError, match="there is no Python here") as error:
            await project.run_tests()
        assert "The user must install pytest" in error.value.remedy
        project.write("tools/python", "#!/bin/sh\nexec /usr/bin/env false\n").chmod(0o755)
        with pytest.raises(WorkspaceError, match=r"none of these has it: tools/python \(cannot be run here\)") as error:
            await project.run_tests()
        assert "If tools/python leads out" in error.value.remedy


@pytest.mark.req("FRG-9")
async def test_the_projects_venv_is_used_in_the_sandbox_once_it_exists(
    project: SandboxedProject, tmp_path: Path
) -> None:
    assert (await project.run_tests()).outcome == "passed"
    used = project.root / "used"
    project.write(".venv/bin/python", f'#!/bin/sh\ntouch {used}\nexec {sys.executable} "$@"\n').chmod(0o755)
    project.write(".venv/pyvenv.cfg", "home = /usr/bin\n")
    assert (await project.run_tests()).outcome == "passed"
    assert used.exists()
    canary = tmp_path / "canary"
    forged = '{"python": "/bin/sh", "version": "9", "modules": ["pytest"]}'
    project.write(".venv/bin/python", f"#!/bin/sh\ntouch {canary}\necho '{forged}'\n").chmod(0o755)
    (project.root / ".venv" / "pyvenv.cfg").unlink()
    assert (await project.run_tests()).outcome == "passed"
    assert not canary.exists()


# ---- run_lint


async def test_linters_find_errors_and_never_fix_them(project: SandboxedProject) -> None:
    clean = await project.lint()
    assert [(one.tool, one.state, one.findings) for one in clean.tools] == [("ruff", "ran", 0), ("mypy", "ran", 0)]
    project.write("src/sums/__init__.py", "import os\n\n\ndef add(a: int, b: int) -> int:\n    return str(a + b)\n")
    found = await project.lint()
    assert [line.split()[:2] for line in found.findings] == [
        ["src/sums/__init__.py:1:8", "F401"],
        ["src/sums/__init__.py:5:12", "return-value"],
    ]
    assert [(one.tool, one.findings) for one in found.tools] == [("ruff", 1), ("mypy", 1)]
    assert [one.tool for one in (await project.lint(tools=["mypy"])).tools] == ["mypy"]
    assert (await project.lint("tests", tools=["ruff"])).findings == []
    project.write("src/sums/__init__.py", "def add(:\n")
    found = await project.lint()
    assert [bool(one.findings) for one in found.tools] == [True, True], "a syntax error is a finding"
    project.write("ruff.toml", "fix = true\n[lint]\nselect = ['F']\n")
    file = project.write("src/sums/__init__.py", "import os\n")
    assert len((await project.lint(tools=["ruff"])).findings) == 1
    assert file.read_text() == "import os\n"
    project.write("ruff.toml", "no-such-key = 1\n")
    ruff = (await project.lint(tools=["ruff"])).tools[0]
    assert (ruff.state, "no-such-key" in ruff.detail) == ("failed", True)


@pytest.mark.req("FRG-9")
async def test_arguments_are_never_options_of_linters_and_plugins_run_in_the_sandbox(
    project: SandboxedProject, tmp_path: Path
) -> None:
    project.write("--fix/bad.py", "import os\n")
    found = await project.lint("--fix", tools=["ruff"])
    assert [line.split(":")[0] for line in found.findings] == ["--fix/bad.py"]
    assert (await project.lint("--fix", tools=["mypy"])).tools[0].state == "ran"
    for wrong in ("--config=x", "../x", "/etc", "none.py"):
        with pytest.raises(WorkspaceError):
            await project.lint(wrong)
    canary = tmp_path / "canary"
    project.write("plug.py", f"open({str(canary)!r}, 'w')\n")
    project.write("mypy.ini", "[mypy]\nfiles = src\nplugins = ./plug.py\n")
    assert (await project.lint(tools=["mypy"])).tools[0].state == "failed"
    assert not canary.exists()


async def test_thousands_of_findings_are_counted_and_the_first_are_shown(project: SandboxedProject) -> None:
    project.write("src/sums/many.py", "".join(f"import a{number}\n" for number in range(3000)))
    found = await project.lint(tools=["ruff"])
    assert found.tools[0].findings == len(found.findings) + found.more == 3000
    assert "F401 (3,000)" in found.note
    assert size_of(found) < 20_000


# ---- project_diff


async def test_a_diff_shows_every_kind_of_change(project: SandboxedProject) -> None:
    with pytest.raises(WorkspaceError, match="not a git repository"):
        await project.diff()
    project.git("init", "--quiet", "--initial-branch=main")
    project.git("add", "pyproject.toml")
    first = await project.diff()
    assert [(one.path, one.staged) for one in first.changes] == [("pyproject.toml", "added")]
    assert "new file" in first.diff
    assert "tests/" in first.untracked
    project.write("old.txt", "a text that is long enough to be recognised\n" * 3)
    project.write("gone.txt", "x\n")
    project.write("ünï code\n.txt", "x\n")
    project.commit()
    assert (await project.diff()).changes == []
    project.write("src/sums/__init__.py", "def add(a: int, b: int) -> int:\n    return b + a\n")
    project.git("mv", "old.txt", "new.txt")
    (project.root / "gone.txt").unlink()
    project.write("ünï code\n.txt", "y\n")
    (project.root / "data.bin").write_bytes(bytes(range(256)))
    project.git("add", "data.bin")
    project.write("fresh.txt", "x\n")
    ran = await project.diff()
    assert {(one.path, one.staged, one.unstaged, one.was) for one in ran.changes} == {
        ("src/sums/__init__.py", "", "modified", ""),
        ("new.txt", "renamed", "", "old.txt"),
        ("gone.txt", "", "deleted", ""),
        ("ünï code\n.txt", "", "modified", ""),
        ("data.bin", "added", "", ""),
    }
    assert (ran.untracked, ran.files, ran.branch, ran.base) == (["fresh.txt"], [], "main", "")
    assert "+    return b + a\n" in ran.diff
    assert "rename from old.txt" in ran.diff
    numbers = await project.diff(stat_only=True)
    assert numbers.diff == ""
    assert {(one.path, one.added, one.deleted, one.binary) for one in numbers.files} == {
        ("src/sums/__init__.py", 1, 1, False),
        ("new.txt", 0, 0, False),
        ("gone.txt", 0, 1, False),
        ("ünï code\n.txt", 1, 1, False),
        ("data.bin", 0, 0, True),
    }


@pytest.mark.req("FRG-9")
async def test_a_diff_takes_a_path_the_index_or_a_base_and_never_an_option(project: SandboxedProject) -> None:
    project.write("--output=evil", "1\n")
    project.write(":(glob)x", "1\n")
    project.commit()
    project.write("a.txt", "1\n")
    project.commit()
    project.write("a.txt", "2\n")
    project.git("add", "a.txt")
    for path, text in {"a.txt": "3\n", ".gitignore": "", "--output=evil": "2\n", ":(glob)x": "2\n"}.items():
        project.write(path, text)
    assert "+3\n" in (await project.diff("a.txt")).diff
    for path in ("a.txt", "--output=evil", ":(glob)x"):
        assert [one.path for one in (await project.diff(path)).changes] == [path]
    staged = (await project.diff(staged=True)).diff
    assert ("+2\n" in staged, "+3\n" in staged) == (True, False)
    assert "new file" in (await project.diff("a.txt", base="HEAD~1")).diff
    for base in ("--output=/tmp/x", "-h", "HEAD:pyproject.toml", "a..b", "nosuch", "HEAD^{tree}"):
        with pytest.raises(WorkspaceError):
            await project.diff(base=base)
    for path in ("../x", "/etc", "nowhere.txt"):
        with pytest.raises(WorkspaceError):
            await project.diff(path)
    project.write(".git/HEAD", "nonsense\n")
    with pytest.raises(WorkspaceError, match="git cannot read this repository"):
        await project.diff()


async def test_a_large_diff_is_cut_and_names_the_files_left_out(project: SandboxedProject) -> None:
    for number in range(30):
        project.write(f"big{number:02}.txt", "\n".join(map(str, range(2000))))
    project.commit()
    for number in range(30):
        project.write(f"big{number:02}.txt", "\n".join(f"{line}!" for line in range(2000)))
    ran = await project.diff()
    assert len(ran.diff) <= project.context.settings.limits.output
    assert (ran.added, ran.deleted) == (60_000, 60_000)
    assert "big29.txt" in ran.not_shown
    assert "as `path`" in (await project_diff(project.context, ProjectDiffArguments())).text
    small = await project.diff("big00.txt", limit=500)
    assert (len(small.diff) <= 500, small.not_shown) == (True, ["big00.txt"])


async def test_links_inside_are_followed(project: SandboxedProject) -> None:
    (project.root / "in").symlink_to("src")
    project.commit()
    project.write("src/sums/__init__.py", "import os\n")
    assert (await project.lint("in", tools=["ruff"])).findings[0].startswith("src/sums/__init__.py:1:8 F401")
    assert "+import os" in (await project.diff("in/sums")).diff
    (project.root / "src/sums/__init__.py").unlink()
    assert "deleted file" in (await project.diff("src/sums/__init__.py")).diff


async def test_a_folder_that_is_not_the_top_of_a_repository_gets_a_clear_error(tmp_path: Path) -> None:
    commit(make_files(tmp_path / "project"))
    git(tmp_path / "project", "worktree", "add", "--quiet", "../tree")
    (tmp_path / "project" / "sub").mkdir()
    async with project_sandbox(tmp_path / "project" / "sub") as sandbox:
        with pytest.raises(WorkspaceError, match="starts above it"):
            await SandboxedProject(sandbox).diff()
    async with project_sandbox(tmp_path / "tree") as sandbox:
        with pytest.raises(WorkspaceError, match="outside the workspace") as error:
            await SandboxedProject(sandbox).diff()
        assert "readable" in (error.value.remedy or "")
