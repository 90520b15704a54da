"""Catalog snapshots: unchanged definitions, lookup by every name, incremental builds."""

from __future__ import annotations

import json
import logging
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.catalog import GATEWAY_LIMIT, Catalog, Tool
from toolcrib.catalog.tool import decode_definition, digest_of
from toolcrib.config.model import NameStyle
from toolcrib.config.tool_rule import RuleAction, ToolRule, ToolSelector
from toolcrib.errors import UnknownTool


def definition(name: str, **fields: Any) -> bytes:
    return json.dumps({"name": name, "inputSchema": {"type": "object"}, **fields}).encode()


def listings_of(servers: dict[str, list[str]]) -> dict[str, tuple[bytes, ...]]:
    return {server: tuple(map(definition, tools)) for server, tools in servers.items()}


def build(**servers: list[str]) -> Catalog:
    return Catalog.build(listings_of(servers), version=1)


def tool_of(raw: bytes) -> Tool:
    [tool] = Catalog.build({"s": (raw,)}, version=1).tools
    return tool


def displays(catalog: Catalog) -> list[str]:
    return [tool.display for tool in catalog.tools]


@pytest.mark.req("BNS-4", "ENG-10")
def test_tools_are_sorted_by_server_and_keep_the_servers_order() -> None:
    catalog = build(git=["status", "add"], files=["write", "read"])
    assert displays(catalog) == ["files:write", "files:read", "git:status", "git:add"]
    assert [tool.name for tool in catalog.of_server("git")] == ["status", "add"]
    assert catalog.of_server("unknown") == ()
    after = Catalog.build({"files": (definition("read"),)}, version=2, previous=catalog)
    assert displays(after) == ["files:read"]
    with pytest.raises(UnknownTool):
        after.find("git:status")


@pytest.mark.req("ENG-3")
def test_only_the_name_of_a_definition_is_replaced() -> None:
    raw = (
        b'{"title":"T \\u00e9","name":"read","inputSchema":{ "type" : "object", "x": 1.10, '
        b'"big": 123456789012345678901234567890},'
        b'"_meta":{"a":null},"unknown":[1,  2],"annotations":{"readOnlyHint":true}}'
    )
    tool = tool_of(raw)
    assert tool.render("files_read") == raw.replace(b'"name":"read"', b'"name":"files_read"')
    assert tool.raw() == raw
    assert tool.annotations == {"readOnlyHint": True}
    assert tool.input_schema["big"] == 123456789012345678901234567890


@pytest.mark.req("BNS-4")
@given(
    st.dictionaries(
        st.text(), st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=9)
    )
)
def test_any_definition_is_kept_completely(fields: dict[str, Any]) -> None:
    given_fields = {**fields, "name": "t"}
    raw = json.dumps(given_fields, ensure_ascii=False).encode("utf-8", "surrogatepass")
    try:
        raw.decode()
    except UnicodeDecodeError:
        return
    tool = tool_of(raw)
    assert json.loads(tool.raw()) == given_fields
    assert json.loads(tool.render("s_t")) == {**given_fields, "name": "s_t"}


@pytest.mark.req("BNS-4")
def test_only_header_marks_are_removed_for_clients() -> None:
    schema = (
        b'{"type":"object","properties":{"region":{"type":"string","x-mcp-header":"Region","default":1.50},'
        b'"x-mcp-header":{"type":"string"},"o":{"properties":{"p":{"x-mcp-\\u0068eader":"P","type":"integer"}}}},'
        b'"default":{"x-mcp-header":"data"},"anyOf":[{"x-mcp-header":"A"},{"const":{"x-mcp-header":1}}]}'
    )
    tool = tool_of(b'{"name":"t","inputSchema":' + schema + b"}")
    rendered = json.loads(tool.render("t"), parse_float=str)["inputSchema"]
    assert rendered == {
        "type": "object",
        "properties": {
            "region": {"type": "string", "default": "1.50"},
            "x-mcp-header": {"type": "string"},
            "o": {"properties": {"p": {"type": "integer"}}},
        },
        "default": {"x-mcp-header": "data"},
        "anyOf": [{}, {"const": {"x-mcp-header": 1}}],
    }
    assert tool.input_schema["properties"]["region"]["x-mcp-header"] == "Region"
    assert tool.param_headers({"region": "eu"}) == {}, "the invalid marks in `anyOf` disable all"


