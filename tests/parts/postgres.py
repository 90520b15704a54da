"""A PostgreSQL of our own, in a temporary folder, for as long as the tests run.

In: the binaries of the machine (installed with apt when we are root and they are missing). Out: a URL.
initdb refuses to run as root, so root lends it the user `postgres`.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from parts.fleet import NotRun
from parts.waiting import wait_for

APT_LIMIT = 300.0
START_LIMIT = 30.0


@dataclass(frozen=True, kw_only=True)
class Postgres:
    url: str
    """Over loopback, with a password."""
    folder: Path
    """Where its unix socket lies."""
    port: int
    binaries: Path

    def sql(self, statement: str) -> str:
        words = [
            str(self.binaries / "psql"),
            "-X",
            "-q",
            "-A",
            "-t",
            "-v",
            "ON_ERROR_STOP=1",
            "-c",
            statement,
            self.url,
        ]
        return subprocess.run(words, capture_output=True, text=True, timeout=30, check=True).stdout.strip()


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
    """The words before a command that must not run as root."""
    if os.geteuid() != 0:
        return []
    try:
        pwd.getpwnam("postgres")
    except KeyError:
        raise NotRun("there is no user `postgres`, and initdb refuses to run as root") from None
    if shutil.which("setpriv"):
        return ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
    if shutil.which("runuser"):
        return ["runuser", "-u", "postgres", "--"]
    raise NotRun("neither setpriv nor runuser is there to leave root, which initdb refuses")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def running() -> Iterator[Postgres]:
    binaries = find_binaries()
    before = _as_postgres()
    with tempfile.TemporaryDirectory(prefix="tc-pg-", ignore_cleanup_errors=True) as made:
        folder = Path(made)
        password = folder / "password"
        password.write_text("test\n")
        if before:
            account = pwd.getpwnam("postgres")
            for path in (folder, password):
                os.chown(path, account.pw_uid, account.pw_gid)
        data = folder / "data"
        initdb = [str(binaries / "initdb"), "-D", str(data), "-U", "test", "-A", "scram-sha-256", "--no-sync"]
        done = subprocess.run(
            [*before, *initdb, f"--pwfile={password}", "-E", "UTF8", "--locale=C"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            cwd=folder,
        )
        if done.returncode:
            raise NotRun(f"initdb failed: {done.stderr.strip()[-300:]}")
        port = _free_port()
        words = [*before, str(binaries / "postgres"), "-D", str(data), "-k", str(folder), "-p", str(port)]
        quick = ["-c", "listen_addresses=127.0.0.1", "-c", "fsync=off", "-c", "full_page_writes=off"]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen([*words, *quick], stdout=log, stderr=log, cwd=folder)
        server = Postgres(
            url=f"postgresql://test:test@127.0.0.1:{port}/postgres", folder=folder, port=port, binaries=binaries
        )
        try:
            wait_for(lambda: _answers(server, process, folder / "log"), "PostgreSQL to answer", START_LIMIT, pause=0.05)
            yield server
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)


def _answers(server: Postgres, process: subprocess.Popen[bytes], log: Path) -> bool:
    if process.poll() is not None:
        raise NotRun(f"PostgreSQL ended at once: {log.read_text()[-300:]}")
    words = [str(server.binaries / "pg_isready"), "-h", "127.0.0.1", "-p", str(server.port), "-q"]
    return subprocess.run(words, check=False, timeout=10).returncode == 0
