"""The listing mode of a request.

In: the settings of the agent, its profile and the configuration, the client's name, the header of the request, the
size of the whole list. Out: one of full, thin and search. Nothing else counts, above all no earlier request: the
protocol forbids lists that vary with other requests, and a changed list costs a provider's prompt cache.
"""

from __future__ import annotations

from toolcrib.config.model import ListingMode, ListingSettings

FULL_UP_TO = 4_000
THIN_UP_TO = 25_000
"""Tokens of the whole list up to which `auto` lists it full or thin."""

DEFERRING_CLIENTS = ("claude-code", "codex", "cursor", "visual studio code")
"""They give their model only the definitions that it looks up. Names begin so, in any case."""

INSPECTORS = ("mcp-inspector", "inspector", "conformance-")
"""They show or check definitions, and have no model."""


_BYTES_PER_TOKEN = 4.4
"""Of definitions: 4.0 to 4.9 for 42 real servers."""


def size_in_tokens(array: bytes) -> int:
    """About the tokens of a list. Always by its bytes, so that a mode doesn't depend on an installed tokenizer."""
    return round(len(array) / _BYTES_PER_TOKEN)


def wanted_mode(
    own: ListingMode | None, settings: ListingSettings, *, client: str, requested: ListingMode | None = None
) -> ListingMode:
    """The mode that is set: by the request, for the agent or its profile (`own`), for the client, for all."""
    if found := requested or own:
        return found
    name = client.lower()
    named = (mode for start, mode in settings.clients.items() if name.startswith(start.lower()))
    return next(named, settings.mode)


def resolve_mode(mode: ListingMode, *, client: str, tokens: int) -> ListingMode:
    """Full, thin or search, for a list that takes `tokens` when it is full."""
    if mode is ListingMode.HANDSHAKE:
        # Only the request can tell which completion of the conversation it belongs to.
        return ListingMode.FULL
    if mode is not ListingMode.AUTO:
        return mode
    if tokens <= FULL_UP_TO or client.lower().startswith(DEFERRING_CLIENTS + INSPECTORS):
        return ListingMode.FULL
    return ListingMode.THIN if tokens <= THIN_UP_TO else ListingMode.SEARCH