@pytest.mark.req("ENG-1")
def test_marked_arguments_become_headers_of_a_call() -> None:
    schema = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}
    tool = tool_of(definition("t", inputSchema=schema))
    assert tool.param_headers({"region": "eu"}) == {"Mcp-Param-Region": "eu"}
    assert tool.param_headers({}) == {}


def test_missing_and_unreadable_fields_are_empty(caplog: pytest.LogCaptureFixture) -> None:
    tool = tool_of(b'{"name":"t","annotations":3,"description":null}')
    assert (tool.description, tool.annotations, tool.input_schema) == ("", {}, {"type": "object"})
    raw = b'{"name":"t","inputSchema":{"type":"object","maximum":1e999}}'
    tool = tool_of(raw)
    assert tool.input_schema == {"type": "object"}
    assert tool.raw() == raw
    assert "s:t: inputSchema cannot be read" in caplog.text


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b"", "truncated"),
        (b"[1]", "Expected `object`"),
        (b'{"inputSchema":{}}', "no name"),
        (b'{"name":7}', "Expected `str`"),
        (b'{"name":"x","description":"\xff"}', "utf-8"),
        (b'{"name":"x","description":"\\ud800"}', "truncated"),
        (b'{"name":"x","a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "recursion"),
        (b'{"name":"x","a":' + b'{"a":' * 200 + b"1" + b"}" * 200 + b"}", "deeper than 128"),
    ],
)
@pytest.mark.req("BNS-10")
def test_only_the_bad_definition_is_left_out(bad: bytes, reason: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        catalog = Catalog.build({"s": (definition("a"), bad, definition("b"))}, version=1)
    assert displays(catalog) == ["s:a", "s:b"]
    assert "tool number 1 is left out" in caplog.text
    assert reason in caplog.text


def test_many_brackets_do_not_count_as_depth() -> None:
    wide = {"type": "object", "properties": {f'p{{"{n}': {"type": ["string"]} for n in range(300)}}
    assert displays(Catalog.build({"s": (definition("a", inputSchema=wide),)}, version=1)) == ["s:a"]


def test_the_first_of_two_tools_with_the_same_name_is_used(caplog: pytest.LogCaptureFixture) -> None:
    listed = tuple(definition("a", description=text) for text in ("first", "second"))
    catalog = Catalog.build({"s": listed}, version=1)
    assert [tool.description for tool in catalog.tools] == ["first"]
    assert "lists 'a' twice" in caplog.text


_names = st.text(alphabet="abAB_.é:", max_size=5)


@pytest.mark.req("BNS-8", "ENG-3")
@given(st.dictionaries(_names, st.lists(_names, max_size=6), max_size=5), st.sampled_from([None, GATEWAY_LIMIT]))
def test_find_knows_every_public_name(servers: dict[str, list[str]], limit: int | None) -> None:
    unique = {server: list(dict.fromkeys(tools)) for server, tools in servers.items()}
    catalog = Catalog.build(listings_of(unique), version=1, limit=limit)
    shown = displays(catalog)
    for style in NameStyle:
        assert len(catalog.by_public(style)) == len(catalog.tools)
        for name, tool in catalog.by_public(style).items():
            assert catalog.find(name) is tool
            assert tool.public(style) == name
    for tool in catalog.tools:
        if shown.count(tool.display) == 1:
            assert catalog.find(tool.display) is tool


@pytest.mark.req("BNS-8")
def test_names_are_found_in_any_case() -> None:
    catalog = build(Mapbox=["DirectionsTool"])
    assert catalog.find("mapbox_directionstool").display == "Mapbox:DirectionsTool"


@pytest.mark.req("BNS-8")
def test_the_error_for_an_unknown_name_suggests_a_few_similar_ones() -> None:
    catalog = build(files=["read_file", "write_file"], git=["status"])
    with pytest.raises(UnknownTool) as raised:
        catalog.find("files_raed_file", style=NameStyle.SERVER)
    nearest = ["files_read_file", "files_write_file"]
    assert raised.value.data == {"name": "files_raed_file", "nearest": nearest}
    text = 'There is no tool "files_raed_file". Did you mean files_read_file, files_write_file?'
    assert raised.value.text() == text
    with pytest.raises(UnknownTool) as raised:
        build(documents=["read_file_contents"]).find("some_server_read_file_contents")
    assert raised.value.data["nearest"] == ["documents:read_file_contents"]
    catalog = build(files=[f"read_file_{number}" for number in range(50)])
    with pytest.raises(UnknownTool) as raised:
        catalog.find("read_file_")
    assert len(raised.value.data["nearest"]) == 5
    with pytest.raises(UnknownTool) as raised:
        catalog.find("x" * 1_000_000)
    assert len(raised.value.text()) < 300


@pytest.mark.req("BNS-8", "ENG-8")
def test_tools_that_the_caller_may_not_use_never_displace_others() -> None:
    catalog = build(a=[f"read_file_{number}" for number in range(300)], z=["read_a_file_99"])
    checked: list[Tool] = []

    def shown(tool: Tool) -> bool:
        checked.append(tool)
        return tool.server == "z"

    with pytest.raises(UnknownTool) as raised:
        catalog.find("read_file_x", style=NameStyle.SERVER, shown=shown)
    assert raised.value.data["nearest"] == ["z_read_a_file_99"]
    assert len(checked) == len(set(checked)) == 301
    checked.clear()
    with pytest.raises(UnknownTool):
        build(a=["read_file"], b=["send_mail"]).find("reed_file", shown=shown)
    assert [tool.display for tool in checked] == ["a:read_file"], "only similar tools are checked"


@pytest.mark.req("ENG-8")
@pytest.mark.parametrize(
    "wrong", ["reed_file", "mcp__files__read_file", "functions.read_file", "readFile", "READ-FILE"]
)
def test_common_slips_lead_to_the_meant_tool(wrong: str) -> None:
    catalog = build(files=["read_file", "stat"], mail=["send", "reply_all"], db=["query", "read_rows"])
    with pytest.raises(UnknownTool) as raised:
        catalog.find(wrong, style=NameStyle.SERVER)
    assert raised.value.data["nearest"][0] == "files_read_file"


@given(st.text(max_size=300), st.lists(st.text(max_size=300), max_size=5, unique=True))
def test_every_text_is_either_a_name_or_unknown(name: str, tools: list[str]) -> None:
    catalog = build(s=tools)
    try:
        assert catalog.find(name, style=NameStyle.MCP) in catalog.tools
    except UnknownTool as unknown:
        assert all(found in catalog.by_public(NameStyle.MCP) for found in unknown.data["nearest"])


def test_an_ambiguous_display_name_is_refused_with_the_public_names() -> None:
    catalog = Catalog.build({"a": (definition("b:c"),), "a:b": (definition("c"),)}, version=1)
    with pytest.raises(UnknownTool, match="several tools") as raised:
        catalog.find("a:b:c")
    assert [catalog.find(name).display for name in raised.value.data["nearest"]] == ["a:b:c", "a:b:c"]


@pytest.mark.req("BNS-4")
def test_unchanged_tools_are_reused_from_the_previous_snapshot() -> None:
    files = (definition("read"),)
    before = Catalog.build({"files": files, "git": (definition("status"),)}, version=1)
    after = Catalog.build({"files": files, "git": (definition("add"),)}, version=2, previous=before)
    assert after.version == 2
    assert after.find("files:read") is before.find("files:read")
    assert displays(after) == ["files:read", "git:add"]
    assert displays(before) == ["files:read", "git:status"]


@pytest.mark.req("BNS-4")
def test_a_new_name_conflict_changes_names_in_the_new_snapshot_only() -> None:
    files = (definition("read"),)
    before = Catalog.build({"files": files}, version=1)
    after = Catalog.build({"files": files, "docs": (definition("read"),)}, version=2, previous=before)
    assert before.find("files:read").names.plain == "read"
    assert after.find("files:read").names.plain == "files_read"
    again = Catalog.build({"files": files}, version=3, previous=after)
    assert again.find("read").display == "files:read"


@pytest.mark.req("BNS-4")
@given(
    st.dictionaries(_names, st.lists(_names, max_size=5), max_size=4),
    st.dictionaries(_names, st.lists(_names, max_size=5), max_size=4),
)
def test_an_incremental_build_gives_the_same_snapshot(
    first: dict[str, list[str]], second: dict[str, list[str]]
) -> None:
    def seen(catalog: Catalog) -> list[tuple[str, Any, bytes]]:
        return [(tool.server, tool.names, tool.raw()) for tool in catalog.tools]

    before = Catalog.build(listings_of(first), version=1)
    incremental = Catalog.build(listings_of(second), version=2, previous=before)
    assert seen(incremental) == seen(Catalog.build(listings_of(second), version=2))


def test_a_tool_can_be_constructed_directly() -> None:
    known = build(s=["t"]).tools[0]
    tool = Tool(server="s", name="t", fields={"name": msgspec.Raw(b'"t"')}, names=known.names)
    assert tool.raw() == b'{"name":"t"}'
    assert tool != known


@pytest.mark.req("KSI-5")
def test_a_change_of_trust_replaces_the_tools_of_that_server_only() -> None:
    listings = {name: (definition("read", annotations={"readOnlyHint": True}),) for name in ("files", "git", "crib")}
    before = Catalog.build(listings, version=1)
    reads_only = [(tool.server, tool.reads_only) for tool in before.tools]
    assert reads_only == [("crib", True), ("files", False), ("git", False)]
    trusting = Catalog.build(listings, version=2, previous=before, trusted=frozenset({"git"}))
    assert [tool.reads_only for tool in trusting.tools] == [True, False, True]
    assert [new is old for new, old in zip(trusting.tools, before.tools, strict=True)] == [True, True, False]
    again = Catalog.build(listings, version=3, previous=trusting)
    assert [tool.reads_only for tool in again.tools] == [True, False, False]
    assert again.tools[:2] == before.tools[:2]


@pytest.mark.req("KSI-5")
def test_a_change_of_folder_replaces_the_tools_of_that_server_only() -> None:
    listings = {name: (definition("read"),) for name in ("files", "git")}
    before = Catalog.build(listings, version=1, folders={"files": "/a"})
    assert [tool.folder for tool in before.tools] == ["/a", None]
    after = Catalog.build(listings, version=2, previous=before, folders={"files": "/b"})
    assert [tool.folder for tool in after.tools] == ["/b", None]
    assert [new is old for new, old in zip(after.tools, before.tools, strict=True)] == [False, True]
    again = Catalog.build(listings, version=3, previous=after, folders={"files": "/b"})
    assert again.tools == after.tools


@pytest.mark.req("KSI-5")
@pytest.mark.parametrize("hint", [b"false", b'"true"', b"1", b"null", b"[true]"])
def test_only_true_marks_a_tool_as_read_only(hint: bytes) -> None:
    raw = b'{"name":"a","annotations":{"readOnlyHint":' + hint + b"}}"
    (tool,) = Catalog.build({"files": (raw,)}, version=1, trusted=frozenset({"files"})).tools
    assert not tool.reads_only


def test_a_renamed_tool_is_found_by_its_new_and_old_display_name() -> None:
    listing = {"git": (definition("git_status"), definition("log"), definition("push"))}
    names = {"git_status": "state", "push": "log"}
    rules = (ToolRule(action=RuleAction.RENAME, value=names, only=(), written={}),)
    catalog = Catalog.build(listing, version=1, rules=rules)
    assert "git:state" in catalog
    assert catalog.find("git:state").name == "git_status"
    assert catalog.find("git:git_status").name == "git_status"
    # A server's own names have priority.
    assert catalog.find("git:log").name == "log"


def test_an_unchanged_tool_stays_the_same_object_when_others_change() -> None:
    rules = (ToolRule(action=RuleAction.DESCRIBE, value="Reads.", only=(ToolSelector(names=("read",)),)),)
    before = Catalog.build({"files": (definition("read"), definition("write"))}, version=1, rules=rules)
    listings = {"files": (definition("new"), definition("write", title="other"), definition("read"))}
    after = Catalog.build(listings, version=2, previous=before, rules=rules)
    assert displays(after) == ["files:new", "files:write", "files:read"]
    assert after.find("files:read") is before.find("files:read")
    assert not after.find("files:write").is_still(before.find("files:write"))
    anew = Catalog.build(listings, version=3, previous=after)
    assert anew.find("files:write").is_still(after.find("files:write"))
    assert not anew.find("files:read").is_still(after.find("files:read")), "the rules changed its definition"


def test_a_digest_ignores_the_formatting_of_a_definition() -> None:
    def digest(text: str) -> str:
        return digest_of(decode_definition(text.encode())[1])

    first = digest('{"name":"a","inputSchema":{"type":"object","properties":{"x":{},"y":{}}},"icons":[1]}')
    again = '{"inputSchema": {"properties": {"y": {}, "x": {}}, "type": "object"}, "name": "a", "icons": [2]}'
    assert digest(again) == first
    assert digest(again.replace('"y": {}', '"y": true')) != first
    assert digest('{"name":"a","_meta":1e999}') != digest('{"name":"a","_meta":2e999}')
