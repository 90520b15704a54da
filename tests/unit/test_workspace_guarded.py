"""No tool makes a repository of a folder, or writes what other programs obey when a person opens it."""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from parts.scenes import scene_in
from toolcrib.errors import WorkspaceError
from toolcrib.workspace.settings.model import GUARDED
from toolcrib.workspace.tool import ToolContext
from toolcrib.workspace.tools.files import (
    EditFileArguments,
    ReadFileArguments,
    WriteFileArguments,
    WriteMode,
    edit_file,
    read_file,
    write_file,
)
from toolcrib.workspace.tools.listing import StatFileArguments, StatFileResult, stat_file

pytestmark = pytest.mark.req("FRG-9")

REF, HASH = "ref: refs/heads/main\n", "0123456789abcdef0123456789abcdef01234567\n"


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[ToolContext]:
    (tmp_path / "root" / "sub").mkdir(parents=True)
    with scene_in(tmp_path / "root") as scene:
        yield scene


@pytest.fixture
def root(scene: ToolContext) -> Path:
    return scene.folder.root


def write(scene: ToolContext, path: str, content: str, mode: WriteMode = WriteMode.OVERWRITE) -> None:
    write_file(scene, WriteFileArguments(path=path, content=content, mode=mode))


def is_repository(place: Path) -> bool:
    """By the word of a person's git, which runs what the configuration there names."""
    environ = {"PATH": os.environ["PATH"], "HOME": str(place), "GIT_CEILING_DIRECTORIES": str(place.parent)}
    words = ["git", "-c", "safe.directory=*", "-C", str(place), "status"]
    done = subprocess.run(words, env=environ, capture_output=True, timeout=60, check=False)
    return b"not a git repository" not in done.stderr


def evil(root: Path) -> str:
    program = root.parent / "evil"
    program.write_text(f"#!/bin/sh\ntouch {root.parent}/PWNED\n")
    program.chmod(0o755)
    return f"[core]\nrepositoryformatversion = 0\nbare = false\nworktree = .\nfsmonitor = {program}\n"


PARTS = ("HEAD", "config", "objects/x", "refs/x")


def contents(root: Path) -> dict[str, str]:
    return {"HEAD": REF, "config": evil(root), "objects/x": "", "refs/x": ""}


def test_written_by_somebody_else_these_files_are_a_repository_that_runs_a_program(root: Path) -> None:
    """The control for what follows."""
    for name, content in contents(root).items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(content)
    assert is_repository(root)
    assert (root.parent / "PWNED").exists()


@pytest.mark.parametrize("place", ["", "sub/"])
def test_in_no_order_of_writing_does_a_folder_become_a_repository(scene: ToolContext, root: Path, place: str) -> None:
    for number, order in enumerate(itertools.permutations(PARTS)):
        for name in order:
            content = contents(root)[name]
            if name == "HEAD":
                with pytest.raises(WorkspaceError, match="treat its folder as a repository") as refused:
                    write(scene, f"{place}{number}/HEAD", content)
                assert "repositories: true in workspace.yml" in refused.value.remedy
            else:
                write(scene, f"{place}{number}/{name}", content)
    folders = [root / place / str(number) for number in range(24)]
    assert all((folder / "refs" / "x").exists() for folder in folders)
    assert not any(map(is_repository, (folders[0], folders[-1])))
    assert not list(root.rglob("HEAD"))


@pytest.mark.parametrize("content", [REF, "ref:refs/x", "ref: \t refs/heads/x", HASH, HASH.upper(), HASH * 3])
@pytest.mark.parametrize("name", ["HEAD", "head", "HeAd", "HEAD.", "HEAD::$DATA"])
def test_no_spelling_of_a_head_is_written(scene: ToolContext, root: Path, name: str, content: str) -> None:
    with pytest.raises(WorkspaceError, match="as a repository"):
        write(scene, name, content)
    assert not (root / name).exists()


