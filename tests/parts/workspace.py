"""The workspace server as a running process, and real MCP clients of both protocol generations."""

from __future__ import annotations

import contextlib
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

from parts.client import MODES, TIMEOUT, over_http
from parts.daemon import Home
from parts.preloaded import Preloaded
from parts.waiting import wait_for

TRANSPORTS = ("stdio", "http", "socket")
END_LIMIT = 60.0
PIPES: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
COMMAND = [sys.executable, "-P", "-m", "toolcrib.workspace"]
SCRIPT = "import sys\nfrom toolcrib.workspace.serving.main import main\nsys.exit(main())\n"


def popen(home: Home, *args: str, **options: Any) -> subprocess.Popen[Any]:
    """Starts the server with these arguments, as a fork with its packages already imported."""
    script = home.path / "workspace.py"
    if not script.exists():
        script.write_text(SCRIPT)
    return Preloaded([str(script), *args], cwd=home.project, **{"env": home.environ(), **options})


@dataclass(kw_only=True)
class WorkspaceServer:
    home: Home
    transport: str
    words: list[str]
    environ: Mapping[str, str]
    log: Path
    running: subprocess.Popen[bytes] | None = None
    """None on stdio, where every client starts its own process."""
    known_token: str = ""
    """The token, if the test has chosen it."""

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self.running is not None, "each client on stdio has its own process"
        return self.running

    @property
    def output(self) -> str:
        return self.log.read_text()

    @property
    def port(self) -> int:
        return int(self._printed(r"at http://127\.0\.0\.1:(\d+)/mcp"))

    @property
    def token(self) -> str:
        return self.known_token or Path(self._printed(r"token is the content of (\S+)")).read_text().strip()

    def _printed(self, pattern: str) -> str:
        return wait_for(lambda: re.search(pattern, self.output), f"{pattern} in {self.output!r}")[1]

    @property
    def socket(self) -> Path:
        return self.home.path / "w.sock"

    def wait_until_serving(self) -> None:
        wait_for(lambda: "serving" in self.output, f"the server to start, in {self.output!r}")

    def popen(self) -> subprocess.Popen[bytes]:
        """Starts a process with pipes, to talk to it without a client."""
        return popen(self.home, *self.words[len(COMMAND) :], env=self.environ, **PIPES)

    @contextlib.asynccontextmanager
    async def client(self, era: str, **options: Any) -> AsyncIterator[Client]:
        if self.transport == "stdio":
            command, *args = self.words
            words = StdioServerParameters(command=command, args=args, env=dict(self.environ), cwd=self.home.project)
            async with Client(words, mode=MODES.get(era, era), **options) as client:
                yield client
            return
        host = f"127.0.0.1:{self.port}" if self.transport == "http" else "localhost"
        async with over_http(f"http://{host}/mcp", self.http(), MODES.get(era, era), **options) as client:
            yield client

    def http(self) -> httpx2.AsyncClient:
        if self.transport == "http":
            headers = {"authorization": f"Bearer {self.token}"}
            return httpx2.AsyncClient(headers=headers, timeout=TIMEOUT, trust_env=False)
        self.wait_until_serving()
        return httpx2.AsyncClient(transport=httpx2.AsyncHTTPTransport(uds=str(self.socket)), timeout=TIMEOUT)


StartWorkspace = Callable[..., WorkspaceServer]
"""`start_workspace(transport, *flags, env=None, root=None)`."""


@contextlib.contextmanager
def starting(home: Home) -> Iterator[StartWorkspace]:
    started: list[WorkspaceServer] = []

    def start(
        transport: str, *flags: str, env: Mapping[str, str] | None = None, root: Path | None = None
    ) -> WorkspaceServer:
        where = {"stdio": [], "http": ["--http", "0"], "socket": ["--socket", str(home.path / "w.sock")]}[transport]
        words = [*COMMAND, "--root", str(root or home.project), *where, *flags]
        log = home.path / f"workspace-{len(started)}.log"
        log.touch()
        server = WorkspaceServer(
            home=home, transport=transport, words=words, environ={**home.environ(), **(env or {})}, log=log
        )
        started.append(server)
        if transport != "stdio":
            with log.open("ab") as stderr:
                options = {"env": server.environ, "stdin": subprocess.DEVNULL, "stdout": stderr, "stderr": stderr}
                server.running = popen(home, *words[len(COMMAND) :], **options)
        return server

    try:
        yield start
    finally:
        for server in started:
            if server.running is not None:
                end(server.running)


def end(process: subprocess.Popen[bytes], number: int = signal.SIGTERM) -> int:
    """Ends it and returns its exit code. If it does not end in time, it is killed and the test fails."""
    if process.poll() is None:
        process.send_signal(number)
    try:
        return process.wait(END_LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise
