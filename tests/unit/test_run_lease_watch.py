"""What a run is told of its agent: all of it, in order, nothing of others, and never so much that it piles up."""

from __future__ import annotations

import asyncio
import json
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


def said(kind: type[CallIntended | CallFinished], call: str = "c1", *, caller: str = "mine", **more: Any) -> Any:
    usual: dict[str, Any] = {
        "call_id": call,
        "caller": caller,
        "name": "files_read",
        "tool": "files:read",
        "server": "files",
        "decision": "allow",
        "rule": "profile developer: allow *:*",
        "arguments": b'{"path":"a"}',
        "meta": {},
    }
    over = {} if kind is CallIntended else {"outcome": "ok", "duration": 0.25}
    return kind(**{**usual, **over, **more})


async def next_note(watch: AgentWatch, redact: Masker) -> Any:
    async with asyncio.timeout(LIMIT):
        seen = await watch.next()
        if seen is None:
            return None
        # Over the socket and back.
        return lease_event_from(json.loads(json.dumps(await event_json(seen, redact.known))))


@pytest.fixture
def redact() -> Masker:
    return Masker({"hunter2-of-ours"})


async def test_a_call_is_told_at_its_start_and_at_its_end(redact: Masker) -> None:
    bus = Bus()
    with AgentWatch(bus, "mine") as watch:
        bus.publish(said(CallIntended, meta={"claudecode/toolUseId": "t1"}, at=1.0))
        bus.publish(said(CallFinished, at=2.0))
        bus.publish(said(CallFailed, "c2", outcome="denied", decision="deny", rule="deny files:*", at=3.0))
        bus.publish(said(CallFailed, "c3", outcome="unknown", name="reed", tool="reed", server="", arguments=None))
        notes = [await next_note(watch, redact) for _ in range(4)]
    assert notes[0] == CallSeen(
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
    assert (notes[1].call, notes[1].over, notes[1].outcome, notes[1].duration_ms) == ("c1", True, "ok", 250.0)
    assert notes[1].arguments == {"path": "a"}
    assert (notes[2].outcome, notes[2].decision, notes[2].rule) == ("denied", "deny", "deny files:*")
    assert (notes[3].name, notes[3].tool, notes[3].server, notes[3].arguments) == ("reed", "reed", "", None)


async def test_other_agents_are_not_told_of(redact: Masker) -> None:
    bus = Bus()
    with AgentWatch(bus, "mine") as watch:
        bus.publish(said(CallIntended, caller="other"))
        bus.publish(said(CallFinished, caller="other"))
        bus.publish(ToolsListed(agent="other", tools=b"[]", by_name={}))
        bus.publish(AgentEnded(agent="other"))
        bus.publish(said(CallFinished, "mine-1"))
        assert (await next_note(watch, redact)).call == "mine-1"
        assert watch.ended is None


async def test_nobody_listens_any_more_once_the_watch_is_over() -> None:
    bus = Bus()
    with AgentWatch(bus, "mine"):
        assert CallIntended in bus.heard
    assert not bus.heard & {CallIntended, CallFinished, CallFailed, ToolsListed, AgentEnded}


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    # What no JSON in UTF-8 can hold cannot arrive.
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


@given(arguments=st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), JSON, max_size=5))
def test_arguments_without_secrets_arrive_exactly_as_they_were_sent(arguments: dict[str, Any]) -> None:
    redact = Masker({"hunter2-of-ours"})

    async def told() -> Any:
        bus = Bus()
        with AgentWatch(bus, "mine") as watch:
            bus.publish(said(CallIntended, arguments=json.dumps(arguments).encode()))
            return await next_note(watch, redact)

    assert asyncio.run(told()).arguments == arguments


async def test_known_secrets_and_our_tokens_are_hidden_wherever_they_stand_and_nothing_else_is(
    redact: Masker,
) -> None:
    sent = {
        "a": "x hunter2-of-ours y\n\x1b[31m",
        "b": [{"hunter2-of-ours": "tcb_abcdefgh12345678"}],
        "password": "not ours, so it stays",
    }
    bus = Bus()
    with AgentWatch(bus, "mine") as watch:
        bus.publish(said(CallIntended, arguments=json.dumps(sent).encode(), meta={"k": "hunter2-of-ours"}))
        note = await next_note(watch, redact)
    assert note.arguments == {
        "a": "x **** y\n\x1b[31m",
        "b": [{"****": "****"}],
        "password": "not ours, so it stays",
    }
    assert note.meta == {"k": "****"}


@pytest.mark.parametrize("extra", [0, 1], ids=["just so large", "too large"])
async def test_of_very_large_arguments_only_the_size_is_told(extra: int, redact: Masker) -> None:
    raw = b'{"a":"' + b"x" * (MAX_ARGUMENTS - 8 + extra) + b'"}'
    bus = Bus()
    with AgentWatch(bus, "mine") as watch:
        bus.publish(said(CallIntended, arguments=raw, meta={"big": "x" * MAX_META}))
        note = await next_note(watch, redact)
    assert note.arguments_size == len(raw) == MAX_ARGUMENTS + extra
    assert (note.arguments is None) is bool(extra)
    assert note.meta == {}


