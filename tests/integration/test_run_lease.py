"""Leases: an agent exists as long as the connection that requested it, and every call of it is reported there.

Checked from outside: the endpoint (does the token work?), the recording server (what ran?), the audit log, the disk and
the process table.
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
from parts.daemon import Daemon, Home, StartDaemon
from parts.preloaded import Preloaded
from parts.raw_client import SocketClient, request
from parts.recording_server import Notes
from parts.waiting import during, wait_for
from toolcrib.config.paths import Paths
from toolcrib.daemon_client import lease as leases
from toolcrib.daemon_client.lifetime import DaemonLifetime
from toolcrib.errors import DaemonNotRunning, NotFound, UsageError
from toolcrib.policy import OwnTools

LIMIT = 60.0
SECRET = "s3cret-of-the-person"


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> Notes:
    return Notes(tmp_path_factory.mktemp("seen") / "notes")


@pytest.fixture(scope="module")
def config(notes: Notes) -> dict[str, Any]:
    return {"servers": {"w": notes.server("note", "other", env={"KEY": "${RUN_TEST_KEY:-none}"})}}


@pytest.fixture(scope="module")
def running(start_shared_daemon: StartDaemon, config: dict[str, Any]) -> Daemon:
    daemon = start_shared_daemon(config, env={"RUN_TEST_KEY": SECRET})
    daemon.wait_until_ready()
    return daemon


@contextlib.asynccontextmanager
async def client_of(home: Home) -> AsyncIterator[leases.LeaseClient]:
    async with asyncio.timeout(60), leases.open_lease_client(paths_of(home), home.project, home.environ()) as client:
        yield client


def paths_of(home: Home) -> Paths:
    return Paths.of_user(home.environ())


def wanted(home: Home, conversation: str = "c1", **more: Any) -> leases.LeaseRequest:
    usual = {"client": "claude", "profile": "developer", "workdir": home.project, "lives": 600.0}
    return leases.LeaseRequest(**{**usual, "conversation": conversation, **more})


def endpoint(url: str) -> Daemon:
    return cast(Daemon, SimpleNamespace(endpoint=url, token=""))


def member(lease: leases.AgentLease, era: str = "modern") -> AgentClient:
    """A client that knows only the lease."""
    return AgentClient(endpoint(lease.url), lease.agent, lease.token, era, conversation="c1")


def status_of(url: str, token: str) -> int:
    return AgentEndpoint(endpoint(url), token).modern("tools/list").status


def agents(daemon: Daemon) -> list[str]:
    return [agent["name"] for agent in daemon.command("agent:list")["agents"]]


async def take(stream: AsyncIterator[leases.LeaseEvent], count: int) -> list[leases.LeaseEvent]:
    async with asyncio.timeout(LIMIT):
        return [await anext(stream) for _ in range(count)]


async def rest_of(stream: AsyncIterator[leases.LeaseEvent]) -> list[leases.LeaseEvent]:
    async with asyncio.timeout(LIMIT):
        return [note async for note in stream]


async def test_a_lease_has_everything_that_a_run_needs_when_the_servers_are_ready(daemon, config, toolcrib_home):
    gone = {"command": sys.executable, "args": ["-c", "raise SystemExit(3)"], "env": {"URL": "https://${A_HOST}/x"}}
    servers = {**config["servers"], "gone": {**gone, "retry": {"attempts": 1}}}
    running = daemon({"servers": servers}, env={"RUN_TEST_KEY": SECRET, "A_HOST": "h"})
    async with client_of(toolcrib_home) as client:
        lease = await client.lease(wanted(toolcrib_home, profile="read-only"))
        assert (lease.agent, lease.url, lease.for_runs) == ("claude-c1", running.endpoint, False)
        assert lease.folder.stat().st_mode & 0o777 == 0o700
        assert (lease.folder / "token").read_text().strip() == lease.token
        assert lease.own_tools.tools is OwnTools.READ
        assert lease.withheld == {"RUN_TEST_KEY", "A_HOST"}
        [warning] = [text for text in lease.warnings if text.startswith("The server ")]
        assert warning.startswith("The server gone is unavailable: ")
        # The lease waited for the servers, so one listing has all tools.
        developer = await client.lease(wanted(toolcrib_home, "c2"))
        with member(developer) as agent:
            seen = await during(agent.tools) - {"crib_result"}
        assert {"w_note", "w_other", "w_release"} <= seen
        assert developer.names.keys() == seen
        assert developer.names["w_note"] == ("w", "note")
        assert developer.tools == len(seen) > lease.tools
        (listed,) = [one for one in running.command("agent:list")["agents"] if one["name"] == "claude-c1"]
        assert (listed["profile"], listed["workdir"]) == ("read-only", str(toolcrib_home.project))
        assert 0 < listed["expires_at"] - listed["created_at"] <= 600
    assert agents(running) == []
    changes = [(row["outcome"], row["agent"]) for row in Owner(running).audit() if row["kind"] == "change"]
    assert changes == [(what, f"claude-{n}") for what in ("agent added", "agent removed") for n in ("c1", "c2")]


async def test_invalid_requests_are_refused_with_a_remedy(running, shared_home, tmp_path):
    async with client_of(shared_home) as client:
        first = await client.lease(wanted(shared_home))
        with pytest.raises(UsageError, match="Another run is using the conversation c1 of claude") as taken:
            await client.lease(wanted(shared_home))
        assert "toolcrib agent remove claude-c1" in taken.value.remedy
        for error, message, conversation, given in (
            (NotFound, "no profile 'nobodys'", "c2", {"profile": "nobodys"}),
            (UsageError, "No agent can have the profile owner", "c2", {"profile": "owner"}),
            (UsageError, "cannot be an agent's name", "C 2", {}),
            (UsageError, "is not a folder", "c2", {"workdir": shared_home.project / "none"}),
            (UsageError, "is not in the project", "c2", {"workdir": tmp_path}),
        ):
            with pytest.raises(error, match=message):
                await client.lease(wanted(shared_home, conversation, **given))
        assert agents(running) == ["claude-c1"]
        await first.release()
        again = await client.lease(wanted(shared_home))
        assert again.token != first.token
    assert list(paths_of(shared_home).agents.iterdir()) == []


def test_agents_cannot_request_leases(running):
    tools = AgentEndpoint(running, running.token).modern("tools/list").result["tools"]
    assert not [tool["name"] for tool in tools if "lease" in tool["name"].replace("w_release", "")]
    with SocketClient(running, bridge=False) as pipe:
        pipe.send(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "run:lease", "params": {"client": "x"}}).encode())
        assert "client, conversation, workdir and lives are required" in pipe.message()["error"]["message"]


@pytest.mark.req("FRG-6")
@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_every_listing_and_call_is_reported_in_order_as_server_and_audit_log_saw_it(
    running, notes, shared_home, era
):
    Owner(running).put_profile("mine", {"allow": "w:*"}, {"deny": "w:other"})
    exact = {"nonce": era, "text": 'a\nb\t"ü" \x1b', "deep": {"list": [1, 2.5, None, True]}, "key": f"is {SECRET}"}

    def work() -> bytes:
        with member(lease, era) as agent:
            listed = agent.ask("tools/list").message
            agent.send_call("w_note", meta={"claudecode/toolUseId": "t1"}, **exact)
            assert nonce_of(agent.answer()) == era
            assert refusal(agent.call("w_note", nonce="n2", fail="sorry")) == "sorry"
            assert "deny w:other" in refusal(agent.call("w_other", nonce="n3"))
            assert "do not match" in refusal(agent.call("w_note", nonce=5))
            assert refusal(agent.call("w_nothing"))
        return listed

    async with client_of(shared_home) as client:
        lease = await client.lease(wanted(shared_home, era, profile="mine"))
        other = await client.lease(wanted(shared_home, "other"))
        answer = (await during(work)).decode()
        await lease.release()
        listed, *calls = await rest_of(lease.events())
        await other.release()
        assert await rest_of(other.events()) == [], "a run sees no events of another run"
    assert isinstance(listed, leases.ListingSeen)
    begin = answer.index('"tools":') + len('"tools":')
    tools, end = json.JSONDecoder().raw_decode(answer, begin)
    assert listed.tools == len(tools) == len(listed.names) + 1, "and crib_result"
    assert listed.bytes == len(answer[begin:end].encode())
    assert listed.bytes / 8 < listed.tokens < listed.bytes
    assert all(isinstance(call, leases.CallSeen) for call in calls)
    assert [(call.name, call.tool, call.server, call.outcome, call.over) for call in calls] == [
        ("w_note", "note", "w", "", False),
        ("w_note", "note", "w", "ok", True),
        ("w_note", "note", "w", "", False),
        ("w_note", "note", "w", "tool_error", True),
        ("w_other", "other", "w", "denied", True),
        ("w_note", "note", "w", "invalid", True),
        ("w_nothing", "w_nothing", "", "unknown", True),
    ]
    assert [call.call for call in calls[:4:2]] == [call.call for call in calls[1:4:2]]
    assert len({call.call for call in calls}) == 5
    assert calls[0].arguments == calls[1].arguments == {**exact, "key": "is ****"}
    assert exact in [call["arguments"] for call in notes.calls()], "the server got the arguments unchanged"
    assert calls[0].meta == calls[1].meta == {"claudecode/toolUseId": "t1"}
    assert [call.duration_ms is not None for call in calls] == [call.over for call in calls]
    assert calls[4].decision == "deny"
    assert "deny w:other" in calls[4].rule
    rows = [row for row in Owner(running).audit(agent=lease.agent) if row["kind"] == "outcome"]
    assert [(row["outcome"], row["rule"]) for row in rows] == [(one.outcome, one.rule) for one in calls if one.over]


@pytest.mark.req("FRG-10")
@pytest.mark.parametrize(("how", "verb"), [("removed", "remove"), ("rotated", "rotate")])
async def test_a_run_whose_agent_is_revoked_is_informed_after_its_last_call(
    running, shared_home, shared_cli, how, verb
):
    async with client_of(shared_home) as client:
        lease = await client.lease(wanted(shared_home))
        stream = lease.events()
        with member(lease) as agent:
            agent.send_call("w_note", nonce="held", hold=True)
            (started,) = await take(stream, 1)
            (await during(shared_cli, "agent", verb, "claude-c1")).ok()
            await during(agent.answer)
        over, ended = await rest_of(stream)
        assert (over.call, over.outcome) == (started.call, "denied")
        assert ended == leases.LeaseEnded(why=how)
        wait_for(lambda: not lease.folder.exists(), "the folder to be deleted", LIMIT)
        assert status_of(lease.url, lease.token) == 401
        await lease.release()
    assert agents(running) == []


@pytest.mark.req("FRG-10")
async def test_an_agent_ends_when_its_time_is_over(running, shared_home):
    async with client_of(shared_home) as client:
        lease = await client.lease(wanted(shared_home, lives=0.5))
        assert await rest_of(lease.events()) == [leases.LeaseEnded(why="expired")]
        assert status_of(lease.url, lease.token) == 401


async def test_a_run_that_reads_no_events_loses_its_agent_and_costs_the_daemon_no_memory(running, shared_home):
    project = str(shared_home.project)
    params = {"client": "claude", "conversation": "c1", "workdir": project, "lives": 600}
    with SocketClient(running, bridge=False) as pipe:
        body = {"jsonrpc": "2.0", "id": 1, "method": "run:lease", "params": params, "root": project}
        pipe.send(json.dumps(body).encode())
        lease = pipe.message()["params"]["event"]["lease"]
        text, made, before = "x" * 200_000, 0, resident(running.pid)
        with AgentClient(endpoint(lease["endpoint"]), "claude-c1", lease["token"], "modern") as agent:
            while made < 400 and agent.call("w_note", nonce=str(made), text=text).status == 200:
                made += 1
        assert 50 < made < 400
        assert resident(running.pid) - before < 200 * 1024 * 1024
        last = {}
        while "result" not in last:
            before_last, last = last, pipe.message()
        assert before_last["params"]["event"] == {"ended": {"why": "unread"}}
    assert agents(running) == []


def resident(pid: int) -> int:
    """Bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


