"""The watcher of configuration files survives one project's errors, and spares the daemon costly files."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from pytest import LogCaptureFixture, MonkeyPatch

from parts.waiting import until
from toolcrib.core import config_watch
from toolcrib.core.config_watch import WatchedPlaces, watching


class FakeProjects:
    """Each survey finds an edit; the first may fail. `costly`: seconds that each reload takes to load."""

    def __init__(self, folder: Path, *, broken: bool = False, costly: float = 0.0) -> None:
        self.files = frozenset({folder / "config.json"})
        self.surveys = self.reloads = 0
        self.seconds_loading = 0.0
        self._broken, self._costly = broken, costly

    def is_edited(self) -> bool:
        self.surveys += 1
        if self._broken and self.surveys == 1:
            raise RuntimeError("broken survey")
        return True

    async def reload_edited(self) -> None:
        self.reloads += 1
        self.seconds_loading += self._costly


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
    projects = FakeProjects(tmp_path, broken=True)
    async with watching(cast(Any, projects)):
        await until(lambda: projects.reloads, "the reload after the error")
    assert caplog.text.count("could not watch the configuration's files") == 1


async def test_a_file_that_keeps_changing_and_is_costly_to_load_is_not_loaded_each_time(
    tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    monkeypatch.setattr(config_watch, "LOOK_AGAIN", 10)
    projects = FakeProjects(tmp_path, costly=1000.0)
    async with watching(cast(Any, projects)):
        await until(lambda: projects.reloads, "the first reload")
        before = projects.surveys
        await until(lambda: projects.surveys > before + 3, "more surveys")
        assert projects.reloads == 1
