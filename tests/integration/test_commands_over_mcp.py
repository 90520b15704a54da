"""The daemon's commands as tools: who is shown which, what a raw command reaches, and what the audit log says of it."""

from __future__ import annotations

import sys

import pytest

from parts.agent_clients import AgentClient, Owner
from parts.daemon import Cli, Daemon, StartDaemon
from parts.waiting import wait_for

pytestmark = pytest.mark.req("KSI-6")

FOR_ALL = {"crib_system_health", "crib_system_stats", "crib_server_list"}
SOME_OF_THE_OWNERS = {"crib_agent_add", "crib_permission_allow", "crib_approval_answer", "crib_audit_query"}


@pytest.fixture
def running(daemon: StartDaemon) -> Daemon:
    return daemon({})


@pytest.mark.parametrize("era", ["modern", "legacy"])
def test_each_profile_is_shown_the_commands_that_it_may_use(running: Daemon, era: str) -> None:
    owner = Owner(running)
    shown: dict[str, set[str]] = {}
    for profile in ("trusted", "developer", "read-only", "nothing"):
        with AgentClient(running, profile, owner.add(f"a-{profile}", profile=profile), era) as client:
            shown[profile] = {name for name in client.tools() if name.startswith("crib_")}
    with AgentClient(running, "owner", running.token, era) as client:
        assert client.tools() >= FOR_ALL | SOME_OF_THE_OWNERS | {"crib_raw_command"}
    assert shown == {
        "trusted": FOR_ALL | {"crib_raw_command"},
        "developer": FOR_ALL,
        "read-only": FOR_ALL,
        "nothing": set(),
    }


def test_no_rule_gives_an_agent_what_is_the_owners(running: Daemon) -> None:
    owner = Owner(running)
    token = owner.add("greedy", "*:*", "crib:*", "crib:agent_add")
    with AgentClient(running, "greedy", token, "modern") as client:
        assert not client.tools() & SOME_OF_THE_OWNERS
        for tool in sorted(SOME_OF_THE_OWNERS):
            told = client.call(tool, name="evil").result
            assert told["isError"] is True
            assert "for the owner alone" in told["content"][0]["text"]
    assert [agent["name"] for agent in owner.say("agent:list")["agents"]] == ["greedy"]


@pytest.mark.req("KSI-8")
def test_what_a_raw_command_reaches_is_judged_and_written_down_for_what_it_is(running: Daemon) -> None:
    owner = Owner(running)
    with AgentClient(running, "t", owner.add("t", profile="trusted"), "modern") as client:
        fine = client.call("crib_raw_command", command="system:health").result
        refused = client.call("crib_raw_command", command="agent:add", parameters={"name": "evil"}).result
    assert fine["structuredContent"]["healthy"] is True
    assert refused["isError"] is True
    assert "crib:agent_add" in refused["content"][0]["text"]
    lines = [(row["tool"], row["decision"], row["outcome"]) for row in owner.audit(agent="t") if row["outcome"]]
    assert ("crib:system_health", "allow", "ok") in lines
    assert ("crib:agent_add", "deny", "denied") in lines


@pytest.mark.req("KSI-5")
def test_a_stop_tells_a_call_that_waits_for_a_person(running: Daemon, cli: Cli) -> None:
    owner = Owner(running)
    token = owner.add("asker", profile="nothing")
    owner.say("permission:allow", agent="asker", tools="crib:system_health", ask=True)
    with AgentClient(running, "asker", token, "modern") as client:
        client.send_call("crib_system_health")
        wait_for(lambda: owner.say("approval:list")["approvals"], "the question")
        cli("down").ok()
        told = client.answer().result
    assert told["isError"] is True
    assert "Toolcrib is stopping" in told["content"][0]["text"]


@pytest.mark.req("KSI-9")
@pytest.mark.parametrize("tool", ["crib_server_list", "crib_system_health"])
def test_an_agent_hears_only_of_servers_that_it_can_use_and_nothing_that_they_wrote(
    daemon: StartDaemon, tool: str
) -> None:
    say = "import sys; print('SAID-BY-OTHERS', file=sys.stderr, flush=True); sys.exit(3)"
    broken = {"command": sys.executable, "args": ["-c", say]}
    running = daemon({"servers": {"broken": broken}})
    owner = Owner(running)
    wait_for(lambda: "SAID-BY-OTHERS" in str(owner.say("server:list")), "the owner to see its words")
    with AgentClient(running, "dev", owner.add("dev", profile="developer"), "modern") as client:
        told = str(client.call(tool).result)
    assert "SAID-BY-OTHERS" not in told
    assert "broken" not in told