HOLDER = """
import asyncio, json, os, sys
from pathlib import Path
from toolcrib.config.paths import Paths
from toolcrib.daemon_client.lease import LeaseRequest, open_lease_client

async def main(conversation, workdir):
    async with open_lease_client(Paths.of_user(os.environ), Path(workdir), dict(os.environ)) as client:
        lease = await client.lease(
            LeaseRequest(client="claude", profile="developer", workdir=Path(workdir), conversation=conversation,
                         lives=600.0)
        )
        shown = {"agent": lease.agent, "token": lease.token, "endpoint": lease.url, "folder": str(lease.folder),
                 "daemon": lease.daemon, "for_runs": lease.for_runs}
        print(json.dumps(shown), flush=True)
        await asyncio.to_thread(sys.stdin.readline)

asyncio.run(main(*sys.argv[1:]))
"""


class Holder:
    """A process that holds a lease until it is asked to release it, or killed."""

    def __init__(self, script: Path, home: Home, conversation: str) -> None:
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        command = [str(script), conversation, str(home.project)]
        self.process = Preloaded(command, env=home.environ(), cwd=home.project, text=True, **pipes)
        self.lease: dict[str, Any] = {}

    def hold(self) -> Holder:
        line = self.process.stdout.readline()
        assert line, self.process.communicate(timeout=LIMIT)[1]
        self.lease = json.loads(line)
        return self

    @property
    def token_status(self) -> int:
        return status_of(self.lease["endpoint"], self.lease["token"])

    def release(self) -> None:
        _, errors = self.process.communicate("\n", timeout=LIMIT)
        assert self.process.returncode == 0, errors

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate(timeout=LIMIT)


