"""The settings at the top of a file, in a variable or a flag.

In: a `Field`. Out: its value, checked, or None after it was reported. `shapes` finds them in files, `layers` elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

from toolcrib.config.jobs import read_jobs
from toolcrib.config.keys import Field
from toolcrib.config.model import NameStyle
from toolcrib.config.problems import describe, describe_type
from toolcrib.config.values import Values

LOG_LEVELS = ("debug", "info", "warning", "error", "critical")

POSTGRES = ("postgresql://", "postgres://")


def _port(given: Field, values: Values) -> int | None:
    port = values.number(given, least=0, most=65_535, whole=True)
    return None if port is None else int(port)


def _names(given: Field, values: Values) -> NameStyle | None:
    word = _one_of(tuple(NameStyle), "names", given, values)
    return None if word is None else NameStyle(word)


def _log_level(given: Field, values: Values) -> str | None:
    return _one_of(LOG_LEVELS, "log_level", given, values)


def _one_of(allowed: tuple[str, ...], name: str, given: Field, values: Values) -> str | None:
    if not isinstance(given.value, str):
        values.report.error(given.path, found=describe(given.value), expected=" or ".join(allowed))
        return None
    word = values.text(given, into=(name,))
    if word is None:
        return None
    if word.lower() not in allowed:
        values.report.error(given.path, found=describe(given.value), expected=" or ".join(allowed))
        return None
    return word.lower()


def _store(given: Field, values: Values) -> str | None:
    expected = "postgresql://user@host/name, or the path of a SQLite file"
    if not isinstance(given.value, str):
        values.report.error(given.path, found=describe_type(given.value), expected=expected)
        return None
    text = values.text(given, into=("store",), secret=True)
    if text is None or text.startswith(POSTGRES):
        return text
    if "://" in text:
        values.report.error(given.path, found="a URL of another kind", expected=expected)
        return None
    file = values.folder_or_file(given, into=("store",))
    return None if file is None else str(file)


def holds_password(store: str) -> bool:
    """Whether a place of `store` has a password in it, which must not stand where others can read it."""
    if not store.startswith(POSTGRES):
        return False
    try:
        parts = urlsplit(store)
    except ValueError:
        # Nobody can say, so it may.
        return True
    return parts.password is not None or bool({"password", "sslpassword"} & parse_qs(parts.query).keys())


SETTINGS: Mapping[str, Callable[[Field, Values], Any]] = {
    "port": _port,
    "names": _names,
    "log_level": _log_level,
    "store": _store,
    "audit_values": lambda given, values: values.flag(given),
    "audit_keep_days": lambda given, values: values.number(given, least=1, most=36_500),
    "audit_keep_mb": lambda given, values: values.number(given, least=1, most=1_000_000),
    "session_idle_hours": lambda given, values: values.number(given, least=0.01, most=87_600),
    "workspace": lambda given, values: values.flag(given),
    "jobs": read_jobs,
}

USERS_ALONE = frozenset(SETTINGS.keys() - {"names"})
"""Settings that a project's file may not have, trusted or not: they are about all projects."""
