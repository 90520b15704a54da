"""Which tools a filter means."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.catalog import Catalog
from toolcrib.catalog.offered_tool import (
    Filter,
    OfferedTool,
    annotated,
    destructive,
    idempotent,
    matches,
    not_,
    open_world,
    read_only,
)
from toolcrib.catalog.transforms import DropTools, KeepTools, RenameTools, apply_transforms

LISTINGS = {
    "git": ("git_status", "git_push", "log"),
    "files": ("read_file", "write_file", "log"),
    "odd[1]": ("a.b",),
}


def offers(annotations: dict[str, dict[str, Any]] | None = None) -> list[OfferedTool]:
    hints = annotations or {}
    listings = {
        server: tuple(msgspec.json.encode({"name": name, "annotations": hints.get(name, {})}) for name in names)
        for server, names in LISTINGS.items()
    }
    return [OfferedTool.of(tool) for tool in Catalog.build(listings, version=1).tools]


def chosen(wanted: Filter) -> set[str]:
    return {offer.tool.display for offer in offers() if matches(wanted, offer)}


@pytest.mark.req("ENG-5")
@pytest.mark.parametrize(
    ("wanted", "meant"),
    [
        ("read_file", {"files:read_file"}),
        ("READ_FILE", set()),
        ("*_file", {"files:read_file", "files:write_file"}),
        ("git:*", {"git:git_status", "git:git_push", "git:log"}),
        ("git:git_?tatus", {"git:git_status"}),
        ("git_[ps]*", {"git:git_status", "git:git_push"}),
        ("*:log", {"git:log", "files:log"}),
        ("nothing:*", set()),
        (["git:log", "read_*"], {"git:log", "files:read_file"}),
        (("git:log", ["read_*", lambda offer: offer.server == "odd[1]"]), {"git:log", "files:read_file", "odd[1]:a.b"}),
        ((), set()),
        (lambda offer: "push" in offer.name, {"git:git_push"}),
        (not_(["git:*", "odd*:*"]), {"files:read_file", "files:write_file", "files:log"}),
    ],
)
def test_names_globs_predicates_and_any_of_several(wanted: Filter, meant: set[str]) -> None:
    assert chosen(wanted) == meant


def test_what_stands_in_a_name_is_no_pattern_where_it_is_written_out() -> None:
    assert chosen("odd[1]:a.b") == {"odd[1]:a.b"}


@pytest.mark.req("ENG-5")
def test_a_name_that_two_servers_share_means_both_though_neither_is_offered_under_it() -> None:
    assert {offer.name for offer in offers()} >= {"git_log", "files_log"}
    assert chosen("log") == {"git:log", "files:log"}
    assert chosen("git_log") == {"git:log"}


def test_a_tool_that_was_renamed_is_meant_by_its_new_name_alone_and_by_its_server() -> None:
    renamed = apply_transforms(offers(), RenameTools({"git_push": "publish"}))

    def left(wanted: Filter) -> set[str]:
        return {offer.tool.display for offer in renamed if matches(wanted, offer)}

    assert left("git_push") == set()
    assert left("publish") == left("git:git_push") == {"git:git_push"}


SAID: dict[str, dict[str, Any]] = {
    "git_status": {"readOnlyHint": True, "openWorldHint": False},
    "git_push": {"destructiveHint": True, "idempotentHint": True},
    "write_file": {"readOnlyHint": False, "destructiveHint": False},
    "read_file": {"readOnlyHint": "yes", "destructiveHint": None},
}


@pytest.mark.req("ENG-5")
@pytest.mark.parametrize(
    ("predicate", "meant"),
    [
        (read_only, {"git_status"}),
        (destructive, {"git_push", "read_file", "log", "a.b"}),
        (idempotent, {"git_status", "git_push"}),
        (open_world, {"git_push", "write_file", "read_file", "log", "a.b"}),
    ],
)
def test_annotations_choose_and_a_silent_server_is_taken_as_the_protocol_says(
    predicate: Filter, meant: set[str]
) -> None:
    found = {offer.tool.name for offer in offers(SAID) if matches(predicate, offer)}
    assert found == meant
    name = predicate.__name__  # type: ignore[union-attr]
    assert {offer.tool.name for offer in offers(SAID) if matches(annotated(name), offer)} == meant


@pytest.mark.req("ENG-5")
def test_keep_and_drop_divide_the_tools_between_them() -> None:
    kept = apply_transforms(offers(), KeepTools(iter(["git:*", "read_file"])))
    dropped = apply_transforms(offers(), DropTools(iter(["git:*", "read_file"])))
    assert [offer.tool.display for offer in kept] == [
        "files:read_file",
        "git:git_status",
        "git:git_push",
        "git:log",
    ]
    assert {offer.tool.display for offer in (*kept, *dropped)} == {offer.tool.display for offer in offers()}
    assert len(kept) + len(dropped) == len(offers())


@given(st.text(max_size=30))
def test_no_text_breaks_a_filter(text: str) -> None:
    assert chosen(text) | chosen(not_(text)) == {offer.tool.display for offer in offers()}
