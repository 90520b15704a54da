"""`Crib.connect`: the tools of a running daemon in a program, under its permissions and in its audit log."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from typing import Any

import pytest

from parts.agent_clients import AgentClient, Owner
from parts.daemon import Daemon, Home, StartDaemon
from parts.recording_server import Notes
from parts.waiting import during, until, wait_for
from toolcrib import AgentOptions, Crib, run_agent, server_config
from toolcrib.core.connection import Connection
from toolcrib.core.results import TextBlock
from toolcrib.errors import (
    CallTimeout,
    DaemonNotRunning,
    Denied,
    InvalidArguments,
    NotFound,
    ServerUnavailable,
    UnknownTool,
    UsageError,
)
from toolcrib.events import CallFailed, CallFinished, CallIntended, CatalogChanged, Event, ServerStateChanged
from toolcrib.listing import ORIGIN_KEY
from toolcrib.servers.model import ServerState
from toolcrib.testing import Call, CallByName, Say, scripted

LIMIT = 60.0


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> Notes:
    return Notes(tmp_path_factory.mktemp("seen") / "notes")


@pytest.fixture(scope="module")
def running(start_shared_daemon: StartDaemon, notes: Notes) -> Daemon:
    servers = {"w": notes.server("note", "read_file", reads="look"), "v": notes.server("read_file", "only_v")}
    daemon = start_shared_daemon({"servers": servers})
    daemon.wait_until_ready("w", "v")
    return daemon


@pytest.fixture
def owner(running: Daemon) -> Owner:
    return Owner(running)


def connect(home: Home, **more: Any) -> Connection:
    lent = {} if more.keys() & {"agent", "token"} else {"workdir": home.project}
    return Crib.connect(environ=home.environ(), **{**lent, **more})


async def outcomes(owner: Owner, agent: str, count: int) -> list[tuple[str, str]]:
    """The agent's calls in the audit log, when it has this many."""

    def rows() -> list[tuple[str, str]] | None:
        found = [(row["tool"], row["outcome"]) for row in owner.audit(agent=agent) if row["kind"] == "outcome"]
        return found if len(found) >= count else None

    found: list[tuple[str, str]] = await during(wait_for, rows, f"{count} calls in the audit log", LIMIT)
    return found


def of_servers(connection: Connection) -> dict[str, str]:
    """The tools of the configured servers, with their server."""
    return {offer.name: offer.server for offer in connection.tools() if offer.server in ("w", "v", "late")}


@pytest.mark.req("KAI-10", "ENG-10")
async def test_a_lent_agent_has_the_daemons_tools_with_their_servers_until_the_connection_ends(
    running, shared_home, notes, owner
):
    def agents() -> list[str]:
        return [agent["name"] for agent in owner.say("agent:list")["agents"]]

    async with connect(shared_home) as connection:
        tools_of_w = {"note": "w", "look": "w", "w_read_file": "w", "w_release": "w"}
        assert of_servers(connection) == {**tools_of_w, "v_read_file": "v", "only_v": "v", "v_release": "v"}
        assert any(offer.server == "crib" for offer in connection.tools())
        names = ("note", "w:note", "w_note", "mcp_w_note")
        for name in names:
            result = await connection.call(name, {"nonce": f"one {name}"})
            assert result.structured["tool"] == "note"
            assert isinstance(result.blocks[0], TextBlock)
        await connection.tools().call("v_read_file", {"nonce": "one v"})
        seen = [nonce for nonce in notes.nonces() if nonce.startswith("one ")]
        assert seen == [*(f"one {name}" for name in names), "one v"]
        assert await outcomes(owner, connection.agent, 5) == [("w:note", "ok")] * 4 + [("v:read_file", "ok")]
        assert connection.status()["w"].state is ServerState.READY
        assert connection.server_info("v").tools == 3
        assert json.loads(connection.tools()["look"].tool.raw()) == {
            "name": "look",
            "inputSchema": {"type": "object", "properties": {"nonce": {"type": "string"}}},
            "annotations": {"readOnlyHint": True},
        }, "the server's own definition"
        assert connection.agent in await during(agents)
        assert connection._token not in repr(connection)
    assert connection.agent not in await during(agents)


