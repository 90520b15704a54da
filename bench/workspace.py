"""What the workspace tools cost: `python bench/workspace.py [--json FILE]`.

In: nothing; the tree that is searched is this environment's own site-packages, copied. Out: tables on stdout, each with
its plain counterpart measured in the same run, in interleaved rounds: a file read and written by a tool in this process
and over stdio, against open(); a command in the sandbox against a plain one; a search against ripgrep and grep.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

from report import Figure, median, rounded
from toolcrib.workspace.session import WorkspaceSession
from toolcrib.workspace.settings.model import DEFAULTS, Limits, WorkspaceSettings
from toolcrib.workspace.workspace import Workspace

ROUNDS = 7
FILES = 300
COMMANDS = 15
SEARCHES = 3
SIZE = 4096
PATTERNS = {"rare": "StopAsyncIteration", "common, limited": "import", "regular expression": r"def _\w+_loop\("}
UNLIMITED = 10**12

Work = Callable[[], Awaitable[Any]]


def settings() -> WorkspaceSettings:
    """The defaults, but for what a session may use up in all."""
    limits = {name: getattr(DEFAULTS.limits, name) for name in Limits.__dataclass_fields__}
    used_up = {"session_calls": UNLIMITED, "session_seconds": float(UNLIMITED), "session_bytes": UNLIMITED}
    return WorkspaceSettings(limits=Limits(**{**limits, **used_up}), forbid_shell_in_ci=False)


class Stdio:
    """The stand-alone server over its pipes, as a legacy client that asks one thing at a time."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._ids = itertools.count(1)

    @classmethod
    async def start(cls, root: Path) -> tuple[Stdio, float]:
        began = time.perf_counter()
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "toolcrib.workspace", "--root", str(root),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, limit=1 << 26,
        )  # fmt: skip
        server = cls(process)
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "bench", "version": "0"}}
        await server.ask("initialize", hello)
        server._send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return server, time.perf_counter() - began

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")

    async def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        number = next(self._ids)
        self._send({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        assert self._process.stdout is not None
        while True:
            answer = json.loads(await asyncio.wait_for(self._process.stdout.readline(), 60))
            if answer.get("id") == number:
                result: dict[str, Any] = answer["result"]
                return result

    async def call(self, name: str, **arguments: Any) -> None:
        result = await self.ask("tools/call", {"name": name, "arguments": arguments})
        assert not result.get("isError"), result

    async def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        await asyncio.wait_for(self._process.wait(), 10)


async def each(count: int, work: Work) -> float:
    """Seconds for one of many."""
    began = time.perf_counter()
    for _ in range(count):
        await work()
    return (time.perf_counter() - began) / count


async def compared(count: int, ways: dict[str, Work]) -> dict[str, float]:
    for work in ways.values():
        await work()
    rounds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, work in ways.items():
            rounds[name].append(await each(count, work))
    return {name: median(times) or 0.0 for name, times in rounds.items()}


def in_process(workspace: Workspace, session: WorkspaceSession) -> Callable[..., Work]:
    def tool(name: str, **arguments: Any) -> Work:
        given = json.dumps(arguments).encode()

        async def work() -> None:
            result = await workspace.call(name, given, session=session)
            assert b'"isError":false' in result, result[:500]

        return work

    return tool


def plain(work: Callable[[], Any]) -> Work:
    async def done() -> None:
        work()

    return done


def replaced(file: Path, content: bytes) -> None:
    """What a careful program does: beside, synced, then in its place."""
    beside = file.with_name(".beside")
    with beside.open("wb") as opened:
        opened.write(content)
        opened.flush()
        os.fsync(opened.fileno())
    beside.replace(file)
    folder = os.open(file.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


async def files(root: Path) -> list[Figure]:
    content = ("x" * 63 + "\n") * (SIZE // 64)
    (root / "a.txt").write_text(content)
    chosen = settings()
    workspace = Workspace(root, chosen, environ=dict(os.environ))
    tool = in_process(workspace, WorkspaceSession(chosen.limits))
    server, started = await Stdio.start(root)
    try:
        read = await compared(
            FILES,
            {
                "open() and read()": plain((root / "a.txt").read_bytes),
                "read_file in this process": tool("read_file", path="a.txt"),
                "read_file over stdio": lambda: server.call("read_file", path="a.txt"),
            },
        )
        write = await compared(
            FILES // 10,
            {
                "open() and write()": plain(lambda: (root / "b.txt").write_text(content)),
                "synced and replaced": plain(lambda: replaced(root / "c.txt", content.encode())),
                "write_file in this process": tool("write_file", path="d.txt", content=content),
                "write_file over stdio": lambda: server.call("write_file", path="e.txt", content=content),
            },
        )
    finally:
        await server.end()
        await workspace.close()
    return [
        figure("read", f"{SIZE} bytes, µs", read, 1e6),
        figure("write", f"{SIZE} bytes, µs", write, 1e6),
        figure("start", "exec to the answer to initialize over stdio, ms", {"the server": started}, 1e3),
    ]


async def commands(root: Path) -> list[Figure]:
    chosen = settings()
    workspace = Workspace(root, chosen, environ=dict(os.environ))
    tool = in_process(workspace, WorkspaceSession(chosen.limits))
    try:
        refusal = (await workspace.sandbox()).refusal
        if refusal is not None:
            unmeasured = Figure(name="commands", title="a command, ms", keys=("way",), values=())
            unmeasured.add_not_measured(("all",), refusal.text())
            return [unmeasured]
        ways = {
            "plain `true`": plain(lambda: subprocess.run(["true"], check=True)),
            "run_shell_safe `true`": tool("run_shell_safe", argv=["true"]),
            "plain `python -c pass`": plain(lambda: subprocess.run([sys.executable, "-c", "pass"], check=True)),
            "run_shell_safe `python -c pass`": tool("run_shell_safe", argv=[sys.executable, "-c", "pass"]),
        }
        return [figure("commands", "a command, ms", await compared(COMMANDS, ways), 1e3)]
    finally:
        await workspace.close()


async def searches(root: Path) -> list[Figure]:
    """Without an ignore file, so that all of them look at the same files; the first 100 matching lines."""
    chosen = settings()
    without = dict(os.environ) | {"PATH": "/nowhere"}
    tested = Workspace(root, chosen, environ=dict(os.environ))
    alone = Workspace(root, chosen, environ=without)
    session = WorkspaceSession(chosen.limits)
    figures = []
    try:
        for title, pattern in PATTERNS.items():
            ways = {
                "search_text": in_process(tested, session)("search_text", pattern=pattern),
                "search_text without ripgrep": in_process(alone, session)("search_text", pattern=pattern),
                "grep -rn": plain(partial(quiet, ["grep", "-rnIE", "-e", pattern, str(root)])),
            }
            if rg := shutil.which("rg"):
                words = [rg, "--no-config", "--hidden", "--no-ignore", "-n", "-e", pattern, str(root)]
                ways["rg"] = plain(partial(quiet, words))
            figures.append(figure("search", f"{title} ({pattern}), ms", await compared(SEARCHES, ways), 1e3))
    finally:
        await tested.close()
        await alone.close()
    return figures


def quiet(words: list[str]) -> None:
    done = subprocess.run(words, stdout=subprocess.PIPE, check=False)
    assert done.returncode in (0, 1)


def figure(name: str, title: str, times: dict[str, float], unit: float) -> Figure:
    made = Figure(name=name, title=title, keys=("way",), values=("median", "times the first"))
    first = next(iter(times.values()))
    for way, seconds in times.items():
        made.add((way,), {"median": rounded(seconds * unit), "times the first": rounded(seconds / first)})
    return made


async def measure(scratch: Path) -> list[Figure]:
    small, large = scratch / "small", scratch / "large"
    small.mkdir()
    shutil.copytree(sysconfig.get_path("purelib"), large, symlinks=True)
    return [*await files(small), *await commands(small), *await searches(large)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench/workspace.py", description="What the workspace tools cost.")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the results there as well")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tcb-") as scratch:
        figures = asyncio.run(measure(Path(scratch).resolve()))
    print("\n\n".join(one.as_text() for one in figures))
    if options.json:
        options.json.write_text(json.dumps([one.as_json() for one in figures], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
