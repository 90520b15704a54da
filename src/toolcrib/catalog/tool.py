"""One tool as its server described it, with the names it has here, and as the configuration's rules show it.

In: a definition as raw JSON. Out: `Tool`, whose fields stay the server's own bytes; only what is asked for is decoded.
A `ToolOverride` is what is shown in place of the server's own definition, with the way back for the arguments.
`snapshot` makes both; `listing`, `policy` and `calls` read them.
"""

from __future__ import annotations

import copy
import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
from msgspec import Raw

from toolcrib.catalog.names import Names
from toolcrib.config.model import ANNOTATIONS, NameStyle
from toolcrib.servers.param_headers import headers_of, marked_properties, without_annotations
from toolcrib.servers.wire import deeper_than

Undo = Callable[[dict[str, Any]], dict[str, Any]]
"""From the arguments as they were offered to those of what the offer was made of."""


@dataclass(frozen=True, kw_only=True)
class ToolOverride:
    name: str
    """In place of the server's own name, in every style."""
    fields: Mapping[str, Raw] = field(repr=False)
    """The definition that is shown."""
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By provider, for the offers that are made of the tool."""
    undo: tuple[Undo, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ArgumentRenames:
    """The way back of arguments that are shown under other names."""

    names: Mapping[str, str]
    """From the names that are shown."""
    gone: frozenset[str]
    """Names that nothing has any more. An argument is not taken under its old one as well: nothing in the schema says
    what it must be."""

    def __call__(self, given: dict[str, Any]) -> dict[str, Any]:
        return {self.names.get(name, name): value for name, value in given.items() if name not in self.gone}


def undo_arguments(undo: Iterable[Undo], given: Mapping[str, Any]) -> dict[str, Any]:
    """`undo` is in the order in which things were changed."""
    arguments = dict(given)
    for back in reversed(tuple(undo)):
        arguments = back(arguments)
    return arguments


def callers_arguments(undo: Iterable[Undo], given: Mapping[str, Any]) -> dict[str, str]:
    """Which of the arguments that `undo_arguments` gives are just what the caller gave, each with the caller's name of
    it. The others hold what the caller does not know, and may not be told."""
    own = {name: name for name in given}
    before = dict(given)
    try:
        for back in reversed(tuple(undo)):
            # One that changes what it gets would make both the same.
            after = back(copy.deepcopy(before))
            if isinstance(back, ArgumentRenames):
                own = {back.names.get(name, name): shown for name, shown in own.items() if name not in back.gone}
            else:
                own = {name: shown for name, shown in own.items() if name in after and after[name] == before[name]}
            before = after
    except RecursionError:
        return {}
    return own


def annotations_of(annotations: Mapping[str, Any]) -> dict[str, bool]:
    def claim(name: str, *, default: bool) -> bool:
        value = annotations.get(ANNOTATIONS[name])
        return value if isinstance(value, bool) else default

    # Nothing that only reads destroys, and it may be repeated.
    reads = claim("read_only", default=False)
    return {
        "read_only": reads,
        "destructive": claim("destructive", default=not reads),
        "idempotent": claim("idempotent", default=reads),
        "open_world": claim("open_world", default=True),
    }


log = logging.getLogger(__name__)

DEEPEST = 128
"""How deep a definition may nest: more than any real schema, less than what breaks a client's parser."""

ANY_OBJECT: dict[str, Any] = {"type": "object"}
"""The schema of a tool that gave none."""

_fields_decoder = msgspec.json.Decoder(dict[str, Raw])
_name_decoder = msgspec.json.Decoder(str)


class BadDefinition(ValueError):
    """A definition that is no object with a name, or no JSON at all."""