@pytest.mark.parametrize("era", ["modern", "legacy"])
def test_only_programs_get_the_server_of_each_tool_and_the_kind_of_an_error(running, era):
    def listing_and_answer(*labels: tuple[str, str]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        with AgentClient(running, "owner", running.token, era) as client:
            client.endpoint.labels = labels
            listed = client.ask("tools/list").result["tools"]
            return listed, json.loads(client.call("w_note", nonce=7).message)

    for labels in ((), (("X-Toolcrib-Sources", "0"),)):
        tools, answer = listing_and_answer(*labels)
        assert tools
        assert not any("_meta" in tool for tool in tools)
        assert answer["result"]["isError"]
    tools, answer = listing_and_answer(("X-Toolcrib-Sources", "1"))
    assert {tool["name"]: tool.get("_meta") for tool in tools}["w_note"] == {ORIGIN_KEY: ["w", "note"]}
    assert answer["error"]["data"]["kind"] == "InvalidArguments"


@pytest.mark.req("KAI-10")
async def test_forbidden_tools_are_neither_listed_nor_called(running, shared_home, notes, owner):
    await during(owner.say, "server:trust", name="w")
    async with connect(shared_home, profile="read-only") as connection:
        assert of_servers(connection) == {"look": "w"}
        assert not (await connection.call("look", {"nonce": "two look"})).is_error
        for name in ("note", "w:note", "w_note"):
            with pytest.raises(Denied, match=rf"{connection.agent} may not use w:note"):
                await connection.call(name, {"nonce": "two note"})
        assert await outcomes(owner, connection.agent, 4) == [("w:look", "ok"), *[("w:note", "denied")] * 3]
    assert "two note" not in notes.nonces()


@pytest.mark.req("KAI-10")
@pytest.mark.parametrize("by", ["agent", "token"])
async def test_an_existing_agent_is_used_by_its_name_or_its_token(running, shared_home, notes, owner, by):
    token = await during(owner.add, f"mine-{by}", "w:note")
    given = {"agent": f"mine-{by}"} if by == "agent" else {"token": token}
    async with connect(shared_home, **given) as connection:
        assert of_servers(connection) == {"note": "w"}
        await connection.call("note", {"nonce": f"three {by}"})
        with pytest.raises(Denied):
            await connection.call("v:only_v", {"nonce": "three no"})
        await during(owner.allow, f"mine-{by}", "v:only_v")
        await until(lambda: "only_v" in connection.tools())
        await connection.call("only_v", {"nonce": f"three v {by}"})
    assert f"three v {by}" in notes.nonces()
    assert "three no" not in notes.nonces()
    assert await outcomes(owner, f"mine-{by}", 3) == [("w:note", "ok"), ("v:only_v", "denied"), ("v:only_v", "ok")]


async def test_errors_keep_their_type_and_subscribers_get_every_call(running, shared_home, owner):
    seen: list[Event] = []
    async with connect(shared_home) as connection:
        connection.subscribe(seen.append, CallIntended, CallFinished, CallFailed)
        await connection.call("note", {"nonce": "five"})
        with pytest.raises(InvalidArguments, match="nonce") as raised:
            await connection.call("w:note", {"nonce": 7})
        assert raised.value.data["schema"]["properties"] == {"nonce": {"type": "string"}}
        assert [(type(event), event.tool) for event in seen] == [
            *((CallIntended, "w:note"), (CallFinished, "w:note")),
            *((CallIntended, "w:note"), (CallFailed, "w:note")),
        ]
        assert (seen[1].outcome, seen[3].outcome) == ("ok", "invalid")
        with pytest.raises(UnknownTool, match="nothing_like_it"):
            await connection.call("nothing_like_it")
        assert (await connection.call("note", {"nonce": "four", "fail": "broken"})).is_error
        with pytest.raises(CallTimeout):
            await connection.call("note", {"nonce": "four", "hold": True}, timeout=0.3)
        assert await outcomes(owner, connection.agent, 5) == [
            *(("w:note", "ok"), ("w:note", "invalid"), ("nothing_like_it", "unknown")),
            *(("w:note", "tool_error"), ("w:note", "cancelled")),
        ]


@pytest.mark.req("KAI-10", "ENG-10")
async def test_the_connection_follows_added_and_removed_servers(running, shared_home, notes, owner):
    seen: list[Event] = []
    async with connect(shared_home) as connection:
        connection.subscribe(seen.append, CatalogChanged)
        await during(running.command, "server:add", name="late", entry=notes.server("new_one"))
        await until(lambda: "new_one" in connection.tools())
        await connection.call("new_one", {"nonce": "six"})
        await during(owner.say, "server:remove", name="late")
        await until(lambda: "new_one" not in connection.tools())
        with pytest.raises(UnknownTool):
            await connection.call("new_one", {"nonce": "six again"})
    assert len(seen) >= 2
    assert "six" in notes.nonces()


async def test_a_parent_and_a_profile_limit_a_lent_agent_whose_calls_fail_when_it_is_removed(
    running, shared_home, owner, notes
):
    await during(owner.add, "above", "w:note", profile="nothing", workdir=str(shared_home.project))
    async with (
        connect(shared_home) as one,
        connect(shared_home, profile="nothing") as other,
        connect(shared_home, parent="above") as child,
    ):
        assert len({one.agent, other.agent, child.agent}) == 3
        assert of_servers(one)
        assert of_servers(other) == {}
        assert of_servers(child) == {"note": "w"}
        agents = (await during(owner.say, "agent:list"))["agents"]
        assert {agent["name"]: agent["parent"] for agent in agents}[child.agent] == "above"
        await during(owner.remove, one.agent)
        await until(lambda: one._over)
        with pytest.raises(ServerUnavailable, match="removed"):
            await one.call("note", {"nonce": "seven"})
    assert "seven" not in notes.nonces()


async def test_invalid_requests_are_refused_at_once_and_without_a_daemon_the_error_has_a_remedy(
    running, shared_home, toolcrib_home
):
    for given in ({}, {"token": "tcb_nobodys-token-at-all"}):
        with pytest.raises(DaemonNotRunning, match="No daemon") as raised:
            await connect(toolcrib_home, **given).__aenter__()
        assert "toolcrib up" in raised.value.remedy
    for limit in ({"workdir": "."}, {"profile": "reader"}, {"parent": "p"}):
        for identity in ({"token": "x"}, {"agent": "x"}):
            with pytest.raises(UsageError, match="already"):
                Crib.connect(**identity, **limit)
    for given, error, message in (
        ({"agent": "nobody"}, NotFound, "nobody"),
        ({"profile": "no-such-profile"}, NotFound, "no-such-profile"),
        ({"token": "tcb_nobodys-token-at-all"}, Denied, "does not accept this token"),
    ):
        with pytest.raises(error, match=message) as raised:
            await connect(shared_home, **given).__aenter__()
    assert "toolcrib agent rotate" in raised.value.remedy
    with pytest.raises(UsageError, match="A Connection must be used inside its `async with`"):
        Crib.connect().tools()


@pytest.mark.parametrize("steps", [0, 1, 3, 10, 30])
async def test_a_cancelled_connection_attempt_leaves_no_agent_and_no_task(running, shared_home, owner, steps):
    before = asyncio.all_tasks()
    connection = connect(shared_home)
    entering = asyncio.create_task(connection.__aenter__())
    for _ in range(steps):
        await asyncio.sleep(0.001)
    entering.cancel()
    await asyncio.wait({entering}, timeout=LIMIT)
    if not entering.cancelled():
        await connection.__aexit__(None, None, None)
    assert asyncio.all_tasks() == before

    def lent() -> list[str]:
        return [one["name"] for one in owner.say("agent:list")["agents"] if one["name"].startswith("program-")]

    await during(wait_for, lambda: not lent(), "lent agents to end", LIMIT)


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


@pytest.mark.req("KAI-10")
async def test_the_connection_works_again_after_a_restart_of_the_daemon(daemon, toolcrib_home, tmp_path):
    notes = Notes(tmp_path / "seen")
    config = {"servers": {"w": notes.server("note")}}
    port = free_port()
    first = daemon(config, "--port", port)
    async with connect(toolcrib_home) as connection:
        await connection.call("note", {"nonce": "before"})
        await during(first.stop)
        with pytest.raises(ServerUnavailable, match="daemon"):
            await connection.call("note", {"nonce": "lost"})
        assert "note" in connection.tools(), "the tools stay listed"
        second = await during(daemon, config, "--port", port)
        await during(wait_for, lambda: second.status()["runs"] == 1, "the lease to be back", LIMIT)
        await during(second.wait_until_ready, "w")
        async with asyncio.timeout(LIMIT):
            assert not (await connection.call("note", {"nonce": "after"})).is_error
    assert notes.nonces() == ["before", "after"]


async def test_the_connection_follows_the_states_of_permitted_servers(daemon, toolcrib_home, tmp_path):
    notes = Notes(tmp_path / "seen")
    running = daemon({"servers": {"w": notes.server("note"), "broken": {"command": str(tmp_path / "no-such-program")}}})
    (w,) = (one for one in running.wait_until_ready("w")["servers"] if one["name"] == "w")
    async with connect(toolcrib_home) as connection, connect(toolcrib_home, profile="nothing") as confined:
        states = lambda: {name: one.state for name, one in connection.status().items()}  # noqa: E731
        await until(lambda: states().get("broken") in (ServerState.UNAVAILABLE, ServerState.FAILED))
        assert states()["w"] is ServerState.READY
        events: list[tuple[str, str]] = []
        connection.subscribe(lambda event: events.append((event.server, event.state)), ServerStateChanged)
        os.kill(w["pid"], signal.SIGKILL)
        await until(lambda: ("w", "ready") in events)
        assert events[0][0] == "w"
        assert events[0][1] != "ready"
        assert not {"w", "broken"} & confined.status().keys()


@pytest.mark.req("KAI-10")
async def test_a_run_with_the_daemons_tools_equals_one_with_its_own_servers(running, shared_home, notes, owner):
    steps = [Call("look", {"nonce": "run"}), CallByName("note", {"nonce": "run"}), Say("Seen.")]
    types: list[tuple[str, ...]] = []

    async def run(provider: str, **tools: Any) -> None:
        with scripted(provider, steps) as model:
            options = AgentOptions(model=f"{provider}:m", api_key="k", base_url=model.url, keep=["look"], **tools)
            events = [event async for event in run_agent("Look.", options)]
            assert events[-1].type == "run_finished", events[-1]
            assert [tool.name for tool in model.offered] == ["look"]
            assert "There is no tool" in model.results[1]
            types.append(tuple(event.type for event in events))

    before = len(notes.calls())
    async with connect(shared_home, profile="developer") as connection:
        await run("openai", crib=connection)
        assert await outcomes(owner, connection.agent, 1) == [("w:look", "ok")]
    await run("anthropic", mcp_servers=[server_config("w", notes.server("note", reads="look"))])
    assert [(one["tool"], one["arguments"]) for one in notes.calls()[before:]] == [("look", {"nonce": "run"})] * 2
    assert types[0] == types[1]
