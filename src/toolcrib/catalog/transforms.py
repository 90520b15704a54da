"""How a tool is offered: under which name, with which description and arguments.

In: an `OfferedTool`. Out: another one, or None where the tool is not offered. Each transform is a function of one
offered tool, so a program's own is one too; they are applied in their order, and what they do to the arguments is
undone in the opposite one. `unmatched_names` finds the names in a transform that no tool has: who misspells an
argument to fix would leave it to the model, and never know. A filter that chooses nothing is no mistake, and of a
function nobody knows what it looks for. `Tools` applies them, and `snapshot` for the rules of configuration files.
"""

from __future__ import annotations

import copy
import difflib
import enum
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from toolcrib.catalog.offered_tool import Filter, OfferedTool, matches, names_exactly, reusable_filter
from toolcrib.catalog.schema_change import (
    Schema,
    accepts,
    declared_arguments,
    mentioned_arguments,
    says_nothing,
    with_defaults,
    with_fixed,
    with_names,
)
from toolcrib.catalog.tool import ArgumentRenames, Undo
from toolcrib.config.tool_rules import PLACES, filled, unknown_places
from toolcrib.errors import UsageError

Transform: TypeAlias = Callable[[OfferedTool], OfferedTool | None]


OnSkipped: TypeAlias = Callable[[OfferedTool, UsageError], object]
"""Told of a tool that is left out since a transform does not fit it."""


def apply_transforms(
    offers: Iterable[OfferedTool], transforms: Sequence[Transform] | Transform, *, on_skipped: OnSkipped | None = None
) -> tuple[OfferedTool, ...]:
    """What the transforms, one after the other, make of these. Raises what they raise, unless there is `on_skipped`."""
    chain = (transforms,) if callable(transforms) else tuple(transforms)
    return tuple(made for offer in offers if (made := _through(chain, offer, on_skipped)) is not None)


def _through(chain: Sequence[Transform], offer: OfferedTool, on_skipped: OnSkipped | None) -> OfferedTool | None:
    made: OfferedTool | None = offer
    try:
        for transform in chain:
            if made is None:
                break
            made = transform(made)
    except UsageError as error:
        if on_skipped is None:
            raise
        on_skipped(offer, error)
        return None
    return made


@dataclass(frozen=True)
class KeepTools:
    """Only these."""

    tools: Filter

    def __post_init__(self) -> None:
        object.__setattr__(self, "tools", reusable_filter(self.tools))

    def __call__(self, offer: OfferedTool) -> OfferedTool | None:
        return offer if matches(self.tools, offer) else None


@dataclass(frozen=True)
class DropTools:
    """All but these."""

    tools: Filter

    def __post_init__(self) -> None:
        object.__setattr__(self, "tools", reusable_filter(self.tools))

    def __call__(self, offer: OfferedTool) -> OfferedTool | None:
        return None if matches(self.tools, offer) else offer


@dataclass(frozen=True)
class ForTools:
    """A transform for some of the tools; the others stay as they are."""

    tools: Filter
    transform: Transform

    def __post_init__(self) -> None:
        object.__setattr__(self, "tools", reusable_filter(self.tools))
        if isinstance(self.transform, FixArguments) and self.transform.tools is None:
            # Also who is meant here is meant by the fixed arguments.
            object.__setattr__(self, "transform", replace(self.transform, tools=self.tools))

    def __call__(self, offer: OfferedTool) -> OfferedTool | None:
        return self.transform(offer) if matches(self.tools, offer) else offer


@dataclass(frozen=True)
class RenameTools:
    """Another name: by a table of names (`read_file` or `files:read_file`), or by a function of the offer."""

    names: Mapping[str, str] | Callable[[OfferedTool], str]

    def __call__(self, offer: OfferedTool) -> OfferedTool:
        if callable(self.names):
            return replace(offer, name=self.names(offer))
        new = next((new for old, new in self.names.items() if matches(old, offer)), None)
        return offer if new is None else replace(offer, name=new)


@dataclass(frozen=True)
class PrefixTools:
    """`PrefixTools("mcp")`: `mcp_read_file`."""

    prefix: str

    def __post_init__(self) -> None:
        if not self.prefix:
            raise UsageError("A prefix cannot be empty.", remedy="Leave the Prefix out.")

    def __call__(self, offer: OfferedTool) -> OfferedTool:
        return replace(offer, name=f"{self.prefix}_{offer.name}")


