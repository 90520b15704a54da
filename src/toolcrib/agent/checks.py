"""Options that cannot work, told before anything is started.

In: a prompt and `AgentOptions`, as a program gave them. Out: nothing, or a `UsageError` that says what to write
instead. `plan` asks. The model's name, its key and its address are checked in `models.place`, the settings' names in
`models.settings`, servers by `Kit`, the history where it is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from toolcrib.agent.options import AgentOptions, Allowed, CodingTools
from toolcrib.crib.counter import Counter
from toolcrib.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Check:
    fits: Callable[[Any], bool]
    remedy: str


def refuse_unusable(prompt: str, options: AgentOptions) -> None:
    if not isinstance(prompt, str) or not prompt.strip() or not _encodes(prompt):
        raise UsageError("There is no prompt.", remedy="Say what the agent shall do, as a text.")
    if not isinstance(options, AgentOptions):
        raise UsageError(
            f"The options are a {type(options).__name__}.", remedy='Give AgentOptions(model="PROVIDER:MODEL", …).'
        )
    for name, check in CHECKS.items():
        value = getattr(options, name)
        if not check.fits(value):
            raise UsageError(f"{name} is {_shown(name, value)}.", remedy=check.remedy)
    if options.crib is not None:
        # It says so if it is not open.
        options.crib.status()


def _shown(name: str, value: Any) -> str:
    """Texts and numbers as they are; of anything else, and of what may be secret, the kind alone."""
    if name not in _SECRET and isinstance(value, str | int | float):
        return repr(value) if len(repr(value)) <= _LONGEST else "too long"
    return "of no use" if isinstance(value, str) else f"a {type(value).__name__}"


_SECRET = frozenset({"api_key", "base_url"})
_LONGEST = 100


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and _encodes(value)


def _is_key(value: Any) -> bool:
    """Whether it can stand in a header."""
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
    return isinstance(chosen, str) and chosen in set(Allowed)


def _is_plain_mapping(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(name, str) for name in value)


_FILTER = "Give a name, a glob, a function of an offer, or a list of these."

CHECKS: Mapping[str, Check] = {
    "model": Check(fits=_is_text, remedy='Write "PROVIDER:MODEL", as "anthropic:claude-sonnet-5-5".'),
    "api_key": Check(fits=_is_key, remedy="A key is one word of ASCII. Look for what was copied along with it."),
    "base_url": Check(fits=lambda value: value is None or _is_text(value), remedy="Write http://… or https://…."),
    "instructions": Check(fits=_is_text, remedy="Give the system prompt as a text, or leave it out."),
    "mcp_servers": Check(
        fits=lambda value: isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping),
        remedy="Give a list of StdioServer(…), HttpServer(…), or what server_config(NAME, {…}) makes of an entry.",
    ),
    "crib": Check(
        fits=lambda value: value is None or isinstance(value, Counter),
        remedy="Give a Crib, a Kit or a Crib.connect(), entered by `async with`.",
    ),
    "keep": Check(fits=_is_filter, remedy=_FILTER),
    "drop": Check(fits=_is_filter, remedy=_FILTER),
    "transform": Check(fits=_is_transform, remedy="Give a list of transformers, such as Rename({…}) or Fix({…})."),
    "coding_tools": Check(
        fits=_is_coding,
        remedy=f"Write one of {', '.join(Allowed)}, or CodingTools.all(FOLDER) or CodingTools.read_only(FOLDER).",
    ),
    "max_steps": Check(fits=lambda value: _is_whole(value, 1), remedy="Give a whole number, 1 or more."),
    "timeout": Check(fits=_is_time, remedy="Give seconds, more than 0, or None."),
    "history": Check(
        fits=lambda value: isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping),
        remedy="Give the `messages` of an earlier run's last event as they were, or none.",
    ),
    "approve": Check(
        fits=lambda value: value is None or callable(value),
        remedy="Give a function of a ToolRequest that says True, False, or why not.",
    ),
    "retries": Check(fits=lambda value: _is_whole(value, 0), remedy="Give a whole number, 0 or more."),
    "settings": Check(fits=_is_plain_mapping, remedy='Give a mapping, as {"temperature": 0}.'),
    "environ": Check(
        fits=lambda value: value is None or _is_plain_mapping(value), remedy="Give a mapping such as os.environ."
    ),
}
"""One for each of the options."""
