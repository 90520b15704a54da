"""Invalid options are refused with a remedy, before anything starts."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from parts.agent_runs import SERVERS, desk, in_memory, only, options, other_tasks, run
from toolcrib.agent_loop import events, setup
from toolcrib.agent_loop.events import RunFailed, RunFinished
from toolcrib.agent_loop.models import endpoint
from toolcrib.agent_loop.models.endpoint import load_module
from toolcrib.agent_loop.options import AgentOptions, CodingTools
from toolcrib.agent_loop.run import run_agent
from toolcrib.agent_loop.setup import check_settings
from toolcrib.config.from_code import HttpServer, StdioServer
from toolcrib.core.crib import Crib
from toolcrib.core.kit import Kit
from toolcrib.errors import UsageError

SERVER = StdioServer("s", command="true")
SECRET = "sk-VERY-SECRET"


def test_every_option_is_checked() -> None:
    assert set(setup.CHECKS) == {one.name for one in fields(AgentOptions)}


def test_every_option_and_every_event_has_a_docstring() -> None:
    text = inspect.getdoc(AgentOptions) or ""
    assert [one.name for one in fields(AgentOptions) if one.name not in text] == []
    assert "CodingTools.all(" in (inspect.getdoc(CodingTools) or "")
    kinds = [kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, events.RunEvent)]
    assert len(kinds) > 10
    assert [kind.__name__ for kind in kinds if (kind.__doc__ or "").startswith(f"{kind.__name__}(")] == []


def message(**part: Any) -> list[Any]:
    return [{"kind": "request", "parts": [{"part_kind": "user-prompt", **part}]}]


HISTORIES: list[Any] = [
    [{}],
    ["text"],
    [{"kind": "request"}],
    message(),
    message(content=b"\xff"),
    [{"kind": "response", "parts": [], "state": "suspended"}],
    [{"kind": "unknown", "parts": []}],
    "not a list",
    json.loads("[" * 900 + "]" * 900),
    5,
    {"messages": []},
]
UNUSABLE: list[tuple[dict[str, Any], str]] = [
    *(({"history": history}, "messages") for history in HISTORIES),
    ({"model": None}, "PROVIDER:MODEL"),
    ({"model": "nobody:x"}, "provider"),
    ({"model": "scripted"}, "provider"),
    ({"base_url": "", "environ": {}}, "ANTHROPIC_API_KEY"),
    ({"base_url": "", "environ": {"ANTHROPIC_API_KEY": f"{SECRET}é"}}, "ANTHROPIC_API_KEY"),
    ({"base_url": "ftp://x"}, "base_url"),
    ({"max_steps": 0}, "max_steps"),
    ({"max_steps": True}, "max_steps"),
    ({"timeout": 0}, "timeout"),
    ({"timeout": float("nan")}, "timeout"),
    ({"coding_tools": "some"}, "coding_tools"),
    ({"coding_tools": CodingTools.all(Path("/nowhere"))}, "coding_tools"),
    ({"mcp_servers": [HttpServer(name, url="http://127.0.0.1:9/mcp") for name in ("jobs", "Jobs")]}, "the same name"),
    ({"model": 5}, "PROVIDER:MODEL"),
    ({"api_key": 5}, "key"),
    ({"api_key": f"{SECRET}\r\nX: y"}, "key"),
    ({"api_key": f"{SECRET}é"}, "key"),
    ({"api_key": f"{SECRET}\x00"}, "key"),
    ({"base_url": 5}, "http"),
    ({"base_url": f"http://me:{SECRET}@127.0.0.1/v1"}, "api_key"),
    ({"base_url": f"http://{SECRET}@127.0.0.1/v1"}, "api_key"),
    ({"instructions": None}, "as a string"),
    ({"mcp_servers": {"s": {"command": "true"}}}, "StdioServer"),
    ({"mcp_servers": [{"command": "true"}]}, "server_config"),
    ({"mcp_servers": ["npx server"]}, "StdioServer"),
    ({"mcp_servers": SERVER}, "list"),
    ({"mcp_servers": "s"}, "StdioServer"),
    ({"mcp_servers": None}, "StdioServer"),
    ({"crib": "crib"}, "Crib"),
    ({"crib": Crib}, "Crib"),
    ({"crib": Kit([SERVER])}, "Kit"),
    ({"keep": 5}, "glob"),
    ({"drop": [5]}, "glob"),
    ({"keep": {"a": 1}}, "glob"),
    ({"transform": 5}, "Rename"),
    ({"transform": ["git:*"]}, "Rename"),
    ({"coding_tools": None}, "read-only"),
    ({"coding_tools": True}, "read-only"),
    ({"coding_tools": ["all"]}, "read-only"),
    ({"max_steps": "3"}, "whole number"),
    ({"max_steps": 1.5}, "whole number"),
    ({"timeout": "5"}, "seconds"),
    ({"timeout": float("inf")}, "seconds"),
    ({"timeout": True}, "seconds"),
    ({"approve": "yes"}, "ToolRequest"),
    ({"approve": True}, "ToolRequest"),
    ({"retries": "x"}, "whole number"),
    ({"retries": None}, "whole number"),
    ({"retries": -1}, "whole number"),
    ({"settings": None}, "mapping"),
    ({"settings": [("temperature", 0)]}, "mapping"),
    ({"settings": {1: 2}}, "mapping"),
    ({"settings": {"temprature": 0}}, "temperature"),
    ({"settings": {"temperature": "hot"}}, "number"),
    ({"settings": {"max_tokens": 1.5}}, "whole number"),
    ({"settings": {"max_retries": 3}}, "retries"),
    ({"settings": {"openai_logprobs": True}}, "Available: "),
    ({"environ": "x"}, "os.environ"),
]


@pytest.mark.parametrize(("given", "text"), UNUSABLE, ids=lambda one: one if isinstance(one, str) else next(iter(one)))
async def test_invalid_options_are_refused_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], text: str
) -> None:
    kit, real_kit = desk(), Kit
    model = in_memory(monkeypatch, ["Hello."], kit=kit)
    if "mcp_servers" in given:
        monkeypatch.setattr(setup, "Kit", real_kit)
    run_ = run_agent("Go.", options(**{**SERVERS, **given}))
    with pytest.raises(UsageError) as refused:
        await anext(run_)
    assert text in refused.value.text()
    assert refused.value.remedy
    assert "history" not in given or "messages" in refused.value.remedy
    assert SECRET not in refused.value.text()
    assert (kit.opened, model.opened) == (0, 0)
    with pytest.raises(StopAsyncIteration):
        await anext(run_)
    assert not other_tasks()


@pytest.mark.parametrize("given", [None, {"model": "openai:gpt-5"}, "openai:gpt-5", AgentOptions])
async def test_options_must_be_agent_options(given: Any) -> None:
    with pytest.raises(UsageError, match="AgentOptions"):
        await anext(run_agent("Go.", given))


@pytest.mark.parametrize("prompt", [None, 5, ["Go."], "half \ud83d", "", "  \n"])
async def test_a_prompt_must_be_a_text(prompt: Any) -> None:
    with pytest.raises(UsageError, match="prompt"):
        await anext(run_agent(prompt, options()))


async def test_a_key_may_have_spaces_around_it_or_be_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert endpoint.find_endpoint(options(api_key=" sk-1\n")).key == "sk-1"
    assert endpoint.find_endpoint(options(api_key=None)).key == ""
    in_memory(monkeypatch, ["Hello."])
    assert isinstance((await run(api_key=None))[-1], RunFinished)


@pytest.mark.parametrize("provider", endpoint.PROVIDERS.values(), ids=lambda one: one.name)
def test_each_provider_checks_its_settings(provider: endpoint.ModelProvider) -> None:
    known = load_module(f"models.{provider.module}").SETTINGS[provider.name]
    own = {"anthropic": "anthropic_metadata", "google": "google_safety_settings"}.get(provider.name, "openai_user")
    assert {"temperature", "max_tokens", "thinking", "timeout", own} <= known
    check_settings(dict.fromkeys(known - {"timeout"}, 1), provider)
    with pytest.raises(UsageError, match="temprature"):
        check_settings({"temprature": 0}, provider)


async def test_lists_may_be_iterators_and_a_transform_may_be_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model = in_memory(monkeypatch, ["Hello."], kit=desk(look=lambda _: "x", see=lambda _: "y"))
    once = {"mcp_servers": iter([""]), "keep": iter(["look", "no*"]), "drop": iter(["see"]), "history": iter(())}
    await run(**once, transform=lambda offer: offer)
    assert model.offered == [["look"]]


async def test_a_missing_extra_or_sdk_is_reported_with_the_command_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    load, find = importlib.import_module, importlib.util.find_spec

    def without_anthropic(name: str) -> Any:
        if name == "toolcrib.agent_loop.models.anthropic":
            raise ImportError("No module named 'anthropic'")
        return load(name)

    in_memory(monkeypatch, ["never"])
    monkeypatch.setattr(endpoint.importlib, "import_module", without_anthropic)
    failed = only(RunFailed, await run())
    assert "anthropic" in failed.error
    assert "toolcrib[agent]" in failed.remedy
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *_: None if name == "pydantic_ai" else find(name))
    with pytest.raises(UsageError) as refused:
        await anext(run_agent("Go.", options()))
    assert "toolcrib[agent]" in refused.value.remedy
