"""HTTP requests to addresses that a server named: the documents and endpoints of a sign-in.

In: a method, an address, headers and a body. Out: the whole answer. Each address is checked, and again when the
connection is made: only https, no private address if the server itself is public. Answers are small and quick, and
redirects stay within their origin. Below: `post_client`. Used by `sign_in`.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import ipaddress
import socket
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from toolcrib.config.masking import printable
from toolcrib.errors import SignInFailed
from toolcrib.servers.address import Address
from toolcrib.servers.post_client import ConnectFailed, PostClient, Resolve
from toolcrib.servers.web import (
    MAX_REDIRECTS,
    REDIRECTS,
    explain_network,
    head_lines,
    proxy_for,
    redirect_target,
    shown_target,
    shown_url,
    tls_context,
)
from toolcrib.servers.wire import TooLarge

LARGEST_ANSWER = 1024 * 1024
ANSWERS_WITHIN = 30.0
"""Seconds for a whole answer, however slowly it arrives."""
_LONGEST = 32 * 1024
"""Characters of an address that a browser opens."""
_SHOWN = 200
"""Characters of an address in a message."""
_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


class Reach(enum.IntEnum):
    """From where an address can be reached."""

    MACHINE = 0
    NETWORK = 1
    INTERNET = 2


def reach_of(address: str) -> Reach:
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        embedded = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF) if ip in _NAT64 else None
        ip = ip.ipv4_mapped or ip.sixtofour or embedded or ip
    if ip.is_loopback or ip.is_link_local or ip.is_unspecified or ip.is_multicast:
        return Reach.MACHINE
    return Reach.INTERNET if ip.is_global else Reach.NETWORK


async def system_addresses(host: str, port: int) -> Sequence[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


class _Forbidden(OSError):
    """An address that the server must not name. The text says why."""


@dataclass(frozen=True, kw_only=True)
class CheckedAnswer:
    status: int
    headers: Mapping[str, str]
    """With names in lower case."""
    body: bytes
    elsewhere: str = ""
    """The target of a redirect that was not followed, because it leaves the origin, for messages."""


class CheckedHttp:
    """A context manager. `url` is the server's own, which the user chose."""

    def __init__(self, url: str, *, verify_tls: bool, resolve: Resolve = system_addresses) -> None:
        self._host = urlsplit(url).hostname or ""
        self._url = url
        self._verify_tls = verify_tls
        self._resolve = resolve
        self._reach = Reach.INTERNET
        self._clients: dict[bool, PostClient] = {}

    async def __aenter__(self) -> Self:
        # Without an answer, a proxy knows the host, or the first request fails.
        with contextlib.suppress(OSError, ValueError):
            self._reach = max(map(reach_of, await self._resolve(self._host, 0)))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for client in self._clients.values():
            client.close()

    def check(self, url: str, what: str) -> None:
        """Raises `SignInFailed`, which calls the address `what`."""
        try:
            parts = urlsplit(url)
            host, _ = parts.hostname or "", parts.port
        except ValueError:
            host = ""
        shown = printable(url)[:_SHOWN]
        if not host or not url.isascii() or not url.isprintable() or set(url) & set(" \"'<>\\^`{|}"):
            raise SignInFailed(f"{what} is not a valid https address: {shown}.")
        if parts.username is not None or parts.password is not None:
            raise SignInFailed(f"{what} contains a user or a password: {shown_url(url)[:_SHOWN]}.")
        local = self._reach is Reach.MACHINE and host in _LOOPBACK_NAMES
        if parts.scheme != "https" and not (parts.scheme == "http" and local):
            raise SignInFailed(f"{what} is not an https address: {shown}.")

    async def check_host(self, url: str, what: str) -> None:
        """Also checks where the address leads, for a browser or a proxy, which make their own connections."""
        self.check(url, what)
        if len(url) > _LONGEST:
            raise SignInFailed(
                f"{what} has {len(url):,} characters, more than browsers accept.",
                remedy="If it asks for many permissions, name the ones that you need with --scope.",
            )
        parts = urlsplit(url)
        try:
            await self._permitted(parts.hostname or "", parts.port or 0)
        except _Forbidden as error:
            raise SignInFailed(f"{what}: {error}") from None
        except OSError as error:
            if proxy_for(url) is None:
                raise SignInFailed(explain_network(error, url)) from None

    async def send(self, method: str, url: str, headers: Mapping[str, str], body: bytes = b"") -> CheckedAnswer:
        """Raises `SignInFailed`. An endless event stream is not read."""
        what = "An address of the sign-in"
        try:
            async with asyncio.timeout(ANSWERS_WITHIN):
                for _ in range(MAX_REDIRECTS):
                    self.check(url, what)
                    if proxy_for(url) is not None:
                        await self.check_host(url, what)
                    answer = await self._exchange(method, url, headers, body)
                    location = answer.headers.get("location")
                    follows = answer.status in REDIRECTS or (answer.status in {301, 302, 303} and method == "GET")
                    if not follows or location is None:
                        return answer
                    target = redirect_target(url, location)
                    if target is None:
                        return replace(answer, elsewhere=shown_target(url, location)[:_SHOWN])
                    url = target
        except TooLarge:
            failed = SignInFailed(f"{shown_url(url)} sent more than {LARGEST_ANSWER // 1024} KB.")
            failed.may_have_run = True
            raise failed from None
        except OSError as error:
            # A forbidden address is the cause of a failed connection.
            cause = error if isinstance(error, _Forbidden) else error.__cause__
            text = f"{shown_url(url)}: {cause}" if isinstance(cause, _Forbidden) else explain_network(error, url)
            failed = SignInFailed(text)
            failed.may_have_run = not isinstance(error, ConnectFailed | ssl.SSLError)
            raise failed from None
        raise SignInFailed(f"{shown_url(url)} redirects again and again.")

    async def _exchange(self, method: str, url: str, headers: Mapping[str, str], body: bytes) -> CheckedAnswer:
        head = head_lines({**headers, "Accept-Encoding": "identity"})
        client = await self._client(url)
        with await client.request(
            method.encode(), Address.of(url, proxy_for(url)), head, body, limit=LARGEST_ANSWER
        ) as response:
            if response.headers.get("content-encoding", "identity").strip().lower() != "identity":
                raise SignInFailed(f"{shown_url(url)} compresses its answers, which was not requested.")
            content = b"" if response.is_stream else await response.read()
            return CheckedAnswer(status=response.status, headers=response.headers, body=content)

    async def _client(self, url: str) -> PostClient:
        """A certificate that the user accepts unverified is the server's, not another host's."""
        verify = self._verify_tls or urlsplit(url).hostname != self._host
        if verify not in self._clients:
            context = await asyncio.to_thread(tls_context, verify=verify)
            self._clients[verify] = PostClient(context, resolve=self._permitted)
        return self._clients[verify]

    async def _permitted(self, host: str, port: int) -> Sequence[str]:
        addresses = await self._resolve(host, port)
        if host == self._host:
            # Its name may have led to this machine at first, to make private addresses permissible.
            self._reach = max(self._reach, *map(reach_of, addresses))
        near = [address for address in addresses if reach_of(address) < self._reach]
        if near:
            where = "this machine" if reach_of(near[0]) is Reach.MACHINE else "a private network"
            raise _Forbidden(f"{printable(host)[:_SHOWN]} leads to {where} ({near[0]}), but the server does not.")
        return addresses
