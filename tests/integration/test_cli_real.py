"""The command line against a running daemon and real servers: what a person types, what the far side sees."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from parts.client import at_endpoint
from parts.daemon import PROGRAM, Cli, Daemon, Home, StartDaemon
from parts.server_process import StartServer, stdio_command
from parts.waiting import wait_for
from toolcrib.servers.model import MODERN_VERSION

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def seen(shared_home: Home) -> Path:
    return shared_home.path / "seen"


@pytest.fixture(scope="module")
def running(shared_home: Home, start_shared_daemon: StartDaemon, seen: Path) -> Daemon:
    """`own` offers one of each kind; `raw` and `twin` offer the same tools as each other."""
    own = stdio_command("sdk_v2", "--seen", str(seen))
    raw = stdio_command("raw_server")
    servers = {
        "own": {"command": own[0], "args": own[1:]},
        "raw": {"command": raw[0], "args": raw[1:]},
        "twin": {"command": raw[0], "args": [*raw[1:], "--era", "legacy"]},
    }
    daemon = start_shared_daemon({"servers": servers})
    daemon.wait_until_ready(*servers)
    return daemon


@pytest.fixture
def run(running: Daemon, shared_cli: Cli) -> Cli:
    assert running.process.poll() is None
    return shared_cli


def post(endpoint: str, token: str, method: str, **params: Any) -> Any:
    """One request of a legacy client that never began: enough to see that somebody answers."""
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "Authorization": f"Bearer {token}",
    }
    request = urllib.request.Request(endpoint, data=body, headers=headers)  # noqa: S310 - loopback
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
        return json.load(answer)


HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}


# -- looking ------------------------------------------------------------------------------------------------------


@pytest.mark.req("KSI-1")
def test_status_says_what_a_script_needs_to_reach_the_endpoint(run: Cli, running: Daemon) -> None:
    status = run("status", "--json").ok().json
    assert status.keys() >= {"endpoint", "token_file", "pid", "version", "servers"}
    assert status["pid"] == running.process.pid
    token = Path(status["token_file"])
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    assert stat.S_IMODE(running.home.socket.stat().st_mode) == 0o600
    assert post(status["endpoint"], token.read_text().strip(), "initialize", **HELLO)["result"]["serverInfo"]
    assert {server["name"] for server in status["servers"]} == {"own", "raw", "twin"}
    assert status["endpoint"] in run("status").ok().out


@pytest.mark.req("BNS-1", "ENG-10")
def test_servers_shows_state_protocol_transport_tools_pid_and_uptime(run: Cli) -> None:
    servers = {row["name"]: row for row in run("servers", "--json").ok().json["servers"]}
    assert {
        name: (row["state"], row["protocol_version"] == MODERN_VERSION, row["transport"])
        for name, row in servers.items()
    } == {
        "own": ("ready", True, "stdio"),
        "raw": ("ready", True, "stdio"),
        "twin": ("ready", False, "stdio"),
    }
    assert servers["own"]["tools"] == 10
    again = {row["name"]: row for row in run("servers", "--json").ok().json["servers"]}
    assert 0 < servers["own"]["uptime"] < again["own"]["uptime"], "it counts up from the start"
    assert b"sdk_v2.py" in Path(f"/proc/{servers['own']['pid']}/cmdline").read_bytes()
    heading, *rows = run("servers").ok().out.splitlines()
    assert " ".join(heading.split()) == "name state protocol transport tools trusted pid uptime last error"
    assert [row.split()[0] for row in rows] == ["own", "raw", "twin"]


@pytest.mark.req("BNS-8", "ENG-10")
def test_tools_lists_all_or_one_servers(run: Cli) -> None:
    every = run("tools", "--json").ok().json["tools"]
    assert {tool["server"] for tool in every} == {"own", "raw", "twin", "crib", "workspace"}
    own = run("tools", "own", "--json").ok().json["tools"]
    assert {tool["server"] for tool in own} == {"own"}
    add = next(tool for tool in own if tool["tool"] == "add")
    assert (add["name"], add["display"]) == ("own_add", "own:add")
    assert add["input_schema"]["required"] == ["a", "b"]
    unknown = run("tools", "owl")
    assert unknown.exit_code == 4
    assert "own" in unknown.err


# -- calling ------------------------------------------------------------------------------------------------------


@pytest.mark.req("BNS-5", "BNS-8", "ENG-3")
@pytest.mark.parametrize("name", ["own:add", "own_add", "mcp_own_add", "add"])
def test_a_tool_is_called_by_each_of_its_names(run: Cli, name: str) -> None:
    assert run("call", name, "a=40", "b=2").ok().out == "42\n"


@pytest.mark.req("BNS-5", "ENG-9")
def test_arguments_come_as_words_as_json_or_both_and_arrive_as_meant(run: Cli, running: Daemon, seen: Path) -> None:
    file = running.home.project / "words.txt"
    file.write_text("from a file")
    done = run(
        "call", "own:echo", "text=7", "n:=7", "from=@words.txt", "--args", '{"text": "no", "list": [null]}', "--json"
    )
    wanted = {"text": "7", "n": 7, "from": "from a file", "list": [None]}
    assert done.ok().json["structuredContent"] == wanted
    calls = [json.loads(line) for line in seen.read_text().splitlines()]
    assert wanted in [call["arguments"] for call in calls]


@pytest.mark.req("BNS-8")
def test_a_plain_name_of_two_servers_is_not_guessed(run: Cli) -> None:
    done = run("call", "ok")
    assert done.exit_code == 4
    assert "raw" in done.err
    assert "twin" in done.err


@pytest.mark.req("BNS-5")
@pytest.mark.parametrize(
    ("words", "exit_code", "says"),
    [
        (["own:add", "a=1"], 2, "b"),
        (["own:add", "--args", '{"a": 1, "b": "two"}'], 2, "b"),
        (["own:ad", "a=1", "b=2"], 4, "own:add"),
        (["own:fail", "message=out of paper"], 10, "out of paper"),
        (["own:boom"], 6, "boom, as asked"),
        (["own:slow", "seconds=60", "--timeout", "0.3"], 6, "0.3 s"),
    ],
    ids=["missing", "wrong-type", "unknown", "tool-error", "rpc-error", "time-limit"],
)
def test_a_call_that_fails_says_why_and_ends_with_its_code(
    run: Cli, words: list[str], exit_code: int, says: str
) -> None:
    done = run("call", *words)
    assert done.exit_code == exit_code, done
    assert says in done.out + done.err


@pytest.mark.req("BNS-5")
def test_a_time_limit_reaches_the_server(run: Cli, seen: Path) -> None:
    run("call", "own:slow", "seconds=61.5", "--timeout", "0.2")
    wait_for(lambda: '"method": "cancelled"' in seen.read_text() and "61.5" in seen.read_text(), "the cancellation")
    noted = [json.loads(line) for line in seen.read_text().splitlines()]
    assert {"seconds": 61.5} in [line["arguments"] for line in noted if line["method"] == "cancelled"]


# -- changing -----------------------------------------------------------------------------------------------------


@pytest.mark.req("BNS-1", "BNS-4", "ENG-10")
@pytest.mark.parametrize("kind", ["command", "url", "websocket"])
def test_an_added_server_answers_and_a_removed_one_takes_its_tools_along(
    run: Cli, running: Daemon, start_server: StartServer, parts: Callable[[str], list[str]], kind: str
) -> None:
    if kind == "command":
        where = ["--env", "GREETING=hi", "--", *stdio_command("sdk_v2")]
    elif kind == "url":
        where = ["--url", start_server(stdio_command("sdk_v2", "--transport", "http")).url("http")]
    else:
        parts("mcp-v1")
        where = ["--url", start_server(stdio_command("sdk_v1", "--transport", "ws")).url("ws")]
    name = f"new{kind}"
    added = run("add", "--json", name, *where).ok().json
    assert (added["state"], added["tools"]) == ("ready", 10)
    assert name in (running.home.toolcrib / "config.json").read_text()
    assert run("call", f"{name}:add", "a=40", "b=2").ok().out == "42\n"
    if kind == "command":
        assert "GREETING" in run("call", f"{name}:whoami", "--json").ok().json["structuredContent"]["env"]
        again = run("add", name, *where)
        assert again.exit_code == 3
        assert "--replace" in again.err
    run("remove", name).ok()
    assert not [tool for tool in run("tools", "--json").ok().json["tools"] if tool["server"] == name]
    gone = run("call", f"{name}:add", "a=40", "b=2")
    assert gone.exit_code == 4, gone
    assert name not in (running.home.toolcrib / "config.json").read_text()


@pytest.mark.req("BNS-10")
def test_a_server_that_cannot_be_reached_is_added_and_its_error_shown(run: Cli) -> None:
    added = run("add", "broken", "--", "/nonexistent/program")
    assert added.exit_code == 6, added
    assert "Added broken" in added.err
    assert "/nonexistent/program" in added.err
    assert "toolcrib logs" not in added.err, "nothing was started that could have written"
    row = next(row for row in run("servers", "--json").ok().json["servers"] if row["name"] == "broken")
    assert row["state"] != "ready"
    assert "/nonexistent/program" in row["last_error"]
    run("remove", "broken").ok()


@pytest.mark.req("BNS-10")
def test_a_server_that_ends_at_once_is_added_and_its_words_can_be_read(run: Cli) -> None:
    ends = ["/bin/sh", "-c", "echo out of paper >&2; exit 3"]
    added = run("add", "short", "--json", "--", *ends)
    assert (added.exit_code, added.json["server"]) == (6, "short")
    again = run("add", "short", "--replace", "--", *ends)
    assert again.exit_code == 6
    assert "`toolcrib logs short`" in again.err
    assert "out of paper" in run("logs", "short").ok().out
    run("remove", "short").ok()


@pytest.mark.req("BNS-3")
def test_a_variable_that_the_daemon_lacks_is_told_with_the_daemons_pid(run: Cli, running: Daemon) -> None:
    words = ["add", "keyed", "--url", "http://127.0.0.1:1/mcp", "--header", "K: ${ONLY_IN_THIS_SHELL}"]
    here = run(*words, env={"ONLY_IN_THIS_SHELL": "sec-ret"})
    assert here.exit_code == 3
    assert f"The daemon (pid {running.process.pid}) was started without it" in here.err
    assert "sec-ret" not in here.err
    nowhere = run(*words)
    assert nowhere.exit_code == 3
    assert "was started without it" not in nowhere.err


@pytest.mark.req("BNS-10")
def test_trust_is_given_and_taken_back_once(run: Cli, running: Daemon) -> None:
    folder = running.home.path / "repository"
    (folder / ".toolcrib").mkdir(parents=True)
    file = folder / ".toolcrib" / "config.yml"
    file.write_text("names: plain\n")
    assert run("untrust", cwd=folder).exit_code == 4
    assert "Trusted:" in run("trust", "--yes", cwd=folder).ok().out
    assert "Already trusted" in run("trust", cwd=folder).ok().out
    assert "No longer trusted" in run("untrust", cwd=folder).ok().out
    assert run("untrust", cwd=folder).exit_code == 4
    assert run("logs", "-n", "0").ok().err == ""


@pytest.mark.req("BNS-3")
def test_a_broken_entry_is_told_wherever_servers_are_shown(toolcrib_home: Home, daemon: StartDaemon, cli: Cli) -> None:
    started = daemon({"servers": {"typo": {"comand": "cat"}}})
    shown = cli("servers").ok()
    assert "No servers are in use" in shown.out
    assert "comand" in shown.err
    assert "comand" in cli("status").ok().err
    assert "comand" in started.output.read_text(), "`up` itself warned"
    started.stop()
    detached = cli("up", "--detach", "--port", "0").ok()
    try:
        assert "comand" in detached.err
    finally:
        cli("down").ok()
    assert "comand" in cli("servers").ok().err


@pytest.mark.req("BNS-1")
def test_restart_gives_a_server_a_new_process(run: Cli, running: Daemon) -> None:
    def pid() -> int:
        return next(row["pid"] for row in running.status()["servers"] if row["name"] == "twin")

    before = pid()
    done = run("restart", "twin", "--json").ok().json
    assert done["state"] == "ready"
    assert pid() == done["pid"] != before
    assert not Path(f"/proc/{before}").exists()
    assert run("restart", "nobody").exit_code == 4


def test_logs_shows_the_daemons_words_and_a_servers(run: Cli) -> None:
    assert "serving http://127.0.0.1" in run("logs").ok().out
    run("call", "raw:chatter", "bytes=300").ok()
    wait_for(lambda: run("logs", "raw").ok().out.count("c" * 99) == 3, "the server's words")
    assert run("logs", "raw", "-n", "1").ok().out == "c" * 99 + "\n"
    assert run("logs", "nobody").exit_code == 4


@pytest.fixture
def following(running: Daemon) -> Iterator[list[str]]:
    """What `toolcrib logs -f raw` has printed so far."""
    process = subprocess.Popen(
        [str(PROGRAM), "logs", "-f", "-n", "0", "raw"],
        env=running.home.environ(),
        cwd=running.home.project,
        stdout=subprocess.PIPE,
        text=True,
    )
    lines: list[str] = []
    assert process.stdout is not None
    reader = threading.Thread(target=lambda: lines.extend(iter(process.stdout.readline, "")), daemon=True)  # type: ignore[union-attr]
    reader.start()
    yield lines
    process.terminate()
    process.wait(60)
    reader.join(60)
    process.stdout.close()


def test_logs_follows_what_comes(run: Cli, following: list[str]) -> None:
    def heard() -> bool:
        run("call", "raw:chatter", "bytes=100").ok()
        return bool(following)

    wait_for(heard, "a followed line")
    assert following[0] == "c" * 99 + "\n"


@pytest.mark.req("BNS-1", "BNS-2", "BNS-3")
def test_a_servers_address_given_with_the_call_needs_a_database_beside_the_daemons(
    run: Cli, running: Daemon, start_server: StartServer, tmp_path: Path
) -> None:
    url = start_server(stdio_command("sdk_v2", "--transport", "http")).url("http")
    words = ("call", "flag:add", "--args", '{"a": 40, "b": 2}', "--mcp-server", f"flag={url}")
    refused = run(*words)
    assert refused.exit_code == 8
    assert f"pid {running.status()['pid']}" in refused.err
    assert "TOOLCRIB_STORE=FILE" in refused.err
    assert run(*words, env={"TOOLCRIB_STORE": str(tmp_path / "own.db")}).ok().out == "42\n"
    assert "flag" not in {row["name"] for row in running.status()["servers"]}


# -- the daemon's own commands --------------------------------------------------------------------------------------


@pytest.mark.req("KSI-6")
@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_the_daemons_commands_are_tools_too(era: str, running: Daemon) -> None:
    words = stdio_command("raw_server", "--plain", "--tools", "1")
    async with at_endpoint(running, era) as client:
        names = {tool.name for tool in (await client.list_tools()).tools}
        assert names >= {"crib_system_health", "crib_system_stats", "crib_server_list", "crib_server_add"}
        assert not {"crib_tool_call", "crib_system_stop", "crib_trust_add"} & names
        health = (await client.call_tool("crib_system_health", {})).structured_content
        assert health is not None
        assert health["healthy"] is True
        entry = {"command": words[0], "args": words[1:]}
        added = await client.call_tool("crib_server_add", {"name": f"by{era}", "entry": entry})
        assert added.structured_content is not None
        assert added.structured_content["state"] == "ready"
        assert not (await client.call_tool(f"by{era}_tool_00000", {})).is_error
        assert not (await client.call_tool("crib_server_remove", {"name": f"by{era}"})).is_error
        assert f"by{era}_tool_00000" not in {tool.name for tool in (await client.list_tools()).tools}


@pytest.mark.req("KSI-6")
def test_the_daemons_commands_are_called_by_their_display_names(run: Cli) -> None:
    done = run("call", "crib:system_health", "--json").ok()
    assert done.json["structuredContent"]["servers"]["all"] == 3


# -- clients --------------------------------------------------------------------------------------------------------


@pytest.mark.req("KSI-1")
def test_the_entry_that_connect_shows_reaches_the_daemon(run: Cli, running: Daemon) -> None:
    entry = next(iter(json.loads(run("connect", "generic").ok().out)["mcpServers"].values()))
    hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HELLO}
    listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
    told = "\n".join(json.dumps(message) for message in (hello, listing)) + "\n"
    done = subprocess.run(
        [entry["command"], *entry["args"]],
        input=told,
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
        cwd=running.home.project,
        env={"PATH": os.environ["PATH"], "HOME": str(running.home.user), **entry.get("env", {})},
    )
    answers = {message["id"]: message for message in map(json.loads, done.stdout.splitlines()) if "id" in message}
    assert "own_add" in {tool["name"] for tool in answers[2]["result"]["tools"]}
