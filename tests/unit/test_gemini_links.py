"""Links in a run's folder that lead into what is kept from a program's own tools are found, in a limited time."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolcrib.coding_agents.known import gemini_policy
from toolcrib.coding_agents.known.gemini_policy import LinkAliases, aliases_of
from toolcrib.errors import UsageError

pytestmark = pytest.mark.req("FRG-5")


def found(folder: Path) -> LinkAliases:
    return aliases_of((".kept",), folder, not_into=(".git", "node_modules"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "folder"
    (made / ".kept" / "inner").mkdir(parents=True)
    (made / ".kept" / "file").write_text("x")
    (made / "a" / "b").mkdir(parents=True)
    return made


def test_only_links_into_the_folders_are_found(folder: Path, tmp_path: Path) -> None:
    (folder / "one").symlink_to(".kept")
    (folder / "a" / "two").symlink_to(folder / ".kept" / "inner")
    (folder / "a" / "b" / "three").symlink_to("../two")
    (folder / "four").symlink_to(".kept/not-there-yet")
    (folder / "five").hardlink_to(folder / ".kept" / "file")
    (folder / "plain").symlink_to("a")
    (folder / "up").symlink_to(".")
    (folder / "out").symlink_to(tmp_path)
    (folder / "loop").symlink_to("loop")
    (folder / "node_modules").mkdir()
    (folder / "node_modules" / "six").symlink_to("../.kept")
    (tmp_path / "way").symlink_to(folder)
    wanted = LinkAliases(names=frozenset({"one", "two", "three", "four", "five"}))
    assert found(folder) == wanted
    assert found(tmp_path / "way") == wanted


def test_a_kept_folder_that_is_a_link_itself_is_known_by_what_it_leads_to(folder: Path) -> None:
    (folder / "a" / ".KEPT").symlink_to("b")
    (folder / "other").symlink_to("a/b")
    assert found(folder).names == {"b", "other"}


def test_a_kept_folder_that_is_the_whole_one_is_refused(folder: Path) -> None:
    (folder / "a" / ".kept").symlink_to("..")
    with pytest.raises(UsageError, match="a link to the folder itself"):
        found(folder)


def test_too_many_links_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemini_policy, "MAX_ALIASES", 2)
    for name in ("one", "two", "three"):
        (folder / name).symlink_to(".kept")
    with pytest.raises(UsageError, match=r"3 links lead into \.kept"):
        found(folder)


@pytest.mark.parametrize(("limit", "value"), [("MAX_ENTRIES", 3), ("MAX_SECONDS", -1.0)])
def test_a_folder_that_is_too_large_is_not_said_to_be_looked_through(
    folder: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: float
) -> None:
    assert found(folder).are_all
    monkeypatch.setattr(gemini_policy, limit, value)
    assert not found(folder).are_all
