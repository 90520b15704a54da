"""The tools of a run as pydantic-ai has them.

In: what is supplied. Out: a toolset that takes the model's arguments as they are written, since the tool's own way
checks them, and whose calls never end the run: a failure goes back to the model. `loop` gives it to the agent.
"""

from __future__ import annotations

import sys
from typing import Any

from pydantic_ai.exceptions import ToolFailedError
from pydantic_ai.messages import ToolReturnPart
from pydantic_ai.tools import RunContext, ToolDefinition, ToolDenied
from pydantic_ai.toolsets import AbstractToolset, ToolsetTool

from toolcrib.agent.calling import Calling
from toolcrib.agent.content import content, text
from toolcrib.agent.models.place import Format
from toolcrib.agent.tally import Tally
from toolcrib.agent_events import ToolStatus

GIVEN = "given"
NO_LIMIT = sys.maxsize
"""How often a model may err: `max_steps` is what bounds a run."""


class Toolset(AbstractToolset[None]):
    def __init__(self, calling: Calling, tally: Tally, form: Format) -> None:
        self._calling = calling
        self._tally = tally
        self._form = form
        self._tools = {name: self._tool(name) for name in calling.tools}

    @property
    def id(self) -> str:
        return "toolcrib"

    def _tool(self, name: str) -> ToolsetTool[None]:
        offer = self._calling.tools[name].offer
        definition = ToolDefinition(
            name=name, description=offer.description, parameters_json_schema=dict(offer.schema), strict=False
        )
        return ToolsetTool(toolset=self, tool_def=definition, max_retries=NO_LIMIT, args_validator=_AsGiven())

    async def get_tools(self, ctx: RunContext[None]) -> dict[str, ToolsetTool[None]]:
        return self._tools

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[None], tool: ToolsetTool[None]
    ) -> Any:
        call = ctx.tool_call_id or ""
        outcome = await self._calling.call(name, tool_args[GIVEN], call)
        told = content(outcome, self._form)
        self._tally.ended(call, outcome, text(told))
        if outcome.status is ToolStatus.OK:
            return told
        if outcome.status is ToolStatus.DENIED:
            return ToolDenied(text(told))
        raise ToolFailedError(ToolReturnPart(tool_name=name, content=told, tool_call_id=call, outcome="failed"))


class _AsGiven:
    """Takes all that a model writes, be it JSON or not."""

    def validate_json(self, input: str | bytes | bytearray, **_: Any) -> dict[str, Any]:
        return {GIVEN: input}

    def validate_python(self, input: Any, **_: Any) -> dict[str, Any]:
        return {GIVEN: input}
