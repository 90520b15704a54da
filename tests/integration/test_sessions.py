"""Sessions survive a restart of the daemon and end on time; the owner can list and end them."""

from __future__ import annotations

import contextlib
import functools
import json
import socket
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from parts.agent_clients import ERAS, AgentClient, AgentEndpoint, Owner, nonce_of, refusal
from parts.client import MODES
from parts.daemon import Cli, Daemon, StartDaemon, run_cli, shared_daemon
from parts.raw_client import LEGACY, SocketClient, legacy_request, notice, request
from parts.recording_server import Notes
from parts.waiting import wait_for

pytestmark = pytest.mark.req("KSI-3", "KSI-9")

RESTARTS: dict[str, Callable[[Daemon], object]] = {"stopped": Daemon.stop, "killed": Daemon.kill}
Start = Callable[..., Daemon]


@pytest.fixture
def start(daemon: StartDaemon, tmp_path: Path) -> Start:
    """Starts a daemon with a server, or starts it again, and waits until it is ready."""

    def started(*args: str, again: bool = False, env: dict[str, str] | None = None, **settings: Any) -> Daemon:
        config = {"servers": {"w": Notes(tmp_path / "seen").server("t")}, **settings}
        made = daemon(None if again else config, *args, env=env)
        made.wait_until_ready()
        return made

    return started


@pytest.mark.parametrize("how", RESTARTS)
@pytest.mark.usual(engine="sqlite")
def test_a_legacy_session_continues_after_a_restart(start: Start, store_env: dict[str, str], how: str) -> None:
    first = start(env=store_env)
    owner = Owner(first)
    tokens = {name: owner.add(name, "w:*") for name in ("a", "b")}
    own = AgentEndpoint(first, tokens["a"]).begin()
    labelled = AgentEndpoint(first, tokens["b"], ("X-Toolcrib-Conversation", "plan")).begin()
    owners = AgentEndpoint(first, first.token).begin()
    params = {"name": "w_t", "arguments": {"nonce": "1"}}
    assert AgentEndpoint(first, tokens["a"]).legacy(own, "tools/call", params).status == 200
    RESTARTS[how](first)
    second = start(again=True, env=store_env)
    assert second.token == first.token
    for name, session in (("a", own), ("b", labelled)):
        mcp = AgentEndpoint(second, tokens[name])
        assert nonce_of(mcp.legacy(session, "tools/call", params)) == "1"
        with mcp.connect() as stream:
            stream.send(mcp.stream_bytes(session))
            assert stream.head()[0] == 200
            Owner(second).deny(name, "w:other")
            assert stream.event()["method"] == "notifications/tools/list_changed"
    assert AgentEndpoint(second, second.token).legacy(owners, "ping").status == 200
    for token, session in ((tokens["a"], labelled), (tokens["b"], own), (second.token, own), (tokens["a"], owners)):
        assert AgentEndpoint(second, token).legacy(session, "ping").status == 404


@pytest.mark.usual(engine="postgresql")
def test_a_sessions_counters_survive_a_restart(start: Start, store_env: dict[str, str]) -> None:
    first = start(env=store_env)
    token = Owner(first).add("a", "w:t")
    with AgentClient(first, "a", token, "modern", conversation="plan") as client:
        client.tools()
        assert nonce_of(client.call("w_t", nonce="x" * 100)) is not None
        assert "may not use" in refusal(client.call("w_release"))
        assert "no tool" in refusal(client.call("w_nothing"))
        assert "nonce" in refusal(client.call("w_t", nonce=7))

    def row(of: Daemon) -> dict[str, Any] | None:
        (session,) = [one["id"] for one in Owner(of).sessions() if one["agent"] == "a"]
        found = Owner(of).say("session:show", id=session)
        kinds = {kind for kind, tokens in found["tokens_by_kind"].items() if tokens}
        return found if kinds == {"lists", "repairs", "arguments", "results"} else None

    before = wait_for(lambda: row(first), "tokens of every kind")
    assert (before["conversation"], before["listings"], before["calls"], before["denied"]) == ("plan", 1, 3, 1)
    assert (before["searches"], before["repairs"], before["mean_rank"]) == (0, 2, None)
    assert before["tokens"] == sum(before["tokens_by_kind"].values())
    assert before["result_bytes"] > 100
    assert (before["tokens_estimated"], before["mode"]) == (False, "full")
    first.stop()
    second = start(again=True, env=store_env)
    after = row(second)
    assert after is not None
    counts = before.keys() - {"idle", "tokens", "tokens_by_kind"}
    assert {name: after[name] for name in counts} == {name: before[name] for name in counts}
    # The last answers may have been counted when the daemon stopped.
    assert all(tokens >= before["tokens_by_kind"][kind] for kind, tokens in after["tokens_by_kind"].items())