def test_nor_is_one_written_piece_by_piece_or_through_a_link(scene: ToolContext, root: Path) -> None:
    write(scene, "HEAD", "ref: re")
    (root / "way").symlink_to("HEAD")
    for attempt in (
        lambda: write(scene, "HEAD", "fs/heads/x", WriteMode.APPEND),
        lambda: write(scene, "way", REF),
        lambda: edit_file(scene, EditFileArguments(path="HEAD", old="ref: re", new=REF)),
    ):
        with pytest.raises(WorkspaceError):
            attempt()
    assert (root / "HEAD").read_text() == "ref: re"


def test_ordinary_files_of_these_names_are_written(scene: ToolContext, root: Path) -> None:
    for name in ("config", "refs/config", "objects/refs", "hooks/x", "commondir", "HEAD", "src/head", "info"):
        write(scene, name, "ordinary\n")
        assert (root / name).read_text() == "ordinary\n"
    edit_file(scene, EditFileArguments(path="HEAD", old="ordinary", new="ref to something else"))


@pytest.mark.parametrize("as_link", [False, True], ids=["file", "link"])
@pytest.mark.parametrize("name", ["objects/x", "refs/x", "commondir", "config", "Config", "hooks/pre-commit"])
def test_what_has_a_head_already_becomes_no_repository_and_no_other_one(
    scene: ToolContext, root: Path, name: str, as_link: bool
) -> None:
    head = root / "sub" / "HEAD"
    head.symlink_to("refs/heads/x") if as_link else head.write_text(REF)
    with pytest.raises(WorkspaceError, match="sub has a git HEAD"):
        write(scene, f"sub/{name}", "x")
    assert {path.name for path in (root / "sub").iterdir()} == {"HEAD"}
    write(scene, "sub/main.py", "fine")


def test_a_person_can_allow_repositories(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    with scene_in(tmp_path / "root", repositories=True) as scene:
        write(scene, "HEAD", REF)
    assert (tmp_path / "root" / "HEAD").read_text() == REF


@pytest.mark.parametrize("pattern", GUARDED)
def test_what_other_programs_obey_is_read_and_not_written(scene: ToolContext, root: Path, pattern: str) -> None:
    name = pattern.replace("*", "a")
    (root / "sub" / name).write_text("as it was\n")
    for path in (f"{name}/new", name.upper(), f"sub/{name}", f"sub/{name}.", f"new/{name}/deep/x"):
        with pytest.raises(WorkspaceError) as refused:
            write(scene, path, "x")
        assert f'guarded: {{"{pattern}": off}}' in str(refused.value), path
    with pytest.raises(WorkspaceError):
        edit_file(scene, EditFileArguments(path=f"sub/{name}", old="as", new="so"))
    assert [path.name for path in root.rglob("*")] == ["sub", name]
    assert "as it was" in read_file(scene, ReadFileArguments(path=f"sub/{name}")).text
    told = stat_file(scene, StatFileArguments(path=f"sub/{name}")).data
    assert isinstance(told, StatFileResult)
    assert "guarded" in told.why_not


def test_no_link_leads_to_what_is_guarded(scene: ToolContext, root: Path) -> None:
    (root / ".vscode").mkdir()
    (root / "way").symlink_to(".vscode")
    with pytest.raises(WorkspaceError, match=r"\.vscode"):
        write(scene, "way/tasks.json", "{}")
    assert not list((root / ".vscode").iterdir())


def test_what_is_near_by_name_is_written(scene: ToolContext, root: Path) -> None:
    for name in (".vscodes", "vscode/x", ".env", "AGENTS.md", "CLAUDE.md", "code-workspace", ".github/x.yml"):
        write(scene, name, "x")
        assert (root / name).read_text() == "x"


def test_a_person_can_guard_more_and_allow_some(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    guarded = (*(pattern for pattern in GUARDED if pattern != ".vscode"), "deploy/**", "*.tf")
    with scene_in(tmp_path / "root", guarded=guarded) as scene:
        write(scene, ".vscode/settings.json", "{}")
        for path in ("deploy/x", "deploy/a/b", "a/main.tf", "MAIN.TF", ".idea/x"):
            with pytest.raises(WorkspaceError, match="other programs obey"):
                write(scene, path, "x")
