"""Transforms change how a tool is offered: its name, description and arguments.

In: an `OfferedTool`. Out: another one, or None if the tool is not offered. A transform is any function of one offered
tool, so you can write your own. Transforms run in order, and their changes to arguments are undone in reverse order.
`unmatched_names` finds names in a transform that match no tool: with a misspelled fixed argument, the model would
silently control that argument. A filter that selects nothing is not an error, and functions cannot be checked.
`Tools` applies transforms, and so does `snapshot` for the rules in configuration files.
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
"""Called with each tool that is left out because a transform does not fit it."""


def apply_transforms(
    offers: Iterable[OfferedTool], transforms: Sequence[Transform] | Transform, *, on_skipped: OnSkipped | None = None
) -> tuple[OfferedTool, ...]:
    """Applies the transforms in order. Raises their errors unless `on_skipped` is given."""
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
    """Offers only these tools."""

    tools: Filter

    def __post_init__(self) -> None:
        object.__setattr__(self, "tools", reusable_filter(self.tools))

    def __call__(self, offer: OfferedTool) -> OfferedTool | None:
        return offer if matches(self.tools, offer) else None


@dataclass(frozen=True)
class DropTools:
    """Offers all tools except these."""

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
            # The filter of `ForTools` also applies to the fixed arguments.
            object.__setattr__(self, "transform", replace(self.transform, tools=self.tools))

    def __call__(self, offer: OfferedTool) -> OfferedTool | None:
        return self.transform(offer) if matches(self.tools, offer) else offer


@dataclass(frozen=True)
class RenameTools:
    """Renames tools with a mapping of names (`read_file` or `files:read_file`) or a function of the offer."""

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
            raise UsageError("A prefix cannot be empty.", remedy="Remove PrefixTools.")

    def __call__(self, offer: OfferedTool) -> OfferedTool:
        return replace(offer, name=f"{self.prefix}_{offer.name}")


@dataclass(frozen=True)
class DescribeTools:
    """Replaces the description: a function of the offer, or a text with {server}, {name} and {description}."""

    words: str | Callable[[OfferedTool], str]

    def __post_init__(self) -> None:
        if isinstance(self.words, str) and (unknown := unknown_places(self.words)):
            raise UsageError(
                f"Unknown placeholder in a description: {{{unknown[0]}}}.", remedy=f"Use {{{'}, {'.join(PLACES)}}}."
            )

    def __call__(self, offer: OfferedTool) -> OfferedTool:
        if callable(self.words):
            return replace(offer, description=self.words(offer))
        words = {"server": offer.server, "name": offer.name, "description": offer.description}
        return replace(offer, description=filled(self.words, words))


@dataclass(frozen=True)
class FixArguments:
    """Fixes arguments. The model does not see them and cannot override them.

    A tool gets the arguments that its schema names. A tool that matches `tools` also gets them if its schema leaves the
    arguments open. A tool that `tools` names exactly always gets them, or is refused if it does not accept them.
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
        # Without `tools`, a tool that accepts anything must not get arguments meant for others.
        named = self.tools is not None and names_exactly(self.tools, offer)
        meant = named or (self.tools is not None and says_nothing(offer.schema))
        mentioned = mentioned_arguments(offer.schema)
        fixed = {name: value for name, value in self.arguments.items() if meant or name in mentioned}
        for name in [name for name, value in fixed.items() if not accepts(offer.schema, name, value)]:
            if named or name in mentioned:
                raise _misfit(offer, name)
            del fixed[name]
        return fixed


@dataclass(frozen=True)
class _Fixed:
    arguments: Mapping[str, Any]
    names: frozenset[str]
    """Includes those that this tool does not get: the model may give none of them, whatever the schema allows."""

    def __call__(self, given: dict[str, Any]) -> dict[str, Any]:
        left = {name: value for name, value in given.items() if name not in self.names}
        return left | copy.deepcopy(dict(self.arguments))


@dataclass(frozen=True)
class DefaultArguments:
    """Gives arguments a default. A tool gets those that its schema names."""

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
    """Renames arguments: `{"repo_path": "folder"}`. Applies to those that a tool's schema names."""

    names: Mapping[str, str]

    def __call__(self, offer: OfferedTool) -> OfferedTool:
        declared = declared_arguments(offer.schema)
        names = {old: new for old, new in self.names.items() if old in declared and old != new}
        if not names:
            return offer
        after = [names.get(name, name) for name in sorted(declared)]
        if doubled := next((name for name in after if after.count(name) > 1), None):
            raise UsageError(
                f"{offer.tool.display} would have two arguments named {doubled!r}.", remedy="Use different names."
            )
        back = {new: old for old, new in names.items()}
        undo = ArgumentRenames(names=back, gone=frozenset(names.keys() - back.keys()))
        return _with_schema(offer, with_names(offer.schema, names), undo)


