"""All tools known at one moment.

In: each server's raw definitions, and the tool rules of the configuration. Out: an immutable `Catalog` with a version,
which finds a tool by any of its names; the rules are applied once per listing. `core` builds one whenever a listing
changes; `policy`, `listing` and `calls` read it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Self

import msgspec
from msgspec import Raw

from toolcrib.catalog.names import COMPARED, Names, ToolKey, folded_name, name_tools, similar
from toolcrib.catalog.offered_tool import Filter, OfferedTool, annotated, matches, not_
from toolcrib.catalog.tool import BadDefinition, Tool, ToolOverride, decode_definition
from toolcrib.catalog.transforms import (
    DefaultArguments,
    DescribeTools,
    DropTools,
    FixArguments,
    ForTools,
    KeepTools,
    PrefixTools,
    ProviderOptions,
    RenameArguments,
    RenameTools,
    Transform,
    apply_transforms,
    unmatched_names,
)
from toolcrib.config.keys import ALL_TOOLS
from toolcrib.config.model import COMMANDS, GATEWAY_TOOLS, RESERVED_SERVER_NAMES, NameStyle
from toolcrib.config.tool_rule import RuleAction, ToolRule, ToolSelector
from toolcrib.errors import UnknownTool, UsageError

log = logging.getLogger(__name__)


def transforms_of(rules: Sequence[ToolRule]) -> tuple[Transform, ...]:
    return tuple(_transform(rule) for rule in rules)


def apply_rules(
    server: str, tools: Mapping[str, dict[str, Raw]], transforms: Sequence[Transform]
) -> dict[str, ToolOverride | None]:
    """Overrides by the tool's own name, None for an unchanged tool. Tools that are not offered are left out."""
    overrides: dict[str, ToolOverride | None] = {}
    for name, fields in tools.items():
        offer = _alone(server, name, fields)
        try:
            made = apply_transforms([offer], transforms)
        except UsageError as error:
            log.warning("%s is not offered: a rule in `tools:` does not fit it: %s", offer.tool.display, error.text())
            continue
        if made:
            overrides[name] = None if made[0] is offer else _override(made[0])
    return overrides


def unmatched_rules(tools: Mapping[ToolKey, dict[str, Raw]], rules: Sequence[ToolRule]) -> list[UsageError]:
    """Names in the rules that match none of `tools`, which must be complete."""
    offers = tuple(_alone(server, name, fields) for (server, name), fields in tools.items())
    found: list[UsageError] = []
    for transform in transforms_of(rules):
        meant, inner = offers, transform
        while isinstance(inner, ForTools):
            meant = tuple(offer for offer in meant if matches(inner.tools, offer))
            inner = inner.transform
        # `FixArguments` has its own filter; a misspelled tool name there would go unnoticed.
        found += unmatched_names(inner, offers if isinstance(inner, FixArguments) else meant)
        offers = apply_transforms(offers, transform, on_skipped=lambda offer, error: None)
    return found


def _alone(server: str, name: str, fields: dict[str, Raw]) -> OfferedTool:
    """The tool as if it were the only one: rules are applied before names are assigned."""
    names = Names(plain=name, mcp=name, server=name, display=f"{server}:{name}")
    return OfferedTool.of(Tool(server=server, name=name, fields=fields, names=names))


def _override(offer: OfferedTool) -> ToolOverride:
    fields = dict(offer.tool.fields)
    # Unchanged fields keep the server's own bytes.
    if offer.description != offer.tool.description:
        fields["description"] = Raw(msgspec.json.encode(offer.description))
    if offer.schema is not offer.tool.input_schema:
        fields["inputSchema"] = Raw(msgspec.json.encode(offer.schema))
    return ToolOverride(name=offer.name, fields=fields, options=offer.options, undo=offer.undo)


def _transform(rule: ToolRule) -> Transform:
    transform = _TRANSFORMS[rule.action](rule.value)
    for which in rule.only:
        transform = ForTools(_filter(which), transform)
    return transform


_TRANSFORMS: Mapping[RuleAction, Callable[[Any], Transform]] = {
    RuleAction.KEEP: lambda value: KeepTools(_filter(value)),
    RuleAction.DROP: lambda value: DropTools(_filter(value)),
    RuleAction.RENAME: RenameTools,
    RuleAction.PREFIX: PrefixTools,
    RuleAction.DESCRIBE: DescribeTools,
    RuleAction.FIX: FixArguments,
    RuleAction.DEFAULT: DefaultArguments,
    RuleAction.RENAME_ARGUMENTS: RenameArguments,
    RuleAction.OPTIONS: lambda value: ProviderOptions(**value),
}


def _filter(which: ToolSelector) -> Filter:
    named: list[Filter] = list(which.names)
    claimed: list[Filter] = [annotated(name) for name in which.annotations]
    return [*named, *claimed, *(not_(_filter(other)) for other in which.others)]


