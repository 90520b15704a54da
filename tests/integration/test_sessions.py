"""Sessions from outside: they outlive the daemon, end when they should, and are the owner's to see and to end."""

from __future__ import annotations

import contextlib
import json
import socket
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from parts.agent_clients import ERAS, AgentClient, AgentEndpoint, Owner, nonce_of, refusal
from parts.client import MODES
from parts.daemon import Cli, Daemon, StartDaemon
from parts.raw_client import LEGACY, SocketClient, legacy_request, notice, request
from parts.recording_server import Notes
from parts.waiting import wait_for

pytestmark = pytest.mark.req("KSI-3", "KSI-9")

RESTARTS: dict[str, Callable[[Daemon], object]] = {"stopped": Daemon.stop, "killed": Daemon.kill}


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    return Notes(tmp_path / "seen")


@pytest.fixture
def config(notes: Notes) -> dict[str, Any]:
    return {"servers": {"w": notes.server("t")}}


@pytest.mark.parametrize("how", RESTARTS)
@pytest.mark.usual(engine="sqlite")
def test_a_legacy_session_goes_on_after_the_daemon_was_away(
    daemon: StartDaemon, config: dict[str, Any], store_env: dict[str, str], how: str
) -> None:
    first = daemon(config, env=store_env)
    first.wait_until_ready()
    owner = Owner(first)
    tokens = {name: owner.add(name, "w:*") for name in ("a", "b")}
    doors = {name: AgentEndpoint(first, token) for name, token in tokens.items()}
    own, labelled, owners = (
        doors["a"].begin(),
        AgentEndpoint(first, tokens["b"], ("X-Toolcrib-Conversation", "plan")).begin(),
        AgentEndpoint(first, first.token).begin(),
    )
    assert doors["a"].legacy(own, "tools/call", {"name": "w_t", "arguments": {"nonce": "1"}}).status == 200
    RESTARTS[how](first)
    second = daemon(env=store_env)
    second.wait_until_ready()
    for name, session in (("a", own), ("b", labelled)):
        door = AgentEndpoint(second, tokens[name])
        answer = door.legacy(session, "tools/call", {"name": "w_t", "arguments": {"nonce": f"again-{name}"}})
        assert nonce_of(answer) == f"again-{name}"
        with door.connect() as stream:
            stream.send(door.stream_bytes(session))
            assert stream.head()[0] == 200
            Owner(second).deny(name, "w:other")
            assert stream.event()["method"] == "notifications/tools/list_changed"
    assert AgentEndpoint(second, second.token).legacy(owners, "ping").status == 200
    for token, session in ((tokens["a"], labelled), (tokens["b"], own), (second.token, own), (tokens["a"], owners)):
        assert AgentEndpoint(second, token).legacy(session, "ping").status == 404


@pytest.mark.usual(engine="postgresql")
def test_what_a_session_counted_is_there_after_a_restart(
    daemon: StartDaemon, config: dict[str, Any], store_env: dict[str, str]
) -> None:
    first = daemon(config, env=store_env)
    first.wait_until_ready()
    token = Owner(first).add("a", "w:t")
    with AgentClient(first, "a", token, "modern", conversation="plan") as member:
        member.tools()
        assert nonce_of(member.call("w_t", nonce="x" * 100)) is not None
        assert "may not use" in refusal(member.call("w_release"))
        assert "no tool" in refusal(member.call("w_nothing"))

    def row(of: Daemon) -> dict[str, Any] | None:
        found = [one for one in Owner(of).sessions() if one["agent"] == "a"]
        return found[0] if found and found[0]["tokens"] else None

    before = wait_for(lambda: row(first), "the tokens to be counted")
    assert (before["conversation"], before["listings"], before["calls"], before["denied"]) == ("plan", 1, 2, 1)
    assert before["result_bytes"] > 100
    assert before["tokens_estimated"] is False
    assert before["mode"] == "full"
    first.stop()
    second = daemon(env=store_env)
    after = wait_for(lambda: row(second), "the session to be there")
    changing = {"idle"}
    assert {key: value for key, value in after.items() if key not in changing} == {
        key: value for key, value in before.items() if key not in changing
    }


@pytest.fixture
def port() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
    yield str(number)


@pytest.mark.parametrize("era", ERAS)
async def test_a_client_of_the_sdk_does_not_notice_that_the_daemon_died_and_came_back(
    daemon: StartDaemon, config: dict[str, Any], port: str, era: str
) -> None:
    def started(with_config: dict[str, Any] | None) -> Daemon:
        made = daemon(with_config, "--port", port)
        made.wait_until_ready()
        return made

    first = await anyio.to_thread.run_sync(started, config)
    token = Owner(first).add("a", "w:*")
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx2.AsyncClient(headers=headers, timeout=20, trust_env=False) as http:
        transport = streamable_http_client(first.endpoint, http_client=http, max_sse_event_size=None)
        with anyio.fail_after(60):
            async with Client(transport, mode=MODES[era]) as client:
                assert [tool.name for tool in (await client.list_tools()).tools] == ["w_t", "w_release"]
                first.kill()
                second = await anyio.to_thread.run_sync(started, None)
                assert second.pid != first.pid
                result = await client.call_tool("w_t", {"nonce": "after"})
                assert (result.structured_content or {})["nonce"] == "after"


