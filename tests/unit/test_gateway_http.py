"""The endpoint from within: who a request comes from, where it works, and what is left open when that changes."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from parts.house import LIMIT, OWNERS_TOKEN, Exchange, House, legacy_body, modern_body, modern_headers, opened
from toolcrib.core import projects as projects_module
from toolcrib.errors import ANSWERS, ErrorCase
from toolcrib.gateway import auth
from toolcrib.gateway.messages import SMALL
from toolcrib.policy import rule_from
from toolcrib.store import identity as rows
from toolcrib.store.database import Store

pytestmark = pytest.mark.req("KSI-3", "KSI-9")


def where(answer: Exchange) -> Path:
    return Path(answer.json["result"]["content"][0]["text"])


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with opened(tmp_path) as house:
        yield house


class TestWhereARequestWorks:
    async def test_the_owner_and_agents_without_a_folder_work_at_home(self, house: House) -> None:
        token = await house.agent("a")
        for one in (OWNERS_TOKEN, token):
            answer = await house.modern("tools/call", one, name="slow_where", arguments={})
            assert where(answer) == house.crib.environment.root

    @pytest.mark.parametrize("mark", [".git/HEAD", ".toolcrib/config.yml", ".toolcrib/workspace.yml"])
    async def test_an_agent_works_in_the_project_of_its_folder(self, house: House, tmp_path: Path, mark: str) -> None:
        inner = tmp_path / "project" / "src" / "deep"
        inner.mkdir(parents=True)
        file = tmp_path / "project" / mark
        file.parent.mkdir()
        file.touch()
        token = await house.agent("a", workdir=inner)
        assert where(await house.modern("tools/call", token, name="slow_where", arguments={})) == tmp_path / "project"
        session = await house.initialize(token)
        answer = await house.legacy(session, "tools/call", token, name="slow_where", arguments={})
        assert where(answer) == tmp_path / "project"

    async def test_a_folder_without_a_mark_is_its_own_project(self, house: House, tmp_path: Path) -> None:
        (tmp_path / "plain").mkdir()
        token = await house.agent("a", workdir=tmp_path / "plain")
        assert where(await house.modern("tools/call", token, name="slow_where", arguments={})) == tmp_path / "plain"

    @pytest.mark.req("KSI-7")
    async def test_a_folder_that_is_gone_is_told_and_one_that_is_back_is_used(
        self, house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(auth, "_LOOK_AGAIN", 0.0)
        folder = tmp_path / "project"
        folder.mkdir()
        token = await house.agent("a", workdir=folder)
        session = await house.initialize(token)
        shutil.rmtree(folder)
        answers = [
            await house.modern("tools/list", token),
            await house.legacy(session, "tools/list", token),
            await house.ask(legacy_body("initialize", protocolVersion="2025-11-25"), token),
        ]
        for answer in answers:
            assert answer.status == 503
            assert str(folder) in answer.json["error"]["message"]
            assert answer.json["error"]["code"] == ANSWERS[ErrorCase.FOLDER_GONE].code
        folder.mkdir()
        assert (await house.modern("tools/list", token)).status == 200
        assert (await house.legacy(session, "tools/list", token)).status == 200

    async def test_a_project_in_use_is_not_let_go_and_one_out_of_use_is(
        self, house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(projects_module, "PROJECT_LINGER", 0.1)
        folder = tmp_path / "project"
        folder.mkdir()
        token = await house.agent("a", workdir=folder)

        def held() -> bool:
            return any(project.root == folder for project in house.crib.projects)

        exchange, task = house.begin(
            modern_body("tools/call", name="slow_wait", arguments={}),
            token,
            modern_headers("tools/call", name="slow_wait"),
        )
        async with asyncio.timeout(LIMIT):
            await house.slow.called.wait()
        project = next(project for project in house.crib.projects if project.root == folder)
        await house.crib.projects.release_unused(project)
        assert held()
        house.slow.go_on.set()
        async with asyncio.timeout(LIMIT):
            await task
        assert where(exchange) == folder
        assert project.users == 0
        for _ in range(500):
            if not held():
                break
            await asyncio.sleep(0.01)
        assert not held()
        assert where(await house.modern("tools/call", token, name="slow_where", arguments={})) == folder


class TestLabels:
    async def test_a_conversation_is_the_label_else_the_session_id_else_default(self, house: House) -> None:
        token = await house.agent("a")
        await house.modern("tools/list", token)
        await house.modern("tools/list", token, "plan")
        own = await house.initialize(token)
        await house.legacy(own, "tools/list", token)
        await house.initialize(token, "plan")
        found = {one.conversation: one for one in house.crib.services.sessions if one.agent == "a"}
        assert found.keys() == {"default", "plan", own}
        assert {name: one.listings for name, one in found.items()} == {"default": 1, "plan": 1, own: 1}

    async def test_the_label_of_a_request_counts_also_within_a_legacy_session(self, house: House) -> None:
        token = await house.agent("a")
        session = await house.initialize(token)
        headers = {"mcp-session-id": session, "x-toolcrib-conversation": "plan"}
        assert (await house.ask(legacy_body("tools/list"), token, headers)).status == 200
        plan = house.crib.services.sessions.find("a", "plan")
        assert plan is not None
        assert plan.listings == 1

    @pytest.mark.parametrize("label", ["x", "plan 9 (draft)", "é", "Überblick — 計画", "x" * 128])
    async def test_a_printable_label_names_the_conversation_as_it_is(self, house: House, label: str) -> None:
        assert (await house.modern("tools/list", OWNERS_TOKEN, label)).status == 200
        assert house.crib.services.sessions.find("owner", label) is not None

    @pytest.mark.parametrize("label", ["x" * 129, "a\x00b", "a\x7fb", "a\tb", "\u200b", "\u202e", "\u2028"])
    async def test_a_label_that_cannot_be_shown_is_refused(self, house: House, label: str) -> None:
        answer = await house.modern("tools/list", OWNERS_TOKEN, label)
        assert (answer.status, answer.json["error"]["message"]) == (400, ANSWERS[ErrorCase.CONVERSATION].text)
        assert [one.conversation for one in house.crib.services.sessions] == []

    async def test_bytes_that_are_no_text_are_no_label(self, house: House) -> None:
        exchange, task = house.begin(modern_body("tools/list"), OWNERS_TOKEN, modern_headers("tools/list"))
        task.cancel()
        exchange.scope["headers"].append((b"x-toolcrib-conversation", b"\xff\xfe"))
        again = Exchange(exchange.scope, json.dumps(modern_body("tools/list")).encode())
        await house.gateway(again.scope, again.receive, again.send)
        assert again.status == 400

    async def test_empty_labels_say_nothing(self, house: House) -> None:
        headers = {**modern_headers("tools/list", ""), "x-toolcrib-agent": ""}
        assert (await house.ask(modern_body("tools/list"), OWNERS_TOKEN, headers)).status == 200
        assert house.crib.services.sessions.find("owner", "default") is not None

    async def test_the_agents_own_name_is_no_contradiction(self, house: House) -> None:
        token = await house.agent("a")
        for one, name, status in ((token, "a", 200), (token, "A", 403), (OWNERS_TOKEN, "owner", 200)):
            headers = {**modern_headers("tools/list"), "x-toolcrib-agent": name}
            assert (await house.ask(modern_body("tools/list"), one, headers)).status == status


class TestLargeBodies:
    @pytest.mark.req("BNS-10")
    async def test_who_may_use_no_tool_sends_no_large_body(self, house: House) -> None:
        token = await house.agent("a", profile="nothing")
        for parent in (None, "a"):
            one = token if parent is None else await house.agent("b", profile="developer", parent=parent)
            headers = {**modern_headers("tools/call", name="slow_where"), "content-length": str(SMALL + 1)}
            # The body never comes: nobody waits for it.
            exchange = await house.ask(None, one, headers, late=True)
            assert (exchange.status, exchange.json["error"]["message"]) == (413, "The body has more than 8192 bytes.")
            assert (await house.modern("tools/list", one)).json["result"]["tools"] == []

    @pytest.mark.req("BNS-10")
    async def test_a_large_body_is_not_taken_in_while_the_agents_last_one_is(self, house: House) -> None:
        one, other = await house.agent("a"), await house.agent("b")
        headers = {**modern_headers("tools/call", name="slow_where"), "content-length": str(SMALL + 1)}
        body = json.dumps(modern_body("tools/call", name="slow_where", arguments={"x": "y" * SMALL})).encode()
        first, second, others = (house.begin(None, token, headers, late=True) for token in (one, one, other))
        second[0].body.set_result(body)
        others[0].body.set_result(body)
        async with asyncio.timeout(LIMIT):
            await others[1]
            assert not second[1].done()
            assert not second[0].asked
            first[0].body.set_result(body)
            await asyncio.gather(first[1], second[1])
        assert [exchange.status for exchange, _ in (first, second, others)] == [200, 200, 200]

    async def test_a_small_body_waits_for_none(self, house: House) -> None:
        token = await house.agent("a")
        headers = {**modern_headers("tools/call", name="slow_where"), "content-length": str(SMALL + 1)}
        house.begin(None, token, headers, late=True)
        small = modern_body("tools/list")
        headers = {**modern_headers("tools/list"), "content-length": str(len(json.dumps(small)))}
        assert (await house.ask(small, token, headers)).status == 200


class TestTheMomentOfUse:
    """Between the gate and the answer a request may wait; what counts is what holds when it is acted on."""

    @pytest.mark.req("KSI-5")
    @pytest.mark.parametrize("change", ["remove", "rotate"])
    async def test_a_token_that_ends_while_the_body_is_on_its_way_is_worth_nothing(
        self, house: House, change: str
    ) -> None:
        token = await house.agent("a")
        session = await house.initialize(token)
        waiting = [
            (modern_body("tools/list"), house.begin(None, token, modern_headers("tools/list"), late=True)),
            (legacy_body("tools/list"), house.begin(None, token, {"mcp-session-id": session}, late=True)),
            (legacy_body("initialize", protocolVersion="2025-11-25"), house.begin(None, token, late=True)),
        ]
        await asyncio.sleep(0)
        await getattr(house.crib.services.agents, change)("a")
        for body, (exchange, task) in waiting:
            exchange.body.set_result(json.dumps(body).encode())
            async with asyncio.timeout(LIMIT):
                await task
            assert exchange.status in (401, 404), exchange.text
            assert "mcp-session-id" not in exchange.headers
        assert [one.agent for one in house.crib.services.sessions if one.conversation != session] == []

    @pytest.mark.req("KSI-5")
    async def test_a_listing_that_waited_shows_what_is_permitted_now(
        self, house: House, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        token = await house.agent("a")
        waiting, go_on = asyncio.Event(), asyncio.Event()

        async def wait_for_new_servers(limit: float) -> None:
            waiting.set()
            await go_on.wait()

        monkeypatch.setattr(house.crib.projects.home, "wait_for_new_servers", wait_for_new_servers)
        exchange, task = house.begin(modern_body("tools/list"), token, modern_headers("tools/list"))
        async with asyncio.timeout(LIMIT):
            await waiting.wait()
            await house.crib.services.agents.add_rule("a", rule_from({"deny": "slow:wait"}, where="test"))
            go_on.set()
            await task
        assert [tool["name"] for tool in exchange.json["result"]["tools"]] == ["slow_where"]

    async def test_a_session_is_in_the_store_before_the_answer_leaves(self, house: House) -> None:
        token = await house.agent("a")
        id = await house.initialize(token)
        await house.modern("tools/list", token, "plan")
        store = await Store.open(house.crib.environment.paths.database)
        stored = {(row.agent, row.conversation) for row in await store.read(rows.all_sessions)}
        ids = {row.id for row in await store.read(rows.all_legacy_sessions)}
        await store.close()
        assert {("a", id), ("a", "plan")} <= stored
        assert id in ids

    async def test_the_session_records_what_it_was_shown(self, house: House) -> None:
        token = await house.agent("a")
        await house.modern("tools/list", token)
        session = house.crib.services.sessions.find("a", "default")
        assert session is not None
        first = session.permission_version
        assert session.catalog_version == house.crib.projects.home.catalog.version
        await house.crib.services.agents.add_rule("a", rule_from({"deny": "slow:wait"}, where="test"))
        await house.modern("tools/call", token, name="slow_wait", arguments={})
        assert session.permission_version > first
        assert (session.listings, session.calls, session.denied, session.mode) == (1, 1, 1, "full")


class TestWhatIsOpen:
    def streams(self, house: House, session: str, token: str) -> list[tuple[Exchange, asyncio.Task[None]]]:
        listen = {"notifications": {"toolsListChanged": True}}
        return [
            house.begin(None, token, {"mcp-session-id": session}, verb="GET"),
            house.begin(modern_body("subscriptions/listen", **listen), token, modern_headers("subscriptions/listen")),
        ]

    @pytest.mark.req("KSI-5")
    async def test_a_changed_permission_is_told_on_the_streams_of_that_agent(self, house: House) -> None:
        tokens = {name: await house.agent(name) for name in "ab"}
        streams = {name: self.streams(house, await house.initialize(token), token) for name, token in tokens.items()}
        for exchange, _ in (one for two in streams.values() for one in two):
            await exchange.begun()
        await house.crib.services.agents.add_rule("a", rule_from({"deny": "slow:wait"}, where="test"))
        for exchange, _ in streams["a"]:
            await exchange.until(b"notifications/tools/list_changed")
        await house.crib.services.agents.remove("b")
        for exchange, task in streams["b"]:
            async with asyncio.timeout(LIMIT):
                await task
            assert b"list_changed" not in exchange.text

    @pytest.mark.parametrize("change", ["remove", "rotate"])
    async def test_streams_and_calls_end_with_their_token(self, house: House, change: str) -> None:
        token = await house.agent("a")
        session = await house.initialize(token)
        streams = self.streams(house, session, token)
        call, calling = house.begin(
            legacy_body("tools/call", name="slow_wait", arguments={}), token, {"mcp-session-id": session}
        )
        for exchange, _ in streams:
            await exchange.begun()
        async with asyncio.timeout(LIMIT):
            await house.slow.called.wait()
            await getattr(house.crib.services.agents, change)("a")
            await asyncio.gather(calling, *(task for _, task in streams))
        assert call.json["result"]["isError"] is True
        assert "may not use slow:wait" in call.json["result"]["content"][0]["text"]
        assert b'"result"' in streams[1][0].text
        assert house.gateway._streams == {}
        assert len(house.gateway._legacy) == 0
        kept = [one for one in house.crib.services.sessions if one.agent == "a"]
        assert bool(kept) is (change == "rotate")
        assert all(one.open_requests is None for one in kept)
        assert (await house.legacy(session, "tools/list", token)).status == 401

    async def test_a_session_ended_by_hand_cuts_its_calls_and_streams_short_and_no_others(self, house: House) -> None:
        token = await house.agent("a")
        ids = [await house.initialize(token) for _ in range(2)]
        open_now = [house.begin(None, token, {"mcp-session-id": id}, verb="GET") for id in ids]
        call, calling = house.begin(
            legacy_body("tools/call", name="slow_wait", arguments={}), token, {"mcp-session-id": ids[0]}
        )
        for exchange, _ in open_now:
            await exchange.begun()
        async with asyncio.timeout(LIMIT):
            await house.slow.called.wait()
            session = house.crib.services.sessions.find("a", ids[0])
            assert session is not None
            await house.crib.services.sessions.end(session)
            await calling
            await open_now[0][1]
        assert (call.status, call.json["error"]["message"]) == (200, ANSWERS[ErrorCase.ENDED].text)
        assert not open_now[1][1].done()
        assert (await house.legacy(ids[0], "ping", token)).status == 404
        assert (await house.legacy(ids[1], "ping", token)).status == 200

    async def test_nothing_is_kept_of_a_connection_that_has_nothing_open(self, house: House) -> None:
        session = await house.initialize(OWNERS_TOKEN)
        for method in ("ping", "tools/list", "nonsense"):
            await house.legacy(session, method, OWNERS_TOKEN)
        await house.ask(
            {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}},
            OWNERS_TOKEN,
            {"mcp-session-id": session},
        )
        stream, task = house.begin(None, OWNERS_TOKEN, {"mcp-session-id": session}, verb="GET")
        await stream.begun()
        assert len(house.gateway._legacy) == 1
        stream.leave()
        async with asyncio.timeout(LIMIT):
            await task
        assert len(house.gateway._legacy) == 0
        assert house.gateway._streams == {}
        held = house.crib.services.sessions.legacy(session, "owner")
        assert held is not None
        assert held.open_requests is None
        assert house.crib.projects.home.users == 0

    async def test_a_client_that_deletes_its_session_ends_what_it_had_open(self, house: House) -> None:
        session = await house.initialize(OWNERS_TOKEN)
        _, streaming = house.begin(None, OWNERS_TOKEN, {"mcp-session-id": session}, verb="GET")
        call, calling = house.begin(
            legacy_body("tools/call", name="slow_wait", arguments={}), OWNERS_TOKEN, {"mcp-session-id": session}
        )
        async with asyncio.timeout(LIMIT):
            await house.slow.called.wait()
            answer = await house.ask(None, OWNERS_TOKEN, {"mcp-session-id": session}, verb="DELETE")
            await asyncio.gather(streaming, calling)
        assert answer.status == 200
        assert call.json["error"]["message"] == ANSWERS[ErrorCase.CANCELLED].text
        assert (await house.legacy(session, "ping", OWNERS_TOKEN)).status == 404
        assert len(house.crib.services.sessions) == 0

    @pytest.mark.req("KSI-7")
    async def test_a_stopping_endpoint_says_so_and_hangs_up(self, house: House) -> None:
        token = await house.agent("a")
        session = await house.initialize(token)
        streams = self.streams(house, session, token)
        for exchange, _ in streams:
            await exchange.begun()
        async with asyncio.timeout(LIMIT):
            house.gateway.close()
            await asyncio.gather(*(task for _, task in streams))
        answer = await house.modern("tools/list", token)
        assert (answer.status, answer.json["error"]["message"]) == (503, ANSWERS[ErrorCase.STOPPING].text)
        assert (await house.modern("tools/list", "wrong")).status == 401
