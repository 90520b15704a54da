"""The scripted models speak as the real services do: what is streamed in pieces is what was meant, whole."""

from __future__ import annotations

import contextlib
import functools
import http.client
import json
import socket
import subprocess
import sys
import threading
import typing
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolcrib.testing import (
    PROVIDERS,
    AnswerEnding,
    Break,
    Call,
    Garble,
    Hold,
    Refuse,
    Say,
    ScriptedModel,
    ScriptMismatch,
    Together,
)
from toolcrib.testing.__main__ import step_from
from toolcrib.testing.anthropic import Anthropic
from toolcrib.testing.conversation import Invocation, ModelTurn
from toolcrib.testing.google import Google
from toolcrib.testing.openai_chat import COMMENT, DONE, OpenAIChat, OpenRouter
from toolcrib.testing.openai_responses import OpenAIResponses
from toolcrib.testing.script import CallByName, turn_usage
from toolcrib.testing.server import scripted, serving
from toolcrib.testing.wire import Message, event, pieces

TURN = ModelTurn(
    id="1",
    thinking="Let me see what there is.",
    text="I look at both.",
    invocations=(
        Invocation(id="call_1_0_0", name="read", namespace="mcp__toolcrib", arguments={"path": "a b"}),
        Invocation(id="call_1_0_1", name="list", namespace="mcp__toolcrib", arguments={"deep": [1, {"x": None}]}),
    ),
    usage=turn_usage(3),
)
TOOL = {"name": "own_echo", "input_schema": {"type": "object"}}
FUNCTION = {"type": "function", "function": {"name": "own_echo", "parameters": {"type": "object"}}}


@settings(max_examples=50)
@given(st.text())
def test_pieces_are_the_text(text: str) -> None:
    assert "".join(pieces(text)) == text
    assert all(pieces(text))


Data = list[Mapping[str, Any]]


def data(stream: Iterable[Message]) -> Data:
    return [message for message in stream if not isinstance(message, str)]


def joined(stream: Iterable[Mapping[str, Any]], kind: str, key: str) -> str:
    return "".join(str(message[key]) for message in stream if message.get("type") == kind)


def test_anthropic_streams_each_block_in_pieces() -> None:
    stream = data(Anthropic().write(TURN, "/v1/messages", {"stream": True}))
    deltas = [message["delta"] for message in stream if message["type"] == "content_block_delta"]
    assert joined(deltas, "thinking_delta", "thinking") == TURN.thinking
    assert joined(deltas, "text_delta", "text") == TURN.text
    assert sum(delta["type"] == "text_delta" for delta in deltas) > 1
    for place, call in enumerate(TURN.invocations, start=2):
        parts = [m["delta"] for m in stream if m["type"] == "content_block_delta" and m["index"] == place]
        assert len(parts) > 2
        assert json.loads(joined(parts, "input_json_delta", "partial_json")) == call.arguments


def test_openai_streams_each_item_in_pieces() -> None:
    stream = data(OpenAIResponses().write(TURN, "/v1/responses", {"input": []}))
    assert joined(stream, "response.reasoning_summary_text.delta", "delta") == TURN.thinking
    assert joined(stream, "response.output_text.delta", "delta") == TURN.text
    for place, call in enumerate(TURN.invocations, start=2):
        parts = [m for m in stream if m.get("output_index") == place]
        assert json.loads(joined(parts, "response.function_call_arguments.delta", "delta")) == call.arguments
        assert parts[-1]["item"]["arguments"] == json.dumps(call.arguments)
    assert stream[-1]["response"]["usage"]["input_tokens_details"]["cached_tokens"] == TURN.usage.cached


def test_google_streams_thoughts_and_text_in_pieces_and_counts_at_the_end() -> None:
    stream = data(Google().write(TURN, "/v1beta/models/m:streamGenerateContent?alt=sse", {}))
    parts = [message["candidates"][0]["content"]["parts"][0] for message in stream]
    assert "".join(part["text"] for part in parts if part.get("thought")) == TURN.thinking
    assert "".join(part["text"] for part in parts if "text" in part and not part.get("thought")) == TURN.text
    assert [part["functionCall"]["args"] for part in parts if "functionCall" in part] == [
        call.arguments for call in TURN.invocations
    ]
    told = stream[-1]["usageMetadata"]
    assert (told["promptTokenCount"], told["cachedContentTokenCount"]) == (TURN.usage.read, TURN.usage.cached)


