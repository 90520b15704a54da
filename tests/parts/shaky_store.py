"""A store whose writes fail on request, before or after their work is done."""

from __future__ import annotations

from typing import Any

from toolcrib.errors import StoreError
from toolcrib.store.database import Store


class Shaky:
    def __init__(self, store: Store) -> None:
        self._store = store
        self.place = store.place
        self.fails = ""
        """`before`, `after`, or empty: writes succeed."""

    async def read(self, *args: Any, **kwargs: Any) -> Any:
        return await self._store.read(*args, **kwargs)

    async def write(self, *args: Any, **kwargs: Any) -> Any:
        if self.fails == "before":
            raise StoreError("The disk is full.", remedy="Make room.")
        done = await self._store.write(*args, **kwargs)
        if self.fails == "after":
            raise StoreError("The connection was lost.", remedy="Look after it.")
        return done
