"""A tool in one line, for the answers to searches.

In: a tool, a public name. Out: `github_create_issue(owner: string, labels?: string[]) - Creates an issue.`
Everything in it comes from a server, so it is cut to a fixed length and kept on one line. Used by the search tools.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from toolcrib.audit.row import estimate_tokens
from toolcrib.catalog.schema_refs import SchemaDocument
from toolcrib.catalog.tool import Tool
from toolcrib.listing.summary import first_sentence, printable, shortened

MAX_TOKENS = 44
"""By estimate. Eight signatures are an answer of 400 tokens at most."""
_WITHOUT_DESCRIPTION = 34
"""Tokens for the name and the parameters, so that some remain for the description."""
_MAX_OPTIONAL = 3
"""Optional parameters shown; the others are in the definition."""
_MAX_NAME = 40
_MAX_VALUES = 4
_MAX_VALUES_LENGTH = 40
_MAX_DESCRIPTION = 90
_MAX_REFERENCES = 3
_MAX_NESTED = 3
"""Levels of alternatives and lists in a type: schemas can contain themselves."""
_REST = "…"


def signature(tool: Tool, name: str) -> str:
    schema = tool.shown.input_schema
    document = SchemaDocument(schema)
    properties = schema.get("properties")
    properties = properties if isinstance(properties, Mapping) else {}
    listed = schema.get("required")
    required = [one for one in listed if isinstance(one, str)] if isinstance(listed, list) else []
    named = frozenset(required)
    optional = [one for one in properties if one not in named]
    shown = [_parameter(f"{_name(one)}: ", properties.get(one), document, _name(one)) for one in required]
    shown += [_parameter(f"{_name(one)}?: ", properties[one], document) for one in optional[:_MAX_OPTIONAL]]
    parts: list[str] = []
    start = printable(name)
    room = _WITHOUT_DESCRIPTION - _tokens(start)
    for forms in shown:
        part = next((one for one in forms if _tokens(one) + 1 <= room), None)
        if part is None:
            break
        parts.append(part)
        room -= _tokens(part) + 1
    unknown = not shown and "properties" not in schema and schema.get("additionalProperties") is not False
    more = [_REST] if unknown or len(parts) < len(required) + len(optional) else []
    line = f"{start}({', '.join([*parts, *more])})"
    return f"{line} - {text}" if (text := _clause(tool, MAX_TOKENS - _tokens(line))) else line


def _parameter(start: str, schema: Any, document: SchemaDocument, *bare: str) -> list[str]:
    """The forms of a parameter, longest first."""
    kind = _type(schema, document)
    if kind not in {"object", "object[]"}:
        return [start + kind, *bare]
    target = _followed(schema, document)
    if kind == "object[]":
        target = _followed(target.get("items"), document)
    properties, listed = target.get("properties"), target.get("required")
    properties = properties if isinstance(properties, Mapping) else {}
    required = [one for one in listed if isinstance(one, str)] if isinstance(listed, list) else []
    inner = [f"{_name(one)}: {_type(properties.get(one), document)}" for one in required[:_MAX_VALUES]]
    inner += [_REST] if len(inner) < len({*properties, *required}) else []
    return [*([f"{start}{{{', '.join(inner)}}}{kind.removeprefix('object')}"] if inner else []), start + kind, *bare]


def _clause(tool: Tool, room: float) -> str:
    """The start of the description in the tokens that remain."""
    text = first_sentence(tool.shown.description, _MAX_DESCRIPTION, least=12)
    while text and _tokens(text) + 1 > room:
        fewer = shortened(text, max(len(text) * 4 // 5, 1))
        text = fewer if 12 < len(fewer) < len(text) else ""
    return text


def _type(schema: Any, document: SchemaDocument, nested: int = 0) -> str:
    """A schema as a short type, without the members of objects."""
    schema = _followed(schema, document)
    if not schema or nested > _MAX_NESTED:
        return "any"
    if "const" in schema:
        return _values([schema["const"]])
    if isinstance(values := schema.get("enum"), list) and values:
        return _values(values)
    for key in ("anyOf", "oneOf", "allOf"):
        if isinstance(branches := schema.get(key), list):
            real = [branch for branch in branches[:_MAX_VALUES] if branch != {"type": "null"}]
            kinds = [_type(branch, document, nested + 1) for branch in real]
            return "|".join(dict.fromkeys(kinds)) if 0 < len("|".join(kinds)) <= _MAX_VALUES_LENGTH else "any"
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = "|".join(one for one in kind[:_MAX_VALUES] if isinstance(one, str) and one != "null")
    if kind == "array":
        item = _type(schema.get("items"), document, nested + 1)
        return f"({item})[]" if "|" in item else f"{item}[]"
    return _name(kind) if isinstance(kind, str) and kind else "any"


def _followed(schema: Any, document: SchemaDocument) -> Mapping[str, Any]:
    for _ in range(_MAX_REFERENCES):
        if not isinstance(schema, Mapping) or "$ref" not in schema:
            break
        pointer = document.pointer(schema["$ref"])
        schema = None if pointer is None else document.at(pointer)
    return schema if isinstance(schema, Mapping) else {}


def _values(values: list[Any]) -> str:
    texts: list[str] = []
    for value in values[:_MAX_VALUES]:
        text = _name(value if isinstance(value, str) else json.dumps(value))
        if len("|".join([*texts, text])) > _MAX_VALUES_LENGTH:
            break
        texts.append(text)
    return "|".join([*texts, *([_REST] if len(texts) < len(values) else [])])


def _name(text: str) -> str:
    return shortened(printable(text[: _MAX_NAME * 2]), _MAX_NAME)


def _tokens(text: str) -> int:
    return estimate_tokens(text.encode(errors="replace"))