DefinitionsByServer = Mapping[str, tuple[bytes, ...]]
"""Each server's definitions, by its configured name, in the server's order."""

_Found = tuple[dict[str, Raw], ToolOverride | None]
"""A definition's fields and its override."""

_NEAREST = 5


@dataclass(frozen=True, kw_only=True, eq=False)
class Catalog:
    version: int
    tools: tuple[Tool, ...] = ()
    """Sorted by server; each server's tools in its own order."""
    _listings: DefinitionsByServer = field(default_factory=dict, repr=False)
    _rules: tuple[ToolRule, ...] = field(default=(), repr=False)
    _by_server: Mapping[str, tuple[Tool, ...]] = field(init=False, repr=False)
    _by_style: Mapping[NameStyle, Mapping[str, Tool]] = field(init=False, repr=False)
    _by_folded: Mapping[str, Tool] = field(init=False, repr=False)
    _by_display: Mapping[str, tuple[Tool, ...]] = field(init=False, repr=False)
    """By `server:tool` with the server's own tool name, and with the shown name if that is free."""

    def __post_init__(self) -> None:
        by_server: dict[str, list[Tool]] = {}
        by_display: dict[str, list[Tool]] = {}
        by_shown: dict[str, list[Tool]] = {}
        by_style: dict[NameStyle, dict[str, Tool]] = {style: {} for style in NameStyle}
        for tool in self.tools:
            by_server.setdefault(tool.server, []).append(tool)
            by_display.setdefault(tool.display, []).append(tool)
            if tool.override is not None and tool.override.name != tool.name:
                by_shown.setdefault(f"{tool.server}:{tool.override.name}", []).append(tool)
            for style, named in by_style.items():
                named[tool.names.of(style)] = tool
        folded = {folded_name(name): tool for named in by_style.values() for name, tool in named.items()}
        folded |= {folded_name(name): tool for tool in self.tools for name in tool.names.also}
        made = {
            "_by_server": {server: tuple(tools) for server, tools in by_server.items()},
            "_by_display": {display: tuple(tools) for display, tools in (by_shown | by_display).items()},
            "_by_style": {style: MappingProxyType(named) for style, named in by_style.items()},
            "_by_folded": folded,
        }
        for name, value in made.items():
            object.__setattr__(self, name, value)

    @classmethod
    def build(
        cls,
        listings: DefinitionsByServer,
        *,
        version: int,
        limit: int | None = None,
        previous: Catalog | None = None,
        trusted: frozenset[str] = frozenset(),
        covered: Mapping[str, Collection[str]] = MappingProxyType({}),
        folders: Mapping[str, str] = MappingProxyType({}),
        rules: tuple[ToolRule, ...] = (),
        cached: Mapping[str, Mapping[str, float]] = MappingProxyType({}),
    ) -> Self:
        """The catalog of these listings. `limit` lowers the length of every style's names (the gateway's is 48).
        `trusted` names the servers, besides the built-in ones, whose annotations count; for servers in `covered` they
        count only in definitions with these digests. `folders` has the servers' working folders, if known; `rules` are
        the configuration's tool rules; `cached` has the seconds that results are kept, by server and tool.

        Unchanged tools are reused from `previous`, object for object. An unreadable definition is left out and logged;
        the others stay.
        """
        known = previous if previous and previous._rules == rules else cls(version=0)
        kept: dict[str, tuple[Tool, ...]] = {}
        read: dict[str, Mapping[str, _Found]] = {}
        transforms = transforms_of(rules)
        for server in sorted(listings):
            if known._listings.get(server) == listings[server]:
                kept[server] = known.of_server(server)
            else:
                read[server] = _with_rules(server, _read(server, listings[server]), transforms)
        overrides = {(server, tool.name): tool.override for server, tools in kept.items() for tool in tools}
        overrides |= {(server, name): one for server, found in read.items() for name, (_, one) in found.items()}
        # The names of the gateway's own tools are taken.
        pairs = [*overrides, *((COMMANDS, name) for name in GATEWAY_TOOLS)]
        names = name_tools(pairs, limit=limit, called={key: one.name for key, one in overrides.items() if one})
        made: list[Tool] = []
        for server in sorted(listings):
            counts = server in trusted or server in RESERVED_SERVER_NAMES
            folder, digests = folders.get(server), covered.get(server)
            kept_for = cached.get(server, {})
            found = list(kept.get(server, ()))
            before = {tool.name: tool for tool in known.of_server(server)}
            for name, (fields, override) in read.get(server, {}).items():
                tool = before.get(name)
                if tool is None or tool.fields != fields:
                    tool = Tool(server=server, name=name, fields=fields, names=names[server, name], override=override)
                found.append(tool)
            made += (
                _adapted(
                    tool,
                    names[server, tool.name],
                    trusted=counts and (digests is None or tool.digest in digests),
                    folder=folder,
                    cache_seconds=kept_for.get(tool.name, kept_for.get(ALL_TOOLS, 0.0)),
                )
                for tool in found
            )
        return cls(version=version, tools=tuple(made), _listings=dict(listings), _rules=rules)

    def unmatched_rules(self) -> list[UsageError]:
        """Names in the rules that match no tool. Takes as long as building the catalog."""
        if not self._rules:
            return []
        tools: dict[ToolKey, dict[str, Raw]] = {}
        for server in self._listings.keys() - {COMMANDS}:
            for definition in self._listings[server]:
                # Unreadable definitions were logged when the catalog was built.
                with contextlib.suppress(BadDefinition):
                    name, fields = decode_definition(definition)
                    tools.setdefault((server, name), fields)
        return unmatched_rules(tools, self._rules)

    def __contains__(self, name: str) -> bool:
        """Whether `find` would succeed, without the search for suggestions."""
        return folded_name(name) in self._by_folded or len(self._by_display.get(name, ())) == 1

    def find(self, name: str, *, style: NameStyle | None = None, shown: Callable[[Tool], bool] | None = None) -> Tool:
        """The tool with this name, in any style or as `server:tool`.

        `style` sets the spelling of suggestions, and `shown` selects the tools to suggest (all by default).
        """
        if tool := self._by_folded.get(folded_name(name)):
            return tool
        displayed = self._by_display.get(name, ())
        if len(displayed) == 1:
            return displayed[0]
        if shown is not None:
            displayed = tuple(filter(shown, displayed))
        if displayed:
            nearest = [tool.names.of(style or NameStyle.SERVER) for tool in displayed[:_NEAREST]]
            message = f'"{_cut(name)}" matches several tools.'
        else:
            nearest = self._nearest(name, style, shown)
            message = f'There is no tool "{_cut(name)}".'
        remedy = f"Did you mean {', '.join(nearest)}?" if nearest else "List the tools to see their names."
        raise UnknownTool(message, remedy=remedy, data={"name": _cut(name), "nearest": nearest})

    def of_server(self, server: str) -> tuple[Tool, ...]:
        return self._by_server.get(server, ())

    def by_public(self, style: NameStyle) -> Mapping[str, Tool]:
        return self._by_style[style]

    def _nearest(self, name: str, style: NameStyle | None, shown: Callable[[Tool], bool] | None) -> list[str]:
        """Similar names, best first. Only similar tools are checked with `shown`, because that costs more."""
        named = self._by_style[style or NameStyle.SERVER]
        tools = list(named.values())
        seen: set[Tool] = set()
        nearest: list[str] = []
        # A model often forgets or invents the server's part, so the tool's own name counts as well.
        for position in similar(name, [*named, *(tool.name for tool in tools)]):
            tool = tools[position % len(tools)]
            if tool in seen:
                continue
            seen.add(tool)
            if shown is None or shown(tool):
                nearest.append(_cut(tool.display if style is None else tool.names.of(style)))
                if len(nearest) == _NEAREST:
                    break
        return nearest


