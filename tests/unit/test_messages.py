"""Tool results as messages for OpenAI, Anthropic and Google, validated with the SDKs' own types."""

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
UNTYPED = {"type": "resource", "resource": {"uri": "x:y", "blob": PDF}}
LINK = {"type": "resource_link", "uri": "file:///b.txt", "name": "b", "description": "Another."}
NEW = {"type": "hologram", "depth": 3}
EVERYTHING = [TEXT, IMAGE, AUDIO, FILE, BLOB, LINK, NEW]
TEXT_AFTER = f"{json.dumps(LINK)}\n{json.dumps(NEW)}"
NOT_SHOWN = "(12 bytes, audio/wav, cannot be shown.)"

# Module-level, because validated lists are read lazily.
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


def assert_text(given: Result, text: str) -> None:
    """All providers get exactly this text."""
    assert chat(given) == [{"role": "tool", "tool_call_id": "c1", "content": text}]
    assert responses(given) == anthropic(given)["content"] == text
    assert answered(given) == {"return_value": text}


@pytest.mark.req("ENG-9")
def test_openai_chat_gets_the_text_and_then_the_media_in_a_user_message() -> None:
    answer, after = chat(result(*EVERYTHING))
    assert answer == {
        "role": "tool",
        "tool_call_id": "c1",
        "content": f"Hello.\n(image/png, attached.)\n{NOT_SHOWN}\nfile:///a.txt:\nIn a.\nfile:///r.pdf:\n"
        f"(application/pdf, attached.)\n{TEXT_AFTER}",
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
        {"type": "input_text", "text": TEXT_AFTER},
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
            {"type": "text", "text": TEXT_AFTER},
        ],
    }


@pytest.mark.req("ENG-9")
def test_google_gets_media_inside_the_response_and_audio_after_it() -> None:
    answer, after = google(result(*EVERYTHING))
    response = answer["parts"][0]["functionResponse"]
    assert (answer["role"], response["name"], response["id"]) == ("user", "find", "g1")
    assert response["response"]["return_value"].startswith("Hello.\n(image/png, attached.)\n(audio/wav, att")
    assert response["response"]["return_value"].endswith(TEXT_AFTER)
    assert response["parts"] == [
        {"inlineData": {"mimeType": "image/png", "data": PNG}},
        {"inlineData": {"mimeType": "application/pdf", "data": PDF}},
    ]
    assert after["parts"][1:] == [{"inlineData": {"mimeType": "audio/wav", "data": WAV}}]


def test_older_models_of_google_get_all_media_after_the_response() -> None:
    answer, after = google(result(IMAGE), media="after")
    assert "parts" not in answer["parts"][0]["functionResponse"]
    assert after["parts"][1:] == [{"inlineData": {"mimeType": "image/png", "data": PNG}}]


@pytest.mark.req("ENG-9")
@pytest.mark.parametrize(
    ("texts", "structured", "text"),
    [
        (["Hello.", "And more."], None, "Hello.\nAnd more."),
        ([], {"n": [1, None]}, '{"n": [1, null]}'),
        ([], {"schema": {"$ref": "#/$defs/a"}}, '{"schema": {"$ref": "#/$defs/a"}}'),
        (['{ "n": 1 }'], {"n": 1}, '{ "n": 1 }'),
        (["hello"], {"content": "hello"}, "hello"),
        (["hello\n"], {"result": {"content": "hello"}}, "hello\n"),
        (["a", "b"], {"content": "a\nb"}, "a\nb"),
        (["a", "b"], {"result": ["a", "b"]}, "a\nb"),
        (['{"x": 1, "y": 2}', "3"], {"result": [{"y": 2, "x": 1}, 3]}, '{"x": 1, "y": 2}\n3'),
        (["5"], {"result": 5}, "5"),
        (["hello"], {"content": [{"type": "text", "text": "hello"}]}, "hello"),
        (["Hello."], {"n": 1}, 'Hello.\n{"n": 1}'),
        (["hello"], {"content": "hello", "lines": 1}, 'hello\n{"content": "hello", "lines": 1}'),
        (["1"], {"ok": True}, '1\n{"ok": true}'),
        ([""], {"found": []}, '{"found": []}'),
    ],
)
def test_structured_content_is_added_unless_the_text_already_has_it(
    texts: list[str], structured: Any, text: str
) -> None:
    fields = {} if structured is None else {"structuredContent": structured}
    assert_text(result(*({"type": "text", "text": one} for one in texts), **fields), text)


def test_a_picture_in_the_structured_content_is_not_repeated_as_text() -> None:
    assert anthropic(result(IMAGE, structuredContent={"content": [IMAGE]})) == anthropic(result(IMAGE))


def test_googles_response_has_the_same_form_as_in_a_run() -> None:
    given = result(TEXT, structuredContent={"text": "Hello."})
    assert answered(given) == ToolReturnPart("find", "Hello.", "g1").model_response_object()


def test_unknown_apis_and_media_places_are_refused() -> None:
    with pytest.raises(UsageError, match="chats"):
        result(TEXT).to_openai("c1", api="chats")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="within"):
        result(TEXT).to_google("find", media="within")  # type: ignore[arg-type]


