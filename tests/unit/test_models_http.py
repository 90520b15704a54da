"""Where requests go, what goes along, and what stays."""

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
from pydantic_ai.messages import ModelRequest
from pydantic_ai.models import ModelRequestParameters

from parts.adapters import MODELS, ask, connections, options
from parts.waiting import wait_for
from toolcrib.agent_loop.models import endpoint
from toolcrib.agent_loop.models.http import CONNECT_LIMIT, SILENCE_LIMIT, _refuse_no_answer
from toolcrib.agent_loop.models.opening import open_model
from toolcrib.errors import UsageError
from toolcrib.testing import Say, ScriptedModel, scripted

KEY = "sk-given-by-hand"
SECRET = "sk-of-the-environment"
VARIABLES = {name: provider.variables for name, provider in endpoint.PROVIDERS.items()}

each_provider = pytest.mark.parametrize("provider", MODELS)


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
def at_home(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, ScriptedModel], None]:
    """Makes a scripted model's address the provider's own."""

    def move(provider: str, model: ScriptedModel) -> None:
        there = endpoint.PROVIDERS[provider]._replace(url=model.url)
        monkeypatch.setattr(endpoint, "PROVIDERS", MappingProxyType({**endpoint.PROVIDERS, provider: there}))

    return move


@each_provider
async def test_the_provider_s_own_address_is_sent_the_usual_key_and_nothing_else_of_the_environment(
    provider: str, at_home: Callable[[str, ScriptedModel], None], monkeypatch: pytest.MonkeyPatch
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
    with scripted(provider, []) as model, redirecting(model) as url, pytest.raises(UsageError, match="307") as told:
        # Nor is it asked again: it will say the same.
        await ask(provider, model, {}, retries=1000, api_key=KEY, base_url=url)
    assert "base_url" in told.value.remedy
    assert not model.requests


@contextlib.contextmanager
def redirecting(model: ScriptedModel) -> Iterator[str]:
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
        async with open_model(options(provider, model), {}, lambda *_: None) as asked:
            await asked.request([ModelRequest.user_text_prompt("go")], None, ModelRequestParameters())
            assert connections(model), "it is kept for the next request"
        wait_for(lambda: not connections(model), "the connection to be closed")


@pytest.mark.parametrize(("status", "kind", "refused"), [(200, "text/html", True), (500, "text/html", False)])
async def test_a_web_page_is_no_answer(status: int, kind: str, refused: bool) -> None:
    request = httpx2.Request("POST", "http://127.0.0.1/v1")
    response = httpx2.Response(status, headers={"Content-Type": f"{kind}; charset=utf-8"}, request=request)
    with pytest.raises(UsageError, match="web page") if refused else contextlib.nullcontext():
        await _refuse_no_answer(response)
