"""The way back from what a model wrote, with definitions that are made once for each offer.

In: an offer, arguments, and whose model wrote them. Out: the arguments as the offer's schema has them. Where nobody
knows whose model it was, what one of the formats changed is taken back; only who says it can be sure, for what one
provider's model writes for a value may be a value itself.
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
        return _kept(offer, provider).undo(arguments)
    for name in _FORMATS:
        definition = _kept(offer, name)
        before = definition.undo(arguments)
        if before != arguments and _is_meant(offer, definition, arguments, before):
            return before
    return arguments


def _kept(offer: OfferedTool, provider: str) -> Definition:
    made: Definition | None = offer.kept.get(provider)
    if made is None:
        made = offer.kept[provider] = _FORMATS[provider](offer)
    return made


def _is_meant(offer: OfferedTool, definition: Definition, given: dict[str, Any], before: dict[str, Any]) -> bool:
    """What fits already is only of a format's own form if it has all of it, and would fit without."""
    if not _fits(offer.schema, given):
        return True
    return _fits(definition.schema, given) and _fits(offer.schema, before)


def _fits(schema: Any, value: dict[str, Any]) -> bool:
    try:
        return validator_for(dict(schema), offline=True, validate_formats=False).is_valid(value)
    except (ValueError, RecursionError):
        return True
