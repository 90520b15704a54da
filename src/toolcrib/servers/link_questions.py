"""The questions of one connection to a legacy server, and the calls that they may belong to.

In: a request of the server, and the calls in flight. Out: the answer, from the caller of the right call if there is
one; pages that the server wants to be opened. `link` has one for each connection; `questions` settles each question.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec

from toolcrib.config.model import ServerConfig
from toolcrib.servers.model import ServerAnswer, ToolCall
from toolcrib.servers.question_checks import quoted
from toolcrib.servers.questions import (
    ELICITATION,
    INPUT_RESPONSES,
    MAX_QUESTIONS,
    NOBODY,
    PASSED_ON,
    RELATED_TASK,
    ROOTS,
    CallAsker,
    PassedQuestions,
    Question,
    QuestionRefused,
    can_answer,
    offered_capabilities,
    prepared,
    settled,
    unasked,
)

log = logging.getLogger(__name__)

URL_ELICITATION_REQUIRED = -32042
"""The error code of 2025-11-25 for a call that needs a page to be opened first. 2026-07-28 has none."""
ELICITATION_COMPLETE = "notifications/elicitation/complete"
MAX_QUESTIONS_OF_CALL = 32
"""During one call, each after the last one's answer."""
_LOOKS = 0.02
"""Seconds between two looks whether a call has ended."""
_LONGEST_ID = 256
_MAX_PAGES = 1000


class Clock(Protocol):
    """The time limit of a call, which stands still while a person is asked."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...


class OpenCall:
    """A call in flight that questions may belong to."""

    __slots__ = ("agent", "asker", "clock", "ended", "pending", "questions", "task")

    def __init__(self, agent: str, asker: CallAsker | None, clock: Clock, task: str = "") -> None:
        self.agent = agent
        self.asker = asker
        self.clock = clock
        self.task = task
        """The server's id of the task whose result it waits for."""
        self.questions = 0
        """How many the server has asked."""
        self.pending: set[asyncio.Task[None]] = set()
        """Questions being answered."""
        self.ended = False

    def end(self) -> None:
        """Questions that are still open have no reader any more."""
        self.ended = True
        for question in tuple(self.pending):
            question.cancel()


