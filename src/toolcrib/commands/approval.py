"""approval:* — calls and servers' questions that wait for the owner."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from pydantic import Field

from toolcrib.catalog.tool import OfferKind
from toolcrib.commands.registry import Availability, CommandContext, CommandEffect, CommandScope, Parameters, registry
from toolcrib.errors import ConfigError, NotFound, UsageError
from toolcrib.identity.approvals import SHOWN, Approval, OwnerAsker
from toolcrib.identity.principal import OWNER
from toolcrib.policy import Rule, RuleOrigin, Verdict
from toolcrib.policy.rule import is_glob, kind_and_glob
from toolcrib.servers.question_checks import host_of
from toolcrib.servers.questions import Asker

LONGEST_WAIT = 60.0


def _described(context: CommandContext, approval: Approval, *, whole: bool = False) -> dict[str, Any]:
    shown, asked = context.services.approvals.shown, approval.question
    params = b"" if asked is None else msgspec.json.encode(asked.params)
    question: dict[str, Any] | None = None
    if asked is not None:
        host = host_of(asked.params["url"]) if asked.mode == "url" else ""
        question = {"server": asked.server, "mode": asked.mode, "host": host, "params": shown(params, whole=whole)}
    return {
        **{one.name: getattr(approval, one.name) for one in dataclasses.fields(approval)},
        "question": question,
        "arguments": shown(approval.arguments, whole=whole) if approval.arguments else {},
        "besides": shown(approval.besides, whole=whole) if approval.besides else {},
        "whole": whole or max(map(len, (params, approval.arguments, approval.besides))) <= SHOWN,
        "left": max(0.0, approval.until - time.time()),
    }


class CommandEvents:
    """The events of a command that calls a server, from code that does not wait."""

    def __init__(self, context: CommandContext) -> None:
        self._context = context
        self._begun = time.monotonic()
        self._emitting: set[asyncio.Task[None]] = set()

    def asker(self) -> Asker | None:
        """Asks the owner. None without a daemon, because then no other command could answer."""
        if self._context.host.describe()["endpoint"] is None:
            return None
        conversation = self._context.request.conversation
        return OwnerAsker(self._context.services.approvals, OWNER.name, conversation, self._question)

    def progress(self, params: Mapping[str, Any]) -> None:
        """Left out at the beginning of a call, and while other events are under way: there may be very many."""
        message, done, total = (params.get(name) for name in ("message", "progress", "total"))
        if self._emitting or time.monotonic() - self._begun < _QUIET:
            return
        shown = [message[:_LONGEST]] if isinstance(message, str) and message else []
        if total is not None or not shown:
            shown.append(f"{done}" if total is None else f"{done} of {total}")
        self._emit({"progress": ", ".join(shown)})

    def _question(self, id: str) -> None:
        self._emit({"question": id})

    def _emit(self, event: dict[str, Any]) -> None:
        task = asyncio.ensure_future(self._context.emit(event))
        self._emitting.add(task)
        task.add_done_callback(self._emitting.discard)

    def end(self) -> None:
        for task in tuple(self._emitting):
            task.cancel()


_QUIET = 1.0
_LONGEST = 200


@contextlib.contextmanager
def command_events(context: CommandContext) -> Iterator[CommandEvents]:
    events = CommandEvents(context)
    try:
        yield events
    finally:
        events.end()


class ListApprovals(Parameters):
    wait: float = Field(default=0.0, ge=0.0, le=LONGEST_WAIT, description="seconds to wait for one")
    id: str | None = Field(default=None, description="only this call or question, complete")


@registry.command("approval:list", CommandEffect.REVEALS, Availability.EVERYWHERE, scope=CommandScope.DAEMON)
async def list_approvals(context: CommandContext, params: ListApprovals) -> dict[str, Any]:
    """List what waits for you: calls, with arguments and rule, and servers' questions."""
    approvals = context.services.approvals
    if params.id is not None:
        found: tuple[Approval, ...] = (approvals.find(params.id),)
    else:
        found = await approvals.next(params.wait) if params.wait else approvals.waiting()
    whole = params.id is not None
    # Agents decide how long their arguments are, so masking them may take a while.
    rows = [await asyncio.to_thread(_described, context, approval, whole=whole) for approval in found]
    return {"approvals": rows}


class AnswerApproval(Parameters):
    id: str
    approved: bool | None = Field(description="null dismisses a form or a page without a choice")
    content: dict[str, Any] | None = Field(
        default=None, description="the values of a form; fields that are left out get their defaults"
    )
    always: bool = Field(default=False, description="also add a rule for this agent and tool; not for questions")


@registry.command("approval:answer", CommandEffect.CHANGES, Availability.EVERYWHERE, scope=CommandScope.DAEMON)
async def answer(context: CommandContext, params: AnswerApproval) -> dict[str, Any]:
    """Approve or refuse a waiting call, or answer a server's question; `always` also adds a rule."""
    approvals = context.services.approvals
    approval = approvals.find(params.id)
    if params.always and approval.question is not None:
        raise UsageError("The answer to a question cannot become a rule.", remedy="Answer without --always.")
    waited = [one.id for one in approvals.waiting()]
    rule: Rule | None = None
    if params.always:
        rule = _allowed(context, approval) if params.approved else _denied(approval)
    if params.approved and rule is not None:
        # The rule comes first: if it cannot be added, the call still waits for another answer.
        await context.services.agents.add_rule(approval.agent, rule)
    # The rule may already have answered this call and others that it covers.
    with contextlib.suppress(NotFound):
        approvals.answer(approval.id, approved=params.approved, content=params.content)
    if not params.approved and rule is not None:
        await context.services.agents.add_rule(approval.agent, rule)
    left = {one.id for one in approvals.waiting()}
    return {
        "approval": _described(context, approval),
        "approved": params.approved,
        "always": params.always,
        "answered": [id for id in waited if id not in left],
        "rule": None if rule is None else rule.text,
    }


def _denied(approval: Approval) -> Rule:
    return Rule(effect=Verdict.DENY, tools=approval.tool, origin=RuleOrigin.AGENT, holder=approval.agent)


def _allowed(context: CommandContext, approval: Approval) -> Rule:
    """A rule that makes asking unnecessary and allows no more: this tool, under the asking rule's conditions."""
    agent = context.services.agents.find(approval.agent)
    remedy = f"Run `toolcrib approve {approval.id}` to approve only this call."
    asking = [rule for rule in agent.permission.rules if rule.text == approval.rule and rule.effect is Verdict.ASK]
    if not asking:
        raise UsageError(
            f"{agent.name} cannot be allowed this permanently, because {approval.rule} asks for it.", remedy=remedy
        )
    unclear = UsageError(f"A rule for {approval.tool!r} would also match other tools.", remedy=remedy)
    kind, rest = kind_and_glob(approval.tool)
    if is_glob(rest) or (kind is not OfferKind.RESOURCE and rest.count(":") != 1):
        raise unclear
    try:
        return dataclasses.replace(
            asking[0], effect=Verdict.ALLOW, tools=approval.tool, origin=RuleOrigin.APPROVAL, holder=agent.name
        )
    except ConfigError:
        raise unclear from None
