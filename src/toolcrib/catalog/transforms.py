"""How a tool is offered: under which name, in which words, with which arguments.

In: an `Offer`. Out: another one, or None where the tool is not offered. Each transformer is a function of one offer, so
a program's own is one too; they are applied in their order, and what they do to the arguments is undone in the
opposite one. `toolbox` applies them and holds the names to what providers take.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from toolcrib.catalog.filters import Filter, kept, matches, names_it
from toolcrib.catalog.offer import Offer
from toolcrib.catalog.schema_change import declared, is_silent, mentioned, takes, with_defaults, with_given, with_names
from toolcrib.catalog.shape import Renames, Undo
from toolcrib.config.tool_rules import PLACES, filled, unknown_places
from toolcrib.errors import UsageError

Transform: TypeAlias = Callable[[Offer], Offer | None]


Skipping: TypeAlias = Callable[[Offer, UsageError], object]
"""Told of a tool that is left out since a transformer does not fit it."""


def transformed(
    offers: Iterable[Offer], transforms: Sequence[Transform] | Transform, *, skipping: Skipping | None = None
) -> tuple[Offer, ...]:
    """What the transformers, one after the other, make of these. Raises what they raise, unless `skipping` is told."""
    chain = (transforms,) if callable(transforms) else tuple(transforms)
    return tuple(made for offer in offers if (made := _through(chain, offer, skipping)) is not None)


def _through(chain: Sequence[Transform], offer: Offer, skipping: Skipping | None) -> Offer | None:
    made: Offer | None = offer
    try:
        for transform in chain:
            if made is None:
                break
            made = transform(made)
    except UsageError as error:
        if skipping is None:
            raise
        skipping(offer, error)
        return None
    return made


@dataclass(frozen=True)
class Keep:
    """Only these."""

    tools: Filter

    def __post_init__(self) -> None:
        object.__setattr__(self, "tools", kept(self.tools))

    def __call__(self, offer: Offer) -> Offer | None:
        return offer if matches(self.tools, offer) else None


@dataclass(frozen=True)
class Drop:
    """All but these."""

    tools: Filter

    def __post_init__(self) -> None:
        object.__setattr__(self, "tools", kept(self.tools))

    def __call__(self, offer: Offer) -> Offer | None:
        return None if matches(self.tools, offer) else offer


@dataclass(frozen=True)
class Only:
    """A transformer for some of the tools; the others stay as they are."""

    tools: Filter
    transform: Transform

    def __post_init__(self) -> None:
        object.__setattr__(self, "tools", kept(self.tools))
        if isinstance(self.transform, Fix) and self.transform.tools is None:
            # Also who is meant here is meant by the fixed arguments.
            object.__setattr__(self, "transform", replace(self.transform, tools=self.tools))

    def __call__(self, offer: Offer) -> Offer | None:
        return self.transform(offer) if matches(self.tools, offer) else offer


@dataclass(frozen=True)
class Rename:
    """Another name: by a table of names (`read_file` or `files:read_file`), or by a function of the offer."""

    names: Mapping[str, str] | Callable[[Offer], str]

    def __call__(self, offer: Offer) -> Offer:
        if callable(self.names):
            return replace(offer, name=self.names(offer))
        new = next((new for old, new in self.names.items() if matches(old, offer)), None)
        return offer if new is None else replace(offer, name=new)


@dataclass(frozen=True)
class Prefix:
    """`Prefix("mcp")`: `mcp_read_file`."""

    prefix: str

    def __post_init__(self) -> None:
        if not self.prefix:
            raise UsageError("A prefix cannot be empty.", remedy="Leave the Prefix out.")

    def __call__(self, offer: Offer) -> Offer:
        return replace(offer, name=f"{self.prefix}_{offer.name}")


@dataclass(frozen=True)
class Describe:
    """Other words for the model: a function of the offer, or a text with {server}, {name} and {description} in it."""

    words: str | Callable[[Offer], str]

    def __post_init__(self) -> None:
        if isinstance(self.words, str) and (unknown := unknown_places(self.words)):
            raise UsageError(
                f"A description's text has no {{{unknown[0]}}}.", remedy=f"It may hold {{{'}, {'.join(PLACES)}}}."
            )

    def __call__(self, offer: Offer) -> Offer:
        if callable(self.words):
            return replace(offer, description=self.words(offer))
        words = {"server": offer.server, "name": offer.name, "description": offer.description}
        return replace(offer, description=filled(self.words, words))


@dataclass(frozen=True)
class Fix:
    """Arguments that the program gives. The model does not see them and cannot give others.

    A tool gets those that its schema names. One that `tools` means gets them also where its schema does not say what it
    takes; one that `tools` has by its name gets them in any case, or is refused if it cannot take them.
    """

    arguments: Mapping[str, Any]
    tools: Filter | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "arguments", copy.deepcopy(dict(self.arguments)))
        if self.tools is not None:
            object.__setattr__(self, "tools", kept(self.tools))

    def __call__(self, offer: Offer) -> Offer:
        if self.tools is not None and not matches(self.tools, offer):
            return offer
        fixed = self._of(offer)
        undo = _Fixed(fixed, frozenset(self.arguments))
        return _with_schema(offer, with_given(offer.schema, fixed) if fixed else offer.schema, undo)

    def _of(self, offer: Offer) -> dict[str, Any]:
        # Who takes anything shall not be given what is meant for others.
        named = self.tools is not None and names_it(self.tools, offer)
        meant = named or (self.tools is not None and is_silent(offer.schema))
        there = mentioned(offer.schema)
        fixed = {name: value for name, value in self.arguments.items() if meant or name in there}
        for name in [name for name, value in fixed.items() if not takes(offer.schema, name, value)]:
            if named or name in there:
                raise _misfit(offer, name)
            del fixed[name]
        return fixed


@dataclass(frozen=True)
class _Fixed:
    arguments: Mapping[str, Any]
    names: frozenset[str]
    """Also those that this tool does not get: none of them is the model's to give, whatever a schema lets through."""

    def __call__(self, given: dict[str, Any]) -> dict[str, Any]:
        left = {name: value for name, value in given.items() if name not in self.names}
        return left | copy.deepcopy(dict(self.arguments))