@pytest.fixture
def start_holder(tmp_path: Path) -> Iterator[Callable[..., Holder]]:
    started: list[Holder] = []
    script = tmp_path / "holder.py"
    script.write_text(HOLDER)

    def start(home: Home, conversation: str) -> Holder:
        started.append(Holder(script, home, conversation))
        return started[-1]

    yield start
    for one in started:
        one.end()


@pytest.mark.req("FRG-11", "KSI-2")
def test_a_killed_run_leaves_neither_a_valid_token_nor_a_folder(running, shared_home, start_holder):
    holders = [start_holder(shared_home, name) for name in ("c1", "c2")]
    killed, other = [holder.hold() for holder in holders]
    assert (killed.token_status, other.token_status) == (200, 200)
    killed.process.send_signal(signal.SIGKILL)
    wait_for(lambda: killed.token_status == 401, "the token to be void")
    wait_for(lambda: not Path(killed.lease["folder"]).exists(), "the folder to be deleted")
    assert other.token_status == 200
    assert agents(running) == ["claude-c2"]
    assert [one["agent"] for one in Owner(running).sessions() if one["agent"] != "owner"] == ["claude-c2"]
    start_holder(shared_home, "c1").hold().release()


async def test_a_run_that_is_interrupted_while_it_waits_for_its_lease_leaves_nothing(daemon, toolcrib_home):
    slow = {"command": sys.executable, "args": ["-c", "import time; time.sleep(60)"]}
    running = daemon({"servers": {"slow": slow}})
    async with client_of(toolcrib_home) as client:
        asking = asyncio.create_task(client.lease(wanted(toolcrib_home)))
        await during(wait_for, lambda: agents(running), "the agent to exist", LIMIT)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await during(wait_for, lambda: not agents(running), "the agent to be removed", LIMIT)
        folder = paths_of(toolcrib_home).agents
        await during(wait_for, lambda: not list(folder.iterdir()), "its folder to be deleted", LIMIT)


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


