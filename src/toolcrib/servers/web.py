"""Shared code of the network transports: connections, TLS, proxies, redirects, and explanations of failures.

In: whether to verify certificates; an address; exceptions and HTTP statuses. Out: a `PostClient` shared by the whole
process; the proxy for an address; allowed redirect targets; error texts without header values, keys or passwords.
Used by `http`, `sse` and `websocket`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import os
import socket
import ssl
import time
import urllib.request
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from email.utils import parsedate_to_datetime
from types import MappingProxyType
from urllib.parse import urljoin, urlsplit

from toolcrib.config.auth import with_token
from toolcrib.config.masking import printable
from toolcrib.config.model import ServerConfig
from toolcrib.config.parse import Unreadable
from toolcrib.errors import ServerUnavailable, ToolcribError
from toolcrib.servers.post_client import ConnectionBroken, PostClient, ProxyRefused
from toolcrib.servers.wire import TooLarge

KEEPALIVE = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}.items()
        if hasattr(socket, name)
    ),
]
"""Streams can be silent for hours; without this, we would never notice a vanished peer."""
_DEFAULT_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}
REDIRECTS = frozenset({307, 308})
"""Redirects that keep method and body."""
MAX_REDIRECTS = 3
_LONGEST_ERROR = 4096


async def with_current_token(config: ServerConfig) -> ServerConfig:
    """The configuration with the content of its token file, if it has one. Raises `ServerUnavailable`."""
    if config.token_file is None:
        return config
    try:
        return await asyncio.to_thread(with_token, config)
    except Unreadable as error:
        path = config.token_file.path
        raise ServerUnavailable(f"Its token file {path}: found {error.found}, expected {error.expected}.") from None


def tls_context(*, verify: bool) -> ssl.SSLContext:
    """Cached until the trust store's files change, because loading it takes tens of milliseconds."""
    paths = ssl.get_default_verify_paths()
    return _made_context(verify, _stamp(paths.cafile), _stamp(paths.capath))


def _stamp(path: str | None) -> tuple[object, ...]:
    try:
        state = os.stat(path or "")  # noqa: PTH116 - the path may be None
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


class SharedPostClient:
    """A `PostClient` that closes when its last holder lets go."""

    def __init__(self, poster: PostClient, forget: Callable[[], object]) -> None:
        self.client = poster
        self._forget = forget
        self._holders = 0

    def hold(self) -> None:
        self._holders += 1

    def let_go(self) -> None:
        self._holders -= 1
        if not self._holders:
            self._forget()
            self.client.close()


_shared_clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[ssl.SSLContext, SharedPostClient]] = (
    weakref.WeakKeyDictionary()
)


@contextlib.asynccontextmanager
async def shared_post_client(*, verify: bool) -> AsyncIterator[SharedPostClient]:
    """The process's connections for this TLS setting. To use them beyond the block, `hold` the lease."""
    per_loop = _shared_clients.setdefault(asyncio.get_running_loop(), {})
    context = await asyncio.to_thread(tls_context, verify=verify)
    if context not in per_loop:
        per_loop[context] = SharedPostClient(PostClient(context), functools.partial(per_loop.pop, context, None))
    lease = per_loop[context]
    lease.hold()
    try:
        yield lease
    finally:
        lease.let_go()


def head_lines(headers: Mapping[str, str]) -> bytes:
    """Headers as bytes of a request. The configuration rejects line ends in them."""
    return b"".join(f"{name}: {value}\r\n".encode() for name, value in headers.items())


def proxy_for(url: str) -> str | None:
    """The proxy for this address from the environment."""
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
    """A redirect's target if it may get our headers: the same origin, or its upgrade to https."""
    try:
        target = urljoin(url, location)
        old, new = _origin(url), _origin(target)
    except ValueError:
        return None
    if old == new:
        return target
    upgraded = (old[0], new[0]) == ("http", "https") and old[1] == new[1] and (old[2], new[2]) == (80, 443)
    return target if upgraded else None


def _origin(url: str) -> tuple[str, str, int | None]:
    parts = urlsplit(url)
    return parts.scheme.lower(), (parts.hostname or "").lower(), parts.port or _DEFAULT_PORTS.get(parts.scheme.lower())


