"""Submodules are read from git's index as git writes it, and from nothing else."""

from __future__ import annotations

import os
import struct
import subprocess
import time
import tracemalloc
from pathlib import Path

import hypothesis.strategies as some
import pytest
from hypothesis import given

from toolcrib.workspace.folder import Folder
from toolcrib.workspace.sandbox import git_protection
from toolcrib.workspace.sandbox.survey import IndexTooLarge, NotAnIndex, submodule_links

pytestmark = pytest.mark.req("FRG-9")

COMMIT = "1234567890" * 4


def run(place: Path, *words: str) -> None:
    environment = {"PATH": os.environ["PATH"], "HOME": str(place.parent), "GIT_CONFIG_NOSYSTEM": "1"}
    subprocess.run(["git", *words], cwd=place, check=True, env=environment, capture_output=True)


@pytest.fixture(params=["2", "3", "4"])
def repository(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    place = tmp_path / "project"
    place.mkdir()
    run(place, "init", "-q")
    run(place, "update-index", "--index-version", request.param)
    for name in ("a", "a.txt", "dir/b", "ü/c", "x" * 200):
        (place / name).parent.mkdir(exist_ok=True, parents=True)
        (place / name).write_text(name)
    run(place, "add", ".")
    for name in ("sub", "deep/er/sub", "ö sub", "y" * 130):
        run(place, "update-index", "--add", "--cacheinfo", f"160000,{COMMIT},{name}")
    if request.param == "3":
        (place / "later").write_text("")
        run(place, "add", "-N", "later")
    return place


def test_what_git_writes_is_read(repository: Path) -> None:
    found = submodule_links((repository / ".git/index").read_bytes())
    assert sorted(found) == sorted(name.encode() for name in ("sub", "deep/er/sub", "ö sub", "y" * 130))


def test_a_split_index_is_read_too(repository: Path) -> None:
    run(repository, "update-index", "--split-index")
    run(repository, "update-index", "--add", "--cacheinfo", f"160000,{COMMIT},later-sub")
    folder = Folder(repository)
    assert {("sub",), ("deep", "er", "sub"), ("later-sub",)} <= set(git_protection.submodule_paths(folder))
    folder.close()


def test_without_a_repository_there_are_none(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    assert git_protection.submodule_paths(folder) == []
    (tmp_path / ".git").write_text("gitdir: elsewhere\n")
    assert git_protection.submodule_paths(folder) == []
    folder.close()


def test_paths_that_lead_out_are_passed_over(tmp_path: Path) -> None:
    entries = b"".join(_entry(name) for name in (b"../out", b"/abs", b"a//b", b"./x", b"fine"))
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git/index").write_bytes(struct.pack(">4sII", b"DIRC", 2, 5) + entries)
    folder = Folder(tmp_path)
    assert git_protection.submodule_paths(folder) == [("fine",)]
    folder.close()


def _entry(name: bytes) -> bytes:
    body = bytes(24) + struct.pack(">I", 0o160000) + bytes(12) + bytes(20) + struct.pack(">H", len(name)) + name
    return body + bytes(8 - len(body) % 8)


def _packed(cut: bytes, name: bytes, mode: int = 0o160000) -> bytes:
    """An entry of version 4: so many bytes less of the path before, and then this."""
    return bytes(24) + struct.pack(">I", mode) + bytes(12) + bytes(20) + bytes(2) + cut + name + b"\0"


HOSTILE = {
    "a path that grows": (4, _packed(b"\0", b"a" * 4000) + _packed(b"\0", b"b") * 5000, 5001),
    "a long path": (2, _entry(b"a" * 5000), 1),
    "a path cut below nothing": (4, _packed(b"\5", b"a"), 1),
    "an endless number": (4, _packed(b"\xff" * 100_000, b"a"), 1),
    "many submodules": (2, _entry(b"a") * 300, 300),
    "more entries than anybody has": (2, _entry(b"a"), 2**31),
}


@pytest.mark.parametrize(("version", "entries", "count"), HOSTILE.values(), ids=HOSTILE.keys())
def test_an_index_made_to_take_memory_or_time_is_refused(
    tmp_path: Path, version: int, entries: bytes, count: int
) -> None:
    data = struct.pack(">4sII", b"DIRC", version, count) + entries
    tracemalloc.start()
    with pytest.raises(NotAnIndex):
        submodule_links(data)
    assert tracemalloc.get_traced_memory()[1] < 4 * 1024 * 1024
    tracemalloc.stop()
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git/index").write_bytes(data)
    folder = Folder(tmp_path)
    with pytest.raises(NotAnIndex):
        git_protection.submodule_paths(folder)
    folder.close()


def test_an_index_that_takes_too_long_is_refused() -> None:
    data = struct.pack(">4sII", b"DIRC", 2, 3) + _entry(b"a") * 3
    assert submodule_links(data, time.monotonic() + 60) == [b"a"] * 3
    with pytest.raises(IndexTooLarge, match="too long"):
        submodule_links(data, time.monotonic() - 1)


@given(data=some.binary(max_size=400))
def test_whatever_it_is_reading_ends(data: bytes) -> None:
    for content in (data, b"DIRC" + data, struct.pack(">4sII", b"DIRC", 4, 3) + data):
        try:
            assert isinstance(submodule_links(content), list)
        except NotAnIndex:
            continue
