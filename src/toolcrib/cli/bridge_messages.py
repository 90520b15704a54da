"""Splits a byte stream into lines and identifies the JSON-RPC messages in them, without decoding large ones.

In: chunks from a pipe or socket. Out: lines, and for each line its requests, answers and notifications. Only `bridge`
uses it.
"""

from __future__ import annotations

import enum
import json
import re
from typing import Any, NamedTuple

SMALL = 1 << 16
"""Lines up to this size are simply decoded."""

_ANSWER_HEAD = re.compile(
    rb'\s*\{\s*"jsonrpc"\s*:\s*"2\.0"\s*,\s*"id"\s*:\s*(-?\d+|"[^"\\]*")\s*,\s*"(?:result|error)"\s*:'
)
_REQUEST_HEAD = re.compile(
    rb'\s*\{\s*"jsonrpc"\s*:\s*"2\.0"\s*,\s*"id"\s*:\s*(-?\d+|"[^"\\]*")\s*,\s*"method"\s*:\s*"([^"\\]*)"\s*,'
)


class MessageKind(enum.Enum):
    REQUEST = enum.auto()
    ANSWER = enum.auto()
    NOTICE = enum.auto()


class BridgeMessage(NamedTuple):
    kind: MessageKind
    id: str = ""
    """The id as JSON text, because 1 and "1" differ. For a cancellation, the id of the cancelled request."""
    method: str = ""


class BridgeReader:
    """Splits a stream into lines, in linear time for any length of line."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def feed(self, chunk: bytes) -> list[bytes]:
        """Returns the lines that this chunk completes, each with its newline. Skips blank lines."""
        *complete, rest = chunk.split(b"\n")
        if not complete:
            self._parts.append(rest)
            return []
        complete[0] = b"".join((*self._parts, complete[0]))
        self._parts = [rest] if rest else []
        return [line + b"\n" for line in complete if line and not line.isspace()]

    def rest(self) -> bytes:
        """Returns the bytes after the last newline."""
        left = b"".join(self._parts)
        self._parts = []
        return left


def messages(line: bytes) -> list[BridgeMessage] | None:
    """The messages in a line (several if it is a batch), or None if it isn't JSON-RPC."""
    if len(line) > SMALL and (quick := _from_head(line)) is not None:
        return [quick]
    try:
        whole = json.loads(line)
    except (ValueError, RecursionError):
        return None
    found = [_message(part) for part in (whole if isinstance(whole, list) else [whole])]
    return [message for message in found if message is not None] if all(found) else None


def complaint(line: bytes) -> str:
    """The text of an error without a request id, with which the daemon refuses a connection; otherwise ""."""
    if len(line) > SMALL or b"null" not in line:
        return ""
    try:
        whole = json.loads(line)
    except (ValueError, RecursionError):
        return ""
    error = whole.get("error") if isinstance(whole, dict) and whole.get("id", 0) is None else None
    return str(error.get("message", "")) if isinstance(error, dict) else ""


def _message(part: Any) -> BridgeMessage | None:
    if not isinstance(part, dict):
        return None
    method = part.get("method")
    if isinstance(method, str):
        if "id" in part:
            return BridgeMessage(MessageKind.REQUEST, json.dumps(part["id"]), method)
        return BridgeMessage(
            MessageKind.NOTICE, _cancelled(part) if method == "notifications/cancelled" else "", method
        )
    if "id" in part and ("result" in part or "error" in part):
        return BridgeMessage(MessageKind.ANSWER, json.dumps(part["id"]))
    return None


def _cancelled(part: dict[str, Any]) -> str:
    params = part.get("params")
    return json.dumps(params["requestId"]) if isinstance(params, dict) and "requestId" in params else ""


def _from_head(line: bytes) -> BridgeMessage | None:
    """Identifies a long line by its beginning, if its keys are in the usual order."""
    answer, request = _ANSWER_HEAD.match(line), _REQUEST_HEAD.match(line)
    head = answer or request
    if head is None:
        return None
    try:
        request_id = json.dumps(json.loads(head[1]))
        method = head[2].decode() if request is not None else ""
    except ValueError:
        return None
    return BridgeMessage(MessageKind.ANSWER if answer is not None else MessageKind.REQUEST, request_id, method)