@dataclass(frozen=True)
class ChangeSchema:
    """Replaces the schema. `undo` converts arguments for the new schema to those for the old one."""

    schema: Callable[[dict[str, Any]], Mapping[str, Any]]
    """Receives a copy, which it may modify."""
    undo: Undo

    def __call__(self, offer: OfferedTool) -> OfferedTool:
        return _with_schema(offer, self.schema(copy.deepcopy(dict(offer.schema))), self.undo)


@dataclass(frozen=True, kw_only=True)
class ProviderOptions:
    """Extra fields of a tool in a provider's wire format: `ProviderOptions(openai={"strict": True})`."""

    openai: Mapping[str, Any] = field(default_factory=dict)
    anthropic: Mapping[str, Any] = field(default_factory=dict)
    google: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, offer: OfferedTool) -> OfferedTool:
        given = {"openai": self.openai, "anthropic": self.anthropic, "google": self.google}
        options = {name: {**offer.options.get(name, {}), **one} for name, one in given.items()}
        return replace(offer, options={name: one for name, one in options.items() if one})


def _of_this_tool(arguments: Mapping[str, Any], offer: OfferedTool) -> dict[str, Any]:
    declared = declared_arguments(offer.schema)
    given = {name: value for name, value in arguments.items() if name in declared}
    for name, value in given.items():
        if not accepts(offer.schema, name, value):
            raise _misfit(offer, name)
    return given


def _misfit(offer: OfferedTool, name: str) -> UsageError:
    return UsageError(
        f"{offer.tool.display} does not accept the value given for its argument {name!r}.",
        remedy="Give a value that fits the tool's schema, or limit the transform to other tools.",
    )


def _with_schema(offer: OfferedTool, schema: Mapping[str, Any], undo: Undo) -> OfferedTool:
    return replace(offer, schema=schema, undo=(*offer.undo, undo))


_MAX_SUGGESTIONS = 3
_MAX_LISTED = 20


class UnmatchedNames(enum.Enum):
    """How to treat a transform with a name that matches no tool."""

    REFUSED = "refused"
    TAKEN = "taken"
    """It is listed in `Tools.unmatched`, because not all tools are known yet."""


def unmatched_names(transform: Transform, offers: Sequence[OfferedTool]) -> list[UsageError]:
    if not offers:
        return []
    match transform:
        case RenameTools(names=names) if not callable(names):
            return _unmatched_tools(transform, names, offers)
        case FixArguments(arguments=arguments, tools=tools):
            meant = _meant(tools, offers)
            # A tool with an open schema gets any argument meant for it.
            looked_for = () if tools is not None and any(says_nothing(one.schema) for one in meant) else arguments
            return _unmatched_tools(transform, _patterns(tools), offers) or _unmatched_arguments(
                transform, looked_for, meant, named=mentioned_arguments
            )
        case DefaultArguments(arguments=arguments):
            return _unmatched_arguments(transform, arguments, offers)
        case RenameArguments(names=names):
            return _unmatched_arguments(transform, names, offers)
    return []


def common_errors(found: Iterable[Sequence[UsageError]]) -> list[UsageError]:
    """The errors that occur in every one of several collections of tools."""
    first, *others = list(found) or [()]
    return [one for one in first if all(one.message in {other.message for other in more} for more in others)]


def _unmatched_tools(transform: Transform, patterns: Iterable[str], offers: Sequence[OfferedTool]) -> list[UsageError]:
    known = [name for offer in offers for name in (offer.name, offer.tool.display)]
    return [
        _error(transform, f"no tool matches {pattern!r}", pattern, known, {"tool": pattern})
        for pattern in patterns
        if not any(matches(pattern, offer) for offer in offers)
    ]


def _unmatched_arguments(
    transform: Transform,
    names: Iterable[str],
    offers: Sequence[OfferedTool],
    *,
    named: Callable[[Schema], Iterable[str]] = declared_arguments,
) -> list[UsageError]:
    known = sorted({name for offer in offers for name in named(offer.schema)})
    return [
        _error(transform, f"no tool has an argument {name!r}", name, known, {"argument": name})
        for name in names
        if offers and name not in known
    ]


def _meant(tools: Filter | None, offers: Sequence[OfferedTool]) -> list[OfferedTool]:
    return [offer for offer in offers if tools is None or matches(tools, offer)]


def _patterns(tools: Filter | None) -> Iterator[str]:
    if isinstance(tools, str):
        yield tools
    elif tools is not None and not callable(tools):
        for one in tools:
            yield from _patterns(one)


def _error(transform: Transform, what: str, name: str, known: Sequence[str], data: dict[str, str]) -> UsageError:
    near = difflib.get_close_matches(name, known, n=_MAX_SUGGESTIONS)
    more = ", …" if len(known) > _MAX_LISTED else ""
    listed = f"Available: {', '.join(known[:_MAX_LISTED]) or 'none'}{more}."
    return UsageError(
        f"{type(transform).__name__}: {what}.",
        remedy=f"Did you mean {', '.join(near)}?" if near else listed,
        data=data,
    )
