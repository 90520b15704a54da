"""A tool's result in the messages of OpenAI, Anthropic and Google: all of it, in forms that their SDKs know."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from anthropic.types import ToolResultBlockParam
from google.genai.types import Content
from openai.types.chat import ChatCompletionToolMessageParam, ChatCompletionUserMessageParam
from openai.types.responses.response_input_param import FunctionCallOutput
from pydantic import TypeAdapter
from pydantic_ai.messages import ToolReturnPart

from toolcrib.core import results
from toolcrib.core.results import Result, read_answer, read_result
from toolcrib.errors import ToolError, UsageError
from toolcrib.servers.model import ServerAnswer

PNG = base64.b64encode(b"\x89PNG").decode()
WAV = base64.b64encode(b"RIFF\0\0\0\0WAVE").decode()
JPEG = base64.b64encode(b"\xff\xd8\xff\xe0").decode()
PDF = base64.b64encode(b"%PDF").decode()
TEXT = {"type": "text", "text": "Hello."}
IMAGE = {"type": "image", "data": PNG, "mimeType": "image/png"}
AUDIO = {"type": "audio", "data": WAV, "mimeType": "audio/wav"}
FILE = {"type": "resource", "resource": {"uri": "file:///a.txt", "mimeType": "text/plain", "text": "In a."}}
BLOB = {"type": "resource", "resource": {"uri": "file:///r.pdf", "mimeType": "application/pdf", "blob": PDF}}
LINK = {"type": "resource_link", "uri": "file:///b.txt", "name": "b", "description": "Another."}
NEW = {"type": "hologram", "depth": 3}
EVERYTHING = [TEXT, IMAGE, AUDIO, FILE, BLOB, LINK, NEW]
WORDS_AFTER = f"{json.dumps(LINK)}\n{json.dumps(NEW)}"
NOT_SHOWN = "(12 bytes, audio/wav, which cannot be shown.)"

# Kept: what they validate of lists is read later.
TOOL_RESULT = TypeAdapter(ToolResultBlockParam)
CHAT_MESSAGES: dict[str, TypeAdapter[Any]] = {
    "tool": TypeAdapter(ChatCompletionToolMessageParam),
    "user": TypeAdapter(ChatCompletionUserMessageParam),
}


def result(*content: Any, **fields: Any) -> Result:
    return read_result(json.dumps({"content": list(content), **fields}).encode())


def chat(given: Result) -> list[dict[str, Any]]:
    answer = given.to_openai("c1")
    for message in answer:
        checked: Any = CHAT_MESSAGES[message["role"]].validate_python(message)
        assert {**checked, "content": _listed(checked["content"])} == message
    return json_safe(answer)


def responses(given: Result) -> Any:
    (item,) = given.to_openai("c1", api="responses")
    assert TypeAdapter(FunctionCallOutput).validate_python(item) == item
    assert (item["type"], item["call_id"]) == ("function_call_output", "c1")
    return json_safe(item["output"])


def anthropic(given: Result) -> dict[str, Any]:
    block = given.to_anthropic("u1")
    checked: Any = TOOL_RESULT.validate_python(block)
    assert {**checked, "content": _listed(checked["content"])} == block
    return json_safe(block)


def google(given: Result, **how: Any) -> list[dict[str, Any]]:
    contents = given.to_google("find", "g1", **how)
    for content in contents:
        read = Content.model_validate_json(json.dumps(content))
        assert read.model_dump(mode="json", by_alias=True, exclude_none=True) == _url_safe(content)
    return json_safe(contents)


def answered(given: Result) -> dict[str, Any]:
    response: dict[str, Any] = google(given)[0]["parts"][0]["functionResponse"]["response"]
    return response


def _listed(content: Any) -> Any:
    return content if isinstance(content, str) else list(content)


def _url_safe(content: Any) -> Any:
    """The SDK writes base64 in its other alphabet."""
    text = json.dumps(content)
    for data in (PNG, JPEG):
        text = text.replace(data, base64.urlsafe_b64encode(base64.b64decode(data)).decode())
    return json.loads(text)


def json_safe(made: Any) -> Any:
    assert json.loads(json.dumps(made)) == made
    return made


@pytest.mark.req("ENG-9")
def test_openai_chat_gets_the_text_and_then_what_a_tool_message_cannot_hold() -> None:
    answer, after = chat(result(*EVERYTHING))
    assert answer == {
        "role": "tool",
        "tool_call_id": "c1",
        "content": "\n".join(
            [
                "Hello.",
                "(image/png, given beside this text.)",
                NOT_SHOWN,
                "file:///a.txt:\nIn a.",
                "file:///r.pdf:",
                "(application/pdf, given beside this text.)",
                WORDS_AFTER,
            ]
        ),
    }
    assert after["role"] == "user"
    assert after["content"][1:] == [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
        {"type": "file", "file": {"filename": "r.pdf", "file_data": f"data:application/pdf;base64,{PDF}"}},
    ]


@pytest.mark.req("ENG-9")
def test_openai_responses_gets_everything_in_one_item() -> None:
    assert responses(result(*EVERYTHING)) == [
        {"type": "input_text", "text": "Hello."},
        {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}", "detail": "auto"},
        {"type": "input_text", "text": f"{NOT_SHOWN}\nfile:///a.txt:\nIn a.\nfile:///r.pdf:"},
        {"type": "input_file", "filename": "r.pdf", "file_data": f"data:application/pdf;base64,{PDF}"},
        {"type": "input_text", "text": WORDS_AFTER},
    ]


@pytest.mark.req("ENG-9")
def test_anthropic_gets_everything_in_one_block() -> None:
    assert anthropic(result(*EVERYTHING)) == {
        "type": "tool_result",
        "tool_use_id": "u1",
        "content": [
            {"type": "text", "text": "Hello."},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}},
            {"type": "text", "text": f"{NOT_SHOWN}\nfile:///a.txt:\nIn a.\nfile:///r.pdf:"},
            {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": PDF}},
            {"type": "text", "text": WORDS_AFTER},
        ],
    }


@pytest.mark.req("ENG-9")
def test_google_gets_media_inside_the_response_and_sound_after_it() -> None:
    answer, after = google(result(*EVERYTHING))
    response = answer["parts"][0]["functionResponse"]
    assert (answer["role"], response["name"], response["id"]) == ("user", "find", "g1")
    assert response["response"]["return_value"].startswith(
        "Hello.\n(image/png, given beside this text.)\n(audio/wav, given"
    )
    assert response["response"]["return_value"].endswith(WORDS_AFTER)
    assert response["parts"] == [
        {"inlineData": {"mimeType": "image/png", "data": PNG}},
        {"inlineData": {"mimeType": "application/pdf", "data": PDF}},
    ]
    assert after["parts"][1:] == [{"inlineData": {"mimeType": "audio/wav", "data": WAV}}]


def test_older_models_of_google_get_all_media_after_the_response() -> None:
    answer, after = google(result(IMAGE), media="after")
    assert "parts" not in answer["parts"][0]["functionResponse"]
    assert after["parts"][1:] == [{"inlineData": {"mimeType": "image/png", "data": PNG}}]


def test_text_alone_is_a_plain_text() -> None:
    given = result(TEXT, {"type": "text", "text": "And more."})
    assert chat(given) == [{"role": "tool", "tool_call_id": "c1", "content": "Hello.\nAnd more."}]
    assert responses(given) == "Hello.\nAnd more."
    assert anthropic(given)["content"] == "Hello.\nAnd more."
    assert google(given)[0]["parts"][0]["functionResponse"]["response"] == {"return_value": "Hello.\nAnd more."}


@pytest.mark.req("ENG-9")
def test_structured_content_without_a_text_is_its_json() -> None:
    given = result(structuredContent={"n": [1, None]})
    for text in (chat(given)[0]["content"], responses(given), anthropic(given)["content"]):
        assert json.loads(text) == {"n": [1, None]}
    assert answered(given) == {"return_value": '{"n": [1, null]}'}


def test_structured_content_that_a_text_says_already_is_not_said_twice() -> None:
    given = result({"type": "text", "text": '{ "n": 1 }'}, structuredContent={"n": 1})
    assert chat(given)[0]["content"] == anthropic(given)["content"] == responses(given) == '{ "n": 1 }'
    assert answered(given) == {"return_value": '{ "n": 1 }'}


@pytest.mark.parametrize(
    ("texts", "structured"),
    [
        (["hello"], {"content": "hello"}),
        (["hello\n"], {"result": {"content": "hello"}}),
        (["a", "b"], {"content": "a\nb"}),
        (["a", "b"], {"result": ["a", "b"]}),
        (['{"x": 1, "y": 2}', "3"], {"result": [{"y": 2, "x": 1}, 3]}),
        (["5"], {"result": 5}),
        (["hello"], {"content": [{"type": "text", "text": "hello"}]}),
    ],
)
def test_a_text_that_is_the_structured_contents_only_value_is_said_once(texts: list[str], structured: Any) -> None:
    given = result(*({"type": "text", "text": text} for text in texts), structuredContent=structured)
    once = "\n".join(texts)
    assert chat(given)[0]["content"] == anthropic(given)["content"] == responses(given) == once
    assert answered(given) == {"return_value": once}


def test_a_picture_that_stands_in_the_structured_content_as_well_is_no_text() -> None:
    assert anthropic(result(IMAGE, structuredContent={"content": [IMAGE]})) == anthropic(result(IMAGE))


@pytest.mark.parametrize(
    ("text", "structured"), [("hello", {"content": "hello", "lines": 1}), ("1", {"ok": True}), ("", {"found": []})]
)
def test_structured_content_that_says_more_or_something_else_stays(text: str, structured: Any) -> None:
    given = result({"type": "text", "text": text}, structuredContent=structured)
    assert chat(given)[0]["content"].endswith(json.dumps(structured))


def test_google_is_told_in_the_words_of_an_agents_run() -> None:
    given = result(TEXT, structuredContent={"text": "Hello."})
    assert answered(given) == ToolReturnPart("find", "Hello.", "g1").model_response_object()


def test_an_interface_or_a_place_that_there_is_not_is_refused() -> None:
    with pytest.raises(UsageError, match="chats"):
        result(TEXT).to_openai("c1", api="chats")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="within"):
        result(TEXT).to_google("find", media="within")  # type: ignore[arg-type]


def test_structured_content_that_says_more_than_the_text_stands_beside_it() -> None:
    given = result(TEXT, structuredContent={"n": 1})
    assert chat(given)[0]["content"] == 'Hello.\n{"n": 1}'
    assert answered(given) == {"return_value": 'Hello.\n{"n": 1}'}


def test_google_never_gets_a_reference_that_it_would_take_for_its_own() -> None:
    given = result(structuredContent={"schema": {"$ref": "#/$defs/a"}})
    assert answered(given) == {"return_value": '{"schema": {"$ref": "#/$defs/a"}}'}


def test_a_failure_is_said_where_each_provider_looks_for_it() -> None:
    given = result({"type": "text", "text": "No such file."}, isError=True)
    assert chat(given)[0]["content"] == responses(given) == "The tool failed:\nNo such file."
    assert anthropic(given) == {
        "type": "tool_result",
        "tool_use_id": "u1",
        "content": "No such file.",
        "is_error": True,
    }
    assert google(given)[0]["parts"][0]["functionResponse"]["response"] == {"error": "No such file."}


@pytest.mark.parametrize("content", [[], [{"type": "text", "text": "  "}]])
@pytest.mark.parametrize("failed", [True, False])
def test_no_message_is_empty(content: list[Any], *, failed: bool) -> None:
    given = result(*content, isError=failed)
    assert results.NO_OUTPUT in chat(given)[0]["content"]
    assert results.NO_OUTPUT in responses(given)
    assert anthropic(given)["content"] == results.NO_OUTPUT
    assert answered(given) == {"error" if failed else "return_value": results.NO_OUTPUT}


@pytest.mark.parametrize(
    ("block", "words"),
    [
        ({**IMAGE, "mimeType": "image/svg+xml"}, "(4 bytes, image/svg+xml, which cannot be shown.)"),
        ({**IMAGE, "mimeType": ""}, "(4 bytes, of an unknown kind, which cannot be shown.)"),
        (
            {"type": "resource", "resource": {"uri": "x:y", "blob": PDF}},
            "x:y:\n(4 bytes of x:y, of an unknown kind, which",
        ),
        ({"type": "resource", "resource": {"uri": "x:y"}}, '{"type": "resource", "resource": {"uri": "x:y"}}'),
        ({"type": "image", "data": "?", "mimeType": "image/png"}, '{"type": "image", "data": "?"'),
        ("just text", '{"value": "just text"}'),
    ],
)
def test_what_cannot_be_shown_is_said(block: Any, words: str) -> None:
    assert chat(result(block))[0]["content"].startswith(words)
    assert anthropic(result(block))["content"].startswith(words)


def test_a_result_of_a_form_that_is_not_known_is_said_as_it_came() -> None:
    assert chat(read_result(b'{"toolResult": 7}'))[0]["content"] == '{"toolResult": 7}'
    assert chat(read_result(b"[1]"))[0]["content"] == '{"value": [1]}'


def test_other_names_of_a_media_type_are_known() -> None:
    (answer,) = google(result({**IMAGE, "data": JPEG, "mimeType": "image/JPG; q=1"}))
    assert answer["parts"][0]["functionResponse"]["parts"][0]["inlineData"]["mimeType"] == "image/jpeg"


def test_answers_to_several_calls_stand_together_before_anything_else() -> None:
    one, other = result(IMAGE), result(AUDIO, TEXT)
    asked = results.together([one.to_openai("c1"), other.to_openai("c2")])
    assert [(message["role"], message.get("tool_call_id")) for message in asked] == [
        ("tool", "c1"),
        ("tool", "c2"),
        ("user", None),
    ]
    contents = results.together([other.to_google("b", "g2"), one.to_google("a", "g1")])
    assert [part["functionResponse"]["id"] for part in contents[0]["parts"]] == ["g2", "g1"]
    assert len(contents) == 2 and "inlineData" in contents[1]["parts"][1]
    items = results.together([one.to_openai("c1", api="responses"), other.to_openai("c2", api="responses")])
    assert [item["call_id"] for item in items] == ["c1", "c2"]


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("image/png", b"\x89PNG\r\n\x1a\n"),
        ("image/jpeg", b"\xff\xd8\xff\xe0"),
        ("image/gif", b"GIF89a"),
        ("image/webp", b"RIFF\n\n\n\nWEBPVP8 "),
        ("image/heic", b"\0\0\0\x18ftypheic"),
        ("application/pdf", b"\n\n%PDF-1.7"),
        ("audio/wav", b"RIFF\0\0\0\0WAVEfmt "),
        ("audio/mpeg", b"\xff\xfb\x90"),
        ("audio/mpeg", b"ID3\4"),
        ("audio/aiff", b"FORM\0\0\0\0AIFF"),
        ("audio/aac", b"\xff\xf1P"),
        ("audio/ogg", b"OggS\0"),
        ("audio/flac", b"fLaC\0"),
    ],
)
def test_media_are_what_their_bytes_say(kind: str, data: bytes) -> None:
    block = {"type": "image", "mimeType": kind}
    real = result({**block, "data": base64.b64encode(data).decode()})
    assert results.pieces(real, frozenset({kind})) == [results.MediaPiece(data=data, media_type=kind)]
    for false in (b"", b"<html>", data[1:]):
        page = result({**block, "data": base64.b64encode(false).decode()})
        (words,) = results.pieces(page, frozenset({kind}))
        if kind != "application/pdf" or b"%PDF" not in false:
            assert words == f"({len(false)} bytes, said to be {kind}, but something else, which cannot be shown.)"


def test_a_result_whose_content_is_a_text_is_that_text() -> None:
    given = read_result(b'{"content": "the real answer"}')
    assert given.text == chat(given)[0]["content"] == "the real answer"
    assert given.raw == {"content": "the real answer"}


@pytest.mark.parametrize("number", [b"1" + b"0" * 400 + b".5", b"9" * 6000, b"1e999"])
def test_a_result_that_no_program_can_hold_is_a_tools_error(number: bytes) -> None:
    answer = ServerAnswer(result=b'{"content": [], "structuredContent": {"n": ' + number + b"}}")
    with pytest.raises(ToolError, match="cannot be read"):
        read_answer(answer)
