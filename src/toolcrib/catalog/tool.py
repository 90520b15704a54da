"""One tool as its server defines it, with its public names, and as the configuration's rules show it.

In: a definition as raw JSON. Out: `Tool`, whose fields stay the server's own bytes and are decoded on demand.
A `ToolOverride` replaces the server's definition and converts the arguments back. `snapshot` creates both; `listing`,
`policy` and `calls` read them.
"""

from __future__ import annotations

import copy
import enum
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
from toolcrib.servers.wire import MAX_DEPTH, deeper_than

Undo = Callable[[dict[str, Any]], dict[str, Any]]
"""Converts arguments from the form after a transform to the form before it."""


@dataclass(frozen=True, kw_only=True)
class ToolOverride:
    name: str
    """Replaces the server's own name in every style."""
    fields: Mapping[str, Raw] = field(repr=False)
    """The definition that is shown."""
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By provider, for the tool's offers."""
    undo: tuple[Undo, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ArgumentRenames:
    """Converts renamed arguments back."""

    names: Mapping[str, str]
    """From the shown names to the original ones."""
    gone: frozenset[str]
    """Names no longer in use. An argument is not accepted under its old name: the shown schema doesn't check it."""

    def __call__(self, given: dict[str, Any]) -> dict[str, Any]:
        return {self.names.get(name, name): value for name, value in given.items() if name not in self.gone}


def undo_arguments(undo: Iterable[Undo], given: Mapping[str, Any]) -> dict[str, Any]:
    """`undo` is in the order of the transforms."""
    arguments = dict(given)
    for back in reversed(tuple(undo)):
        arguments = back(arguments)
    return arguments


def callers_arguments(undo: Iterable[Undo], given: Mapping[str, Any]) -> dict[str, str]:
    """The arguments from `undo_arguments` that equal the caller's, each with the caller's name for it. The caller must
    not learn the others."""
    own = {name: name for name in given}
    before = dict(given)
    try:
        for back in reversed(tuple(undo)):
            # A copy, in case the function modifies its input.
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

    # A read-only tool destroys nothing and may be repeated.
    reads = claim("read_only", default=False)
    return {
        "read_only": reads,
        "destructive": claim("destructive", default=not reads),
        "idempotent": claim("idempotent", default=reads),
        "open_world": claim("open_world", default=True),
    }


log = logging.getLogger(__name__)

ANY_OBJECT: dict[str, Any] = {"type": "object"}
"""The schema of a tool that has none."""

_fields_decoder = msgspec.json.Decoder(dict[str, Raw])
_name_decoder = msgspec.json.Decoder(str)


class BadDefinition(ValueError):
    """A definition that is not a JSON object with a name."""


class OfferKind(enum.StrEnum):
    """What a server offers."""

    TOOL = "tool"
    RESOURCE = "resource"
    PROMPT = "prompt"


# Compared by identity: a snapshot reuses the object of an unchanged tool, and caches are keyed by it.
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
    """Whether its `annotations` count."""
    folder: str | None = None
    """The server's working folder, the base of relative paths in arguments. None if unknown."""
    override: ToolOverride | None = None
    """The configuration's changes for those who see the tool. Decisions, records and calls use the server's own
    definition."""
    cache_seconds: float = 0.0
    """How long a result answers equal calls; 0 unless the tool is harmless."""
    kind: OfferKind = OfferKind.TOOL
    """Permissions, the audit log and the door treat resources and prompts like tools that change nothing."""
    _cache: dict[str, Any] = field(default_factory=dict, init=False, repr=False)
    """Decoded fields by name, and the paths of header annotations."""

    @property
    def display(self) -> str:
        """`server:tool`."""
        return self.names.display

    def public(self, style: NameStyle) -> str:
        return self.names.of(style)

    @property
    def shown_name(self) -> str:
        """The server's own name for it, or the one that the configuration gives it."""
        return self.name if self.override is None else self.override.name

    @property
    def shown(self) -> Tool:
        """The tool with its shown definition."""
        if self.override is None:
            return self
        if "shown" not in self._cache:
            self._cache["shown"] = replace(self, fields=self.override.fields, override=None)
        shown: Tool = self._cache["shown"]
        return shown

    def taken(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Converts arguments for the shown definition to those that the server expects."""
        return dict(given) if self.override is None else undo_arguments(self.override.undo, given)

    def callers_own(self, given: Mapping[str, Any]) -> dict[str, str]:
        """The arguments from `taken` that the caller gave, with the caller's names."""
        return {name: name for name in given} if self.override is None else callers_arguments(self.override.undo, given)

    def is_still(self, earlier: Tool) -> bool:
        """Whether a decision about the earlier tool still holds for this one. The public names may differ."""
        return self is earlier or all(
            getattr(self, name) == getattr(earlier, name)
            for name in ("server", "name", "fields", "trusted", "folder", "override")
        )

    @property
    def digest(self) -> str:
        """The digest of the server's whole definition, computed on first use."""
        if "digest" not in self._cache:
            self._cache["digest"] = digest_of(self.fields)
        digest: str = self._cache["digest"]
        return digest

    @property
    def input_schema(self) -> dict[str, Any]:
        """Decoded on first use. Shared: do not modify."""
        schema = self._field("inputSchema")
        return schema if isinstance(schema, dict) else ANY_OBJECT

    @property
    def output_schema(self) -> dict[str, Any] | None:
        schema = self._field("outputSchema")
        return schema if isinstance(schema, dict) else None

    @property
    def annotations(self) -> dict[str, Any]:
        annotations = self._field("annotations")
        return annotations if isinstance(annotations, dict) else {}

    @property
    def task_support(self) -> str:
        """Whether a call can be a task, whose result is fetched later: `optional`, `required` or empty."""
        execution = self._field("execution")
        support = execution.get("taskSupport") if isinstance(execution, dict) else None
        return support if support in ("optional", "required") else ""

    @property
    def reads_only(self) -> bool:
        """A trusted server declares that it changes nothing, or the protocol says so."""
        return self.kind is not OfferKind.TOOL or (self.trusted and self.annotations.get("readOnlyHint") is True)

    @property
    def is_harmless(self) -> bool:
        """A trusted server declares that it changes nothing and can be repeated."""
        return self.reads_only and self.claims["idempotent"]

    @property
    def claims(self) -> dict[str, bool]:
        """The annotations that count: those of a trusted server, otherwise the protocol's defaults."""
        if self.kind is not OfferKind.TOOL:
            return annotations_of({"readOnlyHint": True})
        return annotations_of(self.annotations if self.trusted else {})

    @property
    def description(self) -> str:
        description = self._field("description")
        return description if isinstance(description, str) else ""

    @property
    def app_uri(self) -> str:
        """The address of the app that shows its results (MCP Apps); empty without one."""
        meta = self._field("_meta")
        ui = meta.get("ui") if isinstance(meta, dict) else None
        uri = ui.get("resourceUri") if isinstance(ui, dict) else (meta or {}).get("ui/resourceUri")
        return uri if isinstance(uri, str) and uri.startswith("ui://") else ""

    def with_app(self, definition: bytes, uri: str) -> bytes:
        """The definition with another address of its app, or without one."""
        fields = _fields_decoder.decode(definition)
        meta = msgspec.json.decode(fields["_meta"])
        meta.pop("ui/resourceUri", None)
        if uri:
            meta["ui"] = {**meta.get("ui", {}), "resourceUri": uri}
        else:
            meta.pop("ui", None)
        return msgspec.json.encode({**fields, "_meta": Raw(msgspec.json.encode(meta))})

    def param_headers(self, arguments: Mapping[str, Any]) -> dict[str, str]:
        """The `Mcp-Param-*` headers for a call with these arguments."""
        if "marked" not in self._cache:
            self._cache["marked"] = marked_properties(self.input_schema)
        marked: Mapping[tuple[str, ...], str] = self._cache["marked"]
        return headers_of(marked, arguments) if marked else {}

    def render(self, public_name: str) -> bytes:
        """The shown definition under a public name. Other values keep their bytes, except that `x-mcp-header`
        annotations are removed: they concern only Toolcrib and the server, and Toolcrib ignores such headers."""
        values = {**self.shown.fields, "name": Raw(msgspec.json.encode(public_name))}
        if (schema := values.get("inputSchema")) is not None:
            values["inputSchema"] = Raw(without_annotations(bytes(schema)))
        if "execution" in values and self.task_support == "required":
            # Some clients refuse to call it otherwise, but Toolcrib can wait for its result.
            execution = {**self._field("execution"), "taskSupport": "optional"}
            values["execution"] = Raw(msgspec.json.encode(execution))
        return msgspec.json.encode(values)

    def raw(self) -> bytes:
        """The server's whole definition."""
        return msgspec.json.encode(self.fields)

    def decoded(self) -> dict[str, Any]:
        """The server's whole definition; a value that Python cannot represent is None."""
        return {key: self._field(key) for key in self.fields}

    def _field(self, key: str) -> Any:
        if key not in self._cache:
            value = self.fields.get(key)
            try:
                self._cache[key] = None if value is None else msgspec.json.decode(value)
            except msgspec.MsgspecError as error:
                # Well-formed, but with a number that Python cannot represent. Clients still get the definition.
                log.warning("%s: %s cannot be read and is ignored: %s", self.display, key, error)
                self._cache[key] = None
        return self._cache[key]


def digest_of(fields: Mapping[str, Raw]) -> str:
    """Independent of key order and whitespace. Icons are left out, because they don't affect what a tool does."""
    counted = {name: value for name, value in fields.items() if name != "icons"}
    try:
        decoded = {name: msgspec.json.decode(value) for name, value in counted.items()}
        text = msgspec.json.encode(decoded, order="sorted")
    except (msgspec.MsgspecError, ValueError):
        # A number that Python cannot represent: use the original bytes.
        text = msgspec.json.encode(dict(sorted(counted.items())))
    return hashlib.sha256(text).hexdigest()


def decode_definition(definition: bytes) -> tuple[str, dict[str, Raw]]:
    """A definition's name and its fields."""
    try:
        # The decoder doesn't check raw values, and invalid UTF-8 in one would break a client.
        definition.decode()
        fields = _fields_decoder.decode(definition)
        if deeper_than(MAX_DEPTH, definition):
            raise BadDefinition(f"it nests deeper than {MAX_DEPTH} levels")
        return _name_decoder.decode(fields["name"]), fields
    except KeyError:
        raise BadDefinition("it has no name") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadDefinition(str(error)) from error
