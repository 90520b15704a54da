"""The scripted models speak as the real services do: what is streamed in pieces is what was meant, whole."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import urllib.parse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parts.models.anthropic import Anthropic
from parts.models.conversation import Hold, Invocation, Turn
from parts.models.google import Google
from parts.models.openai import OpenAI
from parts.models.script import Call, Refuse, Say, Together, usage
from parts.models.server import Model, pieces, serving

TESTS = Path(__file__).parent.parent
TURN = Turn(
    id="1",
    thinking="Let me see what there is.",
    text="I look at both.",
    invocations=(
        Invocation(id="call_1_0_0", name="read", namespace="mcp__toolcrib", arguments={"path": "a b"}),
        Invocation(id="call_1_0_1", name="list", namespace="mcp__toolcrib", arguments={"deep": [1, {"x": None}]}),
    ),
    usage=usage(3),
)
TOOL = {"name": "own_echo", "input_schema": {"type": "object"}}


@settings(max_examples=50)
@given(st.text())
def test_pieces_are_the_text(text: str) -> None:
    assert "".join(pieces(text)) == text
    assert all(pieces(text))


def joined(stream: Iterable[dict[str, Any]], kind: str, key: str) -> str:
    return "".join(str(message[key]) for message in stream if message.get("type") == kind)


def test_anthropic_streams_each_block_in_pieces() -> None:
    stream = Anthropic().write(TURN, "/v1/messages", {"stream": True})
    deltas = [message["delta"] for message in stream if message["type"] == "content_block_delta"]
    assert joined(deltas, "thinking_delta", "thinking") == TURN.thinking
    assert joined(deltas, "text_delta", "text") == TURN.text
    assert sum(delta["type"] == "text_delta" for delta in deltas) > 1
    for place, call in enumerate(TURN.invocations, start=2):
        parts = [m["delta"] for m in stream if m["type"] == "content_block_delta" and m["index"] == place]
        assert len(parts) > 2
        assert json.loads(joined(parts, "input_json_delta", "partial_json")) == call.arguments


def test_openai_streams_each_item_in_pieces() -> None:
    stream = OpenAI().write(TURN, "/v1/responses", {})
    assert joined(stream, "response.reasoning_summary_text.delta", "delta") == TURN.thinking
    assert joined(stream, "response.output_text.delta", "delta") == TURN.text
    for place, call in enumerate(TURN.invocations, start=2):
        parts = [m for m in stream if m.get("output_index") == place]
        assert json.loads(joined(parts, "response.function_call_arguments.delta", "delta")) == call.arguments
        assert parts[-1]["item"]["arguments"] == json.dumps(call.arguments)
    assert stream[-1]["response"]["usage"]["input_tokens_details"] == {"cached_tokens": TURN.usage.cached}


def test_google_streams_thoughts_and_text_in_pieces_and_counts_at_the_end() -> None:
    stream = Google().write(TURN, "/v1beta/models/m:streamGenerateContent?alt=sse", {})
    parts = [message["candidates"][0]["content"]["parts"][0] for message in stream]
    assert "".join(part["text"] for part in parts if part.get("thought")) == TURN.thinking
    assert "".join(part["text"] for part in parts if "text" in part and not part.get("thought")) == TURN.text
    assert [part["functionCall"]["args"] for part in parts if "functionCall" in part] == [
        call.arguments for call in TURN.invocations
    ]
    told = stream[-1]["usageMetadata"]
    assert (told["promptTokenCount"], told["cachedContentTokenCount"]) == (TURN.usage.read, TURN.usage.cached)


def ask(model: Model, messages: list[dict[str, Any]], *, stream: bool = False) -> tuple[int, dict[str, Any]]:
    address = urllib.parse.urlsplit(model.url).netloc
    line = http.client.HTTPConnection(address, timeout=10)
    body = {"model": "m", "messages": messages, "tools": [TOOL], "stream": stream}
    line.request("POST", "/v1/messages", body=json.dumps(body))
    answer = line.getresponse()
    read = answer.read()
    line.close()
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
    both = Together((Call("echo", {"n": 1}), Call("echo", {"n": 2})))
    with serving(Anthropic(), [both, Refuse(529), Say("That was it."), Call("echo", {"n": 3})]) as model:
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
        assert len({told.fresh for told in model.told}) == 3


def test_an_answer_can_be_held_in_the_middle() -> None:
    hold = Hold()
    with serving(Anthropic(), [Say("At last.", hold=hold)]) as model:
        line = http.client.HTTPConnection(urllib.parse.urlsplit(model.url).netloc, timeout=10)
        body = {"messages": [], "tools": [TOOL], "stream": True}
        line.request("POST", "/v1/messages", body=json.dumps(body))
        answer = line.getresponse()
        assert b"message_start" in answer.readline()
        hold.reached()
        hold.release()
        assert b"message_stop" in answer.read()
        line.close()


@pytest.mark.parametrize("provider", ["anthropic", "openai", "google"])
def test_a_model_runs_by_itself_until_its_stdin_is_closed(provider: str, tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"steps": [{"call": "echo", "arguments": {"n": 1}}, {"say": "Done so."}]}))
    words = [sys.executable, "-m", "parts.models", provider, str(script)]
    with subprocess.Popen(
        words, env={"PYTHONPATH": str(TESTS)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        line = http.client.HTTPConnection(urllib.parse.urlsplit(url).netloc, timeout=10)
        line.request("GET", "/")
        assert line.getresponse().status == 404
        line.close()
        process.communicate(timeout=10)
    assert process.returncode == 0
