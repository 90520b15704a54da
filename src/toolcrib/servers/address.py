"""A URL, and the proxy for it if there is one → where to connect.

In: a URL and its proxy. Out: an `Address`: the host to connect to, and the first lines of a request. Used by
`post_client`.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from urllib.parse import quote, unquote, urlsplit

_IN_PATH = "/%:@!$&'()*+,;=~-._"
_IN_QUERY = _IN_PATH + "?"


@dataclass(frozen=True, kw_only=True, slots=True)
class Address:
    tls: bool
    host: str
    port: int
    target: bytes
    authority: bytes
    proxy: str | None = None
    head: bytes = b""
    """Header lines for the proxy."""

    @classmethod
    def of(cls, url: str, proxy: str | None) -> Address:
        parts = urlsplit(url)
        tls = parts.scheme == "https"
        host = parts.hostname or ""
        if not host.isascii():
            host = host.encode("idna").decode("ascii")
        port = parts.port or (443 if tls else 80)
        shown = _bracketed(host)
        authority = shown if parts.port is None else f"{shown}:{parts.port}"
        path = quote(parts.path or "/", safe=_IN_PATH)
        if parts.query:
            path += f"?{quote(parts.query, safe=_IN_QUERY)}"
        # A forwarding proxy needs the absolute URL. Through a tunnel (TLS) it must not see one.
        forwarded = proxy is not None and not tls
        target = f"http://{authority}{path}" if forwarded else path
        return cls(
            tls=tls,
            host=host,
            port=port,
            target=target.encode("ascii"),
            authority=authority.encode("ascii"),
            proxy=proxy,
            head=proxy_authorization(proxy) if proxy and forwarded else b"",
        )

    @property
    def key(self) -> tuple[bool, str, int, str | None]:
        return self.tls, self.host, self.port, self.proxy

    @property
    def tunnel(self) -> bytes:
        """The target of a CONNECT request to the proxy."""
        return f"{_bracketed(self.host)}:{self.port}".encode("ascii")


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def proxy_authorization(proxy: str) -> bytes:
    """The header line with the proxy's user and password; empty if its URL has none."""
    parts = urlsplit(proxy)
    if parts.username is None:
        return b""
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return b"Proxy-Authorization: Basic %b\r\n" % base64.b64encode(pair.encode())
