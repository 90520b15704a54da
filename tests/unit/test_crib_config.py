"""A crib with several projects follows changes of its configuration."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from toolcrib.config.layers import load, store_location
from toolcrib.config.model import Config, Flags, NameStyle
from toolcrib.config.paths import Paths
from toolcrib.config.settings import SETTINGS, USER_ONLY_SETTINGS
from toolcrib.config.trust import trust_digest
from toolcrib.core import projects
from toolcrib.core.crib import Crib
from toolcrib.core.project import Project
from toolcrib.events import ConfigProblem, Event
from toolcrib.identity.principal import OWNER
from toolcrib.store import servers
from toolcrib.store.database import Store

pytestmark = pytest.mark.req("BNS-3")

GOOD = "servers:\n  far: {url: 'http://127.0.0.1:9/mcp'}\n"


@pytest.fixture
async def crib(tmp_path: Path) -> AsyncIterator[Crib]:
    """With an unavailable server in the user's file, whose tools are known."""
    environ = {"TOOLCRIB_HOME": str(tmp_path / "home"), "HOME": str(tmp_path)}
    paths = Paths.of_user(environ)
    (tmp_path / "home").mkdir()
    for name in ("project", "other"):
        (tmp_path / name / ".toolcrib").mkdir(parents=True)
    (tmp_path / "home" / "config.yml").write_text(GOOD)
    store = await Store.open(store_location(paths, environ, Flags()))
    (far,) = load(paths=paths, root=None, environ=environ).servers.values()
    for name in ("project", "other"):
        await store.write(servers.remember_tools, far.identity, str(tmp_path / name), (b'{"name": "read"}',))
    await store.close()
    async with Crib(paths=paths, root=tmp_path / "project", environ=environ) as crib:
        yield crib


async def other(crib: Crib, tmp_path: Path, text: str = "") -> Project:
    """A second project, with this as its trusted file."""
    if text:
        file = tmp_path / "other" / ".toolcrib" / "config.yml"
        file.write_text(text)
        await crib.trust.add_file(file, trust_digest(file))
    return await crib.projects.at(tmp_path / "other")


def listed(crib: Crib, project: Project) -> list[str]:
    return [tool["name"] for tool in json.loads(project.listings.tools(project.catalog, OWNER.permission()))]


@pytest.mark.parametrize(
    "mistake",
    [
        "servers: [unclosed\n",
        "servers: 5\n",
        GOOD.replace("servers", "server"),
        f"{GOOD}servers: {{}}\n",
        "- a list\n",
        "\x00",
        "servers: {far: {url: 'http://127.0.0.1:9/mcp'}}\n  odd: indent\n",
    ],
)
async def test_a_mistake_in_the_users_file_removes_no_server_and_is_reported_in_every_project(
    crib: Crib, tmp_path: Path, mistake: str
) -> None:
    published: list[Event] = []
    crib.bus.subscribe(published.append, ConfigProblem)
    second = await other(crib, tmp_path)
    running = dict(second.servers)
    crib.environment.paths.user_config.write_text(mistake)
    await crib.projects.reload()
    third = await crib.projects.at(tmp_path / "third")
    assert second.servers == running, "not even for a moment"
    assert [set(one.servers) for one in (crib.projects.home, third)] == [{"far"}, {"far"}]
    for project in (crib.projects.home, second, third):
        texts = [str(problem) for problem in project.config.problems]
        assert any("stays in effect" in text for text in texts), texts
        assert len(texts) > 1, "what the mistake is"
        assert [event.problem for event in published if isinstance(event, ConfigProblem)] == texts, "each once"
    crib.environment.paths.user_config.write_text("servers: {}\n")
    await crib.projects.reload()
    assert [(project.servers, project.config.problems) for project in crib.projects] == [({}, ())] * 3


async def test_files_are_loaded_in_a_thread_so_that_a_large_one_stalls_nobody(
    crib: Crib, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []

    def noted(**given: Any) -> Config:
        threads.append(threading.get_ident())
        return load(**given)

    monkeypatch.setattr(projects, "load", noted)
    await crib.projects.reload()
    assert threads and threading.get_ident() not in threads


async def test_removing_the_users_file_is_not_a_mistake(crib: Crib) -> None:
    crib.environment.paths.user_config.unlink()
    await crib.projects.reload()
    assert (crib.projects.home.servers, crib.projects.home.config.problems) == ({}, ())


async def test_each_project_has_its_own_naming_style_and_a_change_has_a_new_catalog_version(
    crib: Crib, tmp_path: Path
) -> None:
    second = await other(crib, tmp_path, "names: mcp\n")
    assert listed(crib, crib.projects.home) == ["far_read"]
    assert listed(crib, second) == ["mcp_far_read"]
    version = second.catalog.version
    await other(crib, tmp_path, "names: plain\n")
    await crib.projects.reload()
    assert listed(crib, second) == ["read"]
    assert second.catalog.version > version, "clients are notified of it"
    assert second.config.settings.names is NameStyle.PLAIN


@pytest.mark.parametrize("key", sorted(SETTINGS))
async def test_a_projects_file_may_set_only_the_projects_own_settings(crib: Crib, tmp_path: Path, key: str) -> None:
    values = {
        "names": "plain",
        "pins": "hold",
        "listing": "thin",
        "port": 1,
        "log_level": "debug",
        "store": "x.db",
        "workspace": False,
        "jobs": {},
    }
    second = await other(crib, tmp_path, json.dumps({key: values.get(key, True if key == "audit_values" else 2)}))
    problems = [str(problem) for problem in second.config.problems]
    if key in USER_ONLY_SETTINGS:
        assert ["it in your own file only" in text for text in problems] == [True]
        assert second.config.settings == crib.projects.home.config.settings
    else:
        assert problems == []
        assert second.config.settings != crib.projects.home.config.settings


LIMITS = ("call_timeout: 7", "call_timeouts: {t: 7}", "max_waiting_calls: 7", "connect_timeout: 7", "max_message_mb: 7")


@pytest.mark.parametrize("limit", [*LIMITS, "retry: {backoff: 7}"])
async def test_a_project_has_its_own_limits_for_a_shared_server(crib: Crib, tmp_path: Path, limit: str) -> None:
    second = await other(crib, tmp_path, f"servers: {{far: {{url: 'http://127.0.0.1:9/mcp', {limit}}}}}")
    third = await crib.projects.at(tmp_path / "third")
    (mine,), (theirs,), (shared,) = (one.servers.values() for one in (second, crib.projects.home, third))
    assert mine.config.limits != theirs.config.limits
    assert shared is theirs