def shown_url(url: str) -> str:
    """A URL without user, password and query, which may hold keys."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{host}{port}{parts.path}"


def shown_target(url: str, location: str) -> str:
    """A redirect's target for a message."""
    try:
        return printable(shown_url(urljoin(url, location)))
    except ValueError:
        return "an invalid address"


def leaf_exceptions(error: BaseException) -> Iterator[BaseException]:
    """The exceptions inside nested groups, such as those from the SDK's task groups."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaf_exceptions(inner)
    else:
        yield error


def root_cause(error: BaseException) -> BaseException:
    """The most useful exception; ours are preferred."""
    found = list(leaf_exceptions(error))
    ours = [leaf for leaf in found if isinstance(leaf, ToolcribError)]
    others = [leaf for leaf in found if not isinstance(leaf, asyncio.CancelledError)]
    return (ours or others or found)[0]


def explain_network(error: BaseException, url: str) -> str:
    where = shown_url(url)
    if isinstance(error, ProxyRefused | TooLarge):
        return str(error)
    for cause in _chain(error):
        if isinstance(cause, ssl.SSLError):
            return _explain_tls(cause, where)
        if isinstance(cause, socket.gaierror):
            unknown = "Check the address and the network."
            why = "No name server answers: check the network." if cause.errno == socket.EAI_AGAIN else unknown
            return f"The host of {where} could not be resolved. {why}"
        if isinstance(cause, ConnectionRefusedError):
            return f"Nothing is listening at {where} (connection refused). Start the server or correct the address."
        if isinstance(cause, TimeoutError):
            return f"{where} did not answer in time."
        if isinstance(cause, ConnectionBroken):
            return f"{where} {cause}"
        if isinstance(cause, ConnectionResetError | BrokenPipeError):
            return f"{where} closed the connection."
    if "Timeout" in type(error).__name__:
        return f"{where} did not answer in time."
    if "refused" in str(error).lower() or "All connection attempts failed" in str(error):
        return f"Nothing is listening at {where} (connection refused). Start the server or correct the address."
    if type(error).__name__.endswith(("ProtocolError", "InvalidMessage")):
        return f"{where} broke off its answer, or sent one that is not valid HTTP. Check the address and the port."
    return f"The connection to {where} failed ({type(error).__name__})."


_NOT_TLS = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "UNKNOWN_PROTOCOL"})
_EXPIRED, _NOT_YET_VALID, _OTHER_HOST, _OTHER_ADDRESS = 10, 9, 62, 64
"""OpenSSL's results of the verification of a certificate."""


def _explain_tls(error: ssl.SSLError, where: str) -> str:
    reason = getattr(error, "reason", "") or "TLS failed"
    if reason in _NOT_TLS:
        return f"{where} does not speak TLS. Check the port, or use http:// (ws://) if it is meant to be open."
    if not isinstance(error, ssl.SSLCertVerificationError):
        return f"No secure connection to {where}: {reason}."
    match getattr(error, "verify_code", 0):
        case code if code in (_EXPIRED, _NOT_YET_VALID):
            when = "has expired" if code == _EXPIRED else "is not valid yet"
            return f"The certificate of {where} {when}. Its operator must renew it, or this machine's clock is wrong."
        case code if code in (_OTHER_HOST, _OTHER_ADDRESS):
            return f"The certificate of {where} is for another host. Check the address."
    why = getattr(error, "verify_message", "") or "verification failed"
    return f"The certificate of {where} is not trusted ({why}). Install its CA certificate."


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield from leaf_exceptions(error)
        inner = getattr(error, "os_error", None) or getattr(error, "certificate_error", None)
        error = inner or error.__cause__ or error.__context__


MAX_RETRY_AFTER = 3600.0
"""Seconds; a longer time in a server's `Retry-After` is cut."""


def retry_after(headers: Mapping[str, str]) -> float | None:
    """The seconds in `Retry-After`, which may also be a date."""
    written = headers.get("retry-after", "").strip()
    try:
        seconds = float(written) if written.isdecimal() else parsedate_to_datetime(written).timestamp() - time.time()
    except (ValueError, OverflowError):
        return None
    return min(max(seconds, 0.0), MAX_RETRY_AFTER)


