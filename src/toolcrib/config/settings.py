"""The settings at the top level of a file, in a variable or a flag.

In: a `ConfigField`. Out: its validated value, or None after reporting a problem. `contribution` finds them in files,
`layers` elsewhere. `jobs:` sets the models, number and duration of jobs; only the user's own file may have it, because
it decides where the user's API keys are sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal
from urllib.parse import parse_qs, urlsplit

from toolcrib.config.job_settings import JobSettings
from toolcrib.config.keys import ConfigField, known_fields
from toolcrib.config.model import ListingMode, ListingSettings, NameStyle, PinMode, Severity
from toolcrib.config.problems import describe, describe_type
from toolcrib.config.values import ValueReader

AGENT_LOOP = "model"
"""The runner of jobs that use `run_agent`; every other runner is a coding agent."""
JobRunner = Literal["model", "claude", "codex", "gemini"]


@dataclass(frozen=True, kw_only=True)
class JobProgram:
    """A coding agent that jobs can run."""

    for_agents: bool = True
    """Whether agents can be allowed to run it."""
    edits: bool = False
    """Whether it keeps its own file tools in an agent's job."""
    runs_commands: bool = False
    """Whether it also runs commands below `own_tools: all`, in its own sandbox."""


JOB_PROGRAMS: Mapping[str, JobProgram] = MappingProxyType(
    {
        # Its file tools stay in the folder.
        "claude": JobProgram(edits=True),
        # Its commands can read everything that the user can.
        "codex": JobProgram(runs_commands=True),
        # It follows links in its context files, so an agent that can create a link could read all of the user's files.
        "gemini": JobProgram(for_agents=False),
    }
)
PROGRAMS = tuple(name for name, program in JOB_PROGRAMS.items() if program.for_agents)
"""Coding agents that agents can be allowed to run."""
_DAY = 86_400.0


def read_jobs(given: ConfigField, values: ValueReader) -> JobSettings | None:
    """All or nothing: applying only the valid part of the keys and limits could be unsafe."""
    if not isinstance(given.value, Mapping):
        values.report.error(given.path, found=describe_type(given.value), expected="a mapping")
        return None
    before = len(values.report.problems)
    fields = known_fields(given.value, given.path, {name: name for name in _READERS}, values.report)
    found = {name: _READERS[name](one, values) for name, one in fields.items()}
    if any(problem.severity is Severity.ERROR for problem in values.report.problems[before:]):
        return None
    spelled = {str(path[1]): text for path, text in values.spelled.items() if path[0] == "api_keys"}
    settings = JobSettings(for_agents=True, spelled=MappingProxyType(spelled), **found)
    if settings.timeout > settings.max_timeout:
        expected = f"at most max_timeout, {settings.max_timeout:g}"
        values.report.error((*given.path, "timeout"), found=describe(settings.timeout), expected=expected)
        return None
    return settings


def _model(given: ConfigField, values: ValueReader) -> str | None:
    text = values.text(given, into=("jobs", "model"))
    if text is None or all(text.partition(":")):
        return text
    values.report.error(given.path, found=describe(text), expected="provider:model")
    return None


def _programs(given: ConfigField, values: ValueReader) -> tuple[str, ...] | None:
    names = values.texts(given, into="programs")
    for position, name in enumerate(names or ()):
        if name not in PROGRAMS:
            values.report.error((*given.path, position), found=describe(name), expected=" or ".join(PROGRAMS))
    return names


def _base_urls(given: ConfigField, values: ValueReader) -> Mapping[str, str] | None:
    table = values.table(given, into="base_urls")
    if table is None:
        return None
    for provider, url in table.items():
        if not url.startswith(("http://", "https://")):
            values.report.error((*given.path, provider), found="an invalid URL", expected="http://… or https://…")
    return MappingProxyType(table)


def _api_keys(given: ConfigField, values: ValueReader) -> Mapping[str, str] | None:
    table = values.table(given, into="api_keys")
    return None if table is None else MappingProxyType(table)


def _count(most: int, *, least: int = 1) -> Callable[[ConfigField, ValueReader], int | None]:
    def read(given: ConfigField, values: ValueReader) -> int | None:
        number = values.number(given, least=least, most=most, whole=True)
        return None if number is None else int(number)

    return read


