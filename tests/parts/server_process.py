"""Our own test servers as processes: those that print `listening on PORT`, and commands of those on stdio."""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from parts import fleet
from parts.preloaded import Preloaded

START_LIMIT = 60.0
URL_PATHS = {"http": "/mcp", "sse": "/sse", "ws": "/ws"}


@dataclass(frozen=True, kw_only=True)
class RunningServer:
    process: subprocess.Popen[str]
    port: int

    def url(self, transport: str) -> str:
        scheme = "ws" if transport == "ws" else "http"
        return f"{scheme}://127.0.0.1:{self.port}{URL_PATHS[transport]}"


StartServer = Callable[..., RunningServer]
"""`start_server(words, env=None)`."""


def stdio_command(name: str, *flags: str) -> list[str]:
    """The command that starts one of our servers on stdio."""
    python = fleet.command("mcp-v1")[0] if name.startswith("sdk_v1") else sys.executable
    isolated = ["-I", "-S"] if name in ("raw_server", "offers_server", "task_server") else []
    return [python, *isolated, str(fleet.SERVERS / f"{name}.py"), *flags]


def stdio_entry(name: str, *flags: str, **more: Any) -> dict[str, Any]:
    """The same as an entry of a configuration, with time to start on a busy machine."""
    command, *args = stdio_command(name, *flags)
    return {"command": command, "args": args, "connect_timeout": START_LIMIT, **more}


@contextlib.contextmanager
def starting() -> Iterator[StartServer]:
    started: list[subprocess.Popen[str]] = []

    def start(words: Sequence[str], env: Mapping[str, str] | None = None) -> RunningServer:
        # A script of this interpreter needs no fresh one; settings of the interpreter would need one.
        program = Preloaded if [words[0], words[1][-3:]] == [sys.executable, ".py"] else subprocess.Popen
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        pipes: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE}
        process = program(list(words), text=True, env={**inherited, **(env or {})}, **pipes)
        started.append(process)
        return RunningServer(process=process, port=_port(process))

    try:
        yield start
    finally:
        for process in started:
            end(process)


def _port(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    with selectors.DefaultSelector() as ready:
        ready.register(process.stdout, selectors.EVENT_READ)
        if not ready.select(START_LIMIT):
            raise TimeoutError(f"{process.args!r} printed no port within {START_LIMIT:g} s")
    line = process.stdout.readline()
    if not line.startswith("listening on "):
        raise RuntimeError(f"{process.args!r} ended with {process.wait()} instead of listening")
    return int(line.split()[-1])


def end(process: subprocess.Popen[str]) -> None:
    with process:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
