"""How clients reach a workspace server: pipes, sockets, the token, and the checks of every HTTP request.

In: stdin and stdout, a port or a path, the environment or a token file, an ASGI request. Out: `MessageReader` and
`MessageWriter`, each with a daemon thread (the SDK's stdio reads in a thread that cannot be cancelled, so a signal
would wait for the client's next line); listening sockets that only this user, or only this machine, can reach; the
token and the file from which clients read it; the request with its whole body, or a refusal with the gateway's
messages and statuses (`errors.ANSWERS`). Does not need the SDK; `mcp_server` does.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import hmac
import os
import queue
import secrets
import socket
import stat
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from toolcrib.errors import ANSWERS, NOT_AUTHENTICATED, AlreadyRunning, ConfigError, ErrorCase, PortTaken

MAX_MESSAGE_SIZE = 16 * 1024 * 1024
_PIECE = 256 * 1024
_AHEAD = 32
"""Messages read ahead or queued before the sender has to wait."""


@dataclass(frozen=True, kw_only=True)
class ClientPipes:
    reading: int
    writing: int


def claim_pipes() -> ClientPipes:
    """Take over stdin and stdout: prints now go to stderr, reads find nothing, and children inherit neither pipe.

    They are never restored: a thread may block on them to the end, and the process ends with its client.
    """
    pipes = ClientPipes(
        reading=fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 3), writing=fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, 3)
    )
    nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.close(nothing)
    return pipes


class MessageReader:
    """The client's messages, one per line, until it closes its end."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()
        self._lines: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._room = threading.Semaphore(_AHEAD)
        threading.Thread(target=self._read, name="stdin", daemon=True).start()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (line := await self._lines.get()) is not None:
            self._room.release()
            yield line

    def _read(self) -> None:
        for line in split_messages(self._pieces()):
            self._room.acquire()
            self._hand_over(line)
        self._hand_over(None)

    def _hand_over(self, line: bytes | None) -> None:
        # The loop may close before the client does.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._lines.put_nowait, line)

    def _pieces(self) -> Iterator[bytes]:
        with contextlib.suppress(OSError):
            while piece := os.read(self._descriptor, _PIECE):
                yield piece


