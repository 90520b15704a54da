"""The HTTP endpoint, called in-process: the caller of a request, its project, and its open streams and calls."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from parts.gateway_harness import (
    LIMIT,
    OWNERS_TOKEN,
    Exchange,
    GatewayHarness,
    legacy_body,
    modern_body,
    modern_headers,
    opened,
)
from toolcrib.core import project as project_module
from toolcrib.errors import ANSWERS, ErrorCase
from toolcrib.gateway import auth
from toolcrib.gateway.messages import SMALL_BODY
from toolcrib.identity.sessions import Session
from toolcrib.policy import rule_from
from toolcrib.store import identity as rows
from toolcrib.store.database import Store

pytestmark = pytest.mark.req("KSI-3", "KSI-9")

DENY_WAIT = rule_from({"deny": "slow:wait"}, where="test")
Begun = tuple[Exchange, asyncio.Task[None]]


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[GatewayHarness]:
    async with opened(tmp_path) as harness:
        yield harness


async def where(harness: GatewayHarness, token: str, session: str | None = None) -> Path:
    """The project that a request works in."""
    params: dict[str, Any] = {"name": "slow_where", "arguments": {}}
    if session is None:
        answer = await harness.modern("tools/call", token, **params)
    else:
        answer = await harness.legacy(session, "tools/call", token, **params)
    return Path(answer.json["result"]["content"][0]["text"])


def session_of(harness: GatewayHarness, agent: str, conversation: str = "default") -> Session:
    session = harness.crib.services.sessions.find(agent, conversation)
    assert session is not None
    return session


async def finished(*tasks: asyncio.Task[None]) -> None:
    async with asyncio.timeout(LIMIT):
        await asyncio.gather(*tasks)


async def waiting_call(harness: GatewayHarness, token: str, session: str | None = None) -> Begun:
    """A call of the tool that waits."""
    params: dict[str, Any] = {"name": "slow_wait", "arguments": {}}
    if session is None:
        headers = modern_headers("tools/call", name="slow_wait")
        begun = harness.begin(modern_body("tools/call", **params), token, headers)
    else:
        begun = harness.begin(legacy_body("tools/call", **params), token, {"mcp-session-id": session})
    async with asyncio.timeout(LIMIT):
        await harness.slow.called.wait()
    return begun


async def open_streams(harness: GatewayHarness, session: str, token: str) -> list[Begun]:
    """A legacy client's stream, and a modern one's."""
    listen = modern_body("subscriptions/listen", notifications={"toolsListChanged": True})
    streams = [
        harness.begin(None, token, {"mcp-session-id": session}, verb="GET"),
        harness.begin(listen, token, modern_headers("subscriptions/listen")),
    ]
    for exchange, _ in streams:
        await exchange.begun()
    return streams


@pytest.mark.parametrize("mark", [".git/HEAD", ".toolcrib/config.yml", ".toolcrib/workspace.yml", ""])
async def test_an_agent_works_in_the_project_of_its_folder(harness: GatewayHarness, tmp_path: Path, mark: str) -> None:
    """A folder without a mark is its own project."""
    inner, project = tmp_path / "project" / "src" / "deep", tmp_path / "project"
    inner.mkdir(parents=True)
    if mark:
        (project / mark).parent.mkdir()
        (project / mark).touch()
    token = await harness.agent("a", workdir=inner if mark else project)
    assert await where(harness, token) == project
    assert await where(harness, token, await harness.initialize(token)) == project
    for other in (OWNERS_TOKEN, await harness.agent("b")):
        assert await where(harness, other) == harness.crib.environment.root


@pytest.mark.req("KSI-7")
async def test_a_missing_folder_is_an_error(
    harness: GatewayHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auth, "_FOLDER_CHECK_INTERVAL", 0.0)
    folder = tmp_path / "project"
    folder.mkdir()
    token = await harness.agent("a", workdir=folder)
    session = await harness.initialize(token)
    shutil.rmtree(folder)
    for answer in (
        await harness.modern("tools/list", token),
        await harness.legacy(session, "tools/list", token),
        await harness.ask(legacy_body("initialize", protocolVersion="2025-11-25"), token),
    ):
        assert (answer.status, answer.json["error"]["code"]) == (503, ANSWERS[ErrorCase.FOLDER_GONE].code)
        assert str(folder) in answer.json["error"]["message"]
    folder.mkdir()
    assert (await harness.modern("tools/list", token)).status == 200
    assert (await harness.legacy(session, "tools/list", token)).status == 200


async def test_only_unused_projects_are_released(
    harness: GatewayHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(project_module, "PRESENCE", 0.1)
    monkeypatch.setattr(project_module, "GRACE", 0.1)
    folder = tmp_path / "project"
    folder.mkdir()
    token = await harness.agent("a", workdir=folder)
    exchange, task = await waiting_call(harness, token)
    (project,) = [project for project in harness.crib.projects if project.root == folder]
    await harness.crib.projects.release_unused(project)
    assert project in list(harness.crib.projects)
    harness.slow.go_on.set()
    await finished(task)
    assert Path(exchange.json["result"]["content"][0]["text"]) == folder
    assert project.users == 0
    async with asyncio.timeout(LIMIT):
        while project in list(harness.crib.projects):  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.01)
    assert await where(harness, token) == folder


async def test_a_conversation_is_the_label_or_the_session_id_or_default(harness: GatewayHarness) -> None:
    token = await harness.agent("a")
    await harness.modern("tools/list", token)
    await harness.modern("tools/list", token, "plan")
    own = await harness.initialize(token)
    await harness.legacy(own, "tools/list", token)
    labelled = {"mcp-session-id": own, "x-toolcrib-conversation": "plan"}
    assert (await harness.ask(legacy_body("tools/list"), token, labelled)).status == 200
    await harness.initialize(token, "plan")
    found = {one.conversation: one.listings for one in harness.crib.services.sessions if one.agent == "a"}
    assert found == {"default": 1, "plan": 2, own: 1}


@pytest.mark.parametrize("label", ["x", "plan 9 (draft)", "é", "Überblick — 計画", "x" * 128])
async def test_a_printable_label_is_the_conversations_name(harness: GatewayHarness, label: str) -> None:
    assert (await harness.modern("tools/list", OWNERS_TOKEN, label)).status == 200
    assert session_of(harness, "owner", label)


@pytest.mark.parametrize("label", ["x" * 129, "a\x00b", "a\x7fb", "a\tb", "\u200b", "\u202e", "\u2028", b"\xff\xfe"])
async def test_an_unprintable_label_is_refused(harness: GatewayHarness, label: str | bytes) -> None:
    encoded = label if isinstance(label, bytes) else label.encode()
    exchange, task = harness.begin(None, OWNERS_TOKEN, modern_headers("tools/list"), late=True)
    exchange.scope["headers"].append((b"x-toolcrib-conversation", encoded))
    exchange.body.set_result(json.dumps(modern_body("tools/list")).encode())
    await finished(task)
    assert (exchange.status, exchange.json["error"]["message"]) == (400, ANSWERS[ErrorCase.CONVERSATION].text)
    assert list(harness.crib.services.sessions) == []


async def test_labels_may_be_empty_and_an_agents_label_must_be_its_name(harness: GatewayHarness) -> None:
    token = await harness.agent("a")
    for one, name, status in (
        (token, "a", 200),
        (token, "A", 403),
        (OWNERS_TOKEN, "owner", 200),
        (OWNERS_TOKEN, "", 200),
    ):
        headers = {**modern_headers("tools/list", ""), "x-toolcrib-agent": name}
        assert (await harness.ask(modern_body("tools/list"), one, headers)).status == status
    assert session_of(harness, "owner")


LARGE = {**modern_headers("tools/call", name="slow_where"), "content-length": str(SMALL_BODY + 1)}


@pytest.mark.req("BNS-10")
async def test_an_agent_without_tools_cannot_send_a_large_body(harness: GatewayHarness) -> None:
    tokens = [await harness.agent("a", profile="nothing"), await harness.agent("b", parent="a")]
    for token in tokens:
        # The body never arrives, and the answer does not wait for it.
        exchange = await harness.ask(None, token, LARGE, late=True)
        assert (exchange.status, exchange.json["error"]["message"]) == (413, "The body has more than 8192 bytes.")
        assert (await harness.modern("tools/list", token)).json["result"]["tools"] == []


@pytest.mark.req("BNS-10")
async def test_only_another_large_body_of_the_same_agent_has_to_wait(harness: GatewayHarness) -> None:
    one, other = await harness.agent("a"), await harness.agent("b")
    body = json.dumps(modern_body("tools/call", name="slow_where", arguments={"x": "y" * SMALL_BODY})).encode()
    first, second, others = (harness.begin(None, token, LARGE, late=True) for token in (one, one, other))
    second[0].body.set_result(body)
    others[0].body.set_result(body)
    await finished(others[1])
    small = modern_body("tools/list")
    headers = {**modern_headers("tools/list"), "content-length": str(len(json.dumps(small)))}
    assert (await harness.ask(small, one, headers)).status == 200
    assert not second[1].done()
    assert not second[0].asked
    first[0].body.set_result(body)
    await finished(first[1], second[1])
    assert [exchange.status for exchange, _ in (first, second, others)] == [200, 200, 200]


@pytest.mark.req("KSI-5")
@pytest.mark.parametrize("change", ["remove", "rotate"])
async def test_a_token_that_ends_before_the_body_arrives_is_refused(harness: GatewayHarness, change: str) -> None:
    token = await harness.agent("a")
    session = await harness.initialize(token)
    waiting = [
        (modern_body("tools/list"), harness.begin(None, token, modern_headers("tools/list"), late=True)),
        (legacy_body("tools/list"), harness.begin(None, token, {"mcp-session-id": session}, late=True)),
        (legacy_body("initialize", protocolVersion="2025-11-25"), harness.begin(None, token, late=True)),
    ]
    await asyncio.sleep(0)
    await getattr(harness.crib.services.agents, change)("a")
    for body, (exchange, task) in waiting:
        exchange.body.set_result(json.dumps(body).encode())
        await finished(task)
        assert exchange.status in (401, 404), exchange.text
        assert "mcp-session-id" not in exchange.headers
    assert [one.agent for one in harness.crib.services.sessions if one.conversation != session] == []


@pytest.mark.req("KSI-5")
async def test_a_listing_shows_the_tools_permitted_now(
    harness: GatewayHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = await harness.agent("a")
    waiting, released = asyncio.Event(), asyncio.Event()

    async def wait_for_new_servers(limit: float) -> None:
        waiting.set()
        await released.wait()

    monkeypatch.setattr(harness.crib.projects.home, "wait_for_new_servers", wait_for_new_servers)
    exchange, task = harness.begin(modern_body("tools/list"), token, modern_headers("tools/list"))
    async with asyncio.timeout(LIMIT):
        await waiting.wait()
    await harness.crib.services.agents.add_rule("a", DENY_WAIT)
    released.set()
    await finished(task)
    assert [tool["name"] for tool in exchange.json["result"]["tools"]] == ["slow_where", "slow_ask", "crib_result"]


async def test_a_session_is_stored_before_the_answer_and_counts_listings_and_calls(harness: GatewayHarness) -> None:
    token = await harness.agent("a")
    id = await harness.initialize(token)
    await harness.modern("tools/list", token, "plan")
    store = await Store.open(harness.crib.environment.paths.database)
    stored = {(row.agent, row.conversation) for row in await store.read(rows.all_sessions)}
    ids = {row.id for row in await store.read(rows.all_legacy_sessions)}
    await store.close()
    assert {("a", id), ("a", "plan")} <= stored
    assert id in ids
    session = session_of(harness, "a", "plan")
    first = session.permission_version
    assert session.catalog_version == harness.crib.projects.home.catalog.version
    await harness.crib.services.agents.add_rule("a", DENY_WAIT)
    await harness.modern("tools/call", token, "plan", name="slow_wait", arguments={})
    assert session.permission_version > first
    assert (session.listings, session.calls, session.denied, session.mode) == (1, 1, 1, "full")


@pytest.mark.req("KSI-5")
async def test_a_changed_permission_is_announced_on_that_agents_streams_only(harness: GatewayHarness) -> None:
    streams = {}
    for name in "ab":
        token = await harness.agent(name)
        streams[name] = await open_streams(harness, await harness.initialize(token), token)
    await harness.crib.services.agents.add_rule("a", DENY_WAIT)
    for exchange, _ in streams["a"]:
        await exchange.until(b"notifications/tools/list_changed")
    await harness.crib.services.agents.remove("b")
    for exchange, task in streams["b"]:
        await finished(task)
        assert b"list_changed" not in exchange.text


@pytest.mark.parametrize("change", ["remove", "rotate"])
async def test_streams_and_calls_end_with_their_token(harness: GatewayHarness, change: str) -> None:
    token = await harness.agent("a")
    session = await harness.initialize(token)
    streams = await open_streams(harness, session, token)
    call, calling = await waiting_call(harness, token, session)
    await getattr(harness.crib.services.agents, change)("a")
    await finished(calling, *(task for _, task in streams))
    assert call.json["result"]["isError"] is True
    assert "may not use slow:wait" in call.json["result"]["content"][0]["text"]
    assert b'"result"' in streams[1][0].text
    assert harness.gateway._streams == {}
    assert len(harness.gateway._legacy) == 0
    kept = [one for one in harness.crib.services.sessions if one.agent == "a"]
    assert bool(kept) is (change == "rotate")
    assert all(one.open_requests is None for one in kept)
    assert (await harness.legacy(session, "tools/list", token)).status == 401


async def test_ending_a_session_ends_its_calls_and_streams_and_no_others(harness: GatewayHarness) -> None:
    token = await harness.agent("a")
    ids = [await harness.initialize(token) for _ in range(2)]
    streams = [harness.begin(None, token, {"mcp-session-id": id}, verb="GET") for id in ids]
    for exchange, _ in streams:
        await exchange.begun()
    call, calling = await waiting_call(harness, token, ids[0])
    await harness.crib.services.sessions.end(session_of(harness, "a", ids[0]))
    await finished(calling, streams[0][1])
    assert (call.status, call.json["error"]["message"]) == (200, ANSWERS[ErrorCase.ENDED].text)
    assert not streams[1][1].done()
    assert (await harness.legacy(ids[0], "ping", token)).status == 404
    assert (await harness.legacy(ids[1], "ping", token)).status == 200


async def test_nothing_is_kept_of_a_client_without_open_requests(harness: GatewayHarness) -> None:
    session = await harness.initialize(OWNERS_TOKEN)
    for method in ("ping", "tools/list", "nonsense"):
        await harness.legacy(session, method, OWNERS_TOKEN)
    cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
    await harness.ask(cancel, OWNERS_TOKEN, {"mcp-session-id": session})
    stream, task = harness.begin(None, OWNERS_TOKEN, {"mcp-session-id": session}, verb="GET")
    await stream.begun()
    assert len(harness.gateway._legacy) == 1
    stream.leave()
    await finished(task)
    assert len(harness.gateway._legacy) == 0
    assert harness.gateway._streams == {}
    held = harness.crib.services.sessions.legacy(session, "owner")
    assert held is not None
    assert held.open_requests is None
    assert harness.crib.projects.home.users == 0


async def test_deleting_a_session_ends_its_calls_and_streams(harness: GatewayHarness) -> None:
    session = await harness.initialize(OWNERS_TOKEN)
    _, streaming = harness.begin(None, OWNERS_TOKEN, {"mcp-session-id": session}, verb="GET")
    call, calling = await waiting_call(harness, OWNERS_TOKEN, session)
    answer = await harness.ask(None, OWNERS_TOKEN, {"mcp-session-id": session}, verb="DELETE")
    await finished(streaming, calling)
    assert answer.status == 200
    assert call.json["error"]["message"] == ANSWERS[ErrorCase.CANCELLED].text
    assert (await harness.legacy(session, "ping", OWNERS_TOKEN)).status == 404
    assert len(harness.crib.services.sessions) == 0


@pytest.mark.req("KSI-7")
async def test_a_stopping_endpoint_ends_its_streams_and_refuses_requests(harness: GatewayHarness) -> None:
    token = await harness.agent("a")
    streams = await open_streams(harness, await harness.initialize(token), token)
    harness.gateway.close()
    await finished(*(task for _, task in streams))
    answer = await harness.modern("tools/list", token)
    assert (answer.status, answer.json["error"]["message"]) == (503, ANSWERS[ErrorCase.STOPPING].text)
    assert (await harness.modern("tools/list", "wrong")).status == 401
