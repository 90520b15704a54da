"""What lists of tools cost in each mode: `python bench/tokens.py [--data FOLDER] [--only NAME] [--record]`.

In: saved answers to tools/list (`catalogs/*.json`) and queries (`queries.jsonl`) of a data folder; without one, the
lists of five real servers that the tests install. Out: tables on stdout, progress on stderr, and JSON if asked for;
with `--record`, `figures/tokens.json`, from which `tools/token_tables.py` makes tables and a picture for the docs.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

# The scripted callers, the real servers and the scripted models are parts of the tests.
sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))

from at_work import servers
from figures import listing_clients, tool_lists
from parts import fleet, leftovers
from parts.raw_client import initialize, legacy_request, notice
from report import Figure
from targets import NotMeasured
from toolcrib.catalog.snapshot import Catalog

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
RECORDED = Path(__file__).parent / "figures" / "tokens.json"
TEN = (
    *("atlassian", "context7", "filesystem", "firecrawl", "github"),
    *("memory", "mongodb", "notion", "playwright", "slack"),
)
"""What many people have: a tracker, documents, a browser, a database, files."""
QUERIES = ("read a file", "what time is it in another country", "commit my changes", "remember a fact", "add numbers")
"""For the five servers."""
LIMIT = 60.0


def main() -> int:
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    data: Path = options.data
    found_there = leftovers.look()
    figures: list[Figure] = []
    measures: dict[str, Callable[[], list[Figure]]] = {
        "lists": lambda: tool_lists.measure(*(saved(data) if (data / "catalogs").is_dir() else of_real_servers())),
        "clients": lambda: [listing_clients.measure(data / "catalogs")],
    }
    print("Tokens are counted with o200k. Callers and models are scripted: they prove that a list is enough and what")
    print("it costs, not that a real model chooses well.")
    for name in options.only or measures:
        try:
            for figure in measures[name]():
                figures.append(figure)
                print("\n" + figure.as_text(), flush=True)
        except NotMeasured as reason:
            print(f"\n{name}: not measured: {reason}", flush=True)
    content = [figure.as_json() for figure in figures]
    for file in (options.json, RECORDED if options.record else None):
        if file is not None:
            file.write_text(json.dumps({"figures": content}, indent=1, ensure_ascii=False) + "\n")
    for process in leftovers.left_behind(found_there, None):
        print(f"left behind, and ended now: {process.pid} {process.words[:120]}", file=sys.stderr)
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench/tokens.py", description="What lists of tools cost in each mode.")
    parser.add_argument("--data", metavar="FOLDER", type=Path, default=DATA, help=f"default: {DATA}")
    parser.add_argument("--only", action="append", choices=("lists", "clients"), help="may be repeated")
    parser.add_argument("--record", action="store_true", help=f"write {RECORDED.name}, for the documentation")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the results there as well")
    return parser.parse_args()


def saved(data: Path) -> tuple[Mapping[str, Catalog], Sequence[str]]:
    read = [json.loads(file.read_bytes()) for file in sorted((data / "catalogs").glob("*.json"))]
    lists = {one["server"]: one["tools"] for one in read}
    ten = {name: lists[name] for name in TEN if name in lists}
    profiles = {f"{len(several)} servers": tool_lists.of_tools(several) for several in (ten, lists)}
    queries = [json.loads(line)["query"] for line in (data / "queries.jsonl").read_text().splitlines()]
    return profiles, queries


def of_real_servers() -> tuple[Mapping[str, Catalog], Sequence[str]]:
    with tempfile.TemporaryDirectory(prefix="tcb-") as scratch:
        try:
            lists = {name: tools_of(entry) for name, entry in servers(Path(scratch)).items()}
        except fleet.NotRun as reason:
            raise NotMeasured(reason) from None
    return {f"{len(lists)} servers": tool_lists.of_tools(lists)}, QUERIES


def tools_of(entry: Mapping[str, Any]) -> list[Any]:
    """Asks a stdio server."""
    messages = (initialize({}), notice("notifications/initialized"), legacy_request("tools/list", id=2))
    command = [entry["command"], *entry["args"]]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, env={**os.environ, **entry["env"]}, **pipes) as process:
        try:
            process.stdin.write(b"".join(message + b"\n" for message in messages))
            process.stdin.flush()
            for line in process.stdout:
                answer = json.loads(line)
                if answer.get("id") == 2 and "result" in answer:
                    return list(answer["result"]["tools"])
        finally:
            process.kill()
    raise NotMeasured(f"{command[0]} lists no tools")


if __name__ == "__main__":
    sys.exit(main())
