"""What is looked for in the folder is found, whatever lies in the way, and nothing outside is looked at."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from toolcrib.errors import WorkspaceError
from toolcrib.workspace.folder import Folder
from toolcrib.workspace.sandbox import survey as module
from toolcrib.workspace.sandbox.survey import AT_THE_START, SurveyBounds, look_at, survey

pytestmark = pytest.mark.req("FRG-9")

FEW = SurveyBounds(entries=10, depth=3, seconds=5)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    place = tmp_path / "project"
    place.mkdir()
    made = Folder(place, hidden=("*.key",))
    yield made
    made.close()


def flood(place: Path) -> None:
    for number in range(20):
        (place / f"{number}").touch()


def test_a_link_on_the_way_leads_nowhere(folder: Folder, tmp_path: Path) -> None:
    (tmp_path / "outside" / "b").mkdir(parents=True)
    (folder.root / "a").symlink_to(tmp_path / "outside")
    assert look_at(folder, ("a", "b")) is None
    assert not survey(folder, AT_THE_START, hides=False, known=[("a", "b", ".git")]).known()


def test_what_is_known_is_found_behind_any_number_of_files(folder: Folder) -> None:
    (folder.root / "x" / "y" / "z" / "deep" / ".git").mkdir(parents=True)
    flood(folder.root)
    known = survey(folder, AT_THE_START, hides=False).known()
    assert known == [("x", "y", "z", "deep", ".git")]
    assert not survey(folder, FEW, hides=False).is_whole
    assert survey(folder, FEW, hides=False, known=known).known() == known


def test_what_is_known_and_gone_is_forgotten(folder: Folder) -> None:
    assert not survey(folder, FEW, hides=False, known=[("x", ".git"), ("y", ".toolcrib")]).known()


@pytest.mark.parametrize("mode", [0o000, 0o111, 0o444, 0o300, 0o055])
def test_a_closed_folder_is_found_as_such(folder: Folder, mode: int) -> None:
    (folder.root / "a" / "b" / ".git").mkdir(parents=True)
    (folder.root / "a").chmod(mode)
    try:
        for known in ([], [("a", "b", ".git")]):
            seen = survey(folder, AT_THE_START, hides=False, known=known)
            assert [found.parts for found in seen.closed] == [("a",)]
            assert not seen.repositories
    finally:
        (folder.root / "a").chmod(0o755)


def test_where_files_are_hidden_a_look_in_part_is_an_error(folder: Folder) -> None:
    (folder.root / "x.key").touch()
    (folder.root / "a" / "b").mkdir(parents=True)
    assert [found.parts for found in survey(folder, FEW, hides=True).hidden] == [("x.key",)]
    flood(folder.root)
    with pytest.raises(WorkspaceError, match="too many files"):
        survey(folder, FEW, hides=True)
    with pytest.raises(WorkspaceError, match="too many files or levels"):
        survey(folder, SurveyBounds(entries=100, depth=2, seconds=5), hides=True)
    with pytest.raises(WorkspaceError, match="0 s"):
        survey(folder, SurveyBounds(entries=100, depth=9, seconds=0), hides=True)


def test_known_repositories_come_first_and_too_many_are_said(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PATHS", 3)
    (folder.root / "z" / ".git").mkdir(parents=True)
    known = survey(folder, AT_THE_START, hides=False).known()
    for name in "abcdef":
        (folder.root / name / ".git").mkdir(parents=True)
    for hides in (False, True):
        seen = survey(folder, AT_THE_START, hides=hides, known=known)
        assert seen.known()[0] == ("z", ".git")
        assert len(seen.repositories) == 3
        assert seen.is_crowded


def test_what_is_known_and_hidden_by_now_is_hidden(folder: Folder) -> None:
    (folder.root / "x.key" / ".git").mkdir(parents=True)
    seen = survey(folder, AT_THE_START, hides=True, known=[("x.key", ".git")])
    assert [found.parts for found in seen.hidden] == [("x.key",)]
    assert not seen.repositories


def test_a_path_that_cannot_be_mounted_is_passed_over(folder: Folder) -> None:
    place = os.open(folder.root, os.O_RDONLY)
    for _ in range(15):
        os.mkdir("d" * 255, dir_fd=place)
        below = os.open("d" * 255, os.O_RDONLY, dir_fd=place)
        os.close(place)
        place = below
    os.mkdir(".git", dir_fd=place)
    os.close(place)
    seen = survey(folder, AT_THE_START, hides=False)
    assert not seen.repositories
    assert not seen.is_whole
    assert not seen.is_crowded
