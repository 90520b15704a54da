"""Requests to a provider: URL, headers, keys, timeouts, and the tool definitions in the body."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelRequest, ToolReturnPart
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.tools import ToolDefinition

from parts.adapters import MODELS, ask, connections, offer, options
from parts.waiting import wait_for
from toolcrib.agent_loop.models import endpoint
from toolcrib.agent_loop.models.http import CONNECT_LIMIT, SILENCE_LIMIT, _refuse_no_answer
from toolcrib.agent_loop.models.opening import open_model
from toolcrib.catalog.offered_tool import OfferedTool
from toolcrib.errors import UsageError
from toolcrib.formats import anthropic, google, openai
from toolcrib.formats.definition import Definition
from toolcrib.testing import Call, Say, ScriptedModel, scripted

KEY = "sk-given-by-hand"
SECRET = "sk-of-the-environment"
VARIABLES = {name: provider.variables for name, provider in endpoint.PROVIDERS.items()}

each_provider = pytest.mark.parametrize("provider", MODELS)


@each_provider
async def test_another_server_gets_no_key_from_the_environment(provider: str, monkeypatch: pytest.MonkeyPatch) -> None:
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
def at_home(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, ScriptedModel], None]:
    """Makes a scripted model's URL the provider's own."""

    def move(provider: str, model: ScriptedModel) -> None:
        moved = endpoint.PROVIDERS[provider]._replace(url=model.url)
        monkeypatch.setattr(endpoint, "PROVIDERS", MappingProxyType({**endpoint.PROVIDERS, provider: moved}))

    return move


@each_provider
async def test_the_providers_own_url_gets_its_key_and_nothing_else_from_the_environment(
    provider: str, at_home: Callable[[str, ScriptedModel], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for prefix in ("OPENAI", "ANTHROPIC", "GOOGLE_GEMINI", "GOOGLE_VERTEX", "OPENROUTER"):
        monkeypatch.setenv(f"{prefix}_BASE_URL", "http://127.0.0.1:9/elsewhere")
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
async def test_a_proxy_is_not_used_for_loopback(provider: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")
    for variable in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(variable, raising=False)
    with scripted(provider, [Say("seen")]) as model:
        assert await ask(provider, model, {}, retries=0) == "seen"
        assert await ask(provider, model, {}, retries=0, base_url=model.url.replace("127.0.0.1", "localhost"))


async def test_a_proxy_is_used_for_other_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted("openai", []) as model:
        for variable in ("HTTP_PROXY", "http_proxy"):
            monkeypatch.setenv(variable, model.url)
        # The scripted model, used as a proxy, refuses the request.
        with pytest.raises(ModelHTTPError) as caught:
            await ask("openai", model, {}, retries=0, base_url="http://model.invalid/v1")
    assert caught.value.status_code == 404


@each_provider
async def test_a_redirect_is_neither_followed_nor_retried(provider: str) -> None:
    with scripted(provider, []) as model, redirecting(model) as url, pytest.raises(UsageError, match="307") as refused:
        await ask(provider, model, {}, retries=1000, api_key=KEY, base_url=url)
    assert "base_url" in refused.value.remedy
    assert not model.requests


@contextlib.contextmanager
def redirecting(model: ScriptedModel) -> Iterator[str]:
    """The URL of a server that redirects to the model."""
    target = urlsplit(model.url)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(307)
            self.send_header("Location", f"http://{target.netloc}{self.path}")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}{target.path}"
        server.shutdown()
        thread.join()


@each_provider
async def test_the_connect_timeout_is_shorter_than_the_read_timeout(
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
async def test_closing_the_model_closes_its_connection(provider: str) -> None:
    with scripted(provider, [Say("seen")]) as model:
        async with open_model(options(provider, model), {}, lambda *_: None) as asked:
            await asked.request([ModelRequest.user_text_prompt("go")], None, ModelRequestParameters())
            assert connections(model), "kept alive for the next request"
        wait_for(lambda: not connections(model), "the connection to be closed")


@pytest.mark.parametrize(("status", "refused"), [(200, True), (500, False)])
async def test_a_web_page_is_refused_but_an_error_page_is_an_error(status: int, refused: bool) -> None:
    request = httpx2.Request("POST", "http://127.0.0.1/v1")
    response = httpx2.Response(status, headers={"Content-Type": "text/html; charset=utf-8"}, request=request)
    with pytest.raises(UsageError, match="web page") if refused else contextlib.nullcontext():
        await _refuse_no_answer(response)


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


def definition(provider: str, one: OfferedTool) -> Definition:
    if provider == "anthropic":
        return anthropic.definition(one)
    if provider == "google":
        return google.definition(one)
    return openai.definition(one, "responses" if provider == "openai-responses" else "chat")


def sent(provider: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    tools: list[dict[str, Any]] = body["tools"]
    return [function for tool in tools for function in tool["functionDeclarations"]] if provider == "google" else tools


@pytest.mark.req("ENG-7")
@each_provider
async def test_tools_are_sent_as_the_format_writes_them_with_provider_options(provider: str) -> None:
    offers = {"plain": offer("plain", SCHEMA), "with_options": offer("with_options", SCHEMA, **BY_PROVIDER)}
    with scripted(provider, [Say("seen")]) as model:
        assert await ask(provider, model, offers) == "seen"
    plain, opted = sent(provider, model.bodies[0])
    # As JSON, because True equals 1 in Python.
    assert json.dumps([plain, opted]) == json.dumps([definition(provider, one).wire for one in offers.values()])
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


async def test_references_in_schemas_are_sent_unexpanded() -> None:
    # pydantic-ai would expand them for some models: here to 2**40 copies.
    levels = {f"d{n}": {"type": "array", "prefixItems": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}
    definitions = {**levels, "d40": {"type": "string"}}
    schema = {"type": "object", "properties": {"tree": {"$ref": "#/$defs/d0"}}, "$defs": definitions}
    with scripted("openrouter", [Say("seen")]) as model:
        grown = {"grow": offer("grow", schema)}
        assert await ask("openrouter", model, grown, model="openrouter:qwen/qwen3-coder") == "seen"
    assert sent("openrouter", model.bodies[0])[0]["function"]["parameters"] == schema


async def test_a_name_that_google_refuses_is_changed_on_the_wire_only() -> None:
    offers = {"3d_draw": offer("3d_draw", SCHEMA)}
    tool = ToolDefinition(name="3d_draw", parameters_json_schema={"type": "object"})
    given = ModelRequestParameters(function_tools=[tool])
    prompt = ModelRequest.user_text_prompt("go")
    with scripted("google", [Call("3d_draw", {"who": "ann"}), Say("drawn")]) as model:
        async with open_model(options("google", model), offers, lambda *_: None) as asked:
            answer = await asked.request([prompt], None, given)
            (call,) = answer.tool_calls
            result = ModelRequest(parts=[ToolReturnPart(call.tool_name, "a picture", call.tool_call_id)])
            async with asked.request_stream([prompt, answer, result], None, given) as stream:
                assert [event async for event in stream]
                assert stream.get().text == "drawn"
    assert call.tool_name == "3d_draw"
    parts = [part for content in model.bodies[1]["contents"] for part in content["parts"]]
    functions = [part.get("functionCall") or part.get("functionResponse") for part in parts]
    assert [one.name for one in model.offered] == ["_3d_draw"]
    assert [function["name"] for function in functions if function] == ["_3d_draw", "_3d_draw"]


@each_provider
async def test_adaptations_of_definitions_are_reported(provider: str) -> None:
    offers = {"with_options": offer("with_options", SCHEMA, **BY_PROVIDER)}
    with scripted(provider, []) as model:
        async with open_model(options(provider, model), offers, lambda *_: None) as asked:
            adapted = asked.definitions.adaptations
    assert adapted == definition(provider, offers["with_options"]).adaptations
    assert (adapted != ()) == provider.startswith(("open", "google"))
