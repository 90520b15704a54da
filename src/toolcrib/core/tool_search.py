"""One project's search over its tools: an index for the current catalog, built off the event loop.

In: catalogs, as they change. Out: their `SearchIndex`. With `toolcrib[search]`, the meanings of the tools are computed
in the background; until they are there, words alone rank. Used by the gateway and by `commands.listing`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from toolcrib.catalog.snapshot import Catalog
from toolcrib.listing.search import SearchIndex, has_embeddings

if TYPE_CHECKING:
    from toolcrib.listing.embeddings import Embeddings

log = logging.getLogger(__name__)


_THREAD = ThreadPoolExecutor(1, thread_name_prefix="toolcrib-meanings")
"""Computes meanings for minutes, one project after another: the usual threads are for work that others wait for."""


def load_embeddings(folder: Path) -> Embeddings | None:
    """The embeddings of `toolcrib[search]`, kept in this folder; None without the extra. Takes 0.1 s."""
    if not has_embeddings():
        return None
    from toolcrib.listing.embeddings import Embeddings  # noqa: PLC0415 - NumPy may be missing

    return Embeddings(folder)


class ToolSearch:
    def __init__(self, embeddings: Callable[[], Embeddings | None]) -> None:
        """`embeddings` loads them, or returns None without the extra. It is called in a thread."""
        self._embeddings = embeddings
        self._index: SearchIndex | None = None
        self._version = -1
        self._building = asyncio.Lock()
        self._preparing: asyncio.Task[SearchIndex] | None = None
        self._background: asyncio.Task[None] | None = None
        self._closed = False

    def prepare(self, catalog: Catalog) -> None:
        """Begins to build the index of this catalog, because searches will follow."""
        if self._version != catalog.version and (self._preparing is None or self._preparing.done()):
            self._preparing = asyncio.create_task(self.index(catalog))

    async def index(self, catalog: Catalog) -> SearchIndex:
        async with self._building:
            if self._index is None or self._version != catalog.version:
                build = partial(SearchIndex.build, catalog.tools, previous=self._index)
                self._index = await asyncio.to_thread(build)
                self._version = catalog.version
                self._background = asyncio.create_task(self._add_meanings(self._index, self._background))
            return self._index

    async def complete(self, catalog: Catalog) -> SearchIndex:
        """The index with the meanings of all tools, if they can be had."""
        index = await self.index(catalog)
        if self._background is not None:
            await asyncio.shield(self._background)
        return index

    async def close(self) -> None:
        self._closed = True
        if self._preparing is not None:
            await self._preparing
        if self._background is not None:
            await self._background

    async def _add_meanings(self, index: SearchIndex, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            # It stops soon, because its index is no longer the current one.
            await before
        await asyncio.get_running_loop().run_in_executor(_THREAD, self._compute, index)

    def _compute(self, index: SearchIndex) -> None:
        def outdated() -> bool:
            return self._closed or self._index is not index

        try:
            embeddings = None if outdated() else self._embeddings()
            if embeddings is not None and (found := embeddings.meanings(index.tools, stopped=outdated)) is not None:
                index.meanings = found
        except Exception:
            # A defect in an extra must not cost the search.
            log.exception("searches rank by words only")
