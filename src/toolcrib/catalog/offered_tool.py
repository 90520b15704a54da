"""A tool as a program offers it to its model, and the filters that select tools.

In: a `Tool`. Out: an `OfferedTool`: the name, description and schema that the model sees, and the functions that turn
its arguments back into the tool's own. A `Filter` is a name, a glob, a function of an offered tool, or a list of these
(any match is enough). `transforms` derive one from another, `Tools` holds them, `formats` writes them for a provider.

Annotations are the server's own claims. Use them to select the tools that a model sees; permissions decide what an
agent may do.
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
    """A tool as the model sees it: `name`, `description`, `schema`. Filters and transforms receive it."""

    tool: Tool
    """The tool that is called."""
    name: str
    description: str
    schema: Mapping[str, Any]
    """The full JSON Schema of the arguments. Shared: do not modify."""
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Extra fields in the wire format, by provider (openai, anthropic, google)."""
    undo: tuple[Undo, ...] = ()
    """In the order of the transforms."""
    kept: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """A cache: `formats` stores its definitions here."""

    @classmethod
    def of(cls, tool: Tool, style: NameStyle = NameStyle.PLAIN) -> Self:
        """The tool as its server or the configuration defines it."""
        return cls(
            tool=tool,
            name=tool.public(style),
            description=tool.shown.description,
            schema=tool.shown.input_schema,
            options={} if tool.override is None else tool.override.options,
        )

    @cached_property
    def as_tool(self) -> Tool:
        """A `Tool` whose definition has the offered description and schema."""
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
        """The tool's arguments for these arguments of the model."""
        # A program's own undo function may modify its input, and the original is still needed.
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
    """Whether the filter contains the exact name, not just a matching pattern."""
    if isinstance(wanted, str):
        return wanted in _names(offer, wanted)
    return not callable(wanted) and any(names_exactly(one, offer) for one in wanted)


def reusable_filter(wanted: Filter) -> Filter:
    """The same filter, even if it is an iterator that can be read only once."""
    return wanted if isinstance(wanted, str) or callable(wanted) else tuple(map(reusable_filter, wanted))


def not_(unwanted: Filter) -> Predicate:
    meant = reusable_filter(unwanted)
    return lambda offer: not matches(meant, offer)


def read_only(offer: OfferedTool) -> bool:
    """Its server declares that it changes nothing: `tools(keep=read_only)`. False by default."""
    return annotations_of(offer.annotations)["read_only"]


def destructive(offer: OfferedTool) -> bool:
    """It may overwrite or delete something. True by default, unless it is read-only."""
    return annotations_of(offer.annotations)["destructive"]


def idempotent(offer: OfferedTool) -> bool:
    """A second call with the same arguments changes nothing more."""
    return annotations_of(offer.annotations)["idempotent"]


def open_world(offer: OfferedTool) -> bool:
    """It interacts with the outside world, as a web search does. True by default."""
    return annotations_of(offer.annotations)["open_world"]


def annotated(name: str) -> Predicate:
    """The predicate for one of the `ANNOTATIONS`."""
    return lambda offer: annotations_of(offer.annotations)[name]


def _names(offer: OfferedTool, pattern: str) -> tuple[str, ...]:
    tool = offer.tool
    if ":" in pattern:
        return (tool.display,)
    # No tool gets a plain name that several share, but a filter still finds them by it.
    given = offer.name in (tool.names.plain, tool.names.server, tool.names.mcp)
    return (offer.name, tool.name) if given else (offer.name,)
