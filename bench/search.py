"""How well and how fast tools are found: `python bench/search.py [--data FOLDER] [--no-embeddings] [--json FILE]`.

In: a folder with `catalogs/*.json` (`server`, `tools`) and `queries.jsonl` (`query`, `server`, `tool`, `also`: further
right answers). Out: one table on stdout: the share of queries whose tool is among the first hits, and the time of a
search, with and without embeddings; then the queries that miss it. Without a data folder, it prints a message and ends.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from report import Figure, rounded
from toolcrib.catalog.snapshot import Catalog
from toolcrib.catalog.tool import Tool
from toolcrib.listing.search import SearchIndex, has_embeddings

if has_embeddings():
    from toolcrib.listing.embeddings import Embeddings

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
SHOWN = 8
MEASURED = (1, 5, SHOWN, 10)
TIMED_TOOLS = 1_658
ROUNDS = 5


def listings(data: Path) -> dict[str, tuple[bytes, ...]]:
    saved = [json.loads(file.read_bytes()) for file in sorted((data / "catalogs").glob("*.json"))]
    return {one["server"]: tuple(json.dumps(tool).encode() for tool in one["tools"]) for one in saved}


def queries(data: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (data / "queries.jsonl").read_text().splitlines()]


def everything(_: Tool) -> bool:
    return True


def rank(index: SearchIndex, query: dict[str, Any]) -> int | None:
    """The place of the first right tool, from 1."""
    right = {(query["server"], query["tool"]), *map(tuple, query["also"])}
    hits = index.find(query["query"], shown=everything, limit=max(MEASURED))
    return next((place for place, hit in enumerate(hits, start=1) if (hit.server, hit.name) in right), None)


def many(listed: dict[str, tuple[bytes, ...]]) -> tuple[Tool, ...]:
    """As many tools as 72 real servers have: the servers again, under other names, until there are enough."""
    copies = 1 + TIMED_TOOLS // sum(map(len, listed.values()))
    named = {f"{server}-{copy}" if copy else server: raw for copy in range(copies) for server, raw in listed.items()}
    return Catalog.build(named, version=1).tools[:TIMED_TOOLS]


def milliseconds(index: SearchIndex, asked: Sequence[dict[str, Any]]) -> list[float]:
    spent = []
    for _ in range(ROUNDS):
        for query in asked:
            began = time.perf_counter_ns()
            index.find(query["query"], shown=everything)
            spent.append((time.perf_counter_ns() - began) / 1e6)
    return sorted(spent)


def building(tools: Sequence[Tool]) -> tuple[float, float]:
    """Milliseconds to build the index, and the MB that it keeps."""
    began = time.perf_counter_ns()
    SearchIndex.build(tools)
    spent = (time.perf_counter_ns() - began) / 1e6
    tracemalloc.start()
    index = SearchIndex.build(tools)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del index
    return spent, kept / 1e6


def measure(data: Path, *, embeddings: bool) -> tuple[Figure, list[str]]:
    listed, asked = listings(data), queries(data)
    found, timed = Catalog.build(listed, version=1).tools, many(listed)
    spent, kept = building(timed)
    figure = Figure(
        name="search",
        title=f"{len(asked)} queries among {len(found):,} tools; times among {len(timed):,}",
        keys=("ranking",),
        values=(*(f"recall@{place}" for place in MEASURED), "p50 ms", "p95 ms"),
        notes=(f"building the index of {len(timed):,} tools without embeddings: {spent:.0f} ms, {kept:.1f} MB",),
    )
    missed: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        model = Embeddings(Path(folder)) if embeddings and has_embeddings() else None
        for ranking, vectors in {"words": None, "words and embeddings": model}.items():
            if ranking != "words" and vectors is None:
                figure.add_not_measured((ranking,), "toolcrib[search] is not installed, or --no-embeddings")
                continue
            index, large = SearchIndex.build(found), SearchIndex.build(timed)
            if vectors is not None:
                index.meanings, large.meanings = vectors.meanings(found), vectors.meanings(timed)
            ranks = [rank(index, query) for query in asked]
            shares = {f"recall@{top}": sum(1 for at in ranks if at and at <= top) / len(ranks) for top in MEASURED}
            times = milliseconds(large, asked)
            values = {**shares, "p50 ms": times[len(times) // 2], "p95 ms": times[int(len(times) * 0.95)]}
            figure.add((ranking,), {name: rounded(value) for name, value in values.items()})
            missed += (
                f"{ranking}: {query['query']!r} -> {query['server']}:{query['tool']}"
                for query, at in zip(asked, ranks, strict=True)
                if at is None or at > SHOWN
            )
    return figure, missed


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench/search.py", description="How well and how fast tools are found.")
    parser.add_argument("--data", metavar="FOLDER", type=Path, default=DATA, help="catalogs/*.json and queries.jsonl")
    parser.add_argument("--no-embeddings", action="store_true", help="only the words")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the results there as well")
    options = parser.parse_args()
    if not (options.data / "queries.jsonl").exists():
        print(f"not measured: {options.data} has no queries.jsonl; name a folder with --data")
        return 0
    figure, missed = measure(options.data, embeddings=not options.no_embeddings)
    print(figure.as_text())
    print(f"\nnot among the first {SHOWN}:", *(missed or ["none"]), sep="\n  ")
    if options.json:
        options.json.write_text(json.dumps({**figure.as_json(), "missed": missed}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
