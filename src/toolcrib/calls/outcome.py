"""How a call ended: a server's answer or an error → the outcome for the audit log and events.

Used only by `door`.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from msgspec import Raw

from toolcrib.catalog.tool import OfferKind, Tool
from toolcrib.errors import SERVER_UNAVAILABLE, CallTimeout, ServerFailure
from toolcrib.events import CallOutcome
from toolcrib.run_events import failure_in
from toolcrib.servers.model import ServerAnswer
from toolcrib.servers.wire import result_type


def outcome_of_error(error: BaseException) -> CallOutcome:
    match error:
        case asyncio.CancelledError():
            return CallOutcome.CANCELLED
        case CallTimeout():
            return CallOutcome.TIMEOUT
        case ServerFailure():
            return CallOutcome.UNAVAILABLE
        case _:
            return CallOutcome.ERROR


def refuse_unfinished(answer: ServerAnswer, tool: Tool, *, takes_task: bool) -> ServerAnswer:
    """Turns an answer that isn't the final result into a failure; the caller would take it for the result."""
    kind = None if answer.result is None else result_type(answer.result)
    if kind in (None, "complete") or (takes_task and kind == "task"):
        return answer
    text = f"{tool.display} gave no result: its answer is of the type {kind!r:.80}, which Toolcrib does not support."
    if tool.kind is not OfferKind.TOOL:
        return ServerAnswer(error=msgspec.json.encode({"code": SERVER_UNAVAILABLE, "message": text}))
    return ServerAnswer(result=msgspec.json.encode({"content": [{"type": "text", "text": text}], "isError": True}))


class _Flagged(msgspec.Struct):
    failed: Any = msgspec.field(name="isError", default=False)
    meta: Any = msgspec.field(name="_meta", default=None)


_flagged = msgspec.json.Decoder(_Flagged).decode
_MAX_INSPECTED_BYTES = 4 * 1024 * 1024
"""Larger results aren't parsed for `isError`: no error message is that long."""


def outcome_of(answer: ServerAnswer) -> tuple[CallOutcome, str]:
    """The outcome, and the tool's report if the program that it ran failed."""
    if answer.result is None:
        return CallOutcome.ERROR if answer.questions is None else CallOutcome.ASKED, ""
    if len(answer.result) > _MAX_INSPECTED_BYTES:
        return CallOutcome.OK, ""
    try:
        flagged = _flagged(answer.result)
    except (msgspec.MsgspecError, RecursionError):
        return CallOutcome.OK, ""
    if flagged.failed is True:
        return CallOutcome.TOOL_ERROR, ""
    failure = failure_in(flagged.meta) if flagged.meta else ""
    return (CallOutcome.FAILED, failure) if failure else (CallOutcome.OK, "")


class _Look(msgspec.Struct):
    status: str = ""
    result: Raw = Raw()


def outcome_of_look(answer: ServerAnswer) -> CallOutcome | None:
    """What `tasks/get` tells about its call; None while it says nothing about the result. A legacy server's answer
    never does: its result is fetched with `tasks/result`."""
    if answer.result is None:
        return CallOutcome.ERROR
    try:
        look = msgspec.json.decode(answer.result, type=_Look)
    except (msgspec.MsgspecError, RecursionError):
        return CallOutcome.ERROR
    match look.status:
        case "completed" if bytes(look.result):
            return outcome_of(ServerAnswer(result=bytes(look.result)))[0]
        case "cancelled":
            return CallOutcome.CANCELLED
        case "failed":
            return CallOutcome.ERROR
    return None
