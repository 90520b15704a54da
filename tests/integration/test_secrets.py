"""`toolcrib secret` with the real command line, daemon, bridge, servers and keyring."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters

from parts.canary import WebWitness, served
from parts.client import MODES, at_endpoint
from parts.daemon import PROGRAM, Cli, Daemon, Home, StartDaemon
from parts.keyring_session import KeyringSession, keyring_session
from parts.typing_person import at_terminal
from parts.waiting import during, wait_for
from toolcrib.config.paths import Paths
from toolcrib.credentials.vault import CredentialKind, Vault

pytestmark = pytest.mark.req("BNS-6")

BUS = "DBUS_SESSION_BUS_ADDRESS"
TELLS = """
import json, os, sys
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    info = {"name": "tells", "version": "1"}
    about = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
    told = json.dumps({name: os.environ.get(name) for name in ("ONE", "TWO")})
    result = {
        "initialize": about,
        "tools/list": {"tools": [{"name": "tell", "inputSchema": {"type": "object"}}]},
        "tools/call": {"content": [{"type": "text", "text": told}]},
    }.get(asked["method"])
    body = {"result": result} if result else {"error": {"code": -32601, "message": "no"}}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **body}), flush=True)
"""
"""Its tool returns the variables that it got."""
FIRST, SECOND, THIRD = "first-value-of-a-token", "second-value-of-a-token", "third value\twith a space"


def tells(**env: str) -> dict[str, Any]:
    return {"command": sys.executable, "args": ["-c", TELLS], "env": env}


def told(client_result: Any) -> dict[str, Any]:
    return dict(json.loads(client_result.content[0].text))


def told_by(daemon: Daemon, server: str = "it") -> dict[str, Any]:
    called = daemon.command("tool:call", tool=f"{server}:tell", arguments={})
    return dict(json.loads(called["result"]["content"][0]["text"]))


def states(daemon: Daemon) -> dict[str, tuple[str, int | None]]:
    return {row["name"]: (row["state"], row.get("pid")) for row in daemon.command("server:list")["servers"]}


@pytest.fixture
def keyring() -> Iterator[KeyringSession]:
    with keyring_session() as session:
        yield session


@pytest.fixture
def web() -> Iterator[WebWitness]:
    with served() as witness:
        yield witness


@pytest.mark.req("BNS-3")
def test_a_secret_works_at_once_and_its_servers_connect_again(
    daemon: StartDaemon, cli: Cli, toolcrib_home: Home
) -> None:
    servers = {"it": tells(ONE="${A_TOKEN}", TWO="${input:b-token}"), "other": tells(ONE="same")}
    running = daemon({"servers": servers}, env={"SET_HERE": "from the environment"})
    running.wait_until_ready("other")
    before = states(running)
    assert "it" not in before
    assert "Run `toolcrib secret set A_TOKEN`" in "".join(running.status()["problems"])
    listed = cli("secret", "list", "--json").ok().json
    assert [(row["name"], row["servers"]) for row in listed["missing"]] == [("A_TOKEN", ["it"]), ("b-token", ["it"])]

    assert cli("secret", "set", "A_TOKEN", stdin=f"{FIRST}\n").ok().out == "A_TOKEN is stored. Used by: it.\n"
    done = cli("secret", "set", "b-token", "--json", stdin=SECOND).ok().json
    assert done == {"name": "b-token", "replaced": False, "servers": ["it"], "elsewhere": False, "environment": False}
    running.wait_until_ready("it")
    assert told_by(running) == {"ONE": FIRST, "TWO": SECOND}
    assert states(running)["other"] == before["other"], "a server that uses none of them is not touched"

    first = states(running)["it"][1]
    assert cli("secret", "set", "A_TOKEN", stdin=f"{THIRD}\r\n").ok().out == "A_TOKEN is replaced. Used by: it.\n"
    running.wait_until_ready("it")
    assert told_by(running) == {"ONE": THIRD, "TWO": SECOND}
    assert states(running)["it"][1] != first

    said = cli("secret", "set", "SET_HERE", stdin="mine-and-secret").ok()
    assert "Toolcrib's environment also sets SET_HERE, and ${SET_HERE} takes that value." in said.err
    listed = cli("secret", "list").ok()
    assert [line.split() for line in listed.out.splitlines()[1:]] == [
        ["A_TOKEN", "stored", "it"],
        ["SET_HERE", "stored", "-"],
        ["b-token", "stored", "it"],
    ]
    assert "no more than that" in listed.err

    cli("secret", "set", "for_half", stdin=FIRST).ok()
    half = {**servers, "half": tells(ONE="${for_half}", TWO="${NEVER_SET}")}
    toolcrib_home.write_config({"servers": half})
    cli("reload")
    assert "Used by: another part of your configuration." in cli("secret", "remove", "for_half", "--yes").ok().out

    refused = cli("secret", "remove", "b-token")
    assert (refused.exit_code, "used by: it" in refused.err, "--yes" in refused.err) == (2, True, True)
    assert cli("secret", "remove", "SET_HERE").ok().out == "SET_HERE is deleted. Nothing uses it.\n"
    assert cli("secret", "remove", "b-token", "--yes", "--json").ok().json["servers"] == ["it"]
    assert "it" not in states(running)
    assert cli("secret", "remove", "b-token").exit_code == 4

    rows = [row for row in running.command("audit:query")["entries"] if row["kind"] == "change"]
    names = [(row["outcome"], row["detail"]["name"]) for row in rows if row["outcome"].startswith("secret ")]
    assert sorted(names) == sorted(
        [("secret set", name) for name in ("A_TOKEN", "b-token", "A_TOKEN", "SET_HERE", "for_half")]
        + [("secret removed", name) for name in ("SET_HERE", "b-token", "for_half")]
    )
    kept = b"".join(path.read_bytes() for path in toolcrib_home.toolcrib.rglob("*") if path.is_file())
    assert [value for value in (FIRST, SECOND, THIRD, "mine-and-secret") if value.encode() in kept] == []


def test_secrets_can_be_managed_without_a_daemon(cli: Cli, toolcrib_home: Home) -> None:
    toolcrib_home.write_config({"servers": {"it": tells(ONE="${A_TOKEN}")}})
    assert cli("secret", "list").ok().out.splitlines()[1].split() == ["A_TOKEN", "missing", "it"]
    cli("secret", "set", "A_TOKEN", stdin=FIRST).ok()
    called = cli("call", "it:tell", "--json").ok().json
    assert FIRST not in json.dumps(cli("secret", "list", "--json").ok().json)
    assert json.loads(called["content"][0]["text"])["ONE"] == FIRST
    moved = cli("secret", "migrate", "--to", "file", "--json").ok().json
    assert moved == {"key_store": "file", "entries": 1}
    cli("secret", "remove", "A_TOKEN", "--yes").ok()
    assert cli("secret", "list", "--json").ok().json["secrets"] == []


@pytest.mark.parametrize(
    ("words", "stdin", "code", "message"),
    [
        (("set", "A"), "", 2, "The value is empty"),
        (("set", "A"), "\n", 2, "The value is empty"),
        (("set", "a b"), "hidden-value", 2, "A name has"),
        (("set", "-x"), "hidden-value", 2, "-x"),
        (("set",), "hidden-value", 2, "needs a name"),
        (("set", "A", "hidden-value"), "", 2, "can't be an argument"),
        (("set", "A"), "hidden-value\x1b", 2, "control character"),
        (("set", "A"), "hidden-value" * 20_000, 2, "At most"),
        (("remove", "A"), "", 4, "There is no secret 'A'"),
        (("migrate", "--to", "nowhere"), "", 2, "nowhere"),
    ],
)
def test_a_mistake_is_explained_without_the_value(
    cli: Cli, words: tuple[str, ...], stdin: str, code: int, message: str
) -> None:
    done = cli("secret", *words, "--json", stdin=stdin)
    assert (done.exit_code, message in done.err) == (code, True), done
    assert "hidden-value" not in done.out + done.err


def test_a_value_is_typed_at_a_hidden_prompt(toolcrib_home: Home, cli: Cli) -> None:
    code, screen = at_terminal(toolcrib_home, "secret", "set", "A_TOKEN", answers=[("A_TOKEN: ", FIRST)])
    assert (code, "A_TOKEN is stored." in screen, FIRST in screen) == (0, True, False), screen
    inputs = [{"id": "key", "description": "Key of the shop", "type": "promptString"}]
    asked = {"one": tells(ONE="${input:key}"), "two": tells(ONE="${B_TOKEN}", TWO="${C_TOKEN}")}
    toolcrib_home.write_config({"servers": asked, "inputs": inputs})
    answers = [
        ("key (Key of the shop; for one): ", THIRD),
        ("B_TOKEN (for two): ", SECOND),
        ("C_TOKEN (for two): ", ""),
    ]
    code, screen = at_terminal(toolcrib_home, "secret", "set", answers=answers)
    assert (code, SECOND in screen, THIRD in screen) == (0, False, False), screen
    found = cli("secret", "list", "--json").ok().json
    assert {row["name"] for row in found["secrets"]} == {"A_TOKEN", "B_TOKEN", "key"}
    assert [row["name"] for row in found["missing"]] == ["C_TOKEN"]
    assert json.loads(cli("call", "one:tell", "--json").ok().json["content"][0]["text"])["ONE"] == THIRD


@pytest.mark.req("BNS-3", "BNS-10")
def test_add_and_trust_ask_for_what_is_missing_on_a_terminal_and_name_the_command_elsewhere(
    daemon: StartDaemon, cli: Cli, toolcrib_home: Home
) -> None:
    running = daemon({})
    add = ["--env", "ONE=${A_TOKEN}", "--env", "TWO=${input:b-token}", "--", sys.executable, "-c", TELLS]
    refused = cli("add", "it", *add)
    assert refused.exit_code == 3
    assert "toolcrib secret set A_TOKEN" in refused.err and "toolcrib secret set b-token" in refused.err
    answers = [("A_TOKEN: ", FIRST), ("b-token: ", SECOND)]
    code, screen = at_terminal(toolcrib_home, "add", "it", *add, answers=answers)
    assert (code, "Added it" in screen, FIRST in screen or SECOND in screen) == (0, True, False), screen
    assert told_by(running) == {"ONE": FIRST, "TWO": SECOND}

    file = toolcrib_home.project / ".mcp.json"
    inputs = [{"id": "theirs", "description": "Theirs"}]
    file.write_text(json.dumps({"mcpServers": {"shared": tells(ONE="${input:theirs}")}, "inputs": inputs}))
    trusted = cli("trust", "--yes").ok()
    assert "theirs, which shared needs, is not set: run `toolcrib secret set theirs`." in trusted.err
    file.write_text(file.read_text() + "\n")
    answers = [("Trust this?", "y"), ("theirs (Theirs; for shared): ", THIRD)]
    code, screen = at_terminal(toolcrib_home, "trust", answers=answers)
    assert (code, THIRD in screen) == (0, False), screen
    running.wait_until_ready("shared")
    assert told_by(running, "shared")["ONE"] == THIRD


def test_a_migration_is_refused_during_a_sign_in(cli: Cli, toolcrib_home: Home) -> None:
    cli("secret", "set", "A", stdin=FIRST).ok()
    vault = Vault(Paths.of_user(toolcrib_home.environ()))
    with vault.lock(CredentialKind.ACCOUNT, "sign-in at a server"):
        refused = cli("secret", "migrate", "--to", "file")
    assert (refused.exit_code, "is in progress" in refused.err) == (8, True)


@pytest.mark.req("KSI-1")
@pytest.mark.parametrize("store", ["file", "keyring"])
async def test_a_daemon_that_a_client_started_has_the_same_secrets_as_one_from_a_shell(
    daemon: StartDaemon, cli: Cli, toolcrib_home: Home, web: WebWitness, store: str, request: pytest.FixtureRequest
) -> None:
    cli("secret", "set", "A_TOKEN", stdin=FIRST).ok()
    cli("secret", "set", "b-token", stdin=SECOND).ok()
    shell = {"LANG": "C.UTF-8", "XDG_CURRENT_DESKTOP": "tests", "SSH_AUTH_SOCK": "/nowhere"}
    if store == "keyring":
        shell[BUS] = request.getfixturevalue("keyring").bus
        cli("secret", "migrate", "--to", "keyring", env=shell).ok()
    headers = {"Authorization": "Bearer ${A_TOKEN}", "X-Key": "${input:b-token}"}
    remote = {"url": f"http://127.0.0.1:{web.port}/mcp", "headers": headers}
    servers = {"it": tells(ONE="${A_TOKEN}", TWO="${input:b-token}"), "web": remote}
    wanted = {"ONE": FIRST, "TWO": SECOND}

    running = daemon({"servers": servers, "port": 0}, env=shell)
    async with at_endpoint(running, "legacy") as client:
        assert told(await client.call_tool("it_tell", {})) == wanted
        await client.call_tool("web_note", {})
    first = web.seen[-1][1]
    await during(running.stop)

    thin = {"HOME": str(toolcrib_home.user), "TOOLCRIB_HOME": str(toolcrib_home.toolcrib), "PATH": "/usr/bin:/bin"}
    thin["TMPDIR"] = str(toolcrib_home.tmp)
    bridge = StdioServerParameters(command=str(PROGRAM), args=["stdio"], env=thin, cwd=toolcrib_home.project)
    try:
        async with Client(bridge, mode=MODES["legacy"]) as client:
            assert told(await client.call_tool("it_tell", {})) == wanted
            await client.call_tool("web_note", {})
        environ = Path(f"/proc/{(await during(cli, 'status', '--json')).ok().json['pid']}/environ").read_bytes()
    finally:
        await during(cli, "down")
    assert BUS.encode() not in environ and b"XDG_" not in environ, "the environment was thin"
    second = web.seen[-1][1]
    for name in ("authorization", "x-key"):
        assert first[name] == second[name]
    assert first["authorization"] == f"Bearer {FIRST}"
    assert first["x-key"] == SECOND


def test_a_daemon_without_its_keyring_says_what_to_do(
    daemon: StartDaemon, cli: Cli, toolcrib_home: Home, keyring: KeyringSession
) -> None:
    cli("secret", "set", "A_TOKEN", stdin=FIRST).ok()
    running = daemon({"servers": {"it": tells(ONE="${A_TOKEN}")}})
    moved = cli("secret", "migrate", "--to", "keyring", env={BUS: keyring.bus}).ok()
    assert "programs can read both" in moved.out
    assert cli("secret", "list", "--json").ok().json["key_store"] == "keyring"
    running.wait_until_ready("it")
    assert told_by(running)["ONE"] == FIRST
    running.stop()
    keyring.end()
    running = daemon()
    (problem,) = running.status()["problems"]
    assert "The key of your secrets is in the system's keyring, which cannot be read" in problem
    assert "run `toolcrib reload`" in problem
    assert "it" not in states(running)
    for words in (("set", "B"), ("migrate", "--to", "file")):
        failed = cli("secret", *words, stdin=SECOND)
        assert (failed.exit_code, "system's keyring" in failed.err) == (9, True)
    wait_for(lambda: "Traceback" not in running.log_tail(), "no traceback")
    assert [row["reason"] for row in cli("secret", "list", "--json").ok().json["damaged"]]
