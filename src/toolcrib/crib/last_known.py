"""The tools that servers last listed, so that a start without them has something to show.

In: the store. Out: definitions by server and project. Without a readable store we only list later. `Crib` has one.
"""

from __future__ import annotations

import logging
from pathlib import Path

from toolcrib.errors import StoreError
from toolcrib.servers.server import Server
from toolcrib.store import Store, tools

log = logging.getLogger(__name__)


class LastKnown:
    def __init__(self, store: Store) -> None:
        self._store = store

    async def of(self, identity: str, root: Path) -> tuple[bytes, ...] | None:
        """None: nobody has ever seen them."""
        try:
            return await self._store.read(tools.known, identity, str(root))
        except StoreError as error:
            log.warning("the last known tools could not be read: %s", error.text())
            return None

    async def keep(self, server: Server, root: Path) -> None:
        if server.tools is None:
            return
        try:
            await self._store.write(tools.remember, server.config.identity, str(root), server.tools)
        except StoreError as error:
            log.warning("the tools of %s could not be kept: %s", server.name, error.text())

    async def forget(self, server: Server) -> None:
        try:
            await self._store.write(tools.forget, server.config.identity)
        except StoreError as error:
            log.warning("the tools of %s could not be forgotten: %s", server.name, error.text())
