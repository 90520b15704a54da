"""A tool as a program offers it to its model.

In: a `Tool`. Out: an `Offer`: the name, words and schema that the model sees, and the way back to what the tool takes.
`transforms` make one of another, `toolbox` holds many, `formats` writes them as a provider wants.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import msgspec

from toolcrib.catalog.shape import Undo, taken_back
from toolcrib.catalog.tool import Tool
from toolcrib.config.model import NameStyle


@dataclass(frozen=True, kw_only=True)
class Offer:
    """A tool as a model shall see it: `name`, `description`, `schema`; filters and transformers are given these."""

    tool: Tool
    """What is called."""
    name: str
    description: str
    schema: Mapping[str, Any]
    """JSON Schema of the arguments, whole. Shared: look, do not change."""
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By provider (openai, anthropic, google): what its wire format has for this tool besides."""
    undo: tuple[Undo, ...] = ()
    """In the order of the transformers."""
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
            options={} if tool.shape is None else tool.shape.options,
        )

    @cached_property
    def as_tool(self) -> Tool:
        """The tool as its server might have described it, so that this is what it offers."""
        if self.schema is self.tool.shown.input_schema and self.description == self.tool.shown.description:
            return self.tool.shown
        changed = {"description": self.description, "inputSchema": self.schema}
        fields = {key: msgspec.Raw(msgspec.json.encode(value)) for key, value in changed.items()}
        return replace(self.tool, fields={**self.tool.fields, **fields}, shape=None)

    @property
    def server(self) -> str:
        return self.tool.server

    @property
    def annotations(self) -> Mapping[str, Any]:
        return self.tool.annotations

    def arguments(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """What the tool is called with when the model gave these."""
        # A program's own way back may change what it gets, and the model's words are still needed.
        return taken_back(self.undo, copy.deepcopy(dict(given)))
