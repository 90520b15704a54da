"""The result of a format: a `Definition`, with an `Adaptation` for each difference from the server's schema.

In: a wire definition and the tool's `ProviderOptions`. Out: both, merged deeply. Options cannot set the tool's name,
description or schema; use transforms for that, because a call reverts them. `openai`, `anthropic` and `google` create
definitions; `Api` is one of OpenAI's two APIs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

from toolcrib.catalog.offered_tool import OfferedTool
from toolcrib.errors import ConfigError, UsageError

Provider = Literal["openai", "anthropic", "google"]
Api = Literal["chat", "responses"]


def refuse_unknown_api(api: str) -> None:
    if api not in get_args(Api):
        raise UsageError(f"OpenAI has no API {api!r}.", remedy='Use "chat" (Chat Completions) or "responses".')


Schema = dict[str, Any]
Undo = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Adaptation:
    """One difference between the schema sent to the provider and the server's."""

    tool: str
    """The offer's name."""
    provider: str
    path: str
    """A JSON pointer into the offer's schema (`#/properties/mode`), or `name`."""
    what: str
    why: str


class Definition(NamedTuple):
    wire: dict[str, Any]
    """Ready for the request. Shares parts with the offer's schema, so don't modify it."""
    adaptations: tuple[Adaptation, ...]
    undo: Undo
    """Converts the model's arguments to the offer's schema. Arguments that already fit stay unchanged."""

    @property
    def name(self) -> str:
        """The name the model uses. Differs from the offer's name if the provider doesn't accept that."""
        return str(self._function["name"])

    @property
    def schema(self) -> Schema:
        """The schema of the arguments as the model sees it."""
        keys = ("parameters", "input_schema", "parametersJsonSchema")
        found: Schema = next(self._function[key] for key in keys if key in self._function)
        return found

    @property
    def _function(self) -> dict[str, Any]:
        found: dict[str, Any] = self.wire.get("function", self.wire)
        return found


class AdaptationLog:
    """Collects the adaptations of one tool, without duplicates."""

    def __init__(self, offer: OfferedTool, provider: str) -> None:
        self._tool = offer.name
        self._provider = provider
        self._listed: dict[Adaptation, None] = {}

    def note(self, path: str, what: str, why: str) -> None:
        self._listed[Adaptation(tool=self._tool, provider=self._provider, path=path, what=what, why=why)] = None

    def listed(self) -> tuple[Adaptation, ...]:
        return tuple(self._listed)


def unchanged(arguments: dict[str, Any]) -> dict[str, Any]:
    return arguments


_NOT_OPTIONS = frozenset({"name", "description", "parameters", "input_schema", "type"}) | frozenset(
    {"parametersJsonSchema", "parameters_json_schema"}
)


def options_of(offer: OfferedTool, provider: str) -> dict[str, Any]:
    """Raises `ConfigError` if an option would override the tool's name, description or schema."""
    options = dict(offer.options.get(provider, {}))
    inner = options.get("function")
    if inner is not None and not isinstance(inner, Mapping):
        raise ConfigError(
            f"The {provider} option function of {offer.name} is not an object.",
            remedy='Write it like {"function": {"strict": true}}.',
        )
    if wrong := sorted(_NOT_OPTIONS.intersection({*options, *(inner or ())})):
        raise ConfigError(
            f"The {provider} options of {offer.name} cannot set {', '.join(wrong)}.",
            remedy="Change name, description or arguments with a transform, such as RenameTools or DescribeTools.",
        )
    return options


def pop_strict(offer: OfferedTool, provider: str, options: dict[str, Any]) -> bool:
    """Removes `strict` from the options."""
    strict = options.pop("strict", False)
    if not isinstance(strict, bool | None):
        raise ConfigError(
            f"The {provider} option strict of {offer.name} is not true or false.",
            remedy="Set it to true or false, or remove it.",
        )
    return strict is True


def deep_merged(wire: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(wire)
    for key, value in more.items():
        known = result.get(key)
        if isinstance(known, Mapping) and isinstance(value, Mapping):
            result[key] = deep_merged(known, value)
        else:
            result[key] = value
    return result
