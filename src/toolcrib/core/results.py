"""A tool's result as content blocks, and as a message for each provider.

In: the raw bytes of an MCP result. Out: a `Result` with its `blocks`, and JSON-safe messages for OpenAI's two APIs,
Anthropic's and Google's. Nothing is lost: `raw` has everything, content that a tool message cannot hold follows in a
user message, and content that the provider does not accept is described in text. `content` defines the blocks.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self, get_args

import msgspec

from toolcrib.core.content import (
    AudioBlock,
    Block,
    ImageBlock,
    OtherBlock,
    ResourceBlock,
    ResourceLinkBlock,
    TextBlock,
    has_media_type,
    read_block,
)
from toolcrib.errors import ToolcribError, ToolError, UsageError
from toolcrib.formats.definition import Api, refuse_unknown_api
from toolcrib.run_events import failure_in
from toolcrib.servers.model import ServerAnswer

MediaPlace = Literal["inside", "after"]

NO_OUTPUT = "(The tool returned no output.)"
"""Providers reject an empty text."""
TOO_DEEP = "(The tool's result is nested too deeply to show.)"
FAILED = "The tool failed:"
"""For APIs without a field for errors."""

_IMAGES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
_PDF = frozenset({"application/pdf"})
OPENAI = ANTHROPIC = _IMAGES | _PDF
"""Media types that are sent unchanged. Any other type makes the provider reject the whole conversation."""
GOOGLE = (_IMAGES - {"image/gif"}) | _PDF
"""Inside the response to a call."""
GOOGLE_AFTER = frozenset(
    {"image/heic", "image/heif", "audio/wav", "audio/mpeg", "audio/aiff", "audio/aac", "audio/ogg", "audio/flac"}
)
"""In a separate message."""
_KNOWN = frozenset({"content", "structuredContent", "isError", "_meta", "resultType"})
_SAME = {"image/jpg": "image/jpeg", "audio/mp3": "audio/mpeg", "audio/x-wav": "audio/wav", "audio/wave": "audio/wav"}


@dataclass(frozen=True, kw_only=True)
class MediaPiece:
    """Bytes of a media type that the provider accepts."""

    data: bytes
    media_type: str
    uri: str = ""

    @property
    def base64(self) -> str:
        return base64.b64encode(self.data).decode()

    @property
    def url(self) -> str:
        return f"data:{self.media_type};base64,{self.base64}"

    @property
    def file_name(self) -> str:
        ending = f".{self.media_type.rpartition('/')[2]}"
        name = self.uri.rstrip("/").rpartition("/")[2] or "file"
        return name if name.endswith(ending) else name + ending


Piece = str | MediaPiece


def pieces(result: Result, taken: frozenset[str]) -> list[Piece]:
    """The whole result, in order: adjacent texts joined, and media of the accepted types."""
    found = [piece for block in result.blocks for piece in _of(block, taken)]
    if result.structured is not None and not _is_in_blocks(result):
        found.append(_json(result.structured))
    if not found and (unknown := {key: value for key, value in result.raw.items() if key not in _KNOWN}):
        found.append(_json(unknown))
    return _joined(found)


def to_openai(result: Result, call_id: str, *, api: Api = "chat") -> list[dict[str, Any]]:
    refuse_unknown_api(api)
    found = pieces(result, OPENAI)
    if result.is_error:
        found = _joined([FAILED, *(found or [NO_OUTPUT])])
    if api == "responses":
        output = _only_text(found) or [_responses_part(piece) for piece in found]
        return [{"type": "function_call_output", "call_id": call_id, "output": output}]
    media = [piece for piece in found if isinstance(piece, MediaPiece)]
    text = "\n".join(piece if isinstance(piece, str) else _pointed(piece) for piece in found) or NO_OUTPUT
    answer: list[dict[str, Any]] = [{"role": "tool", "tool_call_id": call_id, "content": text}]
    if media:
        intro = {"type": "text", "text": f"Other output of call {call_id}:"}
        answer.append({"role": "user", "content": [intro, *map(_chat_part, media)]})
    return answer


def to_anthropic(result: Result, tool_use_id: str) -> dict[str, Any]:
    found = pieces(result, ANTHROPIC)
    block = {
        "type": "tool_result",
        "tool_use_id": tool_use_id,
        "content": _only_text(found) or [_anthropic_part(piece) for piece in found],
    }
    return {**block, "is_error": True} if result.is_error else block


def to_google(
    result: Result, name: str, call_id: str | None = None, *, media: MediaPlace = "inside"
) -> list[dict[str, Any]]:
    """`name` is the declared name of the function. Models before Gemini 3 accept media only after the response."""
    if media not in get_args(MediaPlace):
        raise UsageError(f"media cannot be {media!r}.", remedy='Use "inside" or "after".')
    found = pieces(result, GOOGLE | GOOGLE_AFTER)
    files = [piece for piece in found if isinstance(piece, MediaPiece)]
    within = [file for file in files if file.media_type in GOOGLE and media == "inside"]
    after = [file for file in files if file not in within]
    text = "\n".join(piece if isinstance(piece, str) else _pointed(piece) for piece in found) or NO_OUTPUT
    # The same keys as in `run_agent`'s requests. JSON stays text, because Google would interpret every `$ref` in it.
    response: dict[str, Any] = {"name": name, "response": {"error" if result.is_error else "return_value": text}}
    if call_id is not None:
        response["id"] = call_id
    if within:
        response["parts"] = [{"inlineData": _blob(file)} for file in within]
    contents: list[dict[str, Any]] = [{"role": "user", "parts": [{"functionResponse": response}]}]
    if after:
        intro = {"text": f"Other output of {name}:"}
        contents.append({"role": "user", "parts": [intro, *({"inlineData": _blob(file)} for file in after)]})
    return contents


def together(answers: Iterable[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The answers to several calls of one turn, in the order that OpenAI and Google require: all answers to calls
    before anything else, for Google in one content."""
    messages = [message for answer in answers for message in answer]
    first = [message for message in messages if not _is_besides(message)]
    besides = [message for message in messages if _is_besides(message)]
    if first and "parts" in first[0]:
        first = [{"role": "user", "parts": [part for content in first for part in content["parts"]]}]
    return first + besides


