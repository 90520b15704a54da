"""The watcher of configuration files survives what one project's files do to it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

from pytest import LogCaptureFixture, MonkeyPatch

from toolcrib.core import config_watch
from toolcrib.core.config_watch import WatchedPlaces, watching

LIMIT = 60.0


class FakeProjects:
    """Its first survey fails; later ones find an edit."""

    def __init__(self, folder: Path) -> None:
        self.files = frozenset({folder / "config.json"})
        self.surveys = 0
        self.reloaded = asyncio.Event()

    def is_edited(self) -> bool:
        self.surveys += 1
        if self.surveys == 1:
            raise RuntimeError("broken survey")
        return True

    async def reload_edited(self) -> None:
        self.reloaded.set()


def test_a_folder_that_cannot_be_examined_does_not_hide_the_others(tmp_path: Path) -> None:
    # As for a folder without permission, the system refuses to examine the path; root gets this error too.
    refused = tmp_path / ("x" * 300) / "config.json"
    other = tmp_path / "other"
    other.mkdir()
    places = WatchedPlaces([refused, other / "config.json"])
    assert places.folders == [tmp_path, other]


async def test_an_unexpected_error_does_not_end_live_configuration(
    tmp_path: Path, monkeypatch: MonkeyPatch, caplog: LogCaptureFixture
) -> None:
    monkeypatch.setattr(config_watch, "LOOK_AGAIN", 10)
    projects = FakeProjects(tmp_path)
    async with watching(cast(Any, projects)):
        async with asyncio.timeout(LIMIT):
            await projects.reloaded.wait()
    assert caplog.text.count("could not watch the configuration's files") == 1
