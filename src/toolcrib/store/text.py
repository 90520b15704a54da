"""Text as both engines can hold it.

In: a text from anywhere. Out: the same text, or `StoreError`; `storable` gives one that can always be kept.
PostgreSQL has no NUL in texts and neither engine has half a surrogate pair, so both refuse both alike.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from toolcrib.errors import StoreError


class Text(sa.types.TypeDecorator[str]):
    """The type of every text column."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Any) -> str | None:
        if value is not None and not _can_be_kept(value):
            raise StoreError(
                f"The database cannot hold the text {value[:100]!a}: it has a NUL or is not Unicode.",
                remedy="Use a text without it; a file with such a name must be renamed.",
            )
        return value


def storable(text: str) -> str:
    """What cannot be kept spelled out as an escape: for texts that come from strangers and must be written down."""
    if _can_be_kept(text):
        return text
    return "".join(f"\\u{ord(c):04x}" if c == "\0" or "\ud800" <= c <= "\udfff" else c for c in text)


def _can_be_kept(text: str) -> bool:
    if "\0" in text:
        return False
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
