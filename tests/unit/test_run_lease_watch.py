"""A run gets all events of its agent, in order, none of other agents, and never an unlimited backlog."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.audit import row as tokens
from toolcrib.catalog.snapshot import Catalog
from toolcrib.commands import watch as watching
from toolcrib.commands.watch import MAX_ARGUMENTS, MAX_META, MAX_UNREAD, AgentWatch, event_json
from toolcrib.config.masking import Masker
from toolcrib.config.model import NameStyle
from toolcrib.daemon_client.lease import CallSeen, LeaseEnded, ListingSeen, lease_event_from
from toolcrib.events import AgentEnded, Bus, CallFailed, CallFinished, CallIntended, ToolsListed

pytestmark = pytest.mark.req("FRG-6")

LIMIT = 60.0
MASK = Masker({"hunter2-of-ours"})


class Watched:
    """An agent's watch, and the bus that it listens to."""

    def __init__(self, bus: Bus, watch: AgentWatch) -> None:
        self.bus = bus
        self.watch = watch

    def publish(self, kind: Any, call: str = "c1", *, caller: str = "mine", **more: Any) -> None:
        facts: dict[str, Any] = {"call_id": call, "caller": caller, "name": "files_read", "tool": "files:read"}
        facts |= {"server": "files", "decision": "allow", "rule": "profile developer: allow *:*", "meta": {}}
        facts |= {"arguments": b'{"path":"a"}'}
        facts |= {} if kind is CallIntended else {"outcome": "ok", "duration": 0.25}
        self.bus.publish(kind(**{**facts, **more}))

    def list_tools(self, tools: bytes, **by_name: Any) -> None:
        self.bus.publish(ToolsListed(agent="mine", tools=tools, by_name=by_name))

    async def next(self) -> Any:
        async with asyncio.timeout(LIMIT):
            seen = await self.watch.next()
        # Over the socket and back.
        return seen and lease_event_from(json.loads(json.dumps(await event_json(seen, MASK.known))))


@pytest.fixture
def watched() -> Iterator[Watched]:
    bus = Bus()
    with AgentWatch(bus, "mine") as watch:
        yield Watched(bus, watch)


async def test_a_call_has_an_event_at_its_start_and_at_its_end(watched: Watched) -> None:
    watched.publish(CallIntended, meta={"claudecode/toolUseId": "t1"}, at=1.0)
    watched.publish(CallFinished, at=2.0)
    watched.publish(CallFailed, "c2", outcome="denied", decision="deny", rule="deny files:*", at=3.0)
    watched.publish(CallFailed, "c3", outcome="unknown", name="reed", tool="reed", server="", arguments=None)
    started, ended, denied, unknown = [await watched.next() for _ in range(4)]
    assert started == CallSeen(
        call="c1",
        name="files_read",
        tool="read",
        server="files",
        arguments={"path": "a"},
        arguments_size=12,
        over=False,
        outcome="",
        duration_ms=None,
        decision="allow",
        rule="profile developer: allow *:*",
        meta={"claudecode/toolUseId": "t1"},
        at=1.0,
    )
    assert (ended.call, ended.over, ended.outcome, ended.duration_ms) == ("c1", True, "ok", 250.0)
    assert ended.arguments == {"path": "a"}
    assert (denied.outcome, denied.decision, denied.rule) == ("denied", "deny", "deny files:*")
    assert (unknown.name, unknown.tool, unknown.server, unknown.arguments) == ("reed", "reed", "", None)


async def test_events_of_other_agents_are_not_sent(watched: Watched) -> None:
    watched.publish(CallIntended, caller="other")
    watched.publish(CallFinished, caller="other")
    watched.bus.publish(ToolsListed(agent="other", tools=b"[]", by_name={}))
    watched.bus.publish(AgentEnded(agent="other"))
    watched.publish(CallFinished, "mine-1")
    assert (await watched.next()).call == "mine-1"
    assert watched.watch.ended is None


async def test_a_closed_watch_has_no_subscriptions() -> None:
    bus = Bus()
    with AgentWatch(bus, "mine"):
        assert CallIntended in bus.heard
    assert not bus.heard & {CallIntended, CallFinished, CallFailed, ToolsListed, AgentEnded}


# JSON in UTF-8 cannot contain surrogates.
texts = st.text(st.characters(exclude_categories=["Cs"]))
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


@given(arguments=st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), JSON, max_size=5))
def test_arguments_without_secrets_arrive_unchanged(arguments: dict[str, Any]) -> None:
    async def arrived() -> Any:
        bus = Bus()
        with AgentWatch(bus, "mine") as watch:
            watched = Watched(bus, watch)
            watched.publish(CallIntended, arguments=json.dumps(arguments).encode())
            return await watched.next()

    assert asyncio.run(arrived()).arguments == arguments


async def test_only_known_secrets_and_our_tokens_are_masked(watched: Watched) -> None:
    sent = {
        "a": "x hunter2-of-ours y\n\x1b[31m",
        "b": [{"hunter2-of-ours": "tcb_abcdefgh12345678"}],
        "password": "not ours, so it stays",
    }
    watched.publish(CallIntended, arguments=json.dumps(sent).encode(), meta={"k": "hunter2-of-ours"})
    event = await watched.next()
    assert event.arguments == {**sent, "a": "x **** y\n\x1b[31m", "b": [{"****": "****"}]}
    assert event.meta == {"k": "****"}


