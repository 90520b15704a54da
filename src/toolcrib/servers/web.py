"""What every transport over the network shares: one pool of connections, TLS, proxies, and the origin rule.

In: whether certificates are verified; an address. Out: an aiohttp session that the whole process shares; the proxy for
an address; where a redirect may lead. `http`, `sse` and `websocket` stand on it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import ssl
import urllib.request
import weakref
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING
from urllib.parse import urljoin, urlsplit

if TYPE_CHECKING:
    import aiohttp

KEEPALIVE = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}.items()
        if hasattr(socket, name)
    ),
]
"""Streams stay silent for hours; without this a peer that vanished would never be noticed."""
_IDLE = 4.0
"""Seconds a connection is kept for the next call. Common servers close theirs after 5, and a call that meets the
closing could not be told from one that ran."""
_CONNECT = 10.0
_DEFAULT_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}
REDIRECTS = frozenset({307, 308})
"""Those that keep method and body."""
MOST_REDIRECTS = 3


class _Shared:
    """A session and how many hold it."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self.session = session
        self.holders = 0


_sessions: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[bool, _Shared]] = weakref.WeakKeyDictionary()


@functools.cache
def tls_context(*, verify: bool) -> ssl.SSLContext:
    """Loading the trust store costs tens of milliseconds, so there is one for all."""
    context = ssl.create_default_context()
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


@contextlib.asynccontextmanager
async def shared_session(*, verify: bool) -> AsyncIterator[aiohttp.ClientSession]:
    """The process's session for this TLS setting: made for the first holder, closed by the last."""
    per_loop = _sessions.setdefault(asyncio.get_running_loop(), {})
    if verify not in per_loop:
        context = await asyncio.to_thread(tls_context, verify=verify)
        if verify not in per_loop:
            per_loop[verify] = _Shared(_new_session(context))
    shared = per_loop[verify]
    shared.holders += 1
    try:
        yield shared.session
    finally:
        shared.holders -= 1
        if not shared.holders:
            del per_loop[verify]
            await shared.session.close()


def _new_session(context: ssl.SSLContext) -> aiohttp.ClientSession:
    import aiohttp  # noqa: PLC0415 - a tenth of a second that stdio servers need not pay

    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=context, limit=0, keepalive_timeout=_IDLE, socket_factory=_open_socket),
        # Servers on one host must not see each other's cookies.
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT),
    )


def _open_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    family, kind, protocol, _, _ = address
    opened = socket.socket(family, kind, protocol)
    for option in KEEPALIVE:
        opened.setsockopt(*option)
    return opened


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
