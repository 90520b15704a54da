"""Agents and approvals at the command line, and the commands that agents may use over MCP."""

from __future__ import annotations

import functools
import itertools
import json
import stat
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from parts.agent_clients import ERAS, AgentClient, AgentEndpoint, Owner, nonce_of, refusal
from parts.client import MODES, TIMEOUT
from parts.daemon import PROGRAM, Cli, Daemon, Home, StartDaemon, run_cli, shared_daemon
from parts.raw_client import Endpoint
from parts.recording_server import Notes
from parts.waiting import wait_for

pytestmark = pytest.mark.req("KSI-5")


@dataclass(frozen=True, kw_only=True)
class Stage:
    daemon: Daemon
    cli: Cli
    notes: Notes

    def add(self, name: str, *words: str) -> str:
        return self.cli("agent", "add", name, "--json", *words).ok().json["token"]

    def knows(self, token: str) -> bool:
        """Whether the endpoint accepts the token."""
        status = AgentEndpoint(self.daemon, token).modern("tools/list").status
        assert status in (200, 401)
        return status == 200

    def waiting(self, agent: str) -> list[dict[str, Any]]:
        found = self.daemon.command("approval:list")["approvals"]
        return [row for row in found if row["agent"] == agent]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    notes = Notes(tmp_path_factory.mktemp("notes") / "seen")
    say = "import sys; print('SAID-BY-BROKEN', file=sys.stderr, flush=True); sys.exit(3)"
    broken = {"command": sys.executable, "args": ["-c", say]}
    with shared_daemon({"servers": {"w": notes.server("note", reads="look"), "broken": broken}}, ready=["w"]) as daemon:
        yield Stage(daemon=daemon, cli=functools.partial(run_cli, daemon.home), notes=notes)


@pytest.mark.usual(engine="sqlite")
def test_an_agent_added_without_a_daemon_is_accepted_by_the_next_one(
    toolcrib_home: Home, daemon: StartDaemon, cli: Cli, store_env: dict[str, str]
) -> None:
    cli = functools.partial(cli, env=store_env)
    made = cli("agent", "add", "reviewer", "--profile", "read-only", "--workdir", ".", "--expires", "8h", "--json")
    done = made.ok().json
    assert (done["agent"], done["profile"], done["parent"]) == ("reviewer", "read-only", None)
    assert done["workdir"] == str(toolcrib_home.project.resolve())
    assert done["expires_at"] == pytest.approx(time.time() + 8 * 3600, abs=60)
    file = Path(done["token_file"])
    assert file == toolcrib_home.toolcrib / "state" / "agents" / "reviewer" / "token"
    assert file.read_text().strip() == done["token"]
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (file, file.parent, file.parent.parent)]
    assert modes == [0o600, 0o700, 0o700]
    cli("agent", "add", "scout", "--parent", "reviewer").ok()
    (file.parent.parent / "stray").mkdir()
    running = daemon({}, env=store_env)
    assert sorted(path.name for path in file.parent.parent.iterdir()) == ["reviewer", "scout"]
    assert AgentEndpoint(running, done["token"]).modern("tools/list").status == 200
    assert [row["name"] for row in cli("agent", "list", "--json").ok().json["agents"]] == ["reviewer", "scout"]
    removed = cli("agent", "remove", "reviewer").ok()
    assert removed.out == "Removed reviewer.\nAlso removed its children: scout.\n"
    assert AgentEndpoint(running, done["token"]).modern("tools/list").status == 401
    assert not list(file.parent.parent.iterdir())


