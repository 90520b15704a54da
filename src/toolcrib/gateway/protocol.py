"""The two generations of MCP as a client sees them: versions, header rules, the form of results and notifications.

In: a decoded message and its HTTP headers. Out: its `Era`, or the rejection that the specification requires; results
and the messages of `subscriptions/listen`. Pure functions, used by `dispatcher`, `http` and `pipe`.

Modern (2026-07-28): stateless; each request describes itself in `_meta` and, over HTTP, again in headers.
Legacy (up to 2025-11-25): `initialize`, a session id, a stream opened with GET.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from toolcrib import __version__
from toolcrib.catalog.tool import OfferKind
from toolcrib.config.masking import is_storable
from toolcrib.errors import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    MISSING_CAPABILITY,
    PARSE_ERROR,
    UNSUPPORTED_VERSION,
    ErrorCase,
)
from toolcrib.gateway.messages import ClientMessage, Rejected, notification, result_message
from toolcrib.servers.model import MODERN_VERSION, NAMED_BY, Era
from toolcrib.servers.questions import INPUT_REQUIRED, Question
from toolcrib.servers.tasks import EXTENSION as TASKS
from toolcrib.servers.wire import error_in, result_type

LEGACY_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
ASSUMED_LEGACY_VERSION = "2025-03-26"
"""The version of a legacy request without a version header, per the specification."""

VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES_KEY = "io.modelcontextprotocol/clientCapabilities"
CLIENT_KEY = "io.modelcontextprotocol/clientInfo"
SERVER_INFO_KEY = "io.modelcontextprotocol/serverInfo"
SUBSCRIPTION_KEY = "io.modelcontextprotocol/subscriptionId"
_CONNECTION_KEYS = (VERSION_KEY, CAPABILITIES_KEY, CLIENT_KEY, "progressToken")

SERVER_INFO = {"name": "toolcrib", "title": "Toolcrib", "version": __version__}
INSTRUCTIONS = (
    "Toolcrib gives you the tools of several MCP servers. A tool's name begins with the name of its server; "
    "tools whose name begins with crib_ are about Toolcrib itself."
)
CAPABILITIES = {
    "tools": {"listChanged": True},
    "prompts": {"listChanged": True},
    "resources": {"listChanged": True, "subscribe": True},
    "completions": {},
    "logging": {},
}
TASK_CAPABILITIES: Mapping[str, Mapping[str, Any]] = {
    LEGACY_VERSIONS[-1]: {"tasks": {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}},
    MODERN_VERSION: {"extensions": {TASKS: {}}},
}
"""By protocol version; older ones have no tasks."""
LISTS = {OfferKind.TOOL: "tools", OfferKind.RESOURCE: "resources", OfferKind.PROMPT: "prompts"}
_LEGACY_NOT_FOUND = -32002
_LONGEST_CLIENT_NAME = 100
_MODERN_MEMBERS = frozenset({"resultType", "ttlMs", "cacheScope"})
_decode_text = msgspec.json.Decoder(str).decode
_SENTINEL = re.compile(r"=\?base64\?(.*)\?=")

HTTP_STATUS = {
    PARSE_ERROR: 400,
    INVALID_REQUEST: 400,
    INVALID_PARAMS: 400,
    HEADER_MISMATCH: 400,
    UNSUPPORTED_VERSION: 400,
    MISSING_CAPABILITY: 400,
    METHOD_NOT_FOUND: 404,
}
"""The status of a modern answer that forwards a server's error with this code; 200 for other codes."""


def capabilities(version: str) -> Mapping[str, Any]:
    """What clients of this version are offered."""
    return {**CAPABILITIES, **TASK_CAPABILITIES.get(version, {})}


def era_of(message: ClientMessage, version_header: str | None) -> Era:
    """The body decides; the header counts only if the body is silent."""
    if VERSION_KEY in message.meta:
        return Era.MODERN
    if message.is_response:
        # The modern generation has none.
        return Era.LEGACY
    if message.method == "initialize":
        return Era.LEGACY
    return Era.LEGACY if version_header is None or version_header in LEGACY_VERSIONS else Era.MODERN


class _ClientInfo(msgspec.Struct):
    name: str = ""


def client_name(message: ClientMessage) -> str:
    """The name with which the sender of this `initialize` or modern request introduces itself; empty without one."""
    given = message.meta.get(CLIENT_KEY)
    try:
        if given is not None:
            info = msgspec.convert(given, _ClientInfo)
        else:
            info = msgspec.json.decode(message.params.get("clientInfo", b"{}"), type=_ClientInfo)
    except (msgspec.MsgspecError, RecursionError):
        return ""
    return info.name if is_storable(info.name) and len(info.name) <= _LONGEST_CLIENT_NAME else ""