@pytest.mark.parametrize("extra", [0, 1], ids=["at the limit", "too large"])
async def test_of_very_large_arguments_only_the_size_is_sent(watched: Watched, extra: int) -> None:
    raw = b'{"a":"' + b"x" * (MAX_ARGUMENTS - 8 + extra) + b'"}'
    watched.publish(CallIntended, arguments=raw, meta={"big": "x" * MAX_META})
    event = await watched.next()
    assert event.arguments_size == len(raw) == MAX_ARGUMENTS + extra
    assert (event.arguments is None) is bool(extra)
    assert event.meta == {}


async def test_arguments_that_are_not_an_object_are_sent_as_none(watched: Watched) -> None:
    for raw in (b"[]", b"null", b'"x"', b"{" * 5):
        watched.publish(CallFailed, outcome="invalid", arguments=raw)
        assert (await watched.next()).arguments is None


async def test_a_listing_is_measured_as_sent_and_its_tokens_are_counted_once(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    definitions = tuple(json.dumps({"name": name, "description": "d" * 300}).encode() for name in ("read", "write"))
    by_name = Catalog.build({"files": definitions}, version=1).by_public(NameStyle.SERVER)
    shown = b"[" + by_name["files_read"].render("files_read") + b"]"
    counted: list[bytes] = []
    real = tokens.count_tokens
    monkeypatch.setattr(tokens, "count_tokens", lambda data: counted.append(data) or real(data))
    for _ in range(2):
        watched.list_tools(shown, **by_name)
        event = await watched.next()
        assert isinstance(event, ListingSeen)
        assert (event.tools, event.bytes, event.names) == (1, len(shown), {"files_read": ("files", "read")})
        assert (event.tokens, event.tokens_estimated) == real(shown)
    assert counted == [shown]


async def test_a_very_long_listing_is_counted_in_parts(watched: Watched) -> None:
    watched.list_tools(b'[{"name":"a","description":"' + b"word " * (tokens.MAX_COUNTED_BYTES // 2) + b'"}]')
    assert (await watched.next()).tokens > tokens.MAX_COUNTED_BYTES // 2


async def test_running_calls_are_finished_before_the_end_of_the_agent(watched: Watched) -> None:
    watched.publish(CallIntended)
    watched.bus.publish(AgentEnded(agent="mine"))
    assert not (await watched.next()).over
    last = asyncio.create_task(watched.next())
    await asyncio.sleep(0)
    assert not last.done(), "the call is not over yet"
    watched.publish(CallFailed, outcome="denied")
    assert (await last).outcome == "denied"
    assert await watched.next() is None


async def test_a_call_that_never_ends_does_not_delay_the_end(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "_LAST_CALLS", 0.05)
    watched.publish(CallIntended)
    watched.bus.publish(AgentEnded(agent="mine"))
    assert await watched.next() is not None
    assert await watched.next() is None


async def test_too_many_unread_events_are_dropped_and_no_more_are_kept(watched: Watched) -> None:
    for number in range(MAX_UNREAD):
        watched.publish(CallFinished, str(number))
    assert not watched.watch.overrun.is_set()
    watched.publish(CallFinished, "last")
    assert watched.watch.overrun.is_set()
    watched.publish(CallFinished, "later")
    assert not watched.watch._kept


async def test_the_backlog_is_limited_in_bytes_and_a_repeated_listing_counts_once(watched: Watched) -> None:
    raw, shown = b'{"a":"' + b"x" * (MAX_ARGUMENTS - 8) + b'"}', b"[" + b" " * 10_000_000 + b"]"
    with AgentWatch(watched.bus, "mine") as listing:
        for _ in range(100):
            watched.list_tools(shown)
        assert not listing.overrun.is_set()
    with AgentWatch(watched.bus, "mine") as calls:
        published = 0
        while not calls.overrun.is_set() and published < MAX_UNREAD:
            watched.publish(CallIntended, arguments=raw)
            published += 1
    assert published * MAX_ARGUMENTS <= watching.MAX_UNREAD_BYTES + MAX_ARGUMENTS


def test_unknown_events_and_fields_of_a_newer_daemon_are_ignored() -> None:
    assert lease_event_from({"news": {"a": 1}}) is None
    counted = {"mode": "thin", "tools": 1, "bytes": 2, "tokens": 1, "tokens_estimated": True, "at": 1.0}
    event = lease_event_from({"listed": {**counted, "names": {"a_b": ["a", "b"]}, "news": 1}})
    assert event == ListingSeen(**counted, names={"a_b": ("a", "b")})
    assert lease_event_from({"ended": {"why": "removed"}}) == LeaseEnded(why="removed")


@given(
    data=st.dictionaries(st.sampled_from(["tools", "names", "call", "at", "why"]), JSON),
    kind=st.sampled_from(["listed", "call"]),
)
def test_an_incomplete_event_is_an_error(data: dict[str, Any], kind: str) -> None:
    with pytest.raises(ValueError, match="an unexpected form"):
        lease_event_from({kind: data})
