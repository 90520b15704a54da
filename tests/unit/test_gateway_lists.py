"""What lists, searches and results of one agent follow from: its permissions and settings of now, and nothing else."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from parts.desk import DESK, VAULT, Client, Desk, Scene, configure, rows, said, scene, text_of, tool
from parts.gateway_harness import LIMIT, opened
from parts.waiting import until
from toolcrib.core import tool_search
from toolcrib.gateway.large_results import RESULT_KEY
from toolcrib.identity.usage import TokenKind
from toolcrib.listing import search

__all__ = ["scene"]

pytestmark = pytest.mark.req("KSI-4", "KSI-9")

MODES = ("full", "thin", "search")
LINES = "".join(f"line {number}\n" for number in range(2000))


async def raw_lists(client: Client) -> dict[str, bytes]:
    """By mode, as sent."""
    return {mode: (await client.ask("tools/list", {"x-toolcrib-listing": mode})).text for mode in MODES}


async def test_no_request_changes_a_list_and_equal_agents_get_the_same_bytes(tmp_path: Path) -> None:
    async with opened(tmp_path, Desk("desk", *DESK)) as harness:
        a, b = [Client(harness, await harness.agent(name)) for name in "ab"]
        before = await raw_lists(a)
        assert len(set(before.values())) == len(MODES)
        for number in range(50):
            await a.call("crib_call", tool="desk_write", arguments={"note": str(number)})
            await a.call("crib_call", tool="desk_write", arguments={"note": number})
            await a.found("write a note")
        assert await raw_lists(a) == before
        assert await raw_lists(b) == before
        token = a.token
    async with opened(tmp_path, Desk("desk", *DESK)) as harness:
        assert await raw_lists(Client(harness, token)) == before
        stream = await listening(a := Client(harness, token))
        await harness.crib.services.favorites.recount()
        await until(partial(announced, stream, 1))
        after = await raw_lists(a)
        assert after["full"] == before["full"]
        names = [one["name"] for one in json.loads(after["search"])["result"]["tools"]]
        assert names == ["crib_find", "crib_describe", "crib_call", "crib_batch", "crib_result", "desk_write"]
        (more,) = (one for one in json.loads(after["thin"])["result"]["tools"] if one["name"] == "desk_write")
        (less,) = (one for one in json.loads(before["thin"])["result"]["tools"] if one["name"] == "desk_write")
        assert len(json.dumps(more)) > len(json.dumps(less)), "half of its calls had invalid arguments"
        await harness.crib.services.favorites.recount()
        assert await raw_lists(a) == after
        assert announced(stream, 1), "a count that changes nothing is not announced"


async def listening(client: Client) -> Any:
    body, headers = await client.request("subscriptions/listen", notifications={"toolsListChanged": True})
    stream, _ = client.harness.begin(body, client.token, headers)
    await stream.until(b"acknowledged")
    return stream


def announced(stream: Any, times: int) -> bool:
    return bool(stream.text.count(b"notifications/tools/list_changed") == times)


async def test_favorites_are_listed_thin_to_those_who_may_use_them_while_they_exist(scene: Scene) -> None:
    a, b = await scene.client("a"), await scene.client("b")
    await scene.rule("b", deny="vault:*")
    stream = await listening(a)
    await scene.harness.crib.services.favorites.add(["vault:open_vault", "desk:read"])
    await until(partial(announced, stream, 1))
    own = ["crib_find", "crib_describe", "crib_call", "crib_batch", "crib_result"]
    assert await a.names("search") == [*own, "vault_open_vault", "desk_read"]
    assert await b.names("search") == [*own, "desk_read"]
    thin = {one["name"]: one for one in await a.listed("thin")}
    assert [one for one in await a.listed("search") if one["name"] in thin and one["name"] not in own] == [
        thin["vault_open_vault"],
        thin["desk_read"],
    ]
    scene.vault.list_tools()
    scene.home.changed()
    assert await a.names("search") == [*own, "desk_read"]
    assert "vault" not in json.dumps(await a.listed("search"))
    scene.vault.list_tools(*VAULT)
    scene.home.changed()
    assert "vault_open_vault" in await a.names("search")


@pytest.mark.parametrize("style", ["plain", "mcp", "server"])
async def test_texts_name_tools_as_they_are_listed_and_all_listed_names_work(tmp_path: Path, style: str) -> None:
    configure(tmp_path, names=style, result_tokens=1000)
    desk = Desk("desk", *DESK)
    desk.answers["burn"] = lambda _: said(LINES)
    async with opened(tmp_path, desk) as harness:
        client = Client(harness, await harness.agent("a"))
        find, describe, call, batch, result = (await client.names("search"))[:5]
        about = (await client.listed("search"))[0]["description"]
        assert f"; {call} calls a hit" in about
        named = await client.names("full")
        hits = [line.partition("(")[0] for line in text_of(await client.call(find, query="note")).splitlines()]
        assert set(hits) <= set(named)
        assert json.loads(text_of(await client.call(describe, tools=[hits[0]])))["name"] == hits[0]
        burn = next(name for name in named if name.endswith("burn"))
        long = await client.call(call, tool=burn)
        assert f'{result}(id="{long["_meta"][RESULT_KEY]}"' in text_of(long)
        assert f'{result}(id="' in text_of(await client.call(batch, calls=[{"tool": burn}]))
        rest = await client.call(result, id=long["_meta"][RESULT_KEY], search="line 1999")
        assert "line 1999" in text_of(rest)
        wrong = text_of(await client.call(call, tool=burn + "x"))
        assert f"Did you mean {burn}" in wrong


async def test_long_results_through_gateway_tools_belong_to_the_tool_itself(tmp_path: Path) -> None:
    configure(tmp_path, result_tokens=1000)
    desk = Desk("desk", *DESK)
    desk.answers["look"] = desk.answers["read"] = lambda _: said(LINES)
    async with opened(tmp_path, desk) as harness:
        scene = Scene(harness, desk, desk)
        client, other = await scene.client("a"), await scene.client("b")
        look = (await client.call("crib_call", tool="desk_look"))["_meta"][RESULT_KEY]
        batch = await client.batch(("desk_look", {}), ("desk_read", {"note": "secret"}), ("desk_read", {"note": "x"}))
        in_batch = [text.partition('id="')[2].partition('"')[0] for text in text_of(batch).split("# ")[1:]]
        ids = [look, *in_batch]
        assert len(set(ids)) == 4
        assert len(json.dumps(batch)) < 12_000

        async def readable(reader: Client) -> list[bool]:
            return ["isError" not in await reader.call("crib_result", id=one, page=2) for one in ids]

        assert await readable(client) == [True] * 4
        assert await readable(other) == [False] * 4
        await scene.rule("a", deny="desk:read", when={"note": {"one_of": ["secret"]}})
        assert await readable(client) == [True, True, False, True]
        await scene.rule("a", deny="desk:look")
        assert await readable(client) == [False, False, False, True]
        desk.list_tools(*DESK[2:])
        scene.home.changed()
        assert await readable(client) == [False] * 4
        assert "line" not in text_of(await client.call("crib_result", id=look))


@pytest.mark.parametrize("calls", [1, 2, 32])
async def test_nothing_of_long_results_in_a_batch_is_lost(tmp_path: Path, calls: int) -> None:
    configure(tmp_path, result_tokens=3000)
    desk = Desk("desk", *DESK)
    desk.answers["look"] = lambda _: said(LINES)
    async with opened(tmp_path, desk) as harness:
        client = Client(harness, await harness.agent("a"))
        answer = await client.batch(*[("desk_look", {})] * calls)
        assert len(json.dumps(answer)) < max(9000, calls * 1000) * 1.1
        texts = [block["text"] for block in answer["content"][1::2]]
        for text in {texts[0], texts[-1]}:
            ((id, named),) = re.findall(r'crib_result\(id="(\w+)", page=(\d)\)', text)
            whole, page, more = text.partition("\n\n[Text")[0] if named == "2" else "", int(named), True
            while more:
                part = text_of(await client.call("crib_result", id=id, page=page))
                whole, page, more = whole + part.rpartition("\n[Page")[0], page + 1, "Next: page=" in part
            assert whole == LINES


@pytest.mark.parametrize("lines", [LINES, LINES * 20], ids=["counted by the audit log", "too long for it"])
async def test_the_tokens_of_a_long_result_are_those_that_the_agent_gets(tmp_path: Path, lines: str) -> None:
    configure(tmp_path, result_tokens=1000)
    desk = Desk("desk", *DESK)
    desk.answers["look"] = desk.answers["burn"] = lambda _: said(lines)
    async with opened(tmp_path, desk) as harness:
        client = Client(harness, await harness.agent("a"))
        for name in ("desk_look", "desk_burn"):
            await client.call("crib_call", tool=name)
        (session,) = (one for one in harness.crib.services.sessions if one.agent == "a")
        await until(lambda: 600 < session.usage.tokens.get(TokenKind.RESULTS, 0) < 3000)


async def test_definitions_that_are_too_long_for_the_client_come_in_several_answers(tmp_path: Path) -> None:
    desk = Desk("desk", *(tool(f"t{number}", "A long text. " * 200) for number in range(8)))
    async with opened(tmp_path, desk) as harness:
        token = await harness.agent("a")
        names = [f"desk_t{number}" for number in range(8)]
        everything = text_of(await Client(harness, token).call("crib_describe", tools=names)).splitlines()
        codex = Client(harness, token, name="codex-mcp-client")
        left, found = names, []
        while left:
            *found[len(found) :], last = text_of(await codex.call("crib_describe", tools=left)).splitlines()
            _, asks, rest = last.partition("Ask again for ")
            found += [] if asks else [last]
            left = rest.removesuffix(".").split(", ") if asks else []
        assert found == everything


async def test_without_a_limit_nothing_is_shortened_and_crib_result_is_not_listed(tmp_path: Path) -> None:
    configure(tmp_path, result_tokens="off")
    desk = Desk("desk", *DESK)
    desk.answers["look"] = lambda _: said(LINES)
    async with opened(tmp_path, desk) as harness:
        client = Client(harness, await harness.agent("a"))
        for mode in MODES:
            assert "crib_result" not in await client.names(mode)
        assert text_of(await client.call("crib_call", tool="desk_look")) == LINES
        assert (await client.batch(("desk_look", {})))["content"][1]["text"] == LINES


async def test_a_batch_takes_parts_of_long_results_whole(tmp_path: Path) -> None:
    configure(tmp_path, result_tokens=1000)
    desk = Desk("desk", *DESK)
    desk.answers["look"] = lambda _: said("", structuredContent={"lines": LINES.splitlines(), "text": LINES})
    async with opened(tmp_path, desk) as harness:
        client = Client(harness, await harness.agent("a"))
        await client.batch(
            ("desk_look", {}),
            ("desk_write", {"note": {"$from": 0, "path": "$.lines[1999]"}}),
            ("desk_write", {"note": {"$from": 0, "path": "$.text"}}),
        )
        assert desk.seen[1:] == [("write", {"note": "line 1999"}), ("write", {"note": LINES})]


REVOKED = "open the vault of notes, count coins"


async def leaks(client: Client) -> list[str]:
    """Everything that the gateway says to an agent that asks in every way."""
    said = [(await client.ask("tools/list", {"x-toolcrib-listing": mode})).text.decode() for mode in MODES]
    for arguments in ({"query": REVOKED, "limit": 20}, {"query": "zzz"}, {"query": "vaul", "server": "desk"}):
        said.append(json.dumps(await client.call("crib_find", **arguments)))
    near = ["vault_open_vaul", "open_vault", "vault_count_coin", "vault:open_vaul"]
    said.append(json.dumps(await client.call("crib_describe", tools=near)))
    said.append(json.dumps(await client.batch(*((name, {}) for name in near))))
    for name in near:
        said.append(json.dumps(await client.call("crib_call", tool=name)))
        said.append((await client.ask("tools/call", name=name, arguments={})).text.decode())
    return said


def names_of_vault(texts: list[str]) -> set[str]:
    """Names of its tools that are more than an echo."""
    asked = {"vault_open_vaul", "vault_count_coin", "vault:open_vaul"}
    text = " ".join(texts)
    for one in sorted(asked, key=len, reverse=True):
        text = text.replace(f'{one}\\"', "").replace(f'{one}"', "").replace(f"{one} failed", "")
    return {one for one in ("open_vault(", "vault_open_vault", "count_coins", "Counts coins", "vault (") if one in text}


async def test_two_agents_never_see_each_others_tools(scene: Scene) -> None:
    a, b = await scene.client("a"), await scene.client("b")
    await scene.rule("b", deny="vault:*")
    assert names_of_vault(await leaks(a)) >= {"vault_open_vault", "count_coins"}
    for _ in range(2):
        found, hidden = await asyncio.gather(leaks(a), leaks(b))
        assert names_of_vault(found)
        assert names_of_vault(hidden) == set()


async def deny(scene: Scene) -> None:
    await scene.rule("a", deny="vault:*")


async def remove(scene: Scene) -> None:
    scene.vault.list_tools()
    scene.home.changed()


async def other_profile(scene: Scene) -> None:
    await scene.rule("a", deny="*:*_vault")
    await scene.rule("a", deny="*:count_*")


@pytest.mark.parametrize("revoke", [deny, remove, other_profile], ids=lambda one: one.__name__)
async def test_after_a_revocation_nothing_of_a_tool_is_left(scene: Scene, revoke: Any) -> None:
    client = await scene.client("a")
    await scene.harness.crib.services.favorites.add(["vault:open_vault"])
    assert names_of_vault(await leaks(client)) >= {"vault_open_vault", "count_coins", "vault ("}
    await revoke(scene)
    before = len(scene.vault.seen)
    assert names_of_vault(await leaks(client)) == set()
    assert len(scene.vault.seen) == before


async def test_searches_wait_for_the_first_index_and_others_do_not(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, build, go_on, builds = await scene.client("a"), search.SearchIndex.build, threading.Event(), []

    def slowly(*args: Any, **more: Any) -> Any:
        builds.append(threading.current_thread())
        assert go_on.wait(LIMIT)
        return build(*args, **more)

    monkeypatch.setattr(tool_search.SearchIndex, "build", slowly)
    searching = [asyncio.create_task(client.found("open the vault")) for _ in range(3)]
    await until(lambda: builds)
    assert "isError" not in await client.call("desk_burn")
    scene.vault.list_tools()
    scene.home.changed()
    go_on.set()
    for answer in await asyncio.gather(*searching):
        assert "vault" not in answer
        assert "desk" in answer
    assert threading.main_thread() not in builds


async def test_a_new_tool_is_found_at_once(scene: Scene) -> None:
    client = await scene.client("a")
    assert "polish" not in await client.found("polish silver")
    scene.vault.list_tools(tool("polish_silver", "Polishes silver."))
    scene.home.changed()
    assert "vault_polish_silver() - Polishes silver." in await client.found("polish silver")


async def test_the_rank_of_a_called_hit_is_counted_with_the_tokens(scene: Scene) -> None:
    client = await scene.client("a", listing=None)
    await client.names("search")
    hits = [line.partition("(")[0] for line in (await client.found("note")).splitlines()]
    await client.call("crib_describe", tools=hits[:2])
    called = hits.index("desk_write")
    await client.call("crib_call", tool="desk_write", arguments={"note": 1})
    await client.call("crib_call", tool="desk_nothing")
    found = await rows(scene.harness, "a")
    assert {row["mode"] for row in found} == {"search"}
    assert [(row["tool"], row["outcome"], row["server"]) for row in found] == [
        ("crib:find", "ok", "crib"),
        ("crib:describe", "ok", "crib"),
        ("desk:write", "invalid", "desk"),
        ("desk_nothing", "unknown", ""),
    ]
    (session,) = (one for one in scene.harness.crib.services.sessions if one.agent == "a")
    assert session.usage.ranks == {called + 1: 1}
    assert session.usage.answers == {"searches": 1, "descriptions": 1, "repairs": 2}
    await until(lambda: {"lists", "searches", "descriptions", "repairs"} <= session.usage.tokens.keys())
