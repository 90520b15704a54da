"""The definition of each tool, as sent to the provider.

In: offers, and the provider's format. Out: `Definitions`, which the provider's model sends unchanged. `formats` writes
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from toolcrib.agent_loop.models.endpoint import ToolFormat
from toolcrib.catalog.names import folded_name
from toolcrib.catalog.offered_tool import OfferedTool
from toolcrib.formats import anthropic, google, openai
from toolcrib.formats.definition import Adaptation, Definition


@dataclass(frozen=True, kw_only=True)
class Definitions:
    by_name: Mapping[str, Definition]

    def of(self, name: str) -> Any:
        """A shallow copy, because pydantic-ai adds cache markers at the top level."""
        return dict(self.by_name[name].wire)

    def named(self, name: str) -> str:
        """A tool's name on the wire, since some providers restrict names. Unknown names are returned unchanged."""
        return self.by_name[name].name if name in self.by_name else name

    def offered(self, named: str) -> str:
        """The reverse of `named`."""
        return self._offered.get(named, named)

    @cached_property
    def _offered(self) -> dict[str, str]:
        return {definition.name: name for name, definition in self.by_name.items()}

    @property
    def adaptations(self) -> tuple[Adaptation, ...]:
        """The changes to the servers' definitions that the provider required."""
        return tuple(one for definition in self.by_name.values() for one in definition.adaptations)


def write_definitions(form: ToolFormat, offers: Mapping[str, OfferedTool]) -> Definitions:
    taken = frozenset(map(folded_name, offers))
    return Definitions(by_name={name: _definition(form, offer, taken) for name, offer in offers.items()})


def _definition(form: ToolFormat, offer: OfferedTool, taken: frozenset[str]) -> Definition:
    match form:
        case ToolFormat.ANTHROPIC:
            return anthropic.definition(offer)
        case ToolFormat.GOOGLE:
            return google.definition(offer, taken)
        case ToolFormat.OPENAI_RESPONSES:
            return openai.definition(offer, "responses")
        case ToolFormat.OPENAI_CHAT:
            return openai.definition(offer, "chat")
