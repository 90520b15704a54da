"""The fixtures of all tests: a home, the daemon, the command line, real servers, a database.

The work is done in `parts/`. Every test is checked for leftovers, and the summary lists what could not be run.
"""

from __future__ import annotations

import functools
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest

from parts import daemon as daemons
from parts import fleet, leftovers, server_process, sizes
from parts import postgres as databases
from parts.daemon import Cli, Home, StartDaemon
from parts.report import not_run, summarize
from parts.server_process import StartServer
from parts.sizes import FULL, left_for_soak

os.environ[leftovers.RUN_NAME] = str(os.getpid())

# A test run in the background or by nohup inherits ignored signals, but tests start programs with the default ones:
# exec resets signals that have a handler.
for _number in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}:
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, lambda *_: None)
signal.pthread_sigmask(signal.SIG_SETMASK, ())

# The time of an example depends on the machine, and a fixture may serve all examples.
hypothesis.settings.register_profile(
    "toolcrib",
    deadline=None,
    max_examples=500 if FULL else 40,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture, hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("toolcrib")


@pytest.fixture(autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails the test that leaves a process, a socket or a stray file."""
    before = leftovers.look()
    # Requested here so that it outlives every other fixture of the test.
    home: Home | None = request.getfixturevalue("home_folder") if "home_folder" in request.fixturenames else None
    yield
    leftovers.check(before, home.path if home else None)
    if home is not None:
        assert not home.stray_files(), f"files left behind: {home.stray_files()}"


@pytest.fixture
def home_folder() -> Iterator[Home]:
    with Home.temporary() as home:
        yield home


@pytest.fixture
def toolcrib_home(home_folder: Home) -> Home:
    """A user of Toolcrib with nothing configured."""
    return home_folder


@pytest.fixture
def daemon(toolcrib_home: Home) -> Iterator[StartDaemon]:
    """Starts the real daemon: `daemon({"servers": {…}})`."""
    with daemons.starting(toolcrib_home) as start:
        yield start


@pytest.fixture
def cli(toolcrib_home: Home) -> Cli:
    """Runs the real command line: `cli("status", "--json").ok().json`."""
    return functools.partial(daemons.run_cli, toolcrib_home)


@pytest.fixture
def start_server() -> Iterator[StartServer]:
    """Starts a server that prints its port: `start_server(command).url("http")`."""
    with server_process.starting() as start:
        yield start


@pytest.fixture
def ignored_signals() -> Iterator[None]:
    """As in a background process or under nohup; and one signal is blocked."""
    before = {one: signal.signal(one, signal.SIG_IGN) for one in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    for one, handler in before.items():
        signal.signal(one, handler)


@pytest.fixture(scope="session")
def parts() -> Callable[[str], list[str]]:
    """The command that starts a real server, which is installed if it is missing: `parts("filesystem")`."""

    return _command


def _command(name: str) -> list[str]:
    try:
        return fleet.command(name)
    except fleet.NotRun as reason:
        not_run(name, str(reason))


def _on_path(part: str) -> Path:
    """A program that the product looks for itself. It is put on PATH if it is not installed."""
    program = Path(_command(part)[0])
    if not shutil.which(program.name):
        os.environ["PATH"] += f"{os.pathsep}{program.parent}"
    return program


@pytest.fixture(scope="session")
def bwrap() -> Path:
    """Bubblewrap, for tests of everything that runs code, on a system where it works."""
    program = _on_path("bwrap")
    words = [str(program), "--unshare-user", "--unshare-pid", "--ro-bind", "/", "/", "--proc", "/proc", "true"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode != 0:
        not_run("bwrap", done.stderr.strip())
    return program


@pytest.fixture(scope="session")
def ripgrep() -> Path:
    return _on_path("ripgrep")


@pytest.fixture(scope="session")
def postgres() -> Iterator[databases.Postgres]:
    """A PostgreSQL server that the tests of this run share."""
    try:
        with databases.running() as server:
            yield server
    except fleet.NotRun as reason:
        not_run("PostgreSQL", str(reason))


@pytest.fixture(scope="session", params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def engine(request: pytest.FixtureRequest) -> str:
    """A test that requests it, or `store_url`, runs on every engine."""
    if request.param == "postgresql":
        # Started here, because processes that a test starts must end with it.
        request.getfixturevalue("postgres")
    return str(request.param)


@pytest.fixture
def store_url(engine: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty database: a SQLite file or a URL."""
    if engine == "sqlite":
        yield str(tmp_path / "state" / "crib.db")
        return
    server: databases.Postgres = request.getfixturevalue("postgres")
    with server.database() as url:
        yield url


@pytest.fixture
def store_env(store_url: str) -> dict[str, str]:
    """Variables for the daemon and the commands to use that database: `daemon({…}, env=store_env)`."""
    return {"TOOLCRIB_STORE": store_url}


@pytest.fixture(scope="session")
def sized() -> Callable[[int, int], int]:
    """Chooses between the usual and the full size."""
    return sizes.sized


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    later = {item for item in items if left_for_soak(item)}
    config.hook.pytest_deselected(items=list(later))
    items[:] = [item for item in items if item not in later]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    summarize(terminalreporter)
