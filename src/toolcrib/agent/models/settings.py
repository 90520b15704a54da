"""What a model is asked with, checked.

In: the `settings` of `AgentOptions`, and the provider they are for. Out: nothing, or a `UsageError` for a name that
nobody knows, or a value of the wrong kind. pydantic-ai takes both silently, and asks the model without. `plan` asks.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from toolcrib.agent.models.loading import loaded
from toolcrib.errors import UsageError

if TYPE_CHECKING:
    from toolcrib.agent.models.place import Provider

_NUMBERS = frozenset({"temperature", "top_p", "presence_penalty", "frequency_penalty", "timeout"})
_WHOLE = frozenset({"max_tokens", "top_k", "seed"})
_NEAREST = 3


def refuse_unusable(settings: Mapping[str, Any], provider: Provider) -> None:
    """Loads the provider's SDK, which takes a second the first time."""
    if not settings:
        return
    for name, value in settings.items():
        if name in _NUMBERS | _WHOLE and not _is_number(value, name):
            kind = "a whole number" if name in _WHOLE else "a number"
            raise UsageError(f"settings: {name} is {value!r}.", remedy=f"Give {kind}.")
    known = loaded(f"toolcrib.agent.models.{provider.module}").SETTINGS[provider.name]
    for name in settings:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=_NEAREST)
            raise UsageError(
                f"settings: there is no {name!r} for {provider.name}.",
                remedy=f"Did you mean {' or '.join(near)}?" if near else f"There are: {', '.join(sorted(known))}.",
                data={"nearest": near},
            )


def _is_number(value: Any, name: str) -> bool:
    kinds = int if name in _WHOLE else int | float
    return isinstance(value, kinds) and not isinstance(value, bool)