def _read(server: str, definitions: tuple[bytes, ...]) -> dict[str, dict[str, Raw]]:
    """Each tool's fields by its own name; if a name is repeated, the first one counts."""
    tools: dict[str, dict[str, Raw]] = {}
    for position, definition in enumerate(definitions):
        try:
            name, fields = decode_definition(definition)
        except BadDefinition as error:
            log.warning("server %s: tool number %d is left out: invalid definition: %s", server, position, error)
            continue
        if tools.setdefault(name, fields) is not fields:
            log.warning("server %s lists %r twice; the first counts", server, _cut(name))
    return tools


def _with_rules(
    server: str, tools: Mapping[str, dict[str, Raw]], transforms: Sequence[Transform]
) -> Mapping[str, _Found]:
    """The remaining tools with their overrides. Rules don't apply to commands, so that you can't lock yourself out."""
    if not transforms or server == COMMANDS:
        return {name: (fields, None) for name, fields in tools.items()}
    return {name: (tools[name], override) for name, override in apply_rules(server, tools, transforms).items()}


def _adapted(tool: Tool, names: Names, *, trusted: bool, folder: str | None, cache_seconds: float) -> Tool:
    if tool.names != names or tool.trusted is not trusted or tool.folder != folder:
        tool = replace(tool, names=names, trusted=trusted, folder=folder)
    if cache_seconds and not tool.is_harmless:
        cache_seconds = 0.0
    return tool if tool.cache_seconds == cache_seconds else replace(tool, cache_seconds=cache_seconds)


def _cut(name: str) -> str:
    return name if len(name) <= COMPARED else f"{name[:COMPARED]}…"
