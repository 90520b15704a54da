"""Scripted models behave like the real services: streams, whole answers, errors, refusals."""

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
def test_the_pieces_of_a_text_add_up(text: str) -> None:
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


def test_google_streams_thinking_and_text_in_pieces_and_the_usage_at_the_end() -> None:
    stream = data(Google().write(TURN, "/v1beta/models/m:streamGenerateContent?alt=sse", {}))
    parts = [message["candidates"][0]["content"]["parts"][0] for message in stream]
    assert "".join(part["text"] for part in parts if part.get("thought")) == TURN.thinking
    assert "".join(part["text"] for part in parts if "text" in part and not part.get("thought")) == TURN.text
    calls = [part["functionCall"]["args"] for part in parts if "functionCall" in part]
    assert calls == [call.arguments for call in TURN.invocations]
    usage = stream[-1]["usageMetadata"]
    assert (usage["promptTokenCount"], usage["cachedContentTokenCount"]) == (TURN.usage.read, TURN.usage.cached)


def test_a_chat_is_streamed_in_pieces_and_each_piece_of_a_call_has_its_index() -> None:
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
    assert not any("usage" in message for message in data(stream)), "it was not requested"
    body = {"stream": True, "stream_options": {"include_usage": True}}
    *before, last = data(OpenAIChat().write(TURN, "/v1/chat/completions", body))
    assert (last["choices"], last["usage"]["prompt_tokens"]) == ([], TURN.usage.read)
    assert {message["usage"] for message in before} == {None}


def test_openrouter_sends_the_provider_the_cost_and_comments() -> None:
    comment, *stream = OpenRouter().write(TURN, "/api/v1/chat/completions", {"stream": True})
    assert comment == COMMENT
    assert event(comment) == b": OPENROUTER PROCESSING\n\n"
    assert {message["provider"] for message in data(stream)} == {"Scripted"}
    assert data(stream)[-1]["usage"]["cost"] > 0
    deltas = [choice["delta"] for message in data(stream) for choice in message["choices"]]
    details = [detail["text"] for delta in deltas for detail in delta.get("reasoning_details", [])]
    assert "".join(details) == TURN.thinking


def paths(name: str, *, stream: bool) -> str:
    verb = ":streamGenerateContent?alt=sse" if stream else ":generateContent"
    ways = {"anthropic": "/v1/messages", "google": f"/v1beta/models/m{verb}", "openai-responses": "/responses"}
    return PROVIDERS[name]().base + ways.get(name, "/chat/completions")


@functools.cache
def sdk_type(name: str, kind: str) -> Any:
    """The SDK's type of a whole answer, or of a message in a stream."""
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
def test_every_answer_has_the_types_of_the_providers_sdk(name: str, ending: AnswerEnding) -> None:
    provider = PROVIDERS[name]()
    body = {"stream": True, "input": [], "stream_options": {"include_usage": True}}
    turn = replace(TURN, ending=ending)
    messages = data(provider.write(turn, paths(name, stream=True), body))
    for message in messages:
        # Anthropic's SDK drops pings before parsing.
        if message.get("type") != "ping":
            sdk_type(name, message.get("type", "chunk")).validate_json(json.dumps(message))
    whole = provider.whole(turn, paths(name, stream=False), {**body, "stream": False})
    sdk_type(name, "").validate_json(json.dumps(whole))
    natural = provider.whole(TURN, paths(name, stream=False), {**body, "stream": False})
    assert (whole == natural) == (ending is AnswerEnding.NATURAL)


def put_together(stream: Data) -> dict[str, Any]:
    """The message that a client builds from the chunks of a chat."""
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
def test_a_streamed_chat_equals_the_whole_chat(turn: ModelTurn, provider: OpenAIChat) -> None:
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
    blocks = [
        {"type": "tool_result", "tool_use_id": call["id"], "content": result}
        for call, result in zip(calls, results, strict=False)
    ]
    answer = {"role": "assistant", "content": message["content"]}
    return [answer, {"role": "user", "content": blocks}] if blocks else [answer]


def test_a_script_follows_the_conversation_and_repeated_requests_get_the_same_answer() -> None:
    both = Together([Call("echo", {"n": 1}), Call("echo", {"n": 2})])
    steps = [both, Refuse(529), Say("That was it."), Call("echo", {"n": 3}), Say("Never said.")]
    with serving(Anthropic(), steps) as model:
        asked: list[dict[str, Any]] = [{"role": "user", "content": "Go on."}]
        _, first = ask(model, asked)
        assert ask(model, asked)[1] == first
        asked += answered(first, "one", "two")
        status, refused = ask(model, asked)
        assert (status, refused["error"]["type"]) == (529, "overloaded_error")
        _, second = ask(model, asked)
        assert second["content"] == [{"type": "text", "text": "That was it."}]
        asked += [*answered(second), {"role": "user", "content": "And now?"}]
        _, later = ask(model, asked)
        assert later["content"][0]["input"] == {"n": 3}
        assert model.results == ("one", "two")
        assert len({usage.fresh for usage in model.usages}) == 3
        assert model.left == (steps[-1],)


