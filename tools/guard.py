"""Fails if the code breaks one of its limits; `make check` runs it.

In: the sources under `src/toolcrib`, the figures in `guard.json`, the allowed imports in `late_imports.toml`. Out: a
line per violation, and exit code 1. It counts calls (`walk`), not time, so the result doesn't depend on the load.

    python tools/guard.py             # check
    python tools/guard.py --record    # check, and record the current number of calls
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import json
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import walk

HERE = Path(__file__).parent
SOURCES = HERE.parent / "src" / "toolcrib"
FIGURES = HERE / "guard.json"
LATE_IMPORTS = HERE / "late_imports.toml"

GROWTH = 1.10
"""The accepted growth of a request's calls over the recorded number."""
MAX_LATE_IMPORTS = 24
BY_NAME = "import_module"
MAX_LINES = 500


@dataclass(frozen=True, kw_only=True)
class Source:
    file: str
    """The path within the package."""
    lines: int
    tree: ast.Module


def read_sources(folder: Path) -> list[Source]:
    found = []
    for path in sorted(folder.rglob("*.py")):
        text = path.read_text()
        file = path.relative_to(folder).as_posix()
        found.append(Source(file=file, lines=len(text.splitlines()), tree=ast.parse(text)))
    return found


def more_calls(recorded: Mapping[str, int], counted: Mapping[str, int]) -> Iterator[str]:
    for method, calls in counted.items():
        before = recorded.get(method)
        if before is None:
            yield f"{method}: no number is recorded. Run `python tools/guard.py --record`."
        elif calls > before * GROWTH:
            yield (
                f"{method}: {calls} calls, but {before} are recorded. `make walk` shows them; if they are justified, "
                "run `python tools/guard.py --record`."
            )


def shared_names(sources: Sequence[Source]) -> Iterator[str]:
    """Public classes that share a name."""
    places: dict[str, list[str]] = defaultdict(list)
    for source in sources:
        for node in ast.walk(source.tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(f"{source.file}:{node.lineno}")
    for name, where in sorted(places.items()):
        if len(where) > 1:
            yield f"class {name}: {', '.join(where)}. Give each a different name."


def late_imports(sources: Sequence[Source]) -> list[tuple[str, str]]:
    """The file and module of each import inside a function; `BY_NAME` if the module's name is computed."""
    found = {}
    for source in sources:
        for function in ast.walk(source.tree):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                for node in ast.walk(function):
                    if module := _imported(node):
                        # A nested function is walked twice.
                        found[source.file, node.lineno] = module
    return [(file, module) for (file, _), module in found.items()]


def _imported(node: ast.AST) -> str:
    match node:
        case ast.ImportFrom():
            return "." * node.level + (node.module or "")
        case ast.Import():
            return ", ".join(alias.name for alias in node.names)
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in {BY_NAME, "__import__"}:
            return BY_NAME
    return ""


def stray_imports(found: Sequence[tuple[str, str]], allowed: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """Imports inside functions that are not listed, and entries of the list without such an import."""
    listed = {(entry["file"], entry["module"]) for entry in allowed if entry.get("reason")}
    for file, module in found:
        if (file, module) not in listed:
            what = "a module is imported by its name" if module == BY_NAME else f"{module} is imported"
            yield f"{file}: {what} inside a function. Import it at the top, or list it with a reason."
    for entry in allowed:
        if (entry["file"], entry["module"]) not in found:
            yield f"late_imports.toml: {entry['file']} has no import of {entry['module']} inside a function."
    if (statements := sum(module != BY_NAME for _, module in found)) > MAX_LATE_IMPORTS:
        yield f"{statements} imports are inside functions; at most {MAX_LATE_IMPORTS} are allowed."


def long_files(sources: Sequence[Source]) -> Iterator[str]:
    for source in sources:
        if source.lines > MAX_LINES:
            yield f"{source.file}: {source.lines} lines, at most {MAX_LINES} are allowed. Split it by subject."


def violations(sources: Sequence[Source], allowed: Sequence[Mapping[str, str]]) -> list[str]:
    """Everything that static analysis finds."""
    return [*shared_names(sources), *stray_imports(late_imports(sources), allowed), *long_files(sources)]


def count_calls() -> dict[str, int]:
    return {method: len(found.calls) for method, found in asyncio.run(walk.walks()).items()}


def main() -> int:
    parser = argparse.ArgumentParser(description="Fail if the code breaks one of its limits.")
    parser.add_argument("--record", action="store_true", help="record the current number of calls")
    record = parser.parse_args().record
    found = violations(read_sources(SOURCES), tomllib.loads(LATE_IMPORTS.read_text())["allowed"])
    counted = count_calls()
    if record:
        FIGURES.write_text(json.dumps(counted, indent=2) + "\n")
    found += more_calls(json.loads(FIGURES.read_text()), counted)
    sys.stdout.writelines(f"{violation}\n" for violation in found)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
