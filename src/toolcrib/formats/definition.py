"""What a format returns: a `Definition`, with an `Adaptation` for each place that differs from the server's schema.

In: a wire definition and what `ProviderOptions` asked for. Out: both, merged deeply. What the tool is (its name,
description and schema) cannot be given by options: transforms change that, and a call undoes them. `openai`,
`anthropic` and `google` fill these; `Api` says which of OpenAI's two interfaces is meant.
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
        raise UsageError(
            f"OpenAI has no interface {api!r}.", remedy='There are "chat" (Chat Completions) and "responses".'
        )


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


class AdaptationLog:
    """Lists the adaptations of one tool, each once."""

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
    """Raises `ConfigError` for one that would overwrite what the tool is."""
    options = dict(offer.options.get(provider, {}))
    inner = options.get("function")
    if inner is not None and not isinstance(inner, Mapping):
        raise ConfigError(
            f"The {provider} option function of {offer.name} is no object.",
            remedy='Write it like {"function": {"strict": true}}.',
        )
    if wrong := sorted(_NOT_OPTIONS.intersection({*options, *(inner or ())})):
        raise ConfigError(
            f"The {provider} options of {offer.name} cannot set {', '.join(wrong)}.",
            remedy="Change a tool's name, description or arguments with a transform, such as Rename or Describe.",
        )
    return options


def pop_strict(offer: OfferedTool, provider: str, options: dict[str, Any]) -> bool:
    """Takes `strict` out of the options."""
    strict = options.pop("strict", False)
    if not isinstance(strict, bool | None):
        raise ConfigError(
            f"The {provider} option strict of {offer.name} is neither true nor false.",
            remedy="Give true, false, or leave it out.",
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
