"""favorites:* — the tools that search mode lists directly: list, add, remove, refresh.

In: tools' names. Out: the favorite tools in order, with the reason and the number of calls of each.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from toolcrib.commands.registry import (
    Availability,
    CommandContext,
    CommandEffect,
    CommandScope,
    Parameters,
    ServersNeeded,
    registry,
)
from toolcrib.core.favorites import COUNTED_DAYS, MOST_LISTED
from toolcrib.errors import UnknownTool


def _described(context: CommandContext) -> dict[str, Any]:
    favorites = context.services.favorites
    return {
        "favorites": [
            {"tool": row.tool, "origin": row.origin, "calls": favorites.uses.get(row.tool, 0)} for row in favorites.all
        ],
        "listed": MOST_LISTED,
        "days": COUNTED_DAYS,
        "counted_at": favorites.counted_at or None,
        "levels": dict(favorites.levels),
    }


@registry.command("favorites:list", CommandEffect.REVEALS, Availability.SOCKET, scope=CommandScope.DAEMON)
async def list_favorites(context: CommandContext, _: Parameters) -> dict[str, Any]:
    """List the favorite tools: those that you chose, then the most used."""
    return _described(context)


class NamedTools(Parameters):
    tools: Annotated[list[str], Field(min_length=1, max_length=100)]


@registry.command(
    "favorites:add", CommandEffect.CHANGES, Availability.SOCKET, servers=ServersNeeded.SETTLED, cached=True
)
async def add(context: CommandContext, params: NamedTools) -> dict[str, Any]:
    """Choose favorite tools, in the order in which they are listed."""
    await context.services.favorites.add([context.project.find(name).display for name in params.tools])
    return _described(context)


@registry.command("favorites:remove", CommandEffect.CHANGES, Availability.SOCKET, cached=True)
async def remove(context: CommandContext, params: NamedTools) -> dict[str, Any]:
    """Remove favorite tools; the most used ones too stay removed until you add them."""
    await context.services.favorites.remove([_display(context, name) for name in params.tools])
    return _described(context)


def _display(context: CommandContext, name: str) -> str:
    """Its server may be gone."""
    try:
        return context.project.catalog.find(name).display
    except UnknownTool:
        return name


@registry.command(
    "favorites:refresh", CommandEffect.CHANGES, Availability.SOCKET, scope=CommandScope.DAEMON, cached=True
)
async def refresh(context: CommandContext, _: Parameters) -> dict[str, Any]:
    """Count the calls of the last 30 days now, as the daemon does once a day."""
    await context.services.favorites.recount()
    return _described(context)
