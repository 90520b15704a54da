"""Calls that need approval and servers' questions wait for the owner, who sees exactly what is sent."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest

from toolcrib.config.masking import Masker
from toolcrib.errors import InvalidArguments, NotFound, UsageError
from toolcrib.events import AgentEnded, Bus, QuestionWaits
from toolcrib.identity.agent import mint_token, naming_tokens
from toolcrib.identity.approvals import MAX_WAITING, MAX_WAITING_PER_AGENT, ApprovalAnswer, Approvals
from toolcrib.servers.questions import REFUSED_BY_PERSON, Question, QuestionRefused, QuestionUnanswered

pytestmark = pytest.mark.req("KSI-5")

MASK = "[secret TOKEN of server docs]"


def asking(approvals: Approvals, agent: str = "reviewer", **more: Any) -> asyncio.Task[ApprovalAnswer]:
    call = {"call": "c1", "conversation": "default", "tool": "git:reset", "rule": "agent reviewer: ask git:*"}
    return asyncio.create_task(approvals.ask(**{**call, "agent": agent, "arguments": b"{}", **more}))


@pytest.fixture
def bus() -> Bus:
    return Bus()


@pytest.fixture
def approvals(bus: Bus) -> Approvals:
    return Approvals(bus, limit=20.0)


@pytest.mark.parametrize(("approved", "why"), [(True, "approved by the owner"), (False, "refused by the owner")])
async def test_the_answer_reaches_the_waiting_call(approvals: Approvals, *, approved: bool, why: str) -> None:
    call = asking(approvals)
    (waiting,) = await approvals.next(5)
    assert (waiting.agent, waiting.tool, waiting.rule) == ("reviewer", "git:reset", "agent reviewer: ask git:*")
    assert waiting.until == waiting.asked_at + 20.0
    assert approvals.answer(waiting.id, approved=approved) == waiting
    assert approvals.waiting() == ()
    async with asyncio.timeout(60):
        assert await call == ApprovalAnswer(approved=approved, why=why)


async def test_no_answer_in_time_is_a_refusal(bus: Bus) -> None:
    approvals = Approvals(bus, limit=0.01)
    async with asyncio.timeout(60):
        answer = await asking(approvals)
    assert (answer.approved, answer.why) == (False, "there was no answer within 0.01 s")
    assert "toolcrib approvals" in answer.remedy
    assert approvals.waiting() == ()


async def test_a_late_answer_is_refused_with_the_waiting_calls(approvals: Approvals) -> None:
    with pytest.raises(NotFound, match="No call or question 'a1' is waiting") as caught:
        approvals.answer("a1", approved=True)
    assert "was answered" in caught.value.remedy
    call = asking(approvals)
    (waiting,) = await approvals.next(5)
    with pytest.raises(NotFound) as caught:
        approvals.answer("a1", approved=True)
    assert waiting.id in caught.value.remedy
    approvals.answer(waiting.id, approved=True)
    with pytest.raises(NotFound):
        approvals.answer(waiting.id, approved=False)
    assert (await call).approved


async def test_a_cancelled_call_no_longer_waits(approvals: Approvals) -> None:
    call = asking(approvals)
    await approvals.next(5)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert approvals.waiting() == ()
    assert await approvals.next(0.01) == ()


async def test_waiting_calls_are_refused_when_their_agent_ends_or_toolcrib_stops(
    approvals: Approvals, bus: Bus
) -> None:
    calls = [asking(approvals, "reviewer"), asking(approvals, "reviewer"), asking(approvals, "other")]
    await approvals.next(5)
    bus.publish(AgentEnded(agent="reviewer"))
    assert [one.agent for one in approvals.waiting()] == ["other"]
    approvals.close()
    async with asyncio.timeout(60):
        answers = await asyncio.gather(*calls)
    assert [(answer.approved, answer.why) for answer in answers] == [
        *[(False, "the agent ended")] * 2,
        (False, "Toolcrib is stopping"),
    ]


async def test_the_number_of_waiting_calls_is_limited_per_agent_and_in_total(approvals: Approvals) -> None:
    calls = [asking(approvals, f"agent{n // MAX_WAITING_PER_AGENT}") for n in range(MAX_WAITING)]
    await approvals.next(5)
    assert len(approvals.waiting()) == MAX_WAITING
    assert len({one.id for one in approvals.waiting()}) == MAX_WAITING
    for agent, count in (("agent0", f"{MAX_WAITING_PER_AGENT} calls of agent0"), ("late", f"{MAX_WAITING} calls")):
        answer = await asking(approvals, agent)
        assert (answer.approved, answer.why) == (False, f"{count} are already waiting for an answer")
    approvals.answer(approvals.waiting()[0].id, approved=True)
    one_more = asking(approvals, "late")
    await asyncio.sleep(0)
    assert approvals.waiting()[-1].agent == "late"
    for call in (*calls, one_more):
        call.cancel()
    await asyncio.gather(*calls, one_more, return_exceptions=True)


async def test_several_watchers_see_a_waiting_call(approvals: Approvals) -> None:
    watchers = [asyncio.create_task(approvals.next(5)) for _ in range(3)]
    await asyncio.sleep(0)
    call = asking(approvals)
    async with asyncio.timeout(60):
        seen = await asyncio.gather(*watchers)
    assert seen == [approvals.waiting()] * 3
    approvals.answer(seen[0][0].id, approved=False)
    await call


async def shown(bus: Bus, arguments: bytes, *, whole: bool = False) -> Any:
    approvals = Approvals(bus, mask=Masker({"hunter2": "TOKEN of server docs"}).named)
    call = asking(approvals, arguments=arguments)
    (waiting,) = await approvals.next(5)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    return approvals.shown(waiting.arguments, whole=whole)


async def test_the_person_sees_the_arguments_without_known_secrets(bus: Bus) -> None:
    arguments = {"path": "a b", "deep": [{"note": "is hunter2!", "password": "other"}, 5, None, True], "hunter2": 1}
    assert await shown(bus, json.dumps(arguments).encode()) == {
        "path": "a b",
        "deep": [{"note": f"is {MASK}!", "password": "other"}, 5, None, True],
        MASK: 1,
    }
    assert await shown(bus, b'{"x": "hunter\\u0032"}') == {"x": MASK}


@pytest.mark.parametrize(
    "command",
    [
        "ls -la;key=$(touch${IFS}hidden)",
        "curl https://x/?token=$(id)&api_key=`id`",
        "sk-abcdefgh; tcb_abcdefgh12; Bearer abcdefgh; AKIAABCDEFGHIJKL; https://a:b@c",
    ],
)
async def test_nothing_is_masked_because_of_its_name_or_form(bus: Bus, command: str) -> None:
    arguments = {"command": command, "api_key": command, "--token": [command, 5]}
    assert await shown(bus, json.dumps(arguments).encode()) == arguments


async def test_a_secret_in_base64_is_masked_and_the_rest_of_the_text_is_not(bus: Bus) -> None:
    encoded = base64.b64encode(b"abchunter2xyz").decode()
    masked = await shown(bus, json.dumps({"command": f"echo {encoded} | base64 -d"}).encode())
    assert "TOKEN of server docs" in masked["command"]
    assert masked["command"].startswith("echo YWJj")
    assert masked["command"].endswith(" | base64 -d")


async def test_keys_that_are_masked_alike_stay_separate(bus: Bus) -> None:
    arguments = json.dumps({"hunter2": "kind", MASK: "cruel"}).encode()
    assert await shown(bus, arguments) == {MASK: "kind", f"{MASK}*": "cruel"}


async def test_a_list_shows_only_the_beginning_of_very_long_arguments(bus: Bus) -> None:
    arguments = b'{"x": "' + b"y" * 65_526 + b"hunter2" + b"z" * 100_000 + b'"}'
    text = await shown(bus, arguments)
    assert text.startswith('{"x": "yyy')
    assert "hunter" not in text
    assert text.endswith(f"… and {65_526 + 7 + 100_000 + 9 - 65_536} bytes more")
    assert await shown(bus, arguments, whole=True) == {"x": "y" * 65_526 + MASK + "z" * 100_000}


async def test_arguments_that_are_not_json_are_shown_as_text(bus: Bus) -> None:
    assert await shown(bus, b'{"x": "hunter2') == f'{{"x": "{MASK}'


def test_only_real_tokens_are_replaced_by_their_agents_name() -> None:
    token = mint_token()
    known = {token: "agent worker"}
    text = f"tcb_{token}-x; tcb_touch_hidden_file_with_a_name_as_long_as_a_real_token {token}"
    assert naming_tokens(text, lambda one: known.get(one, "")) == text.replace(token, "[secret token of agent worker]")


FORM = {
    "message": "Server 'shop' asks: Who?",
    "requestedSchema": {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer", "default": 18}},
        "required": ["name"],
    },
}
PAGE = {"mode": "url", "url": "https://shop.example/pay", "message": "Pay."}
SAMPLING = {"messages": [], "maxTokens": 5}


def question(params: dict[str, Any] = FORM, method: str = "elicitation/create") -> Question:
    return Question(server="shop", method=method, params=params, tool="shop:buy")


def asked(approvals: Approvals, one: Question, agent: str = "run") -> asyncio.Task[Any]:
    approvals.unattended[agent] = False
    asker = approvals.asker(agent, "talk", None)
    return asyncio.create_task(asker.ask(one))


class ClientAsker:
    def __init__(self, **capabilities: Any) -> None:
        self.capabilities = capabilities

    async def ask(self, question: Question) -> Any:
        return {"action": "cancel"}


def test_only_the_owner_answers_for_an_unattended_agent_unless_its_program_may(approvals: Approvals) -> None:
    declares, silent = ClientAsker(elicitation={}), ClientAsker(roots={})
    for may_answer in (False, True):
        approvals.unattended["run"] = may_answer
        for client in (None, silent, declares):
            asker = approvals.asker("run", "talk", client)
            if may_answer and client is declares:
                assert asker is declares
            else:
                assert asker.capabilities == {"elicitation": {"form": {}, "url": {}}}, "it has no model and no folders"


async def test_a_question_waits_and_its_server_gets_the_owners_values(approvals: Approvals, bus: Bus) -> None:
    seen: list[QuestionWaits] = []
    bus.subscribe(seen.append, QuestionWaits)
    call = asked(approvals, question())
    (waiting,) = await approvals.next(5)
    assert (waiting.agent, waiting.conversation, waiting.tool, waiting.question) == (
        "run",
        "talk",
        "shop:buy",
        question(),
    )
    assert waiting.until == waiting.asked_at + 600, "a form needs more time than a call"
    assert [(one.id, one.agent, one.server, one.tool, one.mode) for one in seen] == [
        (waiting.id, "run", "shop", "shop:buy", "form")
    ]
    for wrong in ({}, {"name": 5}, {"name": "Ann", "more": 1}, None):
        with pytest.raises(InvalidArguments, match="does not fit the form"):
            approvals.answer(waiting.id, approved=True, content=wrong)
    assert approvals.waiting() == (waiting,)
    assert not call.done()
    approvals.answer(waiting.id, approved=True, content={"name": "Ann"})
    async with asyncio.timeout(60):
        assert await call == {"action": "accept", "content": {"name": "Ann", "age": 18}}


@pytest.mark.parametrize("params", [FORM, PAGE])
@pytest.mark.parametrize(("approved", "action"), [(False, "decline"), (None, "cancel")])
async def test_a_question_can_be_declined_or_dismissed(
    approvals: Approvals, params: dict[str, Any], *, approved: bool | None, action: str
) -> None:
    call = asked(approvals, question(params))
    (waiting,) = await approvals.next(5)
    with pytest.raises(UsageError, match="has values"):
        approvals.answer(waiting.id, approved=approved, content={"name": "Ann"})
    approvals.answer(waiting.id, approved=approved)
    async with asyncio.timeout(60):
        assert await call == {"action": action}


async def test_a_page_is_accepted_without_values(approvals: Approvals) -> None:
    call = asked(approvals, question(PAGE))
    (waiting,) = await approvals.next(5)
    with pytest.raises(UsageError, match="has values"):
        approvals.answer(waiting.id, approved=True, content={"name": "Ann"})
    approvals.answer(waiting.id, approved=True)
    async with asyncio.timeout(60):
        assert await call == {"action": "accept"}


async def test_a_question_has_no_answer_after_its_time_or_when_its_agent_ends_or_toolcrib_stops(
    approvals: Approvals, bus: Bus
) -> None:
    async with asyncio.timeout(60):
        with pytest.raises(QuestionUnanswered):
            await asked(Approvals(bus, question_limit=0.01), question())
        ended = asked(approvals, question(), "other")
        stopped = asked(approvals, question())
        await approvals.next(5)
        bus.publish(AgentEnded(agent="other"))
        with pytest.raises(QuestionUnanswered):
            await ended
        approvals.close()
        with pytest.raises(QuestionUnanswered):
            await stopped
    assert approvals.waiting() == ()


async def test_too_many_questions_of_an_agent_have_no_answer(approvals: Approvals) -> None:
    calls = [asked(approvals, question()) for _ in range(MAX_WAITING_PER_AGENT)]
    await approvals.next(5)
    async with asyncio.timeout(60):
        with pytest.raises(QuestionUnanswered):
            await asked(approvals, question())
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    assert approvals.waiting() == ()


async def test_a_rule_that_allows_a_call_does_not_answer_its_servers_question(approvals: Approvals) -> None:
    call, asks = asking(approvals, "run", call="c1"), asked(approvals, question())
    await approvals.next(5)
    approvals.release("c1", why="a rule")
    async with asyncio.timeout(60):
        assert (await call).approved
    (waiting,) = approvals.waiting()
    assert waiting.question is not None
    asks.cancel()
    await asyncio.gather(asks, return_exceptions=True)


@pytest.mark.parametrize("approved", [True, False])
async def test_a_request_for_a_models_answer_is_passed_on_only_with_permission(
    approvals: Approvals, *, approved: bool
) -> None:
    asks = question(SAMPLING, "sampling/createMessage")
    permitted = asyncio.create_task(approvals.ask_permission(asks, agent="run", conversation="talk"))
    (waiting,) = await approvals.next(5)
    assert waiting.question == asks
    assert waiting.until == waiting.asked_at + 20, "as long as a call"
    with pytest.raises(UsageError, match="can be dismissed"):
        approvals.answer(waiting.id, approved=None)
    approvals.answer(waiting.id, approved=approved)
    async with asyncio.timeout(60):
        if approved:
            await permitted
        else:
            with pytest.raises(QuestionRefused, match="refused by the owner") as caught:
                await permitted
            assert caught.value.json_code == REFUSED_BY_PERSON
