"""A tool as a program offers it to its model.

In: a `Tool`. Out: an `Offer`: the name, words and schema that the model sees, and the way back to what the tool takes.
`transforms` make one of another, `toolbox` holds many, `formats` writes them as a provider wants.
"""

from __future__ import annotations

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
        return taken_back(self.undo, given)
