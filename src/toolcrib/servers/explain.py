"""Failures to connect, in words that say what to do.

In: exceptions of the network and HTTP statuses. Out: sentences without header values, keys or passwords.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator

from toolcrib.errors import ToolcribError
from toolcrib.servers.framing import TooLarge
from toolcrib.servers.posting import ProxyRefused
from toolcrib.servers.web import shown


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The exceptions inside nested groups, as the SDK's task groups raise them."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves(inner)
    else:
        yield error


def root_cause(error: BaseException) -> BaseException:
    """The most telling one: an error of ours before anybody else's."""
    found = list(leaves(error))
    ours = [leaf for leaf in found if isinstance(leaf, ToolcribError)]
    others = [leaf for leaf in found if not isinstance(leaf, asyncio.CancelledError)]
    return (ours or others or found)[0]


def explain_network(error: BaseException, url: str) -> str:
    where = shown(url)
    if isinstance(error, ProxyRefused | TooLarge):
        return str(error)
    for cause in _chain(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            why = getattr(cause, "verify_message", "") or "verification failed"
            return f"The certificate of {where} is not trusted ({why}). Install its authority."
        if isinstance(cause, ssl.SSLError):
            return f"No secure connection to {where}: {cause.reason or 'TLS failed'}."
        if isinstance(cause, socket.gaierror):
            return f"The host of {where} is not known. Check the address and the network."
        if isinstance(cause, ConnectionRefusedError):
            return f"Nothing listens at {where} (connection refused). Start the server or correct the address."
        if isinstance(cause, TimeoutError):
            return f"{where} did not answer in time."
        if isinstance(cause, ConnectionResetError | BrokenPipeError):
            return f"{where} closed the connection."
    if "Timeout" in type(error).__name__:
        return f"{where} did not answer in time."
    if "refused" in str(error).lower() or "All connection attempts failed" in str(error):
        return f"Nothing listens at {where} (connection refused). Start the server or correct the address."
    return f"The connection to {where} failed ({type(error).__name__})."


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield from leaves(error)
        inner = getattr(error, "os_error", None) or getattr(error, "certificate_error", None)
        error = inner or error.__cause__ or error.__context__


def explain_status(status: int, url: str) -> str:
    where = shown(url)
    if status == 401:
        return f"{where} needs credentials: set the server's auth or headers (HTTP 401)."
    if status == 403:
        return f"{where} refuses our credentials: check the server's auth or headers (HTTP 403)."
    if status in {404, 405}:
        return (
            f"{where} is no MCP endpoint of this transport (HTTP {status}). "
            "Check the address; an older server may want transport: sse."
        )
    if status == 429:
        return f"{where} wants fewer requests (HTTP 429). Try again later."
    return f"{where} answered HTTP {status}. Look at the server's own log."


def explain(error: BaseException, limit: float) -> str:
    """Any failure of a connect attempt, as the text of `last_error`."""
    cause = root_cause(error)
    if isinstance(cause, ToolcribError):
        return cause.text()
    if isinstance(cause, TimeoutError):
        return f"It was not ready within {limit:g} s. Raise its connect_timeout if it needs longer to start."
    return f"Connecting failed: {type(cause).__name__}."
