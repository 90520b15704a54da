"""Starts the real daemon and the real command line in a temporary home. Tests have no other way to start a daemon.

`HOME` and `TMPDIR` of every process are in the test's folder, so stray files are noticed.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pytest

from parts import leftovers
from parts.preloaded import Preloaded
from parts.waiting import wait_for

START_LIMIT = 60.0
STOP_LIMIT = 60.0
COMMAND_LIMIT = 60.0
PROGRAM = Path(sys.executable).with_name("toolcrib")
_PASSED_ON = ("PATH", "LANG", "LC_ALL", "SSL_CERT_FILE", "TOOLCRIB_TEST_CACHE")


class Home:
    """A user's directory. Its path is short because a unix socket's path has at most 107 bytes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.toolcrib = path / "t"
        self.socket = self.toolcrib / "run" / "daemon.sock"
        self.project = path / "p"
        """Where commands run by default. No directory above it holds a project file."""
        self.tmp = path / "tmp"
        self.user = path / "u"

    @classmethod
    @contextlib.contextmanager
    def temporary(cls) -> Iterator[Self]:
        home = cls(path=Path(tempfile.mkdtemp(prefix="tc-", dir="/tmp")))
        for folder in (home.toolcrib, home.project, home.tmp, home.user):
            folder.mkdir()
        try:
            yield home
        finally:
            shutil.rmtree(home.path, ignore_errors=True)

    def environ(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        passed = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        own = {"TOOLCRIB_HOME": str(self.toolcrib), "HOME": str(self.user), "TMPDIR": str(self.tmp)}
        return {**passed, **own, **(more or {})}

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Lists are full unless it says otherwise: most tests look at what servers define."""
        (self.toolcrib / "config.json").write_text(json.dumps({"listing": "full", **config}))

    def stray_files(self) -> list[str]:
        """Leftover temporary files, and any file in the user's home."""
        return [str(path) for folder in (self.tmp, self.user) for path in folder.rglob("*") if not path.is_dir()]


@dataclass(frozen=True, kw_only=True)
class Finished:
    exit_code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The output of `--json`."""
        try:
            return json.loads(self.out)
        except ValueError:
            raise AssertionError(f"exit {self.exit_code}, no JSON: {self.out!r}; {self.err!r}") from None

    def ok(self) -> Finished:
        assert self.exit_code == 0, f"exit {self.exit_code}: {self.out}{self.err}"
        return self


Cli = Callable[..., Finished]
"""`cli(*args, env=None, cwd=None, stdin=None, limit=120)`."""


def run_cli(
    home: Home,
    *args: str,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: str | None = None,
    limit: float = 120.0,
) -> Finished:
    pipes: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    command = [str(PROGRAM), *args]
    with Preloaded(command, env=home.environ(env), cwd=cwd or home.project, text=True, **pipes) as process:
        try:
            out, err = process.communicate(stdin or "", timeout=limit)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return Finished(exit_code=process.returncode, out=out, err=err)


@dataclass(kw_only=True)
class Daemon:
    home: Home
    process: subprocess.Popen[bytes]
    output: Path
    endpoint: str = ""
    token: str = field(default="", repr=False)
    pid: int = 0

    def command(self, name: str, /, in_project: Path | None = None, **params: Any) -> dict[str, Any]:
        """Sends a command over the daemon's socket, as the command line does, without starting a process."""
        where = {} if in_project is None else {"root": str(in_project)}
        asked = {"jsonrpc": "2.0", "id": 1, "method": name, "params": params, **where}
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(COMMAND_LIMIT)
            line.connect(str(self.home.socket))
            line.sendall(json.dumps(asked).encode() + b"\n")
            with line.makefile("rb") as answers:
                answer: dict[str, Any] = json.loads(answers.readline())
        assert "error" not in answer, answer
        return dict(answer["result"])

    def status(self) -> dict[str, Any]:
        return self.command("system:status")

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    def wait_until_ready(self, *names: str, limit: float = START_LIMIT) -> dict[str, Any]:
        """Waits until the named servers (by default all) are ready, or idle: ready to start; returns the status."""

        def ready() -> dict[str, Any] | None:
            status = self.status()
            states = {server["name"]: server["state"] for server in status["servers"]}
            wanted = names or tuple(states)
            return status if all(states.get(name) in ("ready", "idle") for name in wanted) else None

        try:
            return wait_for(ready, f"servers {names or 'all'} to be ready", limit)
        except TimeoutError as error:
            raise TimeoutError(f"{error}; the servers are {self.status()['servers']}; {self.log_tail()}") from None

    def log_tail(self) -> str:
        log = self.home.toolcrib / "state" / "toolcrib.log"
        logged = log.read_text()[-4000:] if log.exists() else ""
        return f"printed: {self.output.read_text()[-2000:]}\nlog: {logged}"

    def stop(self) -> int:
        """Stops it with Ctrl-C, as a person does; returns the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        return self.process.wait(STOP_LIMIT)

    def kill(self) -> None:
        """Kills it, as a crash would."""
        self.process.kill()
        self.process.wait(STOP_LIMIT)


StartDaemon = Callable[..., Daemon]
"""`daemon(config=None, *args, env=None)`: `args` are further arguments of `toolcrib up`."""


@contextlib.contextmanager
def starting(home: Home) -> Iterator[StartDaemon]:
    started: list[Daemon] = []

    def start(config: Mapping[str, Any] | None = None, *args: str, env: Mapping[str, str] | None = None) -> Daemon:
        if config is not None:
            home.write_config(config)
        output = home.path / f"up-{len(started)}.txt"
        words = [str(PROGRAM), "up", "--port", "0", *args]
        with output.open("wb") as file:
            pipes: Any = {"stdin": subprocess.DEVNULL, "stdout": file, "stderr": subprocess.STDOUT}
            process = Preloaded(words, env=home.environ(env), cwd=home.project, start_new_session=True, **pipes)
        daemon = Daemon(home=home, process=process, output=output)
        started.append(daemon)
        _wait_until_it_answers(daemon)
        return daemon

    try:
        yield start
    finally:
        _end_all(started)


@contextlib.contextmanager
def shared_daemon(config: Mapping[str, Any], *, ready: Sequence[str] = ()) -> Iterator[Daemon]:
    """A daemon for all tests of a module; `ready` names the servers to wait for. Its log must hold no traceback."""
    with Home.temporary() as home:
        with starting(home) as start:
            daemon = start(config)
            if ready:
                daemon.wait_until_ready(*ready)
            yield daemon
        log = (home.toolcrib / "state" / "toolcrib.log").read_text()
        assert "Traceback" not in log, log[log.index("Traceback") - 500 :][:5000]
        assert "Traceback" not in daemon.output.read_text(), daemon.output.read_text()
        assert not home.stray_files(), f"files left behind: {home.stray_files()}"


@pytest.fixture(autouse=True, scope="module")
def nothing_left_behind() -> Iterator[None]:
    """Replaces the check after each test by one per module. Import it where tests share a daemon."""
    before = leftovers.look()
    yield
    leftovers.check(before)


def _wait_until_it_answers(daemon: Daemon) -> None:
    def answers() -> dict[str, Any] | None:
        code = daemon.process.poll()
        if code is not None:
            raise AssertionError(f"`toolcrib up` ended with {code}: {daemon.log_tail()}")
        try:
            status = daemon.status()
        except (FileNotFoundError, ConnectionRefusedError):
            return None
        return status if status.get("endpoint") else None

    try:
        status = wait_for(answers, "the daemon to answer", START_LIMIT)
    except TimeoutError as error:
        raise TimeoutError(f"{error}: {daemon.log_tail()}") from None
    daemon.endpoint, daemon.pid = status["endpoint"], status["pid"]
    daemon.token = Path(status["token_file"]).read_text().strip()


def _end_all(started: list[Daemon]) -> None:
    """Stops every daemon. The test fails if one doesn't stop or leaves its socket behind."""
    faults = []
    for daemon in started:
        try:
            daemon.stop()
        except subprocess.TimeoutExpired:
            faults.append(f"the daemon did not end within {STOP_LIMIT:g} s: {daemon.log_tail()}")
            daemon.kill()
    ended = [daemon for daemon in started if daemon.process.returncode != -signal.SIGKILL]
    faults += [f"the daemon left {daemon.home.socket}" for daemon in ended if daemon.home.socket.exists()]
    assert not faults, "\n".join(faults)
