"""A tool's result as a person reads it.

In: a raw MCP result of either era. Out: lines of text. Text stays as it is; what cannot be shown is named with its
type and size; structured content is shown where there is no text. `--json` does not come here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def shown(result: Mapping[str, Any]) -> str:
    """The whole result, ready to print."""
    content = result.get("content")
    blocks = [_block(block) for block in content] if isinstance(content, list) else []
    has_text = isinstance(content, list) and any(_is_text(block) for block in content)
    if not has_text and "structuredContent" in result:
        blocks.append(_pretty(result["structuredContent"]))
    return "\n".join(blocks)


def size_of(count: float) -> str:
    """Bytes as people write them."""
    if count < 1000:
        return f"{count:.0f} B"
    for unit in ("kB", "MB", "GB"):
        count /= 1000
        if count < 1000:
            return f"{count:.1f} {unit}"
    return f"{count / 1000:.1f} TB"


def _is_text(block: Any) -> bool:
    return isinstance(block, Mapping) and block.get("type") == "text" and bool(block.get("text"))


def _block(block: Any) -> str:
    if not isinstance(block, Mapping):
        return _pretty(block)
    match block:
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": "image" | "audio" as kind, "data": str(data)}:
            return f"[{kind}: {block.get('mimeType', 'unknown type')}, {size_of(_decoded_size(data))}]"
        case {"type": "resource_link", "uri": str(uri)}:
            return " ".join(filter(None, ["[link:", str(block.get("name", "")), uri])) + "]"
        case {"type": "resource", "resource": {"text": str(text)}}:
            return text
        case {"type": "resource", "resource": {"uri": str(uri), "blob": str(blob)} as resource}:
            kind = resource.get("mimeType", "unknown type")
            return f"[resource: {uri}, {kind}, {size_of(_decoded_size(blob))}]"
        case _:
            return _pretty(block)


def _decoded_size(base64: str) -> int:
    text = base64.rstrip("=\r\n")
    return len(text) * 3 // 4


def _pretty(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)
