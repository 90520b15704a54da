"""Which kind of project a folder is, told by the files that its tools read, and what these offer to run.

In: a file's name, and its bytes. Out: facts, as the file names them; nothing is run, and nobody vouches for them.
`structure` asks for each file near the top.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

MOST_BYTES = 128 * 1024
_MOST_FACTS = 20
_LONGEST_FACT = 60

KINDS = {
    "pyproject.toml": "Python",
    "setup.py": "Python",
    "requirements.txt": "Python",
    "package.json": "Node",
    "deno.json": "Deno",
    "Cargo.toml": "Rust",
    "go.mod": "Go",
    "pom.xml": "Java (Maven)",
    "build.gradle": "Java (Gradle)",
    "build.gradle.kts": "Kotlin (Gradle)",
    "Gemfile": "Ruby",
    "composer.json": "PHP",
    "mix.exs": "Elixir",
    "Package.swift": "Swift",
    "CMakeLists.txt": "CMake",
    "meson.build": "Meson",
    "Makefile": "Make",
    "justfile": "Just",
    "tox.ini": "tox",
    "noxfile.py": "nox",
    "Dockerfile": "Docker",
    "compose.yml": "Docker Compose",
    "docker-compose.yml": "Docker Compose",
    "flake.nix": "Nix",
}
"""By the name of the file that shows it."""

# At most a few names on a line and no nesting: linear whatever the file holds.
_TARGET = re.compile(r"^([A-Za-z0-9][\w.-]{0,59})[ \t]{0,8}:(?![=:])", re.MULTILINE)


class Fact(msgspec.Struct, frozen=True):
    what: str
    names: list[str]


def facts_of(name: str, content: bytes) -> list[Fact]:
    """What can be said without running anything; nothing of a file that cannot be understood."""
    reader = _READERS.get(name)
    if reader is None:
        return []
    try:
        facts = reader(content[:MOST_BYTES].decode())
    except (UnicodeDecodeError, ValueError, RecursionError, msgspec.DecodeError):
        return []
    return [fact for fact in facts if fact.names]


def _pyproject(text: str) -> list[Fact]:
    found = tomllib.loads(text)
    return [
        _fact("scripts", _keys(_part(found, "project", "scripts"))),
        _fact("tools", _keys(_part(found, "tool"))),
        _fact("dependency groups", _keys(_part(found, "dependency-groups"))),
    ]


def _package_json(text: str) -> list[Fact]:
    return [_fact("scripts", _keys(_part(msgspec.json.decode(text), "scripts")))]


def _cargo(text: str) -> list[Fact]:
    found = tomllib.loads(text)
    members = _part(found, "workspace").get("members", [])
    return [
        _fact("package", [_part(found, "package").get("name")]),
        _fact("workspace members", members if isinstance(members, list) else []),
    ]


def _go_mod(text: str) -> list[Fact]:
    modules = [line.split()[1] for line in text.splitlines() if line.startswith("module ") and len(line.split()) > 1]
    return [_fact("module", modules)]


def _makefile(text: str) -> list[Fact]:
    return [_fact("targets", dict.fromkeys(_TARGET.findall(text)))]


_READERS: dict[str, Callable[[str], list[Fact]]] = {
    "pyproject.toml": _pyproject,
    "package.json": _package_json,
    "Cargo.toml": _cargo,
    "go.mod": _go_mod,
    "Makefile": _makefile,
    "justfile": _makefile,
}


def _part(found: Any, *names: str) -> dict[str, Any]:
    for name in names:
        found = found.get(name) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


def _keys(found: dict[str, Any]) -> list[str]:
    return list(found)


def _fact(what: str, names: Iterable[Any]) -> Fact:
    kept = [name[:_LONGEST_FACT] for name in names if isinstance(name, str) and name]
    return Fact(what, kept[:_MOST_FACTS])
