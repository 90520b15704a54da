"""What a format gives back.

In: nothing. Out: `Definition`, and `Adaptation` with the `Ledger` that collects them; `openai`, `anthropic` and
`google` fill these.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from toolcrib.catalog.offer import Offer

Schema = dict[str, Any]
Undo = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Adaptation:
    """One place where what is sent differs from what the server said."""

    tool: str
    """The offer's name."""
    provider: str
    path: str
    """Where: a JSON pointer into the offer's schema (`#/properties/mode`), or `name`."""
    what: str
    why: str


class Definition(NamedTuple):
    wire: dict[str, Any]
    """For the request, as it is. Shares parts with the offer's schema: look, do not change."""
    adaptations: tuple[Adaptation, ...]
    undo: Undo
    """From the arguments that the model wrote to those of the offer's schema. What already fits is left as it is."""

    @property
    def name(self) -> str:
        """As the model will say it; differs from the offer's where the provider could not take that."""
        return str(self._function["name"])

    @property
    def schema(self) -> Schema:
        """Of the arguments, as the model will see it."""
        keys = ("parameters", "input_schema", "parametersJsonSchema")
        found: Schema = next(self._function[key] for key in keys if key in self._function)
        return found

    @property
    def _function(self) -> dict[str, Any]:
        found: dict[str, Any] = self.wire.get("function", self.wire)
        return found


class Ledger:
    """Lists the adaptations of one tool, each once."""

    def __init__(self, offer: Offer, provider: str) -> None:
        self._tool = offer.name
        self._provider = provider
        self._listed: dict[Adaptation, None] = {}

    def note(self, path: str, what: str, why: str) -> None:
        self._listed[Adaptation(tool=self._tool, provider=self._provider, path=path, what=what, why=why)] = None

    def listed(self) -> tuple[Adaptation, ...]:
        return tuple(self._listed)


def unchanged(arguments: dict[str, Any]) -> dict[str, Any]:
    return arguments