@pytest.mark.parametrize("raw", [b"[]", b"null", b'"x"', b"{" * 5])
async def test_arguments_that_are_no_object_are_told_as_none(raw: bytes, redact: Masker) -> None:
    bus = Bus()
    with AgentWatch(bus, "mine") as watch:
        bus.publish(said(CallFailed, outcome="invalid", arguments=raw))
        assert (await next_note(watch, redact)).arguments is None


async def test_a_listing_is_measured_as_it_was_handed_out_and_counted_once(
    redact: Masker, monkeypatch: pytest.MonkeyPatch
) -> None:
    definitions = tuple(json.dumps({"name": name, "description": "d" * 300}).encode() for name in ("read", "write"))
    catalog = Catalog.build({"files": definitions}, version=1)
    by_name = catalog.by_public(NameStyle.SERVER)
    shown = b"[" + by_name["files_read"].render("files_read") + b"]"
    counted: list[bytes] = []
    real = tokens.count_tokens
    monkeypatch.setattr(watching, "count_tokens", lambda data: counted.append(data) or real(data))
    bus = Bus()
    with AgentWatch(bus, "mine") as watch:
        for _ in range(2):
            bus.publish(ToolsListed(agent="mine", tools=shown, by_name=by_name))
        notes = [await next_note(watch, redact) for _ in range(2)]
    for note in notes:
        assert isinstance(note, ListingSeen)
        assert (note.tools, note.bytes) == (1, len(shown))
        assert (note.tokens, note.tokens_estimated) == real(shown)
        assert note.names == {"files_read": ("files", "read")}
    assert counted == [shown]


async def test_a_list_too_long_for_one_count_is_counted_all_the_same(redact: Masker) -> None:
    shown = b'[{"name":"a","description":"' + b"word " * (tokens.MAX_COUNTED_BYTES // 2) + b'"}]'
    bus = Bus()
    with AgentWatch(bus, "mine") as watch:
        bus.publish(ToolsListed(agent="mine", tools=shown, by_name={}))
        assert (await next_note(watch, redact)).tokens > tokens.MAX_COUNTED_BYTES // 2


async def test_what_is_under_way_when_the_agent_ends_is_told_before_the_end(redact: Masker) -> None:
    bus = Bus()
    with AgentWatch(bus, "mine") as watch:
        bus.publish(said(CallIntended))
        bus.publish(AgentEnded(agent="mine"))
        assert not (await next_note(watch, redact)).over
        last = asyncio.create_task(next_note(watch, redact))
        await asyncio.sleep(0)
        assert not last.done(), "the call is not over yet"
        bus.publish(said(CallFailed, outcome="denied"))
        assert (await last).outcome == "denied"
        assert await next_note(watch, redact) is None


async def test_a_call_that_never_ends_does_not_hold_up_the_end(redact: Masker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "_LAST_CALLS", 0.05)
    bus = Bus()
    with AgentWatch(bus, "mine") as watch:
        bus.publish(said(CallIntended))
        bus.publish(AgentEnded(agent="mine"))
        assert await next_note(watch, redact) is not None
        assert await next_note(watch, redact) is None


async def test_too_many_unread_notes_are_dropped_and_nothing_is_kept_from_then_on() -> None:
    bus = Bus()
    with AgentWatch(bus, "mine") as watch:
        for number in range(MAX_UNREAD):
            bus.publish(said(CallFinished, str(number)))
        assert not watch.overrun.is_set()
        bus.publish(said(CallFinished, "last"))
        assert watch.overrun.is_set()
        bus.publish(said(CallFinished, "later"))
        assert not watch._kept


async def test_large_notes_overrun_sooner_and_the_same_listing_counts_once() -> None:
    bus = Bus()
    raw, shown = b'{"a":"' + b"x" * (MAX_ARGUMENTS - 8) + b'"}', b"[" + b" " * 10_000_000 + b"]"
    with AgentWatch(bus, "mine") as watch:
        for _ in range(100):
            bus.publish(ToolsListed(agent="mine", tools=shown, by_name={}))
        assert not watch.overrun.is_set()
    with AgentWatch(bus, "mine") as watch:
        published = 0
        while not watch.overrun.is_set() and published < MAX_UNREAD:
            bus.publish(said(CallIntended, arguments=raw))
            published += 1
    assert published * MAX_ARGUMENTS <= watching.MAX_UNREAD_BYTES + MAX_ARGUMENTS


def test_what_a_newer_daemon_may_tell_besides_is_passed_over() -> None:
    assert lease_event_from({"news": {"a": 1}}) is None
    counted = {"tools": 1, "bytes": 2, "tokens": 1, "tokens_estimated": True}
    listed = {**counted, "names": {"a_b": ["a", "b"]}, "at": 1.0, "news": 1}
    assert lease_event_from({"listed": listed}) == ListingSeen(
        tools=1, bytes=2, tokens=1, tokens_estimated=True, names={"a_b": ("a", "b")}, at=1.0
    )
    assert lease_event_from({"ended": {"why": "removed"}}) == LeaseEnded(why="removed")


@given(
    told=st.dictionaries(st.sampled_from(["tools", "names", "call", "at", "why"]), JSON),
    kind=st.sampled_from(["listed", "call"]),
)
def test_what_cannot_be_understood_is_an_error_and_never_a_guess(told: dict[str, Any], kind: str) -> None:
    with pytest.raises(ValueError, match="an unexpected form"):
        lease_event_from({kind: told})
