"""Where a run's model is, and which key goes there."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.agent_loop.models.endpoint import PROVIDERS, find_endpoint
from toolcrib.agent_loop.options import AgentOptions
from toolcrib.errors import UsageError

MODEL = {"openrouter": "openrouter:maker/model"}
KEY = "sk-the-key"


def options(model: str, **more: object) -> AgentOptions:
    return AgentOptions(model=model, environ=more.pop("environ", {}), **more)  # type: ignore[arg-type]


def every(provider: str) -> str:
    return MODEL.get(provider, f"{provider}:model")


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_key_that_is_missing_is_asked_for_by_the_name_of_its_variable(provider: str) -> None:
    with pytest.raises(UsageError) as caught:
        find_endpoint(options(every(provider)))
    assert provider in caught.value.message
    for variable in PROVIDERS[provider].variables:
        assert variable in caught.value.remedy
    assert "api_key" in caught.value.remedy


@pytest.mark.parametrize(
    ("provider", "variable"), [(name, one) for name, provider in PROVIDERS.items() for one in provider.variables]
)
def test_the_usual_variable_of_each_provider_counts(provider: str, variable: str) -> None:
    there = find_endpoint(options(every(provider), environ={variable: f"{KEY}\n"}))
    assert there.key == KEY
    assert there.url == PROVIDERS[provider].url


def test_the_environment_is_this_process_s_unless_one_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    assert find_endpoint(AgentOptions(model="openai:m")).key == KEY
    with pytest.raises(UsageError):
        find_endpoint(AgentOptions(model="openai:m", environ={}))


def test_a_key_that_is_given_counts_before_the_variable() -> None:
    assert find_endpoint(options("google:m", api_key=KEY, environ={"GOOGLE_API_KEY": "other"})).key == KEY


def test_google_s_newer_variable_counts_before_the_older() -> None:
    assert find_endpoint(options("google:m", environ={"GEMINI_API_KEY": "old", "GOOGLE_API_KEY": "new"})).key == "new"


@pytest.mark.parametrize("provider", PROVIDERS)
def test_another_address_gets_no_key_but_one_that_is_given(provider: str) -> None:
    environ = dict.fromkeys((*PROVIDERS[provider].variables, "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"), KEY)
    there = find_endpoint(options(every(provider), base_url="http://127.0.0.1:9/v1", environ=environ))
    assert (there.key, there.organization, there.project) == ("", "", "")
    assert there.url == "http://127.0.0.1:9/v1"
    assert find_endpoint(options(every(provider), base_url="http://127.0.0.1:9/v1", api_key="mine")).key == "mine"


def test_the_key_is_not_printed() -> None:
    assert KEY not in repr(find_endpoint(options("openai:m", api_key=KEY)))


@pytest.mark.parametrize(
    ("model", "near"),
    [
        ("opanai:gpt", "openai"),
        ("antropic:claude", "anthropic"),
        ("gogle:gemini", "google"),
        ("open-router:a/b", "openr"),
    ],
)
def test_a_provider_that_is_misspelt_is_answered_with_the_nearest(model: str, near: str) -> None:
    with pytest.raises(UsageError) as caught:
        find_endpoint(options(model, api_key=KEY))
    assert f"Did you mean {near}" in caught.value.remedy or f"or {near}" in caught.value.remedy


@pytest.mark.parametrize("model", ["", "gpt-5", "openai", ":gpt", "mistral:large"])
def test_a_model_without_a_known_provider_is_answered_with_all_of_them(model: str) -> None:
    with pytest.raises(UsageError) as caught:
        find_endpoint(options(model, api_key=KEY))
    assert all(name in caught.value.remedy for name in PROVIDERS)
    assert "base_url" in caught.value.remedy


def test_a_provider_alone_is_no_model() -> None:
    with pytest.raises(UsageError, match="has no model name"):
        find_endpoint(options("openai:", api_key=KEY))


def test_a_colon_in_a_model_s_name_is_part_of_it() -> None:
    assert find_endpoint(options("openrouter:maker/model:free", api_key=KEY)).model == "maker/model:free"


def test_a_model_of_openrouter_needs_its_maker() -> None:
    with pytest.raises(UsageError) as caught:
        find_endpoint(options("openrouter:claude", api_key=KEY))
    assert "openrouter:MAKER/claude" in caught.value.remedy


@pytest.mark.parametrize("url", ["localhost:8080", "ftp://x/v1", "http://", "http://[::1", "http://x:99999", "/v1"])
def test_a_base_url_that_is_no_http_address_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="not an HTTP URL"):
        find_endpoint(options("openai:m", base_url=url))


def test_retries_of_the_sdk_are_refused_in_favour_of_our_own() -> None:
    with pytest.raises(UsageError) as caught:
        find_endpoint(options("openai:m", api_key=KEY, settings={"max_retries": 3}))
    assert "retries" in caught.value.remedy


def test_without_the_extra_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError) as caught:
        find_endpoint(options("openai:m", api_key=KEY))
    assert "toolcrib[agent]" in caught.value.remedy


@given(model=st.text(max_size=40), url=st.text(max_size=40))
def test_whatever_is_written_it_is_a_place_or_a_usage_error(model: str, url: str) -> None:
    for written in (model, f"openai:{model}"):
        try:
            there = find_endpoint(options(written, base_url=url, api_key=KEY))
        except UsageError as refused:
            assert refused.remedy
        else:
            assert f"{there.provider.name}:{there.model}" == written
            assert there.url.startswith(("http://", "https://"))


def test_every_provider_and_variable_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
    rows = {line.split("|")[1].strip(): line for line in page.splitlines() if line.startswith("| `")}
    assert rows.keys() == {f"`{name}`" for name in PROVIDERS}
    for name, provider in PROVIDERS.items():
        assert re.findall(r"`([A-Z_]+_KEY)`", rows[f"`{name}`"]) == list(provider.variables)


def test_no_provider_s_library_is_imported_to_check_a_model() -> None:
    program = (
        "import sys; from toolcrib.agent_loop.models.endpoint import find_endpoint;"
        "from toolcrib.agent_loop.options import AgentOptions;"
        "find_endpoint(AgentOptions(model='openai:m', api_key='k'));"
        "print([n for n in ('pydantic_ai', 'openai', 'anthropic', 'google.genai', 'httpx2') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
