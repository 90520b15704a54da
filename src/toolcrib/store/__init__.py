"""Rows that must outlive a process.

In: a file or a database URL. Out: `Store`, which never blocks the event loop, and `Database`, the same for a
command that waits. What is kept stands in one file for each family of rows, as functions over a connection:
`await store.read(tools.known, identity, root)`. Above: `servers`, `agents`, `book`, `crib`, `daemon`, `cli`. SQLAlchemy
is loaded when one of them is first used, since `toolcrib --help` must not pay for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolcrib.store.database import Database, Store

__all__ = ["Database", "Store"]


def __getattr__(name: str) -> Any:
    if name == "Store":
        from toolcrib.store.database import Store  # noqa: PLC0415

        return Store
    if name in __all__:
        from toolcrib.store import database  # noqa: PLC0415

        return getattr(database, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
