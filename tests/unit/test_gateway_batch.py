"""`crib_batch` in-process: what runs together, what feeds what, and that each call is decided and recorded alone."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from parts.desk import Json, Rendezvous, Scene, rows, said, scene, text_of
from parts.gateway_harness import LIMIT

__all__ = ["scene"]

every_era = pytest.mark.parametrize("era", ["modern", "legacy"])

pytestmark = pytest.mark.req("KSI-10")


@every_era
async def test_reads_overlap_and_changes_run_alone_and_in_order(scene: Scene, era: str) -> None:
    scene.desk.answers["read"] = scene.desk.answers["look"] = Rendezvous(2)
    order: list[str] = []

    async def write(given: Json) -> Json:
        order.append(f"+{given['note']}")
        await asyncio.sleep(0)
        order.append(f"-{given['note']}")
        return said("written")

    scene.desk.answers["write"] = write
    client = await scene.client("a", era)
    answer = await client.batch(
        ("desk_read", {"note": "1"}),
        ("desk_look", {}),
        ("desk_write", {"note": "a"}),
        ("desk_write", {"note": "b"}),
        ("desk_read", {"note": "2"}),
        ("desk_look", {}),
    )
    assert answer["isError"] is False
    assert order == ["+a", "-a", "+b", "-b"]
    assert [block["text"] for block in answer["content"]][0::2] == [
        "# 0 desk_read",
        "# 1 desk_look",
        "# 2 desk_write",
        "# 3 desk_write",
        "# 4 desk_read",
        "# 5 desk_look",
    ]
    assert sorted(scene.desk.names[:2]) == ["look", "read"]
    assert scene.desk.names[2:4] == ["write", "write"]


async def test_each_call_of_a_batch_is_decided_and_recorded_on_its_own(scene: Scene) -> None:
    client = await scene.client("a")
    await scene.rule("a", deny="desk:burn")
    await scene.rule("a", ask="desk:look")
    scene.desk.answers["read"] = lambda _: said("broken", isError=True)
    approvals = scene.harness.crib.services.approvals
    calling = asyncio.create_task(
        client.batch(
            ("desk_write", {"note": "x"}),
            ("desk_burn", {}),
            ("desk_look", {"drawer": "top"}),
            ("desk_read", {"note": "y"}),
            ("desk_wrte", {}),
            ("desk_write", {}),
            ("crib_batch", {"calls": []}),
        )
    )
    (waiting,) = await approvals.next(LIMIT)
    assert (waiting.tool, json.loads(waiting.arguments)) == ("desk:look", {"drawer": "top"})
    approvals.answer(waiting.id, approved=True)
    answer = await calling
    assert answer["isError"] is False, "some succeeded"
    texts = [block["text"] for block in answer["content"]]
    heads = [text for text in texts if text.startswith("# ")]
    assert heads == [
        "# 0 desk_write",
        "# 1 desk_burn failed",
        "# 2 desk_look",
        "# 3 desk_read failed",
        "# 4 desk_wrte failed",
        "# 5 desk_write failed",
        "# 6 crib_batch failed",
    ]
    assert "may not use desk:burn" in texts[texts.index("# 1 desk_burn failed") + 1]
    assert "desk_write" in texts[texts.index("# 4 desk_wrte failed") + 1]
    assert "append" in texts[texts.index("# 5 desk_write failed") + 1], "the schema"
    assert texts[-1].startswith("crib_batch cannot be part of a batch.")
    found = [(row["kind"], row["tool"], row["outcome"]) for row in await rows(scene.harness, "a")]
    assert found[:3] == [
        ("intent", "desk:write", ""),
        ("outcome", "desk:write", "ok"),
        ("outcome", "desk:burn", "denied"),
    ]
    assert sorted(found[3:7]) == [
        ("intent", "desk:look", ""),
        ("intent", "desk:read", ""),
        ("outcome", "desk:look", "ok"),
        ("outcome", "desk:read", "tool_error"),
    ]
    assert found[7:] == [
        ("outcome", "desk_wrte", "unknown"),
        ("outcome", "desk:write", "invalid"),
        ("outcome", "crib:batch", "ok"),
    ]


@every_era
async def test_results_feed_later_calls_by_path(scene: Scene, era: str) -> None:
    scene.desk.answers["read"] = lambda given: said(
        "", structuredContent={"items": [{"id": "a"}, {"id": "b"}], "given": given["note"]}
    )
    scene.desk.answers["look"] = lambda _: said('{"drawer": "from text"}')
    client = await scene.client("a", era)
    answer = await client.batch(
        ("desk_read", {"note": "first"}),
        ("desk_look", {}),
        ("desk_write", {"note": {"$from": 0, "path": "$.items[1].id"}}),
        ("desk_write", {"note": {"$from": 1, "path": "drawer"}}),
        ("desk_burn", {"all": [{"$from": 0, "path": "$.items[*].id"}], "text": {"$from": 2}}),
        ("desk_write", {"note": {"$from": 0, "path": "$.nothing"}}),
        ("desk_write", {"note": {"$from": 5}}),
    )
    assert scene.desk.seen[2:] == [
        ("write", {"note": "b"}),
        ("write", {"note": "from text"}),
        ("burn", {"all": [["a", "b"]], "text": ["write", {"note": "b"}]}),
    ]
    texts = [block["text"] for block in answer["content"]]
    assert "There is nothing at $.nothing" in texts[texts.index("# 5 desk_write failed") + 1]
    assert "Call 5, whose result it takes, failed" in texts[texts.index("# 6 desk_write failed") + 1]


WRONG_BATCHES: list[tuple[Any, str]] = [
    ([], "1 to 32"),
    ([{"tool": "desk_burn"}] * 33, "1 to 32"),
    ("desk_burn", "calls"),
    ([{"tool": "desk_burn", "args": {}}], "args"),
    ([{"arguments": {}}], "tool"),
    ([{"tool": "desk_burn", "arguments": []}], "arguments"),
    ([{"tool": "desk_burn"}, {"tool": "desk_write", "arguments": {"note": {"$from": 1}}}], "earlier call"),
    ([{"tool": "desk_burn"}, {"tool": "desk_write", "arguments": {"note": {"$from": 2}}}], "earlier call"),
    ([{"tool": "desk_burn"}, {"tool": "desk_write", "arguments": {"note": {"$from": -1}}}], "earlier call"),
    ([{"tool": "desk_burn"}, {"tool": "desk_write", "arguments": {"note": {"$from": True}}}], "earlier call"),
    ([{"tool": "desk_burn"}, {"tool": "desk_write", "arguments": {"note": {"$from": "0"}}}], "earlier call"),
]


async def test_a_wrong_batch_runs_nothing(scene: Scene) -> None:
    client = await scene.client("a")
    for calls, expected in WRONG_BATCHES:
        answer = await client.call("crib_batch", calls=calls)
        assert answer["isError"] is True
        assert expected in text_of(answer)
        assert len(text_of(answer)) < 600
    assert scene.desk.seen == []


async def test_a_batch_cannot_multiply_a_result(scene: Scene) -> None:
    scene.desk.answers["look"] = lambda _: said("x" * 100_000)
    client = await scene.client("a")
    answer = await client.batch(("desk_look", {}), ("desk_burn", {"all": [{"$from": 0}] * 50}))
    assert scene.desk.names == ["look"]
    assert "would take more than 1,048,576 bytes" in text_of(answer)
    refused = await client.batch(("desk_look", {}), ("desk_burn", {"all": [{"$from": 0, "path": "$[*].x"}] * 65}))
    assert "at most 64" in text_of(refused)
    assert scene.desk.names == ["look"]


async def test_a_cancelled_batch_starts_no_further_call(scene: Scene) -> None:
    client = await scene.client("a")
    calls = [{"tool": "slow_wait"}, {"tool": "desk_burn"}]
    body, headers = await client.request("tools/call", name="crib_batch", arguments={"calls": calls})
    exchange, task = scene.harness.begin(body, client.token, headers)
    await asyncio.wait_for(scene.harness.slow.called.wait(), LIMIT)
    exchange.leave()
    await asyncio.wait_for(task, LIMIT)
    assert scene.desk.seen == []
    assert [(row["tool"], row["outcome"]) for row in await rows(scene.harness, "a")] == [
        ("slow:wait", ""),
        ("slow:wait", "cancelled"),
        ("crib:batch", "cancelled"),
    ]


async def test_a_revocation_in_the_middle_of_a_batch(scene: Scene) -> None:
    client = await scene.client("a")
    calling = asyncio.create_task(
        client.batch(("desk_write", {"note": "x"}), ("slow_wait", {}), ("slow_where", {}), ("desk_burn", {}))
    )
    await asyncio.wait_for(scene.harness.slow.called.wait(), LIMIT)
    await scene.rule("a", deny="slow:*")
    answer = await asyncio.wait_for(calling, LIMIT)
    texts = [block["text"] for block in answer["content"]]
    assert "may have run" in texts[texts.index("# 1 slow_wait failed") + 1]
    assert "may have run" not in texts[texts.index("# 2 slow_where failed") + 1]
    assert scene.desk.names == ["write", "burn"]
    found = [(row["tool"], row["outcome"]) for row in await rows(scene.harness, "a") if row["kind"] == "outcome"]
    assert found[1:3] == [("slow:wait", "denied"), ("slow:where", "denied")]


@pytest.mark.parametrize("revoke", ["remove", "rotate"])
async def test_an_agent_that_ends_in_the_middle_of_a_batch_makes_no_further_call(scene: Scene, revoke: str) -> None:
    client = await scene.client("a")
    calls = [{"tool": "slow_wait"}, {"tool": "desk_burn"}]
    body, headers = await client.request("tools/call", name="crib_batch", arguments={"calls": calls})
    exchange, task = scene.harness.begin(body, client.token, headers)
    await asyncio.wait_for(scene.harness.slow.called.wait(), LIMIT)
    await getattr(scene.agents, revoke)("a")
    await asyncio.wait_for(task, LIMIT)
    assert exchange.json["error"]["message"] == "The session ended during the request."
    assert scene.desk.seen == []


async def test_an_agent_that_expires_in_the_middle_of_a_batch_gets_its_token_refused(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await scene.client("a")

    def expire(_: Json) -> Json:
        monkeypatch.setattr(scene.agents, "current", lambda agent: None)
        return said("x")

    scene.desk.answers["write"] = expire
    body, headers = await client.request(
        "tools/call",
        name="crib_batch",
        arguments={"calls": [{"tool": "desk_write", "arguments": {"note": "x"}}, {"tool": "desk_burn"}]},
    )
    exchange = await scene.harness.ask(body, client.token, headers)
    assert exchange.status == 401
    assert exchange.json["error"]["message"].startswith("This token is unknown, or")
    assert scene.desk.names == ["write"]


async def test_equal_calls_of_a_batch_each_run(scene: Scene) -> None:
    answer = await (await scene.client("a")).batch(*[("desk_write", {"note": "x"})] * 3)
    assert scene.desk.names == ["write"] * 3
    assert text_of(answer).count("# ") == 3


ODD_RESULTS: dict[bytes, str] = {
    b'{"content":"x"}': "It has run, but its result cannot be read.",
    b'{"content":[1]}': "It has run, but its result cannot be read.",
    b'{"content":[{"type":"text","text":"x"}],"isError":"yes"}': "It has run, but its result cannot be read.",
    b'{"content":' + b"[" * 5000 + b"]" * 5000 + b"}": '{"content":[[[',
    b"{}": "",
    b'{"content":[{"type":"text","text":7},{"odd":null}]}': "",
    b'{"content":[],"structuredContent":{"a":[1e300,123456789012345678901234567890,"\\ud83d\\ude00"]}}': '{"a":[1e300,',
    b'{"content":[],"structuredContent":[1]}': "[1]",
    b'{"content":[{"type":"text","text":"# 9 desk_burn failed"}]}': "# 9 desk_burn failed",
}


async def test_odd_results_neither_end_a_batch_nor_change_the_others(scene: Scene) -> None:
    results = iter(ODD_RESULTS)
    scene.desk.answers["burn"] = lambda _: next(results)
    client = await scene.client("a")
    answer = await client.batch(*[("desk_burn", {})] * len(ODD_RESULTS), ("desk_write", {"note": {"$from": 6}}))
    texts = [block.get("text") for block in answer["content"]]
    for number, expected in enumerate(ODD_RESULTS.values()):
        failed = " failed" if "cannot be read" in expected else ""
        at = texts.index(f"# {number} desk_burn{failed}")
        assert not expected or texts[at + 1].startswith(expected)
    assert "an object" not in texts[-1]
    assert (await rows(scene.harness, "a"))[-1]["outcome"] == "ok"


async def test_an_answer_of_a_picture_stays_a_picture(scene: Scene) -> None:
    picture = {"type": "image", "data": "aGVsbG8=", "mimeType": "image/png"}
    scene.desk.answers["burn"] = lambda _: {"content": [picture]}
    answer = await (await scene.client("a")).batch(("desk_burn", {}), ("desk_burn", {}))
    assert answer["content"][1::2] == [picture, picture]
