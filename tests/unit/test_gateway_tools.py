"""The gateway's own tools in-process: what they show, what they call, and that they are never a way around a rule."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from parts.desk import TEXT, Client, Desk, Json, Rendezvous, rows, said, text_of, tool
from parts.gateway_harness import LIMIT, Exchange, GatewayHarness, opened
from parts.waiting import until
from toolcrib.config.model import ListingMode
from toolcrib.policy import profile_from, rule_from

ERAS = ("modern", "legacy")
every_era = pytest.mark.parametrize("era", ERAS)

DESK = (
    tool("read", "Reads a note.", reads=True, required=("note",), note=TEXT),
    tool("look", "Looks at a drawer.", reads=True, drawer=TEXT),
    tool("write", "Writes a note.", required=("note",), note=TEXT, mode={"enum": ["append", "replace"]}),
    tool("burn", "Burns every note."),
    {"name": "ask", "inputSchema": {"type": "object"}},
)
VAULT = (tool("open_vault", "Opens the vault of notes."), tool("count_coins", "Counts coins.", reads=True))


class Scene:
    def __init__(self, harness: GatewayHarness, desk: Desk, vault: Desk) -> None:
        self.harness, self.desk, self.vault = harness, desk, vault
        self.agents = harness.crib.services.agents
        self.home = harness.crib.projects.home

    async def client(self, agent: str, era: str = "modern", *, name: str = "", **more: Any) -> Client:
        return Client(self.harness, await self.harness.agent(agent, **more), era, name=name)

    async def rule(self, agent: str, **data: Any) -> None:
        await self.agents.add_rule(agent, rule_from(data, where="test"))

    def mode(self, agent: str) -> str:
        (session,) = (one for one in self.harness.crib.services.sessions if one.agent == agent)
        return session.mode


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    desk, vault = Desk("desk", *DESK), Desk("vault", *VAULT)
    async with opened(tmp_path, desk, vault) as harness:
        yield Scene(harness, desk, vault)


def mode_of(names: list[str]) -> str:
    if "crib_find" in names:
        return "search"
    return "thin" if "crib_batch" in names else "full"


def configure(folder: Path, **settings: Any) -> None:
    (folder / "t").mkdir(mode=0o700, exist_ok=True)
    (folder / "t" / "config.json").write_text(json.dumps(settings))


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


@pytest.mark.parametrize(
    "arguments",
    [
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
    ],
    ids=str,
)
@every_era
async def test_a_search_with_wrong_arguments_is_an_error_for_the_model(scene: Scene, era: str, arguments: Json) -> None:
    client = await scene.client("a", era)
    answer = await client.call("crib_find", **arguments)
    assert answer["isError"] is True
    assert len(text_of(answer)) < 500
    assert (await rows(scene.harness, "a"))[-1]["outcome"] == "invalid"


@pytest.mark.parametrize(
    "query",
    [
        "",
        " ",
        "\x00\x1b[2J\r\n",
        "é" * 10,
        "note " * 100_000,
        "n" * 500_000,
        "(((((" * 1000,
        "{servers}",
        "\u202e note",
    ],
    ids=lambda query: query[:6].encode().hex(),
)
async def test_hostile_queries_get_an_ordinary_answer(scene: Scene, query: str) -> None:
    answer = await (await scene.client("a")).call("crib_find", query=query)
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
RESULTS: dict[str, Json] = {
    "text": said("hello"),
    "failed": said("no", isError=True),
    "structured": said("{}", structuredContent={"a": [1, 2.0, 12345678901234567890123]}),
    "picture": {"content": [PICTURE, {"type": "text", "text": "a picture"}]},
    "with _meta": said("x", _meta={"com.example/a": 1}),
}


@every_era
@pytest.mark.parametrize("result", RESULTS.values(), ids=RESULTS)
async def test_a_call_through_crib_call_is_the_direct_call(scene: Scene, era: str, result: Json) -> None:
    scene.desk.answers["write"] = lambda _: result
    client, arguments = await scene.client("a", era), {"note": "é", "mode": "append"}
    direct = await client.call("desk_write", **arguments)
    assert await client.call("crib_call", tool="desk_write", arguments=arguments) == direct
    assert await client.call("crib_call", tool="desk:write", arguments=arguments) == direct
    assert scene.desk.seen == [("write", arguments)] * 3
    kept = ("kind", "tool", "server", "arguments", "decision", "rule", "outcome", "mode", "size", "conversation")
    first, *others = [
        [{key: row[key] for key in kept} for row in pair] for pair in _pairs(await rows(scene.harness, "a"))
    ]
    assert [one["kind"] for one in first] == ["intent", "outcome"]
    assert first[0]["tool"] == "desk:write"
    assert others == [first, first]


def _pairs(found: list[Json]) -> list[list[Json]]:
    return [found[at : at + 2] for at in range(0, len(found), 2)]


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


async def _direct(client: Client, name: str, arguments: Any) -> Json:
    answer: Json = (await client.ask("tools/call", name=name, arguments=arguments)).json["result"]
    return answer


@every_era
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"tool": "desk_wrte"}, "Did you mean desk_write"),
        ({"tool": "crib_call", "arguments": {"tool": "desk_burn"}}, "crib_call does not call itself"),
        ({"tool": "crib:call"}, "crib_call does not call itself"),
        ({"tool": 7}, '{"tool": "NAME"'),
        ({}, '{"tool": "NAME"'),
        ({"tool": "desk_read", "args": {}}, '{"tool": "NAME"'),
        ({"tool": "x" * 100_000}, "There is no tool"),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_a_wrong_crib_call_tells_the_model_what_to_do(
    scene: Scene, era: str, arguments: Json, expected: str
) -> None:
    answer = await (await scene.client("a", era)).call("crib_call", **arguments)
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


# -- crib_batch ----------------------------------------------------------------------------------------------------


@every_era
async def test_reads_overlap_and_changes_run_alone_and_in_order(scene: Scene, era: str) -> None:
    scene.desk.answers["read"] = scene.desk.answers["look"] = Rendezvous(2)
    order: list[str] = []

    async def write(given: Json) -> Json:
        order.append(f"+{given['note']}")
        await asyncio.sleep(0)
        order.append(f"-{given['note']}")
        return said("written")

    scene.desk.answers["write"] = write
    client = await scene.client("a", era)
    answer = await client.batch(
        ("desk_read", {"note": "1"}),
        ("desk_look", {}),
        ("desk_write", {"note": "a"}),
        ("desk_write", {"note": "b"}),
        ("desk_read", {"note": "2"}),
        ("desk_look", {}),
    )
    assert answer["isError"] is False
    assert order == ["+a", "-a", "+b", "-b"]
    assert [block["text"] for block in answer["content"]][0::2] == [
        "# 0 desk_read",
        "# 1 desk_look",
        "# 2 desk_write",
        "# 3 desk_write",
        "# 4 desk_read",
        "# 5 desk_look",
    ]
    assert sorted(scene.desk.names[:2]) == ["look", "read"]
    assert scene.desk.names[2:4] == ["write", "write"]


async def test_each_call_of_a_batch_is_decided_and_recorded_on_its_own(scene: Scene) -> None:
    client = await scene.client("a")
    await scene.rule("a", deny="desk:burn")
    await scene.rule("a", ask="desk:look")
    scene.desk.answers["read"] = lambda _: said("broken", isError=True)
    approvals = scene.harness.crib.services.approvals
    calling = asyncio.create_task(
        client.batch(
            ("desk_write", {"note": "x"}),
            ("desk_burn", {}),
            ("desk_look", {"drawer": "top"}),
            ("desk_read", {"note": "y"}),
            ("desk_wrte", {}),
            ("desk_write", {}),
            ("crib_batch", {"calls": []}),
        )
    )
    (waiting,) = await approvals.next(LIMIT)
    assert (waiting.tool, json.loads(waiting.arguments)) == ("desk:look", {"drawer": "top"})
    approvals.answer(waiting.id, approved=True)
    answer = await calling
    assert answer["isError"] is False, "some succeeded"
    texts = [block["text"] for block in answer["content"]]
    heads = [text for text in texts if text.startswith("# ")]
    assert heads == [
        "# 0 desk_write",
        "# 1 desk_burn failed",
        "# 2 desk_look",
        "# 3 desk_read failed",
        "# 4 desk_wrte failed",
        "# 5 desk_write failed",
        "# 6 crib_batch failed",
    ]
    assert "may not use desk:burn" in texts[texts.index("# 1 desk_burn failed") + 1]
    assert "desk_write" in texts[texts.index("# 4 desk_wrte failed") + 1]
    assert "append" in texts[texts.index("# 5 desk_write failed") + 1], "the schema"
    found = [(row["kind"], row["tool"], row["outcome"]) for row in await rows(scene.harness, "a")]
    assert found[:3] == [
        ("intent", "desk:write", ""),
        ("outcome", "desk:write", "ok"),
        ("outcome", "desk:burn", "denied"),
    ]
    assert sorted(found[3:7]) == [
        ("intent", "desk:look", ""),
        ("intent", "desk:read", ""),
        ("outcome", "desk:look", "ok"),
        ("outcome", "desk:read", "tool_error"),
    ]
    assert found[7:] == [
        ("outcome", "desk_wrte", "unknown"),
        ("outcome", "desk:write", "invalid"),
        ("outcome", "crib_batch", "unknown"),
        ("outcome", "crib:batch", "ok"),
    ]


@every_era
async def test_results_feed_later_calls_by_path(scene: Scene, era: str) -> None:
    scene.desk.answers["read"] = lambda given: said(
        "", structuredContent={"items": [{"id": "a"}, {"id": "b"}], "given": given["note"]}
    )
    scene.desk.answers["look"] = lambda _: said('{"drawer": "from text"}')
    client = await scene.client("a", era)
    answer = await client.batch(
        ("desk_read", {"note": "first"}),
        ("desk_look", {}),
        ("desk_write", {"note": {"$from": 0, "path": "$.items[1].id"}}),
        ("desk_write", {"note": {"$from": 1, "path": "drawer"}}),
        ("desk_burn", {"all": [{"$from": 0, "path": "$.items[*].id"}], "text": {"$from": 2}}),
        ("desk_write", {"note": {"$from": 0, "path": "$.nothing"}}),
        ("desk_write", {"note": {"$from": 5}}),
    )
    assert scene.desk.seen[2:] == [
        ("write", {"note": "b"}),
        ("write", {"note": "from text"}),
        ("burn", {"all": [["a", "b"]], "text": ["write", {"note": "b"}]}),
    ]
    texts = [block["text"] for block in answer["content"]]
    assert "There is nothing at $.nothing" in texts[texts.index("# 5 desk_write failed") + 1]
    assert "Call 5, whose result it takes, failed" in texts[texts.index("# 6 desk_write failed") + 1]


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ([], "1 to 32"),
        ([{"tool": "desk_burn"}] * 33, "1 to 32"),
        ("desk_burn", "calls"),
        ([{"tool": "desk_burn", "args": {}}], "args"),
        ([{"arguments": {}}], "tool"),
        ([{"tool": "desk_burn", "arguments": []}], "arguments"),
        ([{"tool": "desk_burn"}, {"tool": "desk_write", "arguments": {"note": {"$from": 1}}}], "earlier call"),
        ([{"tool": "desk_burn"}, {"tool": "desk_write", "arguments": {"note": {"$from": 2}}}], "earlier call"),
        ([{"tool": "desk_burn"}, {"tool": "desk_write", "arguments": {"note": {"$from": -1}}}], "earlier call"),
        ([{"tool": "desk_burn"}, {"tool": "desk_write", "arguments": {"note": {"$from": True}}}], "earlier call"),
        ([{"tool": "desk_burn"}, {"tool": "desk_write", "arguments": {"note": {"$from": "0"}}}], "earlier call"),
    ],
    ids=lambda value: str(value)[:50],
)
async def test_a_wrong_batch_runs_nothing(scene: Scene, calls: Any, expected: str) -> None:
    answer = await (await scene.client("a")).call("crib_batch", calls=calls)
    assert answer["isError"] is True
    assert expected in text_of(answer)
    assert len(text_of(answer)) < 600
    assert scene.desk.seen == []


async def test_a_batch_cannot_multiply_a_result(scene: Scene) -> None:
    scene.desk.answers["look"] = lambda _: said("x" * 100_000)
    client = await scene.client("a")
    answer = await client.batch(("desk_look", {}), ("desk_burn", {"all": [{"$from": 0}] * 50}))
    assert scene.desk.names == ["look"]
    assert "would take more than 1,048,576 bytes" in text_of(answer)
    refused = await client.batch(("desk_look", {}), ("desk_burn", {"all": [{"$from": 0, "path": "$[*].x"}] * 65}))
    assert "at most 64" in text_of(refused)
    assert scene.desk.names == ["look"]


async def test_a_cancelled_batch_starts_no_further_call(scene: Scene) -> None:
    client = await scene.client("a")
    calls = [{"tool": "slow_wait"}, {"tool": "desk_burn"}]
    body, headers = await client.request("tools/call", name="crib_batch", arguments={"calls": calls})
    exchange, task = scene.harness.begin(body, client.token, headers)
    await asyncio.wait_for(scene.harness.slow.called.wait(), LIMIT)
    exchange.leave()
    await asyncio.wait_for(task, LIMIT)
    assert scene.desk.seen == []
    assert [(row["tool"], row["outcome"]) for row in await rows(scene.harness, "a")] == [
        ("slow:wait", ""),
        ("slow:wait", "cancelled"),
        ("crib:batch", "cancelled"),
    ]


async def test_a_revocation_in_the_middle_of_a_batch(scene: Scene) -> None:
    client = await scene.client("a")
    calling = asyncio.create_task(
        client.batch(("desk_write", {"note": "x"}), ("slow_wait", {}), ("slow_where", {}), ("desk_burn", {}))
    )
    await asyncio.wait_for(scene.harness.slow.called.wait(), LIMIT)
    await scene.rule("a", deny="slow:*")
    answer = await asyncio.wait_for(calling, LIMIT)
    texts = [block["text"] for block in answer["content"]]
    assert "may have run" in texts[texts.index("# 1 slow_wait failed") + 1]
    assert "may have run" not in texts[texts.index("# 2 slow_where failed") + 1]
    assert scene.desk.names == ["write", "burn"]
    found = [(row["tool"], row["outcome"]) for row in await rows(scene.harness, "a") if row["kind"] == "outcome"]
    assert found[1:3] == [("slow:wait", "denied"), ("slow:where", "denied")]


@pytest.mark.parametrize("revoke", ["remove", "rotate"])
async def test_an_agent_that_ends_in_the_middle_of_a_batch_makes_no_further_call(scene: Scene, revoke: str) -> None:
    client = await scene.client("a")
    calls = [{"tool": "slow_wait"}, {"tool": "desk_burn"}]
    body, headers = await client.request("tools/call", name="crib_batch", arguments={"calls": calls})
    exchange, task = scene.harness.begin(body, client.token, headers)
    await asyncio.wait_for(scene.harness.slow.called.wait(), LIMIT)
    await getattr(scene.agents, revoke)("a")
    await asyncio.wait_for(task, LIMIT)
    assert exchange.json["error"]["message"] == "The session ended during the request."
    assert scene.desk.seen == []


async def test_an_agent_that_expires_in_the_middle_of_a_batch_gets_its_token_refused(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await scene.client("a")

    def expire(_: Json) -> Json:
        monkeypatch.setattr(scene.agents, "current", lambda agent: None)
        return said("x")

    scene.desk.answers["write"] = expire
    body, headers = await client.request(
        "tools/call",
        name="crib_batch",
        arguments={"calls": [{"tool": "desk_write", "arguments": {"note": "x"}}, {"tool": "desk_burn"}]},
    )
    exchange = await scene.harness.ask(body, client.token, headers)
    assert exchange.status == 401
    assert exchange.json["error"]["message"].startswith("This token is unknown, or")
    assert scene.desk.names == ["write"]


async def test_equal_calls_of_a_batch_each_run(scene: Scene) -> None:
    answer = await (await scene.client("a")).batch(*[("desk_write", {"note": "x"})] * 3)
    assert scene.desk.names == ["write"] * 3
    assert text_of(answer).count("# ") == 3
