"""A tool's result as a person reads it."""

from __future__ import annotations

from typing import Any

import pytest

from toolcrib.cli.output import result_text


@pytest.mark.req("ENG-9")
@pytest.mark.parametrize(
    ("result", "text"),
    [
        ({"content": [{"type": "text", "text": "a\n  b"}, {"type": "text", "text": "c"}]}, "a\n  b\nc"),
        ({"content": [{"type": "image", "mimeType": "image/png", "data": "A" * 4000}]}, "[image: image/png, 3.0 kB]"),
        ({"content": [{"type": "audio", "mimeType": "audio/wav", "data": "AAA="}]}, "[audio: audio/wav, 2 B]"),
        ({"content": [{"type": "resource_link", "name": "x", "uri": "file:///x"}]}, "[link: x file:///x]"),
        ({"content": [{"type": "resource", "resource": {"uri": "a:b", "text": "inside"}}]}, "inside"),
        (
            {"content": [{"type": "resource", "resource": {"uri": "a:b", "blob": "AAAA"}}]},
            "[resource: a:b, unknown type, 3 B]",
        ),
        ({"content": [{"type": "new", "x": 1}]}, '{\n  "type": "new",\n  "x": 1\n}'),
        ({"content": [], "structuredContent": {"n": 1}}, '{\n  "n": 1\n}'),
        ({"content": [{"type": "text", "text": "1"}], "structuredContent": {"n": 1}}, "1"),
        ({"content": []}, ""),
        ({}, ""),
        ({"content": "odd"}, ""),
        ({"content": [None]}, "null"),
    ],
)
def test_each_kind_of_content_is_shown(result: dict[str, Any], text: str) -> None:
    assert result_text(result) == text
