"""Checks the options of a run before anything starts.

In: a prompt and `AgentOptions` from a program. Out: a `RunSetup`, or a `UsageError` with a remedy. The model's
name, key and address are checked in `models.endpoint`, servers by `Kit`, the history in `messages`. `run` calls it.
"""

from __future__ import annotations

import asyncio
import difflib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolcrib.agent_loop.models.endpoint import ModelEndpoint, find_endpoint, load_module
from toolcrib.agent_loop.options import CONNECT_LIMIT, AgentOptions, CodingAccess, CodingTools
from toolcrib.catalog.offered_tool import reusable_filter
from toolcrib.core.kit import Kit
from toolcrib.core.provider import ToolProvider
from toolcrib.errors import UsageError

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage

    from toolcrib.agent_loop.models.endpoint import ModelProvider


@dataclass(frozen=True, kw_only=True)
class OptionCheck:
    fits: Callable[[Any], bool]
    remedy: str


def check_options(prompt: str, options: AgentOptions) -> None:
    if not isinstance(prompt, str) or not prompt.strip() or not _encodes(prompt):
        raise UsageError("There is no prompt.", remedy="Pass the agent's task as a string.")
    if not isinstance(options, AgentOptions):
        raise UsageError(
            f"options must be AgentOptions, not {type(options).__name__}.",
            remedy='Pass AgentOptions(model="PROVIDER:MODEL", …).',
        )
    for name, check in CHECKS.items():
        value = getattr(options, name)
        if not check.fits(value):
            raise UsageError(f"{name} is {_shown(name, value)}.", remedy=check.remedy)
    if options.crib is not None:
        # Raises if it is not open.
        options.crib.status()


def _shown(name: str, value: Any) -> str:
    """Strings and numbers as they are; only the type of other values and of possible secrets."""
    if name not in _SECRET and isinstance(value, str | int | float):
        return repr(value) if len(repr(value)) <= _MAX_SHOWN_LENGTH else "too long"
    return "not valid" if isinstance(value, str) else f"a {type(value).__name__}"


_SECRET = frozenset({"api_key", "base_url"})
_MAX_SHOWN_LENGTH = 100


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and _encodes(value)


def _is_key(value: Any) -> bool:
    """Whether an HTTP header can contain it."""
    return value is None or (isinstance(value, str) and value.strip().isascii() and value.strip().isprintable())


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_time(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and value is not True and 0 < value < math.inf)


def _is_filter(value: Any) -> bool:
    if value is None or isinstance(value, str) or callable(value):
        return True
    if isinstance(value, list | tuple | set | frozenset):
        return all(one is not None and _is_filter(one) for one in value)
    return isinstance(value, Iterable) and not isinstance(value, bytes | Mapping)


def _is_transform(value: Any) -> bool:
    return callable(value) or (isinstance(value, list | tuple) and all(map(callable, value)))


def _is_coding(value: Any) -> bool:
    chosen = value.allowed if isinstance(value, CodingTools) else value
    return isinstance(chosen, str) and chosen in set(CodingAccess)


def _is_plain_mapping(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(name, str) for name in value)


_FILTER = "Pass a name, a glob, a function that takes an OfferedTool, or a list of these."

