"""The thin listing: each tool's definition at the cheapest level that is proven to suffice for calls.

In: a tool, a public name. Out: its definition as bytes. A level suffices if arguments made from what it shows are
accepted by the whole schema (`examples`). Levels and definitions are kept for as long as the tool: about half a
millisecond for each, once. `shrink` makes the schema and `summary` the descriptions.
"""

from __future__ import annotations

import enum
import re
from itertools import islice
from operator import itemgetter
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from toolcrib.audit.row import estimate_tokens
from toolcrib.catalog.schema_check import compile_schema
from toolcrib.catalog.tool import Tool
from toolcrib.listing.examples import suffices
from toolcrib.listing.shrink import Note, ShrunkSchema, shrunk
from toolcrib.listing.summary import first_sentence, one_line, sentences, shortened

SENTENCE = 160
"""Characters of a description at the level `BRIEF`."""
PARAGRAPH = 600
"""Characters of a description at the level `DESCRIBED`."""
NOTE = 100
"""Characters of a property's description."""
SHARE = 0.12
"""Notes are added up to this share of the whole definition's tokens."""
TELLING_SHARE = 0.3
"""The same, for what a caller must know and cannot guess."""

_MAX_NOTES = 400
_SENTENCES = 4
"""Of a property's description that are looked at."""
_NOTE_TOKENS = 6
"""For `"description":""`."""
_TELLING = re.compile(
    r"[0-9`'\"{}\[\]<>=]|\w_\w|\b(?:e\.g|such as|format|separated|must|absolute|relative|epoch|seconds|milliseconds"
    r"|timestamp|json|iso|ur[il]|uuid|arn|valid values|one of|markdown|html|regex|glob|dot notation)\b",
    re.IGNORECASE,
)
"""What a name and a type cannot say: examples, forms, limits, other tools."""
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|[^\W\d_a-zA-Z]+")
_PLAIN = frozenset(
    re.findall(
        r"\w+",
        "a an and the of to for from in on with by as is be this that it its which will name id ids identifier key "
        "value number list array string text object target unique specific given use used optional required",
    )
)
"""Words that add nothing to a property's name."""


class Level(enum.IntEnum):
    """What is shown of a tool, cheapest first."""

    BRIEF = 1
    """The first sentence; each parameter's type, values and limits; the most telling notes as far as they are cheap."""
    DESCRIBED = 2
    """Also notes on all parameters, defaults, and more of the description."""
    FULL = 3
    """The server's whole definition."""


_kept: WeakKeyDictionary[Tool, dict[Level, bytes | None]] = WeakKeyDictionary()
"""Definitions without their name. None for a level that does not suffice."""


def level_of(tool: Tool) -> Level:
    """The cheapest level that suffices."""
    return next((level for level in Level if _part(tool, level) is not None), Level.FULL)


def thin_definition(tool: Tool, name: str, *, at_least: Level = Level.BRIEF) -> bytes:
    """The definition under a public name."""
    for level in Level:
        if level >= at_least and (part := _part(tool, level)) is not None:
            return b'{"name":' + msgspec.json.encode(name) + b"," + part
    return tool.render(name)


def _part(tool: Tool, level: Level) -> bytes | None:
    parts = _kept.setdefault(tool, {Level.FULL: None})
    if level not in parts:
        try:
            parts[level] = _made(tool, level)
        except (ValueError, RecursionError, OverflowError, TypeError, msgspec.MsgspecError):
            # A schema that cannot be used, or cannot be shortened safely.
            parts[level] = None
    return parts[level]


def _made(tool: Tool, level: Level) -> bytes | None:
    # Decoded here, because `Tool` would keep the schemas of all tools in memory.
    given = {key: msgspec.json.decode(tool.shown.fields[key]) for key in _READ if key in tool.shown.fields}
    whole = given.get("inputSchema")
    if not isinstance(whole, dict):
        return None
    # Also proves that each keyword has the form that `shrink` and `examples` expect.
    check = compile_schema(whole)
    full = tool.render("")
    fields = _fields(given, level, estimate_tokens(full))
    if tool.shown.task_support:
        # As in `Tool.render`.
        fields["execution"] = {"taskSupport": "optional"}
    part = msgspec.json.encode(fields)[1:]
    enough = len(part) < len(full) and suffices(fields["inputSchema"], whole, check)
    return part if enough else None


_READ = ("title", "description", "inputSchema", "annotations", "_meta")


def _fields(given: dict[str, Any], level: Level, full_tokens: int) -> dict[str, Any]:
    made = shrunk(given["inputSchema"], rich=level is Level.DESCRIBED)
    fields: dict[str, Any] = {}
    text = given.get("description") or given.get("title")
    if isinstance(text, str) and (short := _description(text, level)):
        fields["description"] = short
    fields["inputSchema"] = made.schema
    if isinstance(annotations := given.get("annotations"), dict) and (hints := _hints(annotations)):
        fields["annotations"] = hints
    if isinstance(meta := given.get("_meta"), dict) and (app := {key: meta[key] for key in _APP if key in meta}):
        fields["_meta"] = app
    shares = (SHARE, TELLING_SHARE) if level is Level.BRIEF else (1.0, 1.0)
    _add_notes(made, estimate_tokens(msgspec.json.encode(fields)), *(share * full_tokens for share in shares))
    return fields


_APP = ("ui", "ui/resourceUri")
"""The link to the tool's app, for the client that shows it."""


def _description(text: str, level: Level) -> str:
    if level is Level.BRIEF:
        return first_sentence(text, SENTENCE, least=30)
    return shortened(one_line(text[: 2 * PARAGRAPH]), PARAGRAPH)


def _hints(annotations: dict[str, Any]) -> dict[str, bool]:
    """The hints that differ from the protocol's defaults. The others say nothing about a tool that only reads."""
    hints = {name: annotations[name] for name, usual in _USUAL_HINTS.items() if annotations.get(name) is (not usual)}
    if "readOnlyHint" in hints:
        hints.pop("destructiveHint", None)
        hints.pop("idempotentHint", None)
    return hints


_USUAL_HINTS = {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": False, "openWorldHint": True}


def _add_notes(made: ShrunkSchema, tokens: float, limit: float, telling_limit: float) -> None:
    """The most useful notes that keep the definition, which has so many tokens without them, below a limit."""
    worded = filter(None, map(_worded, made.notes[:_MAX_NOTES]))
    for (optional, plain, _), note, text in sorted(worded, key=itemgetter(0)):
        more = tokens + estimate_tokens(text.encode()) + _NOTE_TOKENS
        if more <= (limit if optional or plain else telling_limit):
            tokens = more
            note.place["description"] = text


def _worded(note: Note) -> tuple[tuple[bool, bool, int], Note, str] | None:
    """The note's most telling sentence with its rank. None if the property's name says as much."""
    first = ""
    for sentence in islice(sentences(note.text), _SENTENCES):
        first = first or sentence
        if telling := _TELLING.search(sentence) is not None:
            break
    else:
        telling, sentence = False, first
    if not telling and _words(sentence) <= _words(note.name) | _PLAIN:
        return None
    values = "enum" in note.place or "const" in note.place or note.place.get("type") == "boolean"
    return (not note.required, values or not telling, note.depth), note, shortened(sentence, NOTE)


def _words(text: str) -> set[str]:
    return {word.lower() for word in _WORDS.findall(text)}
