"""A tool as a program offers it to its model, and the filters that choose among them.

In: a `Tool`. Out: an `OfferedTool`: the name, description and schema that the model sees, and the way back to what the
tool takes. A `Filter` is a name or glob, a function of an offered tool, or several of these, of which one is enough.
`transforms` make one of another, `Tools` holds many, `formats` writes them as a provider wants.

The annotations are the server's own word on its tools. They serve to choose what a model is shown; what an agent may
do is decided by permissions.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, Self, TypeAlias

import msgspec

from toolcrib.catalog.tool import Tool, Undo, annotations_of, undo_arguments
from toolcrib.config.model import NameStyle


@dataclass(frozen=True, kw_only=True)
class OfferedTool:
    """A tool as a model shall see it: `name`, `description`, `schema`; filters and transforms are given these."""

    tool: Tool
    """What is called."""
    name: str
    description: str
    schema: Mapping[str, Any]
    """JSON Schema of the arguments, whole. Shared: look, do not change."""
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By provider (openai, anthropic, google): what its wire format has for this tool besides."""
    undo: tuple[Undo, ...] = ()
    """In the order of the transforms."""
    kept: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """What was worked out once, by who worked it out: `formats` keeps its definitions here."""

    @classmethod
    def of(cls, tool: Tool, style: NameStyle = NameStyle.PLAIN) -> Self:
        """The tool as it is, or as the configuration has it."""
        return cls(
            tool=tool,
            name=tool.public(style),
            description=tool.shown.description,
            schema=tool.shown.input_schema,
            options={} if tool.override is None else tool.override.options,
        )

    @cached_property
    def as_tool(self) -> Tool:
        """The tool as its server might have described it, so that this is what it offers."""
        if self.schema is self.tool.shown.input_schema and self.description == self.tool.shown.description:
            return self.tool.shown
        changed = {"description": self.description, "inputSchema": self.schema}
        fields = {key: msgspec.Raw(msgspec.json.encode(value)) for key, value in changed.items()}
        return replace(self.tool, fields={**self.tool.fields, **fields}, override=None)

    @property
    def server(self) -> str:
        return self.tool.server

    @property
    def annotations(self) -> Mapping[str, Any]:
        return self.tool.annotations

    def arguments(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """What the tool is called with when the model gave these."""
        # A program's own way back may change what it gets, and the model's words are still needed.
        return undo_arguments(self.undo, copy.deepcopy(dict(given)))


Predicate: TypeAlias = Callable[[OfferedTool], bool]
Filter: TypeAlias = "str | Predicate | Iterable[Filter]"
"""`read_file`, `*_status` (the offer's name), `git:*` (`server:tool`), a function, or any of several."""


def matches(wanted: Filter, offer: OfferedTool) -> bool:
    if isinstance(wanted, str):
        return any(name == wanted or fnmatchcase(name, wanted) for name in _names(offer, wanted))
    if callable(wanted):
        return bool(wanted(offer))
    return any(matches(one, offer) for one in wanted)


def names_exactly(wanted: Filter, offer: OfferedTool) -> bool:
    """Whether it is meant by its very name, and not as one of many."""
    if isinstance(wanted, str):
        return wanted in _names(offer, wanted)
    return not callable(wanted) and any(names_exactly(one, offer) for one in wanted)


def reusable_filter(wanted: Filter) -> Filter:
    """The same, also where it can be gone through only once."""
    return wanted if isinstance(wanted, str) or callable(wanted) else tuple(map(reusable_filter, wanted))


def not_(unwanted: Filter) -> Predicate:
    meant = reusable_filter(unwanted)
    return lambda offer: not matches(meant, offer)


def read_only(offer: OfferedTool) -> bool:
    """It changes nothing, as its server says of it: `tools(keep=read_only)`. A server that says nothing means no."""
    return annotations_of(offer.annotations)["read_only"]


def destructive(offer: OfferedTool) -> bool:
    """It may overwrite or delete something: so does what does not only read, unless its server says otherwise."""
    return annotations_of(offer.annotations)["destructive"]


def idempotent(offer: OfferedTool) -> bool:
    """A second call with the same arguments changes nothing more."""
    return annotations_of(offer.annotations)["idempotent"]


def open_world(offer: OfferedTool) -> bool:
    """It deals with things outside, as a web search does: so does every tool, unless its server says otherwise."""
    return annotations_of(offer.annotations)["open_world"]


def annotated(name: str) -> Predicate:
    """The predicate of one of the `ANNOTATIONS`."""
    return lambda offer: annotations_of(offer.annotations)[name]


def _names(offer: OfferedTool, pattern: str) -> tuple[str, ...]:
    tool = offer.tool
    if ":" in pattern:
        return (tool.display,)
    # A plain name that several tools share is nobody's name; the tools are still found by it.
    given = offer.name in (tool.names.plain, tool.names.server, tool.names.mcp)
    return (offer.name, tool.name) if given else (offer.name,)
