"""listing:cost and tool:find: what lists of tools cost, and the search that agents use.

The command line describes saved lists of tools with the same functions, without any server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from toolcrib.catalog.tool import Tool
from toolcrib.commands.registry import (
    Availability,
    CommandContext,
    CommandEffect,
    Parameters,
    ServersNeeded,
    registry,
)
from toolcrib.config.model import ListingMode, NameStyle
from toolcrib.errors import NotFound
from toolcrib.identity.principal import CLIENT
from toolcrib.listing.cost import ANTHROPIC, MODES, WITHOUT_CACHE, CostReport, conversation_costs, cost_of
from toolcrib.listing.gateway_tools import MOST_HITS
from toolcrib.listing.modes import wanted_mode
from toolcrib.listing.search import SearchIndex
from toolcrib.listing.signature import signature
from toolcrib.policy import Permission


class CostParameters(Parameters):
    agent: str | None = None


@registry.command("listing:cost", CommandEffect.REVEALS, Availability.SOCKET, servers=ServersNeeded.ALL)
async def cost(context: CommandContext, params: CostParameters) -> dict[str, Any]:
    """Show what the tools of each server cost in each listing mode, and what the agents really used."""
    project = context.project
    tools = await _tools(context, params.agent)
    mode = wanted_mode(_permission(context, params.agent).listing, project.config.settings.listing, client="")
    hints = context.services.favorites
    reports: dict[tuple[Tool, ...], CostReport] = {}

    async def report_on(tools: Sequence[Tool]) -> CostReport:
        key = tuple(tools)
        if key not in reports:
            reports[key] = await asyncio.to_thread(cost_of, tools, project.offers, project.config.settings.names, hints)
        return reports[key]

    used = _used(context, params.agent)
    for row in used:
        known = row["agent"] == CLIENT.name or context.services.agents.knows(row["agent"])
        row["full"] = (await report_on(await _tools(context, row["agent"]))).total(ListingMode.FULL) if known else None
    return {**described_cost(await report_on(tools)), "listing": str(mode), "used": used}


class FindParameters(Parameters):
    query: str
    server: str = ""
    limit: int = Field(default=8, ge=1, le=MOST_HITS)
    agent: str | None = None


@registry.command("tool:find", CommandEffect.REVEALS, Availability.SOCKET, servers=ServersNeeded.ALL)
async def find(context: CommandContext, params: FindParameters) -> dict[str, Any]:
    """Find tools as an agent would in search mode: the best match first."""
    tools = await _tools(context, params.agent)
    index = await context.project.search.complete(context.project.catalog)
    used = context.services.favorites.uses
    style = context.project.config.settings.names
    return described_hits(index, tools, style, params, used)


def described_hits(
    index: SearchIndex, tools: Sequence[Tool], style: NameStyle, params: FindParameters, used: Mapping[str, int]
) -> dict[str, Any]:
    """The hits among these tools."""
    if params.server and not any(tool.server == params.server for tool in tools):
        known = ", ".join(dict.fromkeys(tool.server for tool in tools)) or "there are none"
        raise NotFound(f"There is no server {params.server!r} with tools.", remedy=f"The servers: {known}.")
    shown = frozenset(tools)
    hits = index.find(params.query, shown=shown.__contains__, server=params.server, limit=params.limit, used=used)
    return {
        "hits": [
            {
                "name": hit.public(style),
                "display": hit.display,
                "signature": signature(hit, hit.public(style)),
                "description": hit.shown.description,
            }
            for hit in hits
        ],
        "tools": len(tools),
    }


async def _tools(context: CommandContext, agent: str | None) -> Sequence[Tool]:
    """Those that the agent may use."""
    await context.project.settled()
    permission = _permission(context, agent)
    return [tool for tool in context.project.catalog.tools if permission.shows(tool)]


def _permission(context: CommandContext, agent: str | None) -> Permission:
    if agent in (None, CLIENT.name):
        return CLIENT.permission()
    return context.services.agents.find(str(agent)).permission


def described_cost(report: CostReport) -> dict[str, Any]:
    full = report.total(ListingMode.FULL)
    return {
        "servers": [
            {"server": one.server, "tools": one.tools, **{str(mode): one.tokens[mode] for mode in MODES}}
            for one in report.servers
        ],
        "gateway_tools": {str(mode): report.gateway_tools[mode] for mode in MODES},
        "total": {str(mode): tokens for mode, tokens in report.totals.items()},
        "estimated": report.estimated,
        "auto": str(report.auto),
        "conversation": {
            word: {str(mode): round(share, 3) for mode, share in conversation_costs(report.totals, prices).items()}
            for word, prices in (("cached", ANTHROPIC), ("uncached", WITHOUT_CACHE))
            if full
        },
    }


def _used(context: CommandContext, agent: str | None) -> list[dict[str, Any]]:
    """By agent and mode: what its sessions have really used."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for session in context.services.sessions:
        if agent not in (None, session.agent):
            continue
        mode = session.mode if session.listings else ""
        row = found.setdefault(
            (session.agent, mode),
            {"agent": session.agent, "mode": mode, "sessions": 0, "listings": 0, "calls": 0, "tokens": {}},
        )
        row["sessions"] += 1
        row["listings"] += session.listings
        row["calls"] += session.calls
        for kind, tokens in session.usage.tokens.items():
            row["tokens"][kind] = row["tokens"].get(kind, 0) + tokens
    return [found[key] for key in sorted(found)]
