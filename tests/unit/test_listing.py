"""Listings are cached per catalog version and permission, and are the same bytes until one of them changes."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from toolcrib.catalog.snapshot import Catalog
from toolcrib.config.model import NameStyle
from toolcrib.core.provider import ToolProvider
from toolcrib.identity.principal import OWNER
from toolcrib.listing import ListingCache
from toolcrib.listing import cache as listing
from toolcrib.policy import BUILTIN, Permission, profile_from

pytestmark = pytest.mark.req("ENG-3", "ENG-10")

A = b'{"name":"a","inputSchema":{"type":"object"},"x-own":[1.0,null]}'
B = b'{"name":"b", "description":"\\u00e9"}'


def catalog(version: int, *definitions: bytes) -> Catalog:
    return Catalog.build({"files": definitions}, version=version)


def names(listing_: bytes) -> list[str]:
    return [tool["name"] for tool in json.loads(listing_)]


def test_a_listing_is_cached_until_the_catalog_changes() -> None:
    listings = ListingCache(NameStyle.SERVER)
    known = catalog(1, A, B)
    first = listings.tools(known, OWNER.permission())
    assert listings.tools(known, OWNER.permission()) is first
    assert names(listings.tools(catalog(2, A), OWNER.permission())) == ["files_a"]
    assert ListingCache(NameStyle.SERVER).tools(catalog(9, A, B), OWNER.permission()) == first
    assert listings.tools(Catalog.build({}, version=3), OWNER.permission()) == b"[]"


@pytest.mark.req("BNS-4")
def test_workspace_tools_that_a_client_has_itself_are_left_out_of_its_list_only() -> None:
    listings, owner = ListingCache(NameStyle.SERVER), OWNER.permission()
    known = Catalog.build({"workspace": (A, B), "files": (A,)}, version=1)
    whole = listings.tools(known, owner)
    assert names(listings.tools(known, owner, without=frozenset({"a", "c"}))) == ["files_a", "workspace_b"]
    assert listings.tools(known, owner) is whole


@pytest.mark.parametrize(
    ("style", "expected"),
    [
        (NameStyle.SERVER, ["files_a", "files_b"]),
        (NameStyle.MCP, ["mcp_files_a", "mcp_files_b"]),
        (NameStyle.PLAIN, ["a", "b"]),
    ],
)
def test_only_the_names_differ_from_the_servers_definitions(style: NameStyle, expected: list[str]) -> None:
    listed = ListingCache(style).tools(catalog(1, A, B), OWNER.permission())
    assert names(listed) == expected
    first = json.loads(listed, parse_float=str)[0]
    assert first == {"name": expected[0], "inputSchema": {"type": "object"}, "x-own": ["1.0", None]}


def may(*rules: dict[str, Any]) -> Permission:
    profile = profile_from("mine", {"rules": list(rules)})
    return Permission(profile, agent="x", workdir=Path("/nowhere"))


@pytest.mark.req("KSI-5")
@pytest.mark.parametrize(
    ("rules", "shown"),
    [
        ([], []),
        ([{"allow": "files:a"}], ["files_a"]),
        ([{"ask": "files:a"}], ["files_a"]),
        ([{"allow": "files:*", "when": {"path": {"under": "src"}}}], ["files_a", "files_b"]),
        ([{"allow": "*"}, {"deny": "files:b"}], ["files_a"]),
        ([{"allow": "*"}, {"deny": "files:b", "when": {"path": {"under": "src"}}}], ["files_a", "files_b"]),
        ([{"allow": "*", "annotations": {"read_only": True}}], []),
    ],
)
def test_tools_are_listed_if_a_call_can_be_allowed(rules: list[dict[str, Any]], shown: list[str]) -> None:
    assert names(ListingCache(NameStyle.SERVER).tools(catalog(1, A, B), may(*rules))) == shown


@pytest.mark.req("KSI-5")
def test_a_newly_trusted_server_is_listed_again() -> None:
    reads = b'{"name":"r","annotations":{"readOnlyHint":true}}'
    reader = Permission(BUILTIN["read-only"], agent="x")
    listings = ListingCache(NameStyle.SERVER)
    before = Catalog.build({"files": (reads,)}, version=1)
    after = Catalog.build({"files": (reads,)}, version=2, previous=before, trusted=frozenset({"files"}))
    assert names(listings.tools(before, reader)) == []
    assert names(listings.tools(after, reader)) == ["files_r"]


def test_equal_permissions_share_a_listing_and_others_do_not() -> None:
    listings, known = ListingCache(NameStyle.SERVER), catalog(1, A, B)
    assert listings.tools(known, may({"allow": "files:a"})) is listings.tools(known, may({"allow": "files:a"}))
    assert listings.tools(known, may({"allow": "files:a"})) != listings.tools(known, may({"allow": "files:b"}))
    other = Permission(BUILTIN["owner"], agent="another")
    assert listings.tools(known, OWNER.permission()) is listings.tools(known, other)
    assert listings.tools(known, Permission(BUILTIN["nothing"])) == b"[]"
    assert names(listings.tools(known, OWNER.permission())) == ["files_a", "files_b"]


def test_the_number_of_cached_listings_is_limited() -> None:
    listings = ListingCache(NameStyle.SERVER)
    first = catalog(0, A)
    made = listings.tools(first, OWNER.permission())
    for version in range(1, listing._MAX_CACHED * 3):
        listings.tools(catalog(version, A), OWNER.permission())
        assert listings.tools(first, OWNER.permission()) is made
    assert len(listings._kept) == listing._MAX_CACHED


def test_the_size_of_cached_listings_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    listings = ListingCache(NameStyle.SERVER)
    size = len(listings.tools(catalog(0, A), OWNER.permission()))
    monkeypatch.setattr(listing, "_MAX_CACHED_BYTES", 3 * size)
    for version in range(1, 10):
        listings.tools(catalog(version, A), OWNER.permission())
    assert [version for version, *_ in listings._kept] == [7, 8, 9]
    large = catalog(10, A, B, *(f'{{"name":"t{number}"}}'.encode() for number in range(100)))
    assert listings.tools(large, OWNER.permission()) is listings.tools(large, OWNER.permission())
    assert [version for version, *_ in listings._kept] == [10]
    listings.tools(catalog(11, A), OWNER.permission())
    assert listings._size == size


def test_a_tool_that_runs_only_as_a_task_is_listed_as_one_that_can() -> None:
    def tool(name: str, support: str) -> bytes:
        return json.dumps({"name": name, "execution": {"taskSupport": support}}).encode()

    known = catalog(1, tool("now", "forbidden"), tool("either", "optional"), tool("later", "required"))
    listed = json.loads(ListingCache(NameStyle.SERVER).tools(known, OWNER.permission()))
    assert [one["execution"]["taskSupport"] for one in listed] == ["forbidden", "optional", "optional"]
    in_a_program = ToolProvider.tools(cast(Any, SimpleNamespace(catalog=known, _call_tool=None, all_known=True)))
    assert list(in_a_program.names) == ["now", "either", "later"]
    assert OWNER.permission().decide(known.find("files:later"), None).verdict == "allow"