def test_a_chat_is_streamed_in_pieces_and_each_piece_of_a_call_says_which_call_it_is_of() -> None:
    stream = OpenAIChat().write(TURN, "/v1/chat/completions", {"stream": True})
    deltas = [choice["delta"] for message in data(stream) for choice in message["choices"]]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == TURN.thinking
    assert [delta["content"] for delta in deltas if delta.get("content")] == pieces(TURN.text)
    calls = [call for delta in deltas for call in delta.get("tool_calls", [])]
    for place, meant in enumerate(TURN.invocations):
        first, *rest = (call for call in calls if call["index"] == place)
        assert (first["id"], first["function"]["name"]) == (meant.id, meant.name)
        assert json.loads("".join(call["function"]["arguments"] for call in rest)) == meant.arguments
        assert all(call.keys() == {"index", "function"} for call in rest)
    assert stream[-1] == DONE
    assert data(stream)[-1]["choices"][0]["finish_reason"] == "tool_calls"
    assert not any("usage" in message for message in data(stream)), "nobody asked for it"


def test_a_chat_counts_in_a_chunk_of_its_own_where_that_is_asked_for() -> None:
    body = {"stream": True, "stream_options": {"include_usage": True}}
    *before, last = data(OpenAIChat().write(TURN, "/v1/chat/completions", body))
    assert (last["choices"], last["usage"]["prompt_tokens"]) == ([], TURN.usage.read)
    assert {message["usage"] for message in before} == {None}


def test_openrouter_names_who_answered_counts_the_cost_and_keeps_the_line_open() -> None:
    comment, *stream = OpenRouter().write(TURN, "/api/v1/chat/completions", {"stream": True})
    assert comment == COMMENT
    assert event(comment) == b": OPENROUTER PROCESSING\n\n"
    assert {message["provider"] for message in data(stream)} == {"Scripted"}
    assert data(stream)[-1]["usage"]["cost"] > 0
    details = [
        detail
        for message in data(stream)
        for choice in message["choices"]
        for detail in choice["delta"].get("reasoning_details", [])
    ]
    assert "".join(detail["text"] for detail in details) == TURN.thinking


def paths(name: str, *, stream: bool) -> str:
    verb = ":streamGenerateContent?alt=sse" if stream else ":generateContent"
    ways = {"anthropic": "/v1/messages", "google": f"/v1beta/models/m{verb}", "openai-responses": "/responses"}
    return PROVIDERS[name]().base + ways.get(name, "/chat/completions")


@functools.cache
def sdk_type(name: str, kind: str) -> Any:
    """The provider's own type for an answer in one piece, or for a message of a stream."""
    from pydantic import TypeAdapter

    match name:
        case "anthropic":
            from anthropic.types import Message as Whole
            from anthropic.types import RawMessageStreamEvent

            return TypeAdapter(RawMessageStreamEvent if kind else Whole)
        case "google":
            from google.genai.types import GenerateContentResponse

            return TypeAdapter(GenerateContentResponse)
        case "openai-responses":
            from openai.types.responses import Response, ResponseStreamEvent

            events = typing.get_args(typing.get_args(ResponseStreamEvent)[0])
            named = {typing.get_args(one.model_fields["type"].annotation)[0]: one for one in events}
            return TypeAdapter(named[kind] if kind else Response)
        case _:
            from openai.types.chat import ChatCompletion, ChatCompletionChunk

            return TypeAdapter(ChatCompletionChunk if kind else ChatCompletion)


@pytest.mark.parametrize("ending", AnswerEnding)
@pytest.mark.parametrize("name", PROVIDERS)
def test_every_answer_is_of_the_types_that_the_providers_own_sdk_has(name: str, ending: AnswerEnding) -> None:
    provider = PROVIDERS[name]()
    body = {"stream": True, "input": [], "stream_options": {"include_usage": True}}
    turn = replace(TURN, ending=ending)
    messages = data(provider.write(turn, paths(name, stream=True), body))
    for message in messages:
        # Anthropic's SDK drops pings before it reads.
        if message.get("type") != "ping":
            sdk_type(name, message.get("type", "chunk")).validate_json(json.dumps(message))
    whole = provider.whole(turn, paths(name, stream=False), {**body, "stream": False})
    sdk_type(name, "").validate_json(json.dumps(whole))
    assert ending is AnswerEnding.NATURAL or json.dumps(whole) != json.dumps(
        provider.whole(TURN, paths(name, stream=False), {**body, "stream": False})
    )


