"""The book: who took what. Entries in; a chain of rows that cannot be changed unseen out.

`Book` is loaded when it is first used: an `Entry` alone must not cost the import of a database.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolcrib.book.book import Book

__all__ = ["Book"]


def __getattr__(name: str) -> Any:
    if name == "Book":
        from toolcrib.book.book import Book  # noqa: PLC0415

        return Book
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
