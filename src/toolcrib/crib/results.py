"""A tool's result as content blocks, for programs.

In: the raw bytes of an MCP result. Out: a `Result` whose blocks are one small class per kind. Nothing is dropped: each
block keeps the object it came from, a kind that is not known here becomes an `OtherBlock`, and `raw` is the whole.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from toolcrib.errors import ToolError
from toolcrib.servers.model import Answer


@dataclass(frozen=True, kw_only=True)
class Block:
    raw: Mapping[str, Any]
    """The block as the server sent it: annotations, `_meta` and unknown fields included."""


@dataclass(frozen=True, kw_only=True)
class TextBlock(Block):
    text: str


@dataclass(frozen=True, kw_only=True)
class ImageBlock(Block):
    data: bytes
    media_type: str


@dataclass(frozen=True, kw_only=True)
class AudioBlock(Block):
    data: bytes
    media_type: str


@dataclass(frozen=True, kw_only=True)
class ResourceBlock(Block):
    """A resource's content, embedded: `text`, or `blob` where it is binary."""

    uri: str
    media_type: str | None
    text: str | None
    blob: bytes | None


@dataclass(frozen=True, kw_only=True)
class ResourceLinkBlock(Block):
    uri: str
    name: str


@dataclass(frozen=True, kw_only=True)
class OtherBlock(Block):
    """A kind that is not known here, or a known one that its server got wrong."""

    kind: str


@dataclass(frozen=True, kw_only=True)
class Result:
    blocks: tuple[Block, ...]
    structured: Any
    is_error: bool
    raw: Mapping[str, Any]

    @property
    def text(self) -> str:
        """The text blocks, joined: what most callers want."""
        return "\n".join(block.text for block in self.blocks if isinstance(block, TextBlock))


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
        blocks=tuple(_block(block) for block in blocks),
        structured=raw.get("structuredContent"),
        is_error=raw.get("isError") is True,
        raw=raw,
    )


def _block(raw: Any) -> Block:
    if not isinstance(raw, dict):
        return OtherBlock(kind="", raw={"value": raw})
    kind = str(raw.get("type", ""))
    try:
        match kind:
            case "text":
                return TextBlock(text=_text(raw["text"]), raw=raw)
            case "image":
                return ImageBlock(data=_bytes(raw["data"]), media_type=_text(raw["mimeType"]), raw=raw)
            case "audio":
                return AudioBlock(data=_bytes(raw["data"]), media_type=_text(raw["mimeType"]), raw=raw)
            case "resource_link":
                return ResourceLinkBlock(uri=_text(raw["uri"]), name=_text(raw.get("name", "")), raw=raw)
            case "resource":
                return _resource(raw, raw["resource"])
    except (KeyError, TypeError, binascii.Error):
        return OtherBlock(kind=kind, raw=raw)
    return OtherBlock(kind=kind, raw=raw)


def _resource(raw: dict[str, Any], resource: Any) -> ResourceBlock:
    if not isinstance(resource, dict):
        raise TypeError("a resource is an object")
    return ResourceBlock(
        uri=_text(resource["uri"]),
        media_type=resource.get("mimeType"),
        text=_text(resource["text"]) if "text" in resource else None,
        blob=_bytes(resource["blob"]) if "blob" in resource else None,
        raw=raw,
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("a string is needed here")
    return value


def _bytes(value: Any) -> bytes:
    return base64.b64decode(_text(value), validate=True)
