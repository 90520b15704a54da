"""Calls and servers' questions that wait for the owner.

In: a call whose rule is `ask`, a question for an agent that has nobody at its client, or a request for a model's answer
(`sampling: ask`), and the owner's answer. Out: the answer, to whoever waits. All of this is in memory: what waits ends
with the process. `calls` and the gateway ask; the commands answer.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from toolcrib.config.masking import mask_tree
from toolcrib.errors import NotFound, UsageError
from toolcrib.events import AgentEnded, ApprovalsChanged, Bus, Event, QuestionWaits
from toolcrib.servers.form import completed
from toolcrib.servers.questions import (
    CANCEL,
    DECLINE,
    QUESTION_SECONDS,
    REFUSED_BY_PERSON,
    Asker,
    Question,
    QuestionRefused,
    QuestionUnanswered,
)

ANSWER_SECONDS = 45.0
"""Seconds for an answer: clients give up on a call after a minute."""
MAX_WAITING_PER_AGENT = 20
MAX_WAITING = 200
"""The maximum number of waiting calls and questions, per agent and in total."""

_LETTERS = "bcdfghjkmnpqrstvwxz23456789"
"""No two look alike, and they form no words."""


SHOWN = 64 * 1024
"""Bytes of each call's arguments, or of a question, in the list; `whole` shows all of them."""
_SEAM = 4096
"""Bytes read beyond the cut, so that a secret across it is masked."""


@dataclass(frozen=True, kw_only=True)
class Approval:
    """A waiting call, or a waiting question of a server."""

    id: str
    agent: str
    conversation: str
    tool: str
    """`server:tool`."""
    question: Question | None = field(default=None, repr=False)
    """What the server asks; None for a call."""
    rule: str = ""
    """The rule that requires the approval of a call."""
    arguments: bytes = field(default=b"", repr=False)
    """The exact bytes that the server gets after the approval."""
    besides: bytes = field(default=b"", repr=False)
    """The other params and `_meta` that the server gets, as one JSON object; empty if there are none."""
    asked_at: float
    until: float


@dataclass(frozen=True, kw_only=True)
class ApprovalAnswer:
    approved: bool
    why: str
    remedy: str = ""
    """What the caller can do about a refusal."""
    result: Mapping[str, Any] | None = field(default=None, repr=False)
    """What a server gets that asked for a form or a page. None: it asked for neither, or there was no answer."""


@dataclass(kw_only=True)
class _Waiting:
    call: str
    approval: Approval
    answer: asyncio.Future[ApprovalAnswer] = field(repr=False)


