"""What is measured, started and ended: the echo upstreams, the bare forwarder and Toolcrib.

In: an upstream and the command that starts Toolcrib. Out: context managers that give a `Target` and leave
no process and no file behind. What cannot be started raises `NotMeasured` with the reason that a row shows.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import messages

HERE = Path(__file__).resolve().parent
SERVER = "bench"
"""The echo's name in Toolcrib's configuration, and so the prefix of its tools."""
START_LIMIT = 60.0


class NotMeasured(Exception):
    """The reason why a row has no number."""


@dataclass(frozen=True, kw_only=True)
class Upstream:
    era: str
    tools: int = 2
    url: str = ""
    """Empty: a stdio server, which whoever calls it starts."""

    @property
    def transport(self) -> str:
        return "http" if self.url else "stdio"

    @property
    def argv(self) -> list[str]:
        return [sys.executable, str(HERE / "echo_stdio.py"), self.era, str(self.tools)]

    @property
    def entry(self) -> dict[str, Any]:
        """As it stands under `mcpServers`."""
        return {"url": self.url} if self.url else {"command": self.argv[0], "args": self.argv[1:]}


@dataclass(frozen=True, kw_only=True)
class Target:
    """Somewhere to send calls: a url, or the stdio server itself."""

    url: str = ""
    argv: tuple[str, ...] = ()
    token: str = ""
    prefix: str = ""
    pid: int = 0
    home: Path | None = None


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextlib.contextmanager
def process(argv: list[str], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A child in a session of its own, so that Ctrl-C reaches only us and we end things in order."""
    child = subprocess.Popen(argv, stdin=subprocess.PIPE, start_new_session=True, **options)
    try:
        yield child
    finally:
        end(child)


def end(child: subprocess.Popen[bytes], patience: float = 8.0) -> None:
    if child.stdin and not child.stdin.closed:
        with contextlib.suppress(OSError):
            child.stdin.close()
    if child.poll() is None:
        child.terminate()
    try:
        child.wait(patience)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    for stream in (child.stdout, child.stderr):
        if stream:
            stream.close()


def answers(target: Target) -> bool:
    """Whether one modern tools/call of `echo` comes back right, now."""
    parts = urlsplit(target.url)
    tool = f"{target.prefix}echo"
    content = messages.body("tools/call", messages.call_params(messages.MODERN, tool, {"text": messages.ECHO_TEXT}))
    headers = messages.http_headers(messages.MODERN, "tools/call", tool=tool, token=target.token)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=START_LIMIT)
    try:
        connection.request("POST", parts.path, content, headers)
        response = connection.getresponse()
        if response.status != 200:
            response.read()
            return False
        result = messages.json_of(response.read()).get("result", {})
        return bool(result and not result.get("isError") and result["content"][0]["text"] == messages.ECHO_TEXT)
    except (OSError, http.client.HTTPException, ValueError):
        return False
    finally:
        connection.close()


def wait_for_answer(target: Target, child: subprocess.Popen[bytes] | None = None, pause: float = 0.005) -> None:
    deadline = time.monotonic() + START_LIMIT
    while not answers(target):
        if child is not None and child.poll() is not None:
            raise NotMeasured(f"it ended at its start with code {child.returncode}")
        if time.monotonic() > deadline:
            raise NotMeasured(f"no good answer to a call within {START_LIMIT:.0f} s")
        time.sleep(pause)


@contextlib.contextmanager
def http_echo(era: str, tools: int = 2) -> Iterator[Upstream]:
    port = free_port()
    url = f"http://127.0.0.1:{port}/mcp"
    with process([sys.executable, str(HERE / "echo_http.py"), era, str(tools), str(port)]) as child:
        wait_for_answer(Target(url=url), child)
        yield Upstream(era=era, tools=tools, url=url)


def forwarder_argv(port: int, upstream: Upstream, copies: int = 1) -> list[str]:
    behind = ["url", upstream.url] if upstream.url else ["stdio", str(copies), *upstream.argv]
    return [sys.executable, str(HERE / "forwarder.py"), str(port), upstream.era, *behind]


@contextlib.contextmanager
def forwarder(upstream: Upstream, copies: int = 1) -> Iterator[Target]:
    port = free_port()
    target = Target(url=f"http://127.0.0.1:{port}/mcp")
    with process(forwarder_argv(port, upstream, copies)) as child:
        if copies:
            wait_for_answer(target, child)
        else:
            wait_for_port(port, child)
        yield Target(url=target.url, pid=child.pid)


def wait_for_port(port: int, child: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_LIMIT
    while time.monotonic() < deadline and child.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.01)
    raise NotMeasured("the forwarder does not listen")


def direct(upstream: Upstream) -> Target:
    return Target(url=upstream.url) if upstream.url else Target(argv=tuple(upstream.argv))


