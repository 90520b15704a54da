"""An agent's folder is private and removed as a whole; nothing outside it is ever changed."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from toolcrib.errors import StoreError
from toolcrib.identity.agent_folders import AgentFolders

pytestmark = pytest.mark.req("KSI-2")


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return tmp_path / "state" / "agents"


@pytest.fixture
def folders(base: Path) -> AgentFolders:
    return AgentFolders(base)


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "token").write_text("mine")
    return folder


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_folder_is_private_whatever_its_mode_was(folders: AgentFolders, base: Path) -> None:
    base.mkdir(parents=True, mode=0o755)
    before = os.umask(0)
    try:
        folders.make("a", "tcb_1")
    finally:
        os.umask(before)
    assert (mode(base), mode(base / "a"), mode(base / "a" / "token")) == (0o700, 0o700, 0o600)
    (base / "a").chmod(0o777)
    folders.stage("a", "tcb_2")
    assert (mode(base / "a"), mode(base / "a" / "token.new")) == (0o700, 0o600)


def test_a_new_agents_folder_has_no_files_of_an_earlier_one(folders: AgentFolders) -> None:
    folders.make("a", "tcb_1")
    (folders.of("a") / "mcp.json").write_text("tcb_1")
    folders.make("a", "tcb_2")
    assert tokens_in(folders.of("a")) == {"token": "tcb_2\n"}


def tokens_in(folder: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in folder.iterdir() if file.name != "store"}


def test_a_staged_token_replaces_the_old_one_or_is_deleted(folders: AgentFolders) -> None:
    folders.make("a", "tcb_1")
    (folders.of("a") / ".token.new.part").write_text("half written by a crash")
    folders.stage("a", "tcb_2")
    assert folders.token_file("a").read_text() == "tcb_1\n"
    folders.settle("a", lambda staged: staged == "tcb_2")
    assert tokens_in(folders.of("a")) == {"token": "tcb_2\n"}
    folders.stage("a", "tcb_3")
    folders.settle("a", lambda _: False)
    folders.settle("a", lambda _: True)
    assert tokens_in(folders.of("a")) == {"token": "tcb_2\n"}


def test_a_token_can_be_staged_if_the_folder_is_missing(folders: AgentFolders) -> None:
    folders.stage("a", "tcb_1")
    folders.settle("a", lambda staged: staged == "tcb_1")
    assert folders.token_file("a").read_text() == "tcb_1\n"
    folders.settle("nobody", lambda _: True)
    folders.remove("nobody")


@pytest.mark.parametrize("what", ["agent", "base"])
def test_a_link_instead_of_a_folder_is_not_followed(
    folders: AgentFolders, base: Path, outside: Path, what: str
) -> None:
    if what == "agent":
        base.mkdir(parents=True)
        (base / "a").symlink_to(outside)
    else:
        base.parent.mkdir(parents=True)
        base.symlink_to(outside)
        (outside / "a").mkdir()
    for work in (lambda: folders.stage("a", "tcb_1"), lambda: folders.settle("a", lambda _: True)):
        with pytest.raises(StoreError, match="cannot be used for an agent's files") as caught:
            work()
        assert "not a link" in caught.value.remedy
    assert (outside / "token").read_text() == "mine"
    assert not (outside / "token.new").exists()


def test_a_link_instead_of_a_token_is_neither_read_nor_written(folders: AgentFolders, outside: Path) -> None:
    folders.make("a", "tcb_1")
    (folders.of("a") / "token").unlink()
    (folders.of("a") / "token").symlink_to(outside / "token")
    (folders.of("a") / "token.new").symlink_to(outside / "token")
    with pytest.raises(StoreError):
        folders.settle("a", lambda _: True)
    folders.stage("a", "tcb_2")
    folders.settle("a", lambda _: True)
    assert folders.token_file("a").read_text() == "tcb_2\n"
    assert (outside / "token").read_text() == "mine"


def test_links_are_removed_without_their_targets(folders: AgentFolders, base: Path, outside: Path) -> None:
    folders.make("keep", "tcb_1")
    folders.make("gone", "tcb_2")
    (base / "gone" / "out").symlink_to(outside)
    (base / "stray").symlink_to(outside)
    (base / "note.txt").write_text("no folder")
    folders.remove("gone")
    assert folders.sweep({"keep"}) == ("stray",)
    assert sorted(path.name for path in base.iterdir()) == ["keep", "note.txt"]
    assert [path.name for path in outside.iterdir()] == ["token"]


def test_two_databases_share_a_folder_without_removing_each_others_agents(base: Path) -> None:
    one, other = AgentFolders(base, store="sqlite"), AgentFolders(base, store="postgresql")
    one.make("a", "tcb_1")
    assert other.sweep(()) == ()
    with pytest.raises(StoreError, match="Another of your databases"):
        other.make("a", "tcb_2")
    assert one.get("a") == "tcb_1"
    assert one.sweep(()) == ("a",)


def test_an_unusable_base_is_reported_with_its_path(base: Path) -> None:
    base.parent.mkdir(parents=True)
    base.write_text("a file in its place")
    with pytest.raises(StoreError) as caught:
        AgentFolders(base).make("a", "tcb_secret")
    assert str(base) in caught.value.message
    assert "tcb_secret" not in caught.value.text()