@pytest.mark.req("FRG-10")
async def test_a_run_continues_after_a_restart_of_the_daemon_unless_its_agent_was_removed_meanwhile(
    daemon, config, notes, toolcrib_home, cli
):
    port = free_port()
    running = daemon(config, "--port", port)
    async with client_of(toolcrib_home) as client:
        lease, removed = [await client.lease(wanted(toolcrib_home, name)) for name in ("c1", "c2")]
        stream = lease.events()

        async def call(nonce: str) -> None:
            with member(lease) as agent:
                assert nonce_of(await during(agent.call, "w_note", nonce=nonce)) == nonce
            _, over = await take(stream, 2)
            assert (over.outcome, over.arguments) == ("ok", {"nonce": nonce})

        await call("before")
        for how in ("stop", "kill"):
            await during(getattr(running, how))
            assert lease.folder.exists(), "the agent is kept while there is no daemon"
            if how == "stop":
                (await during(cli, "agent", "remove", "claude-c2")).ok()
            running = await during(daemon, config, "--port", port)
            if how == "stop":
                assert await rest_of(removed.events()) == [leases.LeaseEnded(why="removed")]
                await removed.release()
            await during(wait_for, lambda: running.status()["runs"] == 1, "the run to be back", LIMIT)  # noqa: B023
            await call(f"after {how}")
        await lease.release()
        assert await rest_of(stream) == []
        assert agents(running) == []
        assert not lease.folder.exists()
    assert [nonce for nonce in notes.nonces() if nonce in ("before", "after stop", "after kill")] == [
        "before", "after stop", "after kill"
    ]  # fmt: skip


