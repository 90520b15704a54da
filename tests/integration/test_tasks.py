"""Tasks in both forms: clients of both eras, servers of both eras, over stdio and HTTP.

One daemon connects every server. The clients write their own bytes; the servers record what they receive.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from parts.agent_clients import Owner
from parts.asked_clients import EVERYTHING, AskedClient, Json, Turn
from parts.daemon import Cli, Daemon, Home, StartDaemon
from parts.server_process import StartServer, stdio_command, stdio_entry
from parts.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.req("KSI-5", "KSI-9", "BNS-11")]

EXTENSION = "io.modelcontextprotocol/tasks"
RELATED = "io.modelcontextprotocol/related-task"
KNOWING: dict[str, Json] = {
    "legacy": EVERYTHING,
    "modern": {**EVERYTHING, "extensions": {EXTENSION: {}}},
}
SERVERS = {
    "stdio_modern": ("task_server", "stdio"),
    "http_modern": ("task_server", "http"),
    "stdio_legacy": ("sdk_v1_tasks", "stdio"),
    "http_legacy": ("sdk_v1_tasks", "http"),
}
MODERN, LEGACY = ("stdio_modern", "http_modern"), ("stdio_legacy", "http_legacy")
ENDED = ("completed", "failed", "cancelled")


@dataclass(frozen=True, kw_only=True)
class Scene:
    daemon: Daemon
    owner: Owner
    home: Home
    clients: dict[str, AskedClient]
    seen_files: dict[str, Path]

    def seen(self, server: str, method: str, text: str = "") -> list[Json]:
        file = self.seen_files[server]
        lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        return [line for line in lines if line.get("method") == method and text in json.dumps(line)]

    def client(self, name: str, era: str, capabilities: Json) -> AskedClient:
        token = self.owner.add(name, profile="developer", workdir=str(self.home.project))
        return AskedClient.at_endpoint(self.daemon, era, token, capabilities)


@pytest.fixture(scope="module")
def scene(
    shared_home: Home,
    start_shared_server: StartServer,
    start_shared_daemon: StartDaemon,
    parts: Callable[[str], list[str]],
) -> Iterator[Scene]:
    parts("mcp-v1")
    seen_files = {name: shared_home.path / f"{name}.seen" for name in SERVERS}
    servers: Json = {}
    for name, (program, transport) in SERVERS.items():
        flags = ["--seen", str(seen_files[name])]
        if transport == "stdio":
            servers[name] = stdio_entry(program, *flags)
        else:
            running = start_shared_server([*stdio_command(program, *flags), "--transport", "http"])
            servers[name] = {"url": running.url("http"), "transport": "http"}
    daemon = start_shared_daemon({"servers": servers})
    daemon.wait_until_ready(*servers)
    owner = Owner(daemon)
    found = Scene(daemon=daemon, owner=owner, home=shared_home, clients={}, seen_files=seen_files)
    for era in KNOWING:
        found.clients[era] = found.client(f"knows-{era}", era, KNOWING[era])
        found.clients[f"{era}_plain"] = found.client(f"plain-{era}", era, EVERYTHING)
    yield found
    for client in found.clients.values():
        client.line.close()


def create(client: AskedClient, tool: str, arguments: Json, **task: Any) -> Json:
    """Calls a tool as a task; a legacy client says so."""
    params = {"name": tool, "arguments": arguments} | ({"task": task} if client.era == "legacy" else {})
    result = client.ask("tools/call", params).result
    if client.era == "legacy":
        return dict(result["task"])
    assert result["resultType"] == "task", result
    return result


def look(client: AskedClient, task: Json) -> Json:
    return client.ask("tasks/get", {"taskId": task["taskId"]}).result


def until(client: AskedClient, task: Json, *statuses: str) -> Json:
    states: list[Json] = []
    wait_for(lambda: states.append(look(client, task)) or states[-1]["status"] in statuses, "the task's next status")
    return states[-1]


def ended(client: AskedClient, task: Json) -> Turn:
    """The end of a task: its result, as `tasks/result` or the state has it."""
    if client.era == "legacy":
        return client.ask("tasks/result", {"taskId": task["taskId"]})
    state = until(client, task, *ENDED)
    return Turn(asked={}, message={key: state[key] for key in ("result", "error") if key in state})


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("era", KNOWING)
def test_a_task_is_created_watched_and_fetched(scene: Scene, era: str, server: str) -> None:
    client = scene.clients[era]
    modern = server in MODERN
    arguments = {"looks": 1} if modern else {"messages": ["halfway"]}
    tool = f"{server}_{'steps' if modern else 'later'}"

    task = create(client, tool, arguments, ttl=30_000)
    assert task["status"] == "working"
    assert "secret" not in json.dumps(task)
    limits = ("ttl", "pollInterval") if era == "legacy" else ("ttlMs", "pollIntervalMs")
    assert set(limits) <= task.keys()
    assert not {"ttl", "pollInterval", "ttlMs", "pollIntervalMs"} - set(limits) & task.keys()
    assert task["createdAt"]
    state = look(client, task)
    assert (state["taskId"], state["status"] in (*ENDED, "working")) == (task["taskId"], True)
    result = ended(client, task).result

    assert "done" in result["content"][0]["text"]
    related = result.get("_meta", {}).get(RELATED)
    assert related == ({"taskId": task["taskId"]} if era == "legacy" else None)
    assert len([line for line in scene.seen(server, "tools/call") if "looks" in str(line) or "halfway" in str(line)])
    if not modern:
        assert result["structuredContent"]["messages"] == ["halfway"]
        assert result["_meta"]["vendor"] == 1
