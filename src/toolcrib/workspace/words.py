"""Words and sizes that answers have in common.

In: numbers and texts. Out: words for a model, and how much room a text takes in an answer. Tools of all rooms use it.
"""

from __future__ import annotations

import re

import msgspec

_LONE = re.compile("[\ud800-\udfff]")


def count_words(number: int, one: str, many: str = "") -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def size_words(size: int) -> str:
    amount = float(size)
    for unit in ("B", "kB", "MB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" or amount >= 100 else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} GB"


def room_of(text: str) -> int:
    """Bytes that a text takes up in JSON, which is what most clients hand to their model."""
    if not text.isascii():
        # Half a character is shown as a whole one, of three bytes too.
        text = _LONE.sub("\ufffd", text)
    return len(msgspec.json.encode(text))


def fitting(text: str, most: int) -> str:
    """The beginning of a text that takes up `most` bytes in JSON, but one character at least."""
    # No character takes more than six, and the quotes two.
    if len(text) * 6 + 2 <= most or room_of(text) <= most:
        return text
    fits, too_long = 1, min(len(text), most) + 1
    while too_long - fits > 1:
        middle = (fits + too_long) // 2
        if room_of(text[:middle]) <= most:
            fits = middle
        else:
            too_long = middle
    return text[:fits]
