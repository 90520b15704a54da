"""Answers that take time: one JSON body where that is all, a stream of events where there is more to say."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from toolcrib.errors import ErrorCase
from toolcrib.gateway import streams
from toolcrib.gateway.dispatcher import PendingRequest
from toolcrib.gateway.messages import Reply
from toolcrib.gateway.streams import PostExchange, SseResponse, event, send_json

pytestmark = pytest.mark.req("KSI-1")


class Wire:
    """An ASGI exchange: what was sent, and a client that can go away."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.more = asyncio.Event()
        self._gone = asyncio.Event()

    async def send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)
        self.more.set()

    async def receive(self) -> dict[str, Any]:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    def leave(self) -> None:
        self._gone.set()

    @property
    def body(self) -> bytes:
        return b"".join(message["body"] for message in self.sent if message["type"] == "http.response.body")

    @property
    def headers(self) -> dict[bytes, bytes]:
        return dict(self.sent[0]["headers"])

    @property
    def ended(self) -> bool:
        return bool(self.sent) and self.sent[-1].get("more_body") is False

    async def until(self, text: bytes) -> None:
        async with asyncio.timeout(60):
            while text not in self.body:
                self.more.clear()
                await self.more.wait()


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "KEEPALIVE_SECONDS", 0.02)
    monkeypatch.setattr(streams, "_WATCH_AFTER", 0.0)


def test_an_event_is_one_line_of_data_whatever_the_message() -> None:
    pretty = json.dumps({"a": "x\ny"}, indent=1).encode()
    told = event(pretty)
    assert told.startswith(b"event: message\ndata: ")
    assert told.endswith(b"\n\n")
    assert told.count(b"\n") == 3
    assert json.loads(told.split(b"data: ")[1]) == {"a": "x\ny"}


async def test_a_json_answer_says_its_length() -> None:
    wire = Wire()
    await send_json(wire.send, Reply(b'{"a":1}', 404, extra=((b"x-more", b"1"),)))
    assert wire.sent[0]["status"] == 404
    assert wire.headers == {b"content-type": b"application/json", b"content-length": b"7", b"x-more": b"1"}
    assert wire.body == b'{"a":1}'


class TestEventStream:
    async def test_events_come_in_their_order_and_then_the_end(self) -> None:
        wire = Wire()
        stream = SseResponse(wire.send, [(b"mcp-session-id", b"s")])
        stream.put(b"1")
        stream.put(b"2")
        running = asyncio.create_task(stream.run())
        await wire.until(event(b"1") + event(b"2"))
        stream.put(b"3")
        stream.close()
        await asyncio.wait_for(running, 60)
        assert wire.body == event(b"1") + event(b"2") + event(b"3")
        assert wire.ended
        assert wire.headers[b"content-type"] == b"text/event-stream"
        assert wire.headers[b"mcp-session-id"] == b"s"

    async def test_the_head_is_sent_before_there_is_anything_to_say(self) -> None:
        wire = Wire()
        running = asyncio.create_task(SseResponse(wire.send).run())
        await asyncio.wait_for(wire.more.wait(), 60)
        assert wire.sent[0]["status"] == 200
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    @pytest.mark.usefixtures("hasty")
    async def test_silence_is_broken_by_a_comment_that_is_no_message(self) -> None:
        wire = Wire()
        stream = SseResponse(wire.send)
        running = asyncio.create_task(stream.run())
        await wire.until(b": still here\n\n: still here\n\n")
        stream.close()
        await asyncio.wait_for(running, 60)
        assert b"data:" not in wire.body
        assert wire.ended

    async def test_closing_an_empty_stream_ends_it_without_a_word(self) -> None:
        wire = Wire()
        stream = SseResponse(wire.send)
        stream.close()
        await asyncio.wait_for(stream.run(), 60)
        assert wire.body == b""
        assert wire.ended


