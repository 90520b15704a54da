"""The way back where nobody knows whose model wrote the arguments.

In: an offer and arguments. Out: the arguments as the offer's schema has them. A format's own `undo` is exact; this one
takes back what one of them changed, and each leaves alone what it does not know.
"""

from __future__ import annotations

from typing import Any

from toolcrib.catalog.formats import anthropic, google, openai
from toolcrib.catalog.offer import Offer


def undo(offer: Offer, arguments: dict[str, Any]) -> dict[str, Any]:
    for definition in (openai.definition, anthropic.definition, google.definition):
        before = definition(offer).undo(arguments)
        if before != arguments:
            return before
    return arguments