class Approvals:
    def __init__(
        self,
        bus: Bus,
        *,
        limit: float = ANSWER_SECONDS,
        question_limit: float = QUESTION_SECONDS,
        mask: Callable[[str], str] = lambda text: text,
    ) -> None:
        self.unattended: dict[str, bool] = {}
        """The agents that have nobody at their client, whose servers therefore ask the owner; and whether the agent's
        program may answer instead, if it says that it can."""
        self._bus = bus
        self._limit = limit
        self._question_limit = question_limit
        self._mask = mask
        self._waiting: dict[str, _Waiting] = {}
        self._any = asyncio.Event()
        bus.subscribe(self._agent_ended, AgentEnded)

    async def ask(
        self, *, call: str, agent: str, conversation: str, tool: str, rule: str, arguments: bytes, besides: bytes = b""
    ) -> ApprovalAnswer:
        """Waits for a person. Without an answer in time, or with too many waiting calls, it refuses."""
        now = time.time()
        approval = Approval(
            id=self._new_id(),
            agent=agent,
            conversation=conversation,
            tool=tool,
            rule=rule,
            arguments=arguments,
            besides=besides,
            asked_at=now,
            until=now + self._limit,
        )
        return await self._answered(call, approval, self._limit)

    async def ask_question(
        self, question: Question, *, agent: str, conversation: str, tell: Callable[[str], None] | None = None
    ) -> ApprovalAnswer:
        """Waits for the owner's answer to a server's question, or for the permission to pass it on. `tell` gets the
        approval's id when it waits."""
        now = time.time()
        limit = self._limit if question.mode == "sampling" else self._question_limit
        approval = Approval(
            id=self._new_id(),
            agent=agent,
            conversation=conversation,
            tool=question.tool,
            question=question,
            asked_at=now,
            until=now + limit,
        )
        return await self._answered("", approval, limit, tell)

    async def ask_permission(self, question: Question, *, agent: str, conversation: str) -> None:
        """For a question that is passed on only if the owner agrees. Raises `QuestionRefused`."""
        answer = await self.ask_question(question, agent=agent, conversation=conversation)
        if not answer.approved:
            raise QuestionRefused(
                f"The request of server '{question.server}' for a model's answer was not approved: {answer.why}.",
                remedy=answer.remedy,
                json_code=REFUSED_BY_PERSON,
            )

    def asker(self, agent: str, conversation: str, client: Asker | None) -> Asker:
        """Who answers what servers ask an unattended agent: the owner, or its program. Headless coding agents say that
        they can be asked, although nobody is there."""
        if self.unattended[agent] and client is not None and "elicitation" in client.capabilities:
            return client
        return OwnerAsker(self, agent, conversation)

    async def _answered(
        self, call: str, approval: Approval, limit: float, tell: Callable[[str], None] | None = None
    ) -> ApprovalAnswer:
        if full := self._full(approval.agent):
            return ApprovalAnswer(approved=False, why=full, remedy="Wait until some are answered.")
        answer: asyncio.Future[ApprovalAnswer] = asyncio.get_running_loop().create_future()
        self._waiting[approval.id] = _Waiting(call=call, approval=approval, answer=answer)
        self._any.set()
        self._publish_beginning(approval)
        if tell is not None:
            tell(approval.id)
        try:
            async with asyncio.timeout(limit):
                return await answer
        except TimeoutError:
            return ApprovalAnswer(
                approved=False,
                why=f"there was no answer within {limit:g} s",
                remedy="Ask the owner to look at `toolcrib approvals`, then call again.",
            )
        finally:
            self._waiting.pop(approval.id, None)
            self._none_left()
            self._bus.publish(ApprovalsChanged())

    def _publish_beginning(self, approval: Approval) -> None:
        self._bus.publish(ApprovalsChanged())
        if (asked := approval.question) is not None:
            self._bus.publish(
                QuestionWaits(
                    id=approval.id, agent=approval.agent, server=asked.server, tool=approval.tool, mode=asked.mode
                )
            )

    def close(self) -> None:
        """Refuses everything that waits, because the process stops."""
        for one in self.waiting():
            self._settle(
                one.id,
                ApprovalAnswer(approved=False, why="Toolcrib is stopping", remedy="Call again after it restarts."),
            )

    def waiting(self) -> tuple[Approval, ...]:
        """Waiting calls and questions, oldest first."""
        return tuple(one.approval for one in self._waiting.values())

    def shown(self, sent: bytes, *, whole: bool) -> Any:
        """What is passed on, as the person sees it: only known secrets are masked, and each mask names the secret."""
        if whole or len(sent) <= SHOWN:
            try:
                return mask_tree(msgspec.json.decode(sent), self._mask)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                return self._mask(sent.decode(errors="replace"))
        text = self._mask(sent[: SHOWN + _SEAM].decode(errors="replace"))
        return f"{text[:SHOWN]}… and {len(sent) - SHOWN} bytes more"

    def find(self, id: str) -> Approval:
        found = self._waiting.get(id)
        if found is None:
            known = ", ".join(self._waiting)
            raise NotFound(
                f"No call or question {id!r} is waiting.",
                remedy=f"Waiting: {known}." if known else "It was answered, it timed out, or its call ended.",
            )
        return found.approval

    def release(self, call: str, *, why: str) -> None:
        """Lets a waiting call continue, because a rule now allows it."""
        for id, one in tuple(self._waiting.items()):
            if one.call == call:
                self._settle(id, ApprovalAnswer(approved=True, why=f"now allowed by {why}"))

    def answer(self, id: str, *, approved: bool | None, content: Mapping[str, Any] | None = None) -> Approval:
        """The owner's answer. `approved` is None if the owner dismisses a form or a page without a choice; `content` is
        that of a form. A wrong answer raises `UsageError` or `InvalidArguments`, and the question keeps waiting."""
        approval = self.find(id)
        mode = "" if approval.question is None else approval.question.mode
        if content is not None and not (approved and mode == "form"):
            raise UsageError("Only the approval of a form has values.", remedy="Leave them out.")
        if approved is None and mode not in ("form", "url"):
            raise UsageError("Only a form or a page can be dismissed.", remedy="Approve or refuse it.")
        result = _result(approval.question, approved=approved, content=content or {})
        self._settle(id, ApprovalAnswer(approved=approved is True, why=_WHY[approved], result=result))
        return approval

    async def next(self, timeout: float) -> tuple[Approval, ...]:
        """The waiting calls, as soon as there is one; empty after the timeout."""
        try:
            async with asyncio.timeout(timeout):
                await self._any.wait()
        except TimeoutError:
            return ()
        return self.waiting()

    def _full(self, agent: str) -> str:
        if sum(one.approval.agent == agent for one in self._waiting.values()) >= MAX_WAITING_PER_AGENT:
            return f"{MAX_WAITING_PER_AGENT} calls of {agent} are already waiting for an answer"
        if len(self._waiting) >= MAX_WAITING:
            return f"{MAX_WAITING} calls are already waiting for an answer"
        return ""

    def _new_id(self) -> str:
        """Random, so that a late answer, even after a restart, does not answer another call."""
        while True:
            made = "a" + "".join(secrets.choice(_LETTERS) for _ in range(4))
            if made not in self._waiting:
                return made

    def _settle(self, id: str, answer: ApprovalAnswer) -> None:
        found = self._waiting.pop(id)
        if not found.answer.done():
            found.answer.set_result(answer)
        self._none_left()

    def _none_left(self) -> None:
        if not self._waiting:
            self._any.clear()

    def _agent_ended(self, event: Event) -> None:
        if isinstance(event, AgentEnded):
            gone = ApprovalAnswer(approved=False, why="the agent ended")
            for one in self.waiting():
                if one.agent == event.agent:
                    self._settle(one.id, gone)


