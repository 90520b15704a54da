"""A model's words as whole characters.

In: text as it came in pieces, each of which may end in the midst of a character, in half of a surrogate pair. Out: the
same in whole characters, which every encoding takes; a half that stays alone is replaced. `loop` and `content` put all
text of a conversation through here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_FIRST_HALVES = range(0xD800, 0xDC00)


def whole(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def whole_arguments(given: str | Mapping[str, Any] | None) -> str | dict[str, Any] | None:
    """A call's arguments, as a text or as what was read of one."""
    if given is None or isinstance(given, str):
        return given and whole(given)
    plain: dict[str, Any] = json.loads(whole(json.dumps(dict(given), ensure_ascii=False)))
    return plain


class Pieces:
    """The pieces of one text, one after the other."""

    def __init__(self) -> None:
        self._half = ""

    def add(self, piece: str) -> str:
        """What can be told of it now: the first half of a character waits for the other."""
        text = self._half + piece
        self._half = text[-1] if text and ord(text[-1]) in _FIRST_HALVES else ""
        return whole(text.removesuffix(self._half))

    def rest(self) -> str:
        half, self._half = self._half, ""
        return whole(half)
