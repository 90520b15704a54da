"""A call's relative path starts at the called server's folder, not at the agent's."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from toolcrib.config.layers import load, store_location
from toolcrib.config.model import ConfigSource, Flags, Layer, ServerConfig, Transport
from toolcrib.config.paths import Paths, project_of
from toolcrib.core.crib import Crib
from toolcrib.core.kit import Kit
from toolcrib.policy import RuleOrigin, Verdict, rule_from
from toolcrib.servers.model import Offers
from toolcrib.servers.server import Server
from toolcrib.store import servers as tools
from toolcrib.store.database import Store

pytestmark = pytest.mark.req("KSI-5")


@pytest.fixture
async def crib(tmp_path: Path) -> AsyncIterator[Crib]:
    """With four unavailable servers whose tools are known."""
    root = (tmp_path / "project").resolve()
    for folder in (".git/HEAD", "sub", "keys", "kid/.git/HEAD", "kid/src", "src"):
        (root / folder).mkdir(parents=True)
    environ = {"TOOLCRIB_HOME": str(tmp_path / "home"), "HOME": str(tmp_path)}
    paths = Paths.of_user(environ)
    paths.user_config.parent.mkdir(parents=True, exist_ok=True)
    missing = str(tmp_path / "no-such-program")
    servers = {
        "files": {"command": missing, "cwd": "project"},
        "neutral": {"command": missing, "args": ["${workspaceFolder}"]},
        "own": {"command": missing, "cwd": str(root / "sub")},
        "far": {"url": "http://127.0.0.1:9/mcp"},
    }
    paths.user_config.with_suffix(".json").write_text(json.dumps({"mcpServers": servers}))
    store = await Store.open(store_location(paths, environ, Flags()))
    for config in load(paths=paths, root=root, environ=environ).servers.values():
        for place in (root, root / "kid"):
            await store.write(tools.remember_tools, config.listing_identity, str(place), (b'{"name": "read"}',))
    await store.close()
    async with Crib(paths=paths, root=root, environ=environ) as crib:
        yield crib


async def verdict(crib: Crib, agent: str, tool: str, path: Path | str) -> Verdict:
    found = crib.services.agents.find(agent)
    assert found.workdir is not None
    project = await crib.projects.at(project_of(found.workdir))
    return found.permission.decide(project.find(tool), {"path": str(path)}).verdict


async def test_a_tool_has_its_servers_folder(crib: Crib) -> None:
    assert {tool.server: tool.folder for tool in crib.projects.home.catalog.tools} == {
        "files": str(crib.environment.root),
        "neutral": None,
        "own": str(crib.environment.root / "sub"),
        "far": None,
    }
    kid = await crib.projects.at(crib.environment.root / "kid")
    assert kid.find("files:read").folder == str(crib.environment.root / "kid")


async def test_an_agent_cannot_read_above_its_folder_with_a_relative_path(crib: Crib) -> None:
    allow = rule_from({"allow": "*", "when": {"path": {"under": "."}}}, where="t", origin=RuleOrigin.AGENT)
    await crib.services.agents.add("w", profile="nothing", workdir=crib.environment.root / "sub", rules=[allow])
    for path in (crib.environment.root / "a", "a", "./a", "sub/../a"):
        assert await verdict(crib, "w", "files:read", path) is Verdict.DENY
    for tool, path in (("files:read", "sub/a"), ("own:read", "a"), ("far:read", crib.environment.root / "sub/a")):
        assert await verdict(crib, "w", tool, path) is Verdict.ALLOW
    assert await verdict(crib, "w", "far:read", "a") is Verdict.DENY


async def test_a_denied_folder_is_denied_for_relative_paths(crib: Crib) -> None:
    deny = rule_from({"deny": "*", "when": {"path": {"under": str(crib.environment.root / "keys")}}}, where="t")
    await crib.services.agents.add("d", profile="developer", workdir=crib.environment.root / "sub", rules=[deny])
    denied = [(f"{server}:read", "keys/k") for server in ("files", "far", "neutral")]
    for tool, path in (*denied, ("own:read", "../keys/k"), ("far:read", "k")):
        assert await verdict(crib, "d", tool, path) is Verdict.DENY
    for tool, path in (("files:read", "src/a"), ("own:read", "keys/k"), ("far:read", "/srv/a")):
        assert await verdict(crib, "d", tool, path) is Verdict.ALLOW


@pytest.mark.req("KSI-3")
async def test_a_child_in_another_project_gets_no_more_than_its_parent_with_a_relative_path(crib: Crib) -> None:
    allow = rule_from({"allow": "files:*", "when": {"path": {"under": "src"}}}, where="t", origin=RuleOrigin.AGENT)
    await crib.services.agents.add("lead", profile="nothing", workdir=crib.environment.root, rules=[allow])
    await crib.services.agents.add("kid", profile="developer", workdir=crib.environment.root / "kid", parent="lead")
    for path in (crib.environment.root / "kid/src/x", "src/x"):
        assert await verdict(crib, "kid", "files:read", path) is Verdict.DENY
    for path in (crib.environment.root / "src/x", "../src/x"):
        assert await verdict(crib, "kid", "files:read", path) is Verdict.ALLOW


@pytest.mark.parametrize(
    ("transport", "cwd", "folder"),
    [(Transport.STDIO, None, "/root"), (Transport.STDIO, "/own", "/own"), (Transport.HTTP, None, None)],
)
def test_the_tools_of_a_kit_have_their_servers_folder(
    transport: Transport, cwd: str | None, folder: str | None
) -> None:
    config = ServerConfig(name="s", transport=transport, source=ConfigSource(layer=Layer.USER), cwd=cwd)
    kit = Kit([config], root=Path("/root"))
    kit._servers["s"] = cast(Server, SimpleNamespace(config=config, tools=(b'{"name": "read"}',), offers=Offers()))
    assert [tool.folder for tool in kit._built(None).tools] == [folder]
