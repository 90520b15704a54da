"""Requests about what servers offer besides tools: resources, prompts, completion, log messages, instructions.

In: a decoded message and its context. Out: the server's answer, in the form that the client's protocol version has.
Reads, prompts and completions go through the door like calls. Used by `dispatcher`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from toolcrib.calls import CallRequest, Door
from toolcrib.core.offer_source import COMPLETE_METHOD, PROMPT_METHOD, READ_METHOD, TEMPLATE_REFERENCE
from toolcrib.core.project import Project
from toolcrib.errors import ErrorCase, UnknownOffer
from toolcrib.gateway import protocol
from toolcrib.gateway.messages import ClientMessage, Rejected, notification
from toolcrib.gateway.parking import Asking
from toolcrib.gateway.pending import PendingRequest
from toolcrib.gateway.watching import MAX_RESOURCES, Watching, log_level
from toolcrib.identity.principal import Principal, RequestContext
from toolcrib.servers.link import LOG_MESSAGE
from toolcrib.servers.model import NAMED_BY, Era, LogWish, OnProgress, ServerAnswer
from toolcrib.servers.resource_watch import LOG_LEVEL_KEY, LOG_LEVELS

FORWARDED = frozenset({READ_METHOD, PROMPT_METHOD, COMPLETE_METHOD})
WATCHED = frozenset({"resources/subscribe", "resources/unsubscribe", "logging/setLevel"})
Notify = Callable[[bytes], None]
"""Sends a notification that belongs to the request being answered."""
CALL_WAIT_SECONDS = 10.0
"""How long a request waits for servers that were never listed, if it names something unknown."""
_decode_text = msgspec.json.Decoder(str).decode


async def forward(
    door: Door,
    message: ClientMessage,
    era: Era,
    context: RequestContext[Project],
    asking: Asking,
    on_progress: OnProgress | None,
    logs: LogWish | None,
) -> ServerAnswer:
    """Reads a resource, gets a prompt, or completes an argument of either."""
    method, project = message.method, context.project
    params = dict(asking.params)
    ref = _reference(params) if method == COMPLETE_METHOD else None
    name = _text(params, NAMED_BY[method]) if ref is None else ref.offer
    if not project.offers.lists(name):
        await project.wait_for_new_servers(CALL_WAIT_SECONDS)
    if ref is not None:
        # The door refuses and records what does not exist.
        with contextlib.suppress(UnknownOffer):
            params["ref"] = ref.naming(project.find_offer(method, name, context.principal.name).name)
    request = CallRequest(
        tool=name,
        method=method,
        params={key: value for key, value in params.items() if key != NAMED_BY.get(method)},
        meta=protocol.forwarded_meta(message.meta),
        asker=asking.asker,
        takes_input=asking.takes_input,
        answered=asking.answered,
        on_progress=on_progress,
        logs=logs,
    )
    answer = project.public_answer(request, await door.call(context, request))
    if answer.questions is not None:
        return answer
    if answer.result is None:
        return ServerAnswer(error=protocol.offer_error(answer.error or b"{}", client=era))
    rendered = protocol.read_result if method == READ_METHOD else protocol.tool_result
    return ServerAnswer(result=rendered(answer.result, client=era))


async def watch(door: Door, message: ClientMessage, watching: Watching) -> ServerAnswer:
    """Legacy clients subscribe to resources and log messages for their connection."""
    if message.method == "logging/setLevel":
        level = log_level(message.params.get("level"))
        if level is None:
            raise Rejected(ErrorCase.ARGUMENT, why=f"params.level must be one of {', '.join(LOG_LEVELS)}")
        watching.set_level(level)
        return ServerAnswer(result=b"{}")
    uri = _text(message.params, "uri")
    if message.method == "resources/unsubscribe":
        watching.drop(uri)
        return ServerAnswer(result=b"{}")
    if watching.is_full:
        raise Rejected(ErrorCase.ARGUMENT, why=f"at most {MAX_RESOURCES} resources can be subscribed to")
    error = await watching.watch(door, uri)
    return ServerAnswer(result=b"{}") if error is None else ServerAnswer(error=error)


def progress_to(pending: PendingRequest, notify: Notify) -> OnProgress | None:
    if pending.progress_token is None:
        return None

    def report(params: Mapping[str, Any]) -> None:
        if pending.progress_token is not None:
            notify(notification("notifications/progress", {"progressToken": pending.progress_token, **params}))

    return report


def log_wish(message: ClientMessage, watching: Watching | None, era: Era, notify: Notify) -> LogWish | None:
    """Modern clients ask for log messages with each request, legacy ones for their connection."""
    of_connection = watching.level if watching is not None else None
    level = message.meta.get(LOG_LEVEL_KEY) if era is Era.MODERN else of_connection
    if level not in LOG_LEVELS:
        return None
    least = LOG_LEVELS.index(level)

    def receive(params: Mapping[str, Any]) -> None:
        if params.get("level") in LOG_LEVELS and LOG_LEVELS.index(params["level"]) >= least:
            notify(notification(LOG_MESSAGE, params))

    return LogWish(level=level, receive=receive, untagged=era is Era.MODERN)


def _text(params: Mapping[str, msgspec.Raw], key: str) -> str:
    try:
        return _decode_text(params[key])
    except (KeyError, msgspec.ValidationError) as error:
        raise Rejected(ErrorCase.ARGUMENT, why=f"params.{key} must be a string") from error


class _Reference(msgspec.Struct):
    """What a request for completion is about."""

    type: str
    name: str = ""
    uri: str = ""

    @property
    def offer(self) -> str:
        return self.name if self.type == "ref/prompt" else f"{TEMPLATE_REFERENCE}{self.uri}"

    def naming(self, own: str) -> msgspec.Raw:
        """The same with the server's own name or template."""
        named = {"name": own} if self.type == "ref/prompt" else {"uri": own}
        return msgspec.Raw(msgspec.json.encode({"type": self.type, **named}))


def _reference(params: Mapping[str, msgspec.Raw]) -> _Reference:
    try:
        return msgspec.json.decode(params["ref"], type=_Reference)
    except (KeyError, msgspec.ValidationError) as error:
        raise Rejected(ErrorCase.ARGUMENT, why="params.ref must name a prompt or a resource template") from error


_INSTRUCTIONS_OF_SERVER, _INSTRUCTIONS = 1_600, 8_000
"""Characters: about 400 and 2,000 tokens."""


def instructions(project: Project, principal: Principal) -> str:
    """What the agent's servers say about their use, each under its name."""
    permission = principal.permission()
    parts, room = [protocol.INSTRUCTIONS], _INSTRUCTIONS
    for server, offers in sorted(project.offers.offers.items()):
        text = "".join(one for one in offers.instructions.strip() if one.isprintable() or one == "\n")
        if not text or not project.shows_any_of(server, permission):
            continue
        cut = text if len(text) <= _INSTRUCTIONS_OF_SERVER else f"{text[: _INSTRUCTIONS_OF_SERVER - 1]}…"
        if len(cut) > room:
            continue
        room -= len(cut)
        parts.append(f"# Server {server}\n{cut}")
    return "\n\n".join(parts)
