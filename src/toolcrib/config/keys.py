"""The keys of an entry, in every accepted spelling, and the handling of other keys.

In: an entry as written, for Toolcrib or for another client. Out: `ConfigField`s under Toolcrib's names, flattened out
of `transport: {…}` and `connection: {…}`; misspelled keys and other clients' keys are reported. `entries` and `auth`
read the tables here; `settings` has the top-level keys.
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
        """The items of a mapping or list, by key or position."""
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
    "disabled_tools": "disabled_tools",
    "timeout": "timeout",
    "connect_timeout": "connect_timeout",
    "call_timeout": "call_timeout",
    "call_timeouts": "call_timeouts",
    "cache": "cache",
    "max_waiting_calls": "max_waiting_calls",
    "max_message_mb": "max_message_mb",
    "retry": "retry",
    "pins": "pins",
    "start": "start",
    "idle_minutes": "idle_minutes",
    "share": "share",
    "sampling": "sampling",
    "roots": "roots",
}
"""Each accepted spelling (after `normalized_key`) and Toolcrib's name for it."""

ALL_TOOLS = "*"
"""Under `cache`: every tool of the server without a time of its own."""

CONNECTION_KEYS = {key: SERVER_KEYS[key] for key in ("type", "command", "args", "env", "cwd", "url", "headers")}
RETRY_KEYS = {"max_attempts": "max_attempts", "backoff_ms": "backoff_ms", "backoff": "backoff"}
AUTH_KEYS = {
    key: key
    for key in (
        *("type", "token", "username", "password", "header_name", "api_key", "token_path"),
        *("auth_url", "token_url", "client_id", "issuer", "private_key"),
    )
} | {
    "client_secret": "client_secret",
    "client_metadata_url": "client_metadata_url",
    "redirect_port": "redirect_port",
    "scope": "scopes",
    "scopes": "scopes",
}

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
"""Common mistakes that are too different from the right key for fuzzy matching."""

_QUIET = frozenset(
    {"$schema", "comment", "description", "dev", "gallery", "icon", "inputs", "metadata", "note", "notes", "tags"}
    | {"title", "version", "always_allow", "always_load", "auto_approve", "default_tools_approval_mode", "trust"}
    | {"required", "startup_timeout_ms", "startup_timeout_sec", "tool_timeout_sec"}
)
"""Other clients' keys that don't affect the connection; they are ignored without a warning."""

_UNSUPPORTED = {
    "enabled_tools": "to hide tools, write tools: with keep or drop at the top level",
    "include_tools": "to hide tools, write tools: with keep or drop at the top level",
    "exclude_tools": "to hide tools, write tools: with keep or drop at the top level",
    "oauth": "write auth: {type: oauth, …}, or nothing if the server needs no details",
    "auth_provider_type": "write auth: {type: oauth, …}, or nothing if the server needs no details",
    "bearer_token_env_var": 'write headers: {Authorization: "Bearer ${NAME}"}',
    "http_headers": "write it as headers",
    "env_http_headers": 'write headers: {NAME: "${VARIABLE}"}',
    "headers_helper": "write the headers themselves",
    "env_file": "write the variables as env",
    "env_vars": 'write env: {NAME: "${NAME}"}',
}
"""Other clients' keys with an effect that users would miss; each gets a warning."""


def normalized_key(key: str) -> str:
    """`verifySsl`, `verify-ssl` and `verify_ssl` are the same key."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key).replace("-", "_").lower()


def flat_fields(entry: Mapping[str, Any], path: KeyPath, report: ProblemReport) -> dict[str, ConfigField]:
    """An entry's fields under Toolcrib's names, without nesting."""
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
    """The known keys with a value; a key without one counts as absent."""
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
    """Like `known_fields`, but every unknown key is an error, because it may be meant as a restriction."""
    unknown = [key for key in entry if normalized_key(key) not in known]
    for key in unknown:
        word = normalized_key(key)
        nearest = nearest_key(word, known) or next(iter(difflib.get_close_matches(word, known, n=1)), "")
        report.error(
            (*path, key),
            found="an unknown key",
            expected=f"one of {', '.join(known)}",
            suggestion=_ask(nearest) if nearest else "",
        )
    return known_fields({key: one for key, one in entry.items() if key not in unknown}, path, known, report)


def _put(fields: dict[str, ConfigField], name: str, field: ConfigField, report: ProblemReport) -> None:
    held = fields.setdefault(name, field)
    if held is not field and held.value != field.value:
        report.error(
            field.path,
            found="a second value for the same setting",
            expected=f"one; the other is {held.path[-1]!r}",
        )


def report_unknown(key: str, path: KeyPath, known: Mapping[str, str], report: ProblemReport) -> None:
    word = normalized_key(key)
    if word in _QUIET or word.startswith(("x_", "_", "//")):
        return
    if word in _UNSUPPORTED:
        suggestion = f"It is ignored: {_UNSUPPORTED[word]}."
        report.warning(path, found="another client's key", expected="a Toolcrib key", suggestion=suggestion)
    elif nearest := nearest_key(word, known):
        report.error(path, found="an unknown key", expected=f"a key such as {nearest}", suggestion=_ask(nearest))
    else:
        report.warning(path, found="an unknown key", expected=f"one of {', '.join(sorted(set(known)))}")


def _ask(nearest: str) -> str:
    return f"Did you mean {nearest}?"


def nearest_key(word: str, known: Mapping[str, str]) -> str:
    """The known key that was probably meant, or an empty string."""
    if _SLIPS.get(word) in known:
        return _SLIPS[word]
    alike = [key for key in known if abs(len(key) - len(word)) <= 2]
    return next(iter(difflib.get_close_matches(word, alike, n=1, cutoff=0.66)), "")
