"""Large results on disk: who can read them, for how long, and how many there are."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from parts.small_disk import small_disk
from parts.waiting import until
from toolcrib.errors import NotFound
from toolcrib.events import AgentEnded, Bus
from toolcrib.identity import kept_results
from toolcrib.identity.handles import Handles
from toolcrib.identity.kept_results import LIVES, KeptResult, KeptResults, new_id

pytestmark = pytest.mark.req("KSI-9")

KEPT = KeptResult("files", "read", b'{"path":"x"}', b'{"content":[]}')


class Daemon:
    """What survives a restart: the folder, the key and when each agent was created."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "results"
        self.created = {"ann": 1.0, "bob": 1.0}
        self.bus = Bus()
        self._key = folder / "key"
        self._open: list[KeptResults] = []
        self.results = self.restart()

    def restart(self) -> KeptResults:
        self.bus = Bus()
        self.results = KeptResults(self.folder, self.bus, Handles(self._key, lambda name: self.created.get(name, 0.0)))
        self._open.append(self.results)
        return self.results

    async def keep(self, agent: str = "ann", kept: KeptResult = KEPT) -> str:
        id = new_id()
        assert await self.results.keep(agent, id, kept)
        return id

    async def has(self, agent: str, id: str) -> bool:
        try:
            return await self.results.open(agent, id) == KEPT
        except NotFound:
            return False

    def files(self) -> list[Path]:
        return [Path(folder, name) for folder, _, names in os.walk(self.folder) for name in names]

    async def close(self) -> None:
        for results in self._open:
            await results.close()


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Daemon]:
    made = Daemon(tmp_path)
    yield made
    await made.close()


async def test_a_result_is_for_its_agent_only_and_its_file_shows_nothing(daemon: Daemon) -> None:
    id = await daemon.keep()
    assert await daemon.results.open("ann", id) == KEPT
    assert not await daemon.has("bob", id)
    (file,) = daemon.files()
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == daemon.folder.stat().st_mode & 0o777 == 0o700
    assert b"content" not in file.read_bytes()
    # Not even if its file is in the other's folder.
    (daemon.folder / "bob").mkdir()
    file.rename(daemon.folder / "bob" / id)
    assert not await daemon.has("bob", id)


@pytest.mark.parametrize(
    "id", ["", "r_", "r_000000000000", "../ann/r_000000000000", "r_00000000000\n", "r_" + "0" * 99]
)
async def test_a_guess_finds_nothing(daemon: Daemon, id: str) -> None:
    await daemon.keep()
    with pytest.raises(NotFound):
        await daemon.results.open("ann", id)


async def test_a_restart_changes_nothing(daemon: Daemon) -> None:
    id = await daemon.keep()
    daemon.restart()
    assert await daemon.has("ann", id)
    assert not await daemon.has("bob", id)


async def test_a_later_agent_of_the_same_name_reads_nothing(daemon: Daemon) -> None:
    """Also if the daemon was stopped when the agent ended, so that the files are still there."""
    id = await daemon.keep()
    daemon.created["ann"] = 2.0
    daemon.restart()
    assert not await daemon.has("ann", id)
    assert daemon.files()


async def test_results_are_deleted_with_their_agent_but_not_with_its_token(daemon: Daemon) -> None:
    id, other = await daemon.keep(), await daemon.keep("bob")
    daemon.bus.publish(AgentEnded(agent="ann", returns=True))
    assert await daemon.has("ann", id)
    daemon.bus.publish(AgentEnded(agent="ann"))
    await until(lambda: [file.name for file in daemon.files()] == [other])


async def test_an_expired_result_is_unknown_and_deleted(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    id, now = await daemon.keep(), time.time()
    monkeypatch.setattr(time, "time", lambda: now + LIVES + 1)
    assert not await daemon.has("ann", id)
    daemon.restart()
    await until(lambda: not list(daemon.folder.iterdir()))


async def test_a_changed_file_is_not_opened(daemon: Daemon) -> None:
    id = await daemon.keep()
    (file,) = daemon.files()
    whole = file.read_bytes()
    for content in (b"", whole[:-1], whole[:20] + b"x" + whole[21:], b"\0" * 1000):
        file.write_bytes(content)
        assert not await daemon.has("ann", id)
    file.write_bytes(whole)
    assert await daemon.has("ann", id)
    file.rename(file.with_name("elsewhere"))
    file.symlink_to(file.with_name("elsewhere"))
    assert not await daemon.has("ann", id)
    file.unlink()
    os.mkfifo(file)
    assert not await daemon.has("ann", id)


async def test_the_oldest_of_an_agent_make_room(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_results, "MAX_PER_AGENT", 3)
    bobs = await daemon.keep("bob")
    ids = [await daemon.keep() for _ in range(5)]
    assert [await daemon.has("ann", id) for id in ids] == [False, False, True, True, True]
    assert await daemon.has("bob", bobs)


@pytest.mark.parametrize("limit", ["MAX_AGENT_BYTES", "MAX_BYTES"])
async def test_the_oldest_make_room_for_the_size(daemon: Daemon, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setattr(kept_results, limit, 1000)
    agents = ["ann"] * 4 if limit == "MAX_AGENT_BYTES" else ["ann", "bob"] * 2
    large = KeptResult("s", "t", b"", b"x" * 300)
    for agent in agents:
        await daemon.keep(agent, large)
    assert 0 < sum(file.stat().st_size for file in daemon.files()) <= 1000
    assert len(daemon.files()) == 2
    monkeypatch.setattr(kept_results, limit, 300)
    assert limit != "MAX_AGENT_BYTES" or not await daemon.results.keep("ann", new_id(), large)


async def test_results_of_one_moment_are_all_kept(daemon: Daemon) -> None:
    ids = await asyncio.gather(*(daemon.keep() for _ in range(50)))
    assert all([await daemon.has("ann", id) for id in ids])


async def test_nothing_is_left_of_a_result_that_does_not_fit_on_the_disk(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", kilobytes=256) as disk:
        daemon = Daemon(disk.path)
        first = await daemon.keep()
        filler = disk.fill()
        assert not await daemon.results.keep("ann", new_id(), KeptResult("s", "t", b"", b"x" * 50_000))
        assert [file.name for file in daemon.files()] == [first]
        filler.unlink()
        assert await daemon.has("ann", await daemon.keep())
        await daemon.close()
