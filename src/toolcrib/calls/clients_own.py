"""Arguments that a client adds for itself, and that no server asked for.

In: a tool and a call's params. Out: the params, without them. Gemini CLI offers every tool with a parameter of its own,
by which its model says whether a call waits for the one before, and sends it on to the server, which may refuse it.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Raw

from toolcrib.catalog.tool import Tool

_ADDED = "wait_for_previous"
_decode = msgspec.json.Decoder(dict[str, Raw]).decode


def without_clients_own(tool: Tool, params: Mapping[str, Raw]) -> Mapping[str, Raw]:
    """The very same params where there is nothing to take out; otherwise every other value keeps its bytes."""
    arguments = params.get("arguments")
    if arguments is None or _ADDED.encode() not in bytes(arguments) or _ADDED in _declared(tool):
        return params
    try:
        given = _decode(arguments)
    except msgspec.MsgspecError:
        # Not an object: the check that follows says so.
        return params
    given.pop(_ADDED, None)
    return {**params, "arguments": Raw(msgspec.json.encode(given))}


def _declared(tool: Tool) -> Mapping[str, object]:
    properties = tool.shown.input_schema.get("properties")
    return properties if isinstance(properties, dict) else {}
