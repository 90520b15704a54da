"""Many clients that are asked at once, and calls that are continued, abandoned or lost while their client is asked."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from parts.agent_clients import ERAS, Owner, all_at_once
from parts.asked_clients import AskedClient, Json, Turn, retried
from parts.daemon import Cli, Daemon, Home, StartDaemon
from parts.gateway_harness import META, modern_headers, opened
from parts.server_process import StartServer
from parts.sizes import sized
from parts.upstreams import UPSTREAMS, Upstreams, connect_upstreams
from parts.waiting import wait_for
from toolcrib.gateway import parking

pytestmark = [pytest.mark.slow, pytest.mark.req("KSI-5", "KSI-9")]

AGENTS = 10
LIMIT = 60.0


def form(message: str) -> Json:
    schema = {"type": "object", "properties": {"said": {"type": "string"}}, "required": ["said"]}
    return {"method": "elicitation/create", "params": {"mode": "form", "message": message, "requestedSchema": schema}}


def accepted(said: str) -> Json:
    return {"action": "accept", "content": {"said": said}}


def echoed(question: Json) -> Json:
    """Repeats the last word of the question."""
    return accepted(question["params"]["message"].rpartition(" ")[2])


def memory(daemon: Daemon) -> int:
    """Its proportional share of memory, in bytes."""
    rollup = Path(f"/proc/{daemon.pid}/smaps_rollup").read_text()
    return 1024 * next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))


@pytest.fixture(scope="module")
def upstreams(
    shared_home: Home,
    start_shared_server: StartServer,
    start_shared_daemon: StartDaemon,
    parts: Callable[[str], list[str]],
) -> Upstreams:
    parts("mcp-v1")
    return connect_upstreams(shared_home, start_shared_server, start_shared_daemon)


@pytest.fixture(scope="module")
def tokens(upstreams: Upstreams) -> list[str]:
    owner = Owner(upstreams.daemon)
    return [owner.add(f"agent{number}", profile="developer") for number in range(AGENTS)]


@pytest.mark.parametrize("upstream", ["http_legacy", "http_modern"])
@pytest.mark.parametrize("era", ERAS)
def test_no_answer_goes_astray_among_many_clients_with_equal_ids(
    upstreams: Upstreams, tokens: list[str], era: str, upstream: str
) -> None:
    count = sized(40, 200)
    everyone_is_asked = threading.Barrier(count)

    def one(number: int) -> Turn:
        mark = f"{era}-{upstream}-{number}"
        with AskedClient.at_endpoint(upstreams.daemon, era, tokens[number % AGENTS]) as client:
            turn = client.call(f"{upstream}_ask", {"rounds": [{"q": form(f"Say {mark}")}], "mark": mark})
            everyone_is_asked.wait(LIMIT)
            return client.finish(turn, echoed)

    turns = all_at_once(one, random.sample(range(count), count))
    said = {turn.result["structuredContent"]["q"]["content"]["said"] for turn in turns}
    assert said == {f"{era}-{upstream}-{number}" for number in range(count)}
    for number in range(count):
        mark = f"{era}-{upstream}-{number}"
        assert len(upstreams.all_seen(upstream, "asking", f'"{mark}"')) == 1, "the call ran once"
        (note,) = upstreams.all_seen(upstream, "answered", f'"name": "{mark}"')
        assert note["arguments"] == {"q": accepted(mark)}


@pytest.mark.parametrize("upstream", ["stdio_legacy", "http_legacy"])
def test_of_fifty_racing_retries_one_continues_a_call_and_nobody_elses_does(
    upstreams: Upstreams, tokens: list[str], upstream: str
) -> None:
    mark = f"race-{upstream}"
    arguments = {"rounds": [{"q": form(f"Say {mark}")}], "mark": mark}
    with AskedClient.at_endpoint(upstreams.daemon, "modern", tokens[0]) as first:
        turn = first.call(f"{upstream}_ask", arguments)
    (key,) = turn.questions

    def retry(token: str, said: str, **changed: Any) -> Turn:
        with AskedClient.at_endpoint(upstreams.daemon, "modern", token) as client:
            return client.ask("tools/call", {**retried(turn, {key: accepted(said)}), **changed})

    state = turn.result["requestState"]
    assert "belongs to another agent" in retry(tokens[1], "other").error["message"]
    other = {"arguments": {**arguments, "mark": "other"}}
    assert "another request" in retry(tokens[0], "other", **other).error["message"]
    assert "was changed" in retry(tokens[0], "other", requestState=f"{state[:-4]}AAAA").error["message"]
    for odd in (5, {key: 5}, [key]):
        assert retry(tokens[0], "odd", inputResponses=odd).message["error"]["code"] == -32602

    together = threading.Barrier(50)

    def race(number: int) -> Turn:
        together.wait(LIMIT)
        return retry(tokens[0], str(number))

    turns = all_at_once(race, range(50))
    (won,) = [turn for turn in turns if "result" in turn.message]
    assert all("may have run" in turn.error["message"] for turn in turns if turn is not won)
    (note,) = upstreams.all_seen(upstream, "answered", mark)
    assert note["arguments"] == won.result["structuredContent"]
    assert len(upstreams.all_seen(upstream, "asking", mark)) == 1


def test_a_disconnected_modern_client_continues_its_call_on_another_connection(
    upstreams: Upstreams, tokens: list[str]
) -> None:
    for upstream in UPSTREAMS:
        mark = f"left-{upstream}"
        with AskedClient.at_endpoint(upstreams.daemon, "modern", tokens[2]) as client:
            turn = client.call(f"{upstream}_ask", {"rounds": [{"q": form(f"Say {mark}")}], "mark": mark})
        with AskedClient.at_endpoint(upstreams.daemon, "modern", tokens[2]) as client:
            turn = client.finish(turn, echoed)
        assert turn.result["structuredContent"] == {"q": accepted(mark)}
        assert len(upstreams.all_seen(upstream, "asking", mark)) == 1


@pytest.mark.parametrize("upstream", UPSTREAMS)
def test_a_legacy_client_that_leaves_while_it_is_asked_cancels_the_question(
    upstreams: Upstreams, tokens: list[str], upstream: str
) -> None:
    mark = f"leaves-{upstream}"
    with AskedClient.at_endpoint(upstreams.daemon, "legacy", tokens[3]) as client:
        turn = client.call(f"{upstream}_ask", {"rounds": [{"q": form("Well?")}], "mark": mark})
        assert turn.questions
    (note,) = wait_for(lambda: upstreams.all_seen(upstream, "answered", mark), "the server to get an answer")
    assert note["arguments"] == {"q": {"action": "cancel"}}


@pytest.mark.usual(end="kill")
@pytest.mark.parametrize("end", [Daemon.stop, Daemon.kill], ids=lambda end: str(end.__name__))
def test_after_a_restart_a_client_learns_that_its_call_may_have_run(
    end: Callable[[Daemon], object],
    toolcrib_home: Home,
    start_server: StartServer,
    daemon: StartDaemon,
    cli: Cli,
    parts: Callable[[str], list[str]],
) -> None:
    parts("mcp-v1")
    found = connect_upstreams(toolcrib_home, start_server, daemon)
    turns: dict[str, Turn] = {}
    for upstream in UPSTREAMS:
        with AskedClient.at_endpoint(found.daemon, "modern") as client:
            turns[upstream] = client.call(f"{upstream}_ask", {"rounds": [{"q": form("Say it")}], "mark": "kept"})
    with AskedClient.at_endpoint(found.daemon, "legacy") as legacy:
        turn = legacy.call("http_legacy_ask", {"rounds": [{"q": form("Say it")}], "mark": "lost"})
        assert turn.questions
        end(found.daemon)
        with pytest.raises(ConnectionError):
            legacy.line.read()

    again = daemon()
    again.wait_until_ready()
    for upstream, turn in turns.items():
        with AskedClient.at_endpoint(again, "modern") as client:
            ended = client.answer(turn, echoed)
        if "modern" in upstream:
            # The server keeps nothing either: it gets everything again, with the answer.
            assert ended.result["structuredContent"] == {"q": accepted("it")}
        else:
            assert "Toolcrib was restarted" in ended.error["message"]
            assert "may have run" in ended.error["message"]
        assert len(found.all_seen(upstream, "asking", "kept")) == 1, "the call ran once"
    rows = cli("audit", "--json").ok().json["entries"]
    recorded = Counter((row["kind"], row["outcome"]) for row in rows if "legacy" in row["server"])
    ended_in_time = {("outcome", "cancelled"): 5, ("question", "unanswered"): 5} if end is Daemon.stop else {}
    assert recorded == {("intent", ""): 5, **ended_in_time}


def test_many_parked_calls_need_little_memory_and_end_with_their_agents(
    upstreams: Upstreams, tokens: list[str]
) -> None:
    count, owner = sized(200, 1000), Owner(upstreams.daemon)
    token = owner.add("patient", profile="developer")
    before = memory(upstreams.daemon)

    def park(numbers: range) -> None:
        with AskedClient.at_endpoint(upstreams.daemon, "modern", token) as client:
            for number in numbers:
                turn = client.call("http_legacy_ask", {"rounds": [{"q": form("Well?")}], "mark": f"parked-{number}."})
                assert turn.questions

    all_at_once(park, [range(start, count, 8) for start in range(8)])
    each = (memory(upstreams.daemon) - before) / count
    print(f"{count} parked calls: {each / 1024:.0f} KiB each")
    assert each < 128 * 1024
    owner.remove("patient")
    ended = wait_for(
        lambda: len(found := upstreams.all_seen("http_legacy", "cancelled", "parked-")) == count and found,
        "the server to be told that all calls were cancelled",
    )
    assert len(ended) == count


async def test_all_parked_calls_expire(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = sized(100, 1000)
    monkeypatch.setattr(parking, "QUESTION_SECONDS", 1.0)
    meta = {**META, "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}}}
    params = {"name": "slow_ask", "arguments": {"messages": ["Well?"]}, "_meta": meta}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    async with opened(tmp_path) as harness, asyncio.timeout(LIMIT):
        token = await harness.agent("patient")
        calls = [harness.begin(body, token, modern_headers("tools/call", name="slow_ask")) for _ in range(count)]
        for exchange, task in calls:
            await exchange.until(b'"input_required"')
            await task
        assert not harness.gateway.parked
        await harness.crib.services.audit.flush()
        rows = await harness.crib.services.audit.query(agent="patient", limit=4 * count)
    assert [row["outcome"] for row in rows if row["kind"] == "outcome"] == ["cancelled"] * count
