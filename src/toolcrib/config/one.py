"""One server from a program's own words, with the same checks that a file gets.

In: a name and an entry (`{"command": …}` or `{"url": …}`). Out: its `ServerConfig`, or `ConfigError` that says what is
wrong. The library uses it, also by way of `given`; files, environment and flags go through `layers`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolcrib.config.entries import TimeUnit
from toolcrib.config.model import Layer, ServerConfig, Severity
from toolcrib.config.problems import Report
from toolcrib.config.shapes import Contribution, Entry, take_entry
from toolcrib.config.values import Surroundings
from toolcrib.errors import ConfigError


def server_config(name: str, entry: Mapping[str, Any], *, environ: Mapping[str, str] | None = None) -> ServerConfig:
    """One server from an entry as a configuration file has it: `server_config("git", {"command": "uvx", "args": […]})`.

    `${VAR}` in it is taken from `environ`. Raises `ConfigError`, which names what is wrong.
    """
    return read_one(name, entry, Surroundings(layer=Layer.FLAGS, environ=environ or {}, home=Path.home()))


def read_one(name: str, entry: Mapping[str, Any], around: Surroundings) -> ServerConfig:
    report = Report("the entry")
    result = Contribution(report=report)
    take_entry(Entry(name=name, entry=entry, path=(name,), unit=TimeUnit.SECONDS), result, around)
    wrong = [str(problem) for problem in report.problems if problem.severity is Severity.ERROR]
    if wrong or name not in result.servers:
        raise ConfigError(" ".join(wrong) or _left_out(name, result), remedy="Correct the entry.")
    return result.servers[name]


def _left_out(name: str, result: Contribution) -> str:
    """Why there is no server though nothing is wrong with the entry."""
    if name in result.switched_off:
        return f"{name} is switched off."
    return " ".join(map(str, result.report.problems))
