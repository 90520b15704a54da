"""run_lint and project_diff without a sandbox: which linters, how findings and git's listings are read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.errors import WorkspaceError
from toolcrib.workspace.folder import Folder
from toolcrib.workspace.tools import project_diff
from toolcrib.workspace.tools.lint import LINTERS, ConfiguredLinters, LinterFailed, configured_linters, read_findings
from toolcrib.workspace.tools.project_diff import GitChange, GitFileStat, diff_text
from toolcrib.workspace.tools.runner import FoundPrograms, Interpreter

pytestmark = pytest.mark.req("FRG-1")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    folder = Folder(tmp_path)
    yield folder
    folder.close()


# Linters


BOTH = ConfiguredLinters(names=("ruff", "mypy"), mypy_has_files=True)


@pytest.mark.parametrize(
    ("files", "used"),
    [
        ({}, ConfiguredLinters(names=("ruff",))),
        ({"pyproject.toml": "[tool.ruff]"}, ConfiguredLinters(names=("ruff",))),
        ({"pyproject.toml": "[tool.mypy]\nstrict = true"}, ConfiguredLinters(names=("mypy",))),
        ({"pyproject.toml": '[tool.mypy]\nfiles = ["a"]\n[tool.ruff.lint]'}, BOTH),
        ({"ruff.toml": ""}, ConfiguredLinters(names=("ruff",))),
        ({".ruff.toml": "", "mypy.ini": "[mypy]\npackages = a"}, BOTH),
        ({"setup.cfg": "[mypy]\n"}, ConfiguredLinters(names=("mypy",))),
        ({"setup.cfg": "[flake8]\n"}, ConfiguredLinters(names=("ruff",))),
        ({"pyproject.toml": "not = toml = at all"}, ConfiguredLinters(names=("ruff",))),
        ({"pyproject.toml": "tool = 3"}, ConfiguredLinters(names=("ruff",))),
        ({"pyproject.toml": "x = " + "[" * 100_000}, ConfiguredLinters(names=("ruff",))),
        ({"mypy.ini": "no section\n"}, ConfiguredLinters(names=("ruff",))),
    ],
)  # fmt: skip
def test_the_projects_files_say_which_linters_it_uses(
    folder: Folder, files: dict[str, str], used: ConfiguredLinters
) -> None:
    for name, text in files.items():
        (folder.root / name).write_text(text)
    assert configured_linters(folder) == used


@pytest.mark.req("FRG-9")
def test_configuration_is_not_read_through_a_link_that_leads_out(
    folder: Folder, tmp_path_factory: pytest.TempPathFactory
) -> None:
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


def test_findings_of_both_linters_have_one_form() -> None:
    ruff = read_findings(LINTERS["ruff"], RUFF, 1, "/root/p")
    mypy = read_findings(LINTERS["mypy"], MYPY, 1, "/root/p")
    assert [(one.tool, one.file, one.line, one.column, one.code, one.severity) for one in ruff + mypy] == [
        ("ruff", "a.py", 1, 8, "F401", "error"),
        ("ruff", "b.py", 1, 7, "", "error"),
        ("mypy", "a.py", 4, 12, "return-value", "error"),
        ("mypy", "c.py", 0, 0, "", "note"),
    ]


def test_a_linter_that_failed_is_not_taken_for_clean() -> None:
    for name, linter in LINTERS.items():
        assert read_findings(linter, b"", 0, "/p") == [], name
        with pytest.raises(LinterFailed):
            read_findings(linter, b"usage: --output\n", 2, "/p")
        with pytest.raises(LinterFailed):
            read_findings(linter, b"", 1, "/p")


@given(st.binary())
def test_hostile_findings_are_passed_over(printed_by: bytes) -> None:
    for linter, good in ((LINTERS["ruff"], RUFF), (LINTERS["mypy"], MYPY)):
        assert len(read_findings(linter, printed_by + b"\n" + good, 1, "/p")) >= 2


def test_linters_get_paths_that_are_no_options() -> None:
    found = FoundPrograms(pythons=(Interpreter(path="p", modules=frozenset({"mypy"})),), programs=frozenset())
    for linter in LINTERS.values():
        said = linter.arguments(("p", "-m", "x"), ConfiguredLinters(names=()), found, ("./-a", "./b"))
        assert said[-3:] == ("--", "./-a", "./b")
    mypy = LINTERS["mypy"].arguments
    assert (
        mypy(("p", "-m", "mypy"), ConfiguredLinters(names=(), mypy_has_files=True), found, ())[-1]
        == "--no-error-summary"
    )
    assert "--python-executable=p" in mypy(("mypy",), ConfiguredLinters(names=()), found, ())


# git


@pytest.mark.parametrize(
    "base", ["main", "HEAD~3", "v1.2", "feature/a-b_c+d#1", "@{upstream}", "HEAD@{1}", "abc123^2", "größe"]
)
def test_revisions_are_known(base: str) -> None:
    assert project_diff.check_revision(base) == base


@pytest.mark.parametrize(
    "base",
    [
        "", "-x", "--output=/tmp/x", "a..b", "a...b", "HEAD:file", ":/text", "a b", "a\nb", "a\0", "^main", "main;x",
        "$(x)", "`x`", "x" * 300, ".git", "a*",
    ],
)  # fmt: skip
def test_what_is_no_single_revision_does_not_reach_git(base: str) -> None:
    with pytest.raises(WorkspaceError):
        project_diff.check_revision(base)


@given(st.text(max_size=20))
def test_a_revision_is_never_an_option_or_two_words(base: str) -> None:
    try:
        good = project_diff.check_revision(base)
    except WorkspaceError:
        return
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


def test_git_status_is_read() -> None:
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


def test_git_numbers_are_read() -> None:
    raw = b"1\t2\ta\tb.py\0" + b"-\t-\tx.png\0" + b"3\t0\t\0old\0new\0" + b"junk\0" + b"9" * 40 + b"\t1\tbig\0"
    assert project_diff.read_numstat(raw) == (
        GitFileStat(path="a\tb.py", added=1, deleted=2),
        GitFileStat(path="x.png", added=0, deleted=0, binary=True),
        GitFileStat(path="new", was="old", added=3, deleted=0),
        GitFileStat(path="big", added=0, deleted=1),
    )


@given(st.binary(), st.booleans())
def test_hostile_listings_of_git_are_passed_over(raw: bytes, after_good: bool) -> None:
    status = project_diff.read_status(STATUS + raw if after_good else raw)
    assert len(status.changes) >= (4 if after_good else 0)
    for file in project_diff.read_numstat(raw):
        assert file.added >= 0 and file.path


def test_a_diff_is_text_that_shows_what_is_there() -> None:
    assert diff_text(b"+a\r\n-\x1b[31mb\0\n+caf\xc3\xa9\xff\t.\n") == "+a\n-\ufffd[31mb\ufffd\n+café\ufffd\t.\n"


def test_without_a_repository_the_error_says_what_is_there_instead(tmp_path: Path) -> None:
    (tmp_path / "up" / "sub").mkdir(parents=True)
    folder = Folder(tmp_path / "up" / "sub")
    try:
        with pytest.raises(WorkspaceError, match="not a git repository"):
            project_diff.check_repository(folder)
        (tmp_path / "up" / ".git").mkdir()
        with pytest.raises(WorkspaceError, match="starts above it") as caught:
            project_diff.check_repository(folder)
        assert f"--root {tmp_path / 'up'}" in caught.value.remedy
        (folder.root / ".git").write_text("gitdir: /somewhere/else/.git/worktrees/sub\n")
        project_diff.check_repository(folder)
        assert "/somewhere/else" in str(project_diff.git_failure(folder, "fatal: not a git repository"))
        (folder.root / ".git").write_bytes(b"gitdir: ../\0\xff\x1b[31m" + b"x" * 10_000)
        said = str(project_diff.git_failure(folder, "fatal"))
        assert "\x1b" not in said
        assert len(said) < 1000
    finally:
        folder.close()