def put_together(stream: Data) -> dict[str, Any]:
    """What a client makes of the chunks of a chat."""
    made: dict[str, Any] = {"content": "", "calls": {}}
    for choice in (choice for message in stream for choice in message["choices"]):
        made["content"] += choice["delta"].get("content") or ""
        for piece in choice["delta"].get("tool_calls", []):
            call = made["calls"].setdefault(piece["index"], {"id": piece.get("id"), "arguments": ""})
            call["arguments"] += piece["function"]["arguments"]
        made["finish_reason"] = choice["finish_reason"]
    return made


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
turns = st.builds(
    lambda thinking, text, several: replace(
        TURN,
        thinking=thinking,
        text=text,
        invocations=tuple(Invocation(id=f"call_{n}", name="t", arguments=one) for n, one in enumerate(several)),
    ),
    st.text(max_size=20),
    st.text(max_size=20),
    st.lists(st.dictionaries(st.text(), json_values, max_size=3), max_size=3),
)


@settings(max_examples=50)
@given(turns, st.sampled_from([OpenAIChat(), OpenRouter()]))
def test_a_chat_in_chunks_is_the_chat_in_one_piece(turn: ModelTurn, provider: OpenAIChat) -> None:
    made = put_together(data(provider.write(turn, "", {"stream": True})))
    whole = provider.whole(turn, "", {})
    assert whole is not None
    [choice] = whole["choices"]
    calls = [{"id": c["id"], **c["function"]} for c in choice["message"].get("tool_calls", [])]
    assert made["content"] == (choice["message"]["content"] or "")
    assert list(made["calls"].values()) == [{"id": c["id"], "arguments": c["arguments"]} for c in calls]
    assert [json.loads(call["arguments"]) for call in calls] == [call.arguments for call in turn.invocations]
    assert made["finish_reason"] is None or made["finish_reason"] == choice["finish_reason"]


@contextlib.contextmanager
def post(model: ScriptedModel, path: str, body: dict[str, Any]) -> Iterator[http.client.HTTPResponse]:
    address = urllib.parse.urlsplit(model.url)
    with contextlib.closing(http.client.HTTPConnection(address.netloc, timeout=60)) as line:
        line.request("POST", address.path + path, body=json.dumps(body))
        with line.getresponse() as answer:
            yield answer


def ask(model: ScriptedModel, messages: list[dict[str, Any]], *, stream: bool = False) -> tuple[int, dict[str, Any]]:
    body = {"model": "m", "messages": messages, "tools": [TOOL], "stream": stream}
    with post(model, "/v1/messages", body) as answer:
        read = answer.read()
        return answer.status, {} if stream else json.loads(read)


def answered(message: dict[str, Any], *results: str) -> list[dict[str, Any]]:
    calls = [block for block in message["content"] if block["type"] == "tool_use"]
    told = [
        {"type": "tool_result", "tool_use_id": call["id"], "content": result}
        for call, result in zip(calls, results, strict=False)
    ]
    return [
        {"role": "assistant", "content": message["content"]},
        *([{"role": "user", "content": told}] if told else []),
    ]


def test_a_script_goes_on_where_the_conversation_stands_and_says_the_same_when_asked_again() -> None:
    both = Together([Call("echo", {"n": 1}), Call("echo", {"n": 2})])
    steps = [both, Refuse(529), Say("That was it."), Call("echo", {"n": 3}), Say("Never said.")]
    with serving(Anthropic(), steps) as model:
        asked: list[dict[str, Any]] = [{"role": "user", "content": "Go on."}]
        _, first = ask(model, asked)
        assert ask(model, asked)[1] == first
        asked += answered(first, "one", "two")
        status, refused = ask(model, asked)
        assert (status, refused["error"]["type"]) == (529, "overloaded_error")
        _, said = ask(model, asked)
        assert said["content"] == [{"type": "text", "text": "That was it."}]
        asked += [*answered(said), {"role": "user", "content": "And now?"}]
        _, later = ask(model, asked)
        assert later["content"][0]["input"] == {"n": 3}
        assert model.results == ("one", "two")
        assert len({told.fresh for told in model.usages}) == 3
        assert model.left == (steps[-1],)