def test_the_token_is_shown_once_and_agents_are_listed_with_their_details(stage: Stage) -> None:
    done = stage.cli("agent", "add", "first", "--profile", "read-only", "--expires", "30m").ok()
    token = stage.daemon.home.toolcrib.joinpath("state", "agents", "first", "token").read_text().strip()
    assert done.out == f"Agent first: profile read-only, for 30m 0s.\nToken (shown only once): {token}\n"
    assert "toolcrib connect claude --agent first" in done.err
    assert "toolcrib trust --server w" in done.err, "none of its tools counts as one that only reads"
    stage.add("lead", "--workdir", "/")
    child = stage.add("leads-own", "--parent", "lead", "--expires", "2d")
    with AgentClient(stage.daemon, "leads-own", child, "modern") as client:
        client.call("w_note", nonce="listed")
    listed = stage.cli("agent", "list").ok().out
    lines = {line.split()[0]: line.split() for line in listed.splitlines()}
    assert lines["name"] == ["name", "profile", "workdir", "parent", "expires", "last", "used"]
    assert lines["lead"] == ["lead", "developer", "/", "-", "-", "-"]
    assert lines["leads-own"][:4] == ["leads-own", "developer", "/", "lead"]
    assert lines["leads-own"][-1] == "ago"
    stage.cli("deny", "lead", "w:look").ok()
    shown = stage.cli("agent", "show", "lead").ok().out
    assert "children:  leads-own\n" in shown
    assert "rule:      deny w:look\n" in shown
    described = stage.cli("agent", "show", "lead", "--json").ok().json
    assert described["rules"] == [{"text": "agent lead: deny w:look", "origin": "agent", "deny": "w:look"}]
    for words in (["agent", "show", "first"], ["agent", "list", "--json"], ["audit", "--json"]):
        assert token not in stage.cli(*words).ok().out, words
    assert token not in (stage.daemon.home.toolcrib / "state" / "toolcrib.log").read_text()


MISTAKES: list[tuple[list[str], int, str]] = [
    (["add", "Owner"], 2, "cannot be an agent's name"),
    (["add", "owner"], 2, "reserved by Toolcrib"),
    (["add", "boss", "--profile", "owner"], 2, "`trusted` is the widest"),
    (["add", "x", "--profile", "reed-only"], 4, "Did you mean read-only?"),
    (["add", "x", "--expires", "soon"], 2, "30m, 8h or 2d"),
    (["add", "x", "--workdir", "nowhere"], 2, "is not a folder"),
    (["add", "x", "--parent", "nobody"], 4, "no agent 'nobody'"),
    (["rotate", "nobody"], 4, "no agent 'nobody'"),
    (["remove", "nobody"], 4, "no agent 'nobody'"),
    (["show", "nobody"], 4, "no agent 'nobody'"),
]


@pytest.mark.parametrize(("words", "code", "text"), MISTAKES)
def test_a_mistake_gets_an_error_with_its_remedy(stage: Stage, words: list[str], code: int, text: str) -> None:
    refused = stage.cli("agent", *words)
    assert (refused.exit_code, text in refused.err) == (code, True), refused.err


def test_a_rotated_or_expired_token_is_refused_at_once_and_the_file_has_the_new_one_or_none(stage: Stage) -> None:
    old = stage.add("turning")
    child = stage.add("turning-own", "--parent", "turning")
    done = stage.cli("agent", "rotate", "turning", "--json").ok().json
    assert Path(done["token_file"]).read_text().strip() == done["token"] != old
    assert [stage.knows(token) for token in (old, done["token"], child)] == [False, True, True]
    # Over the socket: on a busy machine one command of the CLI takes more than a second.
    token = stage.daemon.command("agent:add", name="brief", expires="2s")["token"]
    child = stage.daemon.command("agent:add", name="brief-own", parent="brief")["token"]
    folders = [stage.daemon.home.toolcrib / "state" / "agents" / name for name in ("brief", "brief-own")]
    wait_for(lambda: not stage.knows(token), "the token to expire", limit=10)
    assert not stage.knows(child)
    wait_for(lambda: not any(folder.exists() for folder in folders), "its folder to be removed")
    assert stage.cli("agent", "show", "brief").exit_code == 4
    expired = stage.cli("audit", "--agent", "brief", "--json").ok().json["entries"][-1]
    assert expired["outcome"] == "agent expired"


def test_files_left_by_a_crash_are_removed_at_the_next_start(
    toolcrib_home: Home, daemon: StartDaemon, cli: Cli
) -> None:
    running = daemon({})
    token = running.command("agent:add", name="stays")["token"]
    running.command("agent:add", name="brief", expires="1s")
    running.kill()
    folder = toolcrib_home.toolcrib / "state" / "agents"
    (folder / "half-made").mkdir()
    (folder / "half-made" / "token").write_text("tcb_half")
    # As if the daemon was killed during a rotation, before the new token was stored.
    (folder / "stays" / "token.new").write_text("tcb_never_stored\n")
    wait_for(lambda: cli("agent", "list", "--json").ok().json["agents"][-1]["name"] == "stays", "the agent to expire")
    again = daemon()
    assert [path.name for path in folder.iterdir()] == ["stays"]
    assert {path.name for path in (folder / "stays").iterdir()} == {"store", "token"}
    assert AgentEndpoint(again, token).modern("tools/list").status == 200
    assert again.command("audit:verify")["ok"]


