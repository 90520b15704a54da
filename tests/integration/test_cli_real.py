"""The command line against a running daemon and real servers."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from parts.client import at_endpoint
from parts.daemon import PROGRAM, Cli, Daemon, Home, StartDaemon
from parts.preloaded import Preloaded
from parts.raw_client import INITIALIZE, Endpoint, legacy_request
from parts.server_process import StartServer, stdio_command, stdio_entry
from parts.waiting import wait_for
from toolcrib.servers.model import MODERN_VERSION

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def seen(shared_home: Home) -> Path:
    return shared_home.path / "seen"


@pytest.fixture(scope="module")
def running(shared_home: Home, start_shared_daemon: StartDaemon, seen: Path) -> Daemon:
    """`own` offers one of each kind; `raw` and `twin` offer the same tools as each other."""
    servers = {
        "own": stdio_entry("sdk_v2", "--seen", str(seen)),
        "raw": stdio_entry("raw_server"),
        "twin": stdio_entry("raw_server", "--era", "legacy"),
    }
    daemon = start_shared_daemon({"servers": servers})
    daemon.wait_until_ready(*servers)
    return daemon


@pytest.fixture
def run(running: Daemon, shared_cli: Cli) -> Cli:
    assert running.process.poll() is None
    return shared_cli


@pytest.mark.req("KSI-1")
def test_status_shows_a_script_how_to_reach_the_endpoint(run: Cli, running: Daemon) -> None:
    status = run("status", "--json").ok().json
    assert status.keys() >= {"endpoint", "token_file", "pid", "version", "servers"}
    token = Path(status["token_file"])
    assert (status["pid"], status["endpoint"]) == (running.process.pid, running.endpoint)
    assert token.read_text().strip() == running.token
    assert Endpoint(running).begin()
    assert {server["name"] for server in status["servers"]} == {"own", "raw", "twin"}
    assert status["endpoint"] in run("status").ok().out


@pytest.mark.req("BNS-1", "ENG-10")
def test_servers_shows_state_protocol_transport_tools_pid_and_uptime(run: Cli) -> None:
    servers = {row["name"]: row for row in run("servers", "--json").ok().json["servers"]}
    assert {(row["state"], row["transport"]) for row in servers.values()} == {("ready", "stdio")}
    modern = {name: row["protocol_version"] == MODERN_VERSION for name, row in servers.items()}
    assert modern == {"own": True, "raw": True, "twin": False}
    assert servers["own"]["tools"] == 13
    again = {row["name"]: row for row in run("servers", "--json").ok().json["servers"]}
    assert 0 < servers["own"]["uptime"] < again["own"]["uptime"], "it counts from the start"
    assert b"sdk_v2.py" in Path(f"/proc/{servers['own']['pid']}/cmdline").read_bytes()
    heading, *rows = run("servers").ok().out.splitlines()
    assert " ".join(heading.split()) == "name state protocol transport tools trusted pid uptime last error"
    assert [row.split()[0] for row in rows] == ["own", "raw", "twin"]


@pytest.mark.req("BNS-8", "ENG-10")
def test_tools_lists_all_tools_or_those_of_one_server(run: Cli) -> None:
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


@pytest.mark.req("BNS-5", "BNS-8", "ENG-3", "ENG-9")
def test_a_tool_is_called_by_each_of_its_unambiguous_names_with_words_or_json_or_both(
    run: Cli, running: Daemon, seen: Path
) -> None:
    for name in ("own:add", "own_add", "mcp_own_add", "add"):
        assert run("call", name, "a=40", "b=2").ok().out == "42\n"
    done = run("call", "ok")
    assert (done.exit_code, "raw" in done.err, "twin" in done.err) == (4, True, True)
    health = run("call", "crib:system_health", "--json").ok().json["structuredContent"]
    assert health["servers"]["all"] == 3
    (running.home.project / "words.txt").write_text("from a file")
    words = ("text=7", "n:=7", "from=@words.txt", "--args", '{"text": "no", "list": [null]}', "--json")
    wanted = {"text": "7", "n": 7, "from": "from a file", "list": [None]}
    assert run("call", "own:echo", *words).ok().json["structuredContent"] == wanted
    assert wanted in [json.loads(line)["arguments"] for line in seen.read_text().splitlines()]


@pytest.mark.req("BNS-5")
def test_a_call_that_fails_shows_the_reason_and_exits_with_its_code_and_a_time_limit_reaches_the_server(
    run: Cli, seen: Path
) -> None:
    for exit_code, text, *words in (
        (2, "b", "own:add", "a=1"),
        (2, "b", "own:add", "--args", '{"a": 1, "b": "two"}'),
        (4, "own:add", "own:ad", "a=1", "b=2"),
        (10, "out of paper", "own:fail", "message=out of paper"),
        (6, "boom, as asked", "own:boom"),
        (6, "0.3 s", "own:slow", "seconds=61.5", "--timeout", "0.3"),
    ):
        done = run("call", *words)
        assert (done.exit_code, text in done.out + done.err) == (exit_code, True), done

    def cancelled() -> list[dict[str, Any]]:
        notes = map(json.loads, seen.read_text().splitlines())
        return [note["arguments"] for note in notes if note["method"] == "cancelled"]

    wait_for(lambda: {"seconds": 61.5} in cancelled(), "the cancellation")


@pytest.mark.req("BNS-1", "BNS-4", "ENG-10")
@pytest.mark.parametrize("kind", ["command", "url", "websocket"])
def test_an_added_server_answers_and_a_removed_one_has_no_tools(
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
    assert (added["state"], added["tools"]) == ("ready", 13)
    assert name in (running.home.toolcrib / "config.json").read_text()
    assert run("call", f"{name}:add", "a=40", "b=2").ok().out == "42\n"
    if kind == "command":
        assert "GREETING" in run("call", f"{name}:whoami", "--json").ok().json["structuredContent"]["env"]
        again = run("add", name, *where)
        assert again.exit_code == 3
        assert "--replace" in again.err
    run("remove", name).ok()
    assert name not in {tool["server"] for tool in running.command("tool:list")["tools"]}
    gone = run("call", f"{name}:add", "a=40", "b=2")
    assert gone.exit_code == 4, gone
    assert name not in (running.home.toolcrib / "config.json").read_text()


@pytest.mark.req("BNS-10")
def test_a_server_that_cannot_start_or_ends_at_once_is_added_and_its_error_or_output_shown(run: Cli) -> None:
    added = run("add", "broken", "--", "/nonexistent/program")
    assert added.exit_code == 6, added
    assert "Added broken" in added.err
    assert "/nonexistent/program" in added.err
    assert "toolcrib logs" not in added.err, "nothing was started"
    row = next(row for row in run("servers", "--json").ok().json["servers"] if row["name"] == "broken")
    assert row["state"] != "ready"
    assert "/nonexistent/program" in row["last_error"]
    ends = ["/bin/sh", "-c", "echo out of paper >&2; exit 3"]
    replaced = run("add", "broken", "--replace", "--json", "--", *ends)
    assert (replaced.exit_code, replaced.json["server"]) == (6, "broken")
    again = run("add", "broken", "--replace", "--", *ends)
    assert again.exit_code == 6
    assert "`toolcrib logs broken`" in again.err
    assert "out of paper" in run("logs", "broken").ok().out
    run("remove", "broken").ok()


@pytest.mark.req("BNS-3")
def test_a_variable_that_the_daemon_lacks_is_an_error_with_the_daemons_pid(run: Cli, running: Daemon) -> None:
    words = ["add", "keyed", "--url", "http://127.0.0.1:1/mcp", "--header", "K: ${ONLY_IN_THIS_SHELL}"]
    here = run(*words, env={"ONLY_IN_THIS_SHELL": "sec-ret"})
    assert here.exit_code == 3
    assert f"The daemon (pid {running.process.pid}) was started without it" in here.err
    assert "sec-ret" not in here.err
    nowhere = run(*words)
    assert nowhere.exit_code == 3
    assert "was started without it" not in nowhere.err


@pytest.mark.req("BNS-10")
def test_trust_is_given_and_revoked_once(run: Cli, running: Daemon) -> None:
    folder = running.home.path / "repository"
    (folder / ".toolcrib").mkdir(parents=True)
    (folder / ".toolcrib" / "config.yml").write_text("names: plain\n")
    assert run("untrust", cwd=folder).exit_code == 4
    for words, shown in (("trust --yes", "Trusted:"), ("trust", "Already trusted"), ("untrust", "No longer trusted")):
        assert shown in run(*words.split(), cwd=folder).ok().out
    assert run("untrust", cwd=folder).exit_code == 4
    assert run("logs", "-n", "0").ok().err == ""


@pytest.mark.req("BNS-3")
def test_an_invalid_entry_is_reported_by_every_command_that_shows_servers(
    toolcrib_home: Home, daemon: StartDaemon, cli: Cli
) -> None:
    started = daemon({"servers": {"typo": {"comand": "cat"}}})
    shown = cli("servers").ok()
    assert "No servers are in use" in shown.out
    assert "comand" in shown.err
    assert "comand" in cli("status").ok().err
    assert "comand" in started.output.read_text(), "`up` warns too"
    started.stop()
    detached = cli("up", "--detach", "--port", "0").ok()
    try:
        assert "comand" in detached.err
    finally:
        cli("down").ok()
    assert "comand" in cli("servers").ok().err


@pytest.mark.req("BNS-1")
def test_restart_gives_a_server_a_new_process_and_logs_shows_its_output_and_the_daemons(
    run: Cli, running: Daemon
) -> None:
    def pid() -> int:
        return next(row["pid"] for row in running.status()["servers"] if row["name"] == "twin")

    before = pid()
    done = run("restart", "twin", "--json").ok().json
    assert done["state"] == "ready"
    assert pid() == done["pid"] != before
    assert not Path(f"/proc/{before}").exists()
    assert "serving http://127.0.0.1" in run("logs").ok().out
    run("call", "raw:chatter", "bytes=300").ok()
    wait_for(lambda: run("logs", "raw").ok().out.count("c" * 99) == 3, "the server's output")
    assert run("logs", "raw", "-n", "1").ok().out == "c" * 99 + "\n"
    assert [run(word, "nobody").exit_code for word in ("restart", "logs")] == [4, 4]


def test_logs_follows_new_lines(run: Cli, running: Daemon) -> None:
    words = [str(PROGRAM), "logs", "-f", "-n", "0", "raw"]
    environ, pipe = running.home.environ(), subprocess.PIPE
    with Preloaded(words, env=environ, cwd=running.home.project, stdin=subprocess.DEVNULL, stdout=pipe) as process:
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)

        def followed() -> bytes | None:
            running.command("tool:call", tool="raw:chatter", arguments={"bytes": 100})
            return process.stdout.read()

        try:
            assert wait_for(followed, "a followed line").startswith(b"c" * 99 + b"\n")
        finally:
            process.terminate()


@pytest.mark.req("BNS-1", "BNS-2", "BNS-3")
def test_a_call_with_its_own_server_needs_its_own_database(
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


@pytest.mark.req("KSI-6")
@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_the_daemons_commands_are_tools_too(era: str, running: Daemon) -> None:
    command, *args = stdio_command("raw_server", "--plain", "--tools", "1")
    entry = {"command": command, "args": args}
    async with at_endpoint(running, era) as client:
        names = {tool.name for tool in (await client.list_tools()).tools}
        assert names >= {"crib_system_health", "crib_system_stats", "crib_server_list", "crib_server_add"}
        assert not {"crib_tool_call", "crib_system_stop", "crib_trust_add"} & names
        health = (await client.call_tool("crib_system_health", {})).structured_content or {}
        assert health["healthy"] is True
        added = await client.call_tool("crib_server_add", {"name": f"by{era}", "entry": entry})
        assert (added.structured_content or {})["state"] == "ready"
        assert not (await client.call_tool(f"by{era}_tool_00000", {})).is_error
        assert not (await client.call_tool("crib_server_remove", {"name": f"by{era}"})).is_error
        assert f"by{era}_tool_00000" not in {tool.name for tool in (await client.list_tools()).tools}


@pytest.mark.req("KSI-1")
def test_the_entry_that_connect_shows_reaches_the_daemon(run: Cli, running: Daemon) -> None:
    entry = next(iter(json.loads(run("connect", "generic").ok().out)["mcpServers"].values()))
    sent = INITIALIZE + b"\n" + legacy_request("tools/list", id=2) + b"\n"
    environ = {"PATH": os.environ["PATH"], "HOME": str(running.home.user), **entry.get("env", {})}
    words = [entry["command"], *entry["args"]]
    done = subprocess.run(
        words, input=sent, capture_output=True, timeout=60, check=True, cwd=running.home.project, env=environ
    )
    answers = {message["id"]: message for message in map(json.loads, done.stdout.splitlines()) if "id" in message}
    assert "own_add" in {tool["name"] for tool in answers[2]["result"]["tools"]}
