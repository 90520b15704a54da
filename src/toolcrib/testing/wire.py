"""What the wire formats of all providers have in common.

In: texts and messages. Out: their pieces, and their bytes in a stream. `openai_chat`, `openrouter`,
`openai_responses`, `anthropic` and `google` build on it, and `server` sends it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

Message = Mapping[str, Any] | str
"""What a stream is made of: data, or a line as it is, such as a comment."""


def pieces(text: str, most: int = 4) -> list[str]:
    """A text as a stream brings it: in up to so many parts, none of them empty."""
    size = max(1, -(-len(text) // most))
    return [text[start : start + size] for start in range(0, len(text), size)]


def event(message: Message) -> bytes:
    """A server-sent event; where a message has a type, the event is named so."""
    if isinstance(message, str):
        return f"{message}\n\n".encode()
    name = f"event: {message['type']}\n" if "type" in message else ""
    return f"{name}data: {json.dumps(message)}\n\n".encode()


def text_of(content: Any) -> str:
    """Content that is a text, or a list of parts, of which each may be one."""
    if isinstance(content, str):
        return content
    return "\n".join(part.get("text", f"({part['type']})") for part in content or [])
