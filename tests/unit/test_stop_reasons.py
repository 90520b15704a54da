"""Stop reasons of each provider, truncated streams, and values of the wrong type."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import itemgetter
from pathlib import Path
from typing import Any, get_args

import pytest
from anthropic.types.beta import BetaStopReason
from google.genai.types import FinishReason as GoogleFinishReason
from openai.types.chat.chat_completion import Choice
from openai.types.responses.response import IncompleteDetails
from pydantic_ai.exceptions import UnexpectedModelBehavior
from pydantic_ai.messages import ModelRequest, UserPromptPart
from pydantic_ai.models import ModelRequestParameters

from parts.agent_runs import SERVERS, FakeServers, of, only
from toolcrib.agent_loop import setup
from toolcrib.agent_loop.events import Retrying, RunEnd, RunEvent, RunFailed, RunFinished, ToolFinished
from toolcrib.agent_loop.messages import read_history
from toolcrib.agent_loop.models.answers import CALLS, STOP_REASONS, StopMeaning
from toolcrib.agent_loop.models.opening import open_model
from toolcrib.agent_loop.options import AgentOptions
from toolcrib.agent_loop.run import run_agent
from toolcrib.run_events import ToolStatus
from toolcrib.testing import PROVIDERS, AnswerEnding, Call, Garble, Say, ScriptedModel, Step, Together, scripted
from toolcrib.testing.conversation import ModelTurn
from toolcrib.testing.script import Toolless
from toolcrib.testing.server import serving
from toolcrib.testing.wire import Message, WireFormat

every_provider = pytest.mark.parametrize("provider", PROVIDERS)
WRITE = {"path": "a.txt", "text": "all of it"}
ROWS = [(provider, *row) for provider, rows in STOP_REASONS.items() for row in rows.items()]
UNKNOWN = [(provider, "on_a_whim", StopMeaning.FAIL) for provider in PROVIDERS]


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolcrib.agent_loop.models.retrying.FIRST_DELAY", 0.0)


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> FakeServers:
    kit = FakeServers({"notes": {"write": lambda _: "written"}})
    monkeypatch.setattr(setup, "Kit", lambda *_, **__: kit)
    return kit


async def run(model: ScriptedModel, provider: str, **given: Any) -> list[RunEvent]:
    options = AgentOptions(**{"model": f"{provider}:a/b", "base_url": model.url, **SERVERS, **given})
    async with asyncio.timeout(60):
        return [event async for event in run_agent("Go.", options)]


def test_the_table_has_every_reason_of_the_sdks_and_is_documented() -> None:
    assert set(get_args(BetaStopReason)) <= STOP_REASONS["anthropic"].keys()
    assert {reason.value for reason in GoogleFinishReason} <= STOP_REASONS["google"].keys()
    assert set(get_args(Choice.model_fields["finish_reason"].annotation)) <= STOP_REASONS["openai"].keys()
    [reasons] = [
        get_args(one) for one in get_args(IncompleteDetails.model_fields["reason"].annotation) if get_args(one)
    ]
    assert {*reasons, "completed", "failed"} == STOP_REASONS["openai-responses"].keys()
    assert STOP_REASONS.keys() == PROVIDERS.keys()
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("|") and "`" in line]
    starts = {"complete": "| complete", "retry": "| broken", "fail": "| the run fails"}
    for _, reason, meaning in ROWS:
        start = starts.get(meaning, f"| ended: `{meaning}`")
        assert any(line.startswith(start) and f"`{reason}`" in line for line in rows), reason


# Google's SDK warns about unknown reasons.
@pytest.mark.filterwarnings("ignore:.* is not a valid FinishReason:UserWarning")
@pytest.mark.parametrize(("provider", "reason", "meaning"), ROWS + UNKNOWN)
async def test_the_stop_reason_decides_whether_calls_run_and_text_is_the_answer(
    notes: FakeServers, provider: str, reason: str, meaning: StopMeaning
) -> None:
    # OpenRouter's adapter cannot read an unknown reason, so it would be retried.
    retries = 0 if reason == "on_a_whim" else 1
    with scripted(provider, [Call("write", WRITE, stop_reason=reason)]) as model:
        events = await run(model, provider, retries=retries)
        assert [given for _, given in notes.calls] == ([WRITE] if meaning is StopMeaning.COMPLETE else [])
        assert len(of(Retrying, events)) == (meaning is StopMeaning.RETRY)
        if meaning is StopMeaning.FAIL:
            failed = only(RunFailed, events)
            assert reason in failed.error
            assert failed.remedy
        else:
            end = RunEnd.REFUSED if meaning is StopMeaning.REFUSED else RunEnd.DONE
            assert only(RunFinished, events).ended is end
        if meaning is StopMeaning.LENGTH:
            [reported] = model.results
            assert "did not run" in reported
            assert only(ToolFinished, events).tool_status is ToolStatus.INVALID
        if meaning is StopMeaning.RETRY:
            assert reason in only(Retrying, events).reason or provider == "openrouter"
    with scripted(provider, [Say("I say", stop_reason=reason)]) as model:
        events = await run(model, provider, retries=retries)
    last: Any = events[-1]
    assert last.text == "I say"
    assert not of(Retrying, events)
    ends = {"complete": RunEnd.DONE, "length": RunEnd.LENGTH, "refused": RunEnd.REFUSED}
    if meaning not in ends or reason in CALLS:
        assert isinstance(last, RunFailed)
        assert reason in last.error
        assert [part["content"] for message in last.messages for part in message["parts"]] == ["Go.", "I say"]
    else:
        assert isinstance(last, RunFinished)
        assert last.ended is ends[meaning]


@every_provider
async def test_a_call_cut_off_at_the_token_limit_does_not_run_and_the_model_can_retry(
    notes: FakeServers, provider: str
) -> None:
    cut = Call("write", WRITE, ending=AnswerEnding.LENGTH)
    if provider != "google":
        # Google sends calls whole.
        cut = Garble("write", '{"path": "a.txt", "text": "all o', ending=AnswerEnding.LENGTH)
    with scripted(provider, [cut, Call("write", WRITE), Say("Well.")]) as model:
        last = only(RunFinished, await run(model, provider))
        first, second = model.results
    assert (last.text, last.ended) == ("Well.", RunEnd.DONE)
    assert "did not run" in first
    assert second == "written"
    assert [given for _, given in notes.calls] == [WRITE]


@every_provider
async def test_an_empty_answer_after_a_call_that_did_not_run_is_a_failure(notes: FakeServers, provider: str) -> None:
    with scripted(provider, [Call("write", WRITE, ending=AnswerEnding.LENGTH), Say("")]) as model:
        assert "is empty" in only(RunFailed, await run(model, provider, retries=0)).error
    assert not notes.calls


@every_provider
async def test_a_conversation_continues_after_a_refusal_with_a_call(notes: FakeServers, provider: str) -> None:
    with scripted(provider, [Call("write", WRITE, ending=AnswerEnding.FILTER, says="No."), Say("Well.")]) as model:
        first = only(RunFinished, await run(model, provider))
        assert first.ended is RunEnd.REFUSED
        second = only(RunFinished, await run(model, provider, history=first.messages))
    assert second.text == "Well."
    assert not notes.calls


@every_provider
async def test_an_answer_without_streaming_is_checked_too(provider: str) -> None:
    asked = [ModelRequest(parts=[UserPromptPart("Go.")])]
    steps = [Say("I say", ending=AnswerEnding.LENGTH), Say("I go on", stop_reason="on_a_whim")]
    with scripted(provider, steps) as model:
        options = AgentOptions(model=f"{provider}:a/b", base_url=model.url, retries=0)
        async with open_model(options, {}, lambda *_: None) as opened:
            answer = await opened.request(asked, None, ModelRequestParameters())
            assert answer.finish_reason == "length"
            with pytest.raises(UnexpectedModelBehavior, match="on_a_whim"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                await opened.request([*asked, answer, *asked], None, ModelRequestParameters())


class Altered:
    """A provider that changes one answer to the script's only step, with the function in `alter`."""

    def __init__(self, provider: str) -> None:
        self._real: WireFormat = PROVIDERS[provider]()
        self.alter: Callable[[list[Message]], list[Message]] | None = None
        self.messages: list[Message] = []
        """The last such answer, before the change."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def write(self, turn: ModelTurn, path: str, body: dict[str, Any]) -> Sequence[Message]:
        messages = list(self._real.write(turn, path, body))
        if not turn.id.endswith("_0"):
            return messages
        self.messages = messages
        alter, self.alter = self.alter, None
        return alter(messages) if alter else messages


@contextmanager
def altered(provider: str, step: Step) -> Iterator[tuple[Altered, ScriptedModel]]:
    wire = Altered(provider)
    with serving(wire, [step], toolless=Toolless.TURN) as model:  # type: ignore[arg-type]
        yield wire, model


def ended(provider: str, message: Any) -> bool:
    """Whether a message of a stream has the stop reason."""
    match provider:
        case "anthropic":
            return bool(message["type"] == "message_delta")
        case "google":
            return "finishReason" in message["candidates"][0]
        case "openai-responses":
            return bool(message["type"] == "response.completed")
        case _:
            return not isinstance(message, str) and any(choice["finish_reason"] for choice in message["choices"])


@every_provider
async def test_a_stream_that_ends_early_is_requested_again_and_its_calls_do_not_run(
    notes: FakeServers, provider: str
) -> None:
    calls = [WRITE, {"path": "b.txt"}]
    with altered(provider, Together([Call("write", given) for given in calls])) as (wire, model):
        await run(model, provider)
        last = next(number for number, message in enumerate(wire.messages) if ended(provider, message))
        for after in range(1, len(wire.messages)):
            notes.calls.clear()
            wire.alter = itemgetter(slice(after))
            events = await run(model, provider, retries=1)
            assert isinstance(events[-1], RunFinished), after
            assert [given for _, given in notes.calls] == calls, after
            assert len(of(Retrying, events)) == (after <= last), after


@every_provider
async def test_text_of_a_truncated_stream_is_not_an_answer(notes: FakeServers, provider: str) -> None:
    with altered(provider, Say("This is all.")) as (wire, model):
        await run(model, provider)
        last = next(number for number, message in enumerate(wire.messages) if ended(provider, message))
        for after in range(1, len(wire.messages)):
            wire.alter = itemgetter(slice(after))
            [*_, end] = await run(model, provider, retries=0)
            assert isinstance(end, RunFailed if after <= last else RunFinished), after
            assert [message["parts"][0]["content"] for message in end.messages] == ["Go.", *filter(None, [end.text])]


def with_nulls(message: Any) -> Any:
    """As compatible servers write it: null for missing fields, and a last chunk without a delta."""
    if isinstance(message, str):
        return message
    if block := message.get("content_block"):
        names = ("id", "name", "text", "thinking", "signature", "input")
        message = {**message, "content_block": {**dict.fromkeys(names), **block, "input": None}}
    if message.get("type") == "message_start":
        message = {**message, "message": {**message["message"], "id": None}}
    if message.get("type") == "message_delta":
        message = {**message, "index": None, "delta": {"type": None, "text": None, **message["delta"]}}
    if "choices" in message and any(choice["finish_reason"] for choice in message["choices"]):
        choices = [{**choice, "delta": None} for choice in message["choices"]]
        message = {**message, "id": None, "usage": None, "choices": choices}
    return message


@pytest.mark.parametrize("provider", ["anthropic", "openai"])
@pytest.mark.parametrize("step", [Call("write", WRITE, says="I write."), Say("All.")])
async def test_a_compatible_server_may_send_nulls(notes: FakeServers, provider: str, step: Step) -> None:
    with altered(provider, step) as (wire, model):
        expected = outcome(await run(model, provider), notes)
        notes.calls.clear()
        wire.alter = lambda messages: list(map(with_nulls, messages))
        assert outcome(await run(model, provider, retries=0), notes) == expected
        assert list(map(with_nulls, wire.messages)) != wire.messages


@every_provider
async def test_a_script_can_end_a_stream_early(notes: FakeServers, provider: str) -> None:
    with scripted(provider, [Together([Call("write", WRITE)] * 2, cut_after=1)]) as model:
        events = await run(model, provider)
    assert [event.text for event in of(RunFinished, events)] == ["Done."]
    assert len(of(Retrying, events)) == 1
    assert not notes.calls


def fields_of(message: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of each value in a message."""
    if path:
        yield path
    inner = message.items() if isinstance(message, Mapping) else enumerate(message) if isinstance(message, list) else ()
    for key, value in inner:
        # Arguments may have any type.
        if key != "args":
            yield from fields_of(value, (*path, key))


