"""Each provider's adapter against a scripted model that speaks its streaming HTTP interface."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx2
import pytest
from pydantic_ai.exceptions import ModelAPIError, ModelHTTPError
from pydantic_ai.messages import ModelRequest, ToolReturnPart
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.tools import ToolDefinition

from parts.waiting import wait_for
from toolcrib.agent.events import (
    Ended,
    McpConnected,
    ReasoningDelta,
    Retrying,
    RunEvent,
    RunFailed,
    RunFinished,
    TextDelta,
    ToolCalled,
    ToolFinished,
)
from toolcrib.agent.models import open_model, place
from toolcrib.agent.models.http import CONNECT_LIMIT, SILENCE_LIMIT
from toolcrib.agent.options import AgentOptions
from toolcrib.agent.run import run_agent
from toolcrib.agent_events import ToolStatus
from toolcrib.catalog.formats import anthropic, google, openai
from toolcrib.catalog.names import Names
from toolcrib.catalog.offer import Offer
from toolcrib.catalog.tool import Tool, decode_definition
from toolcrib.config.given import StdioServer
from toolcrib.testing import PROVIDERS, Break, Call, Hold, Model, Refuse, Say, Step, Together, scripted

KEY = "sk-given-by-hand"
SECRET = "sk-of-the-environment"
MODELS = {
    "openai": "openai:gpt-5",
    "openai-responses": "openai-responses:gpt-5",
    "anthropic": "anthropic:claude-sonnet-5-5",
    "google": "google:gemini-3-pro",
    "openrouter": "openrouter:anthropic/claude-sonnet-4.5",
}
VARIABLES = {name: provider.variables for name, provider in place.PROVIDERS.items()}
MEETING = Path(__file__).parent.parent / "servers_own" / "meeting.py"
LIMIT = 60.0

each_provider = pytest.mark.parametrize("provider", MODELS)


def options(provider: str, there: Model, **more: Any) -> AgentOptions:
    return AgentOptions(**{"model": MODELS[provider], "base_url": there.url, "environ": {}, **more})


def test_every_provider_has_its_story() -> None:
    assert set(MODELS) == set(PROVIDERS) == set(place.PROVIDERS)


# The story.

STORY: tuple[Step, ...] = (
    Refuse(429),
    Together(
        [Call("meet", {"who": "ann"}), Call("meet", {"who": "bob", "mood": "good"})],
        thinking="They should come together.",
        says="I let them meet.",
    ),
    Call("refuse", {}),
    Say("They met, and nobody else came."),
)


@pytest.mark.req("KAI-8")
@each_provider
async def test_a_model_calls_the_tools_of_an_mcp_server_through_its_provider_s_real_interface(provider: str) -> None:
    server = StdioServer("meeting", command=sys.executable, args=["-I", "-S", MEETING])
    with scripted(provider, STORY) as model:
        events = await told(options(provider, model, api_key=KEY, mcp_servers=[server], instructions="Be kind."))
    _the_run_tells_it(events)
    _the_model_was_given_it(model)
    _the_key_came(provider, model)
    _the_calls_and_results_are_in_their_turns(provider, model.bodies[-1])


async def told(chosen: AgentOptions) -> list[RunEvent]:
    async with asyncio.timeout(LIMIT):
        return [event async for event in run_agent("Let them meet.", chosen)]


Kind = TypeVar("Kind", bound=RunEvent)


def of(kind: type[Kind], events: list[RunEvent]) -> list[Kind]:
    return [event for event in events if isinstance(event, kind)]


def _the_run_tells_it(events: list[RunEvent]) -> None:
    last = events[-1]
    assert isinstance(last, RunFinished), last
    assert (last.ended, last.text, last.steps) == (Ended.DONE, "They met, and nobody else came.", 3)
    assert [event.servers for event in of(McpConnected, events)] == [("meeting",)]
    again = of(Retrying, events)
    assert [(event.attempt, event.delay, event.reason[:4]) for event in again] == [(1, 0.0, "429:")]
    assert "".join(event.text for event in of(ReasoningDelta, events)) == "They should come together."
    text = "".join(event.text for event in of(TextDelta, events))
    assert text == "I let them meet.They met, and nobody else came."
    called = [(event.tool_name, event.server, event.tool_args) for event in of(ToolCalled, events)]
    assert called == [
        ("meet", "meeting", {"who": "ann"}),
        ("meet", "meeting", {"who": "bob", "mood": "good"}),
        ("refuse", "meeting", {}),
    ]
    ended = [(event.text, event.tool_status) for event in of(ToolFinished, events)]
    assert sorted(ended[:2]) == [("ann met bob", ToolStatus.OK), ("bob met ann", ToolStatus.OK)]
    assert ended[2:] == [("no, thank you", ToolStatus.ERROR)]


def _the_model_was_given_it(model: Model) -> None:
    assert not model.left
    assert len(model.requests) == 4
    assert model.bodies[0] == model.bodies[1], "what was refused is asked again as it was"
    assert [tool.name for tool in model.offered] == ["meet", "refuse"]
    assert model.results[:2] == ("ann met bob", "bob met ann")
    assert "no, thank you" in model.results[2]
    assert any("Be kind." in json.dumps(body) for body in model.bodies)


def _the_key_came(provider: str, model: Model) -> None:
    for request in model.requests:
        where = [name for name, value in request.headers.items() if KEY in value]
        assert len(where) == 1
        assert where[0] in {"google": {"x-goog-api-key"}}.get(provider, {"authorization", "x-api-key"})
        assert KEY not in json.dumps(request.body) + request.path


def _the_calls_and_results_are_in_their_turns(provider: str, body: dict[str, Any]) -> None:
    calls, results, failed = TURNS[provider](body)
    assert [len(turn) for turn in calls] == [2, 1], "the two calls are one turn"
    assert calls == results, "each result has the id of its call"
    assert len({call for turn in calls for call in turn}) == 3
    assert failed


Turns = tuple[list[list[str]], list[list[str]], bool]


def _chat(body: dict[str, Any]) -> Turns:
    calls: list[list[str]] = []
    results: list[list[str]] = []
    for message in body["messages"]:
        if message["role"] == "assistant" and message.get("tool_calls"):
            calls.append([call["id"] for call in message["tool_calls"]])
            results.append([])
        elif message["role"] == "tool":
            results[-1].append(message["tool_call_id"])
    return calls, results, "no, thank you" in body["messages"][-1]["content"]


def _responses(body: dict[str, Any]) -> Turns:
    kinds = {"function_call": "calls", "function_call_output": "results"}
    runs = [(kinds[item["type"]], item["call_id"]) for item in body["input"] if item.get("type") in kinds]
    grouped = [[call for _, call in group] for _, group in itertools.groupby(runs, key=lambda run: run[0])]
    return grouped[::2], grouped[1::2], "no, thank you" in body["input"][-1]["output"]


def _anthropic(body: dict[str, Any]) -> Turns:
    def blocks(kind: str, name: str) -> list[list[str]]:
        turns = [[block[name] for block in message["content"] if block["type"] == kind] for message in body["messages"]]
        return [turn for turn in turns if turn]

    last = body["messages"][-1]["content"][-1]
    return blocks("tool_use", "id"), blocks("tool_result", "tool_use_id"), last["is_error"] is True


def _google(body: dict[str, Any]) -> Turns:
    def parts(kind: str) -> list[list[str]]:
        turns = [[part[kind]["id"] for part in content["parts"] if kind in part] for content in body["contents"]]
        return [turn for turn in turns if turn]

    last = body["contents"][-1]["parts"][-1]["functionResponse"]["response"]
    return parts("functionCall"), parts("functionResponse"), "no, thank you" in json.dumps(last)


TURNS: Mapping[str, Callable[[dict[str, Any]], Turns]] = {
    "openai": _chat,
    "openrouter": _chat,
    "openai-responses": _responses,
    "anthropic": _anthropic,
    "google": _google,
}


WHOLE = "This is what it was about to say."


@each_provider
async def test_an_answer_that_breaks_off_in_the_middle_ends_the_run_with_what_there_was(provider: str) -> None:
    with scripted(provider, [Break(WHOLE), Say("never asked for")]) as model:
        events = await told(options(provider, model))
    failed = events[-1]
    assert isinstance(failed, RunFailed)
    assert failed.remedy
    said = "".join(event.text for event in of(TextDelta, events))
    assert said
    assert WHOLE.startswith(said)
    assert len(model.requests) == 1


@each_provider
async def test_an_answer_that_breaks_off_before_anything_was_said_is_asked_for_again(
    provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolcrib.agent.models.retrying.FIRST_DELAY", 0.0)
    with scripted(provider, [Break("", status=529), Break(""), Say("at last")]) as model:
        events = await told(options(provider, model))
    assert events[-1].text == "at last"
    assert [event.attempt for event in of(Retrying, events)] == [1, 2]
    assert len(model.requests) == 3


@each_provider
@pytest.mark.parametrize("status", [400, 401, 403, 404])
async def test_what_the_provider_rejects_is_not_asked_again(provider: str, status: int) -> None:
    with scripted(provider, [Refuse(status)]) as model:
        events = await told(options(provider, model))
    assert isinstance(events[-1], RunFailed)
    assert events[-1].error.startswith(f"{status}:")
    assert not of(Retrying, events)
    assert len(model.requests) == 1


# What stands on the wire.


def offer(name: str, schema: dict[str, Any], **by_provider: dict[str, Any]) -> Offer:
    definition = json.dumps({"name": name, "description": f"Does {name}.", "inputSchema": schema}).encode()
    own, fields = decode_definition(definition)
    names = Names(plain=own, mcp=f"mcp_s_{own}", server=f"s_{own}", display=f"s:{own}")
    tool = Tool(server="s", name=own, fields=fields, names=names)
    return Offer(tool=tool, name=own, description=f"Does {own}.", schema=schema, options=by_provider)


async def ask(provider: str, there: Model, offers: Mapping[str, Offer], **more: Any) -> str:
    """One request, through the adapter alone."""
    given = ModelRequestParameters(
        function_tools=[
            ToolDefinition(name=name, parameters_json_schema=dict(one.schema), strict=False)
            for name, one in offers.items()
        ]
    )
    chosen = options(provider, there, **more)
    async with (
        asyncio.timeout(LIMIT),
        open_model(chosen, offers, lambda *_: None) as asked,
        asked.request_stream([ModelRequest.user_text_prompt("go")], None, given) as stream,
    ):
        async for _ in stream:
            pass
        return stream.get().text or ""


SCHEMA: dict[str, Any] = {
    "type": "object",
    "title": "Kept",
    "properties": {
        "mode": {"enum": ["a", "b"], "default": "a"},
        "who": {"$ref": "#/$defs/who"},
        "count": {"type": ["integer", "null"], "minimum": 1},
        "nested": {"type": "object", "properties": {"x": {"type": "string", "maxLength": 3}}, "required": ["x"]},
    },
    "required": ["who"],
    "$defs": {"who": {"type": "string", "pattern": "^[a-z]+$"}},
}
BY_PROVIDER: dict[str, dict[str, Any]] = {
    "openai": {"strict": True},
    "anthropic": {"cache_control": {"type": "ephemeral", "ttl": "1h"}},
    "google": {"behavior": "BLOCKING"},
}


def wire(provider: str, one: Offer) -> dict[str, Any]:
    if provider == "anthropic":
        return anthropic.definition(one).wire
    if provider == "google":
        return google.definition(one).wire
    return openai.definition(one, "responses" if provider == "openai-responses" else "chat").wire


def sent(provider: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    tools: list[dict[str, Any]] = body["tools"]
    return [function for tool in tools for function in tool["functionDeclarations"]] if provider == "google" else tools


@pytest.mark.req("ENG-7")
@each_provider
async def test_a_tool_stands_on_the_wire_as_the_format_writes_it_provider_options_included(provider: str) -> None:
    offers = {"plain": offer("plain", SCHEMA), "with_options": offer("with_options", SCHEMA, **BY_PROVIDER)}
    with scripted(provider, [Say("seen")]) as model:
        assert await ask(provider, model, offers) == "seen"
    plain, opted = sent(provider, model.bodies[0])
    # As JSON: `True` is not 1 there.
    assert json.dumps([plain, opted]) == json.dumps([wire(provider, one) for one in offers.values()])
    match provider:
        case "anthropic":
            assert opted["cache_control"] == {"type": "ephemeral", "ttl": "1h"}
        case "google":
            assert opted["behavior"] == "BLOCKING"
        case "openai-responses":
            assert (plain["strict"], opted["strict"]) == (False, True)
        case _:
            assert opted["function"]["strict"] is True
            assert plain["function"].get("strict", False) is False


async def test_a_schema_that_pydantic_ai_would_write_out_or_refuse_goes_out_as_it_is() -> None:
    # For some makers' models it puts each reference's target in its place: here two to the power of forty.
    levels = {f"d{n}": {"type": "array", "prefixItems": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}
    schema = {
        "type": "object",
        "properties": {"tree": {"$ref": "#/$defs/d0"}},
        "$defs": {**levels, "d40": {"type": "string"}},
    }
    with scripted("openrouter", [Say("seen")]) as model:
        grown = {"grow": offer("grow", schema)}
        assert await ask("openrouter", model, grown, model="openrouter:qwen/qwen3-coder") == "seen"
    assert sent("openrouter", model.bodies[0])[0]["function"]["parameters"] == schema


async def test_a_name_that_google_does_not_take_is_another_on_the_wire_only() -> None:
    offers = {"3d_draw": offer("3d_draw", SCHEMA)}
    given = ModelRequestParameters(
        function_tools=[ToolDefinition(name="3d_draw", parameters_json_schema={"type": "object"})]
    )
    begun = ModelRequest.user_text_prompt("go")
    with scripted("google", [Call("3d_draw", {"who": "ann"}), Say("drawn")]) as model:
        async with open_model(options("google", model), offers, lambda *_: None) as asked:
            answer = await asked.request([begun], None, given)
            (call,) = answer.tool_calls
            result = ModelRequest(parts=[ToolReturnPart(call.tool_name, "a picture", call.tool_call_id)])
            async with asked.request_stream([begun, answer, result], None, given) as stream:
                assert [event async for event in stream]
                assert stream.get().text == "drawn"
    assert call.tool_name == "3d_draw"
    parts = [part for content in model.bodies[1]["contents"] for part in content["parts"]]
    names = [
        said["name"] for part in parts for said in (part.get("functionCall"), part.get("functionResponse")) if said
    ]
    assert [tool.name for tool in model.offered] == ["_3d_draw"]
    assert names == ["_3d_draw", "_3d_draw"]


@each_provider
async def test_what_had_to_be_adapted_can_be_told(provider: str) -> None:
    offers = {"with_options": offer("with_options", SCHEMA, **BY_PROVIDER)}
    with scripted(provider, []) as model:
        async with open_model(options(provider, model), offers, lambda *_: None) as asked:
            adapted = asked.definitions.adaptations
    expected = {"anthropic": anthropic, "google": google}.get(provider)
    assert adapted == (
        expected.definition(offers["with_options"]).adaptations
        if expected
        else openai.definition(
            offers["with_options"], "responses" if provider == "openai-responses" else "chat"
        ).adaptations
    )


# Where requests go, and what goes along.


@each_provider
async def test_a_server_at_another_address_is_sent_no_key_that_was_not_given_for_it(
    provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in {one for several in VARIABLES.values() for one in several}:
        monkeypatch.setenv(variable, SECRET)
    for variable in ("ANTHROPIC_AUTH_TOKEN", "OPENAI_ADMIN_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"):
        monkeypatch.setenv(variable, SECRET)
    for variable in ("ANTHROPIC_CUSTOM_HEADERS", "OPENAI_CUSTOM_HEADERS"):
        monkeypatch.setenv(variable, f"X-Gateway: {SECRET}")
    with scripted(provider, [Say("seen")]) as model:
        await ask(provider, model, {}, environ=None)
    (request,) = model.requests
    assert not [name for name, value in request.headers.items() if SECRET in value]
    assert not {"authorization", "x-api-key", "x-goog-api-key"} & request.headers.keys()
    assert SECRET not in request.path + json.dumps(request.body)


@pytest.fixture
def at_home(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Model], None]:
    """Makes a scripted model's address the provider's own."""

    def move(provider: str, model: Model) -> None:
        there = replace(place.PROVIDERS[provider], url=model.url)
        monkeypatch.setattr(place, "PROVIDERS", MappingProxyType({**place.PROVIDERS, provider: there}))

    return move


@each_provider
async def test_the_provider_s_own_address_is_sent_the_usual_key_and_nothing_else_of_the_environment(
    provider: str, at_home: Callable[[str, Model], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in (
        "OPENAI_BASE_URL",
        "ANTHROPIC_BASE_URL",
        "GOOGLE_GEMINI_BASE_URL",
        "GOOGLE_VERTEX_BASE_URL",
        "OPENROUTER_BASE_URL",
    ):
        monkeypatch.setenv(variable, "http://127.0.0.1:9/elsewhere")
    monkeypatch.setenv("GOOGLE_GENAI_USE_VERTEXAI", "true")
    monkeypatch.setenv("GOOGLE_GENAI_API_VERSION", "v0")
    for variable in ("ANTHROPIC_CUSTOM_HEADERS", "OPENAI_CUSTOM_HEADERS"):
        monkeypatch.setenv(variable, "X-Gateway: elsewhere\nAuthorization: Bearer elsewhere")
    environ = {VARIABLES[provider][0]: SECRET, "OPENAI_ORG_ID": "org-of-mine", "OPENAI_PROJECT_ID": "my-project"}
    with scripted(provider, [Say("seen")]) as model:
        at_home(provider, model)
        await ask(provider, model, {}, base_url="", environ=environ)
    (request,) = model.requests
    assert [name for name, value in request.headers.items() if SECRET in value]
    assert not [name for name, value in request.headers.items() if "elsewhere" in value]
    if provider.startswith("openai"):
        assert request.headers["openai-organization"] == "org-of-mine"
        assert request.headers["openai-project"] == "my-project"


@each_provider
async def test_loopback_is_not_asked_through_a_proxy(provider: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")
    for variable in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(variable, raising=False)
    with scripted(provider, [Say("seen")]) as model:
        assert await ask(provider, model, {}, retries=0) == "seen"
        assert await ask(provider, model, {}, retries=0, base_url=model.url.replace("127.0.0.1", "localhost"))


async def test_any_other_address_is_asked_through_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted("openai", []) as model:
        for variable in ("HTTP_PROXY", "http_proxy"):
            monkeypatch.setenv(variable, model.url)
        # The scripted model is no proxy, but it is the one who refuses.
        with pytest.raises(ModelHTTPError) as caught:
            await ask("openai", model, {}, retries=0, base_url="http://model.invalid/v1")
    assert caught.value.status_code == 404


@each_provider
async def test_a_redirect_is_not_followed_since_it_would_take_the_key_along(provider: str) -> None:
    with scripted(provider, []) as model, redirecting(model) as url, pytest.raises(ModelAPIError):
        await ask(provider, model, {}, retries=0, api_key=KEY, base_url=url)
    assert not model.requests


@contextlib.contextmanager
def redirecting(model: Model) -> Iterator[str]:
    """The address of a server that sends everybody on to the model."""
    there = urlsplit(model.url)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(307)
            self.send_header("Location", f"http://{there.netloc}{self.path}")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """The test says what it saw."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}{there.path}"
        server.shutdown()
        thread.join()


