"""The daemon applies hand edits of configuration files by itself, as a difference, and keeps the last good ones."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from parts.client import at_endpoint, through_bridge
from parts.daemon import PROGRAM, Cli, Daemon, Home, StartDaemon
from parts.recording_server import Notes
from parts.waiting import during, until, wait_for

WAITS = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    name = asked.get("params", {}).get("name")
    info = {"name": "w", "version": "1"}
    about = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
    result = {"initialize": about, "tools/list": {"tools": [{"name": "wait", "inputSchema": {"type": "object"}}]}}
    if asked["method"] == "tools/call":
        with open(sys.argv[1]) as pipe:
            answer = {"content": [{"type": "text", "text": pipe.read()}]}
    else:
        answer = result.get(asked["method"])
    body = {"result": answer} if answer else {"error": {"code": -32601, "message": "no"}}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **body}), flush=True)
"""
"""Its tool answers when somebody writes into the pipe."""


def pids(daemon: Daemon, root: Path | None = None) -> dict[str, int | None]:
    return {row["name"]: row.get("pid") for row in daemon.command("server:list", root)["servers"]}


def write(file: Path, servers: dict[str, Any], **settings: Any) -> None:
    """As an editor does: a new file replaces the old one."""
    file.parent.mkdir(parents=True, exist_ok=True)
    fresh = file.with_name(f"{file.name}~")
    fresh.write_text(json.dumps({"listing": "full", "servers": servers, **settings}))
    fresh.replace(file)


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    return Notes(tmp_path / "notes")


@pytest.fixture
def edited(toolcrib_home: Home) -> Path:
    return toolcrib_home.toolcrib / "config.json"


async def test_a_hand_edit_adds_changes_and_removes_servers_and_leaves_the_others_alone(
    daemon: StartDaemon, edited: Path, notes: Notes
) -> None:
    same, gone, other = notes.server("same"), notes.server("gone"), notes.server("other")
    running = daemon({"servers": {"same": same, "gone": gone, "other": other}})
    running.wait_until_ready()
    before = pids(running)
    heard: list[str] = []

    async def hear(message: Any) -> None:
        heard.append(getattr(message, "method", ""))

    async with through_bridge(running, "legacy", message_handler=hear) as client:
        await client.list_tools()
        write(edited, {"same": same, "other": {**other, "env": {"A": "1"}}, "fresh": notes.server("fresh")})
        await until(lambda: "notifications/tools/list_changed" in heard, "the client to be notified")
        await during(running.wait_until_ready, "same", "other", "fresh")
        listed = {tool.name for tool in (await client.list_tools()).tools}
    after = await during(pids, running)
    assert set(after) == {"same", "other", "fresh"}
    assert after["same"] == before["same"], "an untouched server is not touched"
    assert after["other"] != before["other"]
    assert "fresh_fresh" in listed and not any(name.startswith("gone_") for name in listed)


async def test_calls_of_a_removed_and_of_a_changed_server_end_in_peace(
    daemon: StartDaemon, edited: Path, tmp_path: Path
) -> None:
    script = tmp_path / "waits.py"
    script.write_text(WAITS)
    pipes = {name: tmp_path / name for name in ("removed", "changed")}
    for pipe in pipes.values():
        os.mkfifo(pipe)
    entries = {name: {"command": sys.executable, "args": [str(script), str(pipe)]} for name, pipe in pipes.items()}
    running = daemon({"servers": entries})
    running.wait_until_ready()
    before = pids(running)
    async with at_endpoint(running, "modern") as client:
        calls = {name: asyncio.create_task(client.call_tool(f"{name}_wait", {})) for name in entries}
        # Opening a pipe for writing succeeds when the server reads it, so its call has begun.
        ends = {name: await during(pipe.open, "w") for name, pipe in pipes.items()}
        write(edited, {"changed": {**entries["changed"], "env": {"A": "1"}}})
        await until(lambda: pids(running).get("changed") not in (None, before["changed"]), "the new process")
        assert set(pids(running)) == {"changed"}
        for name, end in ends.items():
            end.write(f"{name} in peace")
            end.close()
        assert {name: (await call).content[0].text for name, call in calls.items()} == {
            name: f"{name} in peace" for name in entries
        }
    for pid in before.values():
        wait_for(lambda pid=pid: not Path(f"/proc/{pid}").exists(), "the old processes to end")


