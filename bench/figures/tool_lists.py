"""What is saved by short lists, and whether they are enough: from saved answers to tools/list, without any server.

In: catalogs by the name of a profile, queries. Out: `Figure`s with the tokens of lists in each mode, the servers that
thin definitions save least of, the calls that scripted callers manage, the size of an answer to a search, and the price
of a conversation in each mode under providers' prices.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from parts import scripted_callers as callers
from report import Cell, Figure
from toolcrib.audit.row import count_tokens
from toolcrib.catalog.offers import OfferCatalog
from toolcrib.catalog.snapshot import Catalog
from toolcrib.config.model import ListingMode, NameStyle
from toolcrib.listing.cost import (
    ANTHROPIC,
    OPENAI,
    START_TOKENS,
    WITHOUT_CACHE,
    CostReport,
    conversation_costs,
    cost_of,
)
from toolcrib.listing.search import SearchIndex
from toolcrib.listing.signature import signature
from toolcrib.listing.thin import thin_definition

STYLE = NameStyle.SERVER
HITS = 8
WORST = 8
SHORT_LISTS = {ListingMode.FULL: 4_000, ListingMode.THIN: 750}
SHORT_START = 45_000
"""A short list in a long conversation, where a changed list costs most."""


def measure(profiles: Mapping[str, Catalog], queries: Sequence[str]) -> list[Figure]:
    """The last profile has all servers."""
    reports = {name: cost_of(catalog.tools, OfferCatalog(), STYLE) for name, catalog in profiles.items()}
    *_, (_, whole) = reports.items()
    *_, (_, every) = profiles.items()
    return [
        _sizes(reports),
        _worst(whole),
        _callers(every),
        _answers(every, queries),
        _prices(reports),
    ]


def _sizes(reports: Mapping[str, CostReport]) -> Figure:
    modes = ("full", "thin", "search")
    figure = Figure(
        name="lists",
        title="tokens of tools/list in each mode, o200k",
        keys=("servers",),
        values=("tools", *modes, "thin %", "search %", "auto"),
        notes=("with the tools that Toolcrib adds; auto: for a client that does not defer definitions itself.",),
    )
    for name, report in reports.items():
        full, thin, search = (report.total(ListingMode(mode)) for mode in modes)
        figure.add(
            (name,),
            {
                "tools": sum(server.tools for server in report.servers),
                "full": full,
                "thin": thin,
                "search": search,
                "thin %": _percent(thin, full),
                "search %": _percent(search, full),
                "auto": str(report.auto),
            },
        )
    return figure


def _worst(report: CostReport) -> Figure:
    figure = Figure(
        name="worst",
        title="the servers of which thin saves least",
        keys=("server",),
        values=("tools", "full", "thin", "thin %"),
    )

    def share(tokens: Mapping[ListingMode, int]) -> float:
        return _percent(tokens[ListingMode.THIN], tokens[ListingMode.FULL])

    for server in sorted(report.servers, key=lambda server: -share(server.tokens))[:WORST]:
        full, thin = server.tokens[ListingMode.FULL], server.tokens[ListingMode.THIN]
        figure.add(
            (server.server,), {"tools": server.tools, "full": full, "thin": thin, "thin %": share(server.tokens)}
        )
    return figure


def _callers(catalog: Catalog) -> Figure:
    figure = Figure(
        name="callers",
        title="calls that scripted callers manage from a definition alone, in percent",
        keys=("caller",),
        values=("attempts", "full", "thin", "lost"),
        notes=(
            "the first row: arguments that fit the whole schema at the first call; the others: success in two calls.",
            "lost: managed with full definitions, but not with thin ones. Scripted callers prove that a definition is "
            "enough, not that a model chooses well.",
        ),
    )
    tools = dict(catalog.by_public(STYLE))
    definitions = {
        name: (msgspec.json.decode(tool.render(name)), msgspec.json.decode(thin_definition(tool, name)))
        for name, tool in tools.items()
    }
    fits = [
        pair
        for name, (full, thin) in definitions.items()
        for pair in zip(callers.first_calls(full, tools[name]), callers.first_calls(thin, tools[name]), strict=True)
    ]
    figure.add(("first call fits",), _managed(fits))
    for caller, attempt in callers.attempts(callers.checking(tools)).items():
        pairs = [
            (attempt(full, habit) is not None, attempt(thin, habit) is not None)
            for (full, thin), habit in itertools.product(definitions.values(), callers.HABITS)
        ]
        figure.add((caller,), _managed(pairs))
    return figure


def _managed(pairs: Sequence[tuple[bool, bool]]) -> dict[str, Cell]:
    full, thin = (sum(column) for column in zip(*pairs, strict=True))
    return {
        "attempts": len(pairs),
        "full": _percent(full, len(pairs)),
        "thin": _percent(thin, len(pairs)),
        "lost": sum(could and not can for could, can in pairs),
    }


def _answers(catalog: Catalog, queries: Sequence[str]) -> Figure:
    figure = Figure(
        name="answers",
        title=f"tokens of an answer of {HITS} hits to `crib_find`, o200k",
        keys=("queries",),
        values=("median", "p95", "most"),
        notes=("`python bench/search.py` measures how well and how fast tools are found.",),
    )
    index = SearchIndex.build(catalog.tools)
    sizes = []
    for query in queries:
        hits = index.find(query, shown=lambda _: True, limit=HITS)
        sizes.append(_tokens("\n".join(signature(hit, hit.public(STYLE)) for hit in hits)))
    *_, p95 = statistics.quantiles(sizes, n=20, method="inclusive")
    figure.add((len(queries),), {"median": round(statistics.median(sizes)), "p95": round(p95), "most": max(sizes)})
    return figure


def _prices(reports: Mapping[str, CostReport]) -> Figure:
    modes = (*(ListingMode.FULL, ListingMode.THIN, ListingMode.SEARCH, ListingMode.HANDSHAKE), ListingMode.AUTO)
    figure = Figure(
        name="prices",
        title="the price of a task of 20 calls in each mode, in percent of full",
        keys=("lists", "prices"),
        values=("conversation", *modes),
        notes=(
            "conversation: the tokens before the first completion, without the lists.",
            *(
                f"{one.provider} ({one.year}), relative to a token of input: cache write {one.write}, "
                f"cache read {one.read}, output {one.output}."
                for one in (ANTHROPIC, OPENAI)
            ),
            "search has one search for every two calls; its list grows only by a line for each server.",
        ),
    )
    *_, (_, last) = reports.items()
    short = {**SHORT_LISTS, ListingMode.SEARCH: last.gateway_tools[ListingMode.SEARCH]}
    cases: Iterable[tuple[str, Mapping[ListingMode, int], int, ListingMode]] = (
        ("4,000 tokens, thin 750", short, SHORT_START, ListingMode.FULL),
        *((name, report.totals, START_TOKENS, report.auto) for name, report in reports.items()),
    )
    for name, lists, start, auto in cases:
        for prices in (WITHOUT_CACHE, ANTHROPIC, OPENAI):
            costs = conversation_costs(lists, prices, start)
            shares: dict[str, Cell] = {str(mode): _percent(cost, 1) for mode, cost in costs.items()}
            shares[str(ListingMode.AUTO)] = shares[str(auto)]
            figure.add((name, prices.provider), {"conversation": start, **shares})
    return figure


def _percent(part: float, whole: float) -> float:
    return round(100 * part / whole, 1)


def _tokens(text: str) -> int:
    found = count_tokens(text.encode())
    assert found is not None
    return found.tokens


def of_tools(listings: Mapping[str, Sequence[Any]]) -> Catalog:
    """From each server's tools."""
    return Catalog.build(
        {server: tuple(msgspec.json.encode(tool) for tool in tools) for server, tools in listings.items()}, version=1
    )
