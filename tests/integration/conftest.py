"""One daemon for a whole file of tests: starting it, and a dozen servers behind it, costs more than asking it.

In: what `parts/` offers for one test. Out: the same for a module, with the same check that nothing stays behind.
"""

from __future__ import annotations

import contextlib
import functools
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from parts import daemon as daemons
from parts import leftovers, program_scene, runs, server_process, traps
from parts.daemon import Cli, Home, StartDaemon
from parts.program_scene import CallRecorder
from parts.runs import ProgramUser
from parts.server_process import StartServer
from parts.traps import Ground
from toolcrib.testing.conversation import ToolOffering
from toolcrib.testing.script import Step
from toolcrib.testing.server import ScriptedModel, serving


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
    with server_process.starting() as start:
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


@pytest.fixture(scope="module")
def call_recorder(tmp_path_factory: pytest.TempPathFactory, start_shared_server: StartServer) -> CallRecorder:
    return program_scene.call_recorder(tmp_path_factory.mktemp("server"), start_shared_server)


@pytest.fixture
def new_user(
    toolcrib_home: Home, daemon: StartDaemon, bwrap: Path, parts: Callable[[str], list[str]]
) -> Iterator[Callable[..., tuple[ProgramUser, ScriptedModel]]]:
    """A user of a coding agent, and a model that follows these steps: `new_user("codex", Say("Done."))`."""
    for name in runs.ALL:
        parts(name)
    # Otherwise each run would start and end a daemon, which takes a second.
    daemon()
    with contextlib.ExitStack() as stack:

        def make(
            client: str, *steps: Step, offering: ToolOffering | None = None, kind: type[ProgramUser] = ProgramUser
        ) -> tuple[ProgramUser, ScriptedModel]:
            setup = runs.ALL[client]
            user = stack.enter_context(runs.program_user(setup, toolcrib_home, toolcrib_home.project, kind))
            model = stack.enter_context(serving(setup.agent.provider, steps, last_words="Done."))
            user.use(model.url, offering)
            return user, model

        yield make
