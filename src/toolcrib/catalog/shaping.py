"""A configuration's rules for tools, put to work.

In: the rules and what a server listed. Out: a `Shape` for each tool that is still offered. `snapshot` asks, once for
every listing; without rules nobody comes here.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Raw

from toolcrib.catalog.filters import Filter, claiming, matches, not_
from toolcrib.catalog.idle import idle_in
from toolcrib.catalog.names import Names, Pair
from toolcrib.catalog.offer import Offer
from toolcrib.catalog.shape import Shape
from toolcrib.catalog.tool import Tool
from toolcrib.catalog.transforms import (
    Default,
    Describe,
    Drop,
    Fix,
    Keep,
    Only,
    Options,
    Prefix,
    Rename,
    RenameArgument,
    Transform,
    transformed,
)
from toolcrib.config.model import Does, ToolRule, Which
from toolcrib.errors import UsageError

log = logging.getLogger(__name__)


def transforms_of(rules: Sequence[ToolRule]) -> tuple[Transform, ...]:
    return tuple(_transform(rule) for rule in rules)


def shaped(
    server: str, tools: Mapping[str, dict[str, Raw]], transforms: Sequence[Transform]
) -> dict[str, Shape | None]:
    """By each tool's own name: its shape, None where it is as the server has it. What is not offered is not in it."""
    shapes: dict[str, Shape | None] = {}
    for name, fields in tools.items():
        offer = _alone(server, name, fields)
        try:
            made = transformed([offer], transforms)
        except UsageError as error:
            log.warning("%s is not offered, a rule of `tools:` does not fit it: %s", offer.tool.display, error.text())
            continue
        if made:
            shapes[name] = None if made[0] is offer else _shape(made[0])
    return shapes


def idle(tools: Mapping[Pair, dict[str, Raw]], rules: Sequence[ToolRule]) -> list[UsageError]:
    """What the rules name and none of these tools, which are all that there are, has."""
    offers = tuple(_alone(server, name, fields) for (server, name), fields in tools.items())
    found: list[UsageError] = []
    for transform in transforms_of(rules):
        meant, inner = offers, transform
        while isinstance(inner, Only):
            meant = tuple(offer for offer in meant if matches(inner.tools, offer))
            inner = inner.transform
        # Fixed arguments know for which tools they are, and one that is misspelt would go without them.
        found += idle_in(inner, offers if isinstance(inner, Fix) else meant)
        offers = transformed(offers, transform, skipping=lambda offer, error: None)
    return found


def _alone(server: str, name: str, fields: dict[str, Raw]) -> Offer:
    """The tool as if it were the only one: rules are made before names are."""
    names = Names(plain=name, mcp=name, server=name, display=f"{server}:{name}")
    return Offer.of(Tool(server=server, name=name, fields=fields, names=names))


def _shape(offer: Offer) -> Shape:
    fields = dict(offer.tool.fields)
    # What did not change keeps the server's own bytes.
    if offer.description != offer.tool.description:
        fields["description"] = Raw(msgspec.json.encode(offer.description))
    if offer.schema is not offer.tool.input_schema:
        fields["inputSchema"] = Raw(msgspec.json.encode(offer.schema))
    return Shape(name=offer.name, fields=fields, options=offer.options, undo=offer.undo)


def _transform(rule: ToolRule) -> Transform:
    transform = _made(rule)
    for which in rule.only:
        transform = Only(_filter(which), transform)
    return transform


def _made(rule: ToolRule) -> Transform:
    value = rule.value
    match rule.does:
        case Does.KEEP:
            return Keep(_filter(value))
        case Does.DROP:
            return Drop(_filter(value))
        case Does.RENAME:
            return Rename(value)
        case Does.PREFIX:
            return Prefix(value)
        case Does.DESCRIBE:
            return Describe(value)
        case Does.FIX:
            return Fix(value)
        case Does.DEFAULT:
            return Default(value)
        case Does.RENAME_ARGUMENTS:
            return RenameArgument(value)
        case Does.OPTIONS:
            return Options(**value)


def _filter(which: Which) -> Filter:
    named: list[Filter] = list(which.names)
    claimed: list[Filter] = [claiming(name) for name in which.annotations]
    return [*named, *claimed, *(not_(_filter(other)) for other in which.others)]
