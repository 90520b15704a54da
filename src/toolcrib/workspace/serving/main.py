"""The stand-alone workspace server: flags, folder, settings, self-test, one of three transports, shutdown.

In: the command line. Out: an exit code. Messages for people go to stderr; stdout belongs to the protocol. The SDK is
loaded in a thread while the sandbox tests itself. `daemon_client.shared_workspace` does the same for a server that
several programs share.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import logging
import os
import socket
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

from toolcrib.config.paths import Paths, private_folder
from toolcrib.errors import ConfigError, ToolcribError, UsageError
from toolcrib.signals import ending_signals, reset_signals
from toolcrib.workspace.serving.transports import (
    TOKEN_VARIABLE,
    AccessCheck,
    ClientPipes,
    claim_pipes,
    listen_on_loopback,
    listen_on_unix_socket,
    open_token,
)
from toolcrib.workspace.settings.load import load_settings
from toolcrib.workspace.settings.model import WorkspaceSettings
from toolcrib.workspace.tool import WorkspaceTool
from toolcrib.workspace.tools import TOOLS
from toolcrib.workspace.workspace import Workspace

log = logging.getLogger("toolcrib.workspace")

Serve = Callable[[Workspace], Coroutine[Any, Any, None]]
"""Serves until its clients end it, or until it is cancelled."""

HELP = {
    "--root": "the folder that the tools work in (default: the current one)",
    "--http": "serve http://127.0.0.1:PORT/mcp; 0 picks a free port",
    "--socket": "serve Streamable HTTP on a unix socket",
    "--read-only": "write nothing, and offer no shell",
    "--config": "use these settings instead of the project's; the file is fully trusted",
    "--token-file": "with --http: the file that contains the token; created with a new one if missing",
    "--unsafe-no-sandbox": "run commands with all of your permissions, without a sandbox",
}


def main(arguments: list[str] | None = None) -> int:
    reset_signals()
    options = _options(arguments)
    log_to_stderr()
    try:
        serve = _transport(options)
        workspace = open_workspace(
            Path(options.root),
            without_token(os.environ),
            config=options.config,
            read_only=options.read_only,
            unsafe_no_sandbox=options.unsafe_no_sandbox,
        )
        asyncio.run(live(workspace, serve))
    except ToolcribError as error:
        log.error("%s", error.text())  # noqa: TRY400 - users can act on the message, not on a traceback
        return error.exit_code
    leave()
    return 0


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m toolcrib.workspace",
        description="An MCP server on stdio with file, test, lint and shell tools that cannot leave their folder.",
    )
    parser.add_argument("--root", default=".", help=HELP["--root"])
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--http", type=int, metavar="PORT", help=HELP["--http"])
    where.add_argument("--socket", type=Path, metavar="PATH", help=HELP["--socket"])
    parser.add_argument("--token-file", type=Path, metavar="FILE", help=HELP["--token-file"])
    parser.add_argument("--config", type=Path, metavar="FILE", help=HELP["--config"])
    parser.add_argument("--read-only", action="store_true", help=HELP["--read-only"])
    parser.add_argument("--unsafe-no-sandbox", action="store_true", help=HELP["--unsafe-no-sandbox"])
    return parser.parse_args(arguments)


def _transport(options: argparse.Namespace) -> Serve:
    if options.token_file is not None and options.http is None:
        raise UsageError(
            "--token-file requires --http.", remedy="Omit it: other users cannot access the pipe or socket."
        )
    if options.http is not None:
        if not 0 <= options.http <= 65535:
            raise UsageError(f"There is no port {options.http}.", remedy="Ports go up to 65535; 0 picks a free one.")
        return lambda workspace: _over_http(workspace, options.http, options.token_file)
    if options.socket is not None:
        return lambda workspace: over_socket(workspace, options.socket)
    return _over_stdio


def log_to_stderr() -> None:
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="toolcrib-workspace: %(message)s")


def without_token(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment that the workspace may see."""
    return {name: value for name, value in environ.items() if name != TOKEN_VARIABLE}


def leave() -> None:
    """Exit without waiting for a thread that hangs on a broken file system, as the interpreter would."""
    logging.shutdown()
    sys.stderr.flush()
    os._exit(0)


def open_workspace(
    root: Path,
    environ: Mapping[str, str],
    *,
    config: Path | None = None,
    read_only: bool = False,
    unsafe_no_sandbox: bool = False,
    tools: Callable[[WorkspaceSettings], Sequence[WorkspaceTool]] = lambda _: TOOLS,
) -> Workspace:
    loaded = load_settings(root, environ=environ, config=config, read_only=read_only)
    for problem in loaded.problems:
        log.warning("%s", problem)
    if not loaded.ok:
        raise ConfigError(loaded.settings.broken, remedy="`toolcrib workspace check` shows all problems.")
    paths = Paths.of_user(environ)
    return Workspace(
        root,
        loaded.settings,
        environ=environ,
        unsafe_no_sandbox=unsafe_no_sandbox,
        unfit=(paths.config_dir, paths.state_dir, paths.run_dir),
        tools=tools(loaded.settings),
    )


async def live(workspace: Workspace, serve: Serve) -> None:
    """Serve until the client ends it or a signal arrives, then end everything that runs."""
    stop = asyncio.Event()
    for number in ending_signals():
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    workspace.start()
    serving = asyncio.ensure_future(serve(workspace))
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving
    finally:
        stopping.cancel()
        await workspace.close()


async def _over_stdio(workspace: Workspace) -> None:
    pipes = claim_pipes()
    await (await _server()).serve_stdio(workspace, pipes)


async def _over_http(workspace: Workspace, port: int, token_file: Path | None) -> None:
    listeners = listen_on_loopback(port)
    number = listeners[0].getsockname()[1]
    folder = Paths.of_user(os.environ).run_dir / "workspaces"
    private_folder(folder)
    server = await _server()
    hosts = frozenset(f"{name}:{number}" for name in ("127.0.0.1", "localhost", "[::1]"))
    with open_token(os.environ, token_file, folder / f"http-{number}.token") as key:
        announce(f"serving {workspace.root} at http://127.0.0.1:{number}/mcp")
        announce(f"clients send the header `Authorization: Bearer <token>`; the token is {key.where}")
        await server.serve_http(workspace, AccessCheck(hosts=hosts, token=key.value), listeners)


async def over_socket(workspace: Workspace, path: Path, ready: Callable[[], None] | None = None) -> None:
    with listen_on_unix_socket(path) as listener:
        server = await _server()
        announce(f"serving {workspace.root} at {path}: Streamable HTTP, path /mcp, Host localhost")
        if ready is not None:
            ready()
        await server.serve_http(workspace, AccessCheck(hosts=frozenset({"localhost"}), token=None), [listener])


class _Server(Protocol):
    """The interface of `mcp_server`."""

    async def serve_stdio(self, workspace: Workspace, pipes: ClientPipes) -> None: ...
    async def serve_http(
        self, workspace: Workspace, access: AccessCheck, listeners: Sequence[socket.socket]
    ) -> None: ...


async def _server() -> _Server:
    """The SDK takes most of a second to load, so a thread loads it while the sandbox tests itself."""
    return cast("_Server", await asyncio.to_thread(importlib.import_module, "toolcrib.workspace.serving.mcp_server"))


def announce(line: str) -> None:
    print(f"toolcrib-workspace: {line}", file=sys.stderr, flush=True)  # noqa: T201
