"""Shortens descriptions.

In: a description that a server wrote, of any length. Out: one line that starts the same. Used by `thin` and `signature`.
"""

from __future__ import annotations

import re

_READ = 4_000
"""Characters that are looked at; the first sentence of a longer text is not worth finding."""
_SPACE = re.compile(r"[\s\x00-\x20\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]+")
"""Also characters that start a line or change its direction."""
_MARKUP = re.compile(r"^(?:[#>*\-=_`|]+ |<[a-zA-Z_]{1,20}>|[*_`#=\-]+)+")
_END = re.compile(r"(?<![\s.(][a-zA-Z])(?<!e\.g)(?<!i\.e)(?<!etc)(?<!vs)(?<!incl)(?<!approx)[.!?。](?=[\s\"')]|$)")
_PARAGRAPH = re.compile(r"\n[ \t]*(?:\n|[-*#]|\d+[.)] |(?=[A-Z][\w ()/-]{0,30}:[ \t]*(?:\n|$)))")


def first_sentence(text: str, limit: int, *, least: int = 0) -> str:
    """One line of at most `limit` characters, cut at a word. If the first sentence is shorter than `least`, the next
    one too."""
    text = text[:_READ].strip()
    end = 0
    flat = ""
    for paragraph in _PARAGRAPH.split(text):
        flat = f"{flat} {one_line(paragraph)}".strip()
        while (found := _END.search(flat, end)) is not None:
            end = found.end()
            if end >= max(least, 1):
                return shortened(flat[:end], limit)
        if len(flat) >= max(least, 1):
            break
    return shortened(flat, limit)


def one_line(text: str) -> str:
    return _MARKUP.sub("", _SPACE.sub(" ", text).strip()).strip()


def shortened(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    cut = text[: limit - 1]
    space = cut.rfind(" ")
    return (cut[:space] if space > limit // 2 else cut).rstrip(" ,;:.-") + "…"
