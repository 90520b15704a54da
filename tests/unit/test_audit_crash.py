"""`kill -9` at any moment: what was acknowledged is there, and the chain holds."""

from __future__ import annotations

import random
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from toolcrib.audit.chain import HeadAnchor
from toolcrib.audit.log import AuditLog
from toolcrib.config.masking import Masker
from toolcrib.store.commits import GroupCommit
from toolcrib.store.database import Store

LIMIT = 60.0

WRITER = textwrap.dedent(
    """
    import asyncio, sys
    from pathlib import Path
    from toolcrib.audit.log import AuditLog
    from toolcrib.audit.entry import AuditEntry, EntryKind
    from toolcrib.config.masking import Masker
    from toolcrib.store.database import Store
    from toolcrib.store.commits import GroupCommit

    async def calls(audit_log, name):
        for number in range(10**9):
            call = f"{name}-{number}"
            audit_log.note(AuditEntry(kind=EntryKind.INTENT, call=call, agent="a", arguments=b'{"x":1}'))
            await audit_log.flush()
            audit_log.note(AuditEntry(kind=EntryKind.OUTCOME, call=call, agent="a", outcome="ok", result=b"hello"))
            await audit_log.flush()
            sys.stdout.write(call + "\\n")
            sys.stdout.flush()

    async def main(url, folder, name):
        store = await Store.open(url)
        commits = GroupCommit(store)
        audit_log = await AuditLog.open(store, commits, folder=Path(folder), mask=Masker())
        await asyncio.gather(*(calls(audit_log, f"{name}-{task}") for task in range(8)))

    asyncio.run(main(*sys.argv[1:]))
    """
)


def written_until_killed(url: str, folder: Path, name: str, lines: int) -> list[str]:
    """The calls that were acknowledged before the end."""
    child = subprocess.Popen(
        [sys.executable, "-c", WRITER, url, str(folder), name], stdout=subprocess.PIPE, text=True, cwd=folder
    )
    assert child.stdout is not None
    try:
        seen = [child.stdout.readline() for _ in range(lines)]
    finally:
        child.kill()
    seen += child.stdout.readlines()
    child.stdout.close()
    child.wait(LIMIT)
    # The last line may be cut off in the middle; then nobody was told.
    return [line.strip() for line in seen if line.endswith("\n")]


@pytest.mark.req("KSI-5")
async def test_after_a_kill_every_acknowledged_row_is_there(
    store_url: str, tmp_path: Path, sized: Callable[[int, int], int]
) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    acknowledged: list[str] = []
    chance = random.Random(7)  # noqa: S311 - chooses moments, guards nothing
    for round_ in range(sized(3, 30)):
        acknowledged += written_until_killed(store_url, folder, f"r{round_}", chance.randint(1, 120))
    store = await Store.open(store_url)
    commits = GroupCommit(store)
    audit_log = await AuditLog.open(store, commits, folder=folder, mask=Masker())
    report = await audit_log.verify()
    assert report.ok, report
    rows = await audit_log.query(limit=1_000_000)
    kinds: dict[str, list[str]] = {}
    for row in rows:
        kinds.setdefault(row["call"], []).append(row["kind"])
    assert len(acknowledged) == len(set(acknowledged)) > 0
    assert [call for call in acknowledged if kinds.get(call) != ["intent", "outcome"]] == []
    (head,) = HeadAnchor(folder / "audit.head").heads()
    assert head.seq <= rows[-1]["seq"]
    assert rows[head.seq - 1]["hash"] == head.hash
    await audit_log.close()
    await commits.close()
    await store.close()