@pytest.mark.parametrize("era", ERAS)
def test_a_session_that_idled_too_long_is_over_and_the_next_request_begins_another(
    daemon: StartDaemon, config: dict[str, Any], era: str
) -> None:
    first = daemon({**config, "session_idle_hours": 1})
    first.wait_until_ready()
    token = Owner(first).add("a", "w:*")
    members = {
        label: AgentClient(first, "a", token, era, conversation=label) for label in ("long ago", "half an hour ago")
    }
    for member in members.values():
        assert nonce_of(member.call("w_t", nonce="1")) == "1"
        member.close()
    before = {one["conversation"]: one["id"] for one in Owner(first).sessions()}
    first.stop()
    with contextlib.closing(sqlite3.connect(first.home.toolcrib / "state" / "mcp_sessions.db")) as store:
        for label, ago in (("long ago", 3660), ("half an hour ago", 1800)):
            store.execute("UPDATE sessions SET used_at = used_at - ? WHERE conversation = ?", (ago, label))
        store.commit()
    second = daemon()
    second.wait_until_ready()
    for label, member in members.items():
        door = AgentEndpoint(second, token, ("X-Toolcrib-Conversation", label))
        if era == "legacy":
            assert door.legacy(member.session, "tools/list").status == (404 if label == "long ago" else 200)
        else:
            assert door.modern("tools/list").status == 200
    after = {one["conversation"]: one["id"] for one in Owner(second).sessions()}
    assert after["half an hour ago"] == before["half an hour ago"]
    assert after.get("long ago") != before["long ago"]


def test_an_agent_with_a_folder_uses_the_servers_of_that_project(
    daemon: StartDaemon, config: dict[str, Any], notes: Notes, tmp_path: Path
) -> None:
    """A server that starts in the project's folder runs once per project: its process shows which one it serves."""
    config["servers"]["w"]["cwd"] = "project"
    running = daemon(config)
    running.wait_until_ready()
    owner = Owner(running)
    (tmp_path / "other" / ".git" / "HEAD").mkdir(parents=True)
    (tmp_path / "other" / "src").mkdir()
    tokens = {
        "home": owner.add("home", "w:*"),
        "other": owner.add("other", "w:*", workdir=str(tmp_path / "other")),
        "inner": owner.add("inner", "w:*", workdir=str(tmp_path / "other" / "src")),
    }
    for era in ERAS:
        for name, token in tokens.items():
            with AgentClient(running, name, token, era) as member:
                assert nonce_of(member.call("w_t", nonce=f"{name} {era}")) == f"{name} {era}"
    pids = {line["arguments"]["nonce"].split()[0]: line["pid"] for line in notes.calls()}
    assert pids["other"] == pids["inner"] != pids["home"]
    assert len({line["pid"] for line in notes.calls()}) == 2


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.req("KSI-5")
def test_a_bridge_hears_of_a_changed_permission_and_ends_with_its_agent(
    daemon: StartDaemon, config: dict[str, Any], era: str
) -> None:
    running = daemon(config)
    running.wait_until_ready()
    owner = Owner(running)
    with SocketClient(running, bridge=False) as pipe, SocketClient(running) as nobody:
        token = owner.add("a", "w:*")
        hello = {"root": str(running.home.project), "conversation": "c", "token": token}
        pipe.send(notice("toolcrib/bridge", hello))
        begin_listening(pipe, era)
        begin_listening(nobody, era)
        owner.deny("a", "w:t")
        assert pipe.message()["method"] == "notifications/tools/list_changed"
        assert {one["agent"] for one in owner.sessions()} == {"a", "client"}
        owner.remove("a")
        messages = []
        with pytest.raises(ConnectionError):
            while True:
                messages.append(pipe.message())
        assert "revoked" in messages[-1]["error"]["message"]
        assert [one["agent"] for one in owner.sessions()] == ["client"]
        # Whoever else has a bridge heard nothing of it all.
        nobody.send(ping(era))
        assert "method" not in nobody.message()


