"""Three servers connect, change, fail and reconnect in every order: the tools of connected servers are listed."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import quote

import pytest
from pytest import MonkeyPatch

from parts.sizes import FULL
from toolcrib.config.from_code import HttpServer, StdioServer, configs_of
from toolcrib.config.masking import Masker
from toolcrib.config.model import Config
from toolcrib.config.paths import Paths
from toolcrib.core.crib import Crib
from toolcrib.core.kit import Kit
from toolcrib.core.pins import PinnedServer, review_of
from toolcrib.core.project import Project
from toolcrib.core.projects import Projects
from toolcrib.core.server_registry import ServerRegistry
from toolcrib.credentials.vault import Vault
from toolcrib.errors import ServerUnavailable
from toolcrib.events import Bus
from toolcrib.servers import supervisor
from toolcrib.servers.breaker import Breaker
from toolcrib.servers.link import LinkContext, Peer, ServerLink
from toolcrib.servers.model import Era, Offers, ServerAnswer, ServerState

STEPS = {"a": ("connect", "change"), "b": ("connect", "restart"), "c": ("fail", "connect")}
if FULL:
    STEPS = {
        "a": ("connect", "change", "restart"),
        "b": ("connect", "change", "restart"),
        "c": ("fail", "connect", "change"),
    }
"""The steps of each server; the tests mix the three in every order."""
TURNS = 25
"""Turns of the event loop after which nothing is left to do: no process and no clock is involved."""


def every_order() -> Iterator[tuple[tuple[str, str], ...]]:
    """90 orders, and 1680 in a full run."""
    places = range(sum(map(len, STEPS.values())))
    for of_a in itertools.combinations(places, len(STEPS["a"])):
        for of_b in itertools.combinations(sorted(set(places) - set(of_a)), len(STEPS["b"])):
            steps = {name: iter(own) for name, own in STEPS.items()}
            whose = ("a" if place in of_a else "b" if place in of_b else "c" for place in places)
            yield tuple((name, next(steps[name])) for name in whose)


NewServers = Callable[[], "dict[str, FakeServer]"]


class FakeLink(ServerLink):
    """A connection to a `FakeServer`."""

    def __init__(self, server: FakeServer, context: LinkContext) -> None:
        super().__init__(server.name, on_lists_changed=context.on_lists_changed)
        self._peer = Peer(era=Era.LEGACY, version="2025-06-18")
        self._server = server

    async def _exchange(
        self, request_id: str, method: str, params: Mapping[str, Any], body: bytes, headers: Mapping[str, str]
    ) -> ServerAnswer:
        return ServerAnswer(result=json.dumps({"tools": [{"name": name} for name in self._server.tools]}).encode())

    def _abandon(self, request_id: str, reason: str) -> None:
        raise AssertionError("no request is abandoned here")

    async def _reply(self, message: bytes) -> None:
        raise AssertionError("the server asks nothing here")


class FakeServer:
    def __init__(self, name: str) -> None:
        self.name = name
        self.tools = [f"{name}1"]
        self.link: FakeLink | None = None
        self.refusal = "Refused."
        self._attempt: asyncio.Queue[bool] = asyncio.Queue()

    @contextlib.asynccontextmanager
    async def opened(self, context: LinkContext) -> AsyncIterator[FakeLink]:
        if not await self._attempt.get():
            raise ServerUnavailable(self.refusal)
        self.link = FakeLink(self, context)
        try:
            yield self.link
        finally:
            self.link = None

    def do(self, step: str) -> None:
        if step in {"connect", "fail"}:
            self._attempt.put_nowait(step == "connect")
            return
        self.tools = [*self.tools[-1:], f"{self.name}{len(self.tools) + 1}{step}"]
        if self.link is None:
            # It connected too late.
            return
        if step == "change":
            self.link.notice("notifications/tools/list_changed", {})
        else:
            self.link.lose("It fell over.")
            self._attempt.put_nowait(True)


@pytest.fixture
def fake_servers(monkeypatch: MonkeyPatch) -> NewServers:
    """New servers for each order, without pauses."""
    present: dict[str, FakeServer] = {}
    open_link = staticmethod(lambda config, context: present[config.name].opened(context))
    monkeypatch.setattr(supervisor.Supervisor, "_open_link", open_link)
    monkeypatch.setattr(supervisor, "_CALM", 0)
    monkeypatch.setattr(Breaker, "pause", lambda self: 0)

    def renew() -> dict[str, FakeServer]:
        present.update({name: FakeServer(name) for name in STEPS})
        return present

    return renew


async def rest() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


def configs() -> Any:
    return configs_of([StdioServer(name, command="none") for name in STEPS])


async def test_a_kit_has_the_tools_of_all_connected_servers(fake_servers: NewServers) -> None:
    for order in every_order():
        servers = fake_servers()
        kit = Kit(configs())
        opening = asyncio.create_task(kit.__aenter__())
        await rest()
        for name, step in order:
            servers[name].do(step)
            await rest()
            shown = {one: [tool.name for tool in kit.catalog.of_server(one)] for one in kit.connected}
            assert shown == {one: servers[one].tools for one in kit.connected}, (order, name, step)
        await opening
        assert (kit.connected, set(kit.missing)) == (("a", "b"), {"c"}), order
        await kit.__aexit__(None, None, None)


def names(project: Project) -> list[str]:
    return [tool.name for tool in project.catalog.tools]


def projects_with(tmp_path: Path, servers: Any, monkeypatch: MonkeyPatch) -> Projects:
    async def nothing(*_: object) -> None:
        return None

    async def unknown(*_: object) -> tuple[None, Offers]:
        return None, Offers()

    async def read_config(_: Path) -> Config:
        return Config(servers={config.name: config for config in servers})

    paths = SimpleNamespace(
        server_log=lambda name, root: None, install_locks=None, config_dir=tmp_path, search_cache=tmp_path
    )
    vault = Vault(Paths.of_user({"TOOLCRIB_HOME": str(tmp_path)}))
    crib = SimpleNamespace(
        bus=Bus(),
        environment=SimpleNamespace(root=tmp_path, mask=Masker(), paths=paths, vault=vault),
        trust=SimpleNamespace(
            trusted=lambda config: None,
            take_up=nothing,
            is_pinned=lambda config: True,
            must_wait=lambda *_, **__: False,
            offered=lambda config, root, tools, hold: tools,
            review=lambda config, root, tools: review_of({}, PinnedServer(tools={})),
        ),
        services=SimpleNamespace(
            last_known=SimpleNamespace(of=unknown, keep=nothing, forget=nothing),
            favorites=SimpleNamespace(version=0),
        ),
    )
    projects = Projects(cast(Crib, crib), builtins={})
    monkeypatch.setattr(projects, "read_config", read_config)
    return projects


async def test_a_project_has_the_tools_of_servers_once_connected(
    fake_servers: NewServers, tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    for order in every_order():
        servers = fake_servers()
        projects = projects_with(tmp_path, configs(), monkeypatch)
        project = await projects.at(tmp_path)
        announced: list[list[str]] = []
        project.subscribe(lambda _, project=project, announced=announced: announced.append(names(project)))  # type: ignore[misc]
        seen: set[str] = set()
        for name, step in order:
            servers[name].do(step)
            await rest()
            seen |= {name} if step == "connect" else set()
            assert names(project) == [tool for one in sorted(seen) for tool in servers[one].tools], (order, name, step)
            assert not announced or announced[-1] == names(project), (order, name, step)
        assert seen == set(STEPS)
        await projects.close()


async def test_a_reconnected_project_has_new_tools(
    fake_servers: NewServers, tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    server = fake_servers()["a"]
    projects = projects_with(tmp_path, configs_of([HttpServer("a", url="http://127.0.0.1:9/")]), monkeypatch)
    home = await projects.at(tmp_path)
    registering = ServerRegistry(projects)
    server.do("connect")
    await rest()
    assert names(home) == ["a1"]
    await registering.disconnect("a")
    server.tools = ["a2"]
    server.do("connect")
    other = await projects.at(tmp_path / "other")
    await rest()
    assert names(other) == ["a2"]
    await registering.connect("a")
    assert names(home) == ["a2"]
    await projects.close()


async def test_a_server_that_is_disconnected_twice_stays_connected_for_other_projects(
    fake_servers: NewServers, tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    server = fake_servers()["a"]
    projects = projects_with(tmp_path, configs_of([HttpServer("a", url="http://127.0.0.1:9/")]), monkeypatch)
    home, other = await projects.at(tmp_path), await projects.at(tmp_path / "other")
    registering, shared = ServerRegistry(projects), other.servers["a"]
    server.do("connect")
    await rest()
    for _ in range(2):
        await registering.disconnect()
        assert (home.servers["a"].status.state, names(home)) == (ServerState.STOPPED, ["a1"])
        assert shared.status.state is ServerState.READY
    await registering.connect("a")
    assert home.servers["a"] is shared
    await registering.disconnect("a")
    assert shared.status.state is ServerState.READY
    await projects.close()


async def test_of_two_tools_whose_names_are_stored_alike_only_the_first_is_listed(
    fake_servers: NewServers, tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    server = fake_servers()["a"]
    server.tools = ["read\0", "read\\u0000", "write"]
    projects = projects_with(tmp_path, configs_of([HttpServer("a", url="http://127.0.0.1:9/")]), monkeypatch)
    home = await projects.at(tmp_path)
    server.do("connect")
    await rest()
    assert names(home) == ["read\0", "write"]
    await projects.close()


async def test_a_reload_during_the_close_starts_no_server(
    fake_servers: NewServers, tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    fake_servers()
    projects = projects_with(tmp_path, [], monkeypatch)
    await projects.at(tmp_path)
    read = asyncio.Event()

    async def read_late(_: Path) -> Config:
        await read.wait()
        return Config(servers={config.name: config for config in configs()})

    monkeypatch.setattr(projects, "read_config", read_late)
    reloading = asyncio.create_task(projects.reload())
    await rest()
    closing = asyncio.create_task(projects.close())
    await rest()
    read.set()
    await closing
    with pytest.raises(ServerUnavailable, match="Toolcrib is stopping"):
        await reloading
    assert projects.pool.servers == ()


@pytest.mark.req("KSI-5")
async def test_errors_of_a_server_have_no_secrets(
    fake_servers: NewServers, tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    server, secret = fake_servers()["a"], 'p@ss/w"ord+1'
    forms = (secret, base64.b64encode(secret.encode()).decode(), quote(secret, safe=""), json.dumps(secret)[1:-1])
    given = HttpServer("a", url="http://127.0.0.1:9/", headers={"Authorization": f"Bearer {secret}"})
    projects = projects_with(tmp_path, configs_of([given]), monkeypatch)
    shown = (await projects.at(tmp_path)).servers["a"]
    server.refusal = f"Not with {' '.join(forms)}."
    server.do("fail")
    await rest()
    assert shown.status.last_error == "Not with **** **** **** ****."
    server.do("connect")
    await rest()
    assert (shown.status.state, shown.status.last_error) == (ServerState.READY, "")
    assert server.link is not None
    server.link.lose(f"Failed: {' '.join(forms)}.")
    await rest()
    assert shown.status.last_error == "Failed: **** **** **** ****."
    await projects.close()
