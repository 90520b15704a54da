"""The survey of a folder, submodules in git's index, and placeholders that protect git's files."""

from __future__ import annotations

import contextlib
import itertools
import os
import struct
import subprocess
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from parts.tool_context import refused
from toolcrib.workspace.folder import Folder
from toolcrib.workspace.sandbox import survey as surveys
from toolcrib.workspace.sandbox.git_protection import PLACEHOLDER_BIT, Placeholders, submodule_paths
from toolcrib.workspace.sandbox.survey import AT_THE_START, NotAnIndex, SurveyBounds, submodule_links, survey

pytestmark = pytest.mark.req("FRG-9")

FEW = SurveyBounds(entries=10, depth=3, seconds=5)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    (tmp_path / "project").mkdir()
    with contextlib.closing(Folder(tmp_path / "project", hidden=("*.key",))) as folder:
        yield folder


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    (tmp_path / "outside" / "b").mkdir(parents=True)
    return tmp_path / "outside"


def flood(place: Path) -> None:
    for number in range(20):
        (place / f"{number}").touch()


def test_a_survey_does_not_follow_links_and_forgets_missing_repositories(folder: Folder, outside: Path):
    (folder.root / "a").symlink_to(outside)
    assert surveys.look_at(folder, ("a", "b")) is None
    for known in ([("a", "b", ".git")], [("x", ".git"), ("y", ".toolcrib")]):
        assert not survey(folder, AT_THE_START, hides=False, known=known).known()


def test_known_repositories_are_found_behind_any_number_of_files(folder: Folder):
    (folder.root / "x" / "y" / "z" / "deep" / ".git").mkdir(parents=True)
    flood(folder.root)
    known = survey(folder, AT_THE_START, hides=False).known()
    assert known == [("x", "y", "z", "deep", ".git")]
    assert not survey(folder, FEW, hides=False).is_whole
    assert survey(folder, FEW, hides=False, known=known).known() == known


def test_a_closed_folder_is_reported(folder: Folder):
    (folder.root / "a" / "b" / ".git").mkdir(parents=True)
    try:
        for mode, known in itertools.product((0o000, 0o111, 0o444, 0o300, 0o055), ([], [("a", "b", ".git")])):
            (folder.root / "a").chmod(mode)
            seen = survey(folder, AT_THE_START, hides=False, known=known)
            assert [found.parts for found in seen.closed] == [("a",)]
            assert not seen.repositories
    finally:
        (folder.root / "a").chmod(0o755)


def test_an_incomplete_survey_is_an_error_if_files_are_hidden(folder: Folder):
    (folder.root / "x.key" / ".git").mkdir(parents=True)
    (folder.root / "a" / "b").mkdir(parents=True)
    for bounds, known in ((FEW, []), (AT_THE_START, [("x.key", ".git")])):
        seen = survey(folder, bounds, hides=True, known=known)
        assert [found.parts for found in seen.hidden] == [("x.key",)]
        assert not seen.repositories
    flood(folder.root)
    refused("too many files", survey, folder, FEW, hides=True)
    refused("too many files or levels", survey, folder, SurveyBounds(entries=100, depth=2, seconds=5), hides=True)
    refused("0 s", survey, folder, SurveyBounds(entries=100, depth=9, seconds=0), hides=True)