def split_messages(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Whole lines that are not blank. A line beyond the limit is dropped."""
    parts: list[bytes] = []
    size = 0
    for piece in pieces:
        *ended, rest = piece.split(b"\n")
        for line in ended:
            if size + len(line) <= MAX_MESSAGE_SIZE and (whole := b"".join((*parts, line)).strip()):
                yield whole
            parts, size = [], 0
        size += len(rest)
        if size <= MAX_MESSAGE_SIZE:
            parts.append(rest)
        else:
            parts = []


class MessageWriter:
    """Messages to the client. A client that does not read blocks only itself."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()
        self._texts: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._room = asyncio.Semaphore(_AHEAD)
        self._pending = 0
        self._idle = asyncio.Event()
        self._idle.set()
        threading.Thread(target=self._write, name="stdout", daemon=True).start()

    async def write(self, text: bytes) -> None:
        await self._room.acquire()
        self._pending += 1
        self._idle.clear()
        self._texts.put(text)

    async def drain(self, limit: float) -> None:
        """Wait until everything is written, for at most `limit` seconds."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), limit)

    def _write(self) -> None:
        while True:
            left = memoryview(self._texts.get())
            # A client that closed this pipe closes the other one too, which ends the server.
            with contextlib.suppress(OSError):
                while left:
                    left = left[os.write(self._descriptor, left) :]
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._written)

    def _written(self) -> None:
        self._room.release()
        self._pending -= 1
        if not self._pending:
            self._idle.set()


MAX_SOCKET_PATH_LENGTH = 107
"""Bytes; the kernel's limit."""
_TRIES = 20
_BACKLOG = 1024


def listen_on_loopback(port: int) -> list[socket.socket]:
    """Listen on 127.0.0.1 and, if available, ::1, so that no other program can answer at `localhost` on our port."""
    for _ in range(_TRIES):
        first = _bound(socket.AF_INET, "127.0.0.1", port)
        number = first.getsockname()[1]
        try:
            return [first, _bound(socket.AF_INET6, "::1", number)]
        except PortTaken:
            first.close()
            if port:
                raise
        except OSError:
            return [first]
    raise PortTaken("No port is free on both 127.0.0.1 and ::1.", remedy="Choose one: --http PORT.")


def _bound(family: socket.AddressFamily, host: str, port: int) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            raise PortTaken(
                f"Port {port} of {host} cannot be used: {os.strerror(error.errno)}.",
                remedy="Choose another with --http PORT (0 picks a free one), or stop the program that uses it.",
                data={"port": port},
            ) from error
        raise
    return listener


@contextlib.contextmanager
def listen_on_unix_socket(path: Path) -> Iterator[socket.socket]:
    """Listen at a path that only this user can reach: mode 0600, in a folder that others cannot write to."""
    if len(os.fsencode(path)) > MAX_SOCKET_PATH_LENGTH:
        raise ConfigError(
            f"{path} is too long for a unix socket ({MAX_SOCKET_PATH_LENGTH} bytes at most).",
            remedy="Choose a shorter path.",
        )
    _check_folder(path.parent)
    _make_room(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        before = os.umask(0o177)
        try:
            listener.bind(str(path))
        except OSError as error:
            raise ConfigError(f"{path} cannot be created: {error.strerror}.", remedy="Choose another path.") from error
        finally:
            os.umask(before)
        made = path.lstat()
        try:
            listener.listen(_BACKLOG)
            yield listener
        finally:
            # If the socket was deleted meanwhile, the path may belong to another server.
            with contextlib.suppress(OSError):
                if os.path.samestat(path.lstat(), made):
                    path.unlink()


def _check_folder(folder: Path) -> None:
    try:
        found = folder.stat()
    except OSError as error:
        raise ConfigError(f"{folder}: {error.strerror}.", remedy="Create the folder first.") from error
    if found.st_mode & 0o022 or found.st_uid not in (0, os.geteuid()):
        raise ConfigError(
            f"Other users can write to {folder}, so they could replace the socket with their own.",
            remedy="Choose a folder that only you can write to, such as $XDG_RUNTIME_DIR.",
        )


def _make_room(path: Path) -> None:
    """Remove the socket of a killed server; a live socket or any other file is an error."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"{path} exists and is not a socket.", remedy="Choose another path.")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except FileNotFoundError:
            return
        except OSError:
            pass
    raise AlreadyRunning(f"A server is already listening at {path}.", remedy="Use that one, or choose another path.")


TOKEN_VARIABLE = "TOOLCRIB_WORKSPACE_TOKEN"  # noqa: S105 - a name
MIN_TOKEN_LENGTH = 32
"""Characters; a shorter token could be guessed."""


@dataclass(frozen=True, kw_only=True)
class ServerToken:
    value: str
    where: str
    """Where to find it, in words for the user. Never the token itself."""


@contextlib.contextmanager
def open_token(environ: Mapping[str, str], file: Path | None, fallback: Path) -> Iterator[ServerToken]:
    """From the variable, from the given file (created if missing), or a new token that ends with the server."""
    if file is None and TOKEN_VARIABLE in environ:
        yield ServerToken(value=_checked_token(environ[TOKEN_VARIABLE], TOKEN_VARIABLE), where=f"${TOKEN_VARIABLE}")
    elif file is not None:
        if not os.path.lexists(file):
            _write_token(file, new_token())
        yield ServerToken(value=_read_token(file), where=f"the content of {file.absolute()}")
    else:
        fallback.unlink(missing_ok=True)
        value = new_token()
        _write_token(fallback, value)
        try:
            yield ServerToken(value=value, where=f"the content of {fallback}")
        finally:
            fallback.unlink(missing_ok=True)


def new_token() -> str:
    return secrets.token_urlsafe(32)


def _write_token(file: Path, value: str) -> None:
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(
            f"{file} cannot be created: {error.strerror}.", remedy="Choose another --token-file."
        ) from error
    with os.fdopen(descriptor, "w") as stream:
        stream.write(value + "\n")


def _read_token(file: Path) -> str:
    """Checks the opened file, so that it cannot be replaced after the check."""
    try:
        with file.open("rb") as stream:
            found = os.fstat(stream.fileno())
            content = stream.read(4096)
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}.", remedy="Choose another --token-file.") from error
    if not stat.S_ISREG(found.st_mode) or found.st_mode & 0o077 or found.st_uid not in (0, os.geteuid()):
        raise ConfigError(
            f"Other users can read or change {file}.",
            remedy=f"Run `chmod 600 {file}`, and make sure that you own the file.",
        )
    return _checked_token(content.decode(errors="replace").strip(), str(file))


def _checked_token(value: str, where: str) -> str:
    if len(value) < MIN_TOKEN_LENGTH or not value.isascii() or not value.isprintable() or " " in value:
        raise ConfigError(
            f"{where} contains no valid token: at least {MIN_TOKEN_LENGTH} printable characters without spaces.",
            remedy="Omit it; the server generates one.",
        )
    return value


MAX_BODY_SIZE = 16 * 1024 * 1024
MCP_PATH = "/mcp"
_SINGLE = frozenset({"host", "origin", "authorization", "mcp-session-id", "content-type", "content-length"})
_UNAUTHENTICATED = (
    "A token is needed: Authorization: Bearer <token>. The server prints at startup which file contains it."
)

ASGIApp = Callable[[Any, Any, Any], Awaitable[None]]


class RequestRefused(Exception):
    def __init__(self, case: ErrorCase, **details: Any) -> None:
        super().__init__(case)
        answer = ANSWERS[case]
        self.status = answer.modern or 400
        self.code = answer.code
        self.text = answer.text.format(**details)


class AccessCheck:
    def __init__(self, *, hosts: frozenset[str], token: str | None) -> None:
        """Without a token, any process that can open the socket may use it; its file has mode 0600."""
        self._hosts = hosts
        self._origins = frozenset(f"http://{host}" for host in hosts) if token is not None else frozenset()
        self._token = token.encode() if token is not None else None
        self.app: ASGIApp | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self.app is None:
            raise RuntimeError("the server accepted a request before it had an app")
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        answer = _Answer(send)
        try:
            headers = self._admit(scope)
            body = await _body(headers, receive)
            if body is not None:
                await self.app(scope, _replaying(body, receive), answer)
        except RequestRefused as refused:
            await _refuse(refused, send)
        except asyncio.CancelledError:
            # The server is stopping and no longer waits.
            if not answer.begun:
                await _refuse(RequestRefused(ErrorCase.STOPPING), send)

    def _admit(self, scope: Any) -> dict[str, str]:
        headers = _single(scope["headers"])
        if headers.get("host") not in self._hosts:
            raise RequestRefused(ErrorCase.HOST)
        if "origin" in headers and headers["origin"] not in self._origins:
            raise RequestRefused(ErrorCase.ORIGIN)
        if scope["raw_path"] != MCP_PATH.encode():
            raise RequestRefused(ErrorCase.PATH)
        if self._token is not None:
            scheme, _, token = headers.get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not token:
                raise RequestRefused(ErrorCase.NO_TOKEN)
            if not hmac.compare_digest(token.strip().encode(), self._token):
                raise RequestRefused(ErrorCase.BAD_TOKEN)
        if scope["method"] == "POST":
            kind = headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind != "application/json":
                raise RequestRefused(ErrorCase.CONTENT_TYPE)
        return headers


class _Answer:
    """Records whether the response has started."""

    def __init__(self, send: Any) -> None:
        self._send = send
        self.begun = False

    async def __call__(self, message: Any) -> None:
        self.begun = True
        await self._send(message)


def _single(raw: list[tuple[bytes, bytes]]) -> dict[str, str]:
    """Headers by lower-case name. A repeated header could be read differently by two programs, so it is refused."""
    headers: dict[str, str] = {}
    for raw_name, value in raw:
        name = raw_name.decode("latin-1")
        if name in headers and name in _SINGLE:
            raise RequestRefused(ErrorCase.HEADER_TWICE, name=name)
        headers[name] = value.decode("latin-1").strip(" \t")
    return headers


async def _body(headers: Mapping[str, str], receive: Any) -> bytes | None:
    """None if the client disconnected or took too long to send the body."""
    length = headers.get("content-length", "0")
    if not length.isdigit() or int(length) > MAX_BODY_SIZE:
        raise RequestRefused(ErrorCase.TOO_LARGE, most=f"{MAX_BODY_SIZE} bytes")
    parts: list[bytes] = []
    size = 0
    while True:
        event = await receive()
        if event["type"] == "http.disconnect":
            return None
        parts.append(event.get("body", b""))
        size += len(parts[-1])
        if size > MAX_BODY_SIZE:
            raise RequestRefused(ErrorCase.TOO_LARGE, most=f"{MAX_BODY_SIZE} bytes")
        if not event.get("more_body", False):
            return b"".join(parts)


def _replaying(body: bytes, receive: Any) -> Any:
    given = False

    async def again() -> Any:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


async def _refuse(refused: RequestRefused, send: Any) -> None:
    is_token = refused.code == NOT_AUTHENTICATED
    text = _UNAUTHENTICATED if is_token else refused.text
    error = {"code": refused.code, "message": text}
    body = msgspec.json.encode({"jsonrpc": "2.0", "id": None, "error": error})
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if is_token:
        headers.append((b"www-authenticate", b"Bearer"))
    # The rest of the body is not read.
    headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