@each_provider
async def test_who_does_not_take_a_connection_is_not_waited_for_as_long_as_a_model_that_thinks(
    provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[dict[str, float]] = []
    handle = httpx2.AsyncHTTPTransport.handle_async_request

    async def noted(transport: httpx2.AsyncHTTPTransport, request: httpx2.Request) -> httpx2.Response:
        limits.append(request.extensions["timeout"])
        return await handle(transport, request)

    monkeypatch.setattr(httpx2.AsyncHTTPTransport, "handle_async_request", noted)
    with scripted(provider, [Say("seen")]) as model:
        await ask(provider, model, {})
    (given,) = limits
    assert (given["connect"], given["pool"]) == (CONNECT_LIMIT, CONNECT_LIMIT)
    assert given["read"] == SILENCE_LIMIT


@each_provider
async def test_no_connection_stays_when_the_model_is_closed(provider: str) -> None:
    with scripted(provider, [Say("seen")]) as model:
        port = int(model.url.split(":")[2].split("/")[0])
        async with open_model(options(provider, model), {}, lambda *_: None) as asked:
            await asked.request([ModelRequest.user_text_prompt("go")], None, ModelRequestParameters())
            assert connections(port), "it is kept for the next request"
        wait_for(lambda: not connections(port), "the connection to be closed", 10)


def connections(port: int) -> list[str]:
    """The open connections to a port of this machine, as the kernel lists them."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    fields = [line.split() for line in lines]
    return [one[2] for one in fields if one[2].endswith(f":{port:04X}") and one[3] == "01"]


@each_provider
async def test_a_run_that_is_cancelled_in_mid_answer_hangs_up(provider: str) -> None:
    hold = Hold()
    with scripted(provider, [Say("begun, never ended", hold=hold)]) as model:
        port = int(model.url.split(":")[2].split("/")[0])
        task = asyncio.create_task(told(options(provider, model)))
        await asyncio.to_thread(hold.reached, LIMIT)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        wait_for(lambda: not connections(port), "the connection to be closed", 10)