@dataclass(frozen=True)
class Default:
    """Arguments that the model need not give. Of several, a tool gets those that its schema names."""

    arguments: Mapping[str, Any]

    def __post_init__(self) -> None:
        object.__setattr__(self, "arguments", copy.deepcopy(dict(self.arguments)))

    def __call__(self, offer: Offer) -> Offer:
        defaults = _of_this_tool(self.arguments, offer)
        if not defaults:
            return offer
        return _with_schema(
            offer, with_defaults(offer.schema, defaults), lambda given: {**copy.deepcopy(defaults), **given}
        )


@dataclass(frozen=True)
class RenameArgument:
    """Arguments under other names: `{"repo_path": "folder"}`. Of several, those that a tool's schema names."""

    names: Mapping[str, str]

    def __call__(self, offer: Offer) -> Offer:
        there = declared(offer.schema)
        names = {old: new for old, new in self.names.items() if old in there and old != new}
        if not names:
            return offer
        after = [names.get(name, name) for name in sorted(there)]
        if doubled := next((name for name in after if after.count(name) > 1), None):
            raise UsageError(
                f"{offer.tool.display} would have two arguments {doubled!r}.", remedy="Give them different names."
            )
        back = {new: old for old, new in names.items()}
        undo = Renames(names=back, gone=frozenset(names.keys() - back.keys()))
        return _with_schema(offer, with_names(offer.schema, names), undo)


@dataclass(frozen=True)
class Change:
    """Another schema, and the way back: from arguments that fit it to those that fit the one before."""

    schema: Callable[[dict[str, Any]], Mapping[str, Any]]
    """Gets a copy, which it may change."""
    undo: Undo

    def __call__(self, offer: Offer) -> Offer:
        return _with_schema(offer, self.schema(copy.deepcopy(dict(offer.schema))), self.undo)


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a provider's wire format has for a tool besides: `Options(openai={"strict": True})`."""

    openai: Mapping[str, Any] = field(default_factory=dict)
    anthropic: Mapping[str, Any] = field(default_factory=dict)
    google: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, offer: Offer) -> Offer:
        given = {"openai": self.openai, "anthropic": self.anthropic, "google": self.google}
        options = {name: {**offer.options.get(name, {}), **one} for name, one in given.items()}
        return replace(offer, options={name: one for name, one in options.items() if one})


def _of_this_tool(arguments: Mapping[str, Any], offer: Offer) -> dict[str, Any]:
    there = declared(offer.schema)
    given = {name: value for name, value in arguments.items() if name in there}
    for name, value in given.items():
        if not takes(offer.schema, name, value):
            raise _misfit(offer, name)
    return given


def _misfit(offer: Offer, name: str) -> UsageError:
    return UsageError(
        f"{offer.tool.display} does not take what is given here as its argument {name!r}.",
        remedy="Its schema says what it takes; name the tools that are meant, if it is not one of them.",
    )


def _with_schema(offer: Offer, schema: Mapping[str, Any], undo: Undo) -> Offer:
    return replace(offer, schema=schema, undo=(*offer.undo, undo))
