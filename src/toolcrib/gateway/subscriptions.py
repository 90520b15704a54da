"""`subscriptions/listen`, the modern era's way to hear of changes: its answer is a stream of notices.

In: the listen request. Out: the messages that its stream carries, each tagged with the request's id. Only changes of
the tool list are told; what else was asked for is left out of the acknowledgement.
"""

from __future__ import annotations

from typing import Any

import msgspec

from toolcrib.errors import Case
from toolcrib.gateway import eras
from toolcrib.gateway.answers import Rejected, result_message
from toolcrib.gateway.envelope import Message, notification
from toolcrib.servers.model import Era


def wants_tools(message: Message) -> bool:
    try:
        wanted = msgspec.json.decode(message.params["notifications"], type=dict[str, Any])
    except (KeyError, msgspec.ValidationError) as error:
        raise Rejected(
            Case.ARGUMENT,
            why="params.notifications must be an object that names what to hear of",
            id=message.id or b"null",
        ) from error
    return wanted.get("toolsListChanged") is True


def _tag(request_id: bytes) -> dict[str, Any]:
    return {eras.SUBSCRIPTION_KEY: msgspec.json.decode(request_id)}


def acknowledged(request_id: bytes, *, tools: bool) -> bytes:
    honoured = {"toolsListChanged": True} if tools else {}
    return notification(
        "notifications/subscriptions/acknowledged", {"_meta": _tag(request_id), "notifications": honoured}
    )


def listen_notice(request_id: bytes) -> bytes:
    return notification("notifications/tools/list_changed", {"_meta": _tag(request_id)})


def ended(request_id: bytes) -> bytes:
    """The last message of a stream that we end on purpose."""
    return result_message(request_id, eras.complete(Era.MODERN, {"_meta": _tag(request_id)}))
