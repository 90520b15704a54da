"""Resources and prompts for a program: their descriptions, and what a server answers when one is read.

In: an `Offer` of the catalog; a server's answer. Out: small frozen classes. Nothing is lost: each has the original
object as `raw`. `ToolProvider` returns them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from toolcrib.catalog.offers import Offer
from toolcrib.core.content import Block, OtherBlock, ResourceBlock, TextBlock, read_block
from toolcrib.core.results import decoded_result
from toolcrib.servers.model import ServerAnswer


@dataclass(frozen=True, kw_only=True)
class Resource:
    """A resource, or a template for the addresses of several."""

    uri: str
    """Its address for `read`; a template's has placeholders, as in `file:///{path}`."""
    server: str
    name: str
    title: str
    description: str
    media_type: str | None
    is_template: bool
    raw: Mapping[str, Any] = field(repr=False)
    """Its definition as the server wrote it."""

    @classmethod
    def of(cls, offer: Offer) -> Self:
        raw = offer.tool.decoded()
        return cls(
            uri=offer.shown_as,
            server=offer.tool.server,
            name=_text(raw, "name"),
            title=_text(raw, "title"),
            description=_text(raw, "description"),
            media_type=_text(raw, "mimeType") or None,
            is_template="uriTemplate" in raw,
            raw=raw,
        )


@dataclass(frozen=True, kw_only=True)
class PromptArgument:
    name: str
    description: str
    required: bool


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """A prompt that a server offers."""

    name: str
    """Its name for `get_prompt`."""
    server: str
    title: str
    description: str
    arguments: tuple[PromptArgument, ...]
    raw: Mapping[str, Any] = field(repr=False)
    """Its definition as the server wrote it."""

    @classmethod
    def of(cls, offer: Offer) -> Self:
        raw = offer.tool.decoded()
        described = raw.get("arguments")
        arguments = [one for one in described if isinstance(one, dict)] if isinstance(described, list) else []
        return cls(
            name=offer.tool.names.plain,
            server=offer.tool.server,
            title=_text(raw, "title"),
            description=_text(raw, "description"),
            arguments=tuple(
                PromptArgument(
                    name=_text(one, "name"), description=_text(one, "description"), required=one.get("required") is True
                )
                for one in arguments
            ),
            raw=raw,
        )


@dataclass(frozen=True, kw_only=True)
class ResourceContents:
    """The contents of a resource: usually one block; a folder's may have more."""

    blocks: tuple[Block, ...]
    """Each is a `ResourceBlock` with `text` or `blob`, or an `OtherBlock` if it is invalid."""
    raw: Mapping[str, Any] = field(repr=False)
    """The whole answer as the server sent it."""

    @property
    def text(self) -> str:
        """The texts, joined."""
        texts = [one.text for one in self.blocks if isinstance(one, ResourceBlock) and one.text is not None]
        return "\n".join(texts)

    @classmethod
    def of(cls, answer: ServerAnswer) -> Self:
        """Raises `ToolError` if the server answered with an error."""
        raw = decoded_result(answer)
        contents = raw.get("contents")
        return cls(blocks=tuple(map(_content, contents if isinstance(contents, list) else ())), raw=raw)


@dataclass(frozen=True, kw_only=True)
class PromptMessage:
    role: str
    """`user` or `assistant`."""
    block: Block


@dataclass(frozen=True, kw_only=True)
class PromptMessages:
    """The messages that a prompt becomes with its arguments."""

    description: str
    messages: tuple[PromptMessage, ...]
    raw: Mapping[str, Any] = field(repr=False)
    """The whole answer as the server sent it."""

    @property
    def text(self) -> str:
        """The text blocks, joined."""
        return "\n".join(one.block.text for one in self.messages if isinstance(one.block, TextBlock))

    @classmethod
    def of(cls, answer: ServerAnswer) -> Self:
        """Raises `ToolError` if the server answered with an error."""
        raw = decoded_result(answer)
        messages = raw.get("messages")
        return cls(
            description=_text(raw, "description"),
            messages=tuple(
                PromptMessage(role=_text(one, "role"), block=read_block(one.get("content")))
                if isinstance(one, dict)
                else PromptMessage(role="", block=read_block(one))
                for one in (messages if isinstance(messages, list) else ())
            ),
            raw=raw,
        )


def _content(raw: Any) -> Block:
    # The block of an embedded resource has the same members.
    block = read_block({"type": "resource", "resource": raw})
    if isinstance(block, ResourceBlock) and (block.text, block.blob) != (None, None):
        return block
    return OtherBlock(kind="resource", raw=block.raw)


def _text(raw: Mapping[str, Any], key: str) -> str:
    value = raw.get(key)
    return value if isinstance(value, str) else ""
