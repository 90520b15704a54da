"""A PostgreSQL server in a temporary folder, while the tests run. Root installs missing binaries with apt.

initdb refuses to run as root, so root runs it as the user `postgres`.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg

from parts.fleet import NotRun
from parts.waiting import wait_for

APT_LIMIT = 300.0
START_LIMIT = 60.0
END_LIMIT = 60.0
PORTS_TO_TRY = 3
"""Another process may take a free port before the server does."""
PASSWORD = "pg-test-hush"

_SETTINGS = ("listen_addresses=127.0.0.1", "shared_buffers=16MB", "fsync=off", "full_page_writes=off", "autovacuum=off")
_QUICK = [word for setting in _SETTINGS for word in ("-c", setting)]


class Postgres:
    """Created by `running`. Only tests with their own server may use `crash` and `start`."""

    def __init__(self, *, folder: Path, binaries: Path, as_postgres: list[str]) -> None:
        self.folder = folder
        """Contains its unix socket."""
        self.binaries = binaries
        self.port = 0
        self._as_postgres = as_postgres
        self._process: subprocess.Popen[bytes] | None = None
        self._numbers = itertools.count(1)

    @property
    def url(self) -> str:
        return self.url_of("postgres")

    def url_of(self, database: str) -> str:
        """Over loopback, with a password."""
        return f"postgresql://test:{PASSWORD}@127.0.0.1:{self.port}/{database}"

    def sql(self, statement: str, database: str = "postgres") -> str:
        """The result as psql prints it, without the frame."""
        with psycopg.connect(self.url_of(database), autocommit=True, connect_timeout=10) as connection:
            done = connection.execute(statement.encode())
            rows = done.fetchall() if done.description else []
        return "\n".join("|".join(str(value) for value in row) for row in rows)

    @contextlib.contextmanager
    def database(self) -> Iterator[str]:
        """The URL of an empty database, which is dropped after the block."""
        name = f"crib_{next(self._numbers)}"
        self.sql(f"create database {name} template template0")
        try:
            yield self.url_of(name)
        finally:
            self.sql(f"drop database {name} with (force)")

    def start(self) -> None:
        """Uses the port of the last start, if there was one."""
        for _ in range(PORTS_TO_TRY):
            self.port = self.port or _free_port()
            words = [str(self.binaries / "postgres"), "-D", str(self.folder / "data"), "-k", str(self.folder)]
            with (self.folder / "log").open("wb") as log:
                self._process = subprocess.Popen(
                    [*self._as_postgres, *words, "-p", str(self.port), *_QUICK], stdout=log, stderr=log, cwd=self.folder
                )
            if wait_for(self._settled, "PostgreSQL to answer or to end", START_LIMIT, pause=0.05) == "answers":
                return
            self.port = 0
        raise NotRun(f"PostgreSQL ended at once: {(self.folder / 'log').read_text()[-300:]}")

    def _settled(self) -> str | None:
        if self._process is None or self._process.poll() is not None:
            return "ended"
        words = [str(self.binaries / "pg_isready"), "-h", "127.0.0.1", "-p", str(self.port), "-q"]
        return "answers" if subprocess.run(words, check=False, timeout=10).returncode == 0 else None

    def crash(self) -> None:
        """Ends at once, with every connection; the next start replays the log."""
        self._end(signal.SIGQUIT)

    def stop(self) -> None:
        self._end(signal.SIGINT)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(END_LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(END_LIMIT)


def find_binaries() -> Path:
    found = _newest()
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        words = ["apt-get", "install", "-y", "-qq", "postgresql"]
        environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(words, capture_output=True, timeout=APT_LIMIT, check=False, env=environ)
        found = _newest()
    if found is None:
        raise NotRun("PostgreSQL is not installed (initdb was not found)")
    return found


def _newest() -> Path | None:
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if versions:
        return versions[-1].parent
    on_path = shutil.which("initdb")
    return Path(on_path).resolve().parent if on_path else None


def _as_postgres() -> list[str]:
    """The start of a command that must not run as root."""
    if os.geteuid() != 0:
        return []
    try:
        pwd.getpwnam("postgres")
    except KeyError:
        raise NotRun("the user `postgres` is missing, and initdb refuses to run as root") from None
    if shutil.which("setpriv"):
        return ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
    if shutil.which("runuser"):
        return ["runuser", "-u", "postgres", "--"]
    raise NotRun("initdb refuses to run as root, and neither setpriv nor runuser is installed")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running() -> Iterator[Postgres]:
    binaries = find_binaries()
    before = _as_postgres()
    with tempfile.TemporaryDirectory(prefix="tc-pg-", ignore_cleanup_errors=True) as made:
        folder = Path(made)
        password = folder / "password"
        password.write_text(f"{PASSWORD}\n")
        if before:
            account = pwd.getpwnam("postgres")
            for path in (folder, password):
                os.chown(path, account.pw_uid, account.pw_gid)
        initdb = [str(binaries / "initdb"), "-D", str(folder / "data"), "-U", "test", "-A", "scram-sha-256"]
        words = [*before, *initdb, f"--pwfile={password}", "-E", "UTF8", "--locale=C", "--no-sync"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False, cwd=folder)
        if done.returncode:
            raise NotRun(f"initdb failed: {done.stderr.strip()[-300:]}")
        server = Postgres(folder=folder, binaries=binaries, as_postgres=before)
        try:
            server.start()
            yield server
        finally:
            server.stop()