def with_a_wrong_type(message: Any, path: tuple[Any, ...]) -> Any:
    key, *rest = path
    copy = list(message) if isinstance(message, list) else dict(message)
    copy[key] = with_a_wrong_type(copy[key], tuple(rest)) if rest else "x" if isinstance(copy[key], int) else 5
    return copy


SHARED = {"sequence_number", "output_index", "item_id", "response", "index"}


def outcome(events: Sequence[RunEvent], notes: FakeServers) -> Any:
    text = "".join(event.text for event in events if event.type == "text_delta")
    return type(events[-1]), text, [given for _, given in notes.calls]


# Warnings are not errors here: pydantic's warnings must be noticed outside of tests too.
@pytest.mark.filterwarnings("ignore::UserWarning")
@every_provider
async def test_a_value_of_the_wrong_type_breaks_an_answer_or_does_not_matter(
    notes: FakeServers, provider: str, caplog: pytest.LogCaptureFixture
) -> None:
    broken = []
    with altered(provider, Together([Call("write", WRITE)], thinking="Hm.", says="I write.")) as (wire, model):
        expected = outcome(await run(model, provider), notes)
        places = {
            # Each field of each kind of message once; shared fields once in all.
            (
                path[0] not in SHARED and message.get("type"),
                ended(provider, message),
                *(key for key in path if isinstance(key, str)),
            ): (n, path)
            for n, message in enumerate(wire.messages)
            if not isinstance(message, str)
            for path in fields_of(message)
        }
        for number, path in places.values():
            notes.calls.clear()
            wire.alter = lambda messages, n=number, where=path: [  # type: ignore[misc]
                with_a_wrong_type(message, where) if at == n else message for at, message in enumerate(messages)
            ]
            events = await run(model, provider, retries=0)
            if outcome(events, notes) != expected:
                [*_, last] = events
                assert isinstance(last, RunFailed), (number, path)
                assert "answer cannot be read" in last.error, (number, path, last.error)
                assert read_history(last.messages), (number, path)
                assert not notes.calls, (number, path)
                broken.append(path)
    assert len(broken) > 20
    assert not caplog.records
