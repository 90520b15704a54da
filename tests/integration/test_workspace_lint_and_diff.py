"""run_lint and project_diff in a real sandbox: real ruff, mypy and git, on projects that behave and that do not."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from parts.small_project import Place, make_project, place_in
from toolcrib.errors import WorkspaceError
from toolcrib.workspace.tools.lint import RunLintArguments, RunLintResult, run_lint
from toolcrib.workspace.tools.project_diff import ProjectDiffArguments, ProjectDiffResult, project_diff
from toolcrib.workspace.tools.run_tests import RunTestsArguments, run_tests

pytestmark = [pytest.mark.slow, pytest.mark.req("FRG-1")]


@pytest.fixture
async def place(tmp_path: Path, bwrap: Path) -> AsyncIterator[Place]:
    async with place_in(make_project(tmp_path / "project")) as place:
        yield place


async def lint(place: Place, **given: object) -> RunLintResult:
    done = await place.do(run_lint, msgspec.convert(given, RunLintArguments))
    assert isinstance(done.data, RunLintResult)
    return done.data


async def diff(place: Place, **given: object) -> ProjectDiffResult:
    done = await place.do(project_diff, msgspec.convert(given, ProjectDiffArguments))
    assert isinstance(done.data, ProjectDiffResult)
    assert done.text.startswith(f"On {done.data.branch}:")
    return done.data


# Linters


async def test_both_linters_of_the_project_find_what_is_wrong_and_then_nothing(place: Place) -> None:
    clean = await lint(place)
    assert [(one.tool, one.state, one.findings) for one in clean.tools] == [("ruff", "ran", 0), ("mypy", "ran", 0)]
    place.write("src/sums/__init__.py", "import os\n\n\ndef add(a: int, b: int) -> int:\n    return str(a + b)\n")
    found = await lint(place)
    assert [line.split()[:2] for line in found.findings] == [
        ["src/sums/__init__.py:1:8", "F401"],
        ["src/sums/__init__.py:5:12", "return-value"],
    ]
    assert [(one.tool, one.findings) for one in found.tools] == [("ruff", 1), ("mypy", 1)]
    assert [one.tool for one in (await lint(place, tools=["mypy"])).tools] == ["mypy"]
    assert (await lint(place, paths=["tests"], tools=["ruff"])).findings == []


async def test_a_syntax_error_is_a_finding_and_a_broken_configuration_a_failure(place: Place) -> None:
    place.write("src/sums/__init__.py", "def add(:\n")
    found = await lint(place)
    assert found.tools
    assert all(one.findings for one in found.tools)
    place.write("ruff.toml", "no-such-key = 1\n")
    ruff = (await lint(place, tools=["ruff"])).tools[0]
    assert (ruff.state, "no-such-key" in ruff.detail) == ("failed", True)


async def test_looking_never_fixes(place: Place) -> None:
    place.write("ruff.toml", "fix = true\n[lint]\nselect = ['F']\n")
    file = place.write("src/sums/extra.py", "import os\n")
    assert len((await lint(place, tools=["ruff"])).findings) == 1
    assert file.read_text() == "import os\n"


async def test_paths_that_look_like_options_are_none(place: Place) -> None:
    place.write("--fix/bad.py", "import os\n")
    found = await lint(place, paths=["--fix"], tools=["ruff"])
    assert [line.split(":")[0] for line in found.findings] == ["--fix/bad.py"]
    assert (await lint(place, paths=["--fix"], tools=["mypy"])).tools[0].state == "ran"
    for wrong in ("--config=x", "../x", "/etc", "none.py"):
        with pytest.raises(WorkspaceError):
            await lint(place, paths=[wrong])


async def test_thousands_of_findings_are_counted_and_the_first_shown(place: Place) -> None:
    place.write("src/sums/many.py", "".join(f"import a{number}\n" for number in range(3000)))
    found = await lint(place, tools=["ruff"])
    assert found.tools[0].findings == 3000
    assert len(found.findings) + found.more == 3000
    assert "F401 (3,000)" in found.note
    assert len(msgspec.json.encode(found)) < 20_000


async def test_a_linter_that_is_not_there_is_named_with_the_remedy(tmp_path: Path, bwrap: Path) -> None:
    around = {"PATH": f"{bwrap.parent}:/usr/bin:/bin"}
    async with place_in(make_project(tmp_path / "project"), environ=around, python="tools/none") as place:
        found = await lint(place)
        states = {one.tool: one for one in found.tools}
        assert {one.state for one in found.tools} == {"not_available"}
        assert "A person must install mypy" in states["mypy"].detail


@pytest.mark.req("FRG-9")
async def test_in_read_only_mode_linters_run_and_write_nothing(tmp_path: Path, bwrap: Path) -> None:
    async with place_in(make_project(tmp_path / "project"), read_only=True) as place:
        before = sorted(place.root.rglob("*"))
        assert [one.state for one in (await lint(place)).tools] == ["ran", "ran"]
        assert sorted(place.root.rglob("*")) == before


@pytest.mark.req("FRG-9")
async def test_a_plugin_of_mypy_runs_in_the_sandbox(place: Place, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    place.write("plug.py", f"open({str(canary)!r}, 'w')\n")
    place.write("mypy.ini", "[mypy]\nfiles = src\nplugins = ./plug.py\n")
    assert (await lint(place, tools=["mypy"])).tools[0].state == "failed"
    assert not canary.exists()


# Differences


async def test_every_kind_of_change_is_told(place: Place) -> None:
    place.write("old.txt", "a text that is long enough to be known again\n" * 3)
    place.write("gone.txt", "x\n")
    place.write("ünï code\n.txt", "x\n")
    place.commit()
    assert (await diff(place)).changes == []
    place.write("src/sums/__init__.py", "def add(a: int, b: int) -> int:\n    return b + a\n")
    place.git("mv", "old.txt", "new.txt")
    (place.root / "gone.txt").unlink()
    place.write("ünï code\n.txt", "y\n")
    (place.root / "data.bin").write_bytes(bytes(range(256)))
    place.git("add", "data.bin")
    place.write("fresh.txt", "x\n")
    ran = await diff(place)
    assert {(one.path, one.staged, one.unstaged, one.was) for one in ran.changes} == {
        ("src/sums/__init__.py", "", "modified", ""),
        ("new.txt", "renamed", "", "old.txt"),
        ("gone.txt", "", "deleted", ""),
        ("ünï code\n.txt", "", "modified", ""),
        ("data.bin", "added", "", ""),
    }
    assert ran.untracked == ["fresh.txt"]
    assert ran.files == [], "the diff has all of it"
    numbers = await diff(place, stat_only=True)
    assert {(one.path, one.added, one.deleted, one.binary) for one in numbers.files} == {
        ("src/sums/__init__.py", 1, 1, False),
        ("new.txt", 0, 0, False),
        ("gone.txt", 0, 1, False),
        ("ünï code\n.txt", 1, 1, False),
        ("data.bin", 0, 0, True),
    }
    assert "+    return b + a\n" in ran.diff
    assert "rename from old.txt" in ran.diff
    assert (ran.branch, ran.base) == ("main", "")


async def test_one_path_what_is_staged_and_an_older_state_can_be_asked_for(place: Place) -> None:
    place.commit()
    place.write("a.txt", "1\n")
    place.commit()
    place.write("a.txt", "2\n")
    place.git("add", "a.txt")
    place.write("a.txt", "3\n")
    place.write(".gitignore", "")
    assert "+3\n" in (await diff(place, path="a.txt")).diff
    assert [one.path for one in (await diff(place, path="a.txt")).changes] == ["a.txt"]
    staged = (await diff(place, staged=True)).diff
    assert "+2\n" in staged
    assert "+3\n" not in staged
    older = await diff(place, base="HEAD~1", path="a.txt")
    assert "new file" in older.diff
    assert (await diff(place, stat_only=True)).diff == ""


async def test_a_repository_without_a_commit_is_compared_with_nothing(place: Place) -> None:
    place.git("init", "--quiet", "--initial-branch=main")
    place.git("add", "pyproject.toml")
    ran = await diff(place)
    assert [(one.path, one.staged) for one in ran.changes] == [("pyproject.toml", "added")]
    assert "new file" in ran.diff
    assert "tests/" in ran.untracked


async def test_a_large_diff_is_cut_with_what_to_do_next(place: Place) -> None:
    for number in range(30):
        place.write(f"big{number:02}.txt", "\n".join(map(str, range(2000))))
    place.commit()
    for number in range(30):
        place.write(f"big{number:02}.txt", "\n".join(f"{line}!" for line in range(2000)))
    done = await place.do(project_diff, ProjectDiffArguments())
    ran = done.data
    assert isinstance(ran, ProjectDiffResult)
    assert len(ran.diff) <= place.scene.settings.limits.output
    assert (ran.added, ran.deleted) == (60_000, 60_000)
    assert "big29.txt" in ran.not_shown
    assert "as `path`" in done.text
    small = await diff(place, limit=500, path="big00.txt")
    assert len(small.diff) <= 500
    assert small.not_shown == ["big00.txt"]


@pytest.mark.req("FRG-9")
async def test_arguments_that_look_like_options_are_none_for_git(place: Place) -> None:
    place.write("--output=evil", "1\n")
    place.write(":(glob)x", "1\n")
    place.commit()
    place.write("--output=evil", "2\n")
    place.write(":(glob)x", "2\n")
    assert [one.path for one in (await diff(place, path="--output=evil")).changes] == ["--output=evil"]
    assert [one.path for one in (await diff(place, path=":(glob)x")).changes] == [":(glob)x"]
    for base in ("--output=/tmp/x", "-h", "HEAD:pyproject.toml", "a..b", "nosuch", "HEAD^{tree}"):
        with pytest.raises(WorkspaceError):
            await diff(place, base=base)
    for path in ("../x", "/etc", "nowhere.txt"):
        with pytest.raises(WorkspaceError):
            await diff(place, path=path)


@pytest.mark.req("FRG-9")
async def test_links_that_lead_out_are_refused_and_those_that_stay_inside_are_followed(
    place: Place, tmp_path: Path
) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "test_out.py").write_text("import os\n")
    (place.root / "out").symlink_to(tmp_path / "outside")
    (place.root / "out.py").symlink_to("../outside/test_out.py")
    (place.root / "in").symlink_to("src")
    place.commit()
    place.write("src/sums/__init__.py", "import os\n")
    for path in ("out", "out.py", "out/test_out.py"):
        for ask in (
            lint(place, paths=[path]),
            diff(place, path=path),
            place.do(run_tests, RunTestsArguments(paths=[path])),
        ):
            with pytest.raises(WorkspaceError, match="leads out of the workspace"):
                await ask
    assert (await lint(place, paths=["in"], tools=["ruff"])).findings[0].startswith("src/sums/__init__.py:1:8 F401")
    assert "+import os" in (await diff(place, path="in/sums")).diff
    (place.root / "src/sums/__init__.py").unlink()
    assert "deleted file" in (await diff(place, path="src/sums/__init__.py")).diff


@pytest.mark.req("FRG-9")
async def test_what_the_settings_hide_is_not_in_a_diff(tmp_path: Path, bwrap: Path) -> None:
    async with place_in(make_project(tmp_path / "project"), hidden=("*.env",)) as place:
        place.write("keys.env", "TOKEN=before\n")
        place.write("open.txt", "a\n")
        place.commit()
        place.write("keys.env", "TOKEN=hunter2\n")
        place.write("open.txt", "b\n")
        place.write("other.env", "x\n")
        done = await place.do(project_diff, ProjectDiffArguments())
        told = msgspec.json.encode(done.data).decode() + done.text
        assert "+b" in told
        assert ".env" not in told
        assert "hunter2" not in told


@pytest.mark.req("FRG-9")
async def test_programs_that_a_repository_names_do_nothing_outside_or_in_the_folder(
    place: Place, tmp_path: Path
) -> None:
    place.write("a.txt", "1\n")
    place.write("filtered.txt", "1\n")
    place.commit()
    outside, inside = tmp_path / "canary", place.root / "canary"
    run = f"sh -c 'touch {outside} {inside}; cat' x"
    place.write(".git/hooks/fsmonitor-watchman", f"#!/bin/sh\ntouch {outside} {inside}\n").chmod(0o755)
    for key, value in {
        "core.fsmonitor": str(place.root / ".git/hooks/fsmonitor-watchman"),
        "core.pager": run,
        "core.hooksPath": str(place.root / ".git/hooks"),
        "diff.external": run,
        "diff.evil.textconv": run,
        "diff.evil.command": run,
        "filter.evil.clean": run,
        "filter.evil.smudge": run,
        "filter.evil.process": run,
        "pager.diff": run,
        "pager.status": run,
        "core.worktree": "/etc",
        "alias.status": f"!{run}",
    }.items():
        place.git("config", key, value)
    place.write(".gitattributes", "a.txt diff=evil\nfiltered.txt filter=evil\n")
    place.write("a.txt", "2\n")
    place.write("filtered.txt", "2\n")
    before = {path: path.stat().st_mtime_ns for path in (place.root / ".git").rglob("*")}
    assert "+2\n" in (await diff(place, path="a.txt")).diff
    with contextlib.suppress(WorkspaceError):
        # A filter that cannot do its work may make git give up; what counts is what it could do.
        await diff(place, path="filtered.txt")
    assert not outside.exists()
    assert not inside.exists()
    assert {path: path.stat().st_mtime_ns for path in (place.root / ".git").rglob("*")} == before
    # The control: the same repository, asked without a sandbox, does run them.
    with contextlib.suppress(subprocess.CalledProcessError):
        place.git("--work-tree=.", "status")
    assert outside.exists()


async def test_without_a_repository_of_its_own_the_folder_gets_a_clear_answer(tmp_path: Path, bwrap: Path) -> None:
    async with place_in(make_project(tmp_path / "project")) as place:
        with pytest.raises(WorkspaceError, match="not a git repository"):
            await diff(place)
        place.commit()
        place.git("worktree", "add", "--quiet", str(tmp_path / "tree"))
        place.write("sub/a.txt", "")
    async with place_in(tmp_path / "project" / "sub") as place:
        with pytest.raises(WorkspaceError, match="starts above it"):
            await diff(place)
    async with place_in(tmp_path / "tree") as place:
        with pytest.raises(WorkspaceError, match="outside the workspace") as caught:
            await diff(place)
        assert "readable" in (caught.value.remedy or "")


async def test_a_repository_that_is_broken_is_told_as_such(place: Place) -> None:
    place.commit()
    place.write(".git/HEAD", "nonsense\n")
    with pytest.raises(WorkspaceError, match="git cannot read this repository"):
        await diff(place)
