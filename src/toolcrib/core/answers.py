"""A program's answers to what servers ask.

In: a server's question, and the program's function. Out: the answer in MCP's form, checked against the form's schema.
`Kit`, `Crib` and `Connection` take such a function for their calls, `run_agent` for those of a run, and `CodeAgent` for
the questions of its agent.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from toolcrib.errors import InvalidArguments
from toolcrib.servers.form import FormField, completed, form_fields
from toolcrib.servers.question_checks import host_of
from toolcrib.servers.questions import CANCEL, DECLINE, Question

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ServerQuestion:
    """What a server asks during a call: to fill in a form, or to open a page."""

    server: str
    tool: str
    """`server:tool`: the call during which it asks."""
    message: str
    """The server's text, with the server's name in front."""
    schema: Mapping[str, Any] = field(default_factory=dict)
    """The form's JSON Schema; empty for a page."""
    url: str = ""
    """The page, which Toolcrib never opens; empty for a form."""

    @property
    def fields(self) -> tuple[FormField, ...]:
        """The form's fields."""
        return form_fields(self.schema)

    @property
    def host(self) -> str:
        """The page's host."""
        return host_of(self.url)

    @classmethod
    def of(cls, server: str, tool: str, params: Mapping[str, Any]) -> ServerQuestion:
        schema, url = params.get("requestedSchema"), params.get("url")
        return cls(
            server=server,
            tool=tool,
            message=str(params.get("message", "")),
            schema=schema if isinstance(schema, dict) else {},
            url=url if isinstance(url, str) else "",
        )


AnswerValue = Mapping[str, Any] | bool | None
Answer = Callable[[ServerQuestion], AnswerValue | Awaitable[AnswerValue]]
"""Returns the form's values to accept it; fields that are left out get their defaults. True accepts a page, or a form
with its defaults. False declines. None dismisses the question without a choice."""


class ProgramAsker:
    """Asks the program, one question at a time."""

    capabilities: Mapping[str, Any] = {"elicitation": {"form": {}, "url": {}}}

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._one_at_a_time = asyncio.Lock()

    async def ask(self, question: Question) -> Mapping[str, Any]:
        return await self.answered(ServerQuestion.of(question.server, question.tool, question.params))

    async def answered(self, question: ServerQuestion) -> Mapping[str, Any]:
        """The result for the server. If the program's function fails, or its values don't fit the form, the question is
        cancelled and the log has a warning."""
        async with self._one_at_a_time:
            try:
                value = self._answer(question)
                return _result(question, await value if inspect.isawaitable(value) else value)
            except InvalidArguments as error:
                # Its message contains what was answered.
                log.warning(
                    "the question of server '%s' was cancelled: its answer does not fit. %s",
                    question.server,
                    error.remedy,
                )
            except Exception:
                log.warning(
                    "the question of server '%s' was cancelled: `answer` failed", question.server, exc_info=True
                )
        return CANCEL


def _result(question: ServerQuestion, value: Any) -> Mapping[str, Any]:
    if value is None:
        return CANCEL
    if value is False:
        return DECLINE
    if value is True and question.url:
        return {"action": "accept"}
    if question.url or not (value is True or isinstance(value, Mapping)):
        raise InvalidArguments(
            f"`answer` returned a {type(value).__name__}.",
            remedy="Return True for a page, the values of a form as a mapping, False to decline, or None.",
        )
    return {"action": "accept", "content": completed(question.schema, {} if value is True else value)}


answering: ContextVar[ProgramAsker | None] = ContextVar("answering", default=None)
"""The asker of a run, for all calls in its tasks, also those of a provider that the run did not create."""


def program_asker(answer: Answer | None) -> ProgramAsker | None:
    return None if answer is None else ProgramAsker(answer)
