"""Authentication: a token identifies the agent, labels only name a conversation.

In: an ASGI scope, or the token and labels from a bridge's first line. Out: a `Principal` and its project, or
`Rejected`. For HTTP, Host, Origin, path, token and labels are checked in this order before the body is read; then the
size limits apply. Used by `http` and `pipe`; the agents are in `identity`.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from toolcrib.config.masking import mask_tokens
from toolcrib.config.model import ListingMode
from toolcrib.config.paths import project_of
from toolcrib.core.crib import Crib
from toolcrib.core.project import Project
from toolcrib.errors import ErrorCase, FolderGone
from toolcrib.gateway import protocol
from toolcrib.gateway.messages import MAX_BODY, SMALL_BODY, ReadLimiter, Rejected
from toolcrib.identity.agent import Agent, ErrorForm
from toolcrib.identity.principal import OWNER, Principal, ReaderKind
from toolcrib.policy import Permission
from toolcrib.workspace.tools import BY_NAME

MAX_LABEL_LENGTH = 128
MAX_WITHOUT_LENGTH = 2048
DEFAULT_CONVERSATION = "default"
LISTINGS = frozenset({"", *ListingMode}) - {ListingMode.HANDSHAKE}
"""What a request may say about its lists. For `handshake` it says `full` or `thin`."""

_FOLDER_CHECK_INTERVAL = 1.0
"""Seconds before a folder that existed is looked up again."""
_CHALLENGE = ((b"www-authenticate", b'Bearer realm="toolcrib"'),)
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
        "x-toolcrib-listing",
        "x-toolcrib-without",
    }
)
_USUAL = frozenset({"application/json, text/event-stream", "text/event-stream, application/json", "*/*"})
"""The usual values of Accept, which need no parsing."""
_ONLY_POST = ((b"allow", b"POST"),)
_ALL_VERBS = ((b"allow", b"POST, GET, DELETE"),)


class AdmittedRequest(msgspec.Struct, frozen=True, eq=False):
    """An authenticated HTTP request."""

    principal: Principal
    label: str | None
    """The conversation, if the request names one."""
    reader: ReaderKind
    headers: Mapping[str, str]
    listing: str
    """How its tools are to be listed, one of `LISTINGS`."""
    without: frozenset[str]
    """Workspace tools to leave out of its lists."""


_READERS = {ErrorForm.RESULT: ReaderKind.MODEL, ErrorForm.HTTP: ReaderKind.HTTP}


class Authenticator:
    def __init__(self, crib: Crib, *, owner_token: str = "", port: int | None = None) -> None:
        """Without `owner_token`, no token authenticates as the owner. `port` is the HTTP port."""
        self._crib = crib
        self._home = crib.projects.home
        self._registry = crib.services.agents
        self._owner_token = owner_token.encode()
        self._loop = asyncio.get_running_loop()
        self._hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]")}
        self._origins = {f"http://{host}" for host in self._hosts}
        self.closed = False
        """Whether new requests are refused."""
        self.reads = ReadLimiter()
        self._roots: dict[Path, tuple[Path, float]] = {}
        """By an agent's folder: the project root, and when the folder was last checked."""

    def authenticate(self, token: str) -> Principal:
        """The token's principal. Raises `Rejected` for an unknown token."""
        if self._owner_token and hmac.compare_digest(token.encode(errors="replace"), self._owner_token):
            return OWNER
        agent = self._registry.authenticate(token)
        if agent is None:
            raise bad_token()
        return Principal(
            name=agent.name,
            permission=partial(self._permission_of, agent),
            workdir=agent.workdir,
            reader=_READERS[agent.errors],
        )

    def _permission_of(self, agent: Agent) -> Permission:
        current = self._registry.current(agent)
        if current is None:
            raise bad_token()
        return current.permission

    def admit(self, scope: Any) -> AdmittedRequest:
        headers = _headers(scope["headers"])
        if headers.get("host") not in self._hosts:
            raise Rejected(ErrorCase.HOST)
        if "origin" in headers and headers["origin"] not in self._origins:
            raise Rejected(ErrorCase.ORIGIN)
        if scope["raw_path"] != b"/mcp":
            raise Rejected(ErrorCase.PATH)
        scheme, _, token = headers.get("authorization", "").partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token:
            raise Rejected(ErrorCase.NO_TOKEN, extra=_CHALLENGE)
        principal = self.authenticate(token)
        if self.closed:
            raise Rejected(ErrorCase.STOPPING)
        named = headers.get("x-toolcrib-agent")
        if named and named != principal.name:
            raise Rejected(ErrorCase.LABEL, agent=principal.name)
        label = headers.get("x-toolcrib-conversation")
        if label is not None:
            label = checked_conversation(_decoded(label))
        reader = ReaderKind.PROGRAM if headers.get("x-toolcrib-sources") == "1" else principal.reader
        listing, names = headers.get("x-toolcrib-listing", ""), headers.get("x-toolcrib-without")
        if listing not in LISTINGS:
            raise Rejected(ErrorCase.LISTING)
        without = checked_without(names) if names else frozenset[str]()
        return AdmittedRequest(principal, label, reader, headers, listing, without)

    async def project(self, principal: Principal) -> Project:
        """The project of the principal's folder, or the daemon's own."""
        workdir = principal.workdir
        project = self._home if workdir is None else await self._crib.projects.at(self.root_of(principal, workdir))
        project.seen(principal.name)
        return project

    def root_of(self, principal: Principal, workdir: Path) -> Path:
        root, seen = self._roots.get(workdir, (workdir, 0.0))
        now = self._loop.time()
        if not seen or now - seen > _FOLDER_CHECK_INTERVAL:
            # A project in use keeps its root, even if a project marker appears in a parent folder.
            known = seen and root in self._crib.projects
            found = _looked_up(workdir)
            if found is None:
                raise FolderGone(
                    f"The working folder of {principal.name}, {workdir}, does not exist.",
                    remedy="Create it again, or remove the agent and add it with another folder.",
                )
            self._roots[workdir] = (root if known else found, now)
        return self._roots[workdir][0]


