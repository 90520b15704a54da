"""Calls that wait for a person's approval.

In: a call whose rule is `ask`, and the person's answer. Out: the answer, to the waiting call. All of this is in memory:
a waiting call ends with the process. `calls.door` asks; the commands answer.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from toolcrib.config.masking import mask_tree
from toolcrib.errors import NotFound
from toolcrib.events import AgentEnded, ApprovalsChanged, Bus, Event

ANSWER_SECONDS = 45.0
"""Seconds for an answer: clients give up on a call after a minute."""
MAX_WAITING_PER_AGENT = 20
MAX_WAITING = 200
"""The maximum number of waiting calls, per agent and in total."""

_LETTERS = "bcdfghjkmnpqrstvwxz23456789"
"""No two look alike, and they form no words."""


SHOWN = 64 * 1024
"""Bytes of each call's arguments in the list of waiting calls; `whole` shows all of them."""
_SEAM = 4096
"""Bytes read beyond the cut, so that a secret across it is masked."""


@dataclass(frozen=True, kw_only=True)
class Approval:
    """A waiting call."""

    id: str
    agent: str
    conversation: str
    tool: str
    """`server:tool`."""
    rule: str
    """The rule that requires the approval."""
    arguments: bytes = field(repr=False)
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


@dataclass(kw_only=True)
class _Waiting:
    call: str
    approval: Approval
    answer: asyncio.Future[ApprovalAnswer] = field(repr=False)


class Approvals:
    def __init__(
        self, bus: Bus, *, limit: float = ANSWER_SECONDS, mask: Callable[[str], str] = lambda text: text
    ) -> None:
        self._bus = bus
        self._limit = limit
        self._mask = mask
        self._waiting: dict[str, _Waiting] = {}
        self._any = asyncio.Event()
        bus.subscribe(self._agent_ended, AgentEnded)

    async def ask(
        self, *, call: str, agent: str, conversation: str, tool: str, rule: str, arguments: bytes, besides: bytes = b""
    ) -> ApprovalAnswer:
        """Waits for a person. Without an answer in time, or with too many waiting calls, it refuses."""
        if full := self._full(agent):
            return ApprovalAnswer(approved=False, why=full, remedy="Wait until some are answered.")
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
        answer: asyncio.Future[ApprovalAnswer] = asyncio.get_running_loop().create_future()
        self._waiting[approval.id] = _Waiting(call=call, approval=approval, answer=answer)
        self._any.set()
        self._bus.publish(ApprovalsChanged())
        try:
            async with asyncio.timeout(self._limit):
                return await answer
        except TimeoutError:
            return ApprovalAnswer(
                approved=False,
                why=f"there was no answer within {self._limit:g} s",
                remedy="Ask the owner to look at `toolcrib approvals`, then call again.",
            )
        finally:
            self._waiting.pop(approval.id, None)
            self._none_left()
            self._bus.publish(ApprovalsChanged())

    def close(self) -> None:
        """Refuses all waiting calls, because the process stops."""
        for one in self.waiting():
            self._settle(
                one.id,
                ApprovalAnswer(approved=False, why="Toolcrib is stopping", remedy="Call again after it restarts."),
            )

    def waiting(self) -> tuple[Approval, ...]:
        """Waiting calls, oldest first."""
        return tuple(one.approval for one in self._waiting.values())

    def shown(self, sent: bytes, *, whole: bool) -> Any:
        """What is sent, as the person sees it: only known secrets are masked, and each mask names the secret."""
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
                f"No call {id!r} is waiting for an answer.",
                remedy=f"Waiting: {known}." if known else "No calls are waiting: it was answered, or it timed out.",
            )
        return found.approval

    def release(self, call: str, *, why: str) -> None:
        """Lets a waiting call continue, because a rule now allows it."""
        for id, one in tuple(self._waiting.items()):
            if one.call == call:
                self._settle(id, ApprovalAnswer(approved=True, why=f"now allowed by {why}"))

    def answer(self, id: str, *, approved: bool) -> Approval:
        approval = self.find(id)
        why = "approved by the owner" if approved else "refused by the owner"
        self._settle(id, ApprovalAnswer(approved=approved, why=why))
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
