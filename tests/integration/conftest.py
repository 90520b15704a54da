"""One daemon for a whole file of tests: starting it, and a dozen servers behind it, costs more than asking it."""

from __future__ import annotations

import contextlib
import functools
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from parts import daemon as daemons
from parts import leftovers, program_scene, runs, server_process, traps
from parts.daemon import Cli, Daemon, Home, StartDaemon
from parts.program_scene import CallRecorder
from parts.runs import ProgramUser
from parts.sandboxes import OWNERS, SandboxPool
from parts.server_process import StartServer
from parts.traps import HostileProject
from toolcrib.testing.conversation import ToolOffering
from toolcrib.testing.script import Step
from toolcrib.testing.server import ScriptedModel, serving

NewUser = Callable[..., tuple[ProgramUser, ScriptedModel]]
"""A user of a coding agent, and a model that follows these steps: `new_user("codex", Say("Done."))`."""


@pytest.fixture(scope="module")
def shared_home() -> Iterator[Home]:
    before = leftovers.look()
    with Home.temporary() as home:
        yield home
        leftovers.check(before, home.path)
        assert not home.stray_files(), f"files left behind: {home.stray_files()}"


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


@pytest.fixture(scope="module", params=OWNERS)
def owner(request: pytest.FixtureRequest) -> str:
    """The owner of a sandbox's folder."""
    return str(request.param)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool(owner: str, bwrap: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SandboxPool]:
    """Sandboxes that the tests of a module share, for each owner."""
    pool = SandboxPool(tmp_path_factory.mktemp("pool"), owner)
    yield pool
    await pool.close()


@pytest.fixture
def environ(toolcrib_home: Home) -> dict[str, str]:
    """An environment with a secret."""
    return toolcrib_home.environ({traps.SECRET_NAME: traps.SECRET})


@pytest.fixture
def hostile(toolcrib_home: Home) -> Iterator[HostileProject]:
    """A project full of traps. Nothing outside of it may change."""
    project = traps.lay_traps(toolcrib_home.path / "g")
    yield project
    assert not project.changes_outside()


@pytest.fixture
def walkable(hostile: HostileProject) -> HostileProject:
    """The same without links to the whole system, which programs would follow."""
    for link in ("slash", "self", "fds"):
        (hostile.root / link).unlink()
    return hostile


@pytest.fixture(scope="module")
def call_recorder(tmp_path_factory: pytest.TempPathFactory, start_shared_server: StartServer) -> CallRecorder:
    return program_scene.call_recorder(tmp_path_factory.mktemp("server"), start_shared_server)


@pytest.fixture(scope="module")
def daemon_for_runs(start_shared_daemon: StartDaemon) -> Daemon:
    """Otherwise each run would start and end a daemon, which takes a second."""
    return start_shared_daemon()


@pytest.fixture
def new_user(
    shared_home: Home, daemon_for_runs: Daemon, bwrap: Path, parts: Callable[[str], list[str]]
) -> Iterator[NewUser]:
    with contextlib.ExitStack() as stack:

        def make(
            client: str, *steps: Step, offering: ToolOffering | None = None, kind: type[ProgramUser] = ProgramUser
        ) -> tuple[ProgramUser, ScriptedModel]:
            for name in runs.ALL:
                parts(name)
            setup, place = runs.ALL[client], Path(tempfile.mkdtemp(dir=shared_home.path))
            (place / "p").mkdir()
            user = stack.enter_context(runs.program_user(setup, shared_home, place / "p", kind, place))
            model = stack.enter_context(serving(setup.agent.provider, steps, last_words="Done."))
            user.use(model.url, offering)
            return user, model

        yield make
