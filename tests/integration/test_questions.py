"""Questions that servers of both eras ask clients of both eras in the middle of a call, over every transport.

One daemon connects a server for each transport. The clients write their own bytes, so that the tests see what a client
receives; the servers record the answers that they get.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from parts.agent_clients import ERAS, Owner
from parts.asked_clients import AskedClient, Json
from parts.daemon import Home, StartDaemon
from parts.server_process import StartServer
from parts.upstreams import UPSTREAMS, Upstreams, connect_upstreams
from parts.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.req("KSI-5", "KSI-9")]

WAYS = ("endpoint", "bridge")
CLIENTS = [f"{era}_{way}" for era, way in itertools.product(ERAS, WAYS)]
SCHEMA: Json = {"type": "object", "properties": {"colour": {"type": "string"}, "n": {"type": "integer", "default": 7}}}
PAGE = "https://shop.example.com/pay?order=1"
ANSWERS: dict[str, Json] = {
    "accept": {"action": "accept", "content": {"colour": "green", "n": 3}},
    "decline": {"action": "decline"},
    "cancel": {"action": "cancel"},
}
SAMPLED: Json = {
    "role": "assistant",
    "content": {"type": "text", "text": "Paris"},
    "model": "m",
    "stopReason": "endTurn",
}
_marks = (f"mark-{number}" for number in itertools.count(1))


def form(message: str = "Which colour?", schema: Json = SCHEMA) -> Json:
    return {"method": "elicitation/create", "params": {"mode": "form", "message": message, "requestedSchema": schema}}


def page(upstream: str) -> Json:
    params = {"mode": "url", "message": "Please pay.", "url": PAGE}
    # The modern era has no such id; the legacy one requires it.
    return {
        "method": "elicitation/create",
        "params": params | ({"elicitationId": "e1"} if "legacy" in upstream else {}),
    }


def sampling(text: str = "What is the capital of France?") -> Json:
    messages = [{"role": "user", "content": {"type": "text", "text": text}}]
    return {"method": "sampling/createMessage", "params": {"messages": messages, "maxTokens": 20}}


ROOTS: Json = {"method": "roots/list"}
VARIANTS = {
    "sampling_denied_legacy": ("http_legacy", {"sampling": "deny"}),
    "sampling_denied_modern": ("http_modern", {"sampling": "deny"}),
    "sampling_asked_legacy": ("http_legacy", {"sampling": "ask"}),
    "sampling_asked_modern": ("http_modern", {"sampling": "ask"}),
    "roots_of_client_legacy": ("http_legacy", {"roots": "client"}),
    "roots_of_client_modern": ("http_modern", {"roots": "client"}),
    "no_roots_legacy": ("http_legacy", {"roots": "none"}),
    "no_roots_modern": ("http_modern", {"roots": "none"}),
}


@dataclass(frozen=True, kw_only=True)
class Scene(Upstreams):
    owner: Owner
    clients: dict[str, AskedClient]

    def notes(self, upstream: str, mark: str) -> dict[str, list[Any]]:
        """What the server recorded of a call, by kind: `asking` with the client's capabilities, `answered`."""
        upstream = VARIANTS[upstream][0] if upstream in VARIANTS else upstream
        lines = self.all_seen(upstream, "asking", mark) + self.all_seen(upstream, "answered", mark)
        lines += self.all_seen(upstream, "cancelled", mark)
        return {
            kind: [line["arguments"] for line in lines if line["method"] == kind]
            for kind in ("asking", "answered", "cancelled")
        }

    def audit_of(self, client: str) -> list[dict[str, Any]]:
        return self.owner.audit(agent=client)


@pytest.fixture(scope="module")
def scene(
    shared_home: Home,
    start_shared_server: StartServer,
    start_shared_daemon: StartDaemon,
    parts: Callable[[str], list[str]],
) -> Iterator[Scene]:
    parts("mcp-v1")
    variants = VARIANTS | {name: (name, {"sampling": "allow", "roots": "project"}) for name in UPSTREAMS}
    found = connect_upstreams(shared_home, start_shared_server, start_shared_daemon, variants)
    owner, clients = Owner(found.daemon), {}
    for name in CLIENTS:
        token = owner.add(name, profile="developer", workdir=str(shared_home.project))
        era, _, way = name.partition("_")
        if way == "endpoint":
            clients[name] = AskedClient.at_endpoint(found.daemon, era, token)
        else:
            clients[name] = AskedClient.through_bridge(found.daemon, era, name)
    yield Scene(daemon=found.daemon, seen_files=found.seen_files, owner=owner, clients=clients)
    for client in clients.values():
        client.line.close()


def check_wire(client: AskedClient) -> None:
    """Each era only in its own words."""
    for message in client.received:
        if client.era == "legacy":
            assert "input_required" not in json.dumps(message)
        else:
            assert not ("method" in message and "id" in message), message


