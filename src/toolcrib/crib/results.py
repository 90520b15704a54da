"""A tool's result as content blocks, for programs.

In: the raw bytes of an MCP result. Out: a `Result` with its `blocks`, which can be written as the message that each
provider wants (`messages`). Nothing is dropped: `raw` is the whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import msgspec

from toolcrib.agent_events import failure_in
from toolcrib.catalog.api import Api
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
    """What a tool gave back: `text` for people, `to_openai`, `to_anthropic`, `to_google` for a model."""

    blocks: tuple[Block, ...]
    structured: Any
    """The structured content, None where there is none."""
    is_error: bool
    """Whether the tool says that it failed."""
    raw: Mapping[str, Any]
    """All of it, as the server sent it."""

    @classmethod
    def failed(cls, why: ToolcribError | str) -> Self:
        """What a model is told of a call that could not be made; `why` is mostly what `call` raised."""
        block = {"type": "text", "text": why.text() if isinstance(why, ToolcribError) else why}
        raw = {"content": [block], "isError": True}
        return cls(blocks=(read_block(block),), structured=None, is_error=True, raw=raw)

    @property
    def failure(self) -> str:
        """In a few words, that what the tool ran failed (a command's exit code, tests), though the call went well."""
        return failure_in(self.raw.get("_meta"))

    @property
    def text(self) -> str:
        """The text blocks, joined: what most callers want."""
        return "\n".join(block.text for block in self.blocks if isinstance(block, TextBlock))

    def to_openai(self, call_id: str, *, api: Api = "chat") -> list[dict[str, Any]]:
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
    error = _decoded(answer.error or b"{}")
    words = error.get("message") if isinstance(error, dict) else None
    raise ToolError(f"The server answered with an error: {words or 'it gave no reason'}", data={"error": error})


def read_result(result: bytes) -> Result:
    """Raises `ToolError` for one that no program can hold."""
    raw = _decoded(result)
    if not isinstance(raw, dict):
        raw = {"content": [], "value": raw}
    content = raw.get("content")
    # Not MCP, but some servers do, and what they say is meant to be read.
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    blocks = blocks if isinstance(blocks, list) else []
    return Result(
        blocks=tuple(read_block(block) for block in blocks),
        structured=raw.get("structuredContent"),
        is_error=raw.get("isError") is True,
        raw=raw,
    )


def _decoded(raw: bytes) -> Any:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise ToolError(f"The server's answer cannot be read: {error}.", remedy="Its author must know.") from error
