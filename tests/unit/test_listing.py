"""A listing is made once per catalog and caller, and is the same bytes until one of them changes."""

from __future__ import annotations

import json

import pytest

from toolcrib.catalog.snapshot import Catalog
from toolcrib.config.model import NameStyle
from toolcrib.listing import Listings, full
from toolcrib.policy import OWNER, Caller

pytestmark = pytest.mark.req("ENG-3", "ENG-10")

A = b'{"name":"a","inputSchema":{"type":"object"},"x-own":[1.0,null]}'
B = b'{"name":"b", "description":"\\u00e9"}'


def catalog(version: int, *definitions: bytes) -> Catalog:
    return Catalog.build({"files": definitions}, version=version)


def test_a_listing_asked_for_again_is_the_very_same_object() -> None:
    listings = Listings(NameStyle.SERVER)
    known = catalog(1, A, B)
    assert listings.tools(known, OWNER) is listings.tools(known, OWNER)


def test_a_new_version_of_the_catalog_is_listed_anew() -> None:
    listings = Listings(NameStyle.SERVER)
    first = listings.tools(catalog(1, A), OWNER)
    second = listings.tools(catalog(2, A, B), OWNER)
    assert [tool["name"] for tool in json.loads(first)] == ["files_a"]
    assert [tool["name"] for tool in json.loads(second)] == ["files_a", "files_b"]


def test_two_catalogs_with_the_same_tools_list_the_same_bytes() -> None:
    assert Listings(NameStyle.SERVER).tools(catalog(1, A, B), OWNER) == Listings(NameStyle.SERVER).tools(
        catalog(9, A, B), OWNER
    )


@pytest.mark.parametrize(
    ("style", "names"),
    [
        (NameStyle.SERVER, ["files_a", "files_b"]),
        (NameStyle.MCP, ["mcp_files_a", "mcp_files_b"]),
        (NameStyle.PLAIN, ["a", "b"]),
    ],
)
def test_names_are_in_the_style_that_was_chosen(style: NameStyle, names: list[str]) -> None:
    assert [tool["name"] for tool in json.loads(Listings(style).tools(catalog(1, A, B), OWNER))] == names


def test_all_but_the_name_is_the_servers_own() -> None:
    (tool,) = json.loads(Listings(NameStyle.SERVER).tools(catalog(1, A), OWNER), parse_float=str)
    assert tool == {"name": "files_a", "inputSchema": {"type": "object"}, "x-own": ["1.0", None]}


def test_one_profile_never_sees_what_was_made_for_another() -> None:
    listings = Listings(NameStyle.SERVER)
    known = catalog(1, A, B)
    stranger = Caller(agent="x", profile="none")
    assert json.loads(listings.tools(known, OWNER)) != []
    assert listings.tools(known, stranger) == b"[]"
    assert json.loads(listings.tools(known, OWNER)) != []


def test_callers_of_one_profile_share_a_listing_whatever_their_conversation() -> None:
    listings = Listings(NameStyle.SERVER)
    known = catalog(1, A)
    other = Caller(agent="owner", profile="owner", conversation="another")
    assert listings.tools(known, OWNER) is listings.tools(known, other)


def test_an_empty_catalog_is_an_empty_list() -> None:
    assert Listings(NameStyle.SERVER).tools(Catalog.build({}, version=1), OWNER) == b"[]"


def test_only_so_many_listings_are_kept_and_the_one_used_last_stays() -> None:
    listings = Listings(NameStyle.SERVER)
    first = catalog(0, A)
    made = listings.tools(first, OWNER)
    for version in range(1, full._KEPT * 3):
        listings.tools(catalog(version, A), OWNER)
        assert listings.tools(first, OWNER) is made
    assert len(listings._kept) == full._KEPT