async def test_clients_of_the_sdk_do_not_notice_a_restart(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
    first = await anyio.to_thread.run_sync(start, "--port", port)
    headers = {"Authorization": f"Bearer {Owner(first).add('a', 'w:*')}"}
    async with contextlib.AsyncExitStack() as stack:
        clients = []
        for era in ERAS:
            http = await stack.enter_async_context(httpx2.AsyncClient(headers=headers, timeout=20, trust_env=False))
            transport = streamable_http_client(first.endpoint, http_client=http, max_sse_event_size=None)
            clients.append(await stack.enter_async_context(Client(transport, mode=MODES[era])))
            assert [tool.name for tool in (await clients[-1].list_tools()).tools] == ["w_t", "w_release", "crib_result"]
        first.kill()
        second = await anyio.to_thread.run_sync(functools.partial(start, "--port", port, again=True))
        assert second.pid != first.pid
        for client in clients:
            with anyio.fail_after(60):
                result = await client.call_tool("w_t", {"nonce": "after"})
            assert (result.structured_content or {})["nonce"] == "after"


def test_an_idle_session_ends_and_the_next_request_begins_another(start: Start) -> None:
    first = start(session_idle_hours=1)
    token = Owner(first).add("a", "w:*")
    ages = {f"{era} {ago}": (era, ago) for era in ERAS for ago in (3660, 1800)}
    clients = {label: AgentClient(first, "a", token, era, conversation=label) for label, (era, _) in ages.items()}
    for client in clients.values():
        assert nonce_of(client.call("w_t", nonce="1")) == "1"
        client.close()
    before = {one["conversation"]: one["id"] for one in Owner(first).sessions()}
    first.stop()
    with contextlib.closing(sqlite3.connect(first.home.toolcrib / "state" / "mcp_sessions.db")) as store:
        for label, (_, ago) in ages.items():
            store.execute("UPDATE sessions SET used_at = used_at - ? WHERE conversation = ?", (ago, label))
        store.commit()
    second = start(again=True)
    for label, (era, ago) in ages.items():
        mcp = AgentEndpoint(second, token, ("X-Toolcrib-Conversation", label))
        if era == "legacy":
            assert mcp.legacy(clients[label].session, "tools/list").status == (404 if ago == 3660 else 200)
        else:
            assert mcp.modern("tools/list").status == 200
    after = {one["conversation"]: one["id"] for one in Owner(second).sessions()}
    assert {label: after.get(label) == before[label] for label in ages} == {
        label: ago == 1800 for label, (_, ago) in ages.items()
    }


@dataclass(frozen=True, kw_only=True)
class Shared:
    daemon: Daemon
    owner: Owner
    cli: Cli
    notes: Notes


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    notes = Notes(tmp_path_factory.mktemp("notes") / "seen")
    with shared_daemon({"servers": {"w": notes.server("t", cwd="project")}}, ready=["w"]) as daemon:
        yield Shared(daemon=daemon, owner=Owner(daemon), cli=functools.partial(run_cli, daemon.home), notes=notes)


def test_an_agent_with_a_folder_uses_the_servers_of_that_project(shared: Shared, tmp_path: Path) -> None:
    """A server that starts in the project's folder runs once per project: its pid shows the project."""
    (tmp_path / "other" / ".git" / "HEAD").mkdir(parents=True)
    (tmp_path / "other" / "src").mkdir()
    folders = {"home": "", "other": str(tmp_path / "other"), "inner": str(tmp_path / "other" / "src")}
    for name, folder in folders.items():
        token = shared.owner.add(name, "w:*", **({"workdir": folder} if folder else {}))
        for era in ERAS:
            with AgentClient(shared.daemon, name, token, era) as client:
                assert nonce_of(client.call("w_t", nonce=f"{name} {era}")) == f"{name} {era}"
    calls = [(line["arguments"]["nonce"].split()[0], line["pid"]) for line in shared.notes.calls()]
    pids = {name: pid for name, pid in calls if name in folders}
    assert {pair for pair in calls if pair[0] in folders} == set(pids.items())
    assert pids["other"] == pids["inner"] != pids["home"]


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.req("KSI-5")
def test_a_bridge_is_notified_of_a_changed_permission_and_ends_with_its_agent(shared: Shared, era: str) -> None:
    name, owner, daemon = f"bridged-{era}", shared.owner, shared.daemon

    def agents() -> set[str]:
        return {one["agent"] for one in owner.sessions()} & {name, "client"}

    with SocketClient(daemon, bridge=False) as bridge, SocketClient(daemon) as other:
        token = owner.add(name, "w:*")
        hello = {"root": str(daemon.home.project), "conversation": "c", "token": token}
        bridge.send(notice("toolcrib/bridge", hello))
        begin_listening(bridge, era)
        begin_listening(other, era)
        owner.deny(name, "w:t")
        assert bridge.message()["method"] == "notifications/tools/list_changed"
        assert agents() == {name, "client"}
        owner.remove(name)
        messages = []
        with pytest.raises(ConnectionError):
            while True:
                messages.append(bridge.message())
        assert "revoked" in messages[-1]["error"]["message"]
        assert agents() == {"client"}
        # The other bridge received nothing.
        other.send(legacy_request("ping", id=9) if era == "legacy" else b"{")
        assert "method" not in other.message()


def begin_listening(bridge: SocketClient, era: str) -> None:
    if era == "legacy":
        params = {"protocolVersion": LEGACY, "capabilities": {}}
        assert "result" in bridge.ask(legacy_request("initialize", params, id=1))
        bridge.send(notice("notifications/initialized"))
        assert "result" in bridge.ask(legacy_request("ping", id=2))
    else:
        bridge.send(request("subscriptions/listen", {"notifications": {"toolsListChanged": True}}, id=1))
        assert bridge.message()["method"] == "notifications/subscriptions/acknowledged"
        assert "result" in bridge.ask(request("tools/list", id=2))


def test_the_owner_lists_sessions_and_ends_them(shared: Shared) -> None:
    cli = shared.cli
    labels = {(name, f"{name} {era}"): era for name in ("a", "b") for era in ERAS}
    tokens = {name: shared.owner.add(name, "w:*") for name in ("a", "b")}
    clients = {
        label: AgentClient(shared.daemon, name, tokens[name], era, conversation=label)
        for (name, label), era in labels.items()
    }
    for client in clients.values():
        client.tools()
        client.close()
    shown = cli("sessions").ok().out
    assert all(label in shown for label in clients)
    listed = cli("sessions", "--json").ok().json["sessions"]
    assert {(one["agent"], one["conversation"]) for one in listed if one["agent"] in tokens} == labels.keys()
    mine = cli("sessions", "--agent", "a", "--json").ok().json["sessions"]
    assert {one["agent"] for one in mine} == {"a"}
    legacy = next(one for one in mine if one["conversation"] == "a legacy")
    assert legacy["legacy_clients"] == 1
    assert cli("sessions", "show", legacy["id"], "--json").ok().json["listings"] == 1
    assert cli("sessions", "show", "s_1").exit_code == 4
    assert legacy["id"] in cli("sessions", "end", legacy["id"]).ok().out
    assert clients["a legacy"].ask("ping").status == 404
    assert clients["b legacy"].ask("ping").status == 200
    for client in clients.values():
        client.close()
    ended = cli("sessions", "end", "--agent", "b", "--json").ok().json["ended"]
    assert {one["conversation"] for one in ended} == {"b modern", "b legacy"}
    assert [one["conversation"] for one in shared.owner.sessions() if one["agent"] in tokens] == ["a modern"]
    for words, code, text in (
        ((), 2, "either an id or an agent"),
        (("s_1", "--agent", "a"), 2, "either an id or an agent"),
        (("s_1",), 4, "toolcrib sessions"),
        (("--agent", "nobody"), 4, "no sessions"),
    ):
        done = cli("sessions", "end", *words)
        assert (done.exit_code, text in done.err) == (code, True), done


def test_sessions_can_be_listed_and_ended_without_a_daemon(start: Start, cli: Cli) -> None:
    running = start()
    assert "No sessions." in cli("sessions").ok().out
    token = Owner(running).add("a", "w:*")
    with AgentClient(running, "a", token, "legacy", conversation="plan") as client:
        client.tools()
    running.stop()
    (one,) = cli("sessions", "--json").ok().json["sessions"]
    assert (one["agent"], one["conversation"], one["listings"]) == ("a", "plan", 1)
    cli("sessions", "end", one["id"]).ok()
    assert cli("sessions", "--json").ok().json == {"sessions": []}
    assert AgentEndpoint(start(again=True), token).legacy(client.session, "ping").status == 404


@pytest.mark.req("KSI-6")
@pytest.mark.parametrize("profile", ["developer", "trusted", "read-only"])
def test_an_agent_can_neither_list_nor_end_sessions(shared: Shared, profile: str) -> None:
    def sessions() -> list[str]:
        return [one["id"] for one in shared.owner.sessions() if one["agent"] == profile]

    with AgentClient(shared.daemon, profile, shared.owner.add(profile, profile=profile), "modern") as client:
        assert not [name for name in client.tools() if "session" in name]
        (session,) = sessions()
        for command, arguments in (("list", {}), ("end", {"id": session}), ("end", {"agent": profile})):
            assert "may not use" in refusal(client.call(f"crib_session_{command}", **arguments))
    assert sessions() == [session]


def test_the_owner_can_list_sessions_over_mcp(shared: Shared) -> None:
    answer = AgentEndpoint(shared.daemon, shared.daemon.token).call("crib_session_list")
    listed = json.loads(answer.result["content"][0]["text"])["sessions"]
    owners = [(one["conversation"], one["open_requests"]) for one in listed if one["agent"] == "owner"]
    assert owners == [("default", 1)]