def test_a_file_may_appear_in_a_new_folder_vanish_and_be_a_link(
    toolcrib_home: Home, daemon: StartDaemon, edited: Path, notes: Notes, tmp_path: Path
) -> None:
    running = daemon({})
    target = tmp_path / "dotfiles" / "config.json"
    write(target, {"one": notes.server("one")})
    edited.unlink()
    edited.symlink_to(target)
    wait_for(lambda: set(pids(running)) == {"one"}, "the link's server")
    write(target, {"two": notes.server("two")})
    wait_for(lambda: set(pids(running)) == {"two"}, "the server of the changed target")
    edited.unlink()
    wait_for(lambda: not pids(running), "the servers to go with their file")
    shared = toolcrib_home.project / ".toolcrib" / "config.json"
    write(shared, {"theirs": notes.server("theirs")})
    wait_for(lambda: running.command("server:list")["untrusted"] == [str(shared)], "the project's new file")
    log = (toolcrib_home.toolcrib / "state" / "toolcrib.log").read_text()
    assert "configuration reloaded; removed: one" in log or "added: two" in log


def test_a_bad_edit_keeps_the_last_good_configuration_and_every_listing_says_so(
    daemon: StartDaemon, cli: Cli, edited: Path, notes: Notes
) -> None:
    one, two = notes.server("one"), notes.server("two")
    running = daemon({"servers": {"one": one, "two": two}})
    running.wait_until_ready()
    before = pids(running)

    def shown(*words: str) -> str:
        return cli(*words).ok().err

    edited.write_text('{"servers": {\n"one": {\n')
    wait_for(lambda: "configuration reloaded" in running.log_tail(), "the edit to be noticed")
    listings = {"servers": "server:list", "servers show one": "", "tools": "tool:list", "status": "system:status"}
    listings |= {"pins": "pins:list", "refresh two": ""}
    for words, command in listings.items():
        said = shown(*words.split())
        assert f"Problem: {edited}:3: found" in said
        assert "Its last valid version stays in effect" in said
        found = running.command(command) if command else running.command("server:show", name="one")
        assert f"{edited}:3" in found["problems"][0]
    assert pids(running) == before
    edited.write_text(json.dumps({"servers": {"one": {"comand": "x"}, "two": two}}, indent=1))
    wait_for(lambda: "comand" in running.log_tail(), "the second edit to be noticed")
    assert pids(running) == before, "the server with the invalid entry keeps its last valid one"
    for words, theirs in (("servers", False), ("servers show one", False), ("servers show two", True)):
        said = shown(*words.split())
        assert (f"{edited}:4: servers.one.comand" in said) is not theirs, words
        assert ("Its last valid version stays in effect" in said) is not theirs
    assert "servers.one.comand" in shown("restart", "two")
    reloaded = cli("reload")
    assert (reloaded.exit_code, "servers.one.comand" in reloaded.err) == (3, True)
    edited.write_text(json.dumps({"servers": {"three": {"command": "x", "share": "everyone"}, "two": two}}, indent=1))
    wait_for(lambda: set(pids(running)) == {"two"}, "the removed entry")
    for words in (("servers", "show", "three"), ("tools", "three")):
        assert "servers.three.share" in cli(*words).err


def test_a_projects_file_loses_its_effect_when_it_changes_but_not_when_it_cannot_be_read(
    toolcrib_home: Home, daemon: StartDaemon, cli: Cli, notes: Notes
) -> None:
    shared = toolcrib_home.project / ".toolcrib" / "config.json"
    write(shared, {"theirs": notes.server("theirs")})
    good = shared.read_text()
    running = daemon({})
    cli("trust", "--yes").ok()
    running.wait_until_ready("theirs")
    before = pids(running)
    shared.write_text("<<<<<<< HEAD\n" + good)
    wait_for(lambda: "stays in effect" in running.log_tail(), "the edit to be noticed")
    assert pids(running) == before
    write(shared, {"theirs": {**notes.server("theirs"), "env": {"A": "1"}}})
    wait_for(lambda: not pids(running), "the server of the changed file to go")
    shared.write_text("<<<<<<< HEAD\n" + good)
    wait_for(lambda: running.command("config:reload")["problems"], "the broken file")
    assert not pids(running), "what was trusted before does not come back"