async def exchanged(
    wire: Wire, work: Callable[[PostExchange, PendingRequest], Awaitable[Reply]], *, cancelled_by_leaving: bool = True
) -> tuple[PostExchange, PendingRequest]:
    """One exchange in a task of its own, as the gateway holds it."""
    made: list[tuple[PostExchange, PendingRequest]] = []

    async def run() -> None:
        request = PendingRequest(asyncio.current_task(), cancelled_by_leaving=cancelled_by_leaving)
        exchange = PostExchange(asyncio.get_running_loop(), wire.receive, wire.send, request)
        made.append((exchange, request))
        try:
            reply = await work(exchange, request)
        except asyncio.CancelledError:
            if request.stopped is None:
                raise
            reply = Reply(b"cancelled")
        await exchange.finish(reply)

    before = asyncio.all_tasks()
    async with asyncio.timeout(60):
        await asyncio.create_task(run())
        await asyncio.sleep(0)
    assert asyncio.all_tasks() == before
    return made[0]


class TestExchange:
    async def test_a_quick_answer_is_plain_json(self) -> None:
        wire = Wire()

        async def work(exchange: PostExchange, request: PendingRequest) -> Reply:
            return Reply(b"{}", 400)

        await exchanged(wire, work)
        assert (wire.sent[0]["status"], wire.body) == (400, b"{}")
        assert len(wire.sent) == 2

    async def test_word_on_the_way_makes_it_a_stream_with_the_answer_last(self) -> None:
        wire = Wire()

        async def work(exchange: PostExchange, request: PendingRequest) -> Reply:
            exchange.notify(b'{"p":1}')
            await wire.until(b'{"p":1}')
            exchange.notify(b'{"p":2}')
            return Reply(b'{"r":1}')

        await exchanged(wire, work)
        assert wire.body == event(b'{"p":1}') + event(b'{"p":2}') + event(b'{"r":1}')
        assert wire.ended

    async def test_nothing_is_said_after_the_answer(self) -> None:
        wire = Wire()

        async def work(exchange: PostExchange, request: PendingRequest) -> Reply:
            return Reply(b"{}")

        exchange, request = await exchanged(wire, work)
        exchange.notify(b"late")
        request.cancel()
        request.disconnect()
        await asyncio.sleep(0)
        assert wire.body == b"{}"
        assert request.stopped is None

    @pytest.mark.usefixtures("hasty")
    async def test_a_long_silence_makes_it_a_stream_that_shows_life(self) -> None:
        wire = Wire()

        async def work(exchange: PostExchange, request: PendingRequest) -> Reply:
            await wire.until(b": still here")
            return Reply(b'{"r":1}')

        await exchanged(wire, work)
        assert wire.body.endswith(event(b'{"r":1}'))

    async def test_a_cancelled_call_is_answered_so(self) -> None:
        wire = Wire()

        async def work(exchange: PostExchange, request: PendingRequest) -> Reply:
            asyncio.get_running_loop().call_soon(request.cancel)
            await asyncio.Event().wait()
            raise AssertionError

        _, request = await exchanged(wire, work)
        assert request.stopped is ErrorCase.CANCELLED
        assert wire.body == b"cancelled"

    async def test_a_call_whose_session_ends_is_stopped_and_what_stopped_it_first_counts(self) -> None:
        wire = Wire()

        async def work(exchange: PostExchange, request: PendingRequest) -> Reply:
            asyncio.get_running_loop().call_soon(request.interrupt)
            asyncio.get_running_loop().call_soon(request.cancel)
            await asyncio.Event().wait()
            raise AssertionError

        _, request = await exchanged(wire, work)
        assert request.stopped is ErrorCase.ENDED

    @pytest.mark.usefixtures("hasty")
    async def test_a_client_that_goes_away_ends_the_work(self) -> None:
        wire = Wire()

        async def work(exchange: PostExchange, request: PendingRequest) -> Reply:
            wire.leave()
            await asyncio.Event().wait()
            raise AssertionError

        _, request = await exchanged(wire, work)
        assert request.disconnected
        assert wire.sent == []

    @pytest.mark.usefixtures("hasty")
    async def test_where_going_away_means_nothing_the_work_goes_on(self) -> None:
        wire = Wire()
        done = asyncio.Event()

        async def work(exchange: PostExchange, request: PendingRequest) -> Reply:
            wire.leave()
            # Silence turns it into a stream only after the watcher has seen the client go.
            await wire.until(b": still here")
            done.set()
            return Reply(b"{}")

        _, request = await exchanged(wire, work, cancelled_by_leaving=False)
        assert done.is_set()
        assert request.disconnected
        assert request.stopped is None
