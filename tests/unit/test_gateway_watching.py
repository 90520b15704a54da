"""What connections watch is counted at the servers: each is told once, and forgets what nobody wants any more."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from parts.waiting import until as eventually
from toolcrib.calls.door import CallAnswer
from toolcrib.catalog.offers import resource_or_prompt
from toolcrib.catalog.tool import OfferKind
from toolcrib.errors import Denied
from toolcrib.gateway.http import LegacyConnections
from toolcrib.gateway.watching import ALL_KINDS, Watching
from toolcrib.servers.link import RESOURCE_UPDATED
from toolcrib.servers.model import Era, ServerAnswer
from toolcrib.servers.resource_watch import ResourceWatch

pytestmark = pytest.mark.req("BNS-4")

URI = "x://1"


class Place:
    """A project with one server, which can be replaced."""

    def __init__(self) -> None:
        self.servers = {"s": None}
        self.watch = ResourceWatch()
        self.changed: Any = None
        self.heard: Any = None

    def subscribe(self, changed: Any) -> Any:
        self.changed = changed
        return lambda: None

    def listen(self, heard: Any, agent: str) -> Any:
        self.heard = heard
        return lambda: None

    def instance(self, server: str, agent: str) -> Any:
        return SimpleNamespace(watch=self.watch)

    async def call(self, context: Any, request: Any) -> CallAnswer:
        """As the door."""
        answer = await self.watch.add(request.tool)
        return CallAnswer(answer, resource_or_prompt(OfferKind.RESOURCE, "s", request.tool, {}))


def watching_in(place: Place, sent: list[bytes], permission: Any = None, **more: Any) -> Watching:
    context: Any = SimpleNamespace(project=place, principal=SimpleNamespace(name="a", permission=permission))
    return Watching(context, sent.append, **more)


async def test_a_replaced_server_that_others_still_use_is_unsubscribed_from() -> None:
    place = Place()
    watching = watching_in(place, [])
    door: Any = place
    await watching.watch(door, URI)
    watching.set_level("info")
    before = place.watch
    await eventually(lambda: before.level == "info")
    place.watch = ResourceWatch()
    place.changed(frozenset())
    await eventually(lambda: place.watch.uris == (URI,) and place.watch.level == "info")
    assert (before.uris, before.level) == ((), None)
    watching.close()
    await eventually(lambda: (place.watch.uris, place.watch.level) == ((), None))


async def test_what_is_no_longer_permitted_when_a_stream_begins_is_dropped() -> None:
    place, permitted = Place(), {URI, "x://2"}

    class Door:
        async def call(self, context: Any, request: Any) -> CallAnswer:
            permitted.discard(URI)
            return await place.call(context, request)

    def permission() -> Any:
        if not permitted:
            raise Denied("The agent has ended.")
        return SimpleNamespace(shows=lambda tool: tool.name in permitted)

    door: Any = Door()
    watching = watching_in(place, [], permission)
    assert await watching.watch_all(door, [URI, "x://2"]) == ["x://2"]
    await eventually(lambda: place.watch.uris == ("x://2",))
    permitted.clear()
    with pytest.raises(Denied):
        await watching_in(place, [], permission).watch_all(door, [URI])


async def test_one_connection_of_a_client_reports_its_jobs() -> None:
    place, streams, requests = Place(), list[bytes](), list[bytes]()
    job = {"uri": "crib://jobs/1"}
    for sent, kinds in ((streams, ALL_KINDS), (requests, frozenset[OfferKind]())):
        watching_in(place, sent, kinds=kinds)
        place.heard("crib", RESOURCE_UPDATED, job)
    assert [json.loads(one)["params"] for one in streams] == [job]
    assert requests == []


async def test_a_new_connection_to_a_server_does_not_repeat_what_was_given_up_meanwhile() -> None:
    told: list[tuple[str, str]] = []

    class Link:
        peer = SimpleNamespace(era=Era.LEGACY, capabilities=frozenset())

        async def request(self, method: str, params: Any, **_: Any) -> ServerAnswer:
            told.append((method.rpartition("/")[2], params["uri"]))
            if len(told) == 1:
                await watch.remove("x://2")
            return ServerAnswer(result=b"{}")

    watch = ResourceWatch()
    for uri in (URI, "x://2"):
        await watch.add(uri)
    link: Any = Link()
    watch.attach(link)
    await watch.repeat()
    assert told == [("subscribe", URI), ("unsubscribe", "x://2")]


async def test_a_late_request_does_not_forget_the_connection_that_followed() -> None:
    connections = LegacyConnections()
    early = connections.at("session")
    connections.release(early)
    stream: Any = object()
    late = connections.at("session")
    late.streams.add(stream)
    connections.release(early)
    assert connections.at("session") is late


class RefusingLink:
    """A legacy server's, which refuses a subscription once it is let go on."""

    name = "s"
    peer = SimpleNamespace(era=Era.LEGACY, capabilities=frozenset({"resources", "subscribe"}))

    def __init__(self) -> None:
        self.goes_on = asyncio.Event()
        self.asked: list[str] = []

    async def request(self, method: str, *_: Any, **__: Any) -> ServerAnswer:
        self.asked.append(method)
        await self.goes_on.wait()
        return ServerAnswer(error=b'{"code":-32602,"message":"no"}')


async def test_a_refused_subscription_is_refused_to_all_who_asked_for_it_meanwhile() -> None:
    watch, link = ResourceWatch(), RefusingLink()
    watch.attach(link)  # type: ignore[arg-type]
    asking = [asyncio.create_task(watch.add(URI)) for _ in range(3)]
    await eventually(lambda: link.asked)
    link.goes_on.set()
    assert all(answer.error is not None for answer in await asyncio.gather(*asking))
    assert watch.uris == ()
    assert link.asked.count("resources/subscribe") == 1


async def test_only_changes_of_wanted_resources_and_their_parts_are_reported() -> None:
    reported: list[Any] = []
    watch = ResourceWatch(lambda params: reported.append(params["uri"]))
    await watch.add(URI)
    for uri in (URI, f"{URI}/part", f"{URI}0", "x://", "y://1", f"{URI}{'/p' * 100}"):
        watch.updated({"uri": uri})
    await eventually(lambda: len(reported) == 2)
    assert reported == [URI, f"{URI}/part"]
