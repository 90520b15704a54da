"""Counts the Python calls of one warm `tools/call` and one warm `tools/list`, and shows where they go.

In: nothing. It opens a gateway in this process, with a store, an audit log, an agent with rules, and a real stdio
server (`bench/echo_stdio.py`), and sends requests to its ASGI app. Out: for each request the files, the calls and the
changes of package, and the files in order as a Markdown table. `guard` compares the number of calls with the recorded
one.

    make walk
    python tools/walk.py --calls    # every call, indented by its depth
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import contextlib
import json
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import toolcrib
from toolcrib.config.paths import Paths
from toolcrib.core.crib import Crib
from toolcrib.gateway.http import HttpGateway
from toolcrib.policy import rule_from
from toolcrib.servers.model import ServerState

PACKAGE = Path(toolcrib.__file__).parent
UPSTREAM = Path(__file__).parent.parent / "bench" / "echo_stdio.py"
PORT = 4321
VERSION = "2026-07-28"
CALL, LIST = "tools/call", "tools/list"
WARM_UP, MEASURED = 20, 9
"""Requests to warm up, and requests to measure. The result is the median, because background tasks of the gateway
sometimes run in between."""
READY_TIMEOUT = 60.0
_NOT_CALLED = frozenset({"<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>"})
"""Only some versions of Python have separate frames for these."""


@dataclass(frozen=True, kw_only=True)
class Called:
    """A call of a Toolcrib function."""

    file: str
    function: str
    depth: int
    """The number of Toolcrib frames below it, in its thread."""
    caller: str | None
    """The file of the nearest one."""

    @property
    def changes_package(self) -> bool:
        return self.caller is not None and package_of(self.caller) != package_of(self.file)


@dataclass(frozen=True)
class Walk:
    """The calls of one request, in order."""

    calls: Sequence[Called]

    @property
    def files(self) -> Counter[str]:
        """The number of calls per file, in the order of first entry."""
        return Counter(call.file for call in self.calls)

    @property
    def changes(self) -> int:
        return sum(call.changes_package for call in self.calls)

    def __str__(self) -> str:
        return f"{len(self.files)} files, {len(self.calls)} calls, {self.changes} changes of package"


def package_of(file: str) -> str:
    first, _, rest = file.partition("/")
    return first if rest else first.removesuffix(".py")


class Recorder:
    """Records the calls of a request in this thread and in all threads started after `installed`."""

    def __init__(self) -> None:
        self._calls: list[Called] | None = None
        self._files: dict[CodeType, str | None] = {}

    @contextlib.contextmanager
    def installed(self) -> Iterator[Recorder]:
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        try:
            yield self
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    async def record(self, request: Callable[[], Awaitable[None]]) -> Walk:
        self._calls = calls = []
        try:
            await request()
        finally:
            self._calls = None
        return Walk(calls)

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        calls = self._calls
        if calls is None or event != "call" or (file := self._file(frame.f_code)) is None or not _begins(frame):
            return
        below = self._below(frame)
        caller = below[0] if below else None
        calls.append(Called(file=file, function=frame.f_code.co_qualname, depth=len(below), caller=caller))

    def _below(self, frame: FrameType) -> list[str]:
        files = []
        under = frame.f_back
        while under is not None:
            if (file := self._file(under.f_code)) is not None:
                files.append(file)
            under = under.f_back
        return files

    def _file(self, code: CodeType) -> str | None:
        """The path within the package; None for code of other packages."""
        if code not in self._files:
            path = Path(code.co_filename)
            ours = path.is_relative_to(PACKAGE) and code.co_name not in _NOT_CALLED
            self._files[code] = path.relative_to(PACKAGE).as_posix() if ours else None
        return self._files[code]


def _begins(frame: FrameType) -> bool:
    """Whether the call is new. After an `await` or a `yield`, the argument of RESUME is not 0."""
    return frame.f_lasti >= 0 and frame.f_code.co_code[frame.f_lasti + 1] & 3 == 0


@contextlib.asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[Callable[[str], Awaitable[None]]]:
    """A gateway as in a daemon. Yields a function that sends it an agent's request and checks the answer."""
    home, data = folder / "home", folder / "t"
    home.mkdir()
    data.mkdir()
    server = {"command": sys.executable, "args": [str(UPSTREAM), "modern", "8"]}
    (data / "config.json").write_text(json.dumps({"mcpServers": {"echo": server}}))
    rules = [
        rule_from({"allow": "echo:*"}, where="walk"),
        rule_from({"deny": "echo:big", "when": {"size": {"one_of": ["1"]}}}, where="walk"),
    ]
    async with Crib(
        paths=Paths.of_user({"TOOLCRIB_HOME": str(data), "HOME": str(home)}), root=home, environ={}
    ) as crib:
        token = (await crib.services.agents.add("walker", profile="nothing", rules=rules)).token
        gateway = HttpGateway(crib, token="o" * 43, port=PORT)
        async with asyncio.timeout(READY_TIMEOUT):
            while crib.status()["echo"].state is not ServerState.READY:  # noqa: ASYNC110 - no event reports the state
                await asyncio.sleep(0.01)
        try:
            yield lambda method: ask(gateway, token, method)
        finally:
            gateway.close()


