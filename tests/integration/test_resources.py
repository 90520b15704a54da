"""Resources and prompts on the command line and in the library, with and without a daemon, under an agent's rules."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from parts.agent_clients import ERAS, AgentClient, Owner
from parts.daemon import Cli, Daemon, Home, StartDaemon, run_cli
from parts.server_process import StartServer, stdio_command, stdio_entry
from parts.servers.shelf_server import BINARY, HIDDEN, TEXTS
from parts.typing_person import at_terminal
from parts.waiting import during, until, wait_for
from toolcrib import Client, Crib, HttpServer, Kit, StdioServer, ToolProvider
from toolcrib.core.content import ImageBlock, OtherBlock, ResourceBlock, TextBlock
from toolcrib.errors import Denied, InvalidArguments, ToolError, UnknownOffer, UsageError
from toolcrib.events import CallFinished, CatalogChanged

pytestmark = pytest.mark.req("BNS-4", "ENG-9")

EVERYTHING = Path(__file__).parents[1] / "conformance" / "everything_server.py"
LIMIT = 60.0
INFO = {"name": "test", "version": "1"}


@pytest.fixture(scope="module")
def seen(shared_home: Home) -> Path:
    return shared_home.path / "seen"


@pytest.fixture(scope="module")
def url(start_shared_server: StartServer) -> str:
    return start_shared_server([sys.executable, str(EVERYTHING)]).url("http")


@pytest.fixture(scope="module")
def running(shared_home: Home, start_shared_daemon: StartDaemon, url: str, seen: Path) -> Daemon:
    servers = {
        "shelf": stdio_entry("shelf_server", "--seen", str(seen)),
        "twin": stdio_entry("shelf_server"),
        "all": {"url": url},
    }
    daemon = start_shared_daemon({"servers": servers})
    daemon.wait_until_ready(*servers)
    return daemon


@pytest.fixture
def owner(running: Daemon) -> Owner:
    return Owner(running)


@pytest.fixture
def run(running: Daemon, shared_cli: Cli) -> Cli:
    return shared_cli


def shelf(*flags: str) -> StdioServer:
    command, *args = stdio_command("shelf_server", *flags)
    return StdioServer("shelf", command=command, args=args, connect_timeout=LIMIT)


# The command line, with the daemon.


def test_resources_lists_those_of_all_servers_or_one(run: Cli) -> None:
    rows = [line.split() for line in run("resources").ok().out.splitlines()]
    assert rows[0] == ["uri", "server", "type", "description"]
    assert ["test://static-text", "all", "text/plain", "test://static-text"] in rows
    assert ["shelf+shelf://own", "shelf", "-", "Has", "a", "colour."] in rows
    assert ["twin+shelf://dir/{name}", "twin", "template", "dir"] in rows
    listed = run("resources", "twin", "--json").ok().json["resources"]
    assert {one["server"] for one in listed} == {"twin"}
    assert listed[0] == {
        "uri": "twin+shelf://1",
        "display": "resource:twin:shelf://1",
        "server": "twin",
        "template": False,
        "definition": {
            "uri": "shelf://1",
            "name": "one",
            "title": "The first",
            "mimeType": "text/plain",
            "x-own": [1.0, None],
        },
    }
    refused = run("resources", "nobody")
    assert (refused.exit_code, "nobody" in refused.err) == (4, True)


def test_read_prints_a_text_unchanged(run: Cli) -> None:
    assert run("read", "shelf+shelf://1").ok().out == TEXTS["shelf://1"]
    assert run("read", "shelf+shelf://own").ok().out == TEXTS["shelf://own"]
    assert run("read", "twin+shelf://dir/a").ok().out == "a"
    assert json.loads(run("read", "test://template/7/data").ok().out)["id"] == "7"


def test_a_terminal_gets_no_binary_and_no_control_characters(running: Daemon, shared_home: Home) -> None:
    assert at_terminal(shared_home, "read", "shelf+shelf://own", answers=()) == (0, "\\x1b[31mred\\x1b[0m\r\n")
    assert at_terminal(shared_home, "read", "shelf+shelf://1", answers=()) == (0, "first\r\nline two\r\n")
    code, screen = at_terminal(shared_home, "read", "shelf+shelf://binary", answers=())
    assert code == 2
    assert "is binary (application/x-all, 256 B). Write it to a file with --output FILE" in screen


def test_read_gives_the_whole_answer_as_json_with_public_addresses(run: Cli) -> None:
    content = {"uri": "twin+shelf://1", "text": TEXTS["shelf://1"], "_meta": {"n": 1}}
    assert run("read", "twin+shelf://1", "--json").ok().json == {"contents": [content], "x-more": 1}


def test_read_writes_a_binary_to_a_file(run: Cli, tmp_path: Path) -> None:
    file = tmp_path / "out"
    done = run("read", "shelf+shelf://binary", "--output", str(file)).ok()
    assert (file.read_bytes(), done.out) == (BINARY, "")
    assert "Wrote 256 B" in done.err
    refused = run("read", "shelf+shelf://binary", "-o", str(tmp_path / "no" / "folder"))
    assert (refused.exit_code, "cannot be written" in refused.err) == (2, True)
    mixed = run("read", "shelf+shelf://both")
    assert (mixed.exit_code, mixed.out) == (2, "")
    assert "2 parts" in mixed.err
    odd = run("read", "shelf+shelf://dir/odd")
    assert (odd.exit_code, "--json" in odd.err) == (6, True)


def test_errors_of_read_say_what_to_do(run: Cli) -> None:
    ambiguous = run("read", "shelf://1")
    assert ambiguous.exit_code == 4
    assert "Name the server: all+shelf://1, shelf+shelf://1, twin+shelf://1." in ambiguous.err
    missing = run("read", "shelf+shelf://nothing", "--json")
    assert missing.exit_code == 6
    assert missing.json["error"]["data"]["error"]["code"] == -32002
    assert "Resource not found: shelf://nothing" in missing.err


def test_prompts_lists_names_and_arguments(run: Cli) -> None:
    rows = [line.split() for line in run("prompts").ok().out.splitlines()]
    assert rows[0] == ["prompt", "server", "arguments", "description"]
    assert ["shelf_write", "shelf", "topic,", "tone?", "Write", "a", "text."] in rows
    (one,) = run("prompts", "twin", "--json").ok().json["prompts"]
    assert {key: one[key] for key in ("name", "display", "server", "prompt")} == {
        "name": "twin_write",
        "display": "prompt:twin:write",
        "server": "twin",
        "prompt": "write",
    }
    assert one["definition"]["arguments"][1] == {"name": "tone"}


def test_prompt_prints_the_messages(run: Cli, seen: Path, tmp_path: Path) -> None:
    (tmp_path / "topic").write_text("time=money")
    done = run("prompt", "shelf_write", f"topic=@{tmp_path}/topic", "tone=1").ok()
    assert done.out == f"user:\nWrite about time=money, 1.\n\nassistant:\n{TEXTS['shelf://1']}\n"
    sent = [json.loads(line) for line in seen.read_text().splitlines()]
    got = [one["params"] for one in sent if one["method"] == "prompts/get"]
    assert {key: got[-1][key] for key in ("name", "arguments")} == {
        "name": "write",
        "arguments": {"topic": "time=money", "tone": "1"},
    }
    whole = run("prompt", "prompt:shelf:write", "topic=x", "--json").ok().json
    assert (whole["description"], len(whole["messages"])) == ("A text.", 2)
    missing = run("prompt", "nothing")
    assert (missing.exit_code, "There is no prompt" in missing.err) == (4, True)
    number = run("prompt", "shelf_write", "topic:=1")
    assert (number.exit_code, "topic" in number.err) == (2, True)


def test_servers_show_counts_them(run: Cli) -> None:
    shown = run("servers", "show", "twin").ok().out
    assert "4 resources, 1 template" in shown
    assert "1 prompt" in shown
    found = run("servers", "show", "twin", "--json").ok().json
    assert [found[key] for key in ("resources", "templates", "prompts")] == [4, 1, 1]


@pytest.mark.req("KSI-5")
def test_allow_deny_why_and_audit_know_resources_and_prompts(run: Cli, owner: Owner) -> None:
    owner.add("ruled")
    denied = run("why", "ruled", "resource:twin:shelf://1")
    assert (denied.exit_code, "may not use resource:twin:shelf://1" in denied.out) == (5, True)
    assert "`toolcrib allow ruled resource:twin:shelf://1`" in denied.out
    allowed = run("allow", "ruled", "resource:twin:shelf://*").ok()
    assert allowed.err == ""
    assert "may use" in run("why", "ruled", "resource:twin:shelf://1").ok().out
    assert "Resources and prompts count as read_only" in run("why", "ruled", "resource:twin:shelf://dir/new").ok().out
    assert run("why", "ruled", "prompt:twin:write").exit_code == 5
    run("deny", "ruled", "resource:twin:shelf://dir/*").ok()
    assert run("why", "ruled", "resource:twin:shelf://x/../dir/a").exit_code == 5
    unknown = run("why", "ruled", "prompt:twin:nothing")
    assert "The prompt is currently unknown" in unknown.out
    assert "lists all prompts" in run("allow", "ruled", "prompt:twin:nothing").ok().err
    assert "which also covers others" in run("allow", "ruled", "resource:twin:other://*").ok().err
    assert "`resource:SERVER:*`" in run("allow", "ruled", "resource:*").ok().err
    run("read", "twin+shelf://1").ok()
    rows = run("audit", "--tool", "resource:twin:*", "--json").ok().json["entries"]
    assert {row["tool"] for row in rows if row["agent"] == "owner"} >= {"resource:twin:shelf://1"}
    assert all(row["server"] == "twin" for row in rows)


# Clients.


@pytest.mark.parametrize("era", ERAS)
def test_a_client_that_is_early_waits_for_the_server_of_a_resource(
    daemon: StartDaemon, tmp_path: Path, era: str
) -> None:
    gate = tmp_path / "gate"
    running = daemon({"servers": {"shelf": stdio_entry("shelf_server", "--gate", str(gate))}})
    token = Owner(running).add("early", "shelf:*")
    for method, params in (("resources/read", {"uri": "shelf://1"}), ("prompts/get", {"name": "shelf_write"})):
        with AgentClient(running, "early", token, era) as client:
            client.connection.send(client.bytes_of(method, params))
            if method == "resources/read":
                assert running.status()["servers"][0]["state"] == "connecting"
                gate.touch()
            assert client.answer().result


@pytest.mark.parametrize("era", ERAS)
def test_an_agent_gets_the_instructions_of_servers_that_it_may_use(
    daemon: StartDaemon, tmp_path: Path, era: str
) -> None:
    servers = {"books": stdio_entry("shelf_server"), "tools": stdio_entry("shelf_server", "--tools")}
    running = daemon({"servers": servers})
    running.wait_until_ready()

    def heads(name: str, *allowed: str) -> list[str]:
        token = Owner(running).add(name, *allowed)
        with AgentClient(running, name, token, era) as client:
            method = "server/discover" if era == "modern" else "initialize"
            answer = client.ask(method, {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": INFO})
            return [line for line in answer.result["instructions"].splitlines() if line.startswith("# Server")]

    assert heads("both", "books:*", "tools:*") == ["# Server books", "# Server tools"]
    assert heads("tools", "tools:add") == ["# Server tools"]
    assert heads("reader", "resource:books:shelf://1") == ["# Server books"]
    assert heads("writer", "prompt:books:*") == ["# Server books"]
    assert heads("nobody") == []


@pytest.mark.req("KSI-5")
def test_a_read_that_needs_approval_waits_for_it(run: Cli, running: Daemon, owner: Owner) -> None:
    token = owner.add("asked")
    owner.allow("asked", "resource:twin:*", ask=True)
    with AgentClient(running, "asked", token, "legacy") as client:

        def begin(uri: str) -> str:
            client.connection.send(client.bytes_of("resources/read", {"uri": uri}))
            waiting = wait_for(lambda: owner.say("approval:list")["approvals"], "the approval", LIMIT)
            assert waiting[0]["tool"] == f"resource:twin:{uri.removeprefix('twin+')}"
            return str(waiting[0]["id"])

        # Its address is a wildcard in a rule, which would allow more than this read.
        waits = begin("twin+shelf://dir/*")
        refused = run("approve", waits, "--always")
        assert (refused.exit_code, "would also match other" in refused.err) == (2, True)
        run("approve", waits).ok()
        assert "Resource not found" in client.answer().error["message"]
        run("approve", begin("twin+shelf://1"), "--always").ok()
        assert client.answer().result["contents"][0]["text"] == TEXTS["shelf://1"]
        again = client.ask("resources/read", {"uri": "twin+shelf://1"})
        assert again.result["contents"][0]["uri"] == "twin+shelf://1"


# Without a daemon.


def test_without_a_daemon_the_commands_start_the_servers(toolcrib_home: Home, tmp_path: Path) -> None:
    toolcrib_home.write_config({"servers": {"shelf": stdio_entry("shelf_server")}})

    def run(*words: str) -> Any:
        return run_cli(toolcrib_home, *words)

    for _ in range(2):
        # The second time, its lists are known and it starts with the read.
        assert run("read", "shelf://1").ok().out == TEXTS["shelf://1"]
        assert run("prompt", "shelf_write", "topic=x").ok().out.startswith("user:\nWrite about x")
    assert "shelf://dir/{name}" in run("resources", "shelf").ok().out
    assert "shelf_write" in run("prompts").ok().out
    run("agent", "add", "a", "--profile", "nothing").ok()
    assert "currently unknown" not in run("why", "a", "resource:shelf:shelf://1").out
    command = " ".join(stdio_command("shelf_server"))
    assert run("read", "other+shelf://dir/a", "--mcp-server", f"other={command}").ok().out == "a"


# The library.


async def check_everything(provider: ToolProvider) -> None:
    """The same results of a kit, a crib and a connection."""
    listed = {one.uri: one for one in provider.resources() if one.server == "shelf"}
    own = listed["shelf://own"]
    assert (own.name, own.description, own.media_type, own.is_template) == ("own", "Has a colour.\nMore.", None, False)
    assert listed["shelf://1"].title == "The first"
    assert listed["shelf://1"].raw["x-own"] == [1.0, None]
    assert listed["shelf://dir/{name}"].is_template
    (prompt,) = [one for one in provider.prompts() if one.server == "shelf"]
    assert (prompt.name, prompt.description) == ("write", "Write a text.")
    assert [(one.name, one.description, one.required) for one in prompt.arguments] == [
        ("topic", "About what.", True),
        ("tone", "", False),
    ]
    contents = await provider.read("shelf://1")
    assert contents.text == TEXTS["shelf://1"]
    assert contents.raw["x-more"] == 1
    assert contents.raw["contents"][0]["_meta"] == {"n": 1}
    text, blob = (await provider.read("shelf://both")).blocks
    assert isinstance(text, ResourceBlock)
    assert isinstance(blob, ResourceBlock)
    assert (text.uri, text.text, text.blob) == ("shelf://both", "a text", None)
    assert (blob.blob, blob.media_type, blob.text) == (BINARY, "application/x-all", None)
    (odd,) = (await provider.read("shelf://dir/odd", timeout=LIMIT)).blocks
    assert isinstance(odd, OtherBlock)
    assert odd.raw["resource"] == {"uri": "shelf://dir/odd", "bytes": 3}
    for name in ("write", "shelf_write", "prompt:shelf:write"):
        got = await provider.get_prompt(name, {"topic": "x"})
        assert got.description == "A text."
        assert [one.role for one in got.messages] == ["user", "assistant"]
    first, second = (one.block for one in got.messages)
    assert isinstance(first, TextBlock)
    assert got.text == first.text == "Write about x, plain."
    assert isinstance(second, ResourceBlock)
    assert second.text == TEXTS["shelf://1"]


async def check_errors(provider: ToolProvider) -> None:
    with pytest.raises(ToolError, match="Resource not found"):
        await provider.read("shelf://nothing")
    with pytest.raises(UnknownOffer, match="no prompt"):
        await provider.get_prompt("nothing")
    with pytest.raises(InvalidArguments):
        await provider.get_prompt("write", {"topic": 1})  # type: ignore[dict-item]
    with pytest.raises(InvalidArguments):
        await provider.get_prompt("write", {"topic": object()})  # type: ignore[dict-item]
    with pytest.raises(UsageError, match="is a string"):
        await provider.read(3)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="timeout"):
        await provider.read("shelf://1", timeout=-1)


@pytest.mark.req("ENG-2")
async def test_a_kit_reads_resources_and_gets_prompts() -> None:
    async with Kit([shelf()], connect_limit=LIMIT) as kit:
        await check_everything(kit)
        await check_errors(kit)
        finished: list[CallFinished] = []
        kit.subscribe(finished.append, CallFinished)
        await kit.read("shelf://1")
        assert [one.tool for one in finished] == ["resource:shelf:shelf://1"]
    with pytest.raises(UsageError, match="async with"):
        kit.resources()


async def test_a_kit_announces_new_resources_and_reads_linked_ones() -> None:
    async with Kit([shelf()], connect_limit=LIMIT) as kit:
        changes: list[CatalogChanged] = []
        kit.subscribe(changes.append, CatalogChanged)
        await kit.call("add")
        await until(lambda: changes, "the new list")
        assert "shelf://added" in {one.uri for one in kit.resources()}
    other = StdioServer("other", command=shelf().command, args=shelf().args, connect_timeout=LIMIT)
    async with Kit([shelf(), other], connect_limit=LIMIT) as kit:
        with pytest.raises(UnknownOffer, match="Several servers"):
            await kit.read(HIDDEN)
        await kit.call("other:link")
        assert (await kit.read(HIDDEN)).text == TEXTS[HIDDEN]
        assert (await kit.read("other+shelf://1")).blocks[0].raw["resource"]["uri"] == "other+shelf://1"
        assert sorted(one.name for one in kit.prompts()) == ["other_write", "shelf_write"]


async def test_a_client_reads_and_prompts_its_server(url: str) -> None:
    async with Client(HttpServer("all", url=url)) as client:
        assert "test://template/{id}/data" in {one.uri for one in client.resources()}
        assert "test_prompt_with_image" in {one.name for one in client.prompts()}
        assert (await client.read("test://static-text")).text.startswith("This is the content")
        image, text = (await client.get_prompt("test_prompt_with_image")).messages[0].block, "image/png"
        assert isinstance(image, ImageBlock)
        assert image.media_type == text


@pytest.mark.req("ENG-3")
async def test_a_crib_reads_and_records_it(toolcrib_home: Home) -> None:
    toolcrib_home.write_config({"servers": {"shelf": stdio_entry("shelf_server")}})
    async with Crib.from_config(environ=toolcrib_home.environ(), root=toolcrib_home.project) as crib:
        await check_everything(crib)
        await check_errors(crib)
        await crib.services.audit.flush()
        rows = await crib.services.audit.query(tool="resource:shelf:*", limit=50)
        assert {row["outcome"] for row in rows if row["kind"] == "outcome"} == {"ok", "error"}


@pytest.mark.req("KAI-10", "KSI-5")
async def test_a_connection_has_what_its_agent_may_use(running: Daemon, shared_home: Home, owner: Owner) -> None:
    owner.add("reader", "resource:shelf:*", "prompt:shelf:*")
    owner.deny("reader", "resource:shelf:shelf://binary")
    async with Crib.connect(agent="reader", environ=shared_home.environ()) as crib:
        assert {one.server for one in (*crib.resources(), *crib.prompts())} == {"shelf"}
        assert "shelf+shelf://binary" not in {one.uri for one in crib.resources()}
        listed = {one.uri: one for one in crib.resources()}
        assert listed["shelf+shelf://1"].raw == {
            "uri": "shelf://1",
            "name": "one",
            "title": "The first",
            "mimeType": "text/plain",
            "x-own": [1.0, None],
        }
        (prompt,) = crib.prompts()
        assert prompt.name == "write"
        contents = await crib.read("shelf+shelf://1")
        assert contents.raw["contents"][0]["uri"] == "shelf+shelf://1"
        # Only one server that this agent may use has it.
        assert (await crib.read("shelf://dir/a")).text == "a"
        assert (await crib.get_prompt("write", {"topic": "x"})).text == "Write about x, plain."
        for uri in ("shelf+shelf://binary", "shelf+shelf://dir/../binary", "shelf+shelf://%62inary", "twin+shelf://1"):
            with pytest.raises(Denied):
                await crib.read(uri)
        with pytest.raises(Denied):
            await crib.get_prompt("twin_write")
        with pytest.raises(ToolError, match="Resource not found"):
            await crib.read("shelf://nothing")
        finished: list[CallFinished] = []
        crib.subscribe(finished.append, CallFinished)
        await crib.get_prompt("write")
        assert [(one.tool, one.server, one.caller) for one in finished] == [("prompt:shelf:write", "shelf", "reader")]

    made = {("resource:shelf:shelf://1", "ok"), ("resource:twin:shelf://1", "denied"), ("prompt:shelf:write", "ok")}

    def recorded() -> bool:
        rows = [row for row in owner.audit(agent="reader") if row["kind"] == "outcome"]
        return made <= {(row["tool"], row["outcome"]) for row in rows}

    await during(wait_for, recorded, "the calls in the audit log", LIMIT)


async def test_a_connection_learns_of_new_resources(running: Daemon, shared_home: Home, owner: Owner) -> None:
    owner.add("watcher", "twin:*")
    async with Crib.connect(agent="watcher", environ=shared_home.environ()) as crib:
        changes: list[CatalogChanged] = []
        crib.subscribe(changes.append, CatalogChanged)
        await crib.call("twin:add")
        await until(lambda: any(one.uri == "shelf://added" for one in crib.resources()), "the new resource")
        assert changes
