"""What every transport over the network shares: one pool of connections, TLS, proxies, and the origin rule.

In: whether certificates are verified; an address. Out: a `Poster` that the whole process shares; the proxy for an
address; where a redirect may lead. `http`, `sse` and `websocket` stand on it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import socket
import ssl
import urllib.request
import weakref
from collections.abc import AsyncIterator, Callable, Mapping
from urllib.parse import urljoin, urlsplit

from toolcrib.servers.posting import Poster

KEEPALIVE = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}.items()
        if hasattr(socket, name)
    ),
]
"""Streams stay silent for hours; without this a peer that vanished would never be noticed."""
_DEFAULT_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}
REDIRECTS = frozenset({307, 308})
"""Those that keep method and body."""
MOST_REDIRECTS = 3


def tls_context(*, verify: bool) -> ssl.SSLContext:
    """Loading the trust store costs tens of milliseconds, so there is one for all until its files change."""
    paths = ssl.get_default_verify_paths()
    return _made_context(verify, _stamp(paths.cafile), _stamp(paths.capath))


def _stamp(path: str | None) -> tuple[object, ...]:
    try:
        state = os.stat(path or "")  # noqa: PTH116 - the path may be none
    except OSError:
        return ()
    return path, state.st_ino, state.st_size, state.st_mtime_ns


@functools.lru_cache(maxsize=4)
def _made_context(verify: bool, *_: object) -> ssl.SSLContext:  # noqa: FBT001 - a key, not a switch
    context = ssl.create_default_context()
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


class Lease:
    """A poster that several hold: made for the first, closed by the last."""

    def __init__(self, poster: Poster, forget: Callable[[], None]) -> None:
        self.poster = poster
        self._forget = forget
        self._holders = 0

    def hold(self) -> None:
        self._holders += 1

    def let_go(self) -> None:
        self._holders -= 1
        if not self._holders:
            self._forget()
            self.poster.close()


_leases: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[ssl.SSLContext, Lease]] = weakref.WeakKeyDictionary()


def _drop(leases: dict[ssl.SSLContext, Lease], context: ssl.SSLContext) -> None:
    leases.pop(context, None)


@contextlib.asynccontextmanager
async def shared_poster(*, verify: bool) -> AsyncIterator[Lease]:
    """The process's connections for this TLS setting. Who needs them for longer than the block holds the lease."""
    per_loop = _leases.setdefault(asyncio.get_running_loop(), {})
    context = await asyncio.to_thread(tls_context, verify=verify)
    if context not in per_loop:
        per_loop[context] = Lease(Poster(context), functools.partial(_drop, per_loop, context))
    lease = per_loop[context]
    lease.hold()
    try:
        yield lease
    finally:
        lease.let_go()


def head_lines(headers: Mapping[str, str]) -> bytes:
    """Headers as they stand in a request. Configuration lets no line end into them."""
    return b"".join(f"{name}: {value}\r\n".encode() for name, value in headers.items())


def proxy_for(url: str) -> str | None:
    """The proxy that the environment names for this address."""
    parts = urlsplit(url)
    scheme = {"ws": "http", "wss": "https"}.get(parts.scheme, parts.scheme)
    host = parts.hostname or ""
    if host in {"localhost", "127.0.0.1", "::1"} or urllib.request.proxy_bypass(host):
        return None
    proxies = urllib.request.getproxies()
    return proxies.get(scheme) or proxies.get("all")


def same_origin(url: str, other: str) -> bool:
    return _origin(url) == _origin(other)


def redirect_target(url: str, location: str) -> str | None:
    """Where a redirect leads if it may be followed: our headers were meant for this origin, or its upgrade to https."""
    target = urljoin(url, location)
    if same_origin(url, target):
        return target
    old, new = _origin(url), _origin(target)
    upgraded = (old[0], new[0]) == ("http", "https") and old[1] == new[1] and (old[2], new[2]) == (80, 443)
    return target if upgraded else None


def _origin(url: str) -> tuple[str, str, int | None]:
    parts = urlsplit(url)
    return parts.scheme.lower(), (parts.hostname or "").lower(), parts.port or _DEFAULT_PORTS.get(parts.scheme.lower())


def shown(url: str) -> str:
    """An address without user, password and query, which may hold keys."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{host}{port}{parts.path}"
