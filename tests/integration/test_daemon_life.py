"""The daemon from its start to its end, commands without a daemon, and servers that fail beside others."""

from __future__ import annotations

import json
import os
import resource
import shlex
import signal
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from parts.client import at_endpoint
from parts.daemon import Cli, Daemon, Home, StartDaemon
from parts.server_process import stdio_command, stdio_entry
from parts.waiting import wait_for

pytestmark = pytest.mark.slow

PLAIN = ["--plain", "--tools", "1"]
ONE = stdio_entry("raw_server", *PLAIN)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def ignored_by(pid: int) -> set[signal.Signals]:
    (line,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigIgn"))
    mask = int(line.split()[1], 16)
    return {one for one in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM) if mask >> one - 1 & 1}


@pytest.mark.req("KSI-1")
def test_up_detached_returns_when_the_endpoint_answers_and_down_ends_it(toolcrib_home: Home, cli: Cli) -> None:
    toolcrib_home.write_config({"servers": {"one": ONE}})
    try:
        started = cli("up", "--detach", "--port", "0", "--json").ok().json
        socket.create_connection(("127.0.0.1", urlsplit(started["endpoint"]).port), timeout=60).close()
        status = cli("status", "--json").ok().json
        assert (status["pid"], status["endpoint"]) == (started["pid"], started["endpoint"])
        child = wait_for(lambda: cli("servers", "--json").ok().json["servers"][0].get("pid"), "the server's process")
        cli("down").ok()
    finally:
        assert cli("down").exit_code == 0
    assert not is_alive(started["pid"])
    assert not is_alive(child)
    assert not toolcrib_home.socket.exists()
    assert cli("status").exit_code == 7


@pytest.mark.req("KSI-1")
def test_the_daemon_raises_only_its_own_limit_of_open_files_and_down_kills_it_when_it_does_not_respond(
    daemon: StartDaemon, cli: Cli
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (400, hard))
    try:
        running = daemon({"servers": {"one": ONE}})
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    child = running.wait_until_ready()["servers"][0]["pid"]
    assert resource.prlimit(child, resource.RLIMIT_NOFILE)[0] == 400
    assert resource.prlimit(running.pid, resource.RLIMIT_NOFILE)[0] > 400
    running.process.send_signal(signal.SIGSTOP)
    assert cli("down", "--json").ok().json == {"stopped": True, "pid": running.pid, "killed": True}
    assert running.process.wait(60) == -signal.SIGKILL
    wait_for(lambda: not is_alive(child), "its server to end")


@pytest.mark.req("KSI-1")
@pytest.mark.usefixtures("ignored_signals")
def test_ignored_signals_stay_ignored_in_the_foreground_but_not_in_a_detached_daemon(
    daemon: StartDaemon, cli: Cli
) -> None:
    started = daemon({})
    assert ignored_by(started.pid) == {signal.SIGINT, signal.SIGQUIT, signal.SIGHUP}
    for number in (signal.SIGHUP, signal.SIGINT):
        started.process.send_signal(number)
    assert started.status()["pid"] == started.pid
    started.process.terminate()
    assert started.process.wait(60) == 0
    try:
        assert ignored_by(cli("up", "--detach", "--port", "0", "--json").ok().json["pid"]) == set()
    finally:
        assert cli("down").exit_code == 0


@pytest.mark.req("KSI-1")
@pytest.mark.parametrize("how", ["down", "kill -9"])
def test_a_process_that_left_its_session_and_cleared_its_environment_ends_with_its_server(
    daemon: StartDaemon, cli: Cli, tmp_path: Path, how: str
) -> None:
    words = stdio_command("raw_server", *PLAIN)
    # Detached twice: the parent of the second shell ends at once.
    hidden = f"echo \\$\\$ >{tmp_path}/pid.new; mv {tmp_path}/pid.new {tmp_path}/pid; exec sleep 600"
    away = f"env -i setsid sh -c 'sh -c \"{hidden}\" &'"
    script = f"{away} </dev/null >/dev/null 2>&1; exec {shlex.join(words)}"
    running = daemon({"servers": {"one": {"command": "sh", "args": ["-c", script]}}})
    pid = int(wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), "the process"))
    assert is_alive(pid)
    if how == "down":
        cli("down").ok()
    else:
        running.process.kill()
    wait_for(lambda: not is_alive(pid), "the process to end")


