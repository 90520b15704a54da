"""Shortens descriptions.

In: a server's description, of any length. Out: one line that starts the same. Used by `thin` and `signature`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_READ = 4_000
"""Characters that are looked at; the first sentence of a longer text is not worth finding."""
_MARKUP = re.compile(r"^(?:[#>*\-=_`|]+ |<[a-zA-Z_]{1,20}>|[*_`#=\-]+)+")
_END = re.compile(r"(?<![\s.(][a-zA-Z])(?<!e\.g)(?<!i\.e)(?<!etc)(?<!vs)(?<!incl)(?<!approx)[.!?。](?=[\s\"')]|$)")
_PARAGRAPH = re.compile(r"\n[ \t]*(?:\n|[-*#]|\d+[.)] |(?=[A-Z][\w ()/-]{0,30}:[ \t]*(?:\n|$)))")


def sentences(text: str) -> Iterator[str]:
    """The sentences of the text's start, each on one line. The end of a paragraph also ends a sentence."""
    for paragraph in _PARAGRAPH.split(text[:_READ]):
        flat, start = one_line(paragraph), 0
        for found in _END.finditer(flat):
            yield flat[start : found.end()].strip()
            start = found.end()
        if rest := flat[start:].strip():
            yield rest


def first_sentence(text: str, limit: int, *, least: int = 0) -> str:
    """One line of at most `limit` characters, cut at a word. It goes on until it has `least` characters."""
    made = ""
    for sentence in sentences(text):
        made = f"{made} {sentence}".strip()
        if len(made) >= least:
            break
    return shortened(made, limit)


def one_line(text: str) -> str:
    """Without line breaks, control characters and the marks of a heading or a list."""
    return _MARKUP.sub("", printable(text)).strip()


def printable(text: str) -> str:
    """Without line breaks, control characters and invisible ones, which could hide text from people."""
    return " ".join("".join(one if one.isprintable() else " " for one in text).split())


def shortened(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    cut = text[: limit - 1]
    space = cut.rfind(" ")
    return (cut[:space] if space > limit // 2 else cut).rstrip(" ,;:.-") + "…"