@dataclass(frozen=True)
class DescribeTools:
    """Other words for the model: a function of the offer, or a text with {server}, {name} and {description} in it."""

    words: str | Callable[[OfferedTool], str]

    def __post_init__(self) -> None:
        if isinstance(self.words, str) and (unknown := unknown_places(self.words)):
            raise UsageError(
                f"A description's text has no {{{unknown[0]}}}.", remedy=f"It may hold {{{'}, {'.join(PLACES)}}}."
            )

    def __call__(self, offer: OfferedTool) -> OfferedTool:
        if callable(self.words):
            return replace(offer, description=self.words(offer))
        words = {"server": offer.server, "name": offer.name, "description": offer.description}
        return replace(offer, description=filled(self.words, words))


@dataclass(frozen=True)
class FixArguments:
    """Arguments that the program gives. The model does not see them and cannot give others.

    A tool gets those that its schema names. One that `tools` means gets them also where its schema does not say what it
    takes; one that `tools` has by its name gets them in any case, or is refused if it cannot take them.
    """

    arguments: Mapping[str, Any]
    tools: Filter | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "arguments", copy.deepcopy(dict(self.arguments)))
        if self.tools is not None:
            object.__setattr__(self, "tools", reusable_filter(self.tools))

    def __call__(self, offer: OfferedTool) -> OfferedTool:
        if self.tools is not None and not matches(self.tools, offer):
            return offer
        fixed = self._of(offer)
        undo = _Fixed(fixed, frozenset(self.arguments))
        return _with_schema(offer, with_fixed(offer.schema, fixed) if fixed else offer.schema, undo)

    def _of(self, offer: OfferedTool) -> dict[str, Any]:
        # Who takes anything shall not be given what is meant for others.
        named = self.tools is not None and names_exactly(self.tools, offer)
        meant = named or (self.tools is not None and says_nothing(offer.schema))
        there = mentioned_arguments(offer.schema)
        fixed = {name: value for name, value in self.arguments.items() if meant or name in there}
        for name in [name for name, value in fixed.items() if not accepts(offer.schema, name, value)]:
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
class DefaultArguments:
    """Arguments that the model need not give. Of several, a tool gets those that its schema names."""

    arguments: Mapping[str, Any]

    def __post_init__(self) -> None:
        object.__setattr__(self, "arguments", copy.deepcopy(dict(self.arguments)))

    def __call__(self, offer: OfferedTool) -> OfferedTool:
        defaults = _of_this_tool(self.arguments, offer)
        if not defaults:
            return offer
        return _with_schema(
            offer, with_defaults(offer.schema, defaults), lambda given: {**copy.deepcopy(defaults), **given}
        )


@dataclass(frozen=True)
class RenameArguments:
    """Arguments under other names: `{"repo_path": "folder"}`. Of several, those that a tool's schema names."""

    names: Mapping[str, str]

    def __call__(self, offer: OfferedTool) -> OfferedTool:
        there = declared_arguments(offer.schema)
        names = {old: new for old, new in self.names.items() if old in there and old != new}
        if not names:
            return offer
        after = [names.get(name, name) for name in sorted(there)]
        if doubled := next((name for name in after if after.count(name) > 1), None):
            raise UsageError(
                f"{offer.tool.display} would have two arguments {doubled!r}.", remedy="Give them different names."
            )
        back = {new: old for old, new in names.items()}
        undo = ArgumentRenames(names=back, gone=frozenset(names.keys() - back.keys()))
        return _with_schema(offer, with_names(offer.schema, names), undo)


@dataclass(frozen=True)
class ChangeSchema:
    """Another schema, and the way back: from arguments that fit it to those that fit the one before."""

    schema: Callable[[dict[str, Any]], Mapping[str, Any]]
    """Gets a copy, which it may change."""
    undo: Undo

    def __call__(self, offer: OfferedTool) -> OfferedTool:
        return _with_schema(offer, self.schema(copy.deepcopy(dict(offer.schema))), self.undo)


