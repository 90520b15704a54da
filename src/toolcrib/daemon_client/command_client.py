"""Commands sent to a running daemon over its unix socket.

In: a command's name and parameters. Out: its result, or the daemon's error as a `RemoteError`. Newline-delimited
JSON-RPC, with only the standard library, because every command of the CLI imports this module.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from toolcrib.errors import CallTimeout, DaemonNotRunning, ProtocolViolation, ToolcribError

CHUNK = 1 << 18


class RemoteError(ToolcribError):
    """The daemon's error, with its code and exit code."""

    def __init__(self, error: dict[str, Any]) -> None:
        data = error.get("data")
        data = dict(data) if isinstance(data, dict) else {}
        remedy = str(data.pop("remedy", ""))
        exit_code = data.pop("exit_code", self.exit_code)
        super().__init__(str(error.get("message", "The daemon answered with an error.")), remedy=remedy, data=data)
        self.remote_code = error.get("code", self.code)
        self.remote_exit_code = exit_code if isinstance(exit_code, int) and 0 < exit_code < 256 else self.exit_code


def is_running(path: Path) -> bool:
    """Whether a process listens on the socket. Raises `DaemonNotRunning` if that cannot be determined."""
    try:
        connect(path).close()
    except DaemonNotRunning as error:
        if not isinstance(error.__cause__, FileNotFoundError | ConnectionRefusedError):
            raise
        return False
    return True


def listener(path: Path) -> int | None:
    """The pid of the process that listens on the socket; None if the system does not provide it."""
    with connect(path) as sock:
        if sys.platform != "linux":
            return None
        credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        pid: int = struct.unpack("3i", credentials)[0]
        return pid or None


def connect(path: Path) -> socket.socket:
    sock: socket.socket | None = None
    try:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(5.0)
        sock.connect(str(path))
    except OSError as error:
        if sock is not None:
            sock.close()
        if isinstance(error, FileNotFoundError | ConnectionRefusedError):
            raise DaemonNotRunning("No daemon is running.", remedy="`toolcrib up --detach` starts one.") from error
        raise DaemonNotRunning(
            f"The daemon's socket {path} cannot be used: {error.strerror or error}.",
            remedy="Check TOOLCRIB_HOME and the owner of that folder.",
        ) from error
    return sock


def ask(
    path: Path,
    method: str,
    params: dict[str, Any],
    *,
    root: Path,
    timeout: float | None,
    on_event: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Runs one command in the daemon, for the project at `root`. Without a `timeout`, waits for its end."""
    deadline = None if timeout is None else time.monotonic() + timeout
    with connect(path) as sock:
        request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params, "root": str(root)}
        # A daemon that disconnects at once may still have sent the reason.
        with contextlib.suppress(ConnectionError):
            sock.sendall(json.dumps(request).encode() + b"\n")
        for line in _lines(sock, deadline):
            message = _decoded(line)
            if message.get("method") == "event":
                if on_event is not None:
                    on_event(message["params"]["event"])
            elif "error" in message:
                raise RemoteError(message["error"] if isinstance(message["error"], dict) else {})
            elif message.get("id") == 1 and isinstance(message.get("result"), dict):
                result: dict[str, Any] = message["result"]
                return result
    raise DaemonNotRunning(
        "The daemon closed the connection before it answered; the command may have run.",
        remedy="Check `toolcrib status` and `toolcrib logs`.",
    )


def _lines(sock: socket.socket, deadline: float | None) -> Iterator[bytes]:
    parts: list[bytes] = []
    while True:
        sock.settimeout(None if deadline is None else max(0.01, deadline - time.monotonic()))
        try:
            chunk = sock.recv(CHUNK)
        except TimeoutError as error:
            raise CallTimeout(
                "The daemon did not answer in time; the command may have run.", remedy="See `toolcrib logs`."
            ) from error
        except ConnectionError:
            return
        if not chunk:
            return
        *complete, rest = chunk.split(b"\n")
        for line in complete:
            yield b"".join((*parts, line))
            parts = []
        parts.append(rest)


def _decoded(line: bytes) -> dict[str, Any]:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ProtocolViolation(
            "The daemon's answer is not JSON.", remedy="Run `toolcrib down`, then `toolcrib up`."
        ) from error
    if not isinstance(message, dict):
        raise ProtocolViolation("The daemon's answer is not a JSON-RPC message.")
    return message
