"""A listing is made once per catalog and caller, and is the same bytes until one of them changes."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from toolcrib import listing
from toolcrib.catalog.snapshot import Catalog
from toolcrib.config.model import NameStyle
from toolcrib.core.provider import ToolProvider
from toolcrib.identity.principal import OWNER
from toolcrib.listing import ListingCache
from toolcrib.policy import BUILTIN, Permission, profile_from

pytestmark = pytest.mark.req("ENG-3", "ENG-10")

A = b'{"name":"a","inputSchema":{"type":"object"},"x-own":[1.0,null]}'
B = b'{"name":"b", "description":"\\u00e9"}'


def catalog(version: int, *definitions: bytes) -> Catalog:
    return Catalog.build({"files": definitions}, version=version)


def test_a_listing_asked_for_again_is_the_very_same_object() -> None:
    listings = ListingCache(NameStyle.SERVER)
    known = catalog(1, A, B)
    assert listings.tools(known, OWNER.permission()) is listings.tools(known, OWNER.permission())


def test_a_new_version_of_the_catalog_is_listed_anew() -> None:
    listings = ListingCache(NameStyle.SERVER)
    first = listings.tools(catalog(1, A), OWNER.permission())
    second = listings.tools(catalog(2, A, B), OWNER.permission())
    assert [tool["name"] for tool in json.loads(first)] == ["files_a"]
    assert [tool["name"] for tool in json.loads(second)] == ["files_a", "files_b"]


def test_two_catalogs_with_the_same_tools_list_the_same_bytes() -> None:
    assert ListingCache(NameStyle.SERVER).tools(catalog(1, A, B), OWNER.permission()) == ListingCache(
        NameStyle.SERVER
    ).tools(catalog(9, A, B), OWNER.permission())


@pytest.mark.parametrize(
    ("style", "spelled"),
    [
        (NameStyle.SERVER, ["files_a", "files_b"]),
        (NameStyle.MCP, ["mcp_files_a", "mcp_files_b"]),
        (NameStyle.PLAIN, ["a", "b"]),
    ],
)
def test_names_are_in_the_style_that_was_chosen(style: NameStyle, spelled: list[str]) -> None:
    assert names(ListingCache(style).tools(catalog(1, A, B), OWNER.permission())) == spelled


def test_all_but_the_name_is_the_servers_own() -> None:
    (tool,) = json.loads(ListingCache(NameStyle.SERVER).tools(catalog(1, A), OWNER.permission()), parse_float=str)
    assert tool == {"name": "files_a", "inputSchema": {"type": "object"}, "x-own": ["1.0", None]}


def may(*rules: dict[str, Any]) -> Permission:
    profile = profile_from("mine", {"rules": list(rules)})
    return Permission(profile, agent="x", workdir=Path("/nowhere"))


def names(listing: bytes) -> list[str]:
    return [tool["name"] for tool in json.loads(listing)]


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
def test_what_may_be_called_is_listed_also_if_a_person_is_asked_or_arguments_decide(
    rules: list[dict[str, Any]], shown: list[str]
) -> None:
    assert names(ListingCache(NameStyle.SERVER).tools(catalog(1, A, B), may(*rules))) == shown


@pytest.mark.req("KSI-5")
def test_a_server_that_is_believed_anew_is_listed_anew() -> None:
    reads = b'{"name":"r","annotations":{"readOnlyHint":true}}'
    reader = Permission(BUILTIN["read-only"], agent="x")
    listings = ListingCache(NameStyle.SERVER)
    before = Catalog.build({"files": (reads,)}, version=1)
    after = Catalog.build({"files": (reads,)}, version=2, previous=before, trusted=frozenset({"files"}))
    assert names(listings.tools(before, reader)) == []
    assert names(listings.tools(after, reader)) == ["files_r"]


def test_agents_that_may_do_the_same_share_a_listing() -> None:
    listings, known = ListingCache(NameStyle.SERVER), catalog(1, A, B)
    assert listings.tools(known, may({"allow": "files:a"})) is listings.tools(known, may({"allow": "files:a"}))
    assert listings.tools(known, may({"allow": "files:a"})) != listings.tools(known, may({"allow": "files:b"}))


def test_one_profile_never_sees_what_was_made_for_another() -> None:
    listings = ListingCache(NameStyle.SERVER)
    known = catalog(1, A, B)
    stranger = Permission(BUILTIN["nothing"])
    assert json.loads(listings.tools(known, OWNER.permission())) != []
    assert listings.tools(known, stranger) == b"[]"
    assert json.loads(listings.tools(known, OWNER.permission())) != []


def test_callers_of_one_profile_share_a_listing_whatever_their_name() -> None:
    listings = ListingCache(NameStyle.SERVER)
    known = catalog(1, A)
    other = Permission(BUILTIN["owner"], agent="another")
    assert listings.tools(known, OWNER.permission()) is listings.tools(known, other)


def test_an_empty_catalog_is_an_empty_list() -> None:
    assert ListingCache(NameStyle.SERVER).tools(Catalog.build({}, version=1), OWNER.permission()) == b"[]"


def test_only_so_many_listings_are_kept_and_the_one_used_last_stays() -> None:
    listings = ListingCache(NameStyle.SERVER)
    first = catalog(0, A)
    made = listings.tools(first, OWNER.permission())
    for version in range(1, listing._MAX_CACHED * 3):
        listings.tools(catalog(version, A), OWNER.permission())
        assert listings.tools(first, OWNER.permission()) is made
    assert len(listings._kept) == listing._MAX_CACHED


def test_only_so_many_bytes_are_kept_but_always_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_tool_that_runs_only_as_a_task_is_not_listed_and_a_call_says_why(caplog: pytest.LogCaptureFixture) -> None:
    def tool(name: str, support: str) -> bytes:
        return json.dumps({"name": name, "execution": {"taskSupport": support}}).encode()

    caplog.set_level(logging.INFO)
    known = catalog(1, tool("now", "forbidden"), tool("either", "optional"), tool("later", "required"))
    listed = json.loads(ListingCache(NameStyle.SERVER).tools(known, OWNER.permission()))
    assert [one["name"] for one in listed] == ["files_now", "files_either"]
    in_a_program = ToolProvider.tools(cast(Any, SimpleNamespace(catalog=known, _call_tool=None, all_known=True)))
    assert list(in_a_program.names) == ["now", "either"]
    assert "only as a task" in OWNER.permission().decide(known.find("files:later"), None).rule
    assert "files:later is not listed" in caplog.text