# Compared by identity: a snapshot reuses the very object of an unchanged tool, and caches are keyed by it.
@dataclass(frozen=True, kw_only=True, slots=True, eq=False, weakref_slot=True)
class Tool:
    server: str
    """The server's configured name."""
    name: str
    """The server's own name for it."""
    fields: Mapping[str, Raw] = field(repr=False)
    """The definition, decoded one level only."""
    names: Names
    trusted: bool = False
    """Whether what its server says of it in `annotations` counts."""
    folder: str | None = None
    """Where its server works, and relative paths in its arguments start. None: nobody knows."""
    override: ToolOverride | None = None
    """What the configuration makes of it for those who are offered it. What is decided, kept and forwarded is the
    tool as its server has it."""
    _cache: dict[str, Any] = field(default_factory=dict, init=False, repr=False)
    """What was worked out once: decoded fields by their names, and where header marks are."""

    @property
    def display(self) -> str:
        """`server:tool`."""
        return self.names.display

    def public(self, style: NameStyle) -> str:
        return self.names.of(style)

    @property
    def shown(self) -> Tool:
        """The tool with the definition that is shown."""
        if self.override is None:
            return self
        if "shown" not in self._cache:
            self._cache["shown"] = replace(self, fields=self.override.fields, override=None)
        shown: Tool = self._cache["shown"]
        return shown

    def taken(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments that fit what is shown, as the server takes them."""
        return dict(given) if self.override is None else undo_arguments(self.override.undo, given)

    def callers_own(self, given: Mapping[str, Any]) -> dict[str, str]:
        """Which of the arguments that are `taken` the caller knows, and by which names."""
        return {name: name for name in given} if self.override is None else callers_arguments(self.override.undo, given)

    def is_still(self, earlier: Tool) -> bool:
        """Whether what was decided of the earlier one holds of this one; what others call it may have changed."""
        return self is earlier or all(
            getattr(self, name) == getattr(earlier, name)
            for name in ("server", "name", "fields", "trusted", "folder", "override")
        )

    @property
    def digest(self) -> str:
        """Of the whole definition as its server gave it; made on first use."""
        if "digest" not in self._cache:
            self._cache["digest"] = digest_of(self.fields)
        digest: str = self._cache["digest"]
        return digest

    @property
    def input_schema(self) -> dict[str, Any]:
        """Decoded on first use. Shared by all readers: look, do not change."""
        schema = self._field("inputSchema")
        return schema if isinstance(schema, dict) else ANY_OBJECT

    @property
    def annotations(self) -> dict[str, Any]:
        annotations = self._field("annotations")
        return annotations if isinstance(annotations, dict) else {}

    @property
    def needs_task(self) -> bool:
        """It runs only as a task, whose result has to be fetched later: no client can do that through Toolcrib."""
        execution = self._field("execution")
        return isinstance(execution, dict) and execution.get("taskSupport") == "required"

    @property
    def reads_only(self) -> bool:
        """It changes nothing, by the word of a server that is trusted."""
        return self.trusted and self.annotations.get("readOnlyHint") is True

    @property
    def description(self) -> str:
        description = self._field("description")
        return description if isinstance(description, str) else ""

    def param_headers(self, arguments: Mapping[str, Any]) -> dict[str, str]:
        """The `Mcp-Param-*` headers that a call with these arguments carries."""
        if "marked" not in self._cache:
            self._cache["marked"] = marked_properties(self.input_schema)
        marked: Mapping[tuple[str, ...], str] = self._cache["marked"]
        return headers_of(marked, arguments) if marked else {}

    def render(self, public_name: str) -> bytes:
        """What is shown of it, under another name. Every other value keeps its bytes, but `x-mcp-header` marks are
        taken out: they are between us and the server, a client that obeyed them would send headers nobody reads."""
        values = {**self.shown.fields, "name": Raw(msgspec.json.encode(public_name))}
        if (schema := values.get("inputSchema")) is not None:
            values["inputSchema"] = Raw(without_annotations(bytes(schema)))
        return msgspec.json.encode(values)

    def raw(self) -> bytes:
        """The whole definition as the server gave it."""
        return msgspec.json.encode(self.fields)

    def _field(self, key: str) -> Any:
        if key not in self._cache:
            value = self.fields.get(key)
            try:
                self._cache[key] = None if value is None else msgspec.json.decode(value)
            except msgspec.MsgspecError as error:
                # Well formed, but with a number that no Python value holds. The definition still passes as it is.
                log.warning("%s: %s cannot be read and counts as absent: %s", self.display, key, error)
                self._cache[key] = None
        return self._cache[key]


def digest_of(fields: Mapping[str, Raw]) -> str:
    """The same however the keys are ordered and the text is spaced. Pictures say nothing of what a tool does."""
    counted = {name: value for name, value in fields.items() if name != "icons"}
    try:
        decoded = {name: msgspec.json.decode(value) for name, value in counted.items()}
        text = msgspec.json.encode(decoded, order="sorted")
    except (msgspec.MsgspecError, ValueError):
        # A number that no Python value holds: every byte counts.
        text = msgspec.json.encode(dict(sorted(counted.items())))
    return hashlib.sha256(text).hexdigest()


def decode_definition(definition: bytes) -> tuple[str, dict[str, Raw]]:
    """A definition's own name and its fields."""
    try:
        # Values that stay raw are not looked into by the decoder, and a client would choke on bad UTF-8 in any of them.
        definition.decode()
        fields = _fields_decoder.decode(definition)
        if deeper_than(DEEPEST, definition):
            raise BadDefinition(f"it nests deeper than {DEEPEST} levels")
        return _name_decoder.decode(fields["name"]), fields
    except KeyError:
        raise BadDefinition("it has no name") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadDefinition(str(error)) from error