def test_an_exact_name_has_priority_over_a_suffix() -> None:
    longer = {**FUNCTION, "function": {"name": "my_own_echo"}}
    with scripted("openai", [Call("own_echo")]) as model:
        body = {"messages": [{"role": "user", "content": "Go on."}], "tools": [longer, FUNCTION]}
        with post(model, "/chat/completions", body) as answer:
            [call] = json.loads(answer.read())["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "own_echo"


def test_an_answer_can_be_held_until_a_test_or_the_end_releases_it() -> None:
    hold = Hold()
    body = {"messages": [], "tools": [TOOL], "stream": True}
    with serving(Anthropic(), [Say("At last.", hold=hold)]) as model, post(model, "/v1/messages", body) as answer:
        assert b"message_start" in answer.readline()
        hold.reached()
        hold.release()
        assert b"message_stop" in answer.read()
    hold = Hold()
    with contextlib.ExitStack() as stack:
        with scripted("anthropic", [Say("Never.", hold=hold)]) as model:
            answer = stack.enter_context(post(model, "/v1/messages", body))
            hold.reached()
        with contextlib.suppress(http.client.IncompleteRead):
            answer.read()
    assert not [thread for thread in threading.enumerate() if thread.name == "scripted model"]


CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Go on."}], "tools": [FUNCTION]}


def test_after_a_broken_connection_the_next_request_gets_the_next_step() -> None:
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
def test_an_error_in_the_middle_of_a_stream_has_the_providers_form(name: str) -> None:
    bodies: dict[str, dict[str, Any]] = {
        "google": {"contents": [{"role": "user", "parts": [{"text": "Go on."}]}]},
        "openai-responses": {"input": "Go on.", "stream": True},
    }
    body = bodies.get(name, {"messages": [{"role": "user", "content": "Go on."}], "stream": True})
    errors = {
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
    assert errors[name] in last


def test_errors_and_rate_limits_have_the_providers_form() -> None:
    with scripted("openrouter", [Break(status=502)]) as model, post(model, "/chat/completions", CHAT) as answer:
        assert (answer.status, json.loads(answer.read())["error"]["code"]) == (200, 502)
    steps = [Refuse(429, retry_after=2.5)]
    with scripted("openai", steps) as model, post(model, "/chat/completions", CHAT) as answer:
        assert (answer.status, answer.headers["Retry-After"]) == (429, "2.5")
        assert json.loads(answer.read())["error"]["code"] == "rate_limit_exceeded"
    with scripted("google", [Refuse(429)]) as model, post(model, "/models/m:generateContent", {}) as answer:
        assert (answer.status, answer.headers["Retry-After"]) == (429, None)
        assert "details" not in json.loads(answer.read())["error"]
    [detail] = Google().refusal(429, "slower", 2.5)["error"]["details"]
    assert detail["retryDelay"] == "2.5s"


def test_google_blocks_a_malformed_call_with_a_finish_reason() -> None:
    turn = replace(TURN, text="", thinking="", invocations=(Invocation(id="c", name="add", garbled='{"a": '),))
    [message] = data(Google().write(turn, ":streamGenerateContent", {}))
    [candidate] = message["candidates"]
    assert candidate["finishReason"] == "MALFORMED_FUNCTION_CALL"
    assert "parts" not in candidate["content"]


CALLED = {"id": "call_x", "type": "function", "function": {"name": "own_echo", "arguments": "{}"}}
USER = {"role": "user", "content": "Go on."}
TOOL_USE = {"type": "tool_use", "id": "toolu_x", "name": "echo", "input": {}}
TOOL_RESULT = {"type": "tool_result", "tool_use_id": "toolu_x", "content": "1"}
GOOGLE_USER = {"role": "user", "parts": [{"text": "Go on."}]}
GOOGLE_CALL = {"role": "model", "parts": [{"functionCall": {"name": "echo", "args": {}}}]}
GOOGLE_RESULT = {"functionResponse": {"name": "echo", "response": {"output": 1}}}
RESPONSES_CALL = {"type": "function_call", "call_id": "call_x", "name": "echo", "arguments": "{}"}


@pytest.mark.parametrize(
    ("name", "key", "items"),
    [
        ("openai", "messages", [USER, {"role": "assistant", "tool_calls": [CALLED]}, USER]),
        ("anthropic", "messages", [USER, {"role": "assistant", "content": [TOOL_USE]}, USER]),
        ("google", "contents", [GOOGLE_USER, GOOGLE_CALL, GOOGLE_USER]),
        ("openai-responses", "input", [USER, RESPONSES_CALL, USER]),
        ("openai", "messages", [USER, {"role": "tool", "tool_call_id": "call_x", "content": "1"}]),
        ("anthropic", "messages", [{"role": "user", "content": [TOOL_RESULT]}]),
        ("google", "contents", [{"role": "user", "parts": [GOOGLE_RESULT]}]),
        ("openai-responses", "input", [{"type": "function_call_output", "call_id": "call_x", "output": "1"}]),
    ],
)
def test_calls_without_results_and_results_without_calls_are_refused(name: str, key: str, items: list[Any]) -> None:
    with pytest.raises(ScriptMismatch), scripted(name, []) as model:
        path = paths(name, stream=False).removeprefix(PROVIDERS[name]().base)
        with post(model, path, {key: items}) as answer:
            assert answer.status == 400
            assert "error" in json.loads(answer.read())


def test_results_are_in_the_order_of_their_calls() -> None:
    calls = [{**CALLED, "id": f"call_{n}"} for n in range(2)]
    results = [{"role": "tool", "tool_call_id": f"call_{n}", "content": f"result {n}"} for n in (1, 0)]
    messages = [USER, {"role": "assistant", "tool_calls": calls}, *results]
    assert OpenAIChat().read({"messages": messages}).results == ("result 0", "result 1")


def test_google_matches_results_without_ids_by_name() -> None:
    tools = [{"functionDeclarations": [{"name": "one"}, {"name": "two"}]}]
    contents: list[dict[str, Any]] = [GOOGLE_USER]
    request = ("/v1beta/models/m:generateContent", {"contents": contents, "tools": tools})
    with scripted("google", [Together([Call("one"), Call("two")]), Refuse(503), Say("Both.")]) as model:
        with post(model, *request) as answer:
            [candidate] = json.loads(answer.read())["candidates"]
        for part in candidate["content"]["parts"]:
            del part["functionCall"]["id"]
        parts = [{"functionResponse": {"name": name, "response": {"output": f"of {name}"}}} for name in ("two", "one")]
        contents += [candidate["content"], {"role": "user", "parts": parts}]
        with post(model, *request) as answer:
            assert (answer.status, json.loads(answer.read())["error"]["status"]) == (503, "UNAVAILABLE")
        with post(model, *request) as answer:
            assert b"Both." in answer.read()
        assert model.results == ("of one", "of two")


@pytest.mark.parametrize("raised", [None, ZeroDivisionError])
def test_a_request_that_does_not_match_the_script_fails_the_test(raised: type[Exception] | None) -> None:
    with (
        pytest.raises(raised or ScriptMismatch) as failed,
        scripted("openai", [Call("no_such")]) as model,
        post(model, "/chat/completions", CHAT) as answer,
    ):
        assert answer.status == 400
        if raised:
            raise raised
    text = failed.value.__notes__[0] if raised else str(failed.value)
    assert "0 tools end in 'no_such'" in text


def test_a_request_without_tools_is_a_turn_or_an_aside() -> None:
    steps, body = [Say("The first.")], {"messages": [USER]}
    with scripted("openai", steps) as model, post(model, "/chat/completions", body) as answer:
        assert b"The first." in answer.read()
    with serving(OpenAIChat(), steps) as model, post(model, "/chat/completions", body) as answer:
        assert b"Done." in answer.read()


def test_requests_are_recorded_with_their_headers() -> None:
    with scripted("openai", [Say("Yes.")]) as model:
        with post(model, "/chat/completions", CHAT) as answer:
            answer.read()
        [request] = model.requests
        assert (request.path, request.body) == ("/v1/chat/completions", CHAT)
        assert request.headers["content-length"] == str(len(json.dumps(CHAT)))
        assert request.conversation is not None
        assert request.conversation.asked == ("Go on.",)
        assert [tool.name for tool in model.offered] == ["own_echo"]


def test_connections_are_kept_alive_and_bodies_may_be_chunked() -> None:
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
def test_garbage_does_not_stop_the_server(steady: ScriptedModel, noise: bytes, head: bytes) -> None:
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
def test_the_program_runs_until_its_stdin_is_closed(provider: str, tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"steps": [{"call": "echo", "arguments": {"n": 1}}, {"say": "Done so."}]}))
    command = [sys.executable, "-m", "toolcrib.testing", provider, str(script)]
    with subprocess.Popen(command, env={}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = urllib.parse.urlsplit(process.stdout.readline().strip())
        assert url.path == PROVIDERS[provider]().base
        line = http.client.HTTPConnection(url.netloc, timeout=60)
        line.request("GET", "/")
        assert line.getresponse().status == 404
        line.close()
        process.communicate(timeout=60)
    assert process.returncode == 0


def test_scripted_models_need_only_the_standard_library() -> None:
    program = "import sys; before = set(sys.modules); import toolcrib.testing; print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)
    loaded = {name for name in done.stdout.split() if name.partition(".")[0] not in sys.stdlib_module_names}
    assert [name for name in loaded if not f"{name}.".startswith("toolcrib.testing.")] == ["toolcrib"]
