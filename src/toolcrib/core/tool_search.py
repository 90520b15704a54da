"""One project's search over its tools: an index for the current catalog, built off the event loop.

In: catalogs, as they change. Out: their `SearchIndex`. Used by the gateway and by `commands.listing`.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from toolcrib.catalog.snapshot import Catalog
from toolcrib.listing.search import SearchIndex, build_index


class ToolSearch:
    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._index: SearchIndex | None = None
        self._version = -1
        self._building = asyncio.Lock()

    async def index(self, catalog: Catalog) -> SearchIndex:
        async with self._building:
            if self._index is None or self._version != catalog.version:
                self._index = await asyncio.to_thread(build_index, catalog.tools, self._cache, self._index)
                self._version = catalog.version
            return self._index