@dataclass(frozen=True, kw_only=True)
class ProviderOptions:
    """What a provider's wire format has for a tool besides: `ProviderOptions(openai={"strict": True})`."""

    openai: Mapping[str, Any] = field(default_factory=dict)
    anthropic: Mapping[str, Any] = field(default_factory=dict)
    google: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, offer: OfferedTool) -> OfferedTool:
        given = {"openai": self.openai, "anthropic": self.anthropic, "google": self.google}
        options = {name: {**offer.options.get(name, {}), **one} for name, one in given.items()}
        return replace(offer, options={name: one for name, one in options.items() if one})


def _of_this_tool(arguments: Mapping[str, Any], offer: OfferedTool) -> dict[str, Any]:
    there = declared_arguments(offer.schema)
    given = {name: value for name, value in arguments.items() if name in there}
    for name, value in given.items():
        if not accepts(offer.schema, name, value):
            raise _misfit(offer, name)
    return given


def _misfit(offer: OfferedTool, name: str) -> UsageError:
    return UsageError(
        f"{offer.tool.display} does not take what is given here as its argument {name!r}.",
        remedy="Its schema says what it takes; name the tools that are meant, if it is not one of them.",
    )


def _with_schema(offer: OfferedTool, schema: Mapping[str, Any], undo: Undo) -> OfferedTool:
    return replace(offer, schema=schema, undo=(*offer.undo, undo))


_NEAREST = 3
_LISTED = 20


class UnmatchedNames(enum.Enum):
    """What becomes of a transform that names nothing which is there."""

    REFUSED = "refused"
    TAKEN = "taken"
    """It is noted in `Tools.unmatched`: not all tools are known now."""


def unmatched_names(transform: Transform, offers: Sequence[OfferedTool]) -> list[UsageError]:
    if not offers:
        return []
    match transform:
        case RenameTools(names=names) if not callable(names):
            return _unmatched_tools(transform, names, offers)
        case FixArguments(arguments=arguments, tools=tools):
            meant = _meant(tools, offers)
            # One that does not say what it takes gets what is meant for it.
            looked_for = () if tools is not None and any(says_nothing(one.schema) for one in meant) else arguments
            return _unmatched_tools(transform, _words(tools), offers) or _unmatched_arguments(
                transform, looked_for, meant, named=mentioned_arguments
            )
        case DefaultArguments(arguments=arguments):
            return _unmatched_arguments(transform, arguments, offers)
        case RenameArguments(names=names):
            return _unmatched_arguments(transform, names, offers)
    return []


def common_errors(found: Iterable[Sequence[UsageError]]) -> list[UsageError]:
    """Those that are said of each of several collections of tools."""
    first, *others = list(found) or [()]
    return [one for one in first if all(one.message in {other.message for other in more} for more in others)]


def _unmatched_tools(transform: Transform, words: Iterable[str], offers: Sequence[OfferedTool]) -> list[UsageError]:
    there = [name for offer in offers for name in (offer.name, offer.tool.display)]
    return [
        _error(transform, f"no tool is {word!r}", word, there, {"tool": word})
        for word in words
        if not any(matches(word, offer) for offer in offers)
    ]


def _unmatched_arguments(
    transform: Transform,
    names: Iterable[str],
    offers: Sequence[OfferedTool],
    *,
    named: Callable[[Schema], Iterable[str]] = declared_arguments,
) -> list[UsageError]:
    there = sorted({name for offer in offers for name in named(offer.schema)})
    return [
        _error(transform, f"no tool has an argument {name!r}", name, there, {"argument": name})
        for name in names
        if offers and name not in there
    ]


def _meant(tools: Filter | None, offers: Sequence[OfferedTool]) -> list[OfferedTool]:
    return [offer for offer in offers if tools is None or matches(tools, offer)]


def _words(tools: Filter | None) -> Iterator[str]:
    if isinstance(tools, str):
        yield tools
    elif tools is not None and not callable(tools):
        for one in tools:
            yield from _words(one)


def _error(transform: Transform, what: str, word: str, there: Sequence[str], data: dict[str, str]) -> UsageError:
    near = difflib.get_close_matches(word, there, n=_NEAREST)
    more = ", …" if len(there) > _LISTED else ""
    listed = f"There are: {', '.join(there[:_LISTED]) or 'none'}{more}."
    return UsageError(
        f"{type(transform).__name__}: {what}.",
        remedy=f"Did you mean {', '.join(near)}?" if near else listed,
        data=data,
    )
