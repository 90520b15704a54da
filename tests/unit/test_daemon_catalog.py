"""A program maps the daemon's listing back to the servers' own tool names, and follows the servers' states."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parts.fake_daemon import FakePeer, fake_daemon
from toolcrib.catalog.names import GATEWAY_LIMIT
from toolcrib.catalog.offered_tool import OfferedTool
from toolcrib.catalog.snapshot import Catalog
from toolcrib.config.model import NameStyle
from toolcrib.config.tool_rule import RuleAction, ToolRule
from toolcrib.core import connection as connection_module
from toolcrib.core import daemon_catalog
from toolcrib.core.connection import Connection
from toolcrib.core.daemon_catalog import UNKNOWN_SERVER, DaemonCatalog, DaemonServerStates
from toolcrib.errors import DaemonNotRunning
from toolcrib.identity.principal import OWNER, ReaderKind
from toolcrib.listing import ORIGIN_KEY, ListingCache
from toolcrib.servers.model import ServerState

pytestmark = pytest.mark.req("ENG-10")


def listed(catalog: Catalog, style: NameStyle = NameStyle.SERVER) -> tuple[bytes, ...]:
    """As the endpoint lists it for a program."""
    array = ListingCache(style).tools(catalog, OWNER.permission(), ReaderKind.PROGRAM)
    return tuple(bytes(one) for one in msgspec.json.decode(array, type=list[msgspec.Raw]))


def catalog_of(servers: dict[str, list[dict[str, Any]]], **more: Any) -> Catalog:
    raw = {server: tuple(json.dumps(tool).encode() for tool in tools) for server, tools in servers.items()}
    return Catalog.build(raw, version=1, limit=GATEWAY_LIMIT, **more)


_NAME = st.text(st.sampled_from("ab_-:. é"), min_size=1, max_size=5) | st.text("x", min_size=60, max_size=70)


@given(
    st.dictionaries(_NAME, st.sets(_NAME, min_size=1, max_size=4), min_size=1, max_size=4), st.sampled_from(NameStyle)
)
def test_every_tool_is_found_by_all_its_names(servers, style):
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
        # A name that means another tool here is one of that tool's own names.
        assert found is not None
        assert (found.server, found.name) == (meant.server, meant.name) or public.lower() in {
            found.names.plain.lower(),
            found.names.server.lower(),
            found.names.mcp.lower(),
        }


def test_only_our_own_meta_is_removed():
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


def test_the_daemons_changes_to_a_tool_are_kept():
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


def test_an_equal_listing_keeps_the_catalog_and_another_replaces_it():
    first = DaemonCatalog().anew(listed(catalog_of({"s": [{"name": "a"}]})))
    assert first.anew(listed(catalog_of({"s": [{"name": "a"}]}))) is first
    second = first.anew(listed(catalog_of({"s": [{"name": "a"}, {"name": "b"}]})))
    assert second.catalog.version > first.catalog.version


def test_tools_without_an_origin_are_usable():
    here = DaemonCatalog().anew((b'{"name":"w_note"}', b'{"name":"x","_meta":{"toolcrib/tool":3}}', b"no json"))
    assert [(tool.server, tool.name) for tool in here.catalog.tools] == [
        (UNKNOWN_SERVER, one) for one in ("w_note", "x")
    ]
    assert here.public(here.catalog.tools[0]) == "w_note"


async def send_states(peer: FakePeer, **states: str) -> None:
    await peer.event(servers=[{"name": name, "state": state} for name, state in states.items()])


async def test_each_change_is_reported_once_and_begin_waits_for_the_first_states() -> None:
    changes: list[tuple[str, str]] = []
    more = asyncio.Event()

    async def sends(request: dict[str, Any], peer: FakePeer) -> None:
        assert (request["method"], request["params"]) == ("agent:servers", {"token": "tcb_x"})
        await send_states(peer, a="ready", b="unavailable", c="of another version")
        await more.wait()
        await send_states(peer, a="ready", b="ready")

    states = DaemonServerStates(lambda name, state: changes.append((name, state.value)))
    async with fake_daemon(sends) as paths:
        await states.begin(paths.socket, "tcb_x", Path("/"))
        assert states.by_server == {"a": ServerState.READY, "b": ServerState.UNAVAILABLE}
        more.set()
        while len(changes) < 3:  # noqa: ASYNC110 - within the daemon's limit
            await asyncio.sleep(0.01)
        await states.close()
    assert changes == [("a", "ready"), ("b", "unavailable"), ("b", "ready")]


async def test_after_an_error_the_daemon_gets_no_more_requests() -> None:
    requests: list[str] = []

    async def refuses(request: dict[str, Any], peer: FakePeer) -> None:
        requests.append(request["method"])
        await peer.refuse("UnknownCommand")

    states = DaemonServerStates(lambda *_: None)
    async with fake_daemon(refuses) as paths:
        await states.begin(paths.socket, "tcb_x", Path("/"))
        assert states.by_server == {}
        await states.close()
    assert requests == ["agent:servers"]


async def test_a_restarted_daemon_is_followed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon_catalog, "_LOOK_AGAIN", 0.01)
    times: list[int] = []

    async def sends_and_disconnects(_: dict[str, Any], peer: FakePeer) -> None:
        times.append(1)
        await send_states(peer, a="ready" if len(times) > 1 else "unavailable")
        if len(times) == 1:
            raise ConnectionResetError

    changes: list[str] = []
    states = DaemonServerStates(lambda _, state: changes.append(state.value))
    async with fake_daemon(sends_and_disconnects) as paths:
        await states.begin(paths.socket, "tcb_x", Path("/"))
        while changes != ["unavailable", "ready"]:  # noqa: ASYNC110 - within the daemon's limit
            await asyncio.sleep(0.01)
        await states.close()


@pytest.mark.parametrize("who", [{}, {"token": "tcb_x"}])
async def test_the_wait_for_a_daemon_that_hangs_is_limited(
    who: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "_LENT_WITHIN", 0.1)
    monkeypatch.setattr(connection_module, "_ANSWERS_WITHIN", 0.1)

    async def hangs(*_: Any) -> None:
        return

    async with fake_daemon(hangs) as paths:
        with pytest.raises(DaemonNotRunning, match="does not answer"):
            await Connection(paths=paths, **who).__aenter__()