@pytest.mark.req("KSI-1")
def test_a_second_daemon_and_a_taken_port_are_refused_with_a_remedy(daemon: StartDaemon, cli: Cli) -> None:
    for how in (["--detach"], []):
        with socket.create_server(("127.0.0.1", 0)) as other:
            port = str(other.getsockname()[1])
            done = cli("up", "--port", port, *how)
        assert done.exit_code == 8, how
        assert port in done.err
        assert "--port" in done.err
    running = daemon({})
    for how in (["--detach"], []):
        second = cli("up", "--port", "0", *how)
        assert second.exit_code == 8, how
        assert f"pid {running.pid}" in second.err
        assert "toolcrib down" in second.err
    assert running.status()["pid"] == running.pid


@pytest.mark.req("BNS-1", "BNS-3", "BNS-8")
def test_a_call_works_without_a_daemon_and_without_a_file(toolcrib_home: Home, cli: Cli) -> None:
    two = f"two={shlex.join(stdio_command('raw_server', *PLAIN))}"
    for name, words in (("two:tool_00000", ["--args", '{"path": "README"}']), ("tool_00000", ["path=README"])):
        done = cli("call", name, *words, "--mcp-server", two, "--json")
        assert done.ok().json["structuredContent"] == {"ok": True, "arguments": {"path": "README"}}
    assert cli("status").exit_code == 7
    toolcrib_home.write_config({"servers": {"one": ONE}})
    listed = cli("tools", "--mcp-server", two, "--json").ok().json["tools"]
    assert {"one:tool_00000", "two:tool_00000"} <= {tool["display"] for tool in listed}
    rows = cli("servers", "--mcp-server", two, "--json").ok().json["servers"]
    assert [(row["name"], row["state"]) for row in rows] == [("one", "idle"), ("two", "idle")]
    health = cli("call", "crib:system_health", "--mcp-server", two, "--json").ok().json["structuredContent"]
    assert (health["healthy"], health["servers"]) == (True, {"ready": 2, "all": 2})


@pytest.mark.req("BNS-3", "BNS-10")
async def test_invalid_entries_affect_no_valid_ones(toolcrib_home: Home, daemon: StartDaemon, cli: Cli) -> None:
    servers = {
        "good": ONE,
        "empty": {},
        "slip": {"comand": "python3"},
        "unset": {"url": "http://127.0.0.1:9/${TOOLCRIB_TEST_UNSET}"},
        "wrong": {"command": 7},
        "missing": {"command": "/nonexistent/program"},
        "fails": stdio_entry("raw_server", "--exit", "3"),
        "ends": {"command": "/bin/sh", "args": ["-c", "exit 4"], "retry": {"backoffMs": 10}},
    }
    running = daemon({"servers": servers})
    running.wait_until_ready("good")
    async with at_endpoint(running, "modern") as client:
        assert not (await client.call_tool("good_tool_00000", {})).is_error
    status = running.status()
    problems = "\n".join(status["problems"])
    for name in ("empty", "slip", "unset", "wrong", "command"):
        assert name in problems
    assert "/nonexistent/program" in row_of(running, "missing")["last_error"]
    assert "3" in wait_for(lambda: row_of(running, "fails")["last_error"], "its last error")
    wait_for(lambda: row_of(running, "ends")["attempts"] >= 5, "five attempts")
    assert "code 4" in row_of(running, "ends")["last_error"]
    assert "Traceback" not in running.log_tail()
    checked = cli("config", "check")
    assert checked.exit_code == 3
    assert "config.json" in checked.out
    assert "comand" in checked.out


def once(home: Home) -> dict[str, Any]:
    """A server that starts once, and again only after the file `started` is removed."""
    script = 'if [ -e "$0" ]; then echo "not a second time" >&2; exit 3; fi; touch "$0"; exec "$@"'
    args = ["-c", script, str(home.path / "started"), *stdio_command("raw_server", *PLAIN)]
    return {"command": "/bin/sh", "args": args, "retry": {"backoffMs": 100}}


def row_of(running: Daemon, name: str) -> dict[str, Any]:
    return next(row for row in running.status()["servers"] if row["name"] == name)


