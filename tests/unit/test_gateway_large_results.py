"""Large results through the gateway: what each caller gets, and who can read the rest."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from parts.gateway_harness import GatewayHarness, opened
from toolcrib.gateway.large_results import RESULT_KEY
from toolcrib.identity import kept_results
from toolcrib.identity.agent import ErrorForm
from toolcrib.policy import rule_from
from toolcrib.servers.model import ServerAnswer

pytestmark = pytest.mark.req("KSI-9")

LIMIT = 3000
TEXT = "".join(f"line {number}\n" for number in range(2000))
RESULT = json.dumps({"content": [{"type": "text", "text": TEXT}]}).encode()
Json = dict[str, Any]


class Scene:
    def __init__(self, harness: GatewayHarness) -> None:
        self.harness = harness
        self.answer(RESULT)

    def answer(self, result: bytes) -> None:
        async def call(*args: Any, **more: Any) -> ServerAnswer:
            return ServerAnswer(result=result)

        setattr(self.harness.slow, "call", call)  # noqa: B010 - mypy

    async def call(self, token: str, tool: str = "slow_where", **arguments: Any) -> Json:
        exchange = await self.harness.modern("tools/call", token, name=tool, arguments=arguments)
        found: Json = exchange.json["result"]
        return found

    async def shortened(self, token: str, tool: str = "slow_where", **arguments: Any) -> str:
        """The id."""
        made = await self.call(token, tool, **arguments)
        assert made["content"][0]["text"].startswith("line 0\n")
        id: str = made["_meta"][RESULT_KEY]
        return id

    async def read(self, token: str, id: str, **wanted: Any) -> Json:
        return await self.call(token, "crib_result", id=id, **wanted)

    async def can_read(self, token: str, id: str) -> bool:
        answer = await self.read(token, id)
        text = answer["content"][0]["text"]
        if answer.get("isError"):
            assert text.startswith(f"There is no result '{id}'."), text
            assert "line" not in text
            return False
        return bool(TEXT.startswith(text.partition("\n[Page")[0]))


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    (tmp_path / "t").mkdir(mode=0o700)
    (tmp_path / "t" / "config.yml").write_text("result_tokens: 1000\n")
    async with opened(tmp_path) as harness:
        yield Scene(harness)


async def test_a_large_result_is_shortened_for_clients_of_both_eras_and_all_of_it_can_be_read(scene: Scene) -> None:
    token = await scene.harness.agent("ann")
    modern = await scene.call(token)
    assert modern["resultType"] == "complete"
    session = await scene.harness.initialize(token)
    exchange = await scene.harness.legacy(session, "tools/call", token, name="slow_where", arguments={})
    for made in (modern, exchange.json["result"]):
        assert len(json.dumps(made)) <= LIMIT + 100
        whole, page = "", 1
        while "Next: page=" in (
            text := (await scene.read(token, made["_meta"][RESULT_KEY], page=page))["content"][0]["text"]
        ):
            whole, page = whole + text.rpartition("\n[Page")[0], page + 1
        assert whole + text.rpartition("\n[Page")[0] == TEXT


async def test_programs_get_whole_results(scene: Scene) -> None:
    minted = await scene.harness.crib.services.agents.add("program", profile="developer", errors=ErrorForm.HTTP)
    assert (await scene.call(minted.token))["content"][0]["text"] == TEXT


async def test_a_result_is_unknown_to_other_agents(scene: Scene) -> None:
    ann, bob = await scene.harness.agent("ann"), await scene.harness.agent("bob")
    id = await scene.shortened(ann)
    assert await scene.can_read(ann, id)
    assert not await scene.can_read(bob, id)
    assert not await scene.can_read(ann, kept_results.new_id())


async def test_a_result_is_unknown_to_a_later_agent_of_the_same_name(scene: Scene) -> None:
    id = await scene.shortened(await scene.harness.agent("ann"))
    await scene.harness.crib.services.agents.remove("ann")
    assert not await scene.can_read(await scene.harness.agent("ann"), id)


async def test_a_result_is_unknown_as_soon_as_its_tool_is_not_permitted(scene: Scene) -> None:
    token, agents = await scene.harness.agent("ann"), scene.harness.crib.services.agents
    where, wait = await scene.shortened(token), await scene.shortened(token, "slow_wait")
    deny = rule_from({"deny": "slow:wait"}, where="test")
    await agents.add_rule("ann", deny)
    assert await scene.can_read(token, where)
    assert not await scene.can_read(token, wait)
    await agents.drop_rule("ann", deny)
    assert await scene.can_read(token, wait)
    await agents.add_rule("ann", rule_from({"ask": "slow:wait"}, where="test"))
    assert await scene.can_read(token, wait)


async def test_a_result_is_unknown_if_a_call_with_its_arguments_is_no_longer_permitted(scene: Scene) -> None:
    token = await scene.harness.agent("ann")
    secret, public = await scene.shortened(token, about="secret"), await scene.shortened(token, about="public")
    rule = rule_from({"deny": "slow:where", "when": {"about": {"one_of": ["secret"]}}}, where="test")
    await scene.harness.crib.services.agents.add_rule("ann", rule)
    assert not await scene.can_read(token, secret)
    assert await scene.can_read(token, public)


async def test_a_result_is_unknown_when_its_tool_is_gone(scene: Scene) -> None:
    token = await scene.harness.agent("ann")
    id = await scene.shortened(token)
    kept = await scene.harness.crib.services.results.open("ann", id)
    gone = kept_results.KeptResult("slow", "removed", kept.arguments, kept.result)
    other = kept_results.new_id()
    assert await scene.harness.crib.services.results.keep("ann", other, gone)
    assert not await scene.can_read(token, other)


async def test_an_expired_result_is_unknown(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    token = await scene.harness.agent("ann")
    id, now = await scene.shortened(token), time.time()
    monkeypatch.setattr(time, "time", lambda: now + kept_results.LIVES + 1)
    assert not await scene.can_read(token, id)


async def test_a_result_can_be_read_after_a_restart(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir(mode=0o700)
    (tmp_path / "t" / "config.yml").write_text("result_tokens: 1000\n")
    async with opened(tmp_path) as harness:
        token = await harness.agent("ann")
        id = await Scene(harness).shortened(token)
    (tmp_path / "home").rmdir()
    async with opened(tmp_path) as harness:
        assert await Scene(harness).can_read(token, id)


async def test_a_result_that_cannot_be_kept_arrives_whole(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = await scene.harness.agent("ann")
    monkeypatch.setattr(kept_results, "MAX_AGENT_BYTES", 100)
    assert (await scene.call(token))["content"][0]["text"] == TEXT
    monkeypatch.undo()
    (tmp_path / "t" / "state" / "results").write_text("not a folder")
    assert (await scene.call(token))["content"][0]["text"] == TEXT


async def test_our_own_errors_are_not_shortened(scene: Scene) -> None:
    token = await scene.harness.agent("ann")
    answer = await scene.read(token, "r_000000000000", path="x" * 5000)
    assert answer["isError"] is True
    assert RESULT_KEY not in json.dumps(answer)


async def test_the_results_of_a_batch_share_what_the_client_takes(scene: Scene) -> None:
    token = await scene.harness.agent("ann")
    made = await scene.call(token, "crib_batch", calls=[{"tool": "slow_where"}] * 5)
    assert len(json.dumps(made)) <= LIMIT + 600
    ids = re.findall(r"crib_result\(id=\\?\"(\w+)", json.dumps(made))
    assert len(ids) == 5
    assert all([await scene.can_read(token, id) for id in ids])


async def test_one_agents_reads_hold_one_result_at_a_time(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    token = await scene.harness.agent("ann")
    id = await scene.shortened(token)
    real, opened_now, most = kept_results.KeptResults.open, 0, 0

    async def counting(self: kept_results.KeptResults, agent: str, id: str) -> kept_results.KeptResult:
        nonlocal opened_now, most
        opened_now += 1
        most = max(most, opened_now)
        try:
            return await real(self, agent, id)
        finally:
            opened_now -= 1

    monkeypatch.setattr(kept_results.KeptResults, "open", counting)
    reads = await asyncio.gather(*(scene.call(token, "crib_result", id=id) for _ in range(10)))
    assert all("line 0" in one["content"][0]["text"] for one in reads)
    assert most == 1