@pytest.mark.req("KSI-6")
def test_the_owner_can_add_an_agent_over_mcp_and_the_token_is_not_audited(stage: Stage) -> None:
    answer = Endpoint(stage.daemon).call("crib_agent_add", {"name": "from-afar", "profile": "nothing"})
    token = answer.result["structuredContent"]["token"]
    assert stage.knows(token)
    with AgentClient(stage.daemon, "from-afar", token, "modern") as client:
        assert not {name for name in client.tools() if name.startswith(("crib_agent", "crib_approval"))}
        assert "may not use" in refusal(client.call("crib_agent_list"))
    rows = stage.cli("audit", "--json", "-n", "1000").ok().json["entries"]
    assert any(row["tool"] == "crib:agent_add" for row in rows)
    assert token not in json.dumps(rows)


_numbers = itertools.count()


@pytest.fixture
def asked(stage: Stage, request: pytest.FixtureRequest) -> Callable[..., AgentClient]:
    """An agent whose calls of w:note need an approval."""

    def made(era: str, **when: Any) -> AgentClient:
        name, owner = f"asked-{next(_numbers)}", Owner(stage.daemon)
        client = AgentClient(stage.daemon, name, owner.add(name), era)
        owner.allow(name, "w:note", ask=True, when=when)
        request.addfinalizer(client.close)
        return client

    return made


def question(stage: Stage, client: AgentClient) -> dict[str, Any]:
    (waiting,) = wait_for(lambda: stage.waiting(client.name), "the call to wait")
    return waiting


LONG = "x" * 2000 + "; its end"


@pytest.mark.parametrize("era", ERAS)
def test_a_call_waits_for_approval(stage: Stage, asked: Callable[..., AgentClient], era: str) -> None:
    client = asked(era)
    client.send_call("w_note", nonce=f"{client.name} yes", password="ls;key=$(id)\u202e", token=client.token, long=LONG)
    waiting = question(stage, client)
    shown = stage.cli("approvals").ok().out
    (line,) = [line for line in shown.splitlines() if line.startswith(waiting["id"])]
    assert line.split()[1] == client.name
    assert " wants to call w:note; " in line
    assert f"asked because of agent {client.name}: ask w:note" in shown
    assert f'nonce = "{client.name} yes"' in shown
    assert r'password = "ls;key=$(id)\u202e"' in shown
    assert f'token = "[secret token of agent {client.name}]"' in shown
    assert LONG not in shown
    whole = stage.cli("approvals", waiting["id"]).ok()
    assert f'long = "{LONG}"' in whole.out
    assert whole.out.startswith(waiting["id"])
    assert stage.cli("approve", waiting["id"]).ok().out == f"Approved: w:note for {client.name}.\n"
    assert nonce_of(client.answer()) == f"{client.name} yes"
    client.send_call("w_note", nonce=f"{client.name} no")
    assert stage.cli("refuse", question(stage, client)["id"]).ok().out == f"Refused: w:note for {client.name}.\n"
    assert "refused by the owner" in refusal(client.answer())
    assert f"{client.name} no" not in stage.notes.nonces()
    late = stage.cli("approve", waiting["id"])
    assert late.exit_code == 4
    assert "was answered" in late.err


def test_an_approval_with_always_allows_the_same_call_and_no_other(
    stage: Stage, asked: Callable[..., AgentClient]
) -> None:
    client = asked("modern", nonce={"one_of": ["a", "b"]})
    client.send_call("w_note", nonce="a")
    done = stage.cli("approve", question(stage, client)["id"], "--always").ok()
    assert done.out.endswith("From now on: allow w:note when nonce one_of a, b.\n")
    assert nonce_of(client.answer()) == "a"
    assert nonce_of(client.call("w_note", nonce="b")) == "b"
    assert "no rule allows it" in refusal(client.call("w_note", nonce="c"))
    assert "(from an approval with --always)" in stage.cli("agent", "show", client.name).ok().out
    stage.cli("allow", client.name, "w:note", "--when", "nonce one_of a, b", "--remove").ok()
    client.send_call("w_note", nonce="a")
    stage.cli("refuse", question(stage, client)["id"]).ok()
    assert "refused by the owner" in refusal(client.answer())


