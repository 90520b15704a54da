"""The endpoint from within: who a request comes from, where it works, and what is left open when that changes."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

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
from toolcrib.core import projects as projects_module
from toolcrib.errors import ANSWERS, ErrorCase
from toolcrib.gateway import auth
from toolcrib.gateway.messages import SMALL_BODY
from toolcrib.policy import rule_from
from toolcrib.store import identity as rows
from toolcrib.store.database import Store

pytestmark = pytest.mark.req("KSI-3", "KSI-9")


def where(answer: Exchange) -> Path:
    return Path(answer.json["result"]["content"][0]["text"])


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[GatewayHarness]:
    async with opened(tmp_path) as harness:
        yield harness


class TestWhereARequestWorks:
    async def test_the_owner_and_agents_without_a_folder_work_at_home(self, harness: GatewayHarness) -> None:
        token = await harness.agent("a")
        for one in (OWNERS_TOKEN, token):
            answer = await harness.modern("tools/call", one, name="slow_where", arguments={})
            assert where(answer) == harness.crib.environment.root

    @pytest.mark.parametrize("mark", [".git/HEAD", ".toolcrib/config.yml", ".toolcrib/workspace.yml"])
    async def test_an_agent_works_in_the_project_of_its_folder(
        self, harness: GatewayHarness, tmp_path: Path, mark: str
    ) -> None:
        inner = tmp_path / "project" / "src" / "deep"
        inner.mkdir(parents=True)
        file = tmp_path / "project" / mark
        file.parent.mkdir()
        file.touch()
        token = await harness.agent("a", workdir=inner)
        assert where(await harness.modern("tools/call", token, name="slow_where", arguments={})) == tmp_path / "project"
        session = await harness.initialize(token)
        answer = await harness.legacy(session, "tools/call", token, name="slow_where", arguments={})
        assert where(answer) == tmp_path / "project"

    async def test_a_folder_without_a_mark_is_its_own_project(self, harness: GatewayHarness, tmp_path: Path) -> None:
        (tmp_path / "plain").mkdir()
        token = await harness.agent("a", workdir=tmp_path / "plain")
        assert where(await harness.modern("tools/call", token, name="slow_where", arguments={})) == tmp_path / "plain"

    @pytest.mark.req("KSI-7")
    async def test_a_folder_that_is_gone_is_told_and_one_that_is_back_is_used(
        self, harness: GatewayHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(auth, "_FOLDER_CHECK_INTERVAL", 0.0)
        folder = tmp_path / "project"
        folder.mkdir()
        token = await harness.agent("a", workdir=folder)
        session = await harness.initialize(token)
        shutil.rmtree(folder)
        answers = [
            await harness.modern("tools/list", token),
            await harness.legacy(session, "tools/list", token),
            await harness.ask(legacy_body("initialize", protocolVersion="2025-11-25"), token),
        ]
        for answer in answers:
            assert answer.status == 503
            assert str(folder) in answer.json["error"]["message"]
            assert answer.json["error"]["code"] == ANSWERS[ErrorCase.FOLDER_GONE].code
        folder.mkdir()
        assert (await harness.modern("tools/list", token)).status == 200
        assert (await harness.legacy(session, "tools/list", token)).status == 200

    async def test_a_project_in_use_is_not_let_go_and_one_out_of_use_is(
        self, harness: GatewayHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(projects_module, "PROJECT_LINGER", 0.1)
        folder = tmp_path / "project"
        folder.mkdir()
        token = await harness.agent("a", workdir=folder)

        def held() -> bool:
            return any(project.root == folder for project in harness.crib.projects)

        exchange, task = harness.begin(
            modern_body("tools/call", name="slow_wait", arguments={}),
            token,
            modern_headers("tools/call", name="slow_wait"),
        )
        async with asyncio.timeout(LIMIT):
            await harness.slow.called.wait()
        project = next(project for project in harness.crib.projects if project.root == folder)
        await harness.crib.projects.release_unused(project)
        assert held()
        harness.slow.go_on.set()
        async with asyncio.timeout(LIMIT):
            await task
        assert where(exchange) == folder
        assert project.users == 0
        for _ in range(500):
            if not held():
                break
            await asyncio.sleep(0.01)
        assert not held()
        assert where(await harness.modern("tools/call", token, name="slow_where", arguments={})) == folder


class TestLabels:
    async def test_a_conversation_is_the_label_else_the_session_id_else_default(self, harness: GatewayHarness) -> None:
        token = await harness.agent("a")
        await harness.modern("tools/list", token)
        await harness.modern("tools/list", token, "plan")
        own = await harness.initialize(token)
        await harness.legacy(own, "tools/list", token)
        await harness.initialize(token, "plan")
        found = {one.conversation: one for one in harness.crib.services.sessions if one.agent == "a"}
        assert found.keys() == {"default", "plan", own}
        assert {name: one.listings for name, one in found.items()} == {"default": 1, "plan": 1, own: 1}

    async def test_the_label_of_a_request_counts_also_within_a_legacy_session(self, harness: GatewayHarness) -> None:
        token = await harness.agent("a")
        session = await harness.initialize(token)
        headers = {"mcp-session-id": session, "x-toolcrib-conversation": "plan"}
        assert (await harness.ask(legacy_body("tools/list"), token, headers)).status == 200
        plan = harness.crib.services.sessions.find("a", "plan")
        assert plan is not None
        assert plan.listings == 1

    @pytest.mark.parametrize("label", ["x", "plan 9 (draft)", "é", "Überblick — 計画", "x" * 128])
    async def test_a_printable_label_names_the_conversation_as_it_is(self, harness: GatewayHarness, label: str) -> None:
        assert (await harness.modern("tools/list", OWNERS_TOKEN, label)).status == 200
        assert harness.crib.services.sessions.find("owner", label) is not None

    @pytest.mark.parametrize("label", ["x" * 129, "a\x00b", "a\x7fb", "a\tb", "\u200b", "\u202e", "\u2028"])
    async def test_a_label_that_cannot_be_shown_is_refused(self, harness: GatewayHarness, label: str) -> None:
        answer = await harness.modern("tools/list", OWNERS_TOKEN, label)
        assert (answer.status, answer.json["error"]["message"]) == (400, ANSWERS[ErrorCase.CONVERSATION].text)
        assert [one.conversation for one in harness.crib.services.sessions] == []

    async def test_bytes_that_are_no_text_are_no_label(self, harness: GatewayHarness) -> None:
        exchange, task = harness.begin(modern_body("tools/list"), OWNERS_TOKEN, modern_headers("tools/list"))
        task.cancel()
        exchange.scope["headers"].append((b"x-toolcrib-conversation", b"\xff\xfe"))
        again = Exchange(exchange.scope, json.dumps(modern_body("tools/list")).encode())
        await harness.gateway(again.scope, again.receive, again.send)
        assert again.status == 400

    async def test_empty_labels_say_nothing(self, harness: GatewayHarness) -> None:
        headers = {**modern_headers("tools/list", ""), "x-toolcrib-agent": ""}
        assert (await harness.ask(modern_body("tools/list"), OWNERS_TOKEN, headers)).status == 200
        assert harness.crib.services.sessions.find("owner", "default") is not None

    async def test_the_agents_own_name_is_no_contradiction(self, harness: GatewayHarness) -> None:
        token = await harness.agent("a")
        for one, name, status in ((token, "a", 200), (token, "A", 403), (OWNERS_TOKEN, "owner", 200)):
            headers = {**modern_headers("tools/list"), "x-toolcrib-agent": name}
            assert (await harness.ask(modern_body("tools/list"), one, headers)).status == status


class TestLargeBodies:
    @pytest.mark.req("BNS-10")
    async def test_who_may_use_no_tool_sends_no_large_body(self, harness: GatewayHarness) -> None:
        token = await harness.agent("a", profile="nothing")
        for parent in (None, "a"):
            one = token if parent is None else await harness.agent("b", profile="developer", parent=parent)
            headers = {**modern_headers("tools/call", name="slow_where"), "content-length": str(SMALL_BODY + 1)}
            # The body never comes: nobody waits for it.
            exchange = await harness.ask(None, one, headers, late=True)
            assert (exchange.status, exchange.json["error"]["message"]) == (413, "The body has more than 8192 bytes.")
            assert (await harness.modern("tools/list", one)).json["result"]["tools"] == []

    @pytest.mark.req("BNS-10")
    async def test_a_large_body_is_not_taken_in_while_the_agents_last_one_is(self, harness: GatewayHarness) -> None:
        one, other = await harness.agent("a"), await harness.agent("b")
        headers = {**modern_headers("tools/call", name="slow_where"), "content-length": str(SMALL_BODY + 1)}
        body = json.dumps(modern_body("tools/call", name="slow_where", arguments={"x": "y" * SMALL_BODY})).encode()
        first, second, others = (harness.begin(None, token, headers, late=True) for token in (one, one, other))
        second[0].body.set_result(body)
        others[0].body.set_result(body)
        async with asyncio.timeout(LIMIT):
            await others[1]
            assert not second[1].done()
            assert not second[0].asked
            first[0].body.set_result(body)
            await asyncio.gather(first[1], second[1])
        assert [exchange.status for exchange, _ in (first, second, others)] == [200, 200, 200]

    async def test_a_small_body_waits_for_none(self, harness: GatewayHarness) -> None:
        token = await harness.agent("a")
        headers = {**modern_headers("tools/call", name="slow_where"), "content-length": str(SMALL_BODY + 1)}
        harness.begin(None, token, headers, late=True)
        small = modern_body("tools/list")
        headers = {**modern_headers("tools/list"), "content-length": str(len(json.dumps(small)))}
        assert (await harness.ask(small, token, headers)).status == 200


class TestTheMomentOfUse:
    """Between the gate and the answer a request may wait; what counts is what holds when it is acted on."""

    @pytest.mark.req("KSI-5")
    @pytest.mark.parametrize("change", ["remove", "rotate"])
    async def test_a_token_that_ends_while_the_body_is_on_its_way_is_worth_nothing(
        self, harness: GatewayHarness, change: str
    ) -> None:
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
            async with asyncio.timeout(LIMIT):
                await task
            assert exchange.status in (401, 404), exchange.text
            assert "mcp-session-id" not in exchange.headers
        assert [one.agent for one in harness.crib.services.sessions if one.conversation != session] == []

    @pytest.mark.req("KSI-5")
    async def test_a_listing_that_waited_shows_what_is_permitted_now(
        self, harness: GatewayHarness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        token = await harness.agent("a")
        waiting, go_on = asyncio.Event(), asyncio.Event()

        async def wait_for_new_servers(limit: float) -> None:
            waiting.set()
            await go_on.wait()

        monkeypatch.setattr(harness.crib.projects.home, "wait_for_new_servers", wait_for_new_servers)
        exchange, task = harness.begin(modern_body("tools/list"), token, modern_headers("tools/list"))
        async with asyncio.timeout(LIMIT):
            await waiting.wait()
            await harness.crib.services.agents.add_rule("a", rule_from({"deny": "slow:wait"}, where="test"))
            go_on.set()
            await task
        assert [tool["name"] for tool in exchange.json["result"]["tools"]] == ["slow_where"]

    async def test_a_session_is_in_the_store_before_the_answer_leaves(self, harness: GatewayHarness) -> None:
        token = await harness.agent("a")
        id = await harness.initialize(token)
        await harness.modern("tools/list", token, "plan")
        store = await Store.open(harness.crib.environment.paths.database)
        stored = {(row.agent, row.conversation) for row in await store.read(rows.all_sessions)}
        ids = {row.id for row in await store.read(rows.all_legacy_sessions)}
        await store.close()
        assert {("a", id), ("a", "plan")} <= stored
        assert id in ids

    async def test_the_session_records_what_it_was_shown(self, harness: GatewayHarness) -> None:
        token = await harness.agent("a")
        await harness.modern("tools/list", token)
        session = harness.crib.services.sessions.find("a", "default")
        assert session is not None
        first = session.permission_version
        assert session.catalog_version == harness.crib.projects.home.catalog.version
        await harness.crib.services.agents.add_rule("a", rule_from({"deny": "slow:wait"}, where="test"))
        await harness.modern("tools/call", token, name="slow_wait", arguments={})
        assert session.permission_version > first
        assert (session.listings, session.calls, session.denied, session.mode) == (1, 1, 1, "full")


class TestWhatIsOpen:
    def streams(self, harness: GatewayHarness, session: str, token: str) -> list[tuple[Exchange, asyncio.Task[None]]]:
        listen = {"notifications": {"toolsListChanged": True}}
        return [
            harness.begin(None, token, {"mcp-session-id": session}, verb="GET"),
            harness.begin(modern_body("subscriptions/listen", **listen), token, modern_headers("subscriptions/listen")),
        ]

    @pytest.mark.req("KSI-5")
    async def test_a_changed_permission_is_told_on_the_streams_of_that_agent(self, harness: GatewayHarness) -> None:
        tokens = {name: await harness.agent(name) for name in "ab"}
        streams = {
            name: self.streams(harness, await harness.initialize(token), token) for name, token in tokens.items()
        }
        for exchange, _ in (one for two in streams.values() for one in two):
            await exchange.begun()
        await harness.crib.services.agents.add_rule("a", rule_from({"deny": "slow:wait"}, where="test"))
        for exchange, _ in streams["a"]:
            await exchange.until(b"notifications/tools/list_changed")
        await harness.crib.services.agents.remove("b")
        for exchange, task in streams["b"]:
            async with asyncio.timeout(LIMIT):
                await task
            assert b"list_changed" not in exchange.text

    @pytest.mark.parametrize("change", ["remove", "rotate"])
    async def test_streams_and_calls_end_with_their_token(self, harness: GatewayHarness, change: str) -> None:
        token = await harness.agent("a")
        session = await harness.initialize(token)
        streams = self.streams(harness, session, token)
        call, calling = harness.begin(
            legacy_body("tools/call", name="slow_wait", arguments={}), token, {"mcp-session-id": session}
        )
        for exchange, _ in streams:
            await exchange.begun()
        async with asyncio.timeout(LIMIT):
            await harness.slow.called.wait()
            await getattr(harness.crib.services.agents, change)("a")
            await asyncio.gather(calling, *(task for _, task in streams))
        assert call.json["result"]["isError"] is True
        assert "may not use slow:wait" in call.json["result"]["content"][0]["text"]
        assert b'"result"' in streams[1][0].text
        assert harness.gateway._streams == {}
        assert len(harness.gateway._legacy) == 0
        kept = [one for one in harness.crib.services.sessions if one.agent == "a"]
        assert bool(kept) is (change == "rotate")
        assert all(one.open_requests is None for one in kept)
        assert (await harness.legacy(session, "tools/list", token)).status == 401

    async def test_a_session_ended_by_hand_cuts_its_calls_and_streams_short_and_no_others(
        self, harness: GatewayHarness
    ) -> None:
        token = await harness.agent("a")
        ids = [await harness.initialize(token) for _ in range(2)]
        open_now = [harness.begin(None, token, {"mcp-session-id": id}, verb="GET") for id in ids]
        call, calling = harness.begin(
            legacy_body("tools/call", name="slow_wait", arguments={}), token, {"mcp-session-id": ids[0]}
        )
        for exchange, _ in open_now:
            await exchange.begun()
        async with asyncio.timeout(LIMIT):
            await harness.slow.called.wait()
            session = harness.crib.services.sessions.find("a", ids[0])
            assert session is not None
            await harness.crib.services.sessions.end(session)
            await calling
            await open_now[0][1]
        assert (call.status, call.json["error"]["message"]) == (200, ANSWERS[ErrorCase.ENDED].text)
        assert not open_now[1][1].done()
        assert (await harness.legacy(ids[0], "ping", token)).status == 404
        assert (await harness.legacy(ids[1], "ping", token)).status == 200

    async def test_nothing_is_kept_of_a_connection_that_has_nothing_open(self, harness: GatewayHarness) -> None:
        session = await harness.initialize(OWNERS_TOKEN)
        for method in ("ping", "tools/list", "nonsense"):
            await harness.legacy(session, method, OWNERS_TOKEN)
        await harness.ask(
            {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}},
            OWNERS_TOKEN,
            {"mcp-session-id": session},
        )
        stream, task = harness.begin(None, OWNERS_TOKEN, {"mcp-session-id": session}, verb="GET")
        await stream.begun()
        assert len(harness.gateway._legacy) == 1
        stream.leave()
        async with asyncio.timeout(LIMIT):
            await task
        assert len(harness.gateway._legacy) == 0
        assert harness.gateway._streams == {}
        held = harness.crib.services.sessions.legacy(session, "owner")
        assert held is not None
        assert held.open_requests is None
        assert harness.crib.projects.home.users == 0

    async def test_a_client_that_deletes_its_session_ends_what_it_had_open(self, harness: GatewayHarness) -> None:
        session = await harness.initialize(OWNERS_TOKEN)
        _, streaming = harness.begin(None, OWNERS_TOKEN, {"mcp-session-id": session}, verb="GET")
        call, calling = harness.begin(
            legacy_body("tools/call", name="slow_wait", arguments={}), OWNERS_TOKEN, {"mcp-session-id": session}
        )
        async with asyncio.timeout(LIMIT):
            await harness.slow.called.wait()
            answer = await harness.ask(None, OWNERS_TOKEN, {"mcp-session-id": session}, verb="DELETE")
            await asyncio.gather(streaming, calling)
        assert answer.status == 200
        assert call.json["error"]["message"] == ANSWERS[ErrorCase.CANCELLED].text
        assert (await harness.legacy(session, "ping", OWNERS_TOKEN)).status == 404
        assert len(harness.crib.services.sessions) == 0

    @pytest.mark.req("KSI-7")
    async def test_a_stopping_endpoint_says_so_and_hangs_up(self, harness: GatewayHarness) -> None:
        token = await harness.agent("a")
        session = await harness.initialize(token)
        streams = self.streams(harness, session, token)
        for exchange, _ in streams:
            await exchange.begun()
        async with asyncio.timeout(LIMIT):
            harness.gateway.close()
            await asyncio.gather(*(task for _, task in streams))
        answer = await harness.modern("tools/list", token)
        assert (answer.status, answer.json["error"]["message"]) == (503, ANSWERS[ErrorCase.STOPPING].text)
        assert (await harness.modern("tools/list", "wrong")).status == 401
