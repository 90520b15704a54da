"""JSON-RPC messages as bytes: one decode of the envelope, everything inside left raw.

In: one message as it came off a pipe, frame or body. Out: an `Envelope` whose params, result and error are raw JSON,
or `NotAMessage`. The other way: a request's parts → its bytes. Every link in this room reads and writes through here.

Ids of ours are strings that begin with `PREFIX`. The SDK counts with integers and `listen-N`, so that both can share
one pipe without meeting.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import accumulate
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from toolcrib.servers.model import Answer, Era

PREFIX = "tc-"

PROTOCOL_VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
CLIENT_INFO_KEY = "io.modelcontextprotocol/clientInfo"
CLIENT_CAPABILITIES_KEY = "io.modelcontextprotocol/clientCapabilities"
PROGRESS_TOKEN_KEY = "progressToken"  # noqa: S105 - the protocol's word, no secret
_CONNECTION_KEYS = (PROTOCOL_VERSION_KEY, CLIENT_INFO_KEY, CLIENT_CAPABILITIES_KEY, PROGRESS_TOKEN_KEY)

_OWN_ID = re.compile(rb'"id"\s*:\s*"(' + PREFIX.encode() + rb'\d+)"')
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)
_EDGE = 300
"""How far from either end of a broken message its id is looked for."""


class NotAMessage(Exception):
    """The bytes are no JSON-RPC message. Says why, never what stood there."""


class Envelope(msgspec.Struct):
    id: str | int | float | UnsetType | None = UNSET
    method: str | UnsetType = UNSET
    params: Raw | UnsetType = UNSET
    result: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET

    def answer(self) -> Answer | None:
        """What this message says to a request, or None if it says nothing: only an object says something in MCP."""
        if self.result is not UNSET and _is_object(self.result):
            return Answer(result=bytes(self.result))
        if self.error is not UNSET and _is_object(self.error):
            return Answer(error=bytes(self.error))
        return None


def _is_object(raw: Raw) -> bool:
    return bytes(memoryview(raw)[:1]) == b"{"


class Fault(msgspec.Struct):
    """What an error says, as far as we read it."""

    code: int = 0
    message: str = ""


_envelope = msgspec.json.Decoder(Envelope)
_fault = msgspec.json.Decoder(Fault)
_batch = msgspec.json.Decoder(list[Raw])
encode = msgspec.json.encode


def decode(message: bytes) -> Envelope:
    """Raises NotAMessage. The text is checked to be UTF-8: raw parts go on to others who rely on it."""
    try:
        if not message.isascii():
            message.decode()
        return _decode_whole(message)
    except UnicodeDecodeError as error:
        raise NotAMessage(f"not UTF-8 (byte {error.start})") from None
    except msgspec.MsgspecError as error:
        raise NotAMessage(str(error)) from None
    except RecursionError:
        raise NotAMessage("nested too deeply") from None


def _decode_whole(message: bytes) -> Envelope:
    """Decodes also what holds half a surrogate pair, as programs leave that cut a text inside an emoji.

    No client could read such a text, so each half becomes the replacement character; the rest stays as it is.
    """
    try:
        return _envelope.decode(message)
    except msgspec.DecodeError:
        if b"\\ud" not in message.lower():
            raise
    return _envelope.decode(_ESCAPE.sub(lambda found: rb"\ufffd" if found[1] else found[0], message))


def fault_in(error: bytes) -> Fault:
    try:
        return _fault.decode(error)
    except (msgspec.MsgspecError, RecursionError):
        return Fault(message="it gave an error that is not MCP")


def split_batch(message: bytes) -> list[bytes]:
    """The messages of a batch, which protocol 2025-03-26 allowed."""
    try:
        return [bytes(part) for part in _batch.decode(message)]
    except (msgspec.MsgspecError, RecursionError) as error:
        raise NotAMessage(str(error)) from None


def own_id_in(broken: bytes) -> str | None:
    """The id of ours that a message which cannot be decoded was meant for, so that its caller need not wait."""
    found = _OWN_ID.search(broken[:_EDGE]) or _OWN_ID.search(broken[-_EDGE:])
    return found.group(1).decode() if found else None


def meta_for(
    era: Era, version: str, client_info: Mapping[str, Any], own: Mapping[str, Any], token: str | None
) -> dict[str, Any]:
    """The `_meta` of a request: the caller's keys, and those that belong to this connection."""
    meta = {key: value for key, value in own.items() if key not in _CONNECTION_KEYS}
    if token is not None:
        meta[PROGRESS_TOKEN_KEY] = token
    if era is Era.MODERN:
        meta[PROTOCOL_VERSION_KEY] = version
        meta[CLIENT_INFO_KEY] = client_info
        meta[CLIENT_CAPABILITIES_KEY] = {}
    return meta


def request(request_id: str, method: str, params: Mapping[str, Any]) -> bytes:
    return encode({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params})


def cancelled(request_id: str, reason: str) -> bytes:
    params = {"requestId": request_id, "reason": reason}
    return encode({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})


_STRING = re.compile(rb'"(?:[^"\\]++|\\.?)*+"?', re.DOTALL)
"""Takes an unterminated string too, and never goes back over what it took: the time is linear in any text."""
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
"""One up for what opens, one down (as a signed byte) for what closes."""
_NO_STEP = bytes(set(range(256)) - set(b"[{]}"))


def deeper_than(limit: int, text: bytes) -> bool:
    """Whether a JSON text nests deeper. Most have so few brackets that counting them is enough.

    The rest is done without a loop of ours: a text of many megabytes of brackets must not hold up everybody.
    """
    if text.count(b"{") + text.count(b"[") <= limit:
        return False
    steps = _STRING.sub(b"", text).translate(_STEPS, _NO_STEP)
    return max(accumulate(memoryview(steps).cast("b")), default=0) > limit


def on_one_line(message: bytes) -> bytes:
    """The same JSON without line ends. In JSON they can stand between tokens only, so a blank says the same."""
    if b"\n" in message or b"\r" in message:
        return message.replace(b"\n", b" ").replace(b"\r", b" ")
    return message


def params_object(params: Raw | UnsetType) -> dict[str, Any]:
    """Params as a dict; empty where they are missing, odd or too deep."""
    if params is UNSET:
        return {}
    try:
        decoded = msgspec.json.decode(params)
    except (msgspec.MsgspecError, RecursionError):
        return {}
    return decoded if isinstance(decoded, dict) else {}
