"""The search of several projects in one process."""

from __future__ import annotations

import asyncio
import threading

from toolcrib.catalog.snapshot import Catalog
from toolcrib.core.tool_search import ToolSearch


async def test_the_meanings_of_many_projects_leave_threads_to_others() -> None:
    released = threading.Event()

    def slow() -> None:
        released.wait(60)

    catalog = Catalog.build({"s": (b'{"name":"read"}',)}, version=1)
    searches = [ToolSearch(slow) for _ in range(40)]
    try:
        for search in searches:
            index = await asyncio.wait_for(search.index(catalog), 30)
        assert [tool.name for tool in index.find("read", shown=lambda _: True)] == ["read"]
    finally:
        released.set()
        for search in searches:
            await search.close()
