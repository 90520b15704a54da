"""One daemon for a whole file of tests: starting it, and a dozen servers behind it, costs more than asking it.

In: what `parts/` offers for one test. Out: the same for a module, with the same check that nothing stays behind.
"""

from __future__ import annotations

import functools
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from parts import daemon as daemons
from parts import leftovers, own, traps
from parts.daemon import Cli, Home, StartDaemon
from parts.own import StartServer
from parts.traps import Ground


@pytest.fixture(scope="module")
def shared_home() -> Iterator[Home]:
    before = leftovers.look()
    home = Home(path=Path(tempfile.mkdtemp(prefix="tc-", dir="/tmp")))
    home.make()
    yield home
    stayed = leftovers.left_behind(before, home.path)
    stray = home.stray_files()
    shutil.rmtree(home.path, ignore_errors=True)
    assert not stayed, f"processes left behind: {[(process.pid, process.words) for process in stayed]}"
    assert not stray, f"files left behind: {stray}"


@pytest.fixture(scope="module")
def start_shared_daemon(shared_home: Home) -> Iterator[StartDaemon]:
    with daemons.starting(shared_home) as start:
        yield start


@pytest.fixture(scope="module")
def shared_cli(shared_home: Home) -> Cli:
    return functools.partial(daemons.run_cli, shared_home)


@pytest.fixture(scope="module")
def start_shared_server() -> Iterator[StartServer]:
    with own.starting() as start:
        yield start


@pytest.fixture
def environ(toolcrib_home: Home) -> dict[str, str]:
    """Of a person who has a secret in it."""
    return toolcrib_home.environ({traps.SECRET_NAME: traps.SECRET})


@pytest.fixture
def ground(toolcrib_home: Home) -> Iterator[Ground]:
    """A project full of traps; nothing outside it may be harmed."""
    place = toolcrib_home.path / "g"
    place.mkdir()
    laid = traps.lay(place)
    yield laid
    assert not laid.harm()


@pytest.fixture
def tame(ground: Ground) -> Ground:
    """The same without the links that no tool of the system can walk."""
    for link in ("slash", "self", "fds"):
        (ground.root / link).unlink()
    return ground