def begin_listening(pipe: SocketClient, era: str) -> None:
    if era == "legacy":
        params = {"protocolVersion": LEGACY, "capabilities": {}}
        assert "result" in pipe.ask(legacy_request("initialize", params, id=1))
        pipe.send(notice("notifications/initialized"))
        assert "result" in pipe.ask(legacy_request("ping", id=2))
    else:
        pipe.send(request("subscriptions/listen", {"notifications": {"toolsListChanged": True}}, id=1))
        assert pipe.message()["method"] == "notifications/subscriptions/acknowledged"
        assert "result" in pipe.ask(request("tools/list", id=2))


def ping(era: str) -> bytes:
    return legacy_request("ping", id=9) if era == "legacy" else b"{"


class TestTheCommands:
    def test_the_owner_sees_sessions_and_ends_one(self, daemon: StartDaemon, config: dict[str, Any], cli: Cli) -> None:
        running = daemon(config)
        running.wait_until_ready()
        owner = Owner(running)
        assert "No sessions." in cli("sessions").ok().out
        tokens = {name: owner.add(name, "w:*") for name in ("a", "b")}
        members = [
            AgentClient(running, name, token, era, conversation=f"{name} {era}")
            for name, token in tokens.items()
            for era in ERAS
        ]
        for member in members:
            member.tools()
            member.close()
        shown = cli("sessions").ok().out
        assert all(label in shown for label in ("a modern", "a legacy", "b modern", "b legacy"))
        listed = cli("sessions", "--json").ok().json["sessions"]
        assert {(one["agent"], one["conversation"]) for one in listed} == {
            (name, f"{name} {era}") for name in tokens for era in ERAS
        }
        mine = cli("sessions", "--agent", "a", "--json").ok().json["sessions"]
        assert {one["agent"] for one in mine} == {"a"}
        legacy = next(one for one in mine if one["conversation"] == "a legacy")
        assert legacy["legacy_clients"] == 1
        assert legacy["id"] in cli("sessions", "end", legacy["id"]).ok().out
        assert members[1].ask("ping").status == 404
        assert members[3].ask("ping").status == 200
        members[1].close()
        members[3].close()
        ended = cli("sessions", "end", "--agent", "b", "--json").ok().json["ended"]
        assert {one["conversation"] for one in ended} == {"b modern", "b legacy"}
        assert [one["conversation"] for one in owner.sessions()] == ["a modern"]

    @pytest.mark.parametrize(
        ("words", "code", "says"),
        [
            (("end",), 2, "either an id or an agent"),
            (("end", "s_1", "--agent", "a"), 2, "either an id or an agent"),
            (("end", "s_1"), 4, "toolcrib sessions"),
            (("end", "--agent", "nobody"), 4, "no sessions"),
        ],
    )
    def test_what_cannot_be_ended_is_told(
        self, daemon: StartDaemon, cli: Cli, words: tuple[str, ...], code: int, says: str
    ) -> None:
        daemon({})
        done = cli("sessions", *words)
        assert done.exit_code == code
        assert says in done.err

    def test_without_a_daemon_the_sessions_are_still_there(
        self, daemon: StartDaemon, config: dict[str, Any], cli: Cli
    ) -> None:
        running = daemon(config)
        running.wait_until_ready()
        owner = Owner(running)
        token = owner.add("a", "w:*")
        with AgentClient(running, "a", token, "legacy", conversation="plan") as member:
            member.tools()
        running.stop()
        (one,) = cli("sessions", "--json").ok().json["sessions"]
        assert (one["agent"], one["conversation"], one["listings"]) == ("a", "plan", 1)
        cli("sessions", "end", one["id"]).ok()
        assert cli("sessions", "--json").ok().json == {"sessions": []}
        again = daemon()
        assert AgentEndpoint(again, token).legacy(member.session, "ping").status == 404

    @pytest.mark.req("KSI-6")
    @pytest.mark.parametrize("profile", ["developer", "trusted", "read-only"])
    def test_an_agent_neither_sees_nor_ends_sessions(
        self, daemon: StartDaemon, config: dict[str, Any], profile: str
    ) -> None:
        running = daemon(config)
        running.wait_until_ready()
        owner = Owner(running)
        token = owner.add("a", profile=profile)
        with AgentClient(running, "a", token, "modern") as member:
            assert not [name for name in member.tools() if "session" in name]
            (session,) = owner.sessions()
            for command, arguments in (("list", {}), ("end", {"id": session["id"]}), ("end", {"agent": "a"})):
                assert "may not use" in refusal(member.call(f"crib_session_{command}", **arguments))
        assert [one["id"] for one in owner.sessions()] == [session["id"]]

    def test_the_owner_may_also_do_so_over_mcp(self, daemon: StartDaemon) -> None:
        running = daemon({})
        door = AgentEndpoint(running, running.token)
        listed = json.loads(door.call("crib_session_list").result["content"][0]["text"])["sessions"]
        assert [(one["agent"], one["conversation"], one["open_requests"]) for one in listed] == [
            ("owner", "default", 1)
        ]
