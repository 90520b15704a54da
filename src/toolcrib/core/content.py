"""The blocks of a tool's result, one small class per kind, and a check of bytes against their media type.

In: a block as decoded JSON. Out: a `Block`. Nothing is lost: each keeps its original object, and unknown or invalid
kinds become an `OtherBlock`. `results` reads and writes them.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


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
    """A resource's embedded content: `text`, or `blob` if it is binary."""

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
    """An unknown kind, or an invalid block of a known kind."""

    kind: str


def read_block(raw: Any) -> Block:
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
        raise TypeError("a resource must be an object")
    media_type = resource.get("mimeType")
    return ResourceBlock(
        uri=_text(resource["uri"]),
        media_type=media_type if isinstance(media_type, str) else None,
        text=_text(resource["text"]) if "text" in resource else None,
        blob=_bytes(resource["blob"]) if "blob" in resource else None,
        raw=raw,
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("expected a string")
    return value


def _bytes(value: Any) -> bytes:
    return base64.b64decode(_text(value), validate=True)


_SIGNATURES: Mapping[str, bytes] = {
    "image/png": rb"\x89PNG",
    "image/jpeg": rb"\xff\xd8\xff",
    "image/gif": rb"GIF8",
    "image/webp": rb"RIFF....WEBP",
    "image/heic": rb"....ftyp",
    "image/heif": rb"....ftyp",
    # Readers look for it in the first kilobyte.
    "application/pdf": rb".{0,1020}?%PDF",
    "audio/wav": rb"RIFF....WAVE",
    "audio/mpeg": rb"ID3|\xff[\xe0-\xff]",
    "audio/aiff": rb"FORM....AIF",
    "audio/aac": rb"ADIF|\xff[\xf0-\xff]",
    "audio/ogg": rb"OggS",
    "audio/flac": rb"fLaC",
}


def has_media_type(media_type: str, data: bytes) -> bool:
    """Also true for unknown types."""
    begins = _SIGNATURES.get(media_type)
    return begins is None or re.match(begins, data, re.DOTALL) is not None