_WHY = {True: "approved by the owner", False: "refused by the owner", None: "dismissed by the owner"}
_ACCEPTED: Mapping[str, Any] = {"action": "accept"}


def _result(
    question: Question | None, *, approved: bool | None, content: Mapping[str, Any]
) -> Mapping[str, Any] | None:
    """What the server gets that asked for a form or a page; None for everything else."""
    mode = "" if question is None else question.mode
    if question is None or mode not in ("form", "url"):
        return None
    if approved is None:
        return CANCEL
    if not approved:
        return DECLINE
    return {"action": "accept", "content": completed(question.schema, content)} if mode == "form" else _ACCEPTED


class OwnerAsker:
    """Asks the owner, for an agent that has nobody at its client. It has no model."""

    capabilities: Mapping[str, Any] = {"elicitation": {"form": {}, "url": {}}}

    def __init__(
        self, approvals: Approvals, agent: str, conversation: str, tell: Callable[[str], None] | None = None
    ) -> None:
        self._approvals = approvals
        self._agent = agent
        self._conversation = conversation
        self._tell = tell

    async def ask(self, question: Question) -> Mapping[str, Any]:
        answer = await self._approvals.ask_question(
            question, agent=self._agent, conversation=self._conversation, tell=self._tell
        )
        if answer.result is None:
            raise QuestionUnanswered
        return answer.result