@pytest.mark.parametrize("upstream", UPSTREAMS)
@pytest.mark.parametrize("client", CLIENTS)
def test_a_question_reaches_the_client_and_its_answer_the_server(scene: Scene, client: str, upstream: str) -> None:
    at = scene.clients[client]
    for question, (action, answer) in itertools.product((form(), page(upstream)), ANSWERS.items()):
        mode, mark, before = question["params"]["mode"], next(_marks), len(scene.audit_of(client))
        given = {key: value for key, value in answer.items() if key == "action" or mode == "form"}

        turn = at.call(f"{upstream}_ask", {"rounds": [{"q": question}], "mark": mark})
        (asked,) = turn.questions.values()
        assert asked["method"] == "elicitation/create"
        message = asked["params"].pop("message")
        assert (
            asked["params"].items()
            >= {
                key: value
                for key, value in question["params"].items()
                if key in ("requestedSchema", "url") or (key == "mode" and mode == "url")
            }.items()
        )
        assert upstream in message
        assert question["params"]["message"] in message
        assert mode == "form" or "shop.example.com" in message
        assert mode == "form" or at.era == "modern" or asked["params"]["elicitationId"]
        turn = at.answer(turn, lambda _, given=given: given)

        assert turn.result["structuredContent"] == {"q": given}
        assert scene.notes(upstream, mark)["answered"] == [{"q": given}]
        assert len(scene.notes(upstream, mark)["asking"]) == 1, "the call ran once"
        check_wire(at)
        rows = scene.audit_of(client)[before:]
        (noted,) = [row for row in rows if row["kind"] == "question"]
        assert (noted["outcome"], noted["detail"]["asks"], noted["server"]) == (action, mode, upstream)
        assert "green" not in json.dumps([row for row in rows if row["kind"] != "outcome"])
        rounds = 2 if (at.era, upstream.partition("_")[2]) == ("modern", "modern") else 1
        kinds = [row["kind"] for row in rows]
        assert (kinds.count("intent"), kinds.count("outcome")) == (rounds, rounds)


@pytest.mark.usual(client=("legacy_endpoint", "modern_bridge"))
@pytest.mark.parametrize("upstream", UPSTREAMS)
@pytest.mark.parametrize("client", CLIENTS)
def test_each_of_several_questions_gets_its_own_answer(scene: Scene, client: str, upstream: str) -> None:
    at, mark = scene.clients[client], next(_marks)
    rounds = [{"a": form("First?"), "b": form("Second?")}, {"c": form("Third?")}]

    def answer(question: Json) -> Json:
        return {"action": "accept", "content": {"colour": question["params"]["message"].rpartition(" ")[2], "n": 1}}

    turn = at.call(f"{upstream}_ask", {"rounds": rounds, "mark": mark}, wanted=2)
    # A legacy server's questions reach a modern client together only if they arrive together.
    assert len(turn.questions) == 2 or (at.era == "modern" and "legacy" in upstream)
    turn = at.finish(turn, answer)
    expected = {
        key: {"action": "accept", "content": {"colour": text, "n": 1}}
        for key, text in (("a", "First?"), ("b", "Second?"), ("c", "Third?"))
    }
    assert turn.result["structuredContent"] == expected
    assert scene.notes(upstream, mark)["answered"] == [expected]
    assert len(scene.notes(upstream, mark)["asking"]) == 1
    check_wire(at)


@pytest.mark.parametrize("upstream", [name for name in UPSTREAMS if "modern" in name])
def test_a_modern_server_may_ask_a_legacy_client_ten_times_in_one_call(scene: Scene, upstream: str) -> None:
    at, mark = scene.clients["legacy_endpoint"], next(_marks)
    asked: list[str] = []

    def answer(question: Json) -> Json:
        asked.append(question["params"]["message"])
        return {"action": "accept", "content": {"colour": "red", "n": 1}}

    turn = at.finish(
        at.call(f"{upstream}_ask", {"rounds": [{str(n): form()} for n in range(11)], "mark": mark}), answer
    )
    assert len(asked) == 10
    assert turn.result["isError"]
    assert "asked more than 10 times during one call" in turn.result["content"][0]["text"]
    assert scene.notes(upstream, mark)["answered"] == []
    check_wire(at)


