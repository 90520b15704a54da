"""MCP Apps: real servers from npm whose tools are shown by an app, which a client reads as a `ui://` resource."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from parts.agent_clients import ERAS, AgentClient, Owner
from parts.daemon import Daemon, StartDaemon
from parts.raw_client import INITIALIZE, legacy_request, notice

pytestmark = [pytest.mark.slow, pytest.mark.req("ENG-9")]

APPS = {
    "app-map": ("show-map", "ui://cesium-map/mcp-app.html"),
    "app-budget-allocator": ("get-budget-data", "ui://budget-allocator/mcp-app.html"),
    "app-cohort-heatmap": ("get-cohort-data", "ui://get-cohort-data/mcp-app.html"),
}
LIMIT = 60.0


@pytest.fixture(scope="module")
def commands(parts: Callable[[str], list[str]]) -> dict[str, list[str]]:
    return {name: [*parts(name), "--stdio"] for name in APPS}


@pytest.fixture(scope="module")
def daemon_with_apps(start_shared_daemon: StartDaemon, commands: dict[str, list[str]]) -> Daemon:
    # The same app twice, as two configured servers.
    servers = {**commands, "second-map": commands["app-map"]}
    started = start_shared_daemon(
        {"servers": {name: {"command": words[0], "args": words[1:]} for name, words in servers.items()}}
    )
    started.wait_until_ready(*servers)
    return started


def directly(words: list[str], uri: str) -> tuple[Any, bytes]:
    """The server's tools, and the exact result of a read, without Toolcrib."""
    asked = legacy_request("tools/list", id=2), legacy_request("resources/read", {"uri": uri}, id=3)
    sent = [INITIALIZE, notice("notifications/initialized"), *asked]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"".join(line + b"\n" for line in sent))
        process.stdin.flush()
        lines = [process.stdout.readline().strip() for _ in range(3)]
        process.kill()
    found = {json.loads(line)["id"]: line for line in lines}
    suffix = b',"jsonrpc":"2.0","id":3}'
    assert found[3].endswith(suffix)
    return json.loads(found[2])["result"]["tools"], found[3].removeprefix(b'{"result":').removesuffix(suffix)


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("name", APPS)
def test_an_app_is_linked_and_read_as_its_server_has_it(
    daemon_with_apps: Daemon, commands: dict[str, list[str]], name: str, era: str
) -> None:
    tool, uri = APPS[name]
    tools, app = directly(commands[name], uri)
    meta = next(one["_meta"] for one in tools if one["name"] == tool)
    token = Owner(daemon_with_apps).add(f"{name}-{era}", f"{name}:*", f"resource:{name}:**")
    with AgentClient(daemon_with_apps, f"{name}-{era}", token, era) as client:
        listed = {one["name"]: one for one in client.ask("tools/list").result["tools"]}
        shown = listed[f"{name}_{tool}"]
        assert meta["ui"]["resourceUri"] == uri
        public = uri.replace("ui://", "ui://app-map+") if name == "app-map" else uri
        assert shown["_meta"]["ui"] == {**meta["ui"], "resourceUri": public}
        read = client.ask("resources/read", {"uri": public})
        if name == "app-map":
            assert read.result["contents"][0]["uri"] == public
            assert read.result["contents"][0]["text"] == json.loads(app)["contents"][0]["text"]
        elif era == "legacy":
            assert read.message == b'{"jsonrpc":"2.0","id":0,"result":%b}' % app
        else:
            assert app.removeprefix(b"{") in read.message


@pytest.mark.req("KSI-9")
def test_a_denied_app_is_not_linked(daemon_with_apps: Daemon) -> None:
    owner = Owner(daemon_with_apps)
    token = owner.add("blind", "app-budget-allocator:*")
    owner.deny("blind", "resource:app-budget-allocator:**")
    with AgentClient(daemon_with_apps, "blind", token, "modern") as client:
        tools = {one["name"]: one for one in client.ask("tools/list").result["tools"]}
        assert "resourceUri" not in json.dumps(tools["app-budget-allocator_get-budget-data"].get("_meta"))
        assert client.ask("resources/list").result["resources"] == []
        assert client.ask("resources/read", {"uri": "ui://budget-allocator/mcp-app.html"}).status == 403
        plain = client.call("get-budget-data").result
        assert plain.get("isError") is not True, "an app calls its server's tool by the plain name"