async def ask(gateway: HttpGateway, token: str, method: str) -> None:
    params: dict[str, Any] = {"name": "echo_echo", "arguments": {"text": "hello"}} if method == CALL else {}
    meta = {"io.modelcontextprotocol/protocolVersion": VERSION, "io.modelcontextprotocol/clientCapabilities": {}}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}).encode()
    headers = {
        "host": f"127.0.0.1:{PORT}",
        "authorization": f"Bearer {token}",
        "content-type": "application/json",
        "content-length": str(len(body)),
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": VERSION,
        "mcp-method": method,
        **({"mcp-name": params["name"]} if params else {}),
    }
    scope = {
        "type": "http",
        "method": "POST",
        "raw_path": b"/mcp",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    arrived = [{"type": "http.request", "body": body}]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if not arrived:
            # The client stays connected until it has its answer.
            await asyncio.get_running_loop().create_future()
        return arrived.pop()

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await gateway(scope, receive, send)
    answer = json.loads(b"".join(message.get("body", b"") for message in sent))
    if answer.get("result", {"isError": True}).get("isError"):
        raise RuntimeError(f"{method} was answered with {answer}")


async def walks() -> dict[str, Walk]:
    """The walk with the median number of calls, by method."""
    with tempfile.TemporaryDirectory(prefix="tcw-") as folder, Recorder().installed() as recorder:
        async with opened(Path(folder)) as request:
            return {method: await _median(recorder, request, method) for method in (CALL, LIST)}


async def _median(recorder: Recorder, request: Callable[[str], Awaitable[None]], method: str) -> Walk:
    for _ in range(WARM_UP):
        await request(method)
    found = [await recorder.record(lambda: request(method)) for _ in range(MEASURED)]
    return sorted(found, key=lambda walk: len(walk.calls))[MEASURED // 2]


def table(walk: Walk) -> str:
    rows = [f"| {file} | {calls} | {_summary(file)} |" for file, calls in walk.files.items()]
    return "\n".join(["| file | calls | purpose |", "|---|---|---|", *rows])


def _summary(file: str) -> str:
    docstring = ast.get_docstring(ast.parse((PACKAGE / file).read_text())) or ""
    return docstring.partition("\n")[0].replace("|", "\\|")


def main() -> None:
    parser = argparse.ArgumentParser(description="Show the path of a warm tools/call and a warm tools/list.")
    parser.add_argument("--calls", action="store_true", help="show every call")
    arguments = parser.parse_args()
    for method, walk in asyncio.run(walks()).items():
        shown = (
            [f"{'  ' * call.depth}{call.file}: {call.function}" for call in walk.calls]
            if arguments.calls
            else [table(walk)]
        )
        sys.stdout.write("\n".join([f"`{method}`: {walk}", "", *shown, "", ""]))


if __name__ == "__main__":
    main()
