"""The workspace server as a running process, and real MCP clients of either era at it.

In: a home, a transport, flags. Out: a `Server` with a client at the end of every transport, and its end with the test.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from parts.client import MODES, TIMEOUT
from parts.daemon import Home
from parts.waiting import wait_for

TRANSPORTS = ("stdio", "http", "socket")
END_LIMIT = 60.0


@dataclass(kw_only=True)
class Server:
    home: Home
    transport: str
    words: list[str]
    environ: Mapping[str, str]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    """On stdio every client has a process of its own."""
    known: str = ""
    """The token, if it was not the server that made it."""

    @property
    def said(self) -> str:
        return self.log.read_text()

    @property
    def port(self) -> int:
        found = wait_for(lambda: re.search(r"at http://127\.0\.0\.1:(\d+)/mcp", self.said), f"a port in {self.said!r}")
        return int(found[1])

    @property
    def token(self) -> str:
        if self.known:
            return self.known
        found = wait_for(lambda: re.search(r"token is the content of (\S+)", self.said), f"a token in {self.said!r}")
        return Path(found[1]).read_text().strip()

    @property
    def socket(self) -> Path:
        return self.home.path / "w.sock"

    @contextlib.asynccontextmanager
    async def client(self, era: str, **options: Any) -> AsyncIterator[Client]:
        if self.transport == "stdio":
            words = StdioServerParameters(
                command=self.words[0], args=self.words[1:], env=dict(self.environ), cwd=self.home.project
            )
            async with Client(words, mode=MODES.get(era, era), **options) as client:
                yield client
            return
        async with self.http() as http:
            host = f"127.0.0.1:{self.port}" if self.transport == "http" else "localhost"
            transport = streamable_http_client(f"http://{host}/mcp", http_client=http, max_sse_event_size=None)
            async with Client(transport, mode=MODES.get(era, era), **options) as client:
                yield client

    def http(self) -> httpx2.AsyncClient:
        if self.transport == "http":
            headers = {"authorization": f"Bearer {self.token}"}
            return httpx2.AsyncClient(headers=headers, timeout=TIMEOUT, trust_env=False)
        wait_for(lambda: self.said.count("serving"), f"the socket in {self.said!r}")
        return httpx2.AsyncClient(transport=httpx2.AsyncHTTPTransport(uds=str(self.socket)), timeout=TIMEOUT)


StartWorkspace = Callable[..., Server]
"""`start_workspace(transport, *flags, env=None, root=None)`."""


@contextlib.contextmanager
def starting(home: Home) -> Iterator[StartWorkspace]:
    started: list[Server] = []

    def start(transport: str, *flags: str, env: Mapping[str, str] | None = None, root: Path | None = None) -> Server:
        where = {"stdio": [], "http": ["--http", "0"], "socket": ["--socket", str(home.path / "w.sock")]}[transport]
        words = [sys.executable, "-P", "-m", "toolcrib.workspace", "--root", str(root or home.project), *where, *flags]
        log = home.path / f"workspace-{len(started)}.log"
        log.touch()
        server = Server(home=home, transport=transport, words=words, environ={**home.environ(), **(env or {})}, log=log)
        started.append(server)
        if transport != "stdio":
            with log.open("ab") as stderr:
                server.process = subprocess.Popen(
                    words, stdin=subprocess.DEVNULL, stdout=stderr, stderr=stderr, env=server.environ, cwd=home.project
                )
        return server

    try:
        yield start
    finally:
        for server in started:
            if server.process is not None:
                end(server.process)


def end(process: subprocess.Popen[bytes], number: int = signal.SIGTERM) -> int:
    """Asks it to end and gives its exit code; one that does not end in time is killed, and fails the test."""
    if process.poll() is None:
        process.send_signal(number)
    try:
        return process.wait(END_LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise


def is_running(pid: int) -> bool:
    """Also a zombie is over."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def running_with(mark: str) -> list[int]:
    """The living processes whose command line has the mark, this one excepted."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes()
                if mark.encode() in words and is_running(int(entry.name)):
                    found.append(int(entry.name))
    return found