def test_an_error_is_marked_in_each_providers_way() -> None:
    given = result({"type": "text", "text": "No such file."}, isError=True)
    assert chat(given)[0]["content"] == responses(given) == "The tool failed:\nNo such file."
    block = {"type": "tool_result", "tool_use_id": "u1", "content": "No such file.", "is_error": True}
    assert anthropic(given) == block
    assert answered(given) == {"error": "No such file."}


@pytest.mark.parametrize("content", [[], [{"type": "text", "text": "  "}]])
@pytest.mark.parametrize("failed", [True, False])
def test_an_empty_result_is_explained(content: list[Any], *, failed: bool) -> None:
    given = result(*content, isError=failed)
    assert results.NO_OUTPUT in chat(given)[0]["content"]
    assert results.NO_OUTPUT in responses(given)
    assert anthropic(given)["content"] == results.NO_OUTPUT
    assert answered(given) == {"error" if failed else "return_value": results.NO_OUTPUT}


@pytest.mark.parametrize(
    ("block", "text"),
    [
        ({**IMAGE, "mimeType": "image/svg+xml"}, "(4 bytes, image/svg+xml, cannot be shown.)"),
        ({**IMAGE, "mimeType": ""}, "(4 bytes, of unknown type, cannot be shown.)"),
        (
            {"type": "resource", "resource": {"uri": "x:y", "blob": PDF}},
            "x:y:\n(4 bytes of x:y, of unknown type, cannot",
        ),
        ({"type": "resource", "resource": {"uri": "x:y"}}, '{"type": "resource", "resource": {"uri": "x:y"}}'),
        ({"type": "image", "data": "?", "mimeType": "image/png"}, '{"type": "image", "data": "?"'),
        ("just text", '{"value": "just text"}'),
    ],
)
def test_content_that_cannot_be_shown_is_described(block: Any, text: str) -> None:
    assert chat(result(block))[0]["content"].startswith(text)
    assert anthropic(result(block))["content"].startswith(text)


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b'{"toolResult": 7}', '{"toolResult": 7}'),
        (b"[1]", '{"value": [1]}'),
        (b'{"content": "the real answer"}', "the real answer"),
    ],
)
def test_a_result_of_an_unknown_form_is_sent_unchanged(raw: bytes, text: str) -> None:
    given = read_result(raw)
    assert chat(given)[0]["content"] == text
    assert b"content" not in raw or (given.text, given.raw) == (text, {"content": text})


def test_aliases_of_a_media_type_are_known() -> None:
    (answer,) = google(result({**IMAGE, "data": JPEG, "mimeType": "image/JPG; q=1"}))
    assert answer["parts"][0]["functionResponse"]["parts"][0]["inlineData"]["mimeType"] == "image/jpeg"


def test_results_of_several_calls_come_together_before_the_media() -> None:
    one, other = result(IMAGE), result(AUDIO, TEXT)
    messages = results.together([one.to_openai("c1"), other.to_openai("c2")])
    ids = [(message["role"], message.get("tool_call_id")) for message in messages]
    assert ids == [("tool", "c1"), ("tool", "c2"), ("user", None)]
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
def test_the_type_of_media_is_checked_against_their_bytes(kind: str, data: bytes) -> None:
    block = {"type": "image", "mimeType": kind}
    real = result({**block, "data": base64.b64encode(data).decode()})
    assert results.pieces(real, frozenset({kind})) == [results.MediaPiece(data=data, media_type=kind)]
    for false in (b"", b"<html>", data[1:]):
        page = result({**block, "data": base64.b64encode(false).decode()})
        (text,) = results.pieces(page, frozenset({kind}))
        if kind != "application/pdf" or b"%PDF" not in false:
            assert text == f"({len(false)} bytes, declared as {kind} but invalid, cannot be shown.)"


@pytest.mark.parametrize("number", [b"1" + b"0" * 400 + b".5", b"9" * 6000, b"1e999"])
def test_a_result_with_an_unreadable_number_is_a_tool_error(number: bytes) -> None:
    answer = ServerAnswer(result=b'{"content": [], "structuredContent": {"n": ' + number + b"}}")
    with pytest.raises(ToolError, match="cannot be read"):
        read_answer(answer)


def test_an_error_that_demands_pages_says_which_to_open():
    pages = [{"url": "https://shop.example/pay", "message": "Pay"}, {"url": "https://shop.example/terms"}]
    error = {"code": -32042, "message": "Not yet", "data": {"elicitations": pages}}
    with pytest.raises(ToolError) as caught:
        read_answer(ServerAnswer(error=json.dumps(error).encode()))
    assert caught.value.remedy.endswith("https://shop.example/pay (Pay); https://shop.example/terms")
    for data in ({}, [], {"elicitations": [{}]}, {"elicitations": 7}, None):
        with pytest.raises(ToolError) as caught:
            read_answer(ServerAnswer(error=json.dumps({**error, "data": data}).encode()))
        assert caught.value.remedy == ""