@pytest.mark.req("FRG-10")
async def test_a_daemon_that_stays_away_or_returns_at_another_address_is_lost(daemon, toolcrib_home, monkeypatch):
    monkeypatch.setattr(leases, "GONE_FOR", 1.0)
    first = daemon({})
    async with client_of(toolcrib_home) as client:
        gone = await client.lease(wanted(toolcrib_home))
        await during(first.stop)
        (lost,) = await rest_of(gone.events())
        assert lost == leases.LeaseLost(why="The daemon stopped and did not come back within 1 s.")
        await gone.release()
        monkeypatch.setattr(leases, "GONE_FOR", 20.0)
        second = await during(daemon, {})
        elsewhere = await client.lease(wanted(toolcrib_home, "c2"))
        await during(second.stop)
        third = await during(daemon, {})
        (lost,) = await rest_of(elsewhere.events())
        assert isinstance(lost, leases.LeaseLost)
        assert third.endpoint in lost.why


DAEMON = """
import sys
from pathlib import Path
from toolcrib.config.model import Flags
from toolcrib.daemon import process
from toolcrib.daemon_client.lifetime import DaemonLifetime
name, lasts = sys.argv[1:]
setattr(process, name, 0.3)
ready = lambda info: print(f"up {info['for_runs']}", flush=True)
sys.exit(process.run_foreground(Path.cwd(), Flags(port=0), ready=ready, lasts=DaemonLifetime(lasts)))
"""


@contextlib.contextmanager
def impatient_daemon(home: Home, limit: str, lifetime: DaemonLifetime) -> Iterator[subprocess.Popen[str]]:
    """A daemon for which one of its limits is short."""
    command = [sys.executable, "-c", DAEMON, limit, lifetime.value]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=home.environ(), cwd=home.project, **pipes) as process:
        try:
            assert process.stdout.readline() == f"up {lifetime is DaemonLifetime.FOR_RUNS}\n"
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
            process.wait(LIMIT)


def test_agents_that_no_run_claims_are_ended_by_the_next_daemon(daemon, toolcrib_home, start_holder):
    first = daemon({})
    left = start_holder(toolcrib_home, "c1").hold()
    Owner(first).add("a-persons-own")
    first.kill()
    left.end()
    with impatient_daemon(toolcrib_home, "_CLAIMED_WITHIN", DaemonLifetime.UNTIL_STOPPED):
        wait_for(lambda: not Path(left.lease["folder"]).exists(), "the agent to be ended", LIMIT)
        assert agents(first) == ["a-persons-own"]


def test_a_daemon_for_runs_that_no_run_uses_ends(toolcrib_home):
    with impatient_daemon(toolcrib_home, "_FIRST_RUN_WITHIN", DaemonLifetime.FOR_RUNS) as process:
        assert process.wait(LIMIT) == 0


def has_ended(home: Home, pid: int) -> bool:
    return not home.socket.exists() and leftovers.read(pid) is None


