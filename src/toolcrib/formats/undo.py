"""Reverts a format's changes in a model's arguments, with one cached definition per offer and provider.

In: an offer, arguments, and the model's provider. Out: the arguments in the offer's schema. Without a provider, the
changes of the first format that matches are reverted. That is a guess: one provider's encoding of a value may be a
valid value itself.
"""

from __future__ import annotations

from typing import Any

from jsonschema_rs import validator_for

from toolcrib.catalog.offered_tool import OfferedTool
from toolcrib.formats import anthropic, google, openai
from toolcrib.formats.definition import Definition, Provider

_FORMATS = {"openai": openai.definition, "anthropic": anthropic.definition, "google": google.definition}


def undo_arguments(offer: OfferedTool, arguments: dict[str, Any], provider: Provider | None = None) -> dict[str, Any]:
    if provider is not None:
        return _cached(offer, provider).undo(arguments)
    for name in _FORMATS:
        definition = _cached(offer, name)
        before = definition.undo(arguments)
        if before != arguments and _is_meant(offer, definition, arguments, before):
            return before
    return arguments


def _cached(offer: OfferedTool, provider: str) -> Definition:
    made: Definition | None = offer.kept.get(provider)
    if made is None:
        made = offer.kept[provider] = _FORMATS[provider](offer)
    return made


def _is_meant(offer: OfferedTool, definition: Definition, given: dict[str, Any], before: dict[str, Any]) -> bool:
    """Arguments that already fit count as encoded only if both the format's schema and the reverted arguments fit."""
    if not _fits(offer.schema, given):
        return True
    return _fits(definition.schema, given) and _fits(offer.schema, before)


def _fits(schema: Any, value: dict[str, Any]) -> bool:
    try:
        return validator_for(dict(schema), offline=True, validate_formats=False).is_valid(value)
    except (ValueError, RecursionError):
        return True