def _is_besides(message: Mapping[str, Any]) -> bool:
    return message.get("role") == "user" and not any("functionResponse" in part for part in message.get("parts", ()))


def _of(block: Block, taken: frozenset[str]) -> Iterator[Piece]:
    match block:
        case TextBlock(text=text):
            yield text
        case ImageBlock(data=data, media_type=kind) | AudioBlock(data=data, media_type=kind):
            yield _media(data, kind, "", taken)
        case ResourceBlock(uri=uri, text=str(text)):
            yield f"{uri}:\n{text}"
        case ResourceBlock(uri=uri, blob=bytes(blob), media_type=kind):
            yield f"{uri}:"
            yield _media(blob, kind or "", uri, taken)
        case _:
            yield _json(block.raw)


def _media(data: bytes, kind: str, uri: str, taken: frozenset[str]) -> Piece:
    kind = kind.partition(";")[0].strip().lower()
    kind = _SAME.get(kind, kind)
    if kind in taken and has_media_type(kind, data):
        return MediaPiece(data=data, media_type=kind, uri=uri)
    label = f"declared as {kind} but invalid" if kind in taken else kind or "of unknown type"
    return f"({len(data)} bytes{f' of {uri}' if uri else ''}, {label}, cannot be shown.)"


def _is_in_blocks(result: Result) -> bool:
    """Whether the blocks already contain the structured content, or its only value: most servers send both."""
    if not result.blocks:
        return False
    texts = [block.text for block in result.blocks if isinstance(block, TextBlock)]
    value = result.structured
    if any(_is(text, value) for text in texts):
        return True
    while isinstance(value, Mapping) and len(value) == 1:
        (value,) = value.values()
        if value == result.raw.get("content") or _is("\n".join(texts), value):
            return True
        if isinstance(value, list) and len(value) == len(texts) and all(map(_is, texts, value)):
            return True
    return False


def _is(text: str, value: Any) -> bool:
    """Whether the text equals the value or its JSON."""
    if isinstance(value, str) and text.strip() == value.strip():
        return True
    try:
        # Not with ==, because 1 == True.
        return json.dumps(json.loads(text), sort_keys=True) == json.dumps(value, sort_keys=True)
    except (ValueError, RecursionError):
        return False


def _joined(found: Iterable[Piece]) -> list[Piece]:
    joined: list[Piece] = []
    for piece in found:
        if isinstance(piece, MediaPiece):
            joined.append(piece)
        elif piece.strip():
            if joined and isinstance(last := joined[-1], str):
                joined[-1] = f"{last}\n{piece}"
            else:
                joined.append(piece)
    return joined


def _only_text(found: list[Piece]) -> str:
    """The text if there is nothing else, otherwise ""."""
    if not found:
        return NO_OUTPUT
    return found[0] if len(found) == 1 and isinstance(found[0], str) else ""


def _pointed(media: MediaPiece) -> str:
    return f"({media.media_type}, attached.)"


def _responses_part(piece: Piece) -> dict[str, Any]:
    if isinstance(piece, str):
        return {"type": "input_text", "text": piece}
    if piece.media_type in _IMAGES:
        return {"type": "input_image", "image_url": piece.url, "detail": "auto"}
    return {"type": "input_file", "filename": piece.file_name, "file_data": piece.url}