@pytest.mark.req("FRG-11")
def test_ten_runs_that_start_at_once_without_a_daemon_share_one_which_ends_with_the_last(
    toolcrib_home, config, start_holder
):
    toolcrib_home.write_config(config)
    holders = [start_holder(toolcrib_home, f"c{number}") for number in range(10)]
    held = [holder.hold().lease for holder in holders]
    [(pid, for_runs, _)] = {(one["daemon"], one["for_runs"], one["endpoint"]) for one in held}
    assert for_runs is True
    assert len({one["token"] for one in held}) == len({one["agent"] for one in held}) == 10
    first, *others, last = holders
    # The run that started the daemon may be killed: the daemon is not its child.
    first.end()
    for holder in others:
        holder.release()
    assert last.token_status == 200
    last.release()
    assert not toolcrib_home.socket.exists(), "the last run waits for the daemon's end"
    wait_for(lambda: has_ended(toolcrib_home, pid), "the daemon to end", LIMIT)
    assert list(paths_of(toolcrib_home).agents.iterdir()) == []


@pytest.mark.req("FRG-11")
async def test_short_runs_always_find_a_daemon_although_it_keeps_ending(toolcrib_home):
    daemons: set[int] = set()

    async def run_three_times(name: str) -> None:
        for turn in range(3):
            async with client_of(toolcrib_home) as client:
                lease = await client.lease(wanted(toolcrib_home, f"{name}-{turn}"))
                daemons.add(lease.daemon)

    await asyncio.gather(*(run_three_times(f"r{number}") for number in range(4)))
    assert daemons
    assert not toolcrib_home.socket.exists()
    for pid in daemons:
        await during(wait_for, lambda pid=pid: has_ended(toolcrib_home, pid), "the daemon to end", LIMIT)
    assert list(paths_of(toolcrib_home).agents.iterdir()) == []


async def test_a_daemon_for_runs_is_shown_as_one_and_stays_for_a_bridge(toolcrib_home, config, cli):
    toolcrib_home.write_config(config)
    async with client_of(toolcrib_home) as client:
        lease = await client.lease(wanted(toolcrib_home))
        status = (await during(cli, "status", "--json")).ok().json
        assert (status["for_runs"], status["runs"], status["pid"]) == (True, 1, lease.daemon)
        up = await during(cli, "up", "--port", "0")
        assert up.exit_code == 8
        assert "only for runs of coding agents" in up.err
        assert "It stops after the last run" in up.err
        pipe = await during(SocketClient, cast(Daemon, SimpleNamespace(home=toolcrib_home)))
        with pipe:
            assert "result" in await during(pipe.ask, request("tools/list"))
            await lease.release()
            assert leftovers.read(lease.daemon) is not None
            assert "result" in await during(pipe.ask, request("tools/list"))
    await during(wait_for, lambda: has_ended(toolcrib_home, lease.daemon), "the daemon to end", LIMIT)


@pytest.mark.req("FRG-10")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
async def test_a_daemon_for_runs_that_ends_is_lost_and_not_replaced(toolcrib_home, how):
    async with client_of(toolcrib_home) as client:
        lease = await client.lease(wanted(toolcrib_home))
        os.kill(lease.daemon, how)
        (lost,) = await rest_of(lease.events())
        assert isinstance(lost, leases.LeaseLost)
        assert "started for runs" in lost.why
        await during(wait_for, lambda: has_ended(toolcrib_home, lease.daemon), "the daemon to end", LIMIT)
        assert lease.folder.exists() is (how is signal.SIGKILL), "a daemon that is asked to stop revokes its agents"
        await lease.release()
        second = await client.lease(wanted(toolcrib_home, "c2"))
        assert second.daemon != lease.daemon
    assert not lease.folder.exists(), "the next daemon deletes what a killed one left"


@pytest.mark.req("FRG-10")
async def test_if_no_daemon_can_start_the_error_has_the_reason(toolcrib_home):
    (toolcrib_home.toolcrib / "state").write_text("no folder")
    with pytest.raises(DaemonNotRunning, match=r"The daemon did not start: .*state") as caught:
        await client_of(toolcrib_home).__aenter__()
    assert "toolcrib up" in caught.value.remedy