CHECKS: Mapping[str, OptionCheck] = {
    "model": OptionCheck(fits=_is_text, remedy='Write "PROVIDER:MODEL", such as "anthropic:claude-sonnet-5-5".'),
    "api_key": OptionCheck(fits=_is_key, remedy="A key is ASCII without spaces. Check for extra characters."),
    "base_url": OptionCheck(fits=lambda value: value is None or _is_text(value), remedy="Write http://… or https://…."),
    "instructions": OptionCheck(fits=_is_text, remedy="Pass the system prompt as a string, or leave it out."),
    "mcp_servers": OptionCheck(
        fits=lambda value: isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping),
        remedy="Pass a list of StdioServer(…), HttpServer(…), or server_config(NAME, {…}).",
    ),
    "crib": OptionCheck(
        fits=lambda value: value is None or isinstance(value, ToolProvider),
        remedy="Pass a Crib, a Kit or a Crib.connect(), entered by `async with`.",
    ),
    "keep": OptionCheck(fits=_is_filter, remedy=_FILTER),
    "drop": OptionCheck(fits=_is_filter, remedy=_FILTER),
    "transform": OptionCheck(
        fits=_is_transform, remedy="Pass a list of transforms, such as RenameTools({…}) or FixArguments({…})."
    ),
    "coding_tools": OptionCheck(
        fits=_is_coding,
        remedy=f"Write one of {', '.join(CodingAccess)}, or CodingTools.all(FOLDER) or CodingTools.read_only(FOLDER).",
    ),
    "max_steps": OptionCheck(fits=lambda value: _is_whole(value, 1), remedy="Pass a whole number, 1 or more."),
    "timeout": OptionCheck(fits=_is_time, remedy="Pass a number of seconds greater than 0, or None."),
    "history": OptionCheck(
        fits=lambda value: isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping),
        remedy="Pass the `messages` of an earlier run's last event unchanged, or nothing.",
    ),
    "approve": OptionCheck(
        fits=lambda value: value is None or callable(value),
        remedy="Pass a function that takes a ToolRequest and returns True, False, or a reason.",
    ),
    "answer": OptionCheck(
        fits=lambda value: value is None or callable(value),
        remedy="Pass a function that takes a ServerQuestion and returns the form's values, True, False or None.",
    ),
    "retries": OptionCheck(fits=lambda value: _is_whole(value, 0), remedy="Pass a whole number, 0 or more."),
    "settings": OptionCheck(fits=_is_plain_mapping, remedy='Pass a mapping, such as {"temperature": 0}.'),
    "environ": OptionCheck(
        fits=lambda value: value is None or _is_plain_mapping(value), remedy="Pass a mapping such as os.environ."
    ),
}


_NUMBERS = frozenset({"temperature", "top_p", "presence_penalty", "frequency_penalty", "timeout"})
_WHOLE = frozenset({"max_tokens", "top_k", "seed"})
_NEAREST = 3


def check_settings(settings: Mapping[str, Any], provider: ModelProvider) -> None:
    """Loads the provider's SDK, which takes a second the first time."""
    if not settings:
        return
    for name, value in settings.items():
        if name in _NUMBERS | _WHOLE and not _is_number(value, name):
            kind = "a whole number" if name in _WHOLE else "a number"
            raise UsageError(f"settings: {name} is {value!r}.", remedy=f"Pass {kind}.")
    known = load_module(f"models.{provider.module}").SETTINGS[provider.name]
    for name in settings:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=_NEAREST)
            raise UsageError(
                f"settings: {provider.name} has no {name!r}.",
                remedy=f"Did you mean {' or '.join(near)}?" if near else f"Available: {', '.join(sorted(known))}.",
                data={"nearest": near},
            )


def _is_number(value: Any, name: str) -> bool:
    kinds = int if name in _WHOLE else int | float
    return isinstance(value, kinds) and not isinstance(value, bool)


@dataclass(frozen=True, kw_only=True)
class RunSetup:
    prompt: str
    options: AgentOptions
    endpoint: ModelEndpoint
    past: Sequence[ModelMessage]
    coding: CodingTools | None
    kit: Kit | None
    """Not yet entered."""


async def prepare_run(prompt: str, options: AgentOptions) -> RunSetup:
    check_options(prompt, options)
    endpoint = find_endpoint(options)
    options = _read_once(options)
    kit = Kit(options.mcp_servers, connect_limit=CONNECT_LIMIT) if options.mcp_servers else None
    # Loading their modules takes a second the first time, so use a thread.
    if options.settings:
        await asyncio.to_thread(check_settings, options.settings, endpoint.provider)
    past: Sequence[ModelMessage] = ()
    if options.history:
        messages = await asyncio.to_thread(load_module, "messages")
        past = messages.read_history(options.history)
    return RunSetup(
        prompt=prompt, options=options, endpoint=endpoint, past=past, coding=_coding(options.coding_tools), kit=kit
    )


def _read_once(options: AgentOptions) -> AgentOptions:
    """Copies iterators, since the run reads these options more than once."""
    return replace(
        options,
        mcp_servers=tuple(options.mcp_servers),
        keep=None if options.keep is None else reusable_filter(options.keep),
        drop=None if options.drop is None else reusable_filter(options.drop),
        history=tuple(options.history),
    )


def _coding(choice: CodingTools | CodingAccess | str) -> CodingTools | None:
    if not isinstance(choice, CodingTools):
        choice = CodingTools(allowed=CodingAccess(choice), root=Path.cwd())
    return None if choice.allowed == CodingAccess.NONE else replace(choice, allowed=CodingAccess(choice.allowed))
