"""Its tests: no key, no network, no cost, the same every time."""

import asyncio

import pytest
from my_agent import answer

from toolcrib.testing import Call, CallByName, Garble, Refuse, Say, ScriptedModel, Step, Together, scripted


def ask(model: ScriptedModel) -> str:
    return asyncio.run(answer("How late is it?", model="anthropic:any", api_key="test", base_url=model.url))


def test_it_asks_the_clock_before_it_answers() -> None:
    both = Together([Call("now", {"zone": "Asia/Tokyo"}), Call("now", {"zone": "UTC"})], says="I look.")
    with scripted("anthropic", [both, Say("Late.")]) as model:
        assert ask(model) == "Late."
        tokyo, utc = model.results
        assert tokyo.endswith("+09:00")
        assert utc.endswith("+00:00")
        assert model.left == ()
        assert [tool.name for tool in model.offered] == ["now"]


@pytest.mark.parametrize("trouble", [Refuse(429), Refuse(529)])
def test_it_asks_again_when_the_provider_fails(trouble: Step) -> None:
    with scripted("anthropic", [trouble, Say("Late.")]) as model:
        assert ask(model) == "Late."
        assert len(model.requests) == 2


@pytest.mark.parametrize("mistake", [CallByName("stopwatch"), Garble("now"), Call("now", {"zone": "Nowhere"})])
def test_it_tells_the_model_of_its_mistakes(mistake: Step) -> None:
    with scripted("anthropic", [mistake, Say("I do not know.")]) as model:
        assert ask(model) == "I do not know."
        [told] = model.results
        assert told


def test_it_gives_up_where_there_is_no_hope() -> None:
    with scripted("anthropic", [Refuse(401)]) as model, pytest.raises(RuntimeError, match="401"):
        ask(model)