def test_a_refusal_with_always_denies_later_calls_but_changes_no_rule_of_a_parent(
    stage: Stage, asked: Callable[..., AgentClient]
) -> None:
    parent = asked("modern")
    token = stage.add(f"{parent.name}-own", "--parent", parent.name)
    with AgentClient(stage.daemon, f"{parent.name}-own", token, "modern") as client:
        client.send_call("w_note", nonce=client.name)
        waiting = question(stage, client)
        refused = stage.cli("approve", waiting["id"], "--always")
        assert refused.exit_code == 2
        assert f"its parent {parent.name}" in refused.err
        stage.cli("approve", waiting["id"]).ok()
        assert nonce_of(client.answer()) == client.name
    client = asked("legacy")
    client.send_call("w_note", nonce=f"{client.name} 1")
    done = stage.cli("refuse", question(stage, client)["id"], "--always").ok()
    assert done.out.endswith("From now on: deny w:note.\n")
    assert refusal(client.answer())
    assert "deny w:note" in refusal(client.call("w_note", nonce=f"{client.name} 2"))
    assert not stage.waiting(client.name)
    assert not [nonce for nonce in stage.notes.nonces() if nonce.startswith(client.name)]


def test_approvals_can_wait_for_the_next_call_and_need_a_daemon(
    stage: Stage, asked: Callable[..., AgentClient], cli: Cli
) -> None:
    client = asked("modern")
    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(stage.cli, "approvals", "--wait", "--json")
        client.send_call("w_note", nonce=client.name)
        rows = watching.result(timeout=30).ok().json["approvals"]
    (row,) = [row for row in rows if row["agent"] == client.name]
    assert (row["tool"], row["arguments"]) == ("w:note", {"nonce": client.name})
    assert 0 < row["left"] <= 45
    stage.cli("refuse", row["id"]).ok()
    client.answer()
    for words in (["approvals"], ["approvals", "--wait"], ["approve", "a1"], ["refuse", "a1"]):
        done = cli(*words)
        assert (done.exit_code, "No daemon is running, so no calls are waiting" in done.err) == (7, True)


FOR_ALL = {"crib_system_health", "crib_system_stats", "crib_server_list", "crib_result"}
OWNERS = {"crib_agent_add", "crib_permission_allow", "crib_approval_answer", "crib_audit_query"}
SHOWN = {"trusted": FOR_ALL | {"crib_raw_command"}, "developer": FOR_ALL, "read-only": FOR_ALL, "nothing": set()}


@pytest.mark.req("KSI-6", "KSI-8")
def test_no_rule_and_no_raw_command_gives_an_agent_the_owners_commands(stage: Stage) -> None:
    owner = Owner(stage.daemon)
    token = owner.add("greedy", "*:*", "crib:*", "crib:agent_add")
    with AgentClient(stage.daemon, "greedy", token, "modern") as client:
        assert not client.tools() & OWNERS
        for tool in sorted(OWNERS):
            assert "only the owner may manage Toolcrib" in refusal(client.call(tool, name="evil"))
    with AgentClient(stage.daemon, "t", owner.add("t", profile="trusted"), "modern") as client:
        health = client.call("crib_raw_command", command="system:health").result
        assert health["structuredContent"]["healthy"] is True
        refused = client.call("crib_raw_command", command="agent:add", parameters={"name": "evil"})
        assert "crib:agent_add" in refusal(refused)
    assert "evil" not in {agent["name"] for agent in owner.say("agent:list")["agents"]}
    lines = [(row["tool"], row["decision"], row["outcome"]) for row in owner.audit(agent="t") if row["outcome"]]
    assert ("crib:system_health", "allow", "ok") in lines
    assert ("crib:agent_add", "deny", "denied") in lines