def test_sighup_and_reload_apply_edits_and_say_what_changed(
    toolcrib_home: Home, daemon: StartDaemon, cli: Cli, edited: Path, notes: Notes
) -> None:
    running = daemon({"servers": {"one": notes.server("one")}})
    running.wait_until_ready()
    assert cli("reload").ok().out == "Nothing changed.\n"
    running.process.send_signal(signal.SIGHUP)
    wait_for(lambda: running.log_tail().count("configuration reloaded; nothing changed") == 2, "the second reload")
    assert running.status()["pid"] == running.pid
    write(edited, {}, audit_values=True, names="plain", log_level="debug")
    found = wait_for(lambda: running.command("config:reload")["restart"], "the setting that needs a restart")
    assert found == ["audit_values"]
    said = cli("reload").ok().out
    assert "when this was applied:\nRemoved: one.\nSettings: names, log_level.\n" in said
    assert "Take effect only after a restart: audit_values." in said
    assert (
        "removed: one; settings: names, log_level; take effect only after a restart: audit_values" in running.log_tail()
    )


def test_a_closed_terminal_stops_the_daemon_but_a_signal_in_an_open_one_does_not(toolcrib_home: Home) -> None:
    log = toolcrib_home.toolcrib / "state" / "toolcrib.log"
    ours, theirs = os.openpty()
    words = [str(PROGRAM), "up", "--port", "0"]
    # The leader of a session gets the first terminal that it opens.
    opens = f"import os, sys; os.open({os.ttyname(theirs)!r}, os.O_RDWR); os.execv(sys.argv[1], sys.argv[1:])"
    program = [sys.executable, "-c", opens, *words]
    pipes: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    with subprocess.Popen(
        program, env=toolcrib_home.environ(), cwd=toolcrib_home.project, start_new_session=True, **pipes
    ) as process:
        os.close(theirs)
        wait_for(lambda: log.exists() and "serving http" in log.read_text(), "the daemon")
        process.send_signal(signal.SIGHUP)
        wait_for(lambda: "configuration reloaded" in log.read_text(), "the reload")
        os.close(ours)
        assert process.wait(60) == 0


def test_refresh_lists_the_tools_of_a_server_that_announces_nothing(
    daemon: StartDaemon, cli: Cli, tmp_path: Path
) -> None:
    grown = tmp_path / "grown"
    script = tmp_path / "waits.py"
    more = "[{'name': 'later'}] * __import__('os').path.exists(sys.argv[1])"
    one = '[{"name": "wait", "inputSchema": {"type": "object"}}]'
    script.write_text(WAITS.replace(one, f"{one} + {more}"))
    running = daemon({"servers": {"w": {"command": sys.executable, "args": [str(script), str(grown)]}}})
    running.wait_until_ready()
    grown.touch()
    assert cli("refresh", "w", "--json").ok().json["tools"] == 2
    assert {tool["tool"] for tool in running.command("tool:list", server="w")["tools"]} == {"wait", "later"}
    assert cli("refresh", "never").exit_code == 4


SAMPLES = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if asked["method"] == "initialize":
        names = ["plain", "sample"] if "sampling" in asked["params"]["capabilities"] else ["plain"]
        info = {"name": "s", "version": "1"}
        answer = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
    elif asked["method"] == "tools/list":
        answer = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in names]}
    else:
        answer = None
    body = {"error": {"code": -32601, "message": "no"}} if answer is None else {"result": answer}
    if "id" in asked:
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **body}), flush=True)
"""
"""Lists a tool only if it may sample."""


@pytest.mark.req("BNS-4")
def test_a_changed_switch_for_sampling_changes_what_the_server_lists(edited: Path, daemon: StartDaemon) -> None:
    def switch(mode: str) -> None:
        write(edited, {"s": {"command": sys.executable, "args": ["-c", SAMPLES], "sampling": mode}})

    def lists(*names: str) -> bool:
        return [tool["tool"] for tool in running.command("tool:list", server="s")["tools"]] == [*names]

    switch("deny")
    running = daemon()
    wait_for(lambda: lists("plain"), "the plain tool only")
    switch("ask")
    wait_for(lambda: lists("plain", "sample"), "both tools")
    assert running.stop() == 0
    switch("deny")
    running = daemon()
    wait_for(lambda: lists("plain"), "the plain tool only")
