"""Tests of the agent, without a key or a network."""

import asyncio

import pytest
from my_agent import answer

from toolcrib.testing import Call, CallByName, Garble, Refuse, Say, ScriptedModel, Step, Together, scripted


def ask(model: ScriptedModel) -> str:
    return asyncio.run(answer("What time is it?", model="anthropic:any", api_key="test", base_url=model.url))


def test_it_reads_the_clock_before_it_answers() -> None:
    both = Together([Call("now", {"zone": "Asia/Tokyo"}), Call("now", {"zone": "UTC"})], says="I will check.")
    with scripted("anthropic", [both, Say("Late.")]) as model:
        assert ask(model) == "Late."
        tokyo, utc = model.results
        assert tokyo.endswith("+09:00")
        assert utc.endswith("+00:00")
        assert model.left == ()
        assert [tool.name for tool in model.offered] == ["now"]


@pytest.mark.parametrize("failure", [Refuse(429), Refuse(529)])
def test_it_retries_when_the_provider_fails(failure: Step) -> None:
    with scripted("anthropic", [failure, Say("Late.")]) as model:
        assert ask(model) == "Late."
        assert len(model.requests) == 2


@pytest.mark.parametrize("mistake", [CallByName("stopwatch"), Garble("now"), Call("now", {"zone": "Nowhere"})])
def test_the_model_gets_an_error_for_its_mistakes(mistake: Step) -> None:
    with scripted("anthropic", [mistake, Say("I do not know.")]) as model:
        assert ask(model) == "I do not know."
        [error] = model.results
        assert error


def test_it_does_not_retry_a_wrong_key() -> None:
    with scripted("anthropic", [Refuse(401)]) as model, pytest.raises(RuntimeError, match="401"):
        ask(model)
