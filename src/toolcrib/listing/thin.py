"""The thin listing: each tool's definition at the cheapest level that is proven to suffice for calls.

In: a tool, a public name. Out: its definition as bytes. A level suffices if arguments made from what it shows are
accepted by the whole schema (`examples`). Levels and definitions are kept for as long as the tool: about a fifth of a
millisecond for each, once. `shrink` makes the schema and `summary` the descriptions.
"""

from __future__ import annotations

import enum
import re
from typing import Any
from weakref import WeakKeyDictionary

import msgspec
from msgspec import Raw

from toolcrib.audit.row import estimate_tokens
from toolcrib.catalog.schema_check import compile_schema
from toolcrib.catalog.tool import ANY_OBJECT, Tool
from toolcrib.listing.examples import suffices
from toolcrib.listing.shrink import Note, ShrunkSchema, shrunk
from toolcrib.listing.summary import first_sentence, one_line, shortened

SENTENCE = 160
"""Characters of a description at the level `BRIEF`."""
PARAGRAPH = 600
"""Characters of a description at the level `DESCRIBED`."""
NOTE = 100
"""Characters of a property's description."""
SHARE = 0.27
"""Notes are added up to this share of the whole definition's tokens."""

_NOTE_TOKENS = 6
"""For `"description":""`."""
_TELLING = re.compile(r"[0-9`'\"{}\[\]<>=]|e\.g|such as|format|separated|must|absolute|relative|JSON|ISO|URL|URI|UUID")
"""What a name and a type cannot say: examples, forms, limits."""


class Level(enum.IntEnum):
    """What is shown of a tool, cheapest first."""

    BRIEF = 1
    """The first sentence; each parameter's type, values and limits; the most telling notes as far as they are cheap."""
    DESCRIBED = 2
    """Also notes on all parameters, defaults, and more of the description."""
    FULL = 3
    """The server's whole definition."""


class _Kept:
    """What was computed for a tool."""

    __slots__ = ("level", "parts")

    def __init__(self, level: Level, parts: dict[Level, bytes]) -> None:
        self.level = level
        self.parts = parts
        """The definitions without their name, from the first level that suffices."""


_kept: WeakKeyDictionary[Tool, _Kept] = WeakKeyDictionary()


def level_of(tool: Tool) -> Level:
    """The cheapest level that suffices."""
    return _computed(tool).level


def thin_definition(tool: Tool, name: str, *, at_least: Level = Level.BRIEF) -> bytes:
    """The definition under a public name."""
    kept = _computed(tool)
    level = max(kept.level, at_least)
    part = kept.parts.get(level)
    return tool.render(name) if part is None else b'{"name":' + msgspec.json.encode(name) + b"," + part


def _computed(tool: Tool) -> _Kept:
    found = _kept.get(tool)
    if found is None:
        found = _kept[tool] = _compute(tool)
    return found


def _compute(tool: Tool) -> _Kept:
    whole = tool.shown.input_schema
    if whole is ANY_OBJECT:
        # No schema, or one that Python cannot represent.
        return _Kept(Level.FULL, {})
    parts: dict[Level, bytes] = {}
    full = tool.render("")
    try:
        check = compile_schema(whole)
        for level in (Level.BRIEF, Level.DESCRIBED):
            fields = _fields(tool, level, estimate_tokens(full))
            part = msgspec.json.encode(fields)[1:]
            if len(part) < len(full) and (parts or suffices(fields["inputSchema"], whole, check)):
                parts[level] = part
    except (ValueError, RecursionError, OverflowError, TypeError):
        # A schema that cannot be used, or that could not be shortened safely.
        return _Kept(Level.FULL, {})
    return _Kept(min(parts, default=Level.FULL), parts)


def _fields(tool: Tool, level: Level, full_tokens: int) -> dict[str, Any]:
    made = shrunk(tool.shown.input_schema, rich=level is Level.DESCRIBED)
    fields: dict[str, Any] = {}
    if text := _description(tool, level):
        fields["description"] = text
    fields["inputSchema"] = made.schema
    if hints := _hints(tool.shown.annotations):
        fields["annotations"] = hints
    if tool.shown.task_support:
        # As in `Tool.render`.
        fields["execution"] = {"taskSupport": "optional"}
    if app := _app(tool.shown):
        fields["_meta"] = app
    budget = full_tokens if level is Level.DESCRIBED else SHARE * full_tokens
    _add_notes(made, budget - estimate_tokens(msgspec.json.encode(fields)))
    return fields


def _description(tool: Tool, level: Level) -> str:
    text = tool.shown.description
    if level is Level.BRIEF:
        return first_sentence(text, SENTENCE, least=30)
    return shortened(one_line(text), PARAGRAPH)


def _hints(annotations: dict[str, Any]) -> dict[str, bool]:
    """The hints that differ from the protocol's defaults. The others say nothing about a tool that only reads."""
    hints = {name: annotations[name] for name, usual in _USUAL_HINTS.items() if annotations.get(name) is (not usual)}
    if "readOnlyHint" in hints:
        hints.pop("destructiveHint", None)
        hints.pop("idempotentHint", None)
    return hints


_USUAL_HINTS = {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": False, "openWorldHint": True}


def _app(tool: Tool) -> dict[str, Any]:
    """The link to the tool's app, for the client that shows it."""
    if "_meta" not in tool.fields or not isinstance(meta := tool.decoded()["_meta"], dict):
        return {}
    return {key: meta[key] for key in ("ui", "ui/resourceUri") if key in meta}


def _add_notes(made: ShrunkSchema, budget: float) -> None:
    """The most useful notes that the budget allows."""
    for note in sorted(made.notes, key=_rank):
        text = first_sentence(note.text, NOTE, least=20)
        cost = estimate_tokens(text.encode()) + _NOTE_TOKENS
        if text and cost <= budget:
            budget -= cost
            note.place["description"] = text


def _rank(note: Note) -> tuple[bool, bool, int]:
    speaks_for_itself = "enum" in note.place or "const" in note.place or note.place.get("type") == "boolean"
    return not note.required, speaks_for_itself or not _TELLING.search(note.text[:400]), note.depth
