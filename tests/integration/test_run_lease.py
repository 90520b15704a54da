"""A run's identity from outside: it comes with a connection, tells all that it does, and goes however that closes.

The far sides here are the endpoint (does the token work?), the witness (what ran?), the audit log, the disk and the
process table; a run's own word is compared with them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from parts import leftovers
from parts.agent_clients import AgentClient, AgentEndpoint, Owner, nonce_of, refusal
from parts.daemon import Cli, Daemon, Home, StartDaemon
from parts.raw_client import SocketClient, request
from parts.recording_server import Notes
from parts.waiting import wait_for
from toolcrib.config.paths import Paths
from toolcrib.daemon_client import lease as leases
from toolcrib.daemon_client.lease import (
    AgentLease,
    CallSeen,
    LeaseClient,
    LeaseEnded,
    LeaseEvent,
    LeaseLost,
    LeaseRequest,
    ListingSeen,
    open_lease_client,
)
from toolcrib.errors import DaemonNotRunning, NotFound, UsageError
from toolcrib.policy import OwnTools

LIMIT = 60.0
SECRET = "s3cret-of-the-person"


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    return Notes(tmp_path / "seen")


@pytest.fixture
def config(notes: Notes) -> dict[str, Any]:
    return {"servers": {"w": notes.server("note", "other", env={"KEY": "${RUN_TEST_KEY:-none}"})}}


@contextlib.asynccontextmanager
async def harness_of(home: Home) -> AsyncIterator[LeaseClient]:
    async with asyncio.timeout(60), open_lease_client(paths_of(home), home.project, home.environ()) as harness:
        yield harness


def paths_of(home: Home) -> Paths:
    return Paths.of_user(home.environ())


def wanted(home: Home, conversation: str = "c1", **more: Any) -> LeaseRequest:
    usual = {"client": "claude", "profile": "developer", "workdir": home.project, "lives": 600.0}
    return LeaseRequest(**{**usual, "conversation": conversation, **more})


def member(lease: AgentLease, era: str = "modern") -> AgentClient:
    """A client that has nothing but what the lease told."""
    where = cast(Daemon, SimpleNamespace(endpoint=lease.url, token=""))
    return AgentClient(where, lease.agent, lease.token, era, conversation="c1")


async def during(work: Callable[..., Any], *args: Any, **more: Any) -> Any:
    """In a thread: the lease goes on meanwhile."""
    async with asyncio.timeout(LIMIT):
        return await asyncio.to_thread(work, *args, **more)


async def take(stream: AsyncIterator[LeaseEvent], count: int) -> list[LeaseEvent]:
    async with asyncio.timeout(LIMIT):
        return [await anext(stream) for _ in range(count)]


async def rest_of(stream: AsyncIterator[LeaseEvent]) -> list[LeaseEvent]:
    async with asyncio.timeout(LIMIT):
        return [note async for note in stream]


def is_refused(lease: AgentLease) -> bool:
    where = cast(Daemon, SimpleNamespace(endpoint=lease.url, token=""))
    return AgentEndpoint(where, lease.token).modern("tools/list").status == 401


# -- what a run is given -----------------------------------------------------------------------------------------------


async def test_a_lease_tells_all_that_a_run_needs_once_the_servers_are_there(
    daemon: StartDaemon, config: dict[str, Any], toolcrib_home: Home
) -> None:
    gone = {"command": sys.executable, "args": ["-c", "raise SystemExit(3)"], "env": {"URL": "https://${A_HOST}/x"}}
    config["servers"]["gone"] = {**gone, "retry": {"attempts": 1}}
    running = daemon(config, env={"RUN_TEST_KEY": SECRET, "A_HOST": "h"})
    async with harness_of(toolcrib_home) as harness:
        lease = await harness.lease(wanted(toolcrib_home, profile="read-only"))
        assert (lease.agent, lease.url, lease.for_runs) == ("claude-c1", running.endpoint, False)
        assert lease.folder.stat().st_mode & 0o777 == 0o700
        assert (lease.folder / "token").read_text().strip() == lease.token
        assert lease.own_tools.tools is OwnTools.READ
        assert lease.withheld == {"RUN_TEST_KEY", "A_HOST"}
        servers = [text for text in lease.warnings if text.startswith("The server ")]
        assert [text.startswith("The server gone is not there: ") for text in servers] == [True]
        # Without a word from the daemon that it is ready: who lists once sees the tools.
        developer = await harness.lease(wanted(toolcrib_home, "c2"))
        with member(developer) as client:
            seen = await during(client.tools)
        assert {"w_note", "w_other", "w_release"} <= seen
        assert developer.names.keys() == seen
        assert developer.names["w_note"] == ("w", "note")
        assert developer.tools == len(seen) > lease.tools
        (agent,) = [one for one in running.command("agent:list")["agents"] if one["name"] == "claude-c1"]
        assert (agent["profile"], agent["workdir"]) == ("read-only", str(toolcrib_home.project))
        assert 0 < agent["expires_at"] - agent["created_at"] <= 600
    assert running.command("agent:list")["agents"] == []
    lines = [(row["outcome"], row["agent"]) for row in Owner(running).audit() if row["kind"] == "change"]
    assert lines == [
        ("agent added", "claude-c1"),
        ("agent added", "claude-c2"),
        ("agent removed", "claude-c1"),
        ("agent removed", "claude-c2"),
    ]


async def test_what_cannot_be_leased_is_said_with_what_to_do(
    daemon: StartDaemon, toolcrib_home: Home, tmp_path: Path
) -> None:
    running = daemon({})
    async with harness_of(toolcrib_home) as harness:
        first = await harness.lease(wanted(toolcrib_home))
        with pytest.raises(UsageError, match="The conversation c1 of claude is under way") as taken:
            await harness.lease(wanted(toolcrib_home))
        assert "toolcrib agent remove claude-c1" in taken.value.remedy
        with pytest.raises(NotFound, match="no profile 'nobodys'"):
            await harness.lease(wanted(toolcrib_home, "c2", profile="nobodys"))
        with pytest.raises(UsageError, match="The profile owner is nobody's but yours"):
            await harness.lease(wanted(toolcrib_home, "c2", profile="owner"))
        with pytest.raises(UsageError, match="cannot be an agent's name"):
            await harness.lease(wanted(toolcrib_home, "C 2"))
        with pytest.raises(UsageError, match="is no folder"):
            await harness.lease(wanted(toolcrib_home, "c2", workdir=toolcrib_home.project / "none"))
        with pytest.raises(UsageError, match="is not in the project"):
            await harness.lease(wanted(toolcrib_home, "c2", workdir=tmp_path))
        assert [one["name"] for one in running.command("agent:list")["agents"]] == ["claude-c1"]
        await first.release()
        again = await harness.lease(wanted(toolcrib_home))
        assert again.token != first.token
    assert list(paths_of(toolcrib_home).agents.iterdir()) == []


async def test_a_run_is_for_the_command_line_alone(daemon: StartDaemon) -> None:
    running = daemon({})
    with AgentEndpoint(running, running.token).connect():
        tools = AgentEndpoint(running, running.token).modern("tools/list").result["tools"]
    assert not [tool["name"] for tool in tools if "lease" in tool["name"]]
    with SocketClient(running, bridge=False) as pipe:
        pipe.send(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "run:lease", "params": {"client": "x"}}).encode())
        assert "client, conversation, workdir and lives are needed" in pipe.message()["error"]["message"]


# -- what a run is told ------------------------------------------------------------------------------------------------


@pytest.mark.req("FRG-6")
@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_every_listing_and_call_is_told_in_order_as_the_far_sides_saw_it(
    daemon: StartDaemon, config: dict[str, Any], notes: Notes, toolcrib_home: Home, era: str
) -> None:
    running = daemon(config, env={"RUN_TEST_KEY": SECRET})
    Owner(running).put_profile("mine", {"allow": "w:*"}, {"deny": "w:other"})
    exact = {"nonce": "n1", "text": 'a\nb\t"ü" \x1b', "deep": {"list": [1, 2.5, None, True]}, "key": f"is {SECRET}"}

    def work() -> bytes:
        with member(lease, era) as client:
            listed = client.ask("tools/list").message
            client.send_call("w_note", meta={"claudecode/toolUseId": "t1"}, **exact)
            assert nonce_of(client.answer()) == "n1"
            assert refusal(client.call("w_note", nonce="n2", fail="sorry")) == "sorry"
            assert "deny w:other" in refusal(client.call("w_other", nonce="n3"))
            assert "do not fit" in refusal(client.call("w_note", nonce=5))
            assert refusal(client.call("w_nothing"))
        return listed

    async with harness_of(toolcrib_home) as harness:
        lease = await harness.lease(wanted(toolcrib_home, profile="mine"))
        other = await harness.lease(wanted(toolcrib_home, "c2"))
        answer = (await during(work)).decode()
        await lease.release()
        seen = await rest_of(lease.events())
        await other.release()
        assert await rest_of(other.events()) == [], "another run's agent is nobody's business"
    listed, *calls = seen
    assert isinstance(listed, ListingSeen)
    begin = answer.index('"tools":') + len('"tools":')
    told, end = json.JSONDecoder().raw_decode(answer, begin)
    assert listed.tools == len(told) == len(listed.names)
    assert listed.bytes == len(answer[begin:end].encode())
    assert listed.bytes / 8 < listed.tokens < listed.bytes
    assert all(isinstance(call, CallSeen) for call in calls)
    calls = cast(list[CallSeen], calls)
    assert [(call.name, call.tool, call.server, call.outcome) for call in calls] == [
        ("w_note", "note", "w", ""),
        ("w_note", "note", "w", "ok"),
        ("w_note", "note", "w", ""),
        ("w_note", "note", "w", "tool_error"),
        ("w_other", "other", "w", "denied"),
        ("w_note", "note", "w", "invalid"),
        ("w_nothing", "w_nothing", "", "unknown"),
    ]
    assert [call.over for call in calls] == [False, True, False, True, True, True, True]
    assert [call.call for call in calls[:4:2]] == [call.call for call in calls[1:4:2]]
    assert len({call.call for call in calls}) == 5
    assert calls[0].arguments == calls[1].arguments == {**exact, "key": "is ****"}
    assert {**exact, "key": f"is {SECRET}"} == notes.calls()[0]["arguments"], "the server got what was sent"
    assert calls[0].meta == calls[1].meta == {"claudecode/toolUseId": "t1"}
    assert [call.duration_ms is not None for call in calls] == [call.over for call in calls]
    assert calls[4].decision == "deny"
    assert "deny w:other" in calls[4].rule
    rows = [row for row in Owner(running).audit(agent="claude-c1") if row["kind"] == "outcome"]
    assert [(row["outcome"], row["rule"]) for row in rows] == [(one.outcome, one.rule) for one in calls if one.over]


@pytest.mark.req("FRG-10")
@pytest.mark.parametrize("how", ["removed", "rotated"])
async def test_a_run_whose_agent_is_taken_away_hears_so_after_the_last_of_its_calls(
    daemon: StartDaemon, config: dict[str, Any], toolcrib_home: Home, cli: Cli, how: str
) -> None:
    running = daemon(config)
    words = ("agent", "remove" if how == "removed" else "rotate", "claude-c1")
    async with harness_of(toolcrib_home) as harness:
        lease = await harness.lease(wanted(toolcrib_home))
        stream = lease.events()
        with member(lease) as client:
            client.send_call("w_note", nonce="held", hold=True)
            (started,) = await take(stream, 1)
            (await during(cli, *words)).ok()
            await during(client.answer)
        over, ended = await rest_of(stream)
        assert isinstance(started, CallSeen)
        assert isinstance(over, CallSeen)
        assert (over.call, over.outcome) == (started.call, "denied")
        assert ended == LeaseEnded(why=how)
        wait_for(lambda: not lease.folder.exists(), "the folder to go", LIMIT)
        assert is_refused(lease)
        await lease.release()
    assert running.command("agent:list")["agents"] == []


@pytest.mark.req("FRG-10")
async def test_an_agent_ends_when_its_time_is_over(daemon: StartDaemon, toolcrib_home: Home) -> None:
    daemon({})
    async with harness_of(toolcrib_home) as harness:
        lease = await harness.lease(wanted(toolcrib_home, lives=0.5))
        assert await rest_of(lease.events()) == [LeaseEnded(why="expired")]
        assert is_refused(lease)


async def test_a_run_that_reads_nothing_loses_its_agent_and_costs_the_daemon_no_memory(
    daemon: StartDaemon, config: dict[str, Any], toolcrib_home: Home
) -> None:
    running = daemon(config)
    running.wait_until_ready()
    asked = {"client": "claude", "conversation": "c1", "workdir": str(toolcrib_home.project), "lives": 600}
    with SocketClient(running, bridge=False) as pipe:
        body = {"jsonrpc": "2.0", "id": 1, "method": "run:lease", "params": asked, "root": str(toolcrib_home.project)}
        pipe.send(json.dumps(body).encode())
        told = pipe.message()["params"]["event"]["lease"]
        where = cast(Daemon, SimpleNamespace(endpoint=told["endpoint"], token=""))
        text, made, before = "x" * 200_000, 0, resident(running.pid)
        with AgentClient(where, "claude-c1", told["token"], "modern") as client:
            while made < 400 and client.call("w_note", nonce=str(made), text=text).status == 200:
                made += 1
        assert 50 < made < 400
        assert resident(running.pid) - before < 200 * 1024 * 1024
        last = {}
        while "result" not in last:
            before_last, last = last, pipe.message()
        assert before_last["params"]["event"] == {"ended": {"why": "unread"}}
    assert running.command("agent:list")["agents"] == []


def resident(pid: int) -> int:
    """Bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


