"""Calls that wait for a person's word.

In: a call whose rule says "ask", and what the person answers. Out: the answer, to the call that waits for it. All of
it is in memory: a call that waits ends with the process, and with it the question. `calls.door` asks, the commands
answer.
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
from toolcrib.events import AgentEnded, Bus, Event

ANSWER_SECONDS = 45.0
"""Seconds for an answer: clients give up on a call after a minute."""
MAX_WAITING_PER_AGENT = 20
MAX_WAITING = 200
"""Calls that may wait, of one agent and of all."""

_LETTERS = "bcdfghjkmnpqrstvwxz23456789"
"""No two that look alike, and none that make words."""


SHOWN = 64 * 1024
"""Bytes of arguments that a list of waiting calls shows; more is shown of one call at a time."""
_SEAM = 4096
"""Bytes that are looked at behind the cut, so that a secret which lies across it is hidden."""


@dataclass(frozen=True, kw_only=True)
class Approval:
    """A call that waits."""

    id: str
    agent: str
    conversation: str
    tool: str
    """`server:tool`."""
    rule: str
    """Why a person is asked."""
    arguments: bytes = field(repr=False)
    """The very bytes that the server gets once a person says yes."""
    besides: bytes = field(default=b"", repr=False)
    """The other params and the `_meta` that the server gets with them, as one object; empty: none."""
    asked_at: float
    until: float


@dataclass(frozen=True, kw_only=True)
class ApprovalAnswer:
    approved: bool
    why: str
    remedy: str = ""
    """What the caller can do about a no."""


@dataclass(kw_only=True)
class _Waiting:
    call: str
    approval: Approval
    answer: asyncio.Future[ApprovalAnswer] = field(repr=False)


class Approvals:
    def __init__(
        self, bus: Bus, *, limit: float = ANSWER_SECONDS, mask: Callable[[str], str] = lambda text: text
    ) -> None:
        self._limit = limit
        self._mask = mask
        self._waiting: dict[str, _Waiting] = {}
        self._any = asyncio.Event()
        bus.subscribe(self._agent_ended, AgentEnded)

    async def ask(
        self, *, call: str, agent: str, conversation: str, tool: str, rule: str, arguments: bytes, besides: bytes = b""
    ) -> ApprovalAnswer:
        """Waits for a person. No answer in time, or no room to wait, is a no."""
        if full := self._full(agent):
            return ApprovalAnswer(approved=False, why=full, remedy="Wait until some of them are answered.")
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
        try:
            async with asyncio.timeout(self._limit):
                return await answer
        except TimeoutError:
            return ApprovalAnswer(
                approved=False,
                why=f"nobody answered within {self._limit:g} s",
                remedy="Ask the owner to look at `toolcrib approvals`, then call again.",
            )
        finally:
            self._waiting.pop(approval.id, None)
            self._none_left()

    def close(self) -> None:
        """Nobody will answer any more: all who wait are told so."""
        for one in self.waiting():
            self._settle(
                one.id,
                ApprovalAnswer(approved=False, why="Toolcrib is stopping", remedy="Call again when it runs again."),
            )

    def waiting(self) -> tuple[Approval, ...]:
        """Who asked first comes first."""
        return tuple(one.approval for one in self._waiting.values())

    def shown(self, sent: bytes, *, whole: bool) -> Any:
        """What is sent, for the person's eyes: only known secrets are masked, and each mask says whose."""
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
                f"No call {id!r} waits for an answer.",
                remedy=f"Waiting: {known}." if known else "None waits now: it was answered, or its time is over.",
            )
        return found.approval

    def release(self, call: str, *, why: str) -> None:
        """The call need not wait any more: a rule allows it now."""
        for id, one in tuple(self._waiting.items()):
            if one.call == call:
                self._settle(id, ApprovalAnswer(approved=True, why=f"allowed meanwhile by {why}"))

    def answer(self, id: str, *, approved: bool) -> Approval:
        approval = self.find(id)
        why = "approved by the owner" if approved else "refused by the owner"
        self._settle(id, ApprovalAnswer(approved=approved, why=why))
        return approval

    async def next(self, timeout: float) -> tuple[Approval, ...]:
        """What waits, as soon as anything does; nothing, if nothing came in time."""
        try:
            async with asyncio.timeout(timeout):
                await self._any.wait()
        except TimeoutError:
            return ()
        return self.waiting()

    def _full(self, agent: str) -> str:
        if sum(one.approval.agent == agent for one in self._waiting.values()) >= MAX_WAITING_PER_AGENT:
            return f"{MAX_WAITING_PER_AGENT} calls of {agent} wait for an answer already"
        if len(self._waiting) >= MAX_WAITING:
            return f"{MAX_WAITING} calls wait for an answer already"
        return ""

    def _new_id(self) -> str:
        """Never the same again, also after a restart: who answers late must not answer another question."""
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
            gone = ApprovalAnswer(approved=False, why="the agent ended meanwhile")
            for one in self.waiting():
                if one.agent == event.agent:
                    self._settle(one.id, gone)
