"""One connection to the daemon's socket, for a command that streams.

In: a command's name and parameters. Out: its events, or the daemon's error, re-raised. Newline-delimited JSON-RPC.
`lease` uses it; `error_from` also reads errors from the daemon's HTTP endpoint.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolcrib import errors
from toolcrib.errors import ProtocolViolation, ToolcribError

_LONGEST = 1 << 24
"""Maximum bytes of a line; arguments are sent up to 256 KiB."""


class DaemonDisconnected(Exception):
    """The daemon closed the connection."""


class DaemonConnection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, sock: socket.socket) -> DaemonConnection:
        return cls(*await asyncio.open_unix_connection(sock=sock, limit=_LONGEST))

    @classmethod
    async def to(cls, path: Path) -> DaemonConnection:
        try:
            return cls(*await asyncio.open_unix_connection(path, limit=_LONGEST))
        except OSError as error:
            raise DaemonDisconnected from error

    async def ask(self, method: str, params: dict[str, Any], root: Path) -> None:
        request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params, "root": str(root)}
        self._writer.write(json.dumps(request).encode() + b"\n")
        try:
            await self._writer.drain()
        except ConnectionError as error:
            raise DaemonDisconnected from error

    async def event(self) -> dict[str, Any] | None:
        """The next event, or None after the command ends. Raises the daemon's error, or `DaemonDisconnected`."""
        while True:
            match await self._message():
                case {"method": "event", "params": {"event": dict(event)}}:
                    return event
                case {"id": 1, "result": _}:
                    return None
                case {"error": dict(error)}:
                    raise error_from(error)

    @classmethod
    async def answer(cls, path: Path, method: str, params: dict[str, Any], root: Path) -> dict[str, Any]:
        """Runs a command that does not stream, over a separate connection."""
        connection = await cls.to(path)
        try:
            await connection.ask(method, params, root)
            while True:
                match await connection._message():
                    case {"id": 1, "result": dict(result)}:
                        return result
                    case {"error": dict(error)}:
                        raise error_from(error)
        finally:
            await connection.close()

    async def _message(self) -> Any:
        try:
            line = await self._reader.readline()
        except ConnectionError as error:
            raise DaemonDisconnected from error
        except ValueError as error:
            raise ProtocolViolation("The daemon sent a line that is too long.") from error
        if not line.endswith(b"\n"):
            raise DaemonDisconnected
        try:
            return json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ProtocolViolation("The daemon sent a line that is not JSON.") from error

    def finish_sending(self) -> None:
        """Ends only our side: the daemon's remaining messages can still be read."""
        with contextlib.suppress(OSError):
            self._writer.write_eof()

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


def error_from(error: Mapping[str, Any]) -> ToolcribError:
    """The error that the daemon raised, with the same class and so the same exit code."""
    data = error.get("data")
    data = dict(data) if isinstance(data, dict) else {}
    kind = getattr(errors, str(data.pop("kind", "")), ToolcribError)
    if not (isinstance(kind, type) and issubclass(kind, ToolcribError)):
        kind = ToolcribError
    remedy = str(data.pop("remedy", ""))
    data.pop("exit_code", None)
    return kind(str(error.get("message", "The daemon answered with an error.")), remedy=remedy, data=data)
