"""A tool's provider options in its wire definition.

In: a wire definition and what `Options` asked for. Out: both, merged deeply. What the tool is (its name, words and
schema) cannot be given this way: transformers change that, and a call undoes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolcrib.catalog.offer import Offer
from toolcrib.errors import ConfigError

_NOT_OPTIONS = frozenset({"name", "description", "parameters", "input_schema", "type"}) | frozenset(
    {"parametersJsonSchema", "parameters_json_schema"}
)


def options_of(offer: Offer, provider: str) -> dict[str, Any]:
    """Raises `ConfigError` for one that would overwrite what the tool is."""
    options = dict(offer.options.get(provider, {}))
    inner = options.get("function")
    if inner is not None and not isinstance(inner, Mapping):
        raise ConfigError(
            f"The {provider} option function of {offer.name} is no object.",
            remedy='Write it like {"function": {"strict": true}}.',
        )
    if wrong := sorted(_NOT_OPTIONS.intersection({*options, *(inner or ())})):
        raise ConfigError(
            f"The {provider} options of {offer.name} cannot set {', '.join(wrong)}.",
            remedy="Change a tool's name, description or arguments with a transformer, such as Rename or Describe.",
        )
    return options


def asked_strict(offer: Offer, provider: str, options: dict[str, Any]) -> bool:
    """Takes `strict` out of the options."""
    strict = options.pop("strict", False)
    if not isinstance(strict, bool | None):
        raise ConfigError(
            f"The {provider} option strict of {offer.name} is neither true nor false.",
            remedy="Give true, false, or leave it out.",
        )
    return strict is True


def merged(wire: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(wire)
    for key, value in more.items():
        known = result.get(key)
        if isinstance(known, Mapping) and isinstance(value, Mapping):
            result[key] = merged(known, value)
        else:
            result[key] = value
    return result
