"""A tool's result as content blocks, for programs.

In: the raw bytes of an MCP result. Out: a `Result` with its `blocks`, which can be written as the message that each
provider wants (`messages`). Nothing is dropped: `raw` is the whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import msgspec

from toolcrib.crib import messages
from toolcrib.crib.blocks import (
    AudioBlock,
    Block,
    ImageBlock,
    OtherBlock,
    ResourceBlock,
    ResourceLinkBlock,
    TextBlock,
    read_block,
)
from toolcrib.errors import ToolcribError, ToolError
from toolcrib.servers.model import Answer

__all__ = [
    "AudioBlock",
    "Block",
    "ImageBlock",
    "OtherBlock",
    "ResourceBlock",
    "ResourceLinkBlock",
    "Result",
    "TextBlock",
    "read_answer",
    "read_result",
]


@dataclass(frozen=True, kw_only=True)
class Result:
    blocks: tuple[Block, ...]
    structured: Any
    is_error: bool
    raw: Mapping[str, Any]

    @classmethod
    def failed(cls, why: ToolcribError | str) -> Self:
        """What a model is told of a call that could not be made; `why` is mostly what `call` raised."""
        block = {"type": "text", "text": why.text() if isinstance(why, ToolcribError) else why}
        raw = {"content": [block], "isError": True}
        return cls(blocks=(read_block(block),), structured=None, is_error=True, raw=raw)

    @property
    def text(self) -> str:
        """The text blocks, joined: what most callers want."""
        return "\n".join(block.text for block in self.blocks if isinstance(block, TextBlock))

    def to_openai(self, call_id: str, *, api: messages.Api = "chat") -> list[dict[str, Any]]:
        """The messages that answer this call: for Chat Completions, or the items for Responses."""
        return messages.to_openai(self, call_id, api=api)

    def to_anthropic(self, tool_use_id: str) -> dict[str, Any]:
        """The `tool_result` block that answers this call; the blocks of a turn go into one user message."""
        return messages.to_anthropic(self, tool_use_id)

    def to_google(
        self, name: str, call_id: str | None = None, *, media: messages.Place = "inside"
    ) -> list[dict[str, Any]]:
        """The contents that answer this call; those of several calls are put `messages.together`."""
        return messages.to_google(self, name, call_id, media=media)


def read_answer(answer: Answer) -> Result:
    """Raises `ToolError` where the server answered with an error."""
    if answer.result is not None:
        return read_result(answer.result)
    error = msgspec.json.decode(answer.error or b"{}")
    words = error.get("message") if isinstance(error, dict) else None
    raise ToolError(f"The server answered with an error: {words or 'it gave no reason'}", data={"error": error})


def read_result(result: bytes) -> Result:
    raw = msgspec.json.decode(result)
    if not isinstance(raw, dict):
        raw = {"content": [], "value": raw}
    content = raw.get("content")
    blocks = content if isinstance(content, list) else []
    return Result(
        blocks=tuple(read_block(block) for block in blocks),
        structured=raw.get("structuredContent"),
        is_error=raw.get("isError") is True,
        raw=raw,
    )