@pytest.mark.req("KSI-6", "KSI-9")
def test_agents_see_only_the_commands_and_servers_that_they_may_use(stage: Stage) -> None:
    owner = Owner(stage.daemon)
    for era, (profile, shown) in itertools.product(ERAS, SHOWN.items()):
        token = owner.add(f"{profile}-{era}", profile=profile)
        with AgentClient(stage.daemon, profile, token, era) as client:
            assert {name for name in client.tools() if name.startswith("crib_")} == shown, (profile, era)
    for era in ERAS:
        with AgentClient(stage.daemon, "owner", stage.daemon.token, era) as client:
            assert client.tools() >= FOR_ALL | OWNERS | {"crib_raw_command"}, era
    wait_for(lambda: "SAID-BY-BROKEN" in str(owner.say("server:list")), "the owner to see its output")
    with AgentClient(stage.daemon, "dev", owner.add("dev", profile="developer"), "modern") as client:
        for tool in ("crib_server_list", "crib_system_health"):
            result = str(client.call(tool).result)
            assert not [word for word in ("SAID-BY-BROKEN", "broken") if word in result], tool


def test_a_call_that_waits_for_approval_is_refused_when_the_daemon_stops(daemon: StartDaemon, cli: Cli) -> None:
    running = daemon({})
    owner = Owner(running)
    token = owner.add("asker")
    owner.allow("asker", "crib:system_health", ask=True)
    with AgentClient(running, "asker", token, "modern") as client:
        client.send_call("crib_system_health")
        wait_for(lambda: owner.say("approval:list")["approvals"], "the call to wait")
        cli("down").ok()
        assert "Toolcrib is stopping" in refusal(client.answer())


def generated(cli: Cli, client: str) -> Path:
    return Path(cli("connect", client, "--agent", "reviewer", "--json").ok().json["generated"])


def entry(file: Path) -> dict[str, Any]:
    text = file.read_text()
    whole = tomllib.loads(text)["mcp_servers"] if file.suffix == ".toml" else json.loads(text)["mcpServers"]
    return whole["toolcrib"]


def headers(file: Path) -> dict[str, str]:
    return entry(file).get("headers") or entry(file)["http_headers"]


@pytest.mark.req("KSI-2")
def test_generated_files_follow_the_token_and_the_port_and_are_removed_with_the_agent(
    daemon: StartDaemon, cli: Cli
) -> None:
    cli("agent", "add", "reviewer", "--profile", "read-only").ok()
    offline = generated(cli, "claude")
    token = cli("agent", "rotate", "reviewer", "--json").ok().json["token"]
    first = daemon({"servers": {}})
    assert headers(offline)["Authorization"] == f"Bearer {token}", "rotated without a daemon"
    assert entry(offline)["url"] == first.endpoint

    files = [generated(cli, client) for client in ("claude", "codex", "gemini", "generic")]
    assert all(first.endpoint in file.read_text() for file in files)
    token = cli("agent", "rotate", "reviewer", "--json").ok().json["token"]
    assert {headers(file)["Authorization"] for file in files} == {f"Bearer {token}"}
    first.kill()
    second = daemon()
    assert second.endpoint != first.endpoint
    for file in files:
        assert second.endpoint in file.read_text()
        assert first.endpoint not in file.read_text()

    second.kill()
    cli("agent", "remove", "reviewer").ok()
    folder = offline.parent
    assert not folder.exists()
    # A crash can leave the folder of an agent that no longer exists.
    folder.mkdir(parents=True)
    offline.write_text("a token")
    daemon()
    assert not folder.exists()


@pytest.mark.req("KSI-2")
@pytest.mark.parametrize("era", ERAS)
async def test_the_generated_file_and_the_bridge_of_an_agent_offer_its_tools(stage: Stage, era: str) -> None:
    name, home = f"reviewer-{era}", stage.daemon.home
    Owner(stage.daemon).add(name, "w:note")
    shown = stage.cli("connect", "generic", "--agent", name, "--json").ok().json
    file, command = Path(shown["generated"]), shown["entry"]
    assert command["command"] == str(PROGRAM)
    environ = {**home.environ(), **command["env"]}
    server = StdioServerParameters(command=command["command"], args=command["args"], env=environ, cwd=home.project)
    async with (
        httpx2.AsyncClient(headers=headers(file), timeout=TIMEOUT, trust_env=False) as http,
        Client(streamable_http_client(entry(file)["url"], http_client=http), mode=MODES[era]) as over_http,
        Client(server, mode=MODES[era]) as bridge,
    ):
        for client in (over_http, bridge):
            assert [tool.name for tool in (await client.list_tools()).tools] == ["w_note", "crib_result"]
            result = await client.call_tool("w_note", {"nonce": name})
            assert (result.structured_content or {})["nonce"] == name
