"""Answers that take time: one JSON body if nothing comes before the answer, otherwise a stream of events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest

from parts.gateway_harness import LIMIT, Exchange
from toolcrib.errors import ErrorCase
from toolcrib.gateway import streams
from toolcrib.gateway.dispatcher import PendingRequest
from toolcrib.gateway.messages import Reply
from toolcrib.gateway.streams import PostExchange, SseResponse, event, send_json

pytestmark = pytest.mark.req("KSI-1")


@pytest.fixture
async def client() -> Exchange:
    """A client whose request has arrived; it receives the answer and can leave."""
    made = Exchange({}, b"")
    made.asked = True
    return made


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "KEEPALIVE_SECONDS", 0.02)
    monkeypatch.setattr(streams, "_WATCH_AFTER", 0.0)


def ended(client: Exchange) -> bool:
    return client.sent[-1].get("more_body") is False


def test_an_event_is_one_line_of_data_whatever_the_message() -> None:
    encoded = event(json.dumps({"a": "x\ny"}, indent=1).encode())
    assert encoded.startswith(b"event: message\ndata: ")
    assert encoded.endswith(b"\n\n")
    assert encoded.count(b"\n") == 3
    assert json.loads(encoded.split(b"data: ")[1]) == {"a": "x\ny"}


async def test_a_json_answer_has_its_length(client: Exchange) -> None:
    await send_json(client.send, Reply(b'{"a":1}', 404, extra=((b"x-more", b"1"),)))
    assert (client.status, client.text) == (404, b'{"a":1}')
    assert client.headers == {"content-type": "application/json", "content-length": "7", "x-more": "1"}


async def test_a_stream_has_its_head_at_once_and_events_in_order_until_it_is_closed(client: Exchange) -> None:
    stream = SseResponse(client.send, [(b"mcp-session-id", b"s")])
    running = asyncio.create_task(stream.run())
    await client.begun()
    assert (client.status, client.text) == (200, b"")
    assert client.headers["content-type"] == "text/event-stream"
    assert client.headers["mcp-session-id"] == "s"
    stream.put(b"1")
    stream.put(b"2")
    await client.until(event(b"1") + event(b"2"))
    stream.put(b"3")
    stream.close()
    await asyncio.wait_for(running, LIMIT)
    assert client.text == event(b"1") + event(b"2") + event(b"3")
    assert ended(client)


@pytest.mark.usefixtures("hasty")
async def test_a_silent_stream_sends_comments(client: Exchange) -> None:
    stream = SseResponse(client.send)
    running = asyncio.create_task(stream.run())
    await client.until(b": still here\n\n: still here\n\n")
    stream.close()
    await asyncio.wait_for(running, LIMIT)
    assert b"data:" not in client.text
    assert ended(client)


async def test_a_stream_that_is_closed_first_is_empty(client: Exchange) -> None:
    stream = SseResponse(client.send)
    stream.close()
    await asyncio.wait_for(stream.run(), LIMIT)
    assert client.text == b""
    assert ended(client)


@dataclass
class Answering:
    client: Exchange
    exchange: PostExchange
    request: PendingRequest


Work = Callable[[Answering], Awaitable[Reply]]


async def answered(client: Exchange, work: Work, *, cancelled_by_leaving: bool = True) -> Answering:
    """One exchange in its own task, as in the gateway. Leaves no task behind."""
    made: list[Answering] = []

    async def run() -> None:
        request = PendingRequest(asyncio.current_task(), cancelled_by_leaving=cancelled_by_leaving)
        exchange = PostExchange(asyncio.get_running_loop(), client.receive, client.send, request)
        made.append(Answering(client, exchange, request))
        try:
            reply = await work(made[0])
        except asyncio.CancelledError:
            if request.stopped is None:
                raise
            reply = Reply(b"cancelled")
        await exchange.finish(reply)

    before = asyncio.all_tasks()
    async with asyncio.timeout(LIMIT):
        await asyncio.create_task(run())
        await asyncio.sleep(0)
    assert asyncio.all_tasks() == before
    return made[0]


async def test_a_quick_answer_is_plain_json_and_the_last_message(client: Exchange) -> None:
    async def work(answering: Answering) -> Reply:
        return Reply(b"{}", 400)

    done = await answered(client, work)
    assert (client.status, client.text, len(client.sent)) == (400, b"{}", 2)
    done.exchange.notify(b"late")
    await asyncio.sleep(0)
    assert client.text == b"{}"


async def test_a_notification_makes_it_a_stream_with_the_answer_last(client: Exchange) -> None:
    async def work(answering: Answering) -> Reply:
        answering.exchange.notify(b'{"p":1}')
        await client.until(b'{"p":1}')
        answering.exchange.notify(b'{"p":2}')
        return Reply(b'{"r":1}')

    await answered(client, work)
    assert client.text == event(b'{"p":1}') + event(b'{"p":2}') + event(b'{"r":1}')
    assert ended(client)


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("leaves", [False, True])
async def test_silence_makes_it_a_stream_even_if_the_client_left(client: Exchange, leaves: bool) -> None:
    async def work(answering: Answering) -> Reply:
        if leaves:
            client.leave()
        # The watcher notices that the client left before silence opens the stream.
        await client.until(b": still here")
        return Reply(b'{"r":1}')

    done = await answered(client, work, cancelled_by_leaving=not leaves)
    assert client.text.endswith(event(b'{"r":1}'))
    assert (done.request.disconnected, done.request.stopped) == (leaves, None)


@pytest.mark.parametrize(
    ("stops", "reason"), [(["cancel"], ErrorCase.CANCELLED), (["interrupt", "cancel"], ErrorCase.ENDED)]
)
async def test_a_stopped_call_has_the_first_reason(client: Exchange, stops: list[str], reason: ErrorCase) -> None:
    async def work(answering: Answering) -> Reply:
        for stop in stops:
            asyncio.get_running_loop().call_soon(getattr(answering.request, stop))
        await asyncio.Event().wait()
        raise AssertionError

    done = await answered(client, work)
    assert (done.request.stopped, client.text) == (reason, b"cancelled")


@pytest.mark.usefixtures("hasty")
async def test_a_client_that_leaves_ends_the_work(client: Exchange) -> None:
    async def work(answering: Answering) -> Reply:
        client.leave()
        await asyncio.Event().wait()
        raise AssertionError

    done = await answered(client, work)
    assert done.request.disconnected
    assert client.sent == []