def check_modern(message: ClientMessage, headers: Mapping[str, str] | None) -> None:
    """Checks a modern request; the first failed check is the answer. A pipe has no headers."""
    request_id = message.id or b"null"
    missing = [key for key in (VERSION_KEY, CAPABILITIES_KEY) if key not in message.meta]
    if missing:
        raise Rejected(ErrorCase.META, what=" and ".join(missing), id=request_id)
    version = message.meta[VERSION_KEY]
    if headers is not None:
        _check_headers(message, version, headers, request_id)
    if not isinstance(version, str):
        raise Rejected(ErrorCase.META, what=f"{VERSION_KEY} as a string", id=request_id)
    if version != MODERN_VERSION:
        raise unsupported_version(version, request_id)


def unsupported_version(version: str, request_id: bytes = b"null") -> Rejected:
    return Rejected(ErrorCase.VERSION, id=request_id, data={"supported": [MODERN_VERSION], "requested": version})


def _check_headers(message: ClientMessage, version: Any, headers: Mapping[str, str], request_id: bytes) -> None:
    def mismatch(header: str, what: str) -> Rejected:
        return Rejected(ErrorCase.MISMATCH, header=header, what=what, id=request_id)

    if headers.get("mcp-protocol-version") != version:
        raise mismatch("MCP-Protocol-Version", "the version in params._meta")
    if headers.get("mcp-method") != message.method:
        raise mismatch("Mcp-Method", "the method in the body")
    key = NAMED_BY.get(message.method)
    if key is not None and key in message.params:
        try:
            named = _decode_text(message.params[key])
        except msgspec.ValidationError:
            # Without a string there is no header to match; the method itself refuses the name.
            return
        if decode_header(headers.get("mcp-name")) != named:
            raise mismatch("Mcp-Name", f"params.{key}")


def decode_header(value: str | None) -> str | None:
    """A header's value without the base64 wrapping used for non-ASCII text."""
    wrapped = _SENTINEL.fullmatch(value or "")
    if wrapped is None:
        return value
    try:
        plain = base64.b64decode(wrapped[1], validate=True)
        if base64.b64encode(plain).decode() != wrapped[1]:
            return None
        return plain.decode()
    except (binascii.Error, UnicodeDecodeError):
        return None


_ROUTED_EXTENSIONS = frozenset({"io.modelcontextprotocol/ui"})


def forwarded_meta(meta: Mapping[str, Any]) -> Mapping[str, Any]:
    """The caller's `_meta` without the keys about its own connection, except for the extensions that servers can use
    through Toolcrib. What the caller can be asked depends on the server too."""
    if not meta:
        return meta
    kept = {key: value for key, value in meta.items() if key not in _CONNECTION_KEYS}
    claimed = meta.get(CAPABILITIES_KEY)
    extensions = claimed.get("extensions") if isinstance(claimed, dict) else None
    if isinstance(extensions, dict) and (known := _ROUTED_EXTENSIONS & extensions.keys()):
        kept[CAPABILITIES_KEY] = {"extensions": {name: extensions[name] for name in known}}
    return kept


_STAMP = msgspec.json.encode({SERVER_INFO_KEY: SERVER_INFO})


def list_result(era: Era, key: str, array: bytes) -> bytes:
    """A list result. It depends on the agent and may change at any time, so it is private with no time to live."""
    if era is Era.LEGACY:
        return b'{"%b":%b}' % (key.encode(), array)
    return b'{"resultType":"complete","%b":%b,"ttlMs":0,"cacheScope":"private","_meta":%b}' % (
        key.encode(),
        array,
        _STAMP,
    )


def own_result(era: Era, result: Mapping[str, Any]) -> bytes:
    """A result that Toolcrib itself creates."""
    if era is Era.LEGACY:
        return msgspec.json.encode(result)
    meta = {SERVER_INFO_KEY: SERVER_INFO, **result.get("_meta", {})}
    return msgspec.json.encode({"resultType": "complete", **result, "_meta": meta})


def input_required(questions: Mapping[str, Question], state: str) -> bytes:
    requests = {key: one.input_request for key, one in questions.items()}
    fields = {"resultType": INPUT_REQUIRED, "inputRequests": requests, "requestState": state}
    return own_result(Era.MODERN, fields)


def tool_result(result: bytes, *, client: Era) -> bytes:
    """A server's result for a client. Modern clients need a `resultType`; a result without one is complete. Legacy
    servers never send it, and some modern ones forget it."""
    if client is Era.LEGACY or result_type(result):
        return result
    if b'"resultType"' in result:
        # It may be a key with null or a number: replace it, since a second one would make the result ambiguous.
        with contextlib.suppress(msgspec.MsgspecError):
            fields = msgspec.json.decode(result, type=dict[str, msgspec.Raw])
            return msgspec.json.encode({**fields, "resultType": "complete"})
    return _with_members(result, b'"resultType":"complete"')


