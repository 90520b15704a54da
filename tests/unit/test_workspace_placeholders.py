"""What stands where nothing may be made is gone afterwards, and nothing else is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from toolcrib.errors import WorkspaceError
from toolcrib.workspace.folder import Folder
from toolcrib.workspace.sandbox.git_protection import PLACEHOLDER_BIT, Placeholders

pytestmark = pytest.mark.req("FRG-9")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    made = Folder(tmp_path)
    yield made
    made.close()


def test_they_come_and_go(folder: Folder) -> None:
    with Placeholders(folder) as held:
        held.hold(".git", None)
        held.hold("file", b"content\n")
        assert (folder.root / ".git").is_dir()
        assert (folder.root / "file").read_bytes() == b"content\n"
    assert not list(folder.root.iterdir())


def test_also_when_something_fails(folder: Folder) -> None:
    with pytest.raises(ValueError, match="fails"), Placeholders(folder) as held:
        held.hold("a", None)
        held.hold("a/b", None)
        raise ValueError("fails")
    assert not list(folder.root.iterdir())


def test_the_last_of_several_removes(folder: Folder) -> None:
    with Placeholders(folder) as one:
        one.hold(".git", None)
        with Placeholders(folder) as two:
            two.hold(".git", None)
        assert (folder.root / ".git").is_dir()
    assert not (folder.root / ".git").exists()


def test_the_first_leaves_it_to_the_last(folder: Folder) -> None:
    one, two = Placeholders(folder), Placeholders(folder)
    one.hold(".git", None)
    two.hold(".git", None)
    one.__exit__(None, None, None)
    assert (folder.root / ".git").is_dir()
    two.__exit__(None, None, None)
    assert not (folder.root / ".git").exists()


def test_what_came_in_stays(folder: Folder) -> None:
    with Placeholders(folder) as held:
        held.hold(".git", None)
        held.hold("file", b"")
        (folder.root / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
        (folder.root / "file").write_text("a person's\n")
    assert (folder.root / ".git" / "HEAD").exists()
    assert (folder.root / "file").read_text() == "a person's\n"


def test_what_was_there_stays_even_if_empty(folder: Folder) -> None:
    (folder.root / "hooks").mkdir()
    (folder.root / "config").touch()
    with Placeholders(folder) as held:
        assert held.may_be_one("hooks", None)
        held.hold("hooks", None)
        held.hold("config", b"")
    assert (folder.root / "hooks").is_dir()
    assert (folder.root / "config").exists()


def test_what_a_killed_one_left_is_removed(folder: Folder) -> None:
    killed = Placeholders(folder)
    killed.hold(".git", None)
    for held_before in killed._held:
        # The end of a process lets go of its locks.
        held_before.close()
    with Placeholders(folder) as held:
        held.hold(".git", None)
    assert not (folder.root / ".git").exists()


def test_a_link_is_never_followed(folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("outside")
    (folder.root / ".git").symlink_to(outside)
    (folder.root / "file").symlink_to(outside / "made")
    with Placeholders(folder) as held:
        for attempt in (lambda: held.hold(".git", None), lambda: held.hold("file", b"")):
            with pytest.raises(WorkspaceError, match="cannot be protected"):
                attempt()
    assert not list(outside.iterdir())
    assert (folder.root / ".git").is_symlink()


def test_a_link_on_the_way_is_never_followed_either(folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("outside")
    (outside / "b").mkdir()
    (folder.root / "a").symlink_to(outside)
    before = outside.stat(), (outside / "b").stat()
    with Placeholders(folder) as held:
        assert not held.may_be_one("a/b", None)
        for attempt in (
            lambda: held.hold("a/b", None),
            lambda: held.hold("a/c", None),
            lambda: held.hold("a/d", b""),
        ):
            with pytest.raises(WorkspaceError, match="cannot be protected"):
                attempt()
    # First the times: looking into a folder changes one of them.
    assert before == (outside.stat(), (outside / "b").stat())
    assert [path.name for path in outside.iterdir()] == ["b"]


def test_a_folder_exchanged_for_a_link_meanwhile_is_still_the_one_that_is_tidied(
    folder: Folder, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.mktemp("outside")
    (outside / "b").mkdir()
    (outside / "b").chmod(PLACEHOLDER_BIT | 0o755)
    (folder.root / "a").mkdir()
    with Placeholders(folder) as held:
        held.hold("a/b", None)
        (folder.root / "a").rename(folder.root / "away")
        (folder.root / "a").symlink_to(outside)
    assert (outside / "b").is_dir()
    assert not (folder.root / "away" / "b").exists()


def test_something_else_in_its_place_is_an_error(folder: Folder) -> None:
    (folder.root / ".git").write_text("gitdir: x\n")
    with Placeholders(folder) as held, pytest.raises(WorkspaceError):
        held.hold(".git", None)
    assert (folder.root / ".git").read_text() == "gitdir: x\n"
