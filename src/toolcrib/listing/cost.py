"""What lists of tools cost, in tokens and over a conversation.

In: the tools that an agent may use. Out: a `CostReport` with the tokens of each server in each mode, and what each mode
costs in a conversation, with and without a provider's prompt cache. Used by `commands.listing` and the command line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from toolcrib.audit.row import count_tokens, estimate_tokens
from toolcrib.catalog.offers import OfferCatalog
from toolcrib.catalog.tool import Tool
from toolcrib.config.model import ListingMode, NameStyle
from toolcrib.listing.cache import hinted_definition
from toolcrib.listing.gateway_tools import gateway_tool_definitions, server_lines
from toolcrib.listing.hints import NO_HINTS, ListingHints
from toolcrib.listing.modes import resolve_mode, size_in_tokens

MODES = (ListingMode.FULL, ListingMode.THIN, ListingMode.SEARCH)


@dataclass(frozen=True, kw_only=True)
class ServerCost:
    server: str
    tools: int
    tokens: Mapping[ListingMode, int]


@dataclass(frozen=True, kw_only=True)
class CostReport:
    servers: Sequence[ServerCost]
    gateway_tools: Mapping[ListingMode, int]
    """Tokens of the tools that Toolcrib adds."""
    estimated: bool
    """Whether the tokens are estimates, because no tokenizer is installed."""
    auto: ListingMode
    """The mode that `auto` picks for a client that does not defer definitions itself."""

    def total(self, mode: ListingMode) -> int:
        return self.gateway_tools[mode] + sum(one.tokens[mode] for one in self.servers)

    @property
    def totals(self) -> Mapping[ListingMode, int]:
        return {mode: self.total(mode) for mode in MODES}


def cost_of(
    tools: Sequence[Tool], offers: OfferCatalog, style: NameStyle, hints: ListingHints = NO_HINTS
) -> CostReport:
    """Takes a few milliseconds per tool the first time: run it in a thread."""

    def thin(tool: Tool) -> bytes:
        return hinted_definition(tool, tool.public(style), hints)

    lines = dict(zip(dict.fromkeys(tool.server for tool in tools), server_lines(tools, offers), strict=True))
    favorites = hints.listed({tool.display for tool in tools}.__contains__)
    servers = []
    for server, group in groupby(tools, key=lambda tool: tool.server):
        mine = tuple(group)
        tokens = {
            ListingMode.FULL: _tokens([tool.render(tool.public(style)) for tool in mine]),
            ListingMode.THIN: _tokens([thin(tool) for tool in mine]),
            ListingMode.SEARCH: _tokens(
                [lines[server].encode(), *(thin(tool) for tool in mine if tool.display in favorites)]
            ),
        }
        servers.append(ServerCost(server=server, tools=len(mine), tokens=tokens))
    whole = b",".join(tool.render(tool.public(style)) for tool in tools)
    counted = count_tokens(b"{}")
    return CostReport(
        servers=servers,
        gateway_tools={
            mode: _tokens(gateway_tool_definitions(mode, style, (), offers)) if tools else 0 for mode in MODES
        },
        estimated=counted is None or counted.estimated,
        auto=resolve_mode(ListingMode.AUTO, client="", tokens=size_in_tokens(whole)),
    )


def _tokens(definitions: Sequence[bytes]) -> int:
    counted = map(count_tokens, definitions)
    return sum(
        estimate_tokens(one) if count is None else count.tokens for one, count in zip(definitions, counted, strict=True)
    )


@dataclass(frozen=True, kw_only=True)
class PromptPrices:
    """A provider's prices, relative to a token of input without a cache."""

    provider: str
    year: int
    """When these were the prices of its current models."""
    write: float
    """A token that is read for the first time, and kept."""
    read: float
    """A token that the cache has."""
    output: float


ANTHROPIC = PromptPrices(provider="Anthropic", year=2026, write=1.25, read=0.1, output=5.0)
OPENAI = PromptPrices(provider="OpenAI", year=2026, write=1.0, read=0.1, output=6.0)
WITHOUT_CACHE = PromptPrices(provider="no prompt cache", year=2026, write=1.0, read=1.0, output=5.0)

COMPLETIONS = 20
START_TOKENS = 3_000
"""The first prompt, without the tools' definitions."""
TURN_TOKENS = 700
"""The tokens that each completion adds to the conversation: a call, and its result."""
OUTPUT_TOKENS = 200
"""Of these, the tokens that the model writes."""


def conversation_cost(
    lists: Mapping[ListingMode, int], mode: ListingMode, prices: PromptPrices, start: int = START_TOKENS
) -> float:
    """The price of a conversation, in tokens of input, with lists of these sizes. In search mode, there is a search for
    every two calls, which is a completion of its own."""
    completions = COMPLETIONS * 3 // 2 if mode is ListingMode.SEARCH else COMPLETIONS
    price, history, seen = 0.0, start, 0
    before: ListingMode | None = None
    for number in range(completions):
        listed = mode
        if mode is ListingMode.HANDSHAKE:
            listed = ListingMode.THIN if number else ListingMode.FULL
        prompt = lists[listed] + history
        # The list is at the beginning, so a changed list makes everything after it new.
        known = seen if listed is before else 0
        price += known * prices.read + (prompt - known) * prices.write + OUTPUT_TOKENS * prices.output
        before, seen = listed, prompt
        history += TURN_TOKENS
    return price


def conversation_costs(
    lists: Mapping[ListingMode, int], prices: PromptPrices, start: int = START_TOKENS
) -> dict[ListingMode, float]:
    """The price of a conversation in each mode, relative to full lists."""
    modes = (*MODES, ListingMode.HANDSHAKE)
    costs = {mode: conversation_cost(lists, mode, prices, start) for mode in modes}
    return {mode: cost / costs[ListingMode.FULL] for mode, cost in costs.items()}
