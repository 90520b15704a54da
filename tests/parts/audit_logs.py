"""An audit log on a test's own database."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from parts.waiting import LIMIT
from toolcrib.audit.log import AuditLog
from toolcrib.config.masking import Masker
from toolcrib.store.commits import MAX_BYTES, MAX_ITEMS, GroupCommit
from toolcrib.store.database import Store

__all__ = ["LIMIT", "opened", "opened_on"]


@contextlib.asynccontextmanager
async def opened_on(
    store: Store, folder: Path, *, max_items: int = MAX_ITEMS, max_bytes: int = MAX_BYTES, **options: Any
) -> AsyncIterator[AuditLog]:
    folder.mkdir(exist_ok=True)
    commits = GroupCommit(store, max_items=max_items, max_bytes=max_bytes)
    audit_log = await AuditLog.open(store, commits, folder=folder, mask=Masker(), **options)
    try:
        yield audit_log
    finally:
        await audit_log.close()
        await commits.close()


@contextlib.asynccontextmanager
async def opened(url: str | Path, folder: Path, **options: Any) -> AsyncIterator[tuple[AuditLog, Store]]:
    store = await Store.open(url)
    try:
        async with opened_on(store, folder, **options) as audit_log:
            yield audit_log, store
    finally:
        await store.close()
