"""A conversation as plain JSON, and back.

In: the `messages` of a run's last event. Out: messages as pydantic-ai has them, or a `UsageError`; and the other way.
`course` reads what the program gave, `loop` writes what there is in the end.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelResponse, repair_messages

from toolcrib.errors import UsageError

REMEDY = "Give the `messages` of an earlier run's last event as they were, or none."


def read(history: Sequence[Mapping[str, Any]]) -> list[ModelMessage]:
    """What a run goes on from: calls that were never answered get an answer that says so."""
    if not history:
        return []
    try:
        # As text: what is binary in it is base64 there, and only there.
        messages = ModelMessagesTypeAdapter.validate_json(json.dumps(list(history)))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"])) or "the whole"
        raise UsageError(f"The history cannot be read: {place}: {first['msg']}.", remedy=REMEDY) from None
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"The history is no plain JSON: {error}.", remedy=REMEDY) from None
    if isinstance(messages[-1], ModelResponse) and messages[-1].state == "suspended":
        raise UsageError("The history ends in an answer that its provider is still working on.", remedy=REMEDY)
    return repair_messages(messages)


def write(messages: Sequence[ModelMessage]) -> list[dict[str, Any]]:
    plain: list[dict[str, Any]] = ModelMessagesTypeAdapter.dump_python(list(messages), mode="json")
    return plain
