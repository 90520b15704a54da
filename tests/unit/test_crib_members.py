"""The members of a `Crib`, and changes of its catalogs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from toolcrib.config.paths import Paths
from toolcrib.core.config_watch import watching
from toolcrib.core.crib import Crib
from toolcrib.core.project import Project
from toolcrib.core.workspace import WorkspaceServer

LIMIT = 60.0
MOST_MEMBERS = 23


@pytest.fixture
async def crib(tmp_path: Path) -> AsyncIterator[Crib]:
    root = tmp_path / "project"
    (root / ".toolcrib").mkdir(parents=True)
    environ = {"TOOLCRIB_HOME": str(tmp_path / "home"), "HOME": str(tmp_path)}
    made = Crib(paths=Paths.of_user(environ), root=root, environ=environ, builtins={"workspace": WorkspaceServer()})
    async with made, watching(made.projects):
        yield made


async def test_a_crib_stays_small(crib: Crib) -> None:
    members = {name for name in (*dir(Crib), *vars(crib)) if not name.startswith("_")}
    assert len(members) <= MOST_MEMBERS, sorted(members)


async def test_a_catalog_is_a_plain_attribute(crib: Crib) -> None:
    assert "catalog" in vars(crib.projects.home)
    assert not hasattr(Project, "catalog")


async def test_changed_workspace_settings_change_the_catalog(crib: Crib) -> None:
    home = crib.projects.home
    changed = asyncio.Event()
    home.subscribe(lambda _: changed.set())
    settings = home.root / ".toolcrib" / "workspace.yml"

    async def write(text: str) -> set[str]:
        changed.clear()
        settings.write_text(text)
        async with asyncio.timeout(LIMIT):
            await changed.wait()
        return {tool.name for tool in home.catalog.of_server("workspace")}

    assert "read_file" not in await write("tools: {read_file: off}\n")
    assert "read_file" in await write("tools: {list_dir: off}\n")


async def test_a_project_counts_its_users(crib: Crib) -> None:
    home = crib.projects.home
    before = home.touched
    with home.in_use(), home.in_use():
        assert home.users == 2
    assert home.users == 0
    assert home.touched > before