@pytest.mark.req("ENG-10", "BNS-4", "BNS-10")
async def test_an_unavailable_server_keeps_its_tools_and_reconnects(
    toolcrib_home: Home, daemon: StartDaemon, cli: Cli
) -> None:
    running = daemon({"servers": {"once": once(toolcrib_home), "other": ONE}})
    running.wait_until_ready("once", "other")
    os.kill(row_of(running, "once")["pid"], signal.SIGKILL)
    wait_for(lambda: row_of(running, "once")["attempts"] >= 2, "two failed attempts")
    assert row_of(running, "once")["state"] != "ready"
    for era in ("modern", "legacy"):
        async with at_endpoint(running, era) as client:
            assert "once_tool_00000" in {tool.name for tool in (await client.list_tools()).tools}
            failed = await client.call_tool("once_tool_00000", {})
            assert failed.is_error
            assert "once" in failed.content[0].text
            assert "did not run" in failed.content[0].text
            assert not (await client.call_tool("other_tool_00000", {})).is_error
    done = cli("call", "once:tool_00000")
    assert done.exit_code == 6
    assert "not a second time" in done.err
    (toolcrib_home.path / "started").unlink()
    running.wait_until_ready("once")
    cli("call", "once:tool_00000").ok()


@pytest.mark.req("ENG-10", "BNS-4")
async def test_a_cold_start_lists_the_known_tools_of_unavailable_servers_but_not_of_disabled_ones(
    toolcrib_home: Home, daemon: StartDaemon, cli: Cli
) -> None:
    servers = {"once": once(toolcrib_home), "other": ONE, "off": {**ONE}}
    first = daemon({"servers": servers})
    first.wait_until_ready(*servers)
    first.stop()
    servers["off"]["enabled"] = False
    second = daemon({"servers": servers})
    async with at_endpoint(second, "modern") as client:
        names = {tool.name for tool in (await client.list_tools()).tools}
    assert {"once_tool_00000", "other_tool_00000"} <= names
    assert "off_tool_00000" not in names
    assert row_of(second, "once")["state"] != "ready"
    assert row_of(second, "off")["state"] == "disabled"
    assert cli("call", "off:tool_00000").exit_code == 4
    second.stop()


@pytest.mark.req("BNS-9", "BNS-10")
async def test_servers_connect_in_parallel_and_a_silent_one_delays_no_other(
    toolcrib_home: Home, daemon: StartDaemon
) -> None:
    names = [f"s{number}" for number in range(8)]
    started = toolcrib_home.path / "started"
    started.mkdir()
    # None answers before all have started: started one after the other, none would become ready.
    wait = f'touch "$0"; until [ "$(ls {started} | wc -l)" = {len(names)} ]; do sleep 0.05; done; exec "$@"'
    words = stdio_command("raw_server", *PLAIN)
    servers = {name: {"command": "/bin/sh", "args": ["-c", wait, str(started / name), *words]} for name in names}
    running = daemon({"servers": {**servers, "deaf": stdio_entry("raw_server", "--deaf")}})
    running.wait_until_ready(*names)
    assert row_of(running, "deaf")["state"] == "connecting"
    async with at_endpoint(running, "modern") as client:
        listed = {tool.name for tool in (await client.list_tools()).tools}
        assert {f"{name}_tool_00000" for name in names} <= listed
        assert not (await client.call_tool("s7_tool_00000", {})).is_error


@pytest.mark.req("BNS-3")
def test_flags_of_up_add_servers_and_override_the_files(toolcrib_home: Home, daemon: StartDaemon, cli: Cli) -> None:
    words = shlex.join(stdio_command("raw_server", "--plain", "--tools", "2"))
    running = daemon({"servers": {"one": ONE}}, "--mcp-server", f"one={words}", "--mcp-server", f"two={words}")
    running.wait_until_ready("one", "two")
    assert [(row["name"], row["tools"]) for row in running.status()["servers"]] == [("one", 2), ("two", 2)]
    refused = cli("remove", "two")
    assert refused.exit_code == 3
    assert "flag" in refused.err
    assert json.loads((toolcrib_home.toolcrib / "config.json").read_text())["servers"].keys() == {"one"}
