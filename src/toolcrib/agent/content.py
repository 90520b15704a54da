"""A tool's result as the model gets it.

In: an `Outcome`, and the provider's format. Out: texts, and files of the kinds that the provider takes in a tool's
result. Nothing is dropped: what it does not take is said in words. `toolset` puts it into the conversation.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic_ai.messages import BinaryContent

from toolcrib.agent.calling import Outcome
from toolcrib.agent.models.place import Format
from toolcrib.crib.results import (
    AudioBlock,
    Block,
    ImageBlock,
    OtherBlock,
    ResourceBlock,
    ResourceLinkBlock,
    Result,
    TextBlock,
)

IMAGES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
PDF = frozenset({"application/pdf"})
TAKEN: Mapping[Format, frozenset[str]] = {
    Format.ANTHROPIC: IMAGES | PDF,
    Format.OPENAI_CHAT: IMAGES,
    Format.OPENAI_RESPONSES: IMAGES | PDF,
    Format.GOOGLE: (IMAGES - {"image/gif"})
    | PDF
    | {"image/heic", "image/heif", "audio/wav", "audio/mpeg", "audio/aiff", "audio/aac", "audio/ogg", "audio/flac"},
}
"""Media types that go to the model as they are. Any other makes the provider refuse the whole conversation."""
SAME = {"image/jpg": "image/jpeg", "audio/mp3": "audio/mpeg", "audio/x-wav": "audio/wav", "audio/wave": "audio/wav"}
NOTHING = "(The tool ended without any output.)"
"""Providers refuse an empty text."""

Item = str | BinaryContent


def content(outcome: Outcome, form: Format) -> str | list[Item]:
    if outcome.result is None:
        return outcome.words or NOTHING
    items = _joined(_items(outcome.result, TAKEN[form]))
    if len(items) == 1 and isinstance(items[0], str):
        return items[0]
    return items or NOTHING


def text(told: str | list[Item]) -> str:
    """What of it is text."""
    return told if isinstance(told, str) else "\n".join(item for item in told if isinstance(item, str))


def _items(result: Result, taken: frozenset[str]) -> Iterator[Item]:
    for block in result.blocks:
        yield from _of(block, taken)
    if result.structured is not None and not _says(result.blocks, result.structured):
        yield _json(result.structured)


def _of(block: Block, taken: frozenset[str]) -> Iterator[Item]:
    match block:
        case TextBlock(text=words):
            yield words
        case ImageBlock(data=data, media_type=kind) | AudioBlock(data=data, media_type=kind):
            yield _file(data, kind, taken, "")
        case ResourceBlock(uri=uri, text=words, blob=blob, media_type=kind):
            if words is not None:
                yield f"{uri}:\n{words}"
            elif blob is not None:
                yield f"{uri}:"
                yield _file(blob, kind or "", taken, f" of {uri}")
            else:
                yield _json(block.raw)
        case ResourceLinkBlock() | OtherBlock():
            yield _json(block.raw)
        case _:
            yield _json(block.raw)


def _file(data: bytes, kind: str, taken: frozenset[str], whose: str) -> Item:
    kind = kind.partition(";")[0].strip().lower()
    kind = SAME.get(kind, kind)
    if kind in taken:
        return BinaryContent(data=data, media_type=kind)
    return f"({len(data)} bytes{whose}, {kind or 'of an unknown kind'}, which this model cannot be shown.)"


def _says(blocks: Iterable[Block], structured: Any) -> bool:
    """Whether a text already is the structured content: most servers send both."""
    for block in blocks:
        if isinstance(block, TextBlock):
            try:
                if json.loads(block.text) == structured:
                    return True
            except (ValueError, RecursionError):
                continue
    return False


def _joined(items: Iterable[Item]) -> list[Item]:
    """Texts that follow each other become one; those that say nothing go."""
    joined: list[Item] = []
    for item in items:
        if isinstance(item, BinaryContent):
            joined.append(item)
        elif item.strip():
            if joined and isinstance(joined[-1], str):
                joined[-1] = f"{joined[-1]}\n{item}"
            else:
                joined.append(item)
    return joined


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
