"""The daemon's unix socket: commands from the CLI, and the bridge's MCP messages.

In: newline-delimited JSON-RPC 2.0. Out: the same. A request's method is a command's name, and `root` is its project
(default: the daemon's own). If the first method is `toolcrib/bridge`, the connection becomes an MCP client's, in the
project that it names. Only the user who runs the daemon can use the socket: the file has mode 0600 in a 0700 folder,
and the peer's user id is checked.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import struct
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec

from toolcrib.commands.all import registry
from toolcrib.commands.registry import CommandContext, CommandHost, CommandScope, Via, usable_path
from toolcrib.config.model import ListingMode
from toolcrib.core.crib import Crib
from toolcrib.core.project import Project
from toolcrib.errors import INTERNAL_ERROR, INVALID_REQUEST, ConfigError, ErrorCase, ToolcribError, UsageError
from toolcrib.gateway.auth import DEFAULT_CONVERSATION, Authenticator, checked_conversation, checked_without
from toolcrib.gateway.messages import MAX_BODY, Rejected, count_values, error_reply
from toolcrib.gateway.parking import Parking
from toolcrib.gateway.pipe import PipeConnection
from toolcrib.identity.principal import CLIENT, OWNER, RequestContext

log = logging.getLogger(__name__)

_LONGEST_PATH = 103
"""Linux allows 107 bytes, macOS 103."""
_BRIDGE = "toolcrib/bridge"
_NEW_PROJECT_WAITS = 3.0
"""Seconds that a command in a new project waits for its servers to connect."""


class CommandSocket:
    def __init__(self, crib: Crib, host: CommandHost) -> None:
        self._crib = crib
        self._host = host
        self._auth = Authenticator(crib)
        self._parking = Parking(crib.services.handles)
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self, path: Path) -> None:
        # We hold the daemon's lock, so an existing file is the leftover of a killed daemon.
        if len(os.fsencode(path)) > _LONGEST_PATH:
            raise ConfigError(
                f"{path} is too long for a unix socket ({_LONGEST_PATH} bytes at most).",
                remedy="Set TOOLCRIB_HOME to a shorter path.",
            )
        path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # The umask applies to the whole process: restore it before anything else can run.
        before = os.umask(0o177)
        try:
            listener.bind(str(path))
        finally:
            os.umask(before)
        self._server = await asyncio.start_unix_server(self._connected, sock=listener, limit=MAX_BODY)

    async def stop(self) -> None:
        if self._server is None:
            return
        self._server.close()
        for task in tuple(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._parking.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)
        try:
            if _is_owner(writer.get_extra_info("socket")):
                await self._serve(reader, writer)
        except UsageError as error:
            with contextlib.suppress(ConnectionError):
                await _send(writer, {"id": None, "error": {"code": INVALID_REQUEST, "message": error.message}})
        except asyncio.CancelledError:
            # The daemon stops and does not wait for the peer to read the rest.
            writer.transport.abort()
        except (ConnectionError, asyncio.LimitOverrunError) as end:
            log.debug("a connection to the socket ended: %s", type(end).__name__)
        except Exception:
            log.exception("a connection to the socket failed")
        finally:
            writer.close()
            # CancelledError if the daemon stops right now: asyncio would log it as a failure.
            with contextlib.suppress(ConnectionError, asyncio.CancelledError):
                await writer.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = await _next_line(reader)
        while line:
            try:
                request_id, method, params, root = await _read_command(line)
            except UsageError as error:
                await _send(writer, {"id": None, "error": {"code": INVALID_REQUEST, "message": error.message}})
                line = await _next_line(reader)
                continue
            if method == _BRIDGE:
                await self._bridge(params, reader, writer)
                return
            # If the client disconnects before the answer (`logs -f`, Ctrl-C), the work ends too.
            following = asyncio.create_task(_next_line(reader))
            work = asyncio.create_task(self._command(request_id, method, params, root, writer))
            try:
                await asyncio.wait({work, following}, return_when=asyncio.FIRST_COMPLETED)
                if following.done() and not following.result():
                    return
                await work
                line = await following
            finally:
                for task in (work, following):
                    task.cancel()
                await asyncio.gather(work, following, return_exceptions=True)

    async def _bridge(self, params: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves an MCP client: the agent of the `token` in its first line, or `client`."""
        async with contextlib.AsyncExitStack() as stack:
            try:
                token = params.get("token")
                principal = self._auth.authenticate(str(token)) if token else CLIENT
                conversation = checked_conversation(str(params.get("conversation") or "")) or DEFAULT_CONVERSATION
                without = checked_without(str(params.get("without") or ""))
                # An agent works in its own folder, wherever its client was started.
                root = _root(params.get("root") or str(self._crib.environment.root))
                if principal.workdir is not None:
                    root = self._auth.root_of(principal, principal.workdir)
                project = await stack.enter_async_context(self._crib.projects.working_in(root))
                listing = str(params.get("listing") or "")
                if listing not in {"", *ListingMode}:
                    raise Rejected(ErrorCase.LISTING)
                # A connection is one completion of the conversation.
                handshake = self._crib.services.sessions.next_listing(principal.name, conversation)
                stack.enter_context(self._host.leases.needed())
            except Rejected as rejected:
                writer.write(rejected.reply().body + b"\n")
                return
            except ToolcribError as error:
                writer.write(error_reply(error).body + b"\n")
                return
            except (OSError, ValueError) as error:
                message = f"The root cannot be used: {error}."
                await _send(writer, {"id": None, "error": {"code": INVALID_REQUEST, "message": message}})
                return
            await PipeConnection(
                self._crib,
                self._parking,
                project,
                principal,
                conversation,
                self._auth.reads,
                reader,
                writer,
                listing=listing,
                without=without,
                handshake=handshake,
            ).serve()

    async def _command(
        self, request_id: Any, name: str, params: dict[str, Any], root: Path | None, writer: asyncio.StreamWriter
    ) -> None:
        async def emit(event: dict[str, Any]) -> None:
            await _send(writer, {"method": "event", "params": {"id": request_id, "event": event}})

        try:
            async with self._working_in(name, root) as project:
                request = RequestContext(OWNER, project)
                context = CommandContext(crib=self._crib, request=request, host=self._host, via=Via.SOCKET, emit=emit)
                answer = {"id": request_id, "result": await registry.run(name, params, context)}
        except ToolcribError as error:
            data = {**error.data, "remedy": error.remedy, "exit_code": error.exit_code, "kind": type(error).__name__}
            answer = {"id": request_id, "error": {"code": error.code, "message": error.message, "data": data}}
        except ConnectionError:
            raise
        except Exception:
            log.exception("the command %s failed", name)
            message = f"{name} failed unexpectedly."
            data = {"remedy": "See `toolcrib logs`.", "exit_code": 1}
            answer = {"id": request_id, "error": {"code": INTERNAL_ERROR, "message": message, "data": data}}
        await _send(writer, answer)

    @contextlib.asynccontextmanager
    async def _working_in(self, command: str, root: Path | None) -> AsyncIterator[Project]:
        """The command's project. Commands that do not use servers do not start them."""
        root = root or self._crib.environment.root
        known = root in self._crib.projects
        if not known and registry.find(command).scope is CommandScope.DAEMON:
            root = self._crib.environment.root
        async with self._crib.projects.working_in(root) as project:
            if not known:
                await project.wait_for_new_servers(_NEW_PROJECT_WAITS)
            yield project