@dataclass(frozen=True, kw_only=True)
class ToolcribCommand:
    """How Toolcrib is run here: always in a home of its own, never with the person's settings."""

    executable: str

    def environment(self, home: Path) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TOOLCRIB_")}
        return {**kept, "TOOLCRIB_HOME": str(home)}

    def run(self, home: Path, *words: str) -> subprocess.CompletedProcess[str]:
        """One command to its end. Its words go to files: a daemon that kept a pipe open would keep us waiting."""
        argv = [self.executable, *words]
        try:
            with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
                done = subprocess.run(
                    argv,
                    env=self.environment(home),
                    cwd=home,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    timeout=START_LIMIT,
                    check=False,
                    start_new_session=True,
                )
                out.seek(0)
                err.seek(0)
                return subprocess.CompletedProcess(argv, done.returncode, out.read(), err.read())
        except OSError as problem:
            raise NotMeasured(f"toolcrib cannot be run: {problem.strerror}") from problem
        except subprocess.TimeoutExpired as problem:
            raise NotMeasured(f"`toolcrib {' '.join(words)}` took over {START_LIMIT:.0f} s") from problem

    def status(self, home: Path) -> dict[str, Any]:
        done = self.run(home, "status", "--json")
        try:
            status = json.loads(done.stdout)
            return {"endpoint": status["endpoint"], "token_file": status["token_file"], "pid": int(status["pid"])}
        except (ValueError, KeyError, TypeError) as problem:
            raise NotMeasured(f"`toolcrib status --json` said {last_words(done)}") from problem


def last_words(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line.strip() for line in (done.stdout + "\n" + done.stderr).splitlines() if line.strip()]
    return lines[-1][:160] if lines else "nothing"


@contextlib.contextmanager
def toolcrib_home(servers: dict[str, dict[str, Any]]) -> Iterator[Path]:
    """A short path, as a unix socket will live in it."""
    home = Path(tempfile.mkdtemp(prefix="tcb-"))
    try:
        (home / "config.json").write_text(json.dumps({"mcpServers": servers}))
        yield home
    finally:
        shutil.rmtree(home, ignore_errors=True)


@contextlib.contextmanager
def toolcrib(
    command: ToolcribCommand, servers: dict[str, dict[str, Any]], *, called: str = SERVER, trusted: bool = False
) -> Iterator[Target]:
    """The daemon with these servers, when its `called` server answers (an empty name: when its endpoint does).

    Believed: what the server calls read-only counts as such, and waits for no disk.
    """
    with toolcrib_home(servers) as home:
        pid = 0
        try:
            done = command.run(home, "up", "--port", "0", "--detach")
            if done.returncode:
                raise NotMeasured(f"`toolcrib up --detach` ended with code {done.returncode}: {last_words(done)}")
            status = command.status(home)
            pid = status["pid"]
            token = Path(status["token_file"]).read_text().strip()
            target = Target(url=status["endpoint"], token=token, prefix=f"{called}_", pid=pid, home=home)
            if trusted:
                done = command.run(home, "trust", "--server", called)
                if done.returncode:
                    raise NotMeasured(f"`toolcrib trust --server` said {last_words(done)}")
            if called:
                wait_for_answer(target, pause=0.05)
            yield target
        finally:
            stop_daemon(command, home, pid)


@contextlib.contextmanager
def toolcrib_in_foreground(
    command: ToolcribCommand, words: list[str], servers: dict[str, dict[str, Any]]
) -> Iterator[Target]:
    """The daemon as another script starts it."""
    with toolcrib_home(servers) as home:
        argv = [sys.executable, *words, "up", "--port", "0"]
        with process(argv, env=command.environment(home), cwd=home, stdout=subprocess.DEVNULL) as child:
            deadline = time.monotonic() + START_LIMIT
            while not (home / "run" / "daemon.json").exists():
                if child.poll() is not None or time.monotonic() > deadline:
                    raise NotMeasured("the daemon did not start")
                time.sleep(0.02)
            status = command.status(home)
            token = Path(status["token_file"]).read_text().strip()
            target = Target(url=status["endpoint"], token=token, prefix=f"{SERVER}_", pid=status["pid"], home=home)
            wait_for_answer(target, child, pause=0.05)
            yield target


def stop_daemon(command: ToolcribCommand, home: Path, pid: int) -> None:
    with contextlib.suppress(NotMeasured):
        # An `up` that failed or was interrupted may have left a daemon whose pid nobody has asked for yet.
        pid = pid or command.status(home)["pid"]
    with contextlib.suppress(NotMeasured):
        command.run(home, "down")
    deadline = time.monotonic() + 8
    while pid and alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    if pid and alive(pid):
        print(f"toolcrib down left process {pid}; it is killed now", file=sys.stderr)
        os.kill(pid, signal.SIGKILL)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # Where nobody reaps orphans, an ended daemon stays visible as a zombie.
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return True
