"""Resources and prompts at their limits: exact bytes, conflicts, size, floods, lost permissions and lost connections.

The servers write their own bytes over stdio; so do the clients. One daemon serves all tests.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest

from parts.agent_clients import ERAS, AgentClient, Owner
from parts.daemon import Daemon, Home, StartDaemon
from parts.raw_client import LEGACY, RawConnection, SocketClient, legacy_request, notice
from parts.server_process import stdio_entry
from parts.servers.offers_server import EXACT
from parts.sizes import sized
from parts.waiting import wait_for

pytestmark = pytest.mark.slow

MEGABYTES = 50
MANY = 10_000
FLOOD = sized(3, 20)
"""Seconds."""
FLOOD_ENDED = "the flood has ended"
UPDATED = "notifications/resources/updated"


@dataclass(kw_only=True)
class Stage:
    daemon: Daemon
    home: Home
    names: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.owner = Owner(self.daemon)

    def client(self, era: str, *allowed: str, **more: Any) -> AgentClient:
        """A client of a new agent that may use these."""
        name = f"agent{len(self.names)}"
        self.names.append(name)
        return AgentClient(self.daemon, name, self.owner.add(name, *allowed, **more), era)

    def seen(self, server: str, method: str, about: str = "") -> int:
        """How many such requests the server got."""
        file = self.home.path / f"{server}.seen"
        lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        return sum(line["method"] == method and about in (line["about"] or "") for line in lines)


@pytest.fixture(scope="module")
def stage(shared_home: Home, start_shared_daemon: StartDaemon) -> Stage:
    def server(name: str, era: str, scheme: str, *flags: str, **more: Any) -> dict[str, Any]:
        seen = str(shared_home.path / f"{name}.seen")
        return stdio_entry("offers_server", "--era", era, "--scheme", scheme, "--seen", seen, *flags, **more)

    servers = {
        "old": server("old", "legacy", "old"),
        "new": server("new", "modern", "new"),
        "twin_one": server("twin_one", "legacy", "twin"),
        "twin_two": server("twin_two", "modern", "twin"),
        "many": server("many", "legacy", "many", "--resources", str(MANY)),
        "private": server("private", "legacy", "private", share="agent"),
        "asleep": server("asleep", "legacy", "asleep", idle_minutes=0.005),
    }
    daemon = start_shared_daemon({"servers": {**servers, "broken": {"command": "false"}}})
    daemon.wait_until_ready(*servers)
    return Stage(daemon=daemon, home=shared_home)


@pytest.fixture(params=ERAS)
def era(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def exact(uri: str, more: bytes = b"") -> bytes:
    return EXACT.replace(b"@URI@", uri.encode()).replace(b"@MORE@", more)


@pytest.mark.req("ENG-9")
def test_the_result_of_a_read_has_the_servers_bytes(stage: Stage) -> None:
    from_modern = exact("new://1", b',"resultType":"complete","ttlMs":7,"cacheScope":"public"')
    stamp = b'"resultType":"complete",'
    hints = b'"ttlMs":0,"cacheScope":"private",'
    for era, uri, result in (
        ("legacy", "old://1", exact("old://1")),
        ("modern", "new://1", from_modern),
        ("legacy", "new://1", exact("new://1")),
        ("modern", "old://1", b"{" + hints + stamp + exact("old://1")[1:]),
    ):
        with stage.client(era, "resource:*:**") as client:
            message = client.ask("resources/read", {"uri": uri}).message
        assert message == b'{"jsonrpc":"2.0","id":0,"result":%b}' % result


@pytest.mark.req("KSI-9")
def test_what_two_servers_have_alike_is_told_apart(stage: Stage, era: str) -> None:
    with stage.client(era, "resource:*:**", "prompt:*:*") as client:
        uris = {one["uri"] for one in client.ask("resources/list").result["resources"]}
        assert {"old://0", "twin-one+twin://0", "twin-two+twin://0"} <= uris
        assert "twin://0" not in uris
        templates = {one["uriTemplate"] for one in client.ask("resources/templates/list").result["resourceTemplates"]}
        assert {"old://t/{id}", "twin-one+twin://t/{id}", "twin-two+twin://t/{id}"} <= templates
        for server, prefix in (("twin_one", "twin-one"), ("twin_two", "twin-two")):
            for own in ("twin://0", f"twin://t/{era}"):
                before = stage.seen(server, "resources/read", own)
                read = client.ask("resources/read", {"uri": f"{prefix}+{own}"}).result
                assert read["contents"][0]["uri"] == (f"{prefix}+{own}" if own == "twin://0" else own)
                assert stage.seen(server, "resources/read", own) == before + 1
        unclear = client.ask("resources/read", {"uri": "twin://t/1"}).error
        assert unclear["code"] == -32602
        assert "twin-one+twin://t/1, twin-two+twin://t/1" in unclear["message"]
        prompts = {one["name"] for one in client.ask("prompts/list").result["prompts"]}
        assert {"twin_one_same", "twin_two_same", "old_same"} <= prompts
        got = client.ask("prompts/get", {"name": "old_same"}).result
        assert got["messages"][0]["content"]["text"] == "old"


@pytest.mark.req("KSI-9", "BNS-5")
def test_a_large_resource_and_ten_thousand_of_them_pass_while_others_call(stage: Stage, era: str) -> None:
    with (
        ThreadPoolExecutor(1) as pool,
        stage.client(era, "resource:*:**") as client,
        stage.client(era, "new:*") as other,
    ):
        reading = pool.submit(client.ask, "resources/read", {"uri": f"old://t/big/{MEGABYTES * 1024 * 1024}"})
        answers = [other.call("new_ok").result for _ in range(5)]
        assert all(answer["content"][0]["text"] == "new" for answer in answers)
        assert len(reading.result().result["contents"][0]["text"]) == MEGABYTES * 1024 * 1024
        listed = client.ask("resources/list").result["resources"]
        assert sum(one["uri"].startswith("many://") for one in listed) == MANY
        assert client.ask("resources/read", {"uri": f"many://{MANY - 1}"}).result["contents"]


def listening(client: AgentClient, *uris: str) -> RawConnection:
    """The stream of a client that subscribed to these."""
    stream = client.endpoint.connect()
    if client.era == "modern":
        wanted = {"resourceSubscriptions": uris, "resourcesListChanged": True}
        stream.send(client.bytes_of("subscriptions/listen", {"notifications": wanted}))
        assert stream.head()[0] == 200
        acknowledged = stream.event()
        assert acknowledged["params"]["notifications"].get("resourceSubscriptions") == list(uris)
        return stream
    stream.send(client.endpoint.stream_bytes(client.session))
    assert stream.head()[0] == 200
    for uri in uris:
        assert client.ask("resources/subscribe", {"uri": uri}).result == {}
    return stream


def next_update(stream: RawConnection) -> str:
    while (event := stream.event())["method"] != UPDATED:
        pass
    return str(event["params"]["uri"])


@pytest.mark.req("BNS-4", "BNS-5")
@pytest.mark.usual(server="old")
@pytest.mark.parametrize("server", ["old", "new"])
def test_a_server_that_changes_a_thousand_times_a_second_disturbs_nobody(stage: Stage, era: str, server: str) -> None:
    with (
        stage.client(era, "resource:*:**", f"{server}:*") as client,
        stage.client(era, "many:*") as other,
    ):
        stream = listening(client, f"{server}://0")
        before = stage.owner.say("server:show", name=server)["restarts"]
        floods, events = stage.seen(server, FLOOD_ENDED), 0
        client.call(f"{server}_flood", seconds=FLOOD)
        while stage.seen(server, FLOOD_ENDED) == floods:
            assert other.call("many_ok").result
            assert client.call(f"{server}_ok").result
            assert next_update(stream) == f"{server}://0"
            events += 1
        assert events < 100 * FLOOD
        shown = stage.owner.say("server:show", name=server)
        assert (shown["restarts"], shown["state"]) == (before, "ready")
        stream.close()


@pytest.mark.req("BNS-4")
def test_an_agents_own_instance_is_unsubscribed_too(stage: Stage, era: str) -> None:
    with stage.client(era, "resource:*:**", "private:*") as client:
        stream = listening(client, "private://0")
        client.call("private_flood", seconds=0.2)
        assert next_update(stream) == "private://0"
        before = stage.seen("private", "resources/unsubscribe")
        stream.close()
        if era == "legacy":
            assert client.ask("resources/unsubscribe", {"uri": "private://0"}).result == {}
        wait_for(lambda: stage.seen("private", "resources/unsubscribe") > before, "the server to be unsubscribed")


@pytest.mark.req("KSI-2", "BNS-4")
def test_a_removed_agents_subscription_ends(stage: Stage, era: str) -> None:
    client = stage.client(era, "resource:old:**")
    before = stage.seen("old", "resources/unsubscribe", "old://2")
    stream = listening(client, "old://2")
    assert stage.seen("old", "resources/subscribe", "old://2")
    stage.owner.remove(client.name)
    with pytest.raises(ConnectionError):
        while True:
            stream.event()
    wait_for(lambda: stage.seen("old", "resources/unsubscribe", "old://2") > before, "the server to be unsubscribed")
    stream.close()
    client.close()


@pytest.mark.req("KSI-2", "BNS-4")
def test_a_lost_permission_ends_a_subscription(stage: Stage, era: str) -> None:
    with stage.client(era, "resource:old:**") as client:
        stream = listening(client, "old://1")
        before = stage.seen("old", "resources/unsubscribe", "old://1")
        stage.owner.deny(client.name, "resource:old:old://1")
        wait_for(
            lambda: stage.seen("old", "resources/unsubscribe", "old://1") > before, "the server to be unsubscribed"
        )
        stream.close()


@pytest.mark.req("KSI-7", "BNS-4")
def test_changes_of_parts_that_an_agent_may_not_read_are_not_announced(stage: Stage, era: str) -> None:
    with stage.client(era, "resource:old:**", "old:*") as client:
        stage.owner.deny(client.name, "resource:old:old://0/secret*")
        stream = listening(client, "old://0")
        client.call("old_announce", announced=[{"uri": "old://0/secret/plan"}, {"uri": "old://0/open"}])
        assert next_update(stream) == "old://0/open"
        stream.close()


@pytest.mark.req("BNS-4")
@pytest.mark.parametrize("server", ["old", "new"])
def test_a_subscription_survives_the_servers_restart(stage: Stage, era: str, server: str) -> None:
    method = "resources/subscribe" if server == "old" else "subscriptions/listen"
    with stage.client(era, "resource:*:**", f"{server}:*") as client:
        stream = listening(client, f"{server}://0")
        before = stage.seen(server, method)
        client.call(f"{server}_exit")
        wait_for(lambda: stage.seen(server, method) > before, "the server to be subscribed again")
        client.call(f"{server}_flood", seconds=0.2)
        assert next_update(stream) == f"{server}://0"
        stream.close()


@pytest.mark.req("KSI-7", "KSI-9")
def test_an_agent_sees_and_reads_only_what_it_may(stage: Stage, era: str) -> None:
    with stage.client(era, "resource:old:old://0", "prompt:new:*") as client:
        assert [one["uri"] for one in client.ask("resources/list").result["resources"]] == ["old://0"]
        assert [one["name"] for one in client.ask("prompts/list").result["prompts"]] == ["new_same"]
        assert client.ask("resources/templates/list").result["resourceTemplates"] == []
        assert client.ask("resources/read", {"uri": "old://0"}).result
        before = stage.seen("old", "resources/read", "old://1")
        denied = client.ask("resources/read", {"uri": "old://1"})
        assert denied.error["data"]["tool"] == "resource:old:old://1"
        assert denied.status == (403 if era == "modern" else 200)
        assert "may not use" in client.ask("prompts/get", {"name": "old_same"}).error["message"]
        assert stage.seen("old", "resources/read", "old://1") == before
        assert (
            "may not use" in client.ask("resources/subscribe", {"uri": "old://1"}).error["message"] or era == "modern"
        )


@pytest.mark.req("KSI-7")
def test_a_program_gets_http_statuses_and_a_model_results(stage: Stage, era: str) -> None:
    allowed = ("old:ok", "broken:*", "resource:*:**")
    with (
        stage.client(era, *allowed, errors="http") as program,
        stage.client(era, *allowed) as model,
    ):
        assert program.call("old_flood", seconds=0).status == 403
        assert program.ask("resources/read", {"uri": "nowhere://x"}).status == 400
        refused = model.call("old_flood", seconds=0)
        assert (refused.status, refused.result["isError"]) == (200, True)
        assert program.call("broken_ok").status == 503
        unavailable = model.call("broken_ok")
        assert (unavailable.status, unavailable.result["isError"]) == (200, True)


@pytest.mark.req("KSI-1")
def test_batches_and_answers_of_clients_are_accepted_where_a_version_has_them(stage: Stage) -> None:
    with stage.client("legacy", "resource:*:**") as client:
        endpoint = client.endpoint

        def post(body: bytes, version: str = "2025-03-26") -> Any:
            headers = ("Mcp-Session-Id", client.session), ("MCP-Protocol-Version", version)
            return endpoint.exchange(endpoint.raw(endpoint.usual(body, *headers), body))

        batch = [legacy_request("resources/read", {"uri": "old://0"}, id=n) for n in (7, 8)]
        padded = legacy_request("ping", {"padding": "x" * 20_000}, id=9)
        for extra in ([], [padded]):
            body = b"[" + b",".join([batch[0], notice("notifications/x"), batch[1], *extra]) + b"]"
            assert [one["id"] for one in post(body).json] == [7, 8, *([9] if extra else [])]
            assert post(body, LEGACY).status == 400
        assert post(b'[{"jsonrpc":"2.0","id":1,"result":{}}]').status == 202
        assert post(b'{"jsonrpc":"2.0","id":1,"result":{}}', LEGACY).status == 202
    with SocketClient(stage.daemon) as bridge:
        initialize = {"protocolVersion": "2025-03-26", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        assert bridge.ask(legacy_request("initialize", initialize))["result"]["protocolVersion"] == "2025-03-26"
        bridge.send(b"[" + b",".join([*batch, b'{"jsonrpc":"2.0","id":1,"result":{}}']) + b"]")
        assert {bridge.message()["id"], bridge.message()["id"]} == {7, 8}


@pytest.mark.req("BNS-4", "KSI-1")
def test_a_resource_that_is_subscribed_to_twice_at_once_is_unsubscribed_from_once(stage: Stage) -> None:
    with stage.client("legacy", "resource:*:**") as client:
        stream = listening(client, "old://0")
        endpoint = client.endpoint
        headers = ("Mcp-Session-Id", client.session), ("MCP-Protocol-Version", "2025-03-26")
        twice = [legacy_request("resources/subscribe", {"uri": "old://t/twice"}, id=n) for n in (7, 8)]
        body = b"[" + b",".join(twice) + b"]"
        answers = endpoint.exchange(endpoint.raw(endpoint.usual(body, *headers), body)).json
        assert [one["result"] for one in answers] == [{}, {}]
        assert client.ask("resources/unsubscribe", {"uri": "old://t/twice"}).result == {}
        wait_for(lambda: stage.seen("old", "resources/unsubscribe", "old://t/twice"), "the server to be unsubscribed")
        stream.close()


@pytest.mark.req("BNS-7")
def test_an_idle_server_keeps_its_resources_and_starts_for_a_read(stage: Stage, era: str) -> None:
    def idle() -> bool:
        return stage.owner.say("server:show", name="asleep")["state"] == "idle"

    with stage.client(era, "resource:*:**", "prompt:*:*") as client:
        client.ask("resources/read", {"uri": "asleep://0"})
        wait_for(idle, "the server to be idle")
        assert "asleep://0" in {one["uri"] for one in client.ask("resources/list").result["resources"]}
        assert "asleep_same" in {one["name"] for one in client.ask("prompts/list").result["prompts"]}
        assert idle()
        assert client.ask("resources/read", {"uri": "asleep://t/5"}).result["contents"][0]["uri"] == "asleep://t/5"
