"""`jobs:` in the user's own file: which models jobs may use, how many there may be, and for how long.

In: a `Field` that holds a mapping. Out: `JobSettings`, or None after something was reported. `settings` reads it here;
`daemon.jobs` keeps to it. A project's file may not have it: it decides where a person's keys are sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from toolcrib.config.keys import JOB_KEYS, Field, pick
from toolcrib.config.model import JobSettings, Severity
from toolcrib.config.problems import describe, describe_type
from toolcrib.config.values import Values

PROGRAMS = ("claude", "codex")
"""Coding agents that agents can be allowed. Gemini CLI reads its context files through links, wherever these lead: by
it, whoever may make a link would read what the person may."""
_DAY = 86_400.0


def read_jobs(given: Field, values: Values) -> JobSettings | None:
    """All of it or nothing: half of what a person wrote down about keys and limits is not what they meant."""
    if not isinstance(given.value, Mapping):
        values.report.error(given.path, found=describe_type(given.value), expected="a mapping")
        return None
    before = len(values.report.problems)
    found = {
        name: _READERS[name](one, values)
        for name, one in pick(given.value, given.path, JOB_KEYS, values.report).items()
    }
    if any(problem.severity is Severity.ERROR for problem in values.report.problems[before:]):
        return None
    spelled = {str(path[1]): text for path, text in values.spelled.items() if path[0] == "api_keys"}
    settings = JobSettings(for_agents=True, spelled=MappingProxyType(spelled), **found)
    if settings.timeout > settings.max_timeout:
        expected = f"at most max_timeout, {settings.max_timeout:g}"
        values.report.error((*given.path, "timeout"), found=describe(settings.timeout), expected=expected)
        return None
    return settings


def _model(given: Field, values: Values) -> str | None:
    text = values.text(given, into=("jobs", "model"))
    if text is None or all(text.partition(":")):
        return text
    values.report.error(given.path, found=describe(text), expected="provider:model")
    return None


def _programs(given: Field, values: Values) -> tuple[str, ...] | None:
    names = values.texts(given, into="programs")
    for position, name in enumerate(names or ()):
        if name not in PROGRAMS:
            values.report.error((*given.path, position), found=describe(name), expected=" or ".join(PROGRAMS))
    return names


def _base_urls(given: Field, values: Values) -> Mapping[str, str] | None:
    table = values.table(given, into="base_urls")
    if table is None:
        return None
    for provider, url in table.items():
        if not url.startswith(("http://", "https://")):
            values.report.error((*given.path, provider), found="no URL", expected="http://… or https://…")
    return MappingProxyType(table)


def _api_keys(given: Field, values: Values) -> Mapping[str, str] | None:
    table = values.table(given, into="api_keys")
    return None if table is None else MappingProxyType(table)


def _count(most: int) -> Callable[[Field, Values], int | None]:
    def read(given: Field, values: Values) -> int | None:
        number = values.number(given, least=1, most=most, whole=True)
        return None if number is None else int(number)

    return read


_READERS: Mapping[str, Callable[[Field, Values], Any]] = {
    "model": _model,
    "models": lambda given, values: values.texts(given, into="models"),
    "programs": _programs,
    "base_urls": _base_urls,
    "api_keys": _api_keys,
    "max_running": _count(64),
    "max_waiting": _count(10_000),
    "max_per_agent": _count(10_000),
    "timeout": lambda given, values: values.number(given, least=1, most=7 * _DAY),
    "max_timeout": lambda given, values: values.number(given, least=1, most=7 * _DAY),
    "keep_days": lambda given, values: values.number(given, least=0.01, most=3650),
}
