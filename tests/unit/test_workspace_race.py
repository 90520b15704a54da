"""Names that change while a tool goes through them: nothing outside is read or written."""

from __future__ import annotations

import errno
import itertools
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from parts.racer import CANARY, INSIDE, READABLE, WRITABLE, Race, racing
from parts.scenes import scene_in
from toolcrib.errors import WorkspaceError
from toolcrib.workspace import confined_open
from toolcrib.workspace.tool import ToolContext
from toolcrib.workspace.tools.files import (
    EditFileArguments,
    ReadFileArguments,
    ReadFileResult,
    WriteFileArguments,
    edit_file,
    read_file,
    write_file,
)
from toolcrib.workspace.tools.listing import StatFileArguments, StatFileResult, stat_file

pytestmark = [pytest.mark.req("FRG-9"), pytest.mark.slow]

LONGEST_CONTROL = 30.0
Sized = Callable[[int, int], int]


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    for name in ("root", "outside"):
        (tmp_path / name).mkdir()
    return tmp_path / "root", tmp_path / "outside"


@pytest.fixture(params=["kernel", "walk"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """By openat2, and as a kernel without it would have it."""
    if request.param == "walk":

        def missing(*_: object) -> int:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

        monkeypatch.setattr(confined_open, "openat2", missing)
    name: str = request.param
    return name


def until(seconds: float, paths: tuple[str, ...]) -> Iterator[str]:
    end = time.monotonic() + seconds
    for path in itertools.cycle(paths):
        if time.monotonic() > end:
            return
        yield path


def plainly_allowed(race: Race, path: str) -> Path:
    """The check that everybody writes first."""
    real = os.path.realpath(race.root / path)
    if not real.startswith(f"{race.root}/"):
        raise PermissionError(path)
    return race.root / path


def beaten_reads(race: Race) -> tuple[int, int]:
    """Tries of a plain check until the attacker won, and how often it did."""
    tries = escapes = 0
    for path in until(LONGEST_CONTROL, READABLE):
        tries += 1
        try:
            escapes += plainly_allowed(race, path).read_text() == CANARY
        except OSError:
            continue
        if escapes >= 3:
            break
    return tries, escapes


def beaten_writes(race: Race) -> tuple[int, int]:
    tries = 0
    for path in until(LONGEST_CONTROL, WRITABLE[:3]):
        tries += 1
        try:
            plainly_allowed(race, path).write_text("written\n")
        except OSError:
            continue
        if tries % 50 == 0 and race.changed():
            break
    return tries, len(race.changed())


def read(scene: ToolContext, path: str) -> str:
    data = read_file(scene, ReadFileArguments(path=path)).data
    assert isinstance(data, ReadFileResult)
    return data.text or ""


def size(scene: ToolContext, path: str) -> int | None:
    """None of a link, which may be long."""
    data = stat_file(scene, StatFileArguments(path=path)).data
    assert isinstance(data, StatFileResult)
    return data.size if data.kind == "file" else None


def test_no_read_gets_out_of_a_folder_whose_names_are_swapped(
    folders: tuple[Path, Path], way: str, sized: Sized, record_property: Callable[[str, object], None]
):
    tries = inside = refused = 0
    with racing(*folders) as race, scene_in(race.root) as scene:
        for path in until(sized(2, 10), READABLE):
            tries += 1
            try:
                if tries % 4:
                    assert read(scene, path) == INSIDE
                else:
                    assert size(scene, path) in (None, len(INSIDE))
                inside += 1
            except WorkspaceError as error:
                assert "canary" not in error.text()
                refused += 1
        control = beaten_reads(race)
    told = f"{way}: {tries} reads, {inside} inside, {refused} refused, {race.swaps} swaps, 0 escapes"
    print(f"{told}; the plain check lost {control[1]} of {control[0]}")
    record_property("race", told)
    assert min(inside, refused, race.swaps) > 0
    assert control[1] > 0, "the attacker never beat the plain check, so this race proves nothing"


def test_no_write_gets_out_of_a_folder_whose_names_are_swapped(
    folders: tuple[Path, Path], way: str, sized: Sized, record_property: Callable[[str, object], None]
):
    tries = inside = refused = 0
    with racing(*folders) as race, scene_in(race.root, session_bytes=2**62) as scene:
        for path in until(sized(2, 10), WRITABLE):
            tries += 1
            try:
                if tries % 3:
                    write_file(scene, WriteFileArguments(path=path, content=INSIDE))
                else:
                    edit_file(scene, EditFileArguments(path=path, old="lies", new="lies "))
                inside += 1
            except WorkspaceError as error:
                assert "canary" not in error.text()
                refused += 1
        assert race.changed() == []
        control = beaten_writes(race)
    told = f"{way}: {tries} writes, {inside} inside, {refused} refused, {race.swaps} swaps, 0 escapes"
    print(f"{told}; the plain check lost {control[1]} of {control[0]}")
    record_property("race", told)
    assert min(inside, refused, race.swaps) > 0
    assert control[1] > 0, "the attacker never beat the plain check, so this race proves nothing"
