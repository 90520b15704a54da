"""Which keys an entry may have, in every spelling, and what becomes of the others.

In: an entry as it was written, by us or for another client. Out: `ConfigField`s under our own names, taken
out of `transport: {…}` and `connection: {…}`; misspelt and foreign keys are reported.
The tables here are the vocabulary of entries, which `entries` and `auth` read; `settings` has that of the top.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toolcrib.config.model import KeyPath
from toolcrib.config.problems import ProblemReport, describe_type


@dataclass(frozen=True, kw_only=True)
class ConfigField:
    value: Any
    path: KeyPath

    def parts(self) -> dict[Any, ConfigField]:
        """What a mapping or a list holds, by its keys or positions."""
        held = self.value.items() if isinstance(self.value, Mapping) else enumerate(self.value)
        return {key: ConfigField(value=value, path=(*self.path, key)) for key, value in held}


SERVER_KEYS = {
    "name": "name",
    "server_name": "name",
    "transport": "transport",
    "type": "transport",
    "transport_type": "transport",
    "connection": "connection",
    "command": "command",
    "args": "args",
    "env": "env",
    "cwd": "cwd",
    "url": "url",
    "http_url": "url",
    "server_url": "url",
    "headers": "headers",
    "auth": "auth",
    "verify_tls": "verify_tls",
    "verify_ssl": "verify_tls",
    "enabled": "enabled",
    "disabled": "disabled",
    "timeout": "timeout",
    "connect_timeout": "connect_timeout",
    "call_timeout": "call_timeout",
    "max_message_mb": "max_message_mb",
    "retry": "retry",
}
"""Each spelling (after `normalized_key`) and the name it has here."""

CONNECTION_KEYS = {key: SERVER_KEYS[key] for key in ("type", "command", "args", "env", "cwd", "url", "headers")}
RETRY_KEYS = {"max_attempts": "max_attempts", "backoff_ms": "backoff_ms", "backoff": "backoff"}
AUTH_KEYS = {
    key: key for key in ("type", "token", "header_name", "api_key", "token_path", "auth_url", "token_url", "client_id")
} | {"client_secret": "client_secret", "scope": "scopes", "scopes": "scopes"}

_SLIPS = {
    "arguments": "args",
    "cmd": "command",
    "endpoint": "url",
    "env": "environment",
    "environment": "env",
    "exclude": "hidden",
    "ignore": "hidden",
    "timeout": "limits",
    "uri": "url",
    "variables": "environment",
}
"""Words for our keys that look too little like them to be found by likeness."""

_QUIET = frozenset(
    {"$schema", "comment", "description", "dev", "gallery", "icon", "inputs", "metadata", "note", "notes", "tags"}
    | {"title", "version", "always_allow", "always_load", "auto_approve", "default_tools_approval_mode", "trust"}
    | {"required", "startup_timeout_ms", "startup_timeout_sec", "tool_timeout_sec"}
)
"""Other clients' keys that change nothing about the connection."""

_UNHEEDED = {
    "disabled_tools": "no tool is hidden by it; write tools: with keep or drop, at the top",
    "enabled_tools": "no tool is hidden by it; write tools: with keep or drop, at the top",
    "include_tools": "no tool is hidden by it; write tools: with keep or drop, at the top",
    "exclude_tools": "no tool is hidden by it; write tools: with keep or drop, at the top",
    "oauth": "no browser sign-in is made",
    "auth_provider_type": "no browser sign-in is made",
    "bearer_token_env_var": 'write headers: {Authorization: "Bearer ${NAME}"}',
    "http_headers": "write it as headers",
    "env_http_headers": 'write headers: {NAME: "${VARIABLE}"}',
    "headers_helper": "write the headers themselves",
    "env_file": "write the variables as env",
    "env_vars": 'write env: {NAME: "${NAME}"}',
}
"""Other clients' keys that a person would miss the effect of."""


def normalized_key(key: str) -> str:
    """`verifySsl`, `verify-ssl` and `verify_ssl` are one word."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key).replace("-", "_").lower()


def flat_fields(entry: Mapping[str, Any], path: KeyPath, report: ProblemReport) -> dict[str, ConfigField]:
    """An entry's fields under our names, whatever shape they stood in."""
    fields = known_fields(entry, path, SERVER_KEYS, report)
    for nest in ("transport", "connection"):
        inner = fields.get(nest)
        if inner is None or (nest == "transport" and isinstance(inner.value, str)):
            continue
        del fields[nest]
        if isinstance(inner.value, Mapping):
            for name, field in known_fields(inner.value, inner.path, CONNECTION_KEYS, report).items():
                _put(fields, name, field, report)
        else:
            expected = "text or a mapping" if nest == "transport" else "a mapping"
            report.error(inner.path, found=describe_type(inner.value), expected=expected)
    return fields


def known_fields(
    entry: Mapping[str, Any], path: KeyPath, known: Mapping[str, str], report: ProblemReport
) -> dict[str, ConfigField]:
    """The known keys that hold something; one that is left empty counts as absent."""
    fields: dict[str, ConfigField] = {}
    for key, value in entry.items():
        name = known.get(normalized_key(key))
        if name is None:
            report_unknown(key, (*path, key), known, report)
        elif value is not None:
            _put(fields, name, ConfigField(value=value, path=(*path, key)), report)
    return fields


def strict_fields(
    entry: Mapping[str, Any], path: KeyPath, known: Mapping[str, str], report: ProblemReport
) -> dict[str, ConfigField]:
    """As `known_fields`, but every other key is an error, however little it looks like ours: it may have been meant to
    forbid or to narrow something."""
    unknown = [key for key in entry if normalized_key(key) not in known]
    for key in unknown:
        word = normalized_key(key)
        nearest = nearest_key(word, known) or next(iter(difflib.get_close_matches(word, known, n=1)), "")
        report.error(
            (*path, key),
            found="a key that is not known",
            expected=f"one of {', '.join(known)}",
            suggestion=_ask(nearest) if nearest else "",
        )
    return known_fields({key: one for key, one in entry.items() if key not in unknown}, path, known, report)


def _put(fields: dict[str, ConfigField], name: str, field: ConfigField, report: ProblemReport) -> None:
    held = fields.setdefault(name, field)
    if held is not field and held.value != field.value:
        report.error(
            field.path,
            found="a second value for the same thing",
            expected=f"one; the other is {held.path[-1]!r}",
        )


def report_unknown(key: str, path: KeyPath, known: Mapping[str, str], report: ProblemReport) -> None:
    word = normalized_key(key)
    if word in _QUIET or word.startswith(("x_", "_", "//")):
        return
    if word in _UNHEEDED:
        suggestion = f"It is not heeded: {_UNHEEDED[word]}."
        report.warning(path, found="another client's key", expected="a key of Toolcrib", suggestion=suggestion)
    elif nearest := nearest_key(word, known):
        report.error(
            path, found="a key that is not known", expected=f"a key such as {nearest}", suggestion=_ask(nearest)
        )
    else:
        report.warning(path, found="a key that is not known", expected=f"one of {', '.join(sorted(set(known)))}")


def _ask(nearest: str) -> str:
    return f"Did you mean {nearest}?"


def nearest_key(word: str, known: Mapping[str, str]) -> str:
    """The key of ours that was probably meant, or nothing."""
    if _SLIPS.get(word) in known:
        return _SLIPS[word]
    alike = [key for key in known if abs(len(key) - len(word)) <= 2]
    return next(iter(difflib.get_close_matches(word, alike, n=1, cutoff=0.66)), "")