def test_known_repositories_come_first_and_too_many_are_reported(folder: Folder, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(surveys, "MAX_PATHS", 3)
    (folder.root / "z" / ".git").mkdir(parents=True)
    known = survey(folder, AT_THE_START, hides=False).known()
    for name in "abcdef":
        (folder.root / name / ".git").mkdir(parents=True)
    for hides in (False, True):
        seen = survey(folder, AT_THE_START, hides=hides, known=known)
        assert seen.known()[0] == ("z", ".git")
        assert len(seen.repositories) == 3
        assert seen.is_crowded


def test_a_path_that_is_too_long_to_mount_is_skipped(folder: Folder):
    place = os.open(folder.root, os.O_RDONLY)
    for _ in range(15):
        os.mkdir("d" * 255, dir_fd=place)
        below = os.open("d" * 255, os.O_RDONLY, dir_fd=place)
        os.close(place)
        place = below
    os.mkdir(".git", dir_fd=place)
    os.close(place)
    seen = survey(folder, AT_THE_START, hides=False)
    assert (list(seen.repositories), seen.is_whole, seen.is_crowded) == ([], False, False)


def git(place: Path, *words: str) -> None:
    environment = {"PATH": os.environ["PATH"], "HOME": str(place.parent), "GIT_CONFIG_NOSYSTEM": "1"}
    subprocess.run(["git", *words], cwd=place, check=True, env=environment, capture_output=True)


def add_submodule(place: Path, name: str) -> None:
    git(place, "update-index", "--add", "--cacheinfo", f"160000,{'1234567890' * 4},{name}")


@pytest.mark.parametrize("version", ["2", "3", "4"])
def test_submodules_are_read_from_gits_index_and_from_a_split_one(folder: Folder, version: str):
    git(folder.root, "init", "-q")
    git(folder.root, "update-index", "--index-version", version)
    for name in ("a", "a.txt", "dir/b", "ü/c", "x" * 200):
        (folder.root / name).parent.mkdir(exist_ok=True, parents=True)
        (folder.root / name).write_text(name)
    git(folder.root, "add", ".")
    names = ["sub", "deep/er/sub", "ö sub", "y" * 130]
    for name in names:
        add_submodule(folder.root, name)
    if version == "3":
        (folder.root / "later").write_text("")
        git(folder.root, "add", "-N", "later")
    found = submodule_links((folder.root / ".git/index").read_bytes())
    assert sorted(found) == sorted(name.encode() for name in names)
    git(folder.root, "update-index", "--split-index")
    add_submodule(folder.root, "later-sub")
    assert {("sub",), ("deep", "er", "sub"), ("later-sub",)} <= set(submodule_paths(folder))


def index(version: int, count: int, entries: bytes) -> bytes:
    return struct.pack(">4sII", b"DIRC", version, count) + entries


def entry(name: bytes) -> bytes:
    body = bytes(24) + struct.pack(">I", 0o160000) + bytes(12) + bytes(20) + struct.pack(">H", len(name)) + name
    return body + bytes(8 - len(body) % 8)


def packed(cut: bytes, name: bytes) -> bytes:
    """An entry of version 4: how many bytes to remove from the previous path, and which to add."""
    return bytes(24) + struct.pack(">I", 0o160000) + bytes(12) + bytes(20) + bytes(2) + cut + name + b"\0"


def test_submodule_paths_that_lead_out_are_ignored(folder: Folder):
    assert submodule_paths(folder) == []
    (folder.root / ".git").write_text("gitdir: elsewhere\n")
    assert submodule_paths(folder) == []
    (folder.root / ".git").unlink()
    (folder.root / ".git").mkdir()
    entries = b"".join(map(entry, (b"../out", b"/abs", b"a//b", b"./x", b"fine")))
    (folder.root / ".git/index").write_bytes(index(2, 5, entries))
    assert submodule_paths(folder) == [("fine",)]


HOSTILE = {
    "a growing path": index(4, 5001, packed(b"\0", b"a" * 4000) + packed(b"\0", b"b") * 5000),
    "a long path": index(2, 1, entry(b"a" * 5000)),
    "a path cut below nothing": index(4, 1, packed(b"\5", b"a")),
    "an endless number": index(4, 1, packed(b"\xff" * 100_000, b"a")),
    "many submodules": index(2, 300, entry(b"a") * 300),
    "an unknown kind of entry": index(2, 1, bytes(100)),
    "an impossible number of entries": index(2, 2**31, entry(b"a")),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
def test_an_index_made_to_use_memory_or_time_is_refused(folder: Folder, data: bytes):
    tracemalloc.start()
    with pytest.raises(NotAnIndex):
        submodule_links(data)
    assert tracemalloc.get_traced_memory()[1] < 4 * 1024 * 1024
    tracemalloc.stop()
    (folder.root / ".git").mkdir()
    (folder.root / ".git/index").write_bytes(data)
    with pytest.raises(NotAnIndex):
        submodule_paths(folder)


def test_an_index_that_takes_too_long_is_refused():
    data = index(2, 3, entry(b"a") * 3)
    assert submodule_links(data, time.monotonic() + 60) == [b"a"] * 3
    with pytest.raises(surveys.IndexTooLarge, match="too long"):
        submodule_links(data, time.monotonic() - 1)


@given(data=st.binary(max_size=400))
def test_reading_any_bytes_as_an_index_ends(data: bytes):
    for content in (data, b"DIRC" + data, index(4, 3, data)):
        with contextlib.suppress(NotAnIndex):
            assert isinstance(submodule_links(content), list)


def test_placeholders_are_removed_even_after_an_error(folder: Folder):
    with pytest.raises(ValueError, match="fails"), Placeholders(folder) as held:
        for name in (".git", "a", "a/b"):
            held.hold(name, None)
        held.hold("file", b"content\n")
        assert (folder.root / ".git").is_dir()
        assert (folder.root / "file").read_bytes() == b"content\n"
        raise ValueError("fails")
    assert not list(folder.root.iterdir())


@pytest.mark.parametrize("first_ends_first", [True, False])
def test_a_placeholder_is_removed_by_its_last_holder(folder: Folder, first_ends_first: bool):
    holders = [Placeholders(folder), Placeholders(folder)]
    for holder in holders:
        holder.hold(".git", None)
    for holder in holders if first_ends_first else reversed(holders):
        assert (folder.root / ".git").is_dir()
        holder.__exit__(None, None, None)
    assert not (folder.root / ".git").exists()


def test_changed_placeholders_and_existing_files_are_kept(folder: Folder):
    (folder.root / "hooks").mkdir()
    (folder.root / "config").touch()
    with Placeholders(folder) as held:
        assert held.may_be_one("hooks", None)
        for name, content in (("hooks", None), ("config", b""), (".git", None), ("file", b"")):
            held.hold(name, content)
        (folder.root / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
        (folder.root / "file").write_text("a person's\n")
    assert (folder.root / "hooks").is_dir()
    assert (folder.root / "config").exists()
    assert (folder.root / ".git" / "HEAD").exists()
    assert (folder.root / "file").read_text() == "a person's\n"


def test_placeholders_of_a_killed_process_are_removed_but_no_file_in_their_place(folder: Folder):
    killed = Placeholders(folder)
    killed.hold(".git", None)
    for held_before in killed._held:
        # A process that ends releases its locks.
        held_before.close()
    with Placeholders(folder) as held:
        held.hold(".git", None)
    assert not (folder.root / ".git").exists()
    (folder.root / ".git").write_text("gitdir: x\n")
    with Placeholders(folder) as held:
        refused("", held.hold, ".git", None)
    assert (folder.root / ".git").read_text() == "gitdir: x\n"


def test_placeholders_never_follow_a_link(folder: Folder, outside: Path):
    (folder.root / ".git").symlink_to(outside)
    (folder.root / "file").symlink_to(outside / "made")
    (folder.root / "a").symlink_to(outside)
    before = outside.stat(), (outside / "b").stat()
    with Placeholders(folder) as held:
        assert not held.may_be_one("a/b", None)
        for name, content in ((".git", None), ("file", b""), ("a/b", None), ("a/c", None), ("a/d", b"")):
            refused("cannot be protected", held.hold, name, content)
    # Times first, because listing a folder changes one of them.
    assert before == (outside.stat(), (outside / "b").stat())
    assert [path.name for path in outside.iterdir()] == ["b"]
    assert (folder.root / ".git").is_symlink()


def test_a_folder_replaced_by_a_link_is_still_the_one_that_is_cleaned(folder: Folder, outside: Path):
    (outside / "b").chmod(PLACEHOLDER_BIT | 0o755)
    (folder.root / "a").mkdir()
    with Placeholders(folder) as held:
        held.hold("a/b", None)
        (folder.root / "a").rename(folder.root / "away")
        (folder.root / "a").symlink_to(outside)
    assert (outside / "b").is_dir()
    assert not (folder.root / "away" / "b").exists()