class ServerQuestions:
    """The questions of one connection to a legacy server, and the calls that they may belong to."""

    def __init__(self, config: ServerConfig, root: Path | None, on_untagged: Callable[[], None]) -> None:
        """`on_untagged` is called for a question that names no call."""
        self.config = config
        self._root = root
        self._on_untagged = on_untagged
        self.calls: dict[str, OpenCall] = {}
        """By the id of our request."""
        self._pages: dict[str, str] = {}
        """Who was last asked to open a page, by the server's id of the question."""

    @property
    def capabilities(self) -> dict[str, Any]:
        """What the server is told when the connection begins, before any caller is known."""
        return offered_capabilities(self.config, None)

    def call_of(self, method: str, params: Mapping[str, Any], request_id: str) -> OpenCall | None:
        """The call that a question belongs to. On a shared stream it names none: if one call is in flight, it is about
        this one; otherwise nobody can be asked, because one agent may be used by several clients."""
        if request_id:
            found = self.calls.get(request_id)
        elif task := _related_task(params):
            found = next((call for call in self.calls.values() if call.task == task), None)
        else:
            if method != ROOTS:
                self._on_untagged()
            # Questions about a task say so.
            others = [call for call in self.calls.values() if not call.task] or [*self.calls.values()]
            found = others[0] if len(others) == 1 else None
        return None if found is None or found.ended else found

    async def only_live_calls(self) -> None:
        """Waits until no question can be about a call that was abandoned."""
        while any(call.ended for call in self.calls.values()):  # noqa: ASYNC110 - rare and short
            await asyncio.sleep(_LOOKS)

    async def answer(
        self,
        method: str,
        params: Mapping[str, Any],
        call: OpenCall | None,
        charge: Callable[[float], None] = lambda seconds: None,
    ) -> Mapping[str, Any]:
        """`charge` gets the time that the question's checks took. Raises `QuestionRefused`."""
        began = time.thread_time()
        try:
            question = prepared(self.config, method, params, None if call is None else call.asker)
        finally:
            charge(time.thread_time() - began)
        if call is None:
            return await self._answer_for_nobody(question)
        call.questions += 1
        if call.questions > MAX_QUESTIONS_OF_CALL:
            raise QuestionRefused(
                f"Server '{self.config.name}' asked more than {MAX_QUESTIONS_OF_CALL} questions during one call."
            )
        self._remember_page(question, call.agent)
        call.clock.pause()
        try:
            return await settled(self.config, question, call.asker, self._root)
        finally:
            call.clock.resume()

    async def _answer_for_nobody(self, question: Question) -> Mapping[str, Any]:
        callers = [call.asker for call in self.calls.values() if call.asker is not None and not call.ended]
        if question.method == ROOTS:
            roots = {asker.root for asker in callers}
            common = roots.pop() if len(roots) == 1 else None
            return await settled(self.config, question, None, self._root or common)
        for asker in callers:
            asker.note(question, NOBODY)
        why = "while several calls were running" if callers else "while no call was running"
        log.warning("%s: it asked a question %s, so nobody could be asked", self.config.name, why)
        return unasked(self.config, question, self._root)

    def _remember_page(self, question: Question, agent: str) -> None:
        page = question.params.get("elicitationId")
        if question.mode == "url" and isinstance(page, str) and len(page) <= _LONGEST_ID:
            self._pages.pop(page, None)
            self._pages[page] = agent
            if len(self._pages) > _MAX_PAGES:
                del self._pages[next(iter(self._pages))]

    def asked_to_open(self, params: Mapping[str, Any]) -> str | None:
        """The agent that a server's report about a completed page is for."""
        page = params.get("elicitationId")
        return self._pages.get(page) if isinstance(page, str) else None

    def required_pages(self, error: bytes, call: ToolCall) -> ServerAnswer:
        """The answer to a call before which pages must be opened: the server's error with its name on each page. A
        modern client, whose protocol has no such error, is asked first. Raises `QuestionRefused`."""
        try:
            if msgspec.json.decode(error, type=_Coded).code != URL_ELICITATION_REQUIRED:
                return ServerAnswer(error=error)
        except (msgspec.MsgspecError, RecursionError):
            return ServerAnswer(error=error)
        try:
            required = msgspec.json.decode(error, type=_PagesRequired)
        except (msgspec.MsgspecError, RecursionError) as fault:
            raise QuestionRefused(
                f"Server '{self.config.name}' asked to open pages in an invalid form: {fault}."
            ) from None
        if not required.data.elicitations:
            return ServerAnswer(error=error)
        if len(required.data.elicitations) > MAX_QUESTIONS:
            raise QuestionRefused(f"Server '{self.config.name}' asked to open more than {MAX_QUESTIONS} pages.")
        wanted = ({**params, "mode": "url"} for params in required.data.elicitations)
        pages = [prepared(self.config, ELICITATION, params, call.asker) for params in wanted]
        for question in pages:
            self._remember_page(question, call.agent)
        asker, is_first = call.asker, INPUT_RESPONSES not in call.params
        if asker is not None:
            able = call.takes_input and all(can_answer(asker.capabilities, question) for question in pages)
            if able and is_first:
                questions = {f"page_{number}": question for number, question in enumerate(pages, 1)}
                return ServerAnswer(questions=PassedQuestions(questions, {}, None))
            for question in pages:
                asker.note(question, PASSED_ON)
        data = {"elicitations": [question.client_params for question in pages]}
        named = {"code": URL_ELICITATION_REQUIRED, "message": quoted(required.message), "data": data}
        return ServerAnswer(error=msgspec.json.encode(named))


class _Pages(msgspec.Struct):
    elicitations: list[dict[str, Any]] = []


class _Coded(msgspec.Struct):
    code: float
    """Some clients read -32042.0 as the same code."""


class _PagesRequired(msgspec.Struct):
    message: str = ""
    data: _Pages = msgspec.field(default_factory=_Pages)


def _related_task(params: Mapping[str, Any]) -> str:
    meta = params.get("_meta")
    related = meta.get(RELATED_TASK) if isinstance(meta, Mapping) else None
    task = related.get("taskId") if isinstance(related, Mapping) else None
    return task if isinstance(task, str) else ""