def _chat_part(media: MediaPiece) -> dict[str, Any]:
    if media.media_type in _IMAGES:
        return {"type": "image_url", "image_url": {"url": media.url}}
    return {"type": "file", "file": {"filename": media.file_name, "file_data": media.url}}


def _anthropic_part(piece: Piece) -> dict[str, Any]:
    if isinstance(piece, str):
        return {"type": "text", "text": piece}
    source = {"type": "base64", "media_type": piece.media_type, "data": piece.base64}
    return {"type": "image" if piece.media_type in _IMAGES else "document", "source": source}


def _blob(media: MediaPiece) -> dict[str, str]:
    return {"mimeType": media.media_type, "data": media.base64}


def _json(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError:
        return TOO_DEEP


__all__ = [
    "AudioBlock",
    "Block",
    "ImageBlock",
    "OtherBlock",
    "ResourceBlock",
    "ResourceLinkBlock",
    "Result",
    "TextBlock",
    "read_answer",
    "read_result",
]


@dataclass(frozen=True, kw_only=True)
class Result:
    """A tool's result: `text` for people, `to_openai`, `to_anthropic`, `to_google` for a model."""

    blocks: tuple[Block, ...]
    structured: Any
    """The structured content, None if there is none."""
    is_error: bool
    """Whether the tool reported a failure."""
    raw: Mapping[str, Any]
    """The whole result as the server sent it."""

    @classmethod
    def failed(cls, why: ToolcribError | str) -> Self:
        """The result for a model if a call could not be made; `why` is usually the exception of `call`."""
        block = {"type": "text", "text": why.text() if isinstance(why, ToolcribError) else why}
        raw = {"content": [block], "isError": True}
        return cls(blocks=(read_block(block),), structured=None, is_error=True, raw=raw)

    @property
    def failure(self) -> str:
        """A short text if the call worked but the command or test it ran failed, for instance with an exit code."""
        return failure_in(self.raw.get("_meta"))

    @property
    def text(self) -> str:
        """The text blocks, joined."""
        return "\n".join(block.text for block in self.blocks if isinstance(block, TextBlock))

    def to_openai(self, call_id: str, *, api: Api = "chat") -> list[dict[str, Any]]:
        """The messages that answer this call: for Chat Completions, or the items for Responses."""
        return to_openai(self, call_id, api=api)

    def to_anthropic(self, tool_use_id: str) -> dict[str, Any]:
        """The `tool_result` block that answers this call; the blocks of a turn go into one user message."""
        return to_anthropic(self, tool_use_id)

    def to_google(self, name: str, call_id: str | None = None, *, media: MediaPlace = "inside") -> list[dict[str, Any]]:
        """The contents that answer this call; combine those of several calls with `together`."""
        return to_google(self, name, call_id, media=media)


def read_answer(answer: ServerAnswer) -> Result:
    """Raises `ToolError` if the server answered with an error."""
    return _result(decoded_result(answer))


def read_result(result: bytes) -> Result:
    """Raises `ToolError` if the result cannot be decoded."""
    return read_answer(ServerAnswer(result=result))


def decoded_result(answer: ServerAnswer) -> dict[str, Any]:
    """Raises `ToolError` if the server answered with an error, or if the result cannot be decoded."""
    if answer.result is not None:
        raw = _decoded(answer.result)
        return raw if isinstance(raw, dict) else {"content": [], "value": raw}
    error = _decoded(answer.error or b"{}")
    message = error.get("message") if isinstance(error, dict) else None
    what = f"The server answered with an error: {message or 'it gave no reason'}"
    raise ToolError(what, remedy=_pages_to_open(error), data={"error": error})


def _pages_to_open(error: Any) -> str:
    """The pages that a server wants opened before the call (error -32042)."""
    try:
        pages = msgspec.convert(error["data"]["elicitations"], list[_Page])
    except (LookupError, TypeError, msgspec.ValidationError):
        return ""
    shown = (f"{page.url} ({page.message})" if page.message else page.url for page in pages)
    return f"Open this first if you trust it, then call again: {'; '.join(shown)}" if pages else ""


class _Page(msgspec.Struct):
    url: str
    message: str = ""


def _result(raw: dict[str, Any]) -> Result:
    content = raw.get("content")
    # Against the MCP specification, but some servers send a string.
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    blocks = blocks if isinstance(blocks, list) else []
    return Result(
        blocks=tuple(read_block(block) for block in blocks),
        structured=raw.get("structuredContent"),
        is_error=raw.get("isError") is True,
        raw=raw,
    )


def _decoded(raw: bytes) -> Any:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise ToolError(
            f"The server's answer cannot be read: {error}.", remedy="Report this to the server's author."
        ) from error