_READERS: Mapping[str, Callable[[ConfigField, ValueReader], Any]] = {
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


LOG_LEVELS = ("debug", "info", "warning", "error", "critical")

POSTGRES = ("postgresql://", "postgres://")


def _names(given: ConfigField, values: ValueReader) -> NameStyle | None:
    word = _one_of(tuple(NameStyle), "names", given, values)
    return None if word is None else NameStyle(word)


def pin_mode(given: ConfigField, values: ValueReader) -> PinMode | None:
    word = _one_of(tuple(PinMode), "pins", given, values)
    return None if word is None else PinMode(word)


def _listing(given: ConfigField, values: ValueReader) -> ListingSettings | None:
    """A mode, or `{default: MODE, clients: {NAME: MODE}}`."""
    if not isinstance(given.value, Mapping):
        mode = _listing_mode(given, values)
        return None if mode is None else ListingSettings(mode=mode)
    before = len(values.report.problems)
    fields = known_fields(given.value, given.path, {"default": "default", "clients": "clients"}, values.report)
    mode = _listing_mode(fields["default"], values) if "default" in fields else ListingMode.AUTO
    clients: dict[str, ListingMode] = {}
    if (named := fields.get("clients")) is not None:
        if not isinstance(named.value, Mapping):
            values.report.error(named.path, found=describe_type(named.value), expected="a mapping of names to modes")
            return None
        for name, one in named.parts().items():
            if (wanted := _listing_mode(one, values)) is not None:
                clients[str(name)] = wanted
    if mode is None or len(values.report.problems) > before:
        return None
    return ListingSettings(mode=mode, clients=MappingProxyType(clients))


def _listing_mode(given: ConfigField, values: ValueReader) -> ListingMode | None:
    word = _one_of(tuple(ListingMode), "listing", given, values)
    return None if word is None else ListingMode(word)


def _one_of(allowed: tuple[str, ...], name: str, given: ConfigField, values: ValueReader) -> str | None:
    word = values.text(given, into=(name,)) if isinstance(given.value, str) else ""
    if word is None:
        return None
    if word.lower() not in allowed:
        values.report.error(given.path, found=describe(given.value), expected=" or ".join(allowed))
        return None
    return word.lower()


def _result_tokens(given: ConfigField, values: ValueReader) -> int | None:
    # YAML reads `off` as false.
    if given.value is False or given.value == 0 or str(given.value).lower() == "off":
        return 0
    return _count(1_000_000, least=1000)(given, values)


def _store(given: ConfigField, values: ValueReader) -> str | None:
    expected = "postgresql://user@host/name, or the path of a SQLite file"
    if not isinstance(given.value, str):
        values.report.error(given.path, found=describe_type(given.value), expected=expected)
        return None
    text = values.text(given, into=("store",), secret=True)
    if text is None or text.startswith(POSTGRES):
        return text
    if "://" in text:
        values.report.error(given.path, found="another kind of URL", expected=expected)
        return None
    file = values.folder_or_file(given, into=("store",))
    return None if file is None else str(file)


def holds_password(store: str) -> bool:
    """Whether a `store` contains a password, which others must not see."""
    if not store.startswith(POSTGRES):
        return False
    try:
        parts = urlsplit(store)
    except ValueError:
        # Unknown, so assume that it does.
        return True
    return parts.password is not None or bool({"password", "sslpassword"} & parse_qs(parts.query).keys())


SETTINGS: Mapping[str, Callable[[ConfigField, ValueReader], Any]] = {
    "port": _count(65_535, least=0),
    "names": _names,
    "log_level": lambda given, values: _one_of(LOG_LEVELS, "log_level", given, values),
    "store": _store,
    "audit_values": lambda given, values: values.flag(given),
    "audit_keep_days": lambda given, values: values.number(given, least=1, most=36_500),
    "audit_keep_mb": lambda given, values: values.number(given, least=1, most=1_000_000),
    "session_idle_hours": lambda given, values: values.number(given, least=0.01, most=87_600),
    "result_tokens": _result_tokens,
    "workspace": lambda given, values: values.flag(given),
    "jobs": read_jobs,
    "pins": pin_mode,
    "listing": _listing,
}

TOP_KEYS = {key: key for key in ("servers", "mcp_servers", *SETTINGS, "tools")}

USER_ONLY_SETTINGS = frozenset(SETTINGS.keys() - {"names", "pins", "listing"})
"""Settings that not even a trusted project's file may have, because they affect all projects."""