def offer_error(error: bytes, *, client: Era) -> bytes:
    """A server's error for a client: the modern era has no code of its own for an unknown resource."""
    if client is Era.LEGACY or error_in(error).code != _LEGACY_NOT_FOUND:
        return error
    with contextlib.suppress(msgspec.MsgspecError, RecursionError):
        return msgspec.json.encode({**msgspec.json.decode(error, type=dict[str, msgspec.Raw]), "code": INVALID_PARAMS})
    return error


def read_result(result: bytes, *, client: Era) -> bytes:
    """The result of resources/read. Modern ones say how long they may be cached: by default not at all. Legacy clients
    show their models every member, so they don't get these."""
    if client is Era.LEGACY:
        return result if result_type(result) is None else _without_members(result, _MODERN_MEMBERS)
    made = tool_result(result, client=client)
    if b'"ttlMs"' in made and _has_member(made, "ttlMs"):
        return made
    return _with_members(made, b'"ttlMs":0,"cacheScope":"private"')


def _without_members(result: bytes, members: frozenset[str]) -> bytes:
    fields = msgspec.json.decode(result, type=dict[str, msgspec.Raw])
    return msgspec.json.encode({key: value for key, value in fields.items() if key not in members})


def _has_member(result: bytes, name: str) -> bool:
    """Whether the result itself has it, not something in it."""
    try:
        return name in msgspec.json.decode(result, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, RecursionError):
        return True


def _with_members(result: bytes, members: bytes) -> bytes:
    rest = result.lstrip()[1:].lstrip()
    return b"{%b%b%b" % (members, b"" if rest[:1] == b"}" else b",", rest)


class ListenRequest(msgspec.Struct, frozen=True, rename="camel"):
    """The notifications that a modern client wants."""

    tools_list_changed: bool = False
    prompts_list_changed: bool = False
    resources_list_changed: bool = False
    resource_subscriptions: list[str] = []

    @property
    def kinds(self) -> frozenset[OfferKind]:
        return frozenset(kind for kind, name in LISTS.items() if getattr(self, f"{name}_list_changed"))


def listen_request(message: ClientMessage) -> ListenRequest:
    try:
        return msgspec.json.decode(message.params["notifications"], type=ListenRequest)
    except (KeyError, msgspec.ValidationError) as error:
        raise Rejected(
            ErrorCase.ARGUMENT,
            why="params.notifications must be an object that names the notifications to receive",
            id=message.id or b"null",
        ) from error


def _tag(request_id: bytes) -> dict[str, Any]:
    return {SUBSCRIPTION_KEY: msgspec.json.decode(request_id)}


def listen_acknowledged(request_id: bytes, kinds: frozenset[OfferKind], uris: Sequence[str]) -> bytes:
    honoured: dict[str, Any] = {f"{name}ListChanged": True for kind, name in LISTS.items() if kind in kinds}
    if uris:
        honoured["resourceSubscriptions"] = list(uris)
    return notification(
        "notifications/subscriptions/acknowledged", {"_meta": _tag(request_id), "notifications": honoured}
    )


def tagged(method: str, params: Mapping[str, Any], request_id: bytes | None) -> bytes:
    """A notification; on the stream of a modern subscription, it names the subscription."""
    if request_id is not None:
        meta = params.get("_meta")
        params = {**params, "_meta": {**(meta if isinstance(meta, dict) else {}), **_tag(request_id)}}
    return notification(method, params or None)


def list_changed(kind: OfferKind, request_id: bytes | None = None) -> bytes:
    return tagged(f"notifications/{LISTS[kind]}/list_changed", {}, request_id)


def listen_ended(request_id: bytes) -> bytes:
    """The last message of a stream that the gateway ends."""
    return result_message(request_id, own_result(Era.MODERN, {"_meta": _tag(request_id)}))


def initialize_result(message: ClientMessage, instructions: str) -> bytes:
    """The answer to a legacy client's first request."""
    try:
        wanted = msgspec.json.decode(message.params["protocolVersion"], type=str)
    except (KeyError, msgspec.ValidationError) as error:
        raise Rejected(ErrorCase.ARGUMENT, why="params.protocolVersion must be a string") from error
    version = wanted if wanted in LEGACY_VERSIONS else LEGACY_VERSIONS[-1]
    return msgspec.json.encode(
        {
            "protocolVersion": version,
            "capabilities": capabilities(version),
            "serverInfo": SERVER_INFO,
            "instructions": instructions,
        }
    )


def discover_result(instructions: str) -> bytes:
    """The answer to `server/discover`."""
    return own_result(
        Era.MODERN,
        {
            "supportedVersions": [MODERN_VERSION],
            "capabilities": capabilities(MODERN_VERSION),
            "instructions": instructions,
            "ttlMs": 0,
            "cacheScope": "private",
        },
    )