def test_an_exact_name_wins_over_one_that_only_ends_so() -> None:
    longer = {**FUNCTION, "function": {"name": "my_own_echo"}}
    with scripted("openai", [Call("own_echo")]) as model:
        body = {"messages": [{"role": "user", "content": "Go on."}], "tools": [longer, FUNCTION]}
        with post(model, "/chat/completions", body) as answer:
            [call] = json.loads(answer.read())["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "own_echo"


def test_an_answer_can_be_held_in_the_middle() -> None:
    hold = Hold()
    body = {"messages": [], "tools": [TOOL], "stream": True}
    with serving(Anthropic(), [Say("At last.", hold=hold)]) as model, post(model, "/v1/messages", body) as answer:
        assert b"message_start" in answer.readline()
        hold.reached()
        hold.release()
        assert b"message_stop" in answer.read()


def test_what_is_still_held_at_the_end_is_let_go() -> None:
    hold = Hold()
    body = {"messages": [], "tools": [TOOL], "stream": True}
    with contextlib.ExitStack() as stack:
        with scripted("anthropic", [Say("Never.", hold=hold)]) as model:
            answer = stack.enter_context(post(model, "/v1/messages", body))
            hold.reached()
        with contextlib.suppress(http.client.IncompleteRead):
            answer.read()
    assert not [thread for thread in threading.enumerate() if thread.name == "scripted model"]


CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Go on."}], "tools": [FUNCTION]}


def test_a_line_that_dies_in_the_middle_is_dead_for_the_client_and_the_next_request_is_the_next_step() -> None:
    with scripted("openai", [Break("I was about to say something"), Say("Here it is.")]) as model:
        with (
            pytest.raises(http.client.IncompleteRead) as broken,
            post(model, "/chat/completions", {**CHAT, "stream": True}) as answer,
        ):
            answer.read()
        assert b"I was" in broken.value.partial
        assert b'finish_reason": "stop' not in broken.value.partial
        with post(model, "/chat/completions", CHAT) as answer:
            assert b"Here it is." in answer.read()


@pytest.mark.parametrize("name", PROVIDERS)
def test_an_error_in_the_middle_of_a_stream_is_told_as_the_provider_does(name: str) -> None:
    bodies: dict[str, dict[str, Any]] = {
        "google": {"contents": [{"role": "user", "parts": [{"text": "Go on."}]}]},
        "openai-responses": {"input": "Go on.", "stream": True},
    }
    body = bodies.get(name, {"messages": [{"role": "user", "content": "Go on."}], "stream": True})
    told = {
        "anthropic": b'event: error\ndata: {"type": "error", "error": {"type": "overloaded_error"',
        "google": b'data: {"error": {"code": 529',
        "openai": b'data: {"error": {"message": "',
        "openai-responses": b"event: response.failed\n",
        "openrouter": b'"error": {"code": 529',
    }
    with scripted(name, [Break("I was about to say", status=529)]) as model:
        path = paths(name, stream=True).removeprefix(PROVIDERS[name]().base)
        with post(model, path, body) as answer:
            *_, last = answer.read().removesuffix(b"\n\n").split(b"\n\n")
    assert answer.status == 200
    assert told[name] in last


def test_openrouter_tells_a_late_error_in_the_body_of_an_answer_in_one_piece() -> None:
    with scripted("openrouter", [Break(status=502)]) as model, post(model, "/chat/completions", CHAT) as answer:
        assert (answer.status, json.loads(answer.read())["error"]["code"]) == (200, 502)


def test_a_rate_limit_says_when_to_come_again() -> None:
    steps = [Refuse(429, retry_after=2.5)]
    with scripted("openai", steps) as model, post(model, "/chat/completions", CHAT) as answer:
        assert (answer.status, answer.headers["Retry-After"]) == (429, "2.5")
        assert json.loads(answer.read())["error"]["code"] == "rate_limit_exceeded"


def test_a_rate_limit_says_nothing_of_it_unless_asked_to() -> None:
    with scripted("google", [Refuse(429)]) as model, post(model, "/models/m:generateContent", {}) as answer:
        assert (answer.status, answer.headers["Retry-After"]) == (429, None)
        assert "details" not in json.loads(answer.read())["error"]


def test_google_says_it_in_the_body() -> None:
    [told] = Google().refusal(429, "slower", 2.5)["error"]["details"]
    assert told["retryDelay"] == "2.5s"


def test_google_lets_no_malformed_call_through_but_says_that_there_was_one() -> None:
    turn = replace(TURN, text="", thinking="", invocations=(Invocation(id="c", name="add", garbled='{"a": '),))
    [message] = data(Google().write(turn, ":streamGenerateContent", {}))
    [candidate] = message["candidates"]
    assert candidate["finishReason"] == "MALFORMED_FUNCTION_CALL"
    assert "parts" not in candidate["content"]


CALLED = {"id": "call_x", "type": "function", "function": {"name": "own_echo", "arguments": "{}"}}
USER = {"role": "user", "content": "Go on."}
UNANSWERED: dict[str, dict[str, Any]] = {
    "openai": {"messages": [USER, {"role": "assistant", "tool_calls": [CALLED]}, USER]},
    "anthropic": {
        "messages": [
            USER,
            {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_x", "name": "echo", "input": {}}]},
            USER,
        ]
    },
    "google": {
        "contents": [
            {"role": "user", "parts": [{"text": "Go on."}]},
            {"role": "model", "parts": [{"functionCall": {"name": "echo", "args": {}}}]},
            {"role": "user", "parts": [{"text": "And now?"}]},
        ]
    },
    "openai-responses": {
        "input": [USER, {"type": "function_call", "call_id": "call_x", "name": "echo", "arguments": "{}"}, USER]
    },
}
STRAY: dict[str, dict[str, Any]] = {
    "openai": {"messages": [USER, {"role": "tool", "tool_call_id": "call_x", "content": "1"}]},
    "anthropic": {
        "messages": [
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_x", "content": "1"}]},
        ]
    },
    "google": {
        "contents": [{"role": "user", "parts": [{"functionResponse": {"name": "echo", "response": {"output": 1}}}]}]
    },
    "openai-responses": {"input": [{"type": "function_call_output", "call_id": "call_x", "output": "1"}]},
}


@pytest.mark.parametrize(("name", "body"), [*UNANSWERED.items(), *STRAY.items()])
def test_a_call_without_a_result_and_a_result_without_a_call_are_refused_as_by_the_real_services(
    name: str, body: dict[str, Any]
) -> None:
    with pytest.raises(ScriptMismatch), scripted(name, []) as model:
        path = paths(name, stream=False).removeprefix(PROVIDERS[name]().base)
        with post(model, path, body) as answer:
            assert answer.status == 400
            assert "error" in json.loads(answer.read())


def test_results_are_told_in_the_order_of_their_calls() -> None:
    calls = [{**CALLED, "id": f"call_{n}"} for n in range(2)]
    told = [{"role": "tool", "tool_call_id": f"call_{n}", "content": f"result {n}"} for n in (1, 0)]
    messages = [USER, {"role": "assistant", "tool_calls": calls}, *told]
    assert OpenAIChat().read({"messages": messages}).results == ("result 0", "result 1")


def test_google_matches_results_without_ids_by_name_and_the_script_goes_on_without_any() -> None:
    tools = [{"functionDeclarations": [{"name": "one"}, {"name": "two"}]}]
    contents: list[dict[str, Any]] = [{"role": "user", "parts": [{"text": "Go on."}]}]
    with scripted("google", [Together([Call("one"), Call("two")]), Refuse(503), Say("Both.")]) as model:
        with post(model, "/v1beta/models/m:generateContent", {"contents": contents, "tools": tools}) as answer:
            [candidate] = json.loads(answer.read())["candidates"]
        for part in candidate["content"]["parts"]:
            del part["functionCall"]["id"]
        told = [{"functionResponse": {"name": name, "response": {"output": f"of {name}"}}} for name in ("two", "one")]
        contents += [candidate["content"], {"role": "user", "parts": told}]
        with post(model, "/v1beta/models/m:generateContent", {"contents": contents, "tools": tools}) as answer:
            assert (answer.status, json.loads(answer.read())["error"]["status"]) == (503, "UNAVAILABLE")
        with post(model, "/v1beta/models/m:generateContent", {"contents": contents, "tools": tools}) as answer:
            assert b"Both." in answer.read()
        assert model.results == ("of one", "of two")


def test_a_script_that_does_not_fit_what_came_fails_the_test() -> None:
    with (
        pytest.raises(ScriptMismatch, match="0 tools end in 'no_such'"),
        scripted("openai", [Call("no_such")]) as model,
        post(model, "/chat/completions", CHAT) as answer,
    ):
        assert answer.status == 400


def test_a_test_that_fails_otherwise_is_told_of_it_too() -> None:
    with (
        pytest.raises(ZeroDivisionError) as failed,
        scripted("openai", [Call("no_such")]) as model,
        post(model, "/chat/completions", CHAT),
    ):
        raise ZeroDivisionError
    assert "0 tools end in 'no_such'" in failed.value.__notes__[0]


def test_a_request_without_tools_is_a_turn_or_an_aside() -> None:
    steps, body = [Say("The first.")], {"messages": [USER]}
    with scripted("openai", steps) as model, post(model, "/chat/completions", body) as answer:
        assert b"The first." in answer.read()
    with serving(OpenAIChat(), steps) as model, post(model, "/chat/completions", body) as answer:
        assert b"Done." in answer.read()


def test_the_record_has_what_was_asked_and_with_which_headers() -> None:
    with scripted("openai", [Say("Yes.")]) as model:
        with post(model, "/chat/completions", CHAT) as answer:
            answer.read()
        [request] = model.requests
        assert (request.path, request.body) == ("/v1/chat/completions", CHAT)
        assert request.headers["content-length"] == str(len(json.dumps(CHAT)))
        assert request.conversation is not None
        assert request.conversation.asked == ("Go on.",)
        assert [tool.name for tool in model.offered] == ["own_echo"]


def test_several_requests_go_over_one_connection_and_a_body_may_come_in_chunks() -> None:
    with scripted("openai", [], last_words="Here.") as model:
        line = http.client.HTTPConnection(urllib.parse.urlsplit(model.url).netloc, timeout=60)
        for body in (json.dumps(CHAT).encode(), iter([json.dumps(CHAT).encode()])):
            line.request("POST", "/v1/chat/completions", body=body)
            assert b"Here." in line.getresponse().read()
            kept = line.sock
            assert kept is not None
        line.request("GET", "/v1/models")
        assert line.getresponse().read()
        assert line.sock is kept
        line.request("HEAD", "/")
        assert line.getresponse().status == 404
        line.close()


@pytest.fixture(scope="module")
def steady() -> Iterator[ScriptedModel]:
    with serving(OpenAIChat(), [], last_words="Here.") as model:
        yield model


@settings(max_examples=30, deadline=None)
@given(noise=st.binary(max_size=200), head=st.sampled_from([b"", b"POST /v1/chat/completions HTTP/1.1\r\n"]))
def test_whatever_comes_the_next_one_is_served(steady: ScriptedModel, noise: bytes, head: bytes) -> None:
    address = urllib.parse.urlsplit(steady.url)
    with socket.create_connection((address.hostname, address.port), timeout=60) as line:
        line.sendall(head + noise + b"\r\n\r\n")
        line.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionError):
            while line.recv(65536):
                pass
    with post(steady, "/chat/completions", CHAT) as answer:
        assert b"Here." in answer.read()


@pytest.mark.parametrize(
    ("written", "step"),
    [
        ({"call": "echo", "arguments": {"n": 1}, "says": "So."}, Call("echo", {"n": 1}, says="So.")),
        ({"call_by_name": "echo", "namespace": "x"}, CallByName("echo", namespace="x")),
        ({"garble": "echo", "text": "{"}, Garble("echo", "{")),
        ({"together": [{"call": "a"}, {"garble": "b"}]}, Together([Call("a"), Garble("b")])),
        ({"say": "Cut", "ending": "length"}, Say("Cut", ending=AnswerEnding.LENGTH)),
        ({"refuse": 429, "retry_after": 2}, Refuse(429, 2)),
        ({"break": "I was", "status": 500}, Break("I was", 500)),
    ],
)
def test_every_step_can_be_written_in_a_file(written: dict[str, Any], step: object) -> None:
    assert step_from(written) == step


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_model_runs_by_itself_until_its_stdin_is_closed(provider: str, tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"steps": [{"call": "echo", "arguments": {"n": 1}}, {"say": "Done so."}]}))
    words = [sys.executable, "-m", "toolcrib.testing", provider, str(script)]
    with subprocess.Popen(words, env={}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = urllib.parse.urlsplit(process.stdout.readline().strip())
        assert url.path == PROVIDERS[provider]().base
        line = http.client.HTTPConnection(url.netloc, timeout=60)
        line.request("GET", "/")
        assert line.getresponse().status == 404
        line.close()
        process.communicate(timeout=60)
    assert process.returncode == 0


def test_it_needs_nothing_but_the_standard_library() -> None:
    program = "import sys; before = set(sys.modules); import toolcrib.testing; print(*set(sys.modules) - before)"
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)
    loaded = {name.partition(".")[0] for name in told.stdout.split()}
    assert loaded - set(sys.stdlib_module_names) == {"toolcrib"}
    ours = {name for name in told.stdout.split() if name.startswith("toolcrib.")}
    assert not [name for name in ours if not name.startswith("toolcrib.testing")]
