"""Which listing mode a request gets, and what each mode lists."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from toolcrib.catalog.offers import OfferCatalog
from toolcrib.catalog.snapshot import Catalog
from toolcrib.config.model import ListingMode, ListingSettings, NameStyle
from toolcrib.identity.principal import Principal
from toolcrib.listing import ListingCache, cache, wanted_mode
from toolcrib.listing.gateway_tools import NAMED_GATEWAY_TOOLS, gateway_tool_definitions, server_lines
from toolcrib.listing.modes import DEFERRING_CLIENTS, FULL_UP_TO, THIN_UP_TO, resolve_mode
from toolcrib.policy import BUILTIN, Permission, Profile, Rule, Verdict

pytestmark = pytest.mark.req("KSI-4")

AUTO, FULL, THIN, SEARCH, HANDSHAKE = ListingMode


def definition(name: str, words: int = 40) -> bytes:
    properties = {f"field_{n}": {"type": "string", "description": "a word " * words} for n in range(3)}
    schema = {"type": "object", "properties": properties, "required": ["field_0"]}
    return json.dumps(
        {"name": name, "description": f"Does {name}. " + "More text. " * words, "inputSchema": schema}
    ).encode()


def catalog_of(version: int = 1, **servers: int) -> Catalog:
    listed = {name: tuple(definition(f"tool_{n}") for n in range(count)) for name, count in servers.items()}
    return Catalog.build(listed, version=version)


def principal(*denied: str, name: str = "a") -> Principal:
    rules = [Rule(effect=Verdict.ALLOW, tools="*:*", holder="p")]
    rules += [Rule(effect=Verdict.DENY, tools=tools, holder="p") for tools in denied]
    return Principal.fixed(name, Permission(Profile(name="p", rules=tuple(rules)), agent=name))


@pytest.mark.parametrize(
    ("own", "requested", "client", "expected"),
    [
        (None, None, "other", AUTO),
        (None, None, "codex", SEARCH),
        (None, None, "Codex-mcp-client", SEARCH),
        (THIN, None, "codex", THIN),
        (THIN, FULL, "codex", FULL),
    ],
)
def test_the_narrowest_setting_wins(
    own: ListingMode | None, requested: ListingMode | None, client: str, expected: ListingMode
) -> None:
    settings = ListingSettings(clients={"codex": SEARCH})
    assert wanted_mode(own, settings, client=client, requested=requested) is expected


@pytest.mark.parametrize(
    ("mode", "client", "tokens", "expected"),
    [
        (AUTO, "", FULL_UP_TO, FULL),
        (AUTO, "", FULL_UP_TO + 1, THIN),
        (AUTO, "", THIN_UP_TO, THIN),
        (AUTO, "", THIN_UP_TO + 1, SEARCH),
        *((AUTO, f"{client.title()} 2.1", 10**6, FULL) for client in DEFERRING_CLIENTS),
        (SEARCH, "claude-code", 1, SEARCH),
        (THIN, "claude-code", 10**6, THIN),
        (HANDSHAKE, "", 10**6, FULL),
    ],
)
def test_auto_depends_on_the_size_and_on_the_client(
    mode: ListingMode, client: str, tokens: int, expected: ListingMode
) -> None:
    assert resolve_mode(mode, client=client, tokens=tokens) is expected


async def listed(catalog: Catalog, who: Principal, mode: ListingMode, **given: Any) -> tuple[list[dict[str, Any]], str]:
    found = await ListingCache(NameStyle.SERVER).listed(catalog, who, mode, **given)
    return json.loads(found.array), found.mode


async def test_each_mode_lists_what_it_promises() -> None:
    catalog = catalog_of(files=3, git=2)
    full, _ = await listed(catalog, principal(), FULL)
    thin, _ = await listed(catalog, principal(), THIN)
    search, _ = await listed(catalog, principal(), SEARCH)
    tools = [f"files_tool_{n}" for n in range(3)] + [f"git_tool_{n}" for n in range(2)]
    assert [one["name"] for one in full] == [*tools, "crib_result"]
    assert [one["name"] for one in thin] == [*tools, "crib_batch", "crib_result"]
    assert [one["name"] for one in search] == [
        f"crib_{name}" for name in ("find", "describe", "call", "batch", "result")
    ]
    assert full[0] == {**json.loads(definition("tool_0")), "name": "files_tool_0"}
    assert thin[0]["inputSchema"]["properties"].keys() == full[0]["inputSchema"]["properties"].keys()
    assert len(json.dumps(thin)) < len(json.dumps(full)) / 2
    assert search[0]["description"].splitlines()[1:] == ["files (3): tool", "git (2): tool"]


@pytest.mark.parametrize(("tools", "expected"), [(2, FULL), (20, THIN), (130, SEARCH)])
async def test_auto_looks_at_the_permitted_tools(tools: int, expected: ListingMode) -> None:
    catalog = catalog_of(files=tools, huge=150)
    assert (await listed(catalog, principal("huge:*"), AUTO))[1] == expected
    assert (await listed(catalog, principal("huge:*"), AUTO, client="claude-code"))[1] == FULL


@pytest.mark.parametrize("mode", [FULL, THIN, SEARCH])
async def test_a_list_has_the_same_bytes_for_equal_permissions_and_after_a_restart(mode: ListingMode) -> None:
    made = set()
    for name in ("a", "b"):
        cache = ListingCache(NameStyle.SERVER)
        for version in (1, 2):
            made.add((await cache.listed(catalog_of(version, files=5, git=5), principal(name=name), mode)).array)
    assert len(made) == 1


@pytest.mark.parametrize("mode", [FULL, THIN, SEARCH])
async def test_no_mode_names_a_tool_or_a_server_that_is_denied(mode: ListingMode) -> None:
    cache, catalog = ListingCache(NameStyle.SERVER), catalog_of(files=2, secret=2)
    assert (b"secret" in (await cache.listed(catalog, principal(), mode)).array) is True
    assert b"secret" not in (await cache.listed(catalog, principal("secret:*"), mode)).array


async def test_a_permission_that_changes_while_a_list_is_made_counts() -> None:
    permissions = iter([principal().permission(), principal("secret:*").permission()])
    last = [next(permissions)]

    def current() -> Permission:
        now = last[0]
        last[0] = next(permissions, now)
        return now

    changing = Principal(name="a", permission=current)
    made = await ListingCache(NameStyle.SERVER).listed(catalog_of(files=2, secret=2), changing, THIN)
    assert b"secret" not in made.array


@pytest.mark.parametrize("mode", [FULL, THIN, SEARCH])
async def test_an_agent_without_tools_gets_an_empty_list(mode: ListingMode) -> None:
    nobody = Principal.fixed("a", Permission(BUILTIN["nothing"], agent="a"))
    assert await listed(catalog_of(files=2), nobody, mode) == ([], mode)


async def test_without_long_results_their_tool_is_not_listed() -> None:
    found, _ = await listed(catalog_of(files=1), principal(), FULL, results=False)
    assert [one["name"] for one in found] == ["files_tool_0"]


@pytest.mark.parametrize("style", list(NameStyle))
def test_no_server_can_take_the_name_of_a_gateway_tool(style: NameStyle) -> None:
    raw = tuple(json.dumps({"name": name}).encode() for name in ("find", "crib_find", "mcp_crib_call", "crib_batch"))
    catalog = Catalog.build({"files": raw, "mcp": raw}, version=1)
    assert not NAMED_GATEWAY_TOOLS.keys() & catalog.by_public(style).keys()


def test_a_servers_line_says_what_it_is_about() -> None:
    raw = tuple(
        json.dumps({"name": name}).encode() for name in ("create_issue", "listIssues", "get_issue", "add_label")
    )
    catalog = Catalog.build({"hub": raw}, version=1)
    assert server_lines(catalog.tools, OfferCatalog()) == ["hub (4): issue, issues, label"]


async def test_agents_that_ask_at_the_same_time_share_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    def counting(*args: Any, **given: Any) -> list[bytes]:
        made.append(args)
        return gateway_tool_definitions(*args, **given)

    monkeypatch.setattr(cache, "gateway_tool_definitions", counting)
    listings, catalog = ListingCache(NameStyle.SERVER), catalog_of(files=3)
    lists = await asyncio.gather(*(listings.listed(catalog, principal(), THIN) for _ in range(20)))
    assert len(made) == len(set(lists)) == 1