def explain_status(status: int, url: str, headers: Mapping[str, str] = MappingProxyType({})) -> str:
    """`headers` are those of the answer; their names are in lower case, or in any case in a type that ignores it."""
    where = shown_url(url)
    if 300 <= status < 400:
        target = shown_target(url, headers.get("location", ""))
        elsewhere = "another address" if target == where else target
        return f"{where} redirects to {elsewhere} (HTTP {status}). Configure the final address."
    if status == 401:
        return f"{where} needs credentials: set or correct the server's auth or headers (HTTP 401)."
    if status == 403:
        return f"{where} rejected the credentials: check the server's auth or headers (HTTP 403)."
    if status in {404, 405}:
        return (
            f"{where} is not an MCP endpoint of this transport (HTTP {status}). "
            "Check the address, and the transport if you set it (http, sse or websocket)."
        )
    seconds = retry_after(headers)
    again = "Try again later." if seconds is None else f"Try again in {math.ceil(seconds)} s."
    if status == 429:
        return f"{where} received too many requests (HTTP 429). {again}"
    if status == 503:
        return f"{where} is overloaded or not available (HTTP 503). {again}"
    if status in {502, 504}:
        return f"{where} is a gateway, and the server behind it does not answer (HTTP {status}). {again}"
    if status >= 500:
        return f"{where} has failed (HTTP {status}). Check the server's log."
    return f"{where} refused the request (HTTP {status}). Check the server's log."


def explain_content(kind: str, url: str, *, wanted: str = "MCP") -> str:
    """`kind` is the content type of an answer with a status of success."""
    if kind == "text/html":
        return (
            f"{shown_url(url)} answers with a web page, not MCP. "
            "Check the address: often /mcp is missing at its end, or a page for signing in answers instead."
        )
    what = f"content of type {printable(kind)}" if kind else "content without a type"
    return f"{shown_url(url)} answers with {what} instead of {wanted}. Check the address and the transport."


def content_type(headers: Mapping[str, str]) -> str:
    return headers.get("content-type", "").partition(";")[0].strip().lower()


_TOO_MANY_REQUESTS = 429
_NAMES_A_PAUSE = frozenset({_TOO_MANY_REQUESTS, 502, 503, 504})


def not_admitted(
    status: int, url: str, headers: Mapping[str, str], kind: type[ServerUnavailable] = ServerUnavailable
) -> ServerUnavailable:
    """The error of an attempt to connect that was answered with an HTTP error status."""
    error = kind(explain_status(status, url, headers))
    error.retry_after = asked_pause(status, headers)
    return error


def asked_pause(status: int, headers: Mapping[str, str]) -> float | None:
    """The seconds that a server with this answer wants to be left alone."""
    return retry_after(headers) if status in _NAMES_A_PAUSE else None


_SHORT_PAUSE = 0.5
_LONGEST_PAUSE = 5.0
"""Seconds that a caller waits for the repetition of a call."""


class Refused(ServerUnavailable):
    """The server answered with an HTTP error status."""

    def __init__(self, name: str, status: int, url: str, headers: Mapping[str, str]) -> None:
        """`name` is the server's."""
        self.status = status
        self.reason = explain_status(status, url, headers)
        self.may_have_run = status >= 500
        super().__init__(
            f"Server '{name}': {self.reason} The call {'may have run' if self.may_have_run else 'did not run'}."
        )
        self.retry_after = asked_pause(status, headers)
        if self.may_have_run or status == _TOO_MANY_REQUESTS:
            default = _SHORT_PAUSE if self.may_have_run else None
            seconds = default if (named := retry_after(headers)) is None else named
            self.repeat_after = seconds if seconds is not None and seconds <= _LONGEST_PAUSE else None


def explain(error: BaseException, limit: float) -> str:
    """The text of `last_error` for any failed attempt to connect."""
    cause = root_cause(error)
    if isinstance(cause, ToolcribError):
        # No call was sent. The server may have written the text.
        text = cause.text()[:_LONGEST_ERROR]
        return text.replace(" The call may have run.", "").replace(" The call did not run.", "")
    if isinstance(cause, TimeoutError):
        return f"It was not ready within {limit:g} s. Raise its connect_timeout if it needs longer to start."
    if "ProtocolError" in type(cause).__name__:
        return "It broke off its answer, or sent an invalid one. Check the server's log."
    return f"Connecting failed: {type(cause).__name__}."
