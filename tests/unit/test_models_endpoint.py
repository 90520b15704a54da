"""The URL and the key of a run's model."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.agent_loop.models.endpoint import PROVIDERS, find_endpoint
from toolcrib.agent_loop.options import AgentOptions
from toolcrib.errors import UsageError

KEY = "sk-the-key"
LOCAL = "http://127.0.0.1:9/v1"


def options(model: str, **more: Any) -> AgentOptions:
    return AgentOptions(**{"model": model, "environ": {}, **more})


@pytest.mark.parametrize("provider", PROVIDERS.values(), ids=PROVIDERS)
def test_the_key_comes_from_the_option_or_the_providers_variables(provider: Any) -> None:
    model = f"{provider.name}:maker/model"
    for variable in provider.variables:
        endpoint = find_endpoint(options(model, environ={variable: f"{KEY}\n"}))
        assert (endpoint.key, endpoint.url) == (KEY, provider.url)
        assert find_endpoint(options(model, api_key="mine", environ={variable: KEY})).key == "mine"
    with pytest.raises(UsageError) as refused:
        find_endpoint(options(model))
    assert provider.name in refused.value.message
    assert all(name in refused.value.remedy for name in (*provider.variables, "api_key"))
    environ = dict.fromkeys((*provider.variables, "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"), KEY)
    endpoint = find_endpoint(options(model, base_url=LOCAL, environ=environ))
    assert (endpoint.url, endpoint.key, endpoint.organization, endpoint.project) == (LOCAL, "", "", "")
    assert find_endpoint(options(model, base_url=LOCAL, api_key="mine")).key == "mine"


def test_the_environment_is_that_of_the_process_and_a_model_may_have_a_colon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    endpoint = find_endpoint(AgentOptions(model="openai:m"))
    assert endpoint.key == KEY
    assert KEY not in repr(endpoint)
    with pytest.raises(UsageError):
        find_endpoint(AgentOptions(model="openai:m", environ={}))
    assert find_endpoint(options("google:m", environ={"GEMINI_API_KEY": "old", "GOOGLE_API_KEY": "new"})).key == "new"
    assert find_endpoint(options("openrouter:maker/model:free", api_key=KEY)).model == "maker/model:free"


@pytest.mark.parametrize(
    ("given_", "texts"),
    [
        ({"model": "opanai:gpt"}, ["Did you mean openai"]),
        ({"model": "antropic:claude"}, ["Did you mean anthropic"]),
        ({"model": "gogle:gemini"}, ["Did you mean google"]),
        ({"model": "open-router:a/b"}, ["openrouter:…"]),
        *(({"model": model}, [*PROVIDERS, "base_url"]) for model in ("", "gpt-5", "openai", ":gpt", "mistral:large")),
        ({"model": "openai:"}, ["has no model name"]),
        ({"model": "openrouter:claude"}, ["openrouter:MAKER/claude"]),
        *(
            ({"base_url": url}, ["not an HTTP URL"])
            for url in ("localhost:8080", "ftp://x/v1", "http://", "http://[::1", "http://x:99999", "/v1")
        ),
        ({"settings": {"max_retries": 3}}, ["AgentOptions(retries="]),
    ],
)
def test_invalid_options_are_refused_with_a_correction(given_: dict[str, Any], texts: list[str]) -> None:
    with pytest.raises(UsageError) as refused:
        find_endpoint(AgentOptions(**{"model": "openai:m", "api_key": KEY, "environ": {}, **given_}))
    assert [text for text in texts if text not in refused.value.text()] == []


@given(model=st.text(max_size=40), url=st.text(max_size=40))
def test_any_text_gives_an_endpoint_or_a_usage_error(model: str, url: str) -> None:
    for written in (model, f"openai:{model}"):
        try:
            endpoint = find_endpoint(options(written, base_url=url, api_key=KEY))
        except UsageError as refused:
            assert refused.remedy
        else:
            assert f"{endpoint.provider.name}:{endpoint.model}" == written
            assert endpoint.url.startswith(("http://", "https://"))


def test_every_provider_and_variable_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
    rows = {line.split("|")[1].strip(): line for line in page.splitlines() if line.startswith("| `")}
    assert rows.keys() == {f"`{name}`" for name in PROVIDERS}
    for name, provider in PROVIDERS.items():
        assert re.findall(r"`([A-Z_]+_KEY)`", rows[f"`{name}`"]) == list(provider.variables)


def test_no_sdk_is_imported_before_a_run() -> None:
    program = (
        "import sys, toolcrib, toolcrib.agent_loop.run; heavy = {'mcp'} & set(sys.modules);"
        "from toolcrib.agent_loop.models.endpoint import find_endpoint;"
        "from toolcrib.agent_loop.options import AgentOptions;"
        "find_endpoint(AgentOptions(model='openai:m', api_key='k'));"
        "sdks = {'pydantic_ai', 'openai', 'anthropic', 'google.genai', 'httpx2'};"
        "print(*heavy, *sdks & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == ""