def _looked_up(workdir: Path) -> Path | None:
    """The root of the folder's project; None if the folder is missing or cannot be read."""
    try:
        return project_of(workdir) if workdir.is_dir() else None
    except OSError:
        return None


def bad_token() -> Rejected:
    return Rejected(ErrorCase.BAD_TOKEN, extra=_CHALLENGE)


def checked_conversation(label: str) -> str | None:
    """The label with tokens masked; None if it is empty."""
    if not label:
        return None
    if len(label) > MAX_LABEL_LENGTH or not label.isprintable():
        raise Rejected(ErrorCase.CONVERSATION)
    # Labels are stored and displayed, so a token pasted into one must not survive.
    return mask_tokens(label)


def checked_without(names: str) -> frozenset[str]:
    """The workspace tools among these names. Others are ignored, because versions may have different tools."""
    if len(names) > MAX_WITHOUT_LENGTH or not names.isprintable():
        raise Rejected(ErrorCase.WITHOUT)
    return frozenset(BY_NAME.keys() & {name.strip() for name in names.split(",")})


def _headers(raw: Sequence[tuple[bytes, bytes]]) -> dict[str, str]:
    """Headers by lower-case name. Repeated list headers are joined; a repeated single-value header is ambiguous.

    Repeated `Mcp-…` headers are joined too, so they never match the body.
    """
    headers: dict[str, str] = {}
    for raw_name, value in raw:
        name = raw_name.decode("latin-1")
        # The parser keeps whitespace around a value, which isn't part of it.
        text = value.decode("latin-1").strip(" \t")
        if name in headers:
            if name in _SINGLE:
                raise Rejected(ErrorCase.HEADER_TWICE, name=name)
            text = f"{headers[name]}, {text}"
        headers[name] = text
    return headers


def _decoded(label: str) -> str:
    """Headers are bytes; a non-ASCII label is UTF-8."""
    if label.isascii():
        return label
    try:
        return label.encode("latin-1").decode()
    except UnicodeDecodeError as error:
        raise Rejected(ErrorCase.CONVERSATION) from error


def method_not_allowed() -> Rejected:
    return Rejected(ErrorCase.HTTP_METHOD, verbs="POST, GET or DELETE", extra=_ALL_VERBS)


def check_post(headers: Mapping[str, str]) -> None:
    kind = headers.get("content-type", "")
    if kind != "application/json" and kind.partition(";")[0].strip().lower() != "application/json":
        raise Rejected(ErrorCase.CONTENT_TYPE)
    if headers.get("accept") not in _USUAL and not _accepts(headers, "application/json", "text/event-stream"):
        raise Rejected(ErrorCase.ACCEPT, kinds="application/json and text/event-stream")


def check_legacy_method(headers: Mapping[str, str]) -> None:
    """Only legacy clients use GET and DELETE."""
    if headers.get("mcp-protocol-version", protocol.ASSUMED_LEGACY_VERSION) not in protocol.LEGACY_VERSIONS:
        raise Rejected(ErrorCase.HTTP_METHOD, verbs="POST", extra=_ONLY_POST)


def check_stream(headers: Mapping[str, str]) -> None:
    if not _accepts(headers, "text/event-stream"):
        raise Rejected(ErrorCase.ACCEPT, kinds="text/event-stream")


def _accepts(headers: Mapping[str, str], *kinds: str) -> bool:
    accepted = {part.partition(";")[0].strip().lower() for part in headers.get("accept", "").split(",")}
    return "*/*" in accepted or all(k in accepted or f"{k.partition('/')[0]}/*" in accepted for k in kinds)


def is_large(headers: Mapping[str, str]) -> bool:
    """Whether the body is, or may be, large: without Content-Length its size is unknown."""
    length = headers.get("content-length", "")
    return not length.isdigit() or int(length) > SMALL_BODY


async def read_body(request: AdmittedRequest, receive: Callable[[], Awaitable[Any]], *, large: bool) -> bytes:
    # An agent without permissions has no use for a large request.
    limit = SMALL_BODY if large and request.principal.permission().allows_nothing else MAX_BODY
    length = request.headers.get("content-length", "0")
    if not length.isdigit() or int(length) > limit:
        raise Rejected(ErrorCase.TOO_LARGE, most=f"{limit} bytes")
    parts: list[bytes] = []
    size = 0
    while True:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise Rejected(ErrorCase.INCOMPLETE)
        parts.append(event.get("body", b""))
        size += len(parts[-1])
        if size > limit:
            raise Rejected(ErrorCase.TOO_LARGE, most=f"{limit} bytes")
        if not event.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)
