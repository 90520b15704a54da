"""The gate: what every HTTP request passes before anything is read of it, and the limits on what is read then.

In: an ASGI scope. Out: a `Visitor`, or `Rejected`. Host, Origin, path, token, labels, in this order; `reception` knows
whose the token is. `http` is above.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from toolcrib.errors import Case
from toolcrib.gateway import eras
from toolcrib.gateway.answers import Rejected
from toolcrib.gateway.envelope import MAX_BODY, SMALL
from toolcrib.gateway.reception import Guest, Reception, conversation_of, no_token
from toolcrib.listing import Reader

_SINGLE = frozenset(
    {
        "host",
        "origin",
        "authorization",
        "mcp-session-id",
        "content-type",
        "content-length",
        "x-toolcrib-agent",
        "x-toolcrib-conversation",
    }
)
_USUAL = frozenset({"application/json, text/event-stream", "text/event-stream, application/json", "*/*"})
"""What clients say they accept; these need no reading."""
_ONLY_POST = ((b"allow", b"POST"),)
_ALL_VERBS = ((b"allow", b"POST, GET, DELETE"),)


class Visitor(msgspec.Struct, frozen=True, eq=False):
    guest: Guest
    label: str | None
    """The conversation, where the request names one."""
    headers: Mapping[str, str]

    @property
    def reader(self) -> Reader:
        """A program asks where tools are from, and is told errors as such; a model is told in words."""
        return Reader.PROGRAM if self.headers.get("x-toolcrib-sources") == "1" else Reader.MODEL


class Gate:
    def __init__(self, reception: Reception, *, port: int) -> None:
        self._reception = reception
        self._hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]")}
        self._origins = {f"http://{host}" for host in self._hosts}
        self.closed = False

    def admit(self, scope: Any) -> Visitor:
        headers = _headers(scope["headers"])
        if headers.get("host") not in self._hosts:
            raise Rejected(Case.HOST)
        if "origin" in headers and headers["origin"] not in self._origins:
            raise Rejected(Case.ORIGIN)
        if scope["raw_path"] != b"/mcp":
            raise Rejected(Case.PATH)
        scheme, _, token = headers.get("authorization", "").partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token:
            raise no_token()
        guest = self._reception.admit(token)
        if self.closed:
            raise Rejected(Case.STOPPING)
        named = headers.get("x-toolcrib-agent")
        if named and named != guest.name:
            raise Rejected(Case.LABEL, agent=guest.name)
        label = headers.get("x-toolcrib-conversation")
        return Visitor(guest, None if label is None else conversation_of(_decoded(label)), headers)


def _headers(raw: Sequence[tuple[bytes, bytes]]) -> dict[str, str]:
    """By lower-case name. Lists may come in parts; one that must be single is an attempt to be read in two ways.

    Two `Mcp-…` headers of one name are joined too, and so never match what the body says.
    """
    headers: dict[str, str] = {}
    for raw_name, value in raw:
        name = raw_name.decode("latin-1")
        # The parser keeps the white space around a value, which is no part of it.
        text = value.decode("latin-1").strip(" \t")
        if name in headers:
            if name in _SINGLE:
                raise Rejected(Case.HEADER_TWICE, name=name)
            text = f"{headers[name]}, {text}"
        headers[name] = text
    return headers


def _decoded(label: str) -> str:
    """Headers are bytes; whoever names a conversation beyond ASCII means UTF-8."""
    if label.isascii():
        return label
    try:
        return label.encode("latin-1").decode()
    except UnicodeDecodeError as error:
        raise Rejected(Case.CONVERSATION) from error


def no_such_verb() -> Rejected:
    return Rejected(Case.VERB, verbs="POST, GET or DELETE", extra=_ALL_VERBS)


def check_post(headers: Mapping[str, str]) -> None:
    kind = headers.get("content-type", "")
    if kind != "application/json" and kind.partition(";")[0].strip().lower() != "application/json":
        raise Rejected(Case.CONTENT_TYPE)
    if headers.get("accept") not in _USUAL and not _accepts(headers, "application/json", "text/event-stream"):
        raise Rejected(Case.ACCEPT, kinds="application/json and text/event-stream")


def check_legacy_verb(headers: Mapping[str, str]) -> None:
    """GET and DELETE are of the legacy era alone."""
    if headers.get("mcp-protocol-version", eras.ASSUMED_LEGACY_VERSION) not in eras.LEGACY_VERSIONS:
        raise Rejected(Case.VERB, verbs="POST", extra=_ONLY_POST)


def check_stream(headers: Mapping[str, str]) -> None:
    if not _accepts(headers, "text/event-stream"):
        raise Rejected(Case.ACCEPT, kinds="text/event-stream")


def _accepts(headers: Mapping[str, str], *kinds: str) -> bool:
    accepted = {part.partition(";")[0].strip().lower() for part in headers.get("accept", "").split(",")}
    return "*/*" in accepted or all(k in accepted or f"{k.partition('/')[0]}/*" in accepted for k in kinds)


def is_large(headers: Mapping[str, str]) -> bool:
    """Whether the body is more than a small one, or may be: it does not say."""
    length = headers.get("content-length", "")
    return not length.isdigit() or int(length) > SMALL


async def read_body(visitor: Visitor, receive: Callable[[], Awaitable[Any]]) -> bytes:
    # Nothing that an agent without any permission may ask for is large.
    most = SMALL if is_large(visitor.headers) and visitor.guest.permission().allows_nothing else MAX_BODY
    length = visitor.headers.get("content-length", "0")
    if not length.isdigit() or int(length) > most:
        raise Rejected(Case.TOO_LARGE, most=f"{most} bytes")
    parts: list[bytes] = []
    size = 0
    while True:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise Rejected(Case.HALF)
        parts.append(event.get("body", b""))
        size += len(parts[-1])
        if size > most:
            raise Rejected(Case.TOO_LARGE, most=f"{most} bytes")
        if not event.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)