@pytest.mark.usual(client=("legacy_bridge", "modern_endpoint"))
@pytest.mark.parametrize("upstream", UPSTREAMS)
@pytest.mark.parametrize("client", CLIENTS)
def test_a_server_samples_and_lists_roots_as_its_entry_permits(scene: Scene, client: str, upstream: str) -> None:
    at, mark = scene.clients[client], next(_marks)
    turn = at.call(f"{upstream}_ask", {"rounds": [{"s": sampling()}, {"r": ROOTS}], "mark": mark})
    (asked,) = turn.questions.values()
    assert asked["method"] == "sampling/createMessage"
    assert asked["params"]["messages"] == sampling()["params"]["messages"]
    assert upstream in asked["params"]["systemPrompt"]
    turn = at.answer(turn, lambda _: SAMPLED)
    project = {"uri": scene.daemon.home.project.as_uri(), "name": scene.daemon.home.project.name}
    assert turn.result["structuredContent"] == {"s": SAMPLED, "r": {"roots": [project]}}
    assert scene.notes(upstream, mark)["answered"] == [{"s": SAMPLED, "r": {"roots": [project]}}]
    check_wire(at)


@pytest.mark.usual(client=("legacy_endpoint", "modern_endpoint"))
@pytest.mark.parametrize("upstream", ["legacy", "modern"])
@pytest.mark.parametrize("client", CLIENTS)
def test_an_entry_refuses_sampling_and_passes_on_only_roots_inside_the_project(
    scene: Scene, client: str, upstream: str
) -> None:
    at, project = scene.clients[client], scene.daemon.home.project
    turn = at.call(f"sampling_denied_{upstream}_ask", {"rounds": [{"s": sampling()}], "mark": next(_marks)})
    assert not turn.questions
    assert "does not permit" in json.dumps(turn.message)

    (project / "inside").mkdir(exist_ok=True)
    inside, outside = ({"uri": folder.as_uri(), "name": "a"} for folder in (project / "inside", project.parent))
    turn = at.call(f"roots_of_client_{upstream}_ask", {"rounds": [{"r": ROOTS}], "mark": next(_marks)})
    assert [question["method"] for question in turn.questions.values()] == ["roots/list"]
    turn = at.answer(turn, lambda _: {"roots": [outside, inside, {"uri": "https://example.com"}]})
    assert turn.result["structuredContent"] == {"r": {"roots": [inside]}}

    turn = at.call(f"no_roots_{upstream}_ask", {"rounds": [{"r": ROOTS}], "mark": next(_marks)})
    assert not turn.questions
    assert "does not get" in json.dumps(turn.message)


@pytest.mark.usual(client=("legacy_bridge", "modern_endpoint"))
@pytest.mark.parametrize("upstream", ["legacy", "modern"])
@pytest.mark.parametrize("client", CLIENTS)
def test_the_owner_approves_sampling_before_the_client_is_asked(scene: Scene, client: str, upstream: str) -> None:
    at, mark = scene.clients[client], next(_marks)
    with ThreadPoolExecutor(1) as pool:
        calling = pool.submit(at.call, f"sampling_asked_{upstream}_ask", {"rounds": [{"s": sampling()}], "mark": mark})
        (waits,) = wait_for(lambda: scene.owner.say("approval:list")["approvals"], "the question to wait")
        assert not calling.done(), "the client is not asked yet"
        scene.owner.say("approval:answer", id=waits["id"], approved=True)
        turn = calling.result()
    assert [question["method"] for question in turn.questions.values()] == ["sampling/createMessage"]
    assert at.answer(turn, lambda _: SAMPLED).result["structuredContent"] == {"s": SAMPLED}


@pytest.mark.usual(client=("legacy_endpoint", "modern_endpoint"))
@pytest.mark.parametrize("upstream", UPSTREAMS)
@pytest.mark.parametrize("client", CLIENTS)
def test_a_server_asks_for_a_prompt_and_a_resource_but_never_for_a_secret(
    scene: Scene, client: str, upstream: str
) -> None:
    at, mark = scene.clients[client], next(_marks)
    given = {"action": "accept", "content": {"colour": "blue"}}
    turn = at.ask("prompts/get", {"name": f"{upstream}_consult", "arguments": {"mark": mark}})
    assert len(turn.questions) == 1
    turn = at.answer(turn, lambda _: given)
    assert json.loads(turn.result["messages"][0]["content"]["text"]) == {"colour": given}
    check_wire(at)

    turn = at.ask("resources/read", {"uri": f"{upstream.replace('_', '-')}+test://asking/{mark}"})
    assert len(turn.questions) == 1
    turn = at.answer(turn, lambda _: given)
    assert json.loads(turn.result["contents"][0]["text"]) == {"colour": given}
    check_wire(at)
    assert scene.notes(upstream, mark)["answered"] == [{"colour": given}] * 2
    assert len(scene.notes(upstream, mark)["asking"]) == 2

    secret = form("Sign in", {"type": "object", "properties": {"password": {"type": "string"}}})
    turn = at.call(f"{upstream}_ask", {"rounds": [{"q": secret}], "mark": mark})
    assert not turn.questions
    assert "is for a secret" in json.dumps(turn.message)
