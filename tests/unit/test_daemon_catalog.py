"""What the daemon lists for a program, given the names that the tools have at their own servers again."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.catalog.names import GATEWAY_LIMIT
from toolcrib.catalog.offered_tool import OfferedTool
from toolcrib.catalog.snapshot import Catalog
from toolcrib.config.model import NameStyle, RuleAction, ToolRule
from toolcrib.core.daemon_catalog import UNKNOWN_SERVER, DaemonCatalog
from toolcrib.identity.principal import OWNER, ReaderKind
from toolcrib.listing import ORIGIN_KEY, ListingCache

pytestmark = pytest.mark.req("ENG-10")


def listed(catalog: Catalog, style: NameStyle = NameStyle.SERVER) -> tuple[bytes, ...]:
    """As the endpoint gives it to a program."""
    array = ListingCache(style).tools(catalog, OWNER.permission(), ReaderKind.PROGRAM)
    return tuple(bytes(one) for one in msgspec.json.decode(array, type=list[msgspec.Raw]))


def catalog_of(servers: dict[str, list[dict[str, Any]]], **more: Any) -> Catalog:
    raw = {server: tuple(json.dumps(tool).encode() for tool in tools) for server, tools in servers.items()}
    return Catalog.build(raw, version=1, limit=GATEWAY_LIMIT, **more)


_NAME = st.text(st.sampled_from("ab_-:. é"), min_size=1, max_size=5) | st.text("x", min_size=60, max_size=70)


@given(
    st.dictionaries(_NAME, st.sets(_NAME, min_size=1, max_size=4), min_size=1, max_size=4), st.sampled_from(NameStyle)
)
def test_every_tool_is_found_again_by_all_its_names(servers, style):
    there = catalog_of({server: [{"name": name} for name in sorted(names)] for server, names in servers.items()})
    here = DaemonCatalog().anew(listed(there, style))
    assert {(tool.server, tool.name) for tool in here.catalog.tools} == {(t.server, t.name) for t in there.tools}
    plain = [tool.names.plain.lower() for tool in here.catalog.tools]
    assert len(set(plain)) == len(plain)
    for tool in here.catalog.tools:
        public = here.public(tool)
        meant = there.by_public(style)[public]
        assert (meant.server, meant.name) == (tool.server, tool.name)
        assert here.find(tool.names.plain) is tool
        assert json.loads(tool.raw()) == json.loads(meant.raw())
    for public, meant in there.by_public(style).items():
        found = here.find(public)
        # Where a name means something else here, it is the name that is offered here.
        assert found is not None
        assert (found.server, found.name) == (meant.server, meant.name) or public.lower() in {
            found.names.plain.lower(),
            found.names.server.lower(),
            found.names.mcp.lower(),
        }


def test_what_the_server_put_into_meta_stays_and_ours_goes():
    there = catalog_of({"s": [{"name": "a", "_meta": {"own": 1.5}}, {"name": "b"}, {"name": "c", "_meta": 7}]})
    assert [json.loads(one)["_meta"] for one in listed(there)] == [
        {"own": 1.5, ORIGIN_KEY: ["s", "a"]},
        {ORIGIN_KEY: ["s", "b"]},
        {ORIGIN_KEY: ["s", "c"]},
    ]
    tools = DaemonCatalog().anew(listed(there)).catalog.tools
    assert [json.loads(tool.raw()) for tool in tools] == [
        {"name": "a", "_meta": {"own": 1.5}},
        {"name": "b"},
        {"name": "c"},
    ]


def test_what_the_daemons_configuration_makes_of_a_tool_is_kept():
    rules = (
        ToolRule(action=RuleAction.RENAME, value={"s:long_name": "short"}),
        ToolRule(action=RuleAction.OPTIONS, value={"openai": {"strict": True}}),
    )
    there = catalog_of({"s": [{"name": "long_name", "inputSchema": {"type": "object"}}]}, rules=rules)
    here = DaemonCatalog().anew(listed(there))
    offer = OfferedTool.of(here.catalog.tools[0])
    assert (offer.name, offer.tool.display, here.public(offer.tool)) == ("short", "s:long_name", "s_short")
    assert offer.options == OfferedTool.of(there.tools[0]).options
    assert offer.options["openai"] == {"strict": True}


def test_the_same_list_is_the_same_catalog_and_another_is_a_new_one():
    first = DaemonCatalog().anew(listed(catalog_of({"s": [{"name": "a"}]})))
    assert first.anew(listed(catalog_of({"s": [{"name": "a"}]}))) is first
    second = first.anew(listed(catalog_of({"s": [{"name": "a"}, {"name": "b"}]})))
    assert second.catalog.version > first.catalog.version


def test_a_daemon_that_tells_no_sources_can_still_be_used():
    here = DaemonCatalog().anew((b'{"name":"w_note"}', b'{"name":"x","_meta":{"toolcrib/tool":3}}', b"no json"))
    assert [(tool.server, tool.name) for tool in here.catalog.tools] == [
        (UNKNOWN_SERVER, "w_note"),
        (UNKNOWN_SERVER, "x"),
    ]
    assert here.public(here.catalog.tools[0]) == "w_note"
