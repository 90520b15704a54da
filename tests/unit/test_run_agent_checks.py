"""Options that cannot work are refused with a remedy, before anything is started."""

from __future__ import annotations

import asyncio
import inspect
from dataclasses import fields
from typing import Any

import pytest

from parts.agent_runs import Bench, in_memory, options, other_tasks, run
from toolcrib.agent_loop import events, setup
from toolcrib.agent_loop.events import RunFinished
from toolcrib.agent_loop.models import endpoint
from toolcrib.agent_loop.models.endpoint import load_module
from toolcrib.agent_loop.options import AgentOptions, CodingTools
from toolcrib.agent_loop.run import run_agent
from toolcrib.agent_loop.setup import check_settings
from toolcrib.config.from_code import StdioServer
from toolcrib.core.crib import Crib
from toolcrib.core.kit import Kit
from toolcrib.errors import UsageError

SERVER = StdioServer("s", command="true")
SECRET = "sk-VERY-SECRET"


def test_every_option_is_checked() -> None:
    assert set(setup.CHECKS) == {one.name for one in fields(AgentOptions)}


def test_every_option_and_every_event_is_explained_by_help() -> None:
    told = inspect.getdoc(AgentOptions) or ""
    assert [one.name for one in fields(AgentOptions) if one.name not in told] == []
    assert "CodingTools.all(" in (inspect.getdoc(CodingTools) or "")
    kinds = [kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, events.RunEvent)]
    assert len(kinds) > 10
    assert [kind.__name__ for kind in kinds if (kind.__doc__ or "").startswith(f"{kind.__name__}(")] == []


UNUSABLE: list[tuple[dict[str, Any], str]] = [
    ({"model": None}, "PROVIDER:MODEL"),
    ({"model": 5}, "PROVIDER:MODEL"),
    ({"api_key": 5}, "key"),
    ({"api_key": f"{SECRET}\r\nX: y"}, "key"),
    ({"api_key": f"{SECRET}é"}, "key"),
    ({"api_key": f"{SECRET}\x00"}, "key"),
    ({"base_url": 5}, "http"),
    ({"base_url": f"http://me:{SECRET}@127.0.0.1/v1"}, "api_key"),
    ({"base_url": f"http://{SECRET}@127.0.0.1/v1"}, "api_key"),
    ({"instructions": None}, "text"),
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
    ({"history": 5}, "messages"),
    ({"history": {"messages": []}}, "messages"),
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


@pytest.mark.parametrize(
    ("given", "remedy"), UNUSABLE, ids=lambda one: one if isinstance(one, str) else next(iter(one))
)
async def test_what_cannot_work_is_refused_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], remedy: str
) -> None:
    kit = Bench({"desk": {}})
    make = Kit
    world = in_memory(monkeypatch, ["Hello."], kit=kit)
    if "mcp_servers" in given:
        monkeypatch.setattr("toolcrib.agent_loop.setup.Kit", make)
    run_ = run_agent("Go.", options(**{"mcp_servers": ["the bench"], **given}))
    with pytest.raises(UsageError) as refused:
        await anext(run_)
    assert remedy in refused.value.text()
    assert refused.value.remedy
    assert SECRET not in refused.value.text()
    assert (kit.opened, world.opened) == (0, 0)
    with pytest.raises(StopAsyncIteration):
        await anext(run_)
    assert not other_tasks()


@pytest.mark.parametrize("given", [None, {"model": "openai:gpt-5"}, "openai:gpt-5", AgentOptions])
async def test_options_are_agent_options(given: Any) -> None:
    with pytest.raises(UsageError, match="AgentOptions"):
        await anext(run_agent("Go.", given))


@pytest.mark.parametrize("prompt", [None, 5, ["Go."], "half \ud83d"])
async def test_a_prompt_is_a_text(prompt: Any) -> None:
    with pytest.raises(UsageError, match="prompt"):
        await anext(run_agent(prompt, options()))


async def test_a_key_with_blanks_around_it_and_none_at_all_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    assert endpoint.find_endpoint(options(api_key=" sk-1\n")).key == "sk-1"
    assert endpoint.find_endpoint(options(api_key=None)).key == ""
    in_memory(monkeypatch, ["Hello."])
    assert isinstance((await run(api_key=None))[-1], RunFinished)


def test_a_variable_that_holds_no_key_is_refused_without_its_value() -> None:
    with pytest.raises(UsageError) as refused:
        endpoint.find_endpoint(options(base_url="", environ={"ANTHROPIC_API_KEY": f"{SECRET}é"}))
    assert "ANTHROPIC_API_KEY" in refused.value.text()
    assert SECRET not in refused.value.text()


@pytest.mark.parametrize("provider", endpoint.PROVIDERS.values(), ids=lambda one: one.name)
def test_each_provider_knows_its_settings(provider: endpoint.ModelProvider) -> None:
    known = load_module(f"models.{provider.module}").SETTINGS[provider.name]
    own = {"anthropic": "anthropic_metadata", "google": "google_safety_settings"}.get(provider.name, "openai_user")
    assert {"temperature", "max_tokens", "thinking", "timeout", own} <= known
    check_settings(dict.fromkeys(known - {"timeout"}, 1), provider)
    with pytest.raises(UsageError, match="temprature"):
        check_settings({"temprature": 0}, provider)


async def test_lists_that_can_be_read_but_once_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    kit = Bench({"desk": {"look": lambda _: "x", "see": lambda _: "y"}})
    world = in_memory(monkeypatch, ["Hello."], kit=kit)
    await run(mcp_servers=iter(["the bench"]), keep=iter(["look", "no*"]), drop=iter(["see"]), history=iter(()))
    assert world.offered == [["look"]]


async def test_one_transform_need_not_stand_in_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    kit = Bench({"desk": {"look": lambda _: "x"}})
    world = in_memory(monkeypatch, ["Hello."], kit=kit)
    await run(mcp_servers=["the bench"], transform=lambda offer: offer)
    assert world.offered == [["look"]]


async def test_a_run_that_is_closed_while_its_options_are_looked_at_never_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kit = Bench({"desk": {}})
    world = in_memory(monkeypatch, ["Hello."], kit=kit)
    past = [{"kind": "request", "parts": [{"part_kind": "user-prompt", "content": "Go."}]}]
    run_ = run_agent("Go.", options(mcp_servers=["the bench"], history=past))
    first = asyncio.create_task(anext(run_, None))
    await asyncio.sleep(0)
    await asyncio.wait_for(run_.aclose(), 60)
    assert await first is None
    assert await anext(run_, None) is None
    assert (kit.opened, world.opened) == (0, 0)
    assert not other_tasks()


async def test_a_run_has_one_reader_and_begins_once(monkeypatch: pytest.MonkeyPatch) -> None:
    world = in_memory(monkeypatch, ["Hello."])
    run_ = run_agent("Go.", options())
    first, second, third = await asyncio.gather(*(anext(run_) for _ in range(3)), return_exceptions=True)
    assert isinstance(first, events.RunStarted)
    assert isinstance(second, UsageError)
    assert isinstance(third, UsageError)
    assert isinstance([event async for event in run_][-1], RunFinished)
    assert (world.opened, len(world.asked)) == (1, 1)
