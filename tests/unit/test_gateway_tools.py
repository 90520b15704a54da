"""The gateway's own tools in-process: what they show, what they call, and that they are never a way around a rule."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from parts.desk import DESK, VAULT, Client, Desk, Json, Scene, configure, rows, said, scene, text_of, tool
from parts.gateway_harness import LIMIT, Exchange, opened
from parts.waiting import until
from toolcrib.config.model import ListingMode
from toolcrib.identity.agent import ErrorForm
from toolcrib.policy import profile_from

__all__ = ["scene"]

pytestmark = pytest.mark.req("KSI-9", "BNS-4")

ERAS = ("modern", "legacy")
every_era = pytest.mark.parametrize("era", ERAS)


def mode_of(names: list[str]) -> str:
    if "crib_find" in names:
        return "search"
    return "thin" if "crib_batch" in names else "full"


# -- modes ---------------------------------------------------------------------------------------------------------


@every_era
async def test_the_narrowest_setting_of_the_mode_wins_and_is_recorded(tmp_path: Path, era: str) -> None:
    configure(tmp_path, listing={"default": "thin", "clients": {"special": "search"}})
    desk = Desk("desk", *DESK)
    async with opened(tmp_path, desk) as harness:
        scene = Scene(harness, desk, desk)
        await scene.agents.put_profile(profile_from("full", {"rules": [{"allow": "*:*"}], "listing": "full"}))
        plain = await scene.client("plain", era)
        special = await scene.client("special", era, name="special")
        profiled = await scene.client("profiled", era, name="special", profile="full")
        own = await scene.client("own", era, name="special", profile="full", listing=ListingMode.THIN)
        for client, expected in ((plain, "thin"), (special, "search"), (profiled, "full"), (own, "thin")):
            assert mode_of(await client.names()) == expected
        for agent, expected in (("plain", "thin"), ("special", "search"), ("profiled", "full"), ("own", "thin")):
            assert scene.mode(agent) == expected
        for wanted in ("full", "thin", "search"):
            assert mode_of(await own.names(wanted)) == wanted
            assert scene.mode("own") == wanted
            await own.call("desk_look")
            assert [row["mode"] for row in await rows(harness, "own")][-2:] == [wanted, wanted]
        assert mode_of(await own.names()) == "thin", "a header counts for its request only"
        refused = await own.ask("tools/list", {"x-toolcrib-listing": "handshake"})
        assert refused.status == 400


@every_era
async def test_a_changed_setting_is_announced_and_counts_at_once(scene: Scene, era: str) -> None:
    client = await scene.client("a", era)
    assert mode_of(await client.names()) == "full"
    method = "subscriptions/listen" if era == "modern" else "GET"
    if era == "modern":
        body, headers = await client.request(method, notifications={"toolsListChanged": True})
        stream, _ = scene.harness.begin(body, client.token, headers)
        await stream.until(b"acknowledged")
    else:
        _, headers = await client.request("ping")
        stream, _ = scene.harness.begin(None, client.token, headers, verb="GET")
        await stream.begun()
    for number, mode in enumerate(("search", "thin", None), start=1):
        await scene.agents.set_listing("a", None if mode is None else ListingMode(mode))
        await until(partial(_announced, stream, number))
        assert mode_of(await client.names()) == (mode or "full")
    assert _announced(stream, 3)


def _announced(stream: Exchange, times: int) -> bool:
    return stream.text.count(b"notifications/tools/list_changed") == times


async def test_a_changed_configuration_of_modes_is_announced(tmp_path: Path) -> None:
    configure(tmp_path)
    desk = Desk("desk", *DESK)
    async with opened(tmp_path, desk) as harness:
        client = await Scene(harness, desk, desk).client("a")
        assert mode_of(await client.names()) == "full"
        body, headers = await client.request("subscriptions/listen", notifications={"toolsListChanged": True})
        stream, _ = harness.begin(body, client.token, headers)
        await stream.until(b"acknowledged")
        configure(tmp_path, listing="search")
        await harness.crib.projects.reload()
        await stream.until(b"notifications/tools/list_changed")
        assert mode_of(await client.names()) == "search"


async def test_an_agent_without_tools_gets_no_gateway_tools(scene: Scene) -> None:
    client = await scene.client("a", profile="nothing")
    for mode in ("full", "thin", "search"):
        assert await client.names(mode) == []
    assert "no server" in await client.found("x", server="desk")
    assert "desk" not in await client.found("note")


async def test_program_readers_get_whole_lists_without_gateway_tools(scene: Scene) -> None:
    client = await scene.client("a", listing=ListingMode.SEARCH)
    program = {"x-toolcrib-sources": "1"}
    listed = (await client.ask("tools/list", program)).json["result"]["tools"]
    assert [one["name"] for one in listed] == [
        *(f"desk_{one['name']}" for one in DESK),
        "slow_wait",
        "slow_where",
        "slow_ask",
        *(f"vault_{one['name']}" for one in VAULT),
    ]
    for given in (*DESK, *VAULT):
        assert given["inputSchema"] in [one["inputSchema"] for one in listed]
    answer = await client.ask("tools/call", program, name="crib_find", arguments={"query": "note"})
    assert answer.json["error"]["message"].startswith('There is no tool "crib_find".')


# -- crib_find and crib_describe -----------------------------------------------------------------------------------


@every_era
async def test_a_search_finds_permitted_tools_of_one_server_or_all(scene: Scene, era: str) -> None:
    client = await scene.client("a", era)
    everywhere = (await client.found("open note")).splitlines()
    assert {line.partition("(")[0] for line in everywhere} >= {"desk_read", "desk_write", "vault_open_vault"}
    assert "desk_read(note: string) - Reads a note" in "\n".join(everywhere)
    assert all(line.startswith("vault_") for line in (await client.found("note", server="vault")).splitlines())
    assert len((await client.found("note", limit=1)).splitlines()) == 1
    await scene.rule("a", deny="vault:open_vault")
    assert "vault_open_vault" not in await client.found("open the vault of notes", limit=20)
    await scene.rule("a", deny="vault:*")
    assert "vault" not in await client.found("open the vault of notes", limit=20)
    unknown = await client.call("crib_find", query="notes", server="vault")
    assert unknown["isError"] is True
    assert text_of(unknown).count("vault") == 1, "only what was asked for"


WRONG_SEARCHES: list[Json] = [
    {},
    {"query": 7},
    {"query": None},
    {"query": ["note"]},
    {"query": "note", "limit": 0},
    {"query": "note", "limit": 21},
    {"query": "note", "limit": "8"},
    {"query": "note", "limit": 2.5},
    {"query": "note", "server": 1},
    {"query": "note", "server": "nowhere"},
    {"query": "note", "servers": ["desk"]},
]


@every_era
async def test_a_search_with_wrong_arguments_is_an_error_for_the_model(scene: Scene, era: str) -> None:
    client = await scene.client("a", era)
    for arguments in WRONG_SEARCHES:
        answer = await client.call("crib_find", **arguments)
        assert answer["isError"] is True, arguments
        assert len(text_of(answer)) < 500
    assert [row["outcome"] for row in await rows(scene.harness, "a")] == ["invalid"] * len(WRONG_SEARCHES)


HOSTILE_QUERIES = (
    "",
    " ",
    "\x00\x1b[2J\r\n",
    "é" * 10,
    "note " * 100_000,
    "n" * 500_000,
    "(" * 5000,
    "{servers}",
    "\u202e note",
    "\\ud800",
)


async def test_hostile_queries_get_an_ordinary_answer(scene: Scene) -> None:
    client = await scene.client("a")
    for query in HOSTILE_QUERIES:
        answer = await client.call("crib_find", query=query)
        assert answer.get("isError") is not True
        assert len(text_of(answer)) < 3000
        assert "\x1b" not in text_of(answer)


@every_era
async def test_definitions_are_whole_and_those_of_hidden_tools_look_unknown(scene: Scene, era: str) -> None:
    client = await scene.client("a", era)
    full = {one["name"]: one for one in await client.listed("full")}
    answer = text_of(await client.call("crib_describe", tools=["desk_read", "vault:open_vault", "desk_write"]))
    for line, name in zip(answer.splitlines(), ("desk_read", "vault_open_vault", "desk_write"), strict=True):
        assert json.loads(line) == {key: full[name][key] for key in ("name", "description", "inputSchema")}
    await scene.rule("a", deny="vault:open_vault")
    hidden, unknown = text_of(
        await client.call("crib_describe", tools=["vault_open_vault", "vault_open_vaults"])
    ).splitlines()
    assert hidden.startswith('There is no tool "vault_open_vault".')
    assert unknown.startswith('There is no tool "vault_open_vaults".')
    assert "Opens" not in hidden + unknown
    assert "vault_open_vault," not in unknown
    for wrong in ([], ["desk_read"] * 9, "desk_read", [1]):
        assert (await client.call("crib_describe", tools=wrong))["isError"] is True


async def test_a_tool_that_goes_during_a_search_is_not_shown(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    client, search = await scene.client("a"), scene.home.search
    index = await search.index(scene.home.catalog)
    loop, find = asyncio.get_running_loop(), index.find

    def slowly(*args: Any, **more: Any) -> Any:
        hits = find(*args, **more)

        async def change() -> None:
            scene.vault.list_tools()
            scene.home.changed()

        asyncio.run_coroutine_threadsafe(change(), loop).result(20)
        return hits

    monkeypatch.setattr(index, "find", slowly)
    assert "vault" not in await client.found("open the vault of notes")
    assert "desk_read" in await client.found("read a note")


# -- crib_call -----------------------------------------------------------------------------------------------------

PICTURE = {"type": "image", "data": "aGVsbG8=", "mimeType": "image/png"}
RESULTS: list[Json] = [
    said("hello"),
    said("no", isError=True),
    said("{}", structuredContent={"a": [1, 2.0, 12345678901234567890123]}),
    {"content": [PICTURE, {"type": "text", "text": "a picture"}]},
    said("x", _meta={"com.example/a": 1}),
]
KEPT = ("kind", "tool", "server", "arguments", "decision", "rule", "outcome", "mode", "size", "conversation")


@every_era
async def test_a_call_through_crib_call_is_the_direct_call(scene: Scene, era: str) -> None:
    client, arguments = await scene.client("a", era), {"note": "é", "mode": "append"}
    results = iter(RESULTS * 3)
    scene.desk.answers["write"] = lambda _: next(results)
    calls = (
        ("desk_write", arguments),
        *(("crib_call", {"tool": n, "arguments": arguments}) for n in ("desk_write", "desk:write")),
    )
    made = [[await client.call(name, **given) for _ in RESULTS] for name, given in calls]
    assert made[0] == made[1] == made[2]
    assert [{key: one[key] for key in wanted} for one, wanted in zip(made[0], RESULTS, strict=True)] == RESULTS
    assert scene.desk.seen == [("write", arguments)] * 3 * len(RESULTS)
    found = [{key: row[key] for key in KEPT} for row in await rows(scene.harness, "a")]
    assert [(row["kind"], row["tool"]) for row in found] == [("intent", "desk:write"), ("outcome", "desk:write")] * 15
    assert found[:10] == found[10:20] == found[20:]


@every_era
async def test_rules_and_conditions_apply_to_the_inner_tool(scene: Scene, era: str) -> None:
    client = await scene.client("a", era)
    await scene.rule("a", deny="desk:burn")
    await scene.rule("a", deny="desk:write", when={"mode": {"one_of": ["replace"]}})
    # A rule for a gateway tool's name covers nothing else.
    await scene.rule("a", allow="crib:*")
    for name, arguments in (("desk_burn", {}), ("desk_write", {"note": "x", "mode": "replace"})):
        direct = await client.call(name, **arguments)
        assert direct["isError"] is True
        assert await client.call("crib_call", tool=name, arguments=arguments) == direct
    assert "isError" not in await client.call("crib_call", tool="desk_write", arguments={"note": "x", "mode": "append"})
    assert scene.desk.names == ["write"]
    found = [(row["tool"], row["outcome"]) for row in await rows(scene.harness, "a")]
    assert found[:4] == [("desk:burn", "denied")] * 2 + [("desk:write", "denied")] * 2


@every_era
async def test_approvals_show_the_tool_itself(scene: Scene, era: str) -> None:
    client = await scene.client("a", era)
    await scene.rule("a", ask="desk:write")
    approvals = scene.harness.crib.services.approvals
    for approved in (True, False):
        calling = asyncio.create_task(client.call("crib_call", tool="desk_write", arguments={"note": "x"}))
        (waiting,) = await approvals.next(LIMIT)
        assert (waiting.tool, waiting.arguments) == ("desk:write", b'{"note": "x"}')
        assert b"crib" not in waiting.besides
        approvals.answer(waiting.id, approved=approved)
        assert (await calling).get("isError", False) is not approved
    assert scene.desk.names == ["write"]


@every_era
async def test_wrong_arguments_get_the_inner_tools_schema(scene: Scene, era: str) -> None:
    client = await scene.client("a", era)
    direct = await client.call("desk_write", note=7)
    assert direct["isError"] is True
    assert await client.call("crib_call", tool="desk_write", arguments={"note": 7}) == direct
    assert '"append"' in text_of(direct)
    for wrong in ([], "x", None, 7):
        answer = await client.call("crib_call", tool="desk_write", arguments=wrong)
        assert answer == await _direct(client, "desk_write", wrong)
    assert scene.desk.seen == []


async def test_programs_with_http_errors_get_those_of_the_inner_tool(scene: Scene) -> None:
    client = await scene.client("a", errors=ErrorForm.HTTP)
    await scene.rule("a", deny="desk:burn")
    for name, arguments in (("desk_burn", {}), ("desk_write", {"note": 7})):
        direct = await client.ask("tools/call", name=name, arguments=arguments)
        through = await client.ask("tools/call", name="crib_call", arguments={"tool": name, "arguments": arguments})
        assert (through.status, through.json) == (direct.status, direct.json)
        assert direct.json["error"]


async def _direct(client: Client, name: str, arguments: Any) -> Json:
    answer: Json = (await client.ask("tools/call", name=name, arguments=arguments)).json["result"]
    return answer


WRONG_CALLS: list[tuple[Json, str]] = [
    ({"tool": "desk_wrte"}, "Did you mean desk_write"),
    ({"tool": "crib_call", "arguments": {"tool": "desk_burn"}}, "crib_call does not call itself"),
    ({"tool": "crib:call"}, "crib:call does not call itself"),
    ({"tool": 7}, '{"tool": "NAME"'),
    ({}, '{"tool": "NAME"'),
    ({"tool": "desk_read", "args": {}}, '{"tool": "NAME"'),
    ({"tool": "x" * 100_000}, "There is no tool"),
]


async def test_arguments_may_be_a_json_text(scene: Scene) -> None:
    client = await scene.client("a")
    assert "isError" not in await client.call("crib_call", tool="desk_write", arguments='{"note": "x"}')
    assert (await client.call("crib_call", tool="desk_write", arguments="[]"))["isError"]
    assert scene.desk.names == ["write"]


@every_era
async def test_a_wrong_crib_call_tells_the_model_what_to_do(scene: Scene, era: str) -> None:
    client = await scene.client("a", era)
    for arguments, expected in WRONG_CALLS:
        answer = await client.call("crib_call", **arguments)
        assert answer["isError"] is True
        assert expected in text_of(answer)
        assert len(text_of(answer)) < 2000
    assert scene.desk.seen == []


async def test_crib_call_reaches_the_other_gateway_tools(scene: Scene) -> None:
    client = await scene.client("a")
    through = await client.call("crib_call", tool="crib_find", arguments={"query": "read a note"})
    assert through == await client.call("crib_find", query="read a note")


@every_era
async def test_suggestions_name_only_permitted_tools(scene: Scene, era: str) -> None:
    client = await scene.client("a", era)
    await scene.rule("a", deny="vault:*")
    for answer in (
        text_of(await client.call("crib_call", tool="vault_open_vaul")),
        text_of(await client.call("crib_describe", tools=["vault_open_vaul"])),
        text_of(await client.batch(("vault_open_vaul", {}))),
        json.dumps((await client.ask("tools/call", name="vault_open_vaul", arguments={})).json),
    ):
        assert "vault_open_vault" not in answer
        assert "count_coins" not in answer


@every_era
async def test_a_cancelled_crib_call_ends_the_inner_call(scene: Scene, era: str) -> None:
    client = await scene.client("a", era)
    body, headers = await client.request("tools/call", name="crib_call", arguments={"tool": "slow_wait"})
    exchange, task = scene.harness.begin(body, client.token, headers)
    await asyncio.wait_for(scene.harness.slow.called.wait(), LIMIT)
    if era == "modern":
        exchange.leave()
    else:
        notice = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
        await scene.harness.ask(notice, client.token, headers)
    await asyncio.wait_for(task, LIMIT)
    assert [(row["tool"], row["outcome"]) for row in await rows(scene.harness, "a")] == [
        ("slow:wait", ""),
        ("slow:wait", "cancelled"),
    ]


@pytest.mark.parametrize("revoke", ["deny", "remove", "rotate"])
async def test_a_revocation_stops_a_crib_call(scene: Scene, revoke: str) -> None:
    client = await scene.client("a")
    body, headers = await client.request("tools/call", name="crib_call", arguments={"tool": "slow_wait"})
    exchange, task = scene.harness.begin(body, client.token, headers)
    await asyncio.wait_for(scene.harness.slow.called.wait(), LIMIT)
    if revoke == "deny":
        await scene.rule("a", deny="slow:*")
    else:
        await getattr(scene.agents, revoke)("a")
    await asyncio.wait_for(task, LIMIT)
    assert "may have run" in text_of(exchange.json["result"])
    assert [row["outcome"] for row in await rows(scene.harness, "a")][-1] == "denied"


async def test_no_server_can_take_the_name_of_a_gateway_tool(tmp_path: Path) -> None:
    configure(tmp_path, names="plain")
    evil = Desk("crib2", *(tool(name) for name in ("crib_call", "crib_find", "mcp_crib_batch", "find", "Crib_Find")))
    async with opened(tmp_path, evil) as harness:
        client = Client(harness, await harness.agent("a"))
        names = await client.names("search") + await client.names("full")
        assert names.count("crib_find") == names.count("crib_call") == 1
        theirs = [name for name in await client.names("full") if name not in ("crib_result", "wait", "where", "ask")]
        for name in theirs:
            assert json.loads(text_of(await client.call("crib_call", tool=name)))
        assert len(evil.seen) == len(theirs) == 5
        assert text_of(await client.call("crib_find", query="crib call")).startswith("crib2_crib_call(")


async def test_changed_tools_are_found_described_and_called_as_changed(tmp_path: Path) -> None:
    rules = [
        {"rename": {"desk:write": "jot"}},
        {"rename_arguments": {"note": "text"}, "only": "desk:write"},
        {"drop": "desk:burn"},
    ]
    configure(tmp_path, tools=rules)
    desk = Desk("desk", *DESK)
    async with opened(tmp_path, desk) as harness:
        client = Client(harness, await harness.agent("a"))
        assert "desk_jot(text: string" in await client.found("write a note")
        assert "burn" not in await client.found("burn every note")
        (described,) = text_of(await client.call("crib_describe", tools=["desk_jot"])).splitlines()
        assert json.loads(described)["inputSchema"]["required"] == ["text"]
        answer = await client.call("crib_call", tool="desk_jot", arguments={"text": "x"})
        assert desk.seen == [("write", {"note": "x"})], answer
        assert await client.call("crib_call", tool="desk_burn") != answer
        await client.batch(("desk_jot", {"text": "y"}), ("desk_burn", {}))
        assert desk.seen[1:] == [("write", {"note": "y"})]


async def test_workspace_tools_that_a_client_replaces_are_not_found(tmp_path: Path) -> None:
    async with opened(tmp_path, Desk("workspace", tool("read_file"), tool("list_dir"))) as harness:
        client = Client(harness, await harness.agent("a"))
        without = {"x-toolcrib-without": "read_file,write_file"}
        asked: Json = {"name": "crib_find", "arguments": {"query": "file dir", "server": "workspace"}}
        everything = text_of((await client.ask("tools/call", **asked)).json["result"])
        rest = text_of((await client.ask("tools/call", without, **asked)).json["result"])
        assert "workspace_read_file" in everything
        assert "workspace_read_file" not in rest
        assert "workspace_list_dir" in rest
        listed = (await client.ask("tools/list", {**without, "x-toolcrib-listing": "search"})).json["result"]["tools"]
        assert "workspace (1)" in listed[0]["description"]