# -- how it ends -------------------------------------------------------------------------------------------------------

HOLDER = """
import asyncio, json, os, sys
from pathlib import Path
from toolcrib.config.paths import Paths
from toolcrib.daemon_client.lease import LeaseRequest, open_lease_client

async def main(conversation, workdir):
    async with open_lease_client(Paths.of_user(os.environ), Path(workdir), dict(os.environ)) as harness:
        lease = await harness.lease(
            LeaseRequest(client="claude", profile="developer", workdir=Path(workdir), conversation=conversation,
                         lives=600.0)
        )
        told = {"agent": lease.agent, "token": lease.token, "endpoint": lease.url, "folder": str(lease.folder),
                "daemon": lease.daemon, "for_runs": lease.for_runs}
        print(json.dumps(told), flush=True)
        await asyncio.to_thread(sys.stdin.readline)

asyncio.run(main(*sys.argv[1:]))
"""


class Holder:
    """A process that holds a lease until it is told to let go, or killed."""

    def __init__(self, home: Home, conversation: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, conversation, str(home.project)],
            env=home.environ(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.told: dict[str, Any] = {}

    def hold(self) -> Holder:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate(timeout=LIMIT)[1]
        self.told = json.loads(line)
        return self

    @property
    def token_status(self) -> int:
        where = cast(Daemon, SimpleNamespace(endpoint=self.told["endpoint"], token=""))
        return AgentEndpoint(where, self.told["token"]).modern("tools/list").status

    def let_go(self) -> None:
        _, errors = self.process.communicate("\n", timeout=LIMIT)
        assert self.process.returncode == 0, errors

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate(timeout=LIMIT)


@pytest.fixture
def hold(toolcrib_home: Home) -> Iterator[Callable[[str], Holder]]:
    started: list[Holder] = []

    def start(conversation: str) -> Holder:
        started.append(Holder(toolcrib_home, conversation))
        return started[-1]

    yield start
    for one in started:
        one.end()


@pytest.mark.req("FRG-11", "KSI-2")
def test_a_killed_run_leaves_no_token_that_works_and_no_folder(
    daemon: StartDaemon, toolcrib_home: Home, hold: Callable[[str], Holder]
) -> None:
    running = daemon({})
    killed, other = hold("c1").hold(), hold("c2").hold()
    assert (killed.token_status, other.token_status) == (200, 200)
    killed.process.send_signal(signal.SIGKILL)
    wait_for(lambda: killed.token_status == 401, "the token to be void")
    wait_for(lambda: not Path(killed.told["folder"]).exists(), "the folder to go")
    assert other.token_status == 200
    assert [one["name"] for one in running.command("agent:list")["agents"]] == ["claude-c2"]
    assert running.status()["sessions"] == 1
    hold("c1").hold().let_go()


async def test_a_run_that_is_interrupted_while_it_asks_leaves_nothing(
    daemon: StartDaemon, config: dict[str, Any], toolcrib_home: Home
) -> None:
    slow = [sys.executable, "-c", "import time; time.sleep(60)"]
    running = daemon({"servers": {"slow": {"command": slow[0], "args": slow[1:]}}})
    async with harness_of(toolcrib_home) as harness:
        asking = asyncio.create_task(harness.lease(wanted(toolcrib_home)))
        await during(wait_for, lambda: running.command("agent:list")["agents"], "the agent to be there", LIMIT)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await during(wait_for, lambda: not running.command("agent:list")["agents"], "the agent to be gone", LIMIT)
        folder = paths_of(toolcrib_home).agents
        await during(wait_for, lambda: not list(folder.iterdir()), "its folder to be gone", LIMIT)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@pytest.mark.req("FRG-10")
@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_a_run_goes_on_with_a_daemon_that_was_restarted(
    daemon: StartDaemon, config: dict[str, Any], notes: Notes, toolcrib_home: Home, how: str
) -> None:
    port = str(free_port())
    first = daemon(config, "--port", port)
    async with harness_of(toolcrib_home) as harness:
        lease = await harness.lease(wanted(toolcrib_home))
        stream = lease.events()
        with member(lease) as client:
            assert nonce_of(await during(client.call, "w_note", nonce="before")) == "before"
        await take(stream, 2)
        await during(getattr(first, how))
        assert lease.folder.exists(), "the agent outlasts the daemon"
        second = await during(daemon, config, "--port", port)
        await during(wait_for, lambda: second.status()["runs"] == 1, "the run to be back", LIMIT)
        with member(lease) as client:
            assert nonce_of(await during(client.call, "w_note", nonce="after")) == "after"
        started, over = await take(stream, 2)
        assert isinstance(started, CallSeen)
        assert isinstance(over, CallSeen)
        assert (over.outcome, over.arguments) == ("ok", {"nonce": "after"})
        await lease.release()
        assert await rest_of(stream) == []
        assert second.command("agent:list")["agents"] == []
        assert not lease.folder.exists()
    assert notes.nonces() == ["before", "after"]


@pytest.mark.req("FRG-10")
async def test_an_agent_that_was_removed_while_the_daemon_was_away_is_not_gone_on_with(
    daemon: StartDaemon, toolcrib_home: Home, cli: Cli
) -> None:
    first = daemon({})
    async with harness_of(toolcrib_home) as harness:
        lease = await harness.lease(wanted(toolcrib_home))
        await during(first.stop)
        (await during(cli, "agent", "remove", "claude-c1")).ok()
        await during(daemon, {})
        assert await rest_of(lease.events()) == [LeaseEnded(why="removed")]
        await lease.release()


@pytest.mark.req("FRG-10")
async def test_a_daemon_that_does_not_come_back_or_comes_elsewhere_is_lost(
    daemon: StartDaemon, toolcrib_home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "GONE_FOR", 1.0)
    first = daemon({})
    async with harness_of(toolcrib_home) as harness:
        gone = await harness.lease(wanted(toolcrib_home))
        await during(first.stop)
        (lost,) = await rest_of(gone.events())
        assert lost == LeaseLost(why="The daemon is gone, and did not come back in 1 s.")
        await gone.release()
        monkeypatch.setattr(leases, "GONE_FOR", 20.0)
        second = await during(daemon, {})
        elsewhere = await harness.lease(wanted(toolcrib_home, "c2"))
        await during(second.stop)
        third = await during(daemon, {})
        (lost,) = await rest_of(elsewhere.events())
        assert isinstance(lost, LeaseLost)
        assert third.endpoint in lost.why


def test_agents_that_nobody_goes_on_with_are_ended_by_the_next_daemon(
    daemon: StartDaemon, toolcrib_home: Home, hold: Callable[[str], Holder]
) -> None:
    first = daemon({})
    left = hold("c1").hold()
    Owner(first).add("a-persons-own")
    first.kill()
    left.end()
    script = (
        "import sys\nfrom pathlib import Path\n"
        "from toolcrib.config.model import Flags\nfrom toolcrib.daemon import process\n"
        "process._CLAIMED_WITHIN = 0.2\n"
        "sys.exit(process.run_foreground(Path.cwd(), Flags(port=0), ready=lambda told: print('up', flush=True)))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script],
        env=toolcrib_home.environ(),
        cwd=toolcrib_home.project,
        stdout=subprocess.PIPE,
        text=True,
    ) as second:
        try:
            assert second.stdout is not None
            assert second.stdout.readline() == "up\n"
            wait_for(lambda: not Path(left.told["folder"]).exists(), "the agent to be ended", LIMIT)
            assert [one["name"] for one in first.command("agent:list")["agents"]] == ["a-persons-own"]
        finally:
            second.send_signal(signal.SIGINT)
            second.wait(LIMIT)


# -- a daemon for runs -------------------------------------------------------------------------------------------------


def has_ended(home: Home, pid: int) -> bool:
    return not home.socket.exists() and leftovers.read(pid) is None


@pytest.mark.req("FRG-11")
def test_ten_runs_that_start_at_once_without_a_daemon_share_one_which_ends_with_the_last(
    toolcrib_home: Home, config: dict[str, Any], hold: Callable[[str], Holder]
) -> None:
    toolcrib_home.write_config(config)
    holders = [hold(f"c{number}") for number in range(10)]
    told = [holder.hold().told for holder in holders]
    (pid,) = {one["daemon"] for one in told}
    assert {one["for_runs"] for one in told} == {True}
    assert len({one["endpoint"] for one in told}) == 1
    assert len({one["token"] for one in told}) == len({one["agent"] for one in told}) == 10
    first, *others, last = holders
    # Whoever started the daemon may be killed: it is nobody's child.
    first.end()
    for holder in others:
        holder.let_go()
    assert last.token_status == 200
    last.let_go()
    assert not toolcrib_home.socket.exists(), "the last to leave has waited for its end"
    wait_for(lambda: has_ended(toolcrib_home, pid), "the daemon to end", LIMIT)
    assert list(paths_of(toolcrib_home).agents.iterdir()) == []


@pytest.mark.req("FRG-11")
async def test_runs_that_come_and_go_always_find_a_daemon_though_it_keeps_ending(toolcrib_home: Home) -> None:
    daemons: set[int] = set()

    async def coming_and_going(name: str) -> None:
        for turn in range(3):
            async with harness_of(toolcrib_home) as harness:
                lease = await harness.lease(wanted(toolcrib_home, f"{name}-{turn}"))
                daemons.add(lease.daemon)

    await asyncio.gather(*(coming_and_going(f"r{number}") for number in range(4)))
    assert daemons
    assert not toolcrib_home.socket.exists()
    for pid in daemons:
        await during(wait_for, lambda pid=pid: has_ended(toolcrib_home, pid), "the daemon to end", LIMIT)
    assert list(paths_of(toolcrib_home).agents.iterdir()) == []


async def test_a_daemon_for_runs_says_so_and_stays_for_a_bridge(
    toolcrib_home: Home, config: dict[str, Any], cli: Cli
) -> None:
    toolcrib_home.write_config(config)
    async with harness_of(toolcrib_home) as harness:
        lease = await harness.lease(wanted(toolcrib_home))
        status = (await during(cli, "status", "--json")).ok().json
        assert (status["for_runs"], status["runs"], status["pid"]) == (True, 1, lease.daemon)
        up = await during(cli, "up", "--port", "0")
        assert up.exit_code == 8
        assert "for runs of coding agents only" in up.err
        assert "It ends with the last of them" in up.err
        pipe = await during(SocketClient, cast(Daemon, SimpleNamespace(home=toolcrib_home)))
        with pipe:
            assert "result" in await during(pipe.ask, request("tools/list"))
            await lease.release()
            assert leftovers.read(lease.daemon) is not None
            assert "result" in await during(pipe.ask, request("tools/list"))
    await during(wait_for, lambda: has_ended(toolcrib_home, lease.daemon), "the daemon to end", LIMIT)


@pytest.mark.req("FRG-10")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
async def test_a_daemon_for_runs_that_ends_is_lost_and_none_comes_in_its_place(
    toolcrib_home: Home, how: signal.Signals
) -> None:
    async with harness_of(toolcrib_home) as harness:
        lease = await harness.lease(wanted(toolcrib_home))
        os.kill(lease.daemon, how)
        (lost,) = await rest_of(lease.events())
        assert isinstance(lost, LeaseLost)
        assert "started for runs" in lost.why
        await during(wait_for, lambda: has_ended(toolcrib_home, lease.daemon), "the daemon to end", LIMIT)
        assert lease.folder.exists() is (how is signal.SIGKILL), "one that is asked to stop revokes before it goes"
        await lease.release()
        second = await harness.lease(wanted(toolcrib_home, "c2"))
        assert second.daemon != lease.daemon
    assert not lease.folder.exists(), "what the killed one left went with the next"


def test_a_daemon_for_runs_to_which_nobody_comes_ends(toolcrib_home: Home) -> None:
    script = (
        "import sys\nfrom pathlib import Path\nfrom toolcrib.daemon_client.lifetime import DaemonLifetime\n"
        "from toolcrib.config.model import Flags\nfrom toolcrib.daemon import process\n"
        "process._FIRST_RUN_WITHIN = 0.3\n"
        "sys.exit(process.run_foreground(Path.cwd(), Flags(port=0), ready=print, lasts=DaemonLifetime.FOR_RUNS))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=toolcrib_home.environ(),
        cwd=toolcrib_home.project,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "'for_runs': True" in done.stdout


@pytest.mark.req("FRG-10")
async def test_where_no_daemon_can_be_had_the_reason_is_given(toolcrib_home: Home) -> None:
    (toolcrib_home.toolcrib / "state").write_text("no folder")
    with pytest.raises(DaemonNotRunning, match=r"The daemon did not start: .*state") as caught:
        async with harness_of(toolcrib_home):
            raise AssertionError("there is none")
    assert "toolcrib up" in caught.value.remedy