async def _next_line(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readline()
    except ValueError as error:
        raise UsageError(f"Invalid command: the line is longer than {MAX_BODY} bytes.") from error


async def _read_command(line: bytes) -> tuple[Any, str, dict[str, Any], Path | None]:
    try:
        await count_values(line)
        message = msgspec.json.decode(line, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"Invalid command: {error}") from error
    except Rejected as rejected:
        raise UsageError(f"Invalid command: {rejected.message}") from rejected
    method, params = message.get("method"), message.get("params", {})
    if not isinstance(method, str) or not isinstance(params, dict):
        raise UsageError("Invalid command: method must be a string and params an object.")
    root = message.get("root")
    if root is None:
        return message.get("id"), method, params, None
    try:
        return message.get("id"), method, params, _root(root)
    except ValueError as error:
        raise UsageError(f"Invalid command: root: {error}.") from error


def _root(given: Any) -> Path:
    if not isinstance(given, str) or not Path(given).is_absolute():
        raise ValueError("it must be the absolute path of a folder")
    # Not with pathlib, which raises for a loop of links.
    return Path(os.path.realpath(usable_path(given)))


async def _send(writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
    writer.write(msgspec.json.encode({"jsonrpc": "2.0", **message}) + b"\n")
    await writer.drain()


def _is_owner(connection: socket.socket) -> bool:
    if not sys.platform.startswith("linux"):
        return True
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, uid, _ = struct.unpack("3i", credentials)
    return bool(uid in (os.geteuid(), 0))
