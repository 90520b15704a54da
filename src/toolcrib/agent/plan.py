"""What a run shall be, checked before anything is started.

In: a prompt and `AgentOptions`. Out: a `Plan`, or a `UsageError` that says what to write instead. `run` makes it,
`course` carries it out.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolcrib.agent.models.place import Place, place
from toolcrib.agent.options import CONNECT_LIMIT, AgentOptions, Allowed, CodingTools
from toolcrib.crib.kit import Kit
from toolcrib.errors import UsageError

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
    if not isinstance(prompt, str) or not prompt.strip():
        raise UsageError("There is no prompt.", remedy="Say what the agent shall do.")
    _check_numbers(options)
    where = place(options)
    return Plan(
        prompt=prompt,
        options=options,
        place=where,
        past=await _past(options) if options.history else (),
        coding=_coding(options.coding_tools),
        kit=Kit(options.mcp_servers, connect_limit=CONNECT_LIMIT) if options.mcp_servers else None,
    )


def _check_numbers(options: AgentOptions) -> None:
    if not _is_number(options.max_steps, int) or options.max_steps < 1:
        raise UsageError(f"max_steps is {options.max_steps!r}.", remedy="Give the run one step at least.")
    if not _is_number(options.retries, int) or options.retries < 0:
        raise UsageError(f"retries is {options.retries!r}.", remedy="Give a whole number, 0 or more.")
    if options.timeout is not None and not (_is_number(options.timeout, int, float) and options.timeout > 0):
        raise UsageError(f"timeout is {options.timeout!r}.", remedy="Give seconds, more than 0, or None.")


def _is_number(value: Any, *kinds: type) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool)


async def _past(options: AgentOptions) -> Sequence[ModelMessage]:
    # A second's work the first time, so not done in the event loop.
    history = await asyncio.to_thread(importlib.import_module, "toolcrib.agent.history")
    past: Sequence[ModelMessage] = history.read(options.history)
    return past


def _coding(choice: CodingTools | Allowed | str) -> CodingTools | None:
    if not isinstance(choice, CodingTools):
        try:
            choice = CodingTools(allowed=Allowed(choice), root=Path.cwd())
        except ValueError:
            raise UsageError(
                f"coding_tools is {choice!r}.",
                remedy=f"Write one of {', '.join(Allowed)}, or CodingTools.all(FOLDER) or .read_only(FOLDER).",
            ) from None
    return None if choice.allowed is Allowed.NONE else choice
