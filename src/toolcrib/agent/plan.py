"""What a run shall be, checked before anything is started.

In: a prompt and `AgentOptions`. Out: a `Plan`, or a `UsageError` that says what to write instead. `run` makes it,
`course` carries it out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from toolcrib.agent import checks
from toolcrib.agent.models import settings
from toolcrib.agent.models.loading import loaded
from toolcrib.agent.models.place import Place, place
from toolcrib.agent.options import CONNECT_LIMIT, AgentOptions, Allowed, CodingTools
from toolcrib.catalog.filters import kept
from toolcrib.crib.kit import Kit

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage


@dataclass(frozen=True, kw_only=True)
class Plan:
    prompt: str
    options: AgentOptions
    place: Place
    past: Sequence[ModelMessage]
    coding: CodingTools | None
    kit: Kit | None
    """Made, and not yet entered."""


async def planned(prompt: str, options: AgentOptions) -> Plan:
    checks.refuse_unusable(prompt, options)
    where = place(options)
    options = _gone_through_once(options)
    kit = Kit(options.mcp_servers, connect_limit=CONNECT_LIMIT) if options.mcp_servers else None
    # What is loaded for these takes a second the first time, so it is not done in the event loop.
    if options.settings:
        await asyncio.to_thread(settings.refuse_unusable, options.settings, where.provider)
    past: Sequence[ModelMessage] = ()
    if options.history:
        history = await asyncio.to_thread(loaded, "toolcrib.agent.history")
        past = history.read(options.history)
    return Plan(prompt=prompt, options=options, place=where, past=past, coding=_coding(options.coding_tools), kit=kit)


def _gone_through_once(options: AgentOptions) -> AgentOptions:
    """Whatever can be read but once is read here; the run looks at it more than once."""
    return replace(
        options,
        mcp_servers=tuple(options.mcp_servers),
        keep=None if options.keep is None else kept(options.keep),
        drop=None if options.drop is None else kept(options.drop),
        history=tuple(options.history),
    )


def _coding(choice: CodingTools | Allowed | str) -> CodingTools | None:
    if not isinstance(choice, CodingTools):
        choice = CodingTools(allowed=Allowed(choice), root=Path.cwd())
    return None if choice.allowed == Allowed.NONE else replace(choice, allowed=Allowed(choice.allowed))
