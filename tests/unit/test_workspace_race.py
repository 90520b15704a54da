"""While another process swaps names for links, no tool reads, writes, lists or finds anything outside."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from parts.racer import CANARY, FOLDERS, INSIDE, READABLE, WRITABLE, Race, racing
from parts.tool_context import FileTools, file_tools
from toolcrib.errors import WorkspaceError
from toolcrib.workspace import confined_open

pytestmark = [pytest.mark.req("FRG-9"), pytest.mark.slow]

LONGEST_CONTROL = 30.0
Sized = Callable[[int, int], int]
Try = Callable[[int, str], None]


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    for name in ("root", "outside"):
        (tmp_path / name).mkdir()
    return tmp_path / "root", tmp_path / "outside"


@pytest.fixture(params=["openat2", "walk"])
def opener(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With openat2, and as on a kernel without it."""

    def missing(*_: object) -> int:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    if request.param == "walk":
        monkeypatch.setattr(confined_open, "openat2", missing)
    return str(request.param)


def until(seconds: float, paths: tuple[str, ...], least: int = 0) -> Iterator[tuple[int, str]]:
    end = time.monotonic() + seconds
    for number, path in enumerate(itertools.cycle(paths), start=1):
        if number > least and time.monotonic() > end:
            return
        yield number, path


def attempt(seconds: float, paths: tuple[str, ...], call: Try) -> tuple[int, int]:
    """Calls for so long, and at least 200 times; how often it worked and how often it was refused."""
    inside = refused = 0
    for number, path in until(seconds, paths, least=200):
        try:
            call(number, path)
            inside += 1
        except WorkspaceError as error:
            assert "canary" not in error.text()
            refused += 1
    return inside, refused


def escapes_from_the_obvious_check(race: Race, writes: bool) -> int:
    """How often the attacker defeats a check of the real path before the access."""
    escapes = 0
    for number, path in until(LONGEST_CONTROL, WRITABLE[:3] if writes else READABLE):
        with contextlib.suppress(OSError):
            is_inside = os.path.realpath(race.root / path).startswith(f"{race.root}/")
            if is_inside and writes:
                (race.root / path).write_text("written\n")
            elif is_inside:
                escapes += (race.root / path).read_text() == CANARY
        if escapes >= 3 or (writes and number % 50 == 0 and race.changed()):
            break
    return len(race.changed()) if writes else escapes


def reader(tools: FileTools) -> Try:
    def read(number: int, path: str) -> None:
        if number % 4:
            assert tools.read(path).text == INSIDE
        else:
            status = tools.stat(path)
            assert status.kind != "file" or status.size == len(INSIDE)

    return read


def writer(tools: FileTools) -> Try:
    return lambda number, path: tools.write(path, INSIDE) if number % 3 else tools.edit(path, "lies", "lies ")


@pytest.mark.parametrize("writes", [False, True], ids=["reads", "writes"])
def test_nothing_outside_is_read_or_written_while_names_are_swapped(
    folders: tuple[Path, Path], opener: str, sized: Sized, record_property: Callable[[str, object], None], writes: bool
):
    with racing(*folders) as race, file_tools(race.root, session_bytes=2**62) as tools:
        paths, call = (WRITABLE, writer(tools)) if writes else (READABLE, reader(tools))
        inside, refused = attempt(sized(2, 10), paths, call)
        assert race.changed() == []
        escapes = escapes_from_the_obvious_check(race, writes)
    report = f"{opener}: {inside} inside, {refused} refused, {race.swaps} swaps, 0 escapes"
    print(f"{report}; the obvious check lost {escapes} times")
    record_property("race", report)
    assert min(inside, refused, race.swaps) > 0
    assert escapes > 0, "the attacker never defeated the obvious check, so this race proves nothing"


def test_nothing_outside_is_listed_or_found_while_names_are_swapped(
    folders: tuple[Path, Path], sized: Sized, record_property: Callable[[str, object], None]
):
    with racing(*folders) as race, file_tools(race.root) as tools:
        # These names and their text exist only outside.
        for place in (".", "sub", "way"):
            (race.outside / place / "canary-name").write_text(CANARY)
        calls = (
            lambda path: tools.call("list_dir", path=path, depth=5),
            lambda path: tools.call("find_files", glob="**", path=path),
            lambda path: tools.call("project_structure", path=path),
            lambda path: tools.call("search_text", pattern="lies", path=path),
        )

        def look(number: int, path: str) -> None:
            assert "canary" not in calls[number % 4](path).text

        # Five paths and four calls: every call gets every path.
        inside, refused = attempt(sized(3, 10), (".", *FOLDERS), look)
    report = f"list, find, structure, search: {inside} inside, {refused} refused, {race.swaps} swaps, 0 escapes"
    print(report)
    record_property("race", report)
    assert min(inside, refused) > 0
