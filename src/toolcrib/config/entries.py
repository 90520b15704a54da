"""One entry → one `ServerConfig`.

In: an entry as written, its name and its context. Out: the server, or None after reporting an error: only the server
with the error is ignored. `contribution` finds the entries.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar
from urllib.parse import urlsplit

from toolcrib.config.auth import keeps_secrets, read_auth
from toolcrib.config.keys import ALL_TOOLS, RETRY_KEYS, ConfigField, flat_fields, known_fields, normalized_key
from toolcrib.config.launchers import INSTALL_LIMIT, launch_of
from toolcrib.config.launching import keeps_session, misplaced, names_folders
from toolcrib.config.model import (
    RESERVED_SERVER_NAMES,
    WORKSPACE_FOLDER,
    ConfigSource,
    KeyPath,
    Layer,
    OAuthSettings,
    Retry,
    RootsMode,
    SamplingMode,
    ServerConfig,
    ShareMode,
    StartFolder,
    StartMode,
    Transport,
)
from toolcrib.config.paths import server_key
from toolcrib.config.problems import ProblemReport, describe, describe_type, key_text
from toolcrib.config.settings import pin_mode
from toolcrib.config.values import EntryContext, ValueReader

_LONGEST_NAME = 128
_DAY = 86_400.0
_LARGEST_MESSAGE_MB = 1024.0
_MOST_CALLS = 100_000
_TRANSPORTS = {
    "stdio": Transport.STDIO,
    "http": Transport.HTTP,
    "streamable_http": Transport.HTTP,
    "sse": Transport.SSE,
    "websocket": Transport.WEBSOCKET,
    "ws": Transport.WEBSOCKET,
}
_SCHEMES = {"http", "https", "ws", "wss"}
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f]*")


class TimeUnit(enum.Enum):
    """The unit of `timeout`: seconds under `servers`, milliseconds under `mcpServers`, as in other clients."""

    SECONDS = 1.0
    MILLISECONDS = 0.001


@dataclass(frozen=True, kw_only=True)
class DisabledServer:
    """An entry with only `enabled: false` or `disabled_tools`: it switches off the server of that name in a lower
    layer, or these of its tools."""

    source: ConfigSource
    tools: tuple[str, ...] = ()
    """Empty: the whole server."""


def check_name(name: Any, path: KeyPath, report: ProblemReport) -> bool:
    if not isinstance(name, str):
        report.error(path, found=describe(name), expected="a name")
    elif not name.strip() or name != name.strip() or not name.isprintable() or len(name) > _LONGEST_NAME:
        report.error(path, found=describe(name), expected=f"a printable name of 1 to {_LONGEST_NAME} characters")
    elif server_key(name) in RESERVED_SERVER_NAMES:
        report.error(
            path, found=describe(name), expected="another name", suggestion="It is reserved for built-in tools."
        )
    else:
        return True
    return False


def read_server(
    name: str, entry: Any, path: KeyPath, *, unit: TimeUnit, context: EntryContext, report: ProblemReport
) -> ServerConfig | DisabledServer | None:
    if not isinstance(entry, Mapping):
        report.error(path, found=describe_type(entry), expected="a mapping with command or url")
        return None
    errors = report.errors
    fields = flat_fields(entry, path, report)
    if report.errors > errors and "command" not in fields and "url" not in fields:
        # The misspelled key was probably one of these two; a second error would only distract.
        return None
    source = ConfigSource(layer=context.layer, file=context.file, key=key_text(path))
    values = ValueReader(context, report, kept={WORKSPACE_FOLDER[2:-1]: WORKSPACE_FOLDER})
    enabled = _enabled(fields, values)
    hidden = (values.texts(fields["disabled_tools"], into="disabled_tools") or ()) if "disabled_tools" in fields else ()
    if (hidden or not enabled) and "command" not in fields and "url" not in fields:
        tools = hidden if enabled else ()
        return DisabledServer(source=source, tools=tools) if report.errors == errors else None
    transport = _transport(fields, path, values)
    if transport is None:
        return None
    far = transport is not Transport.STDIO
    _report_useless(fields, ("args", "env", "cwd") if far else ("headers", "auth", "verify_tls"), report)
    reach = _far_side(fields, values) if far else _process(fields, values)
    common = {**_limits(fields, unit, values), **_lifetime(fields, values), **_questions(fields, values)}
    if not far:
        _complete(common, reach, values.context)
    if report.errors > errors:
        return None
    config = ServerConfig(
        name=name,
        transport=_by_scheme(transport, reach.get("url", ""), fields, report),
        source=source,
        enabled=enabled,
        disabled_tools=hidden,
        spelled=MappingProxyType(values.spelled),
        supplied=MappingProxyType(values.supplied),
        secrets=frozenset(values.secrets_used),
        **reach,
        **common,
    )
    return config if _may_be_shared(config, fields, report) else None


def _enabled(fields: Mapping[str, ConfigField], values: ValueReader) -> bool:
    enabled = values.flag(fields["enabled"]) if "enabled" in fields else None
    disabled = values.flag(fields["disabled"]) if "disabled" in fields else None
    if enabled is not None and enabled == disabled:
        values.report.error(
            fields["disabled"].path, found="enabled and disabled with the same value", expected="only one of them"
        )
    return enabled is not False and disabled is not True


def _transport(fields: Mapping[str, ConfigField], path: KeyPath, values: ValueReader) -> Transport | None:
    report = values.report
    chosen: Transport | None = None
    if field := fields.get("transport"):
        word = values.text(field, into=("transport",))
        chosen = _TRANSPORTS.get(normalized_key(word)) if word is not None else None
        if chosen is None:
            if word is not None:
                expected = "stdio, http, streamable-http, sse or websocket"
                report.error(field.path, found=describe(field.value), expected=expected)
            return None
    if "command" in fields and "url" in fields:
        report.error(path, found="both command and url", expected="one of the two")
        return None
    need = "command" if chosen is Transport.STDIO else "url"
    if chosen is not None and need not in fields:
        report.error(path, found=f"transport {chosen} without {need}", expected=need)
        return None
    if chosen is None and "command" not in fields and "url" not in fields:
        report.error(path, found="neither command nor url", expected="one of the two")
        return None
    return chosen or (Transport.STDIO if "command" in fields else Transport.HTTP)


def _by_scheme(transport: Transport, url: str, fields: Mapping[str, ConfigField], report: ProblemReport) -> Transport:
    """A `ws:` URL is a WebSocket; `websocket` with an `http:` URL means Streamable HTTP."""
    if not url:
        return transport
    if urlsplit(url).scheme in ("ws", "wss"):
        if transport is not Transport.WEBSOCKET and (chosen := fields.get("transport")):
            report.warning(chosen.path, found=describe(chosen.value), expected="websocket, to match the url")
        return Transport.WEBSOCKET
    return Transport.HTTP if transport is Transport.WEBSOCKET else transport


def _report_useless(fields: Mapping[str, ConfigField], names: tuple[str, ...], report: ProblemReport) -> None:
    for name in names:
        if (field := fields.get(name)) and field.value not in ({}, [], True) and not _is_no_auth(field.value):
            other = "url" if name in ("headers", "auth", "verify_tls") else "command"
            report.warning(field.path, found=f"{name} without a {other}", expected=f"{name} only with a {other}")


def _is_no_auth(value: Any) -> bool:
    return isinstance(value, Mapping) and value.get("type") == "none"


def _process(fields: Mapping[str, ConfigField], values: ValueReader) -> dict[str, Any]:
    report = values.report
    field = fields["command"]
    command = values.text(field, into=("command",)) if isinstance(field.value, str) else None
    args = values.texts(fields["args"], into="args") if "args" in fields else ()
    env = values.table(fields["env"], into="env") if "env" in fields else {}
    cwd, start = _start(fields.get("cwd"), values)
    if not isinstance(field.value, str) or (command is not None and not command.strip()):
        report.error(field.path, found=describe(field.value), expected="the program to start")
    elif command is not None and len(command.split()) > 1 and not args and "/" not in command.split()[0]:
        report.warning(
            field.path,
            found=describe(field.value),
            expected="one program",
            suggestion="Put everything after the first word into args.",
        )
    for name in env or {}:
        if not name or "=" in name or not name.isprintable():
            report.error((*fields["env"].path, name), found=describe(name), expected="a variable name")
    if command and command.startswith("~/"):
        command = str(values.context.home / command[2:])
    if values.context.neutral is not None and command:
        _refuse_code_of_projects(fields, (command, *(args or ())), env or {}, start, report)
    return {
        "command": command or "",
        "args": args or (),
        "env": MappingProxyType(env or {}),
        "cwd": str(cwd) if cwd else None,
        "start_folder": start,
    }


def _start(field: ConfigField | None, values: ValueReader) -> tuple[Path | None, StartFolder]:
    """`cwd: project` is only for entries outside a project's file."""
    context = values.context
    if field is None:
        return context.neutral, StartFolder.NEUTRAL if context.neutral is not None else StartFolder.NAMED
    if field.value == StartFolder.PROJECT and context.root is None:
        return None, StartFolder.PROJECT
    return values.folder_or_file(field, into=("cwd",)), StartFolder.NAMED


def _refuse_code_of_projects(
    fields: Mapping[str, ConfigField],
    words: Sequence[str],
    env: Mapping[str, str],
    start: StartFolder,
    report: ProblemReport,
) -> None:
    """The user's own entries apply in every project, including untrusted ones."""
    for (key, *rest), found in misplaced(words, env, in_project=start is StartFolder.PROJECT):
        report.error(
            (*fields[str(key)].path, *rest),
            found=found,
            expected="an absolute path, which projects can't change",
            suggestion="Put a server that is part of a project into the project's file: `toolcrib add --project`.",
        )


def _far_side(fields: Mapping[str, ConfigField], values: ValueReader) -> dict[str, Any]:
    url = values.text(fields["url"], into=("url",)) if isinstance(fields["url"].value, str) else None
    if url is not None or not isinstance(fields["url"].value, str):
        _check_url(url, fields["url"], values.report)
    headers = (values.table(fields["headers"], into="headers") if "headers" in fields else None) or {}
    made = read_auth(fields["auth"], values) if "auth" in fields else None
    oauth = made if isinstance(made, OAuthSettings) else None
    header = None if isinstance(made, OAuthSettings) else made
    named = header.name if header else "Authorization"
    if (header or oauth) and named.lower() in {name.lower() for name in headers}:
        values.report.error(fields["auth"].path, found=f"auth and the header {named}", expected="one of the two")
    elif header:
        headers[named] = header.value
    if oauth and url and not keeps_secrets(url):
        values.report.error(fields["url"].path, found="auth with an address without TLS", expected="https://")
    elif "auth" not in fields and keeps_secrets(url or "") and "authorization" not in map(str.lower, headers):
        oauth = OAuthSettings()
    _check_headers(headers, fields, values.report)
    for path in values.spelled:
        if WORKSPACE_FOLDER in values.spelled[path]:
            values.report.error(
                fields["url"].path, found=f"{WORKSPACE_FOLDER} for a URL", expected="it only in servers with a command"
            )
    verify = values.flag(fields["verify_tls"]) if "verify_tls" in fields else True
    return {
        "url": url or "",
        "headers": MappingProxyType(headers),
        "token_file": header and header.file,
        "oauth": oauth,
        "verify_tls": verify is not False,
    }


def _check_url(url: str | None, field: ConfigField, report: ProblemReport) -> None:
    path = field.path
    if url is None:
        report.error(path, found=describe(field.value), expected="a URL")
        return
    if not url.isprintable() or any(character.isspace() for character in url):
        report.error(path, found="a URL with spaces or control characters", expected="a URL without them")
        return
    try:
        parts = urlsplit(url)
        host, _port = parts.hostname, parts.port
    except ValueError:
        report.error(path, found=describe(field.value), expected="a URL such as https://host:8080/mcp")
        return
    if "@" in parts.netloc:
        report.error(
            path,
            found="a URL with credentials in it",
            expected="a URL without user or password",
            suggestion="Use a header instead.",
        )
    elif parts.scheme not in _SCHEMES:
        expected = "a URL that starts with http://, https://, ws:// or wss://"
        report.error(path, found=describe(field.value), expected=expected)
    elif not host:
        report.error(path, found=describe(field.value), expected="a URL with a host")


def _check_headers(headers: Mapping[str, str], fields: Mapping[str, ConfigField], report: ProblemReport) -> None:
    seen: set[str] = set()
    for name, value in headers.items():
        path = (*fields["headers" if "headers" in fields else "auth"].path, name)
        if not _HEADER_NAME.fullmatch(name):
            report.error(path, found=describe(name), expected="a header name of letters, digits and -")
        elif not _HEADER_VALUE.fullmatch(value):
            report.error(path, found="a value with line breaks or control characters", expected="a value on one line")
        elif name.lower() in seen:
            report.error(path, found="a duplicate header", expected="each header once")
        seen.add(name.lower())


def _limits(fields: Mapping[str, ConfigField], unit: TimeUnit, values: ValueReader) -> dict[str, Any]:
    limits: dict[str, Any] = {}
    seconds = (0.001, _DAY)
    ranges = {"connect_timeout": seconds, "call_timeout": seconds, "max_message_mb": (0.1, _LARGEST_MESSAGE_MB)}
    for name, (least, most) in ranges.items():
        if name in fields and (number := values.number(fields[name], least=least, most=most)) is not None:
            limits[name] = number
    if timeout := fields.get("timeout"):
        if "call_timeout" in fields:
            values.report.error(timeout.path, found="both timeout and call_timeout", expected="one of the two")
        elif (given := values.number(timeout, least=0.001, most=_DAY / unit.value)) is not None:
            limits["call_timeout"] = given * unit.value
            _warn_of_unit(given, unit, timeout, values.report)
    if "max_waiting_calls" in fields:
        calls = values.number(fields["max_waiting_calls"], least=1, most=_MOST_CALLS, whole=True)
        limits |= {} if calls is None else {"max_waiting_calls": int(calls)}
    if "call_timeouts" in fields:
        limits["call_timeouts"] = _by_tool(fields["call_timeouts"], values, least=0.001)
    if cache := fields.get("cache"):
        limits["cache"] = _cache(cache, values)
    if "retry" in fields:
        limits["retry"] = _retry(fields["retry"], values)
    if "pins" in fields:
        limits["pins"] = pin_mode(fields["pins"], values)
    return limits


def _by_tool(field: ConfigField, values: ValueReader, *, least: float) -> Mapping[str, float]:
    if not isinstance(field.value, Mapping):
        values.report.error(field.path, found=describe(field.value), expected="a mapping of tools to seconds")
        return {}
    given = {str(tool): values.number(one, least=least, most=_DAY) for tool, one in field.parts().items()}
    return MappingProxyType({tool: seconds for tool, seconds in given.items() if seconds is not None})


def _cache(field: ConfigField, values: ValueReader) -> Mapping[str, float]:
    if isinstance(field.value, Mapping):
        return _by_tool(field, values, least=0)
    seconds = values.number(field, least=0, most=_DAY)
    return MappingProxyType({} if seconds is None else {ALL_TOOLS: seconds})


def _lifetime(fields: Mapping[str, ConfigField], values: ValueReader) -> dict[str, Any]:
    """When its process starts and stops, and who shares it."""
    chosen: dict[str, Any] = {}
    if (field := fields.get("start")) and (start := _one_of(StartMode, field, values)):
        chosen["start"] = start
    if (field := fields.get("share")) and (share := _one_of(ShareMode, field, values)):
        chosen["share"] = share
    elif "command" in fields and keeps_session([str(word) for word in _words(fields)]):
        chosen["share"] = ShareMode.AGENT
    if (field := fields.get("idle_minutes")) and (idle := values.number(field, least=0, most=_DAY / 60)) is not None:
        chosen["idle_minutes"] = idle
    return chosen


def _questions(fields: Mapping[str, ConfigField], values: ValueReader) -> dict[str, Any]:
    """What the server may ask of clients."""
    chosen: dict[str, Any] = {}
    if (field := fields.get("sampling")) and (sampling := _one_of(SamplingMode, field, values)):
        chosen["sampling"] = sampling
        if sampling is SamplingMode.ALLOW and values.context.layer is Layer.PROJECT:
            values.report.error(
                field.path,
                found="sampling: allow in a project's file",
                expected="sampling: ask, or the entry in your own file",
            )
    if (field := fields.get("roots")) and (roots := _one_of(RootsMode, field, values)):
        chosen["roots"] = roots
    return chosen


def _complete(common: dict[str, Any], process: Mapping[str, Any], context: EntryContext) -> None:
    """Adds the defaults that depend on the command line."""
    words = [process["command"], *process["args"]]
    if launch_of(process["command"], process["args"]):
        common.setdefault("connect_timeout", INSTALL_LIMIT)
    start = Path(process["cwd"]) if process["cwd"] else context.root
    if names_folders(words, process["env"], start):
        # Roots may replace these folders, and the project may be larger.
        common.setdefault("roots", RootsMode.NONE)


def _words(fields: Mapping[str, ConfigField]) -> list[Any]:
    args = fields["args"].value if "args" in fields else []
    return [fields["command"].value, *(args if isinstance(args, list) else [])]


_Choice = TypeVar("_Choice", bound=enum.StrEnum)


def _one_of(choices: type[_Choice], field: ConfigField, values: ValueReader) -> _Choice | None:
    word = field.value
    known = {choice.value: choice for choice in choices}
    found = known.get(normalized_key(word)) if isinstance(word, str) else None
    if found is None:
        values.report.error(field.path, found=describe(word), expected=f"one of {', '.join(known)}")
    return found


def _may_be_shared(config: ServerConfig, fields: Mapping[str, ConfigField], report: ProblemReport) -> bool:
    """Refuses `share: all` for a server that belongs to a project, or differs between projects."""
    if config.share is not ShareMode.ALL:
        return True
    if config.source.layer is Layer.PROJECT:
        why = "share: all in a project's file"
    elif config.names_project:
        why = f"share: all with {WORKSPACE_FOLDER}, which differs between projects"
    elif config.depends_on_project:
        why = "share: all for a server that starts in each project's folder"
    else:
        return True
    report.error(fields["share"].path, found=why, expected="share: project, or no share")
    return False


def _warn_of_unit(given: float, unit: TimeUnit, field: ConfigField, report: ProblemReport) -> None:
    doubtful = given < 1000 if unit is TimeUnit.MILLISECONDS else given > 3600
    if doubtful:
        report.warning(
            field.path,
            found=f"{given:g} {unit.name.lower()}",
            expected="a common timeout",
            suggestion="call_timeout is always in seconds.",
        )


def _retry(field: ConfigField, values: ValueReader) -> Retry:
    if not isinstance(field.value, Mapping):
        values.report.error(field.path, found=describe(field.value), expected="a mapping with maxAttempts, backoffMs")
        return Retry()
    given = known_fields(field.value, field.path, RETRY_KEYS, values.report)
    chosen: dict[str, Any] = {}
    if "max_attempts" in given:
        attempts = values.number(given["max_attempts"], least=0, most=1_000_000, whole=True)
        chosen["max_attempts"] = None if attempts is None else int(attempts)
    if "backoff_ms" in given and "backoff" in given:
        values.report.error(given["backoff"].path, found="both backoff and backoffMs", expected="one of the two")
    if "backoff_ms" in given and (pause := values.number(given["backoff_ms"], least=0, most=_DAY * 1000)) is not None:
        chosen["backoff"] = pause / 1000
    if "backoff" in given and (pause := values.number(given["backoff"], least=0, most=_DAY)) is not None:
        chosen["backoff"] = pause
    return Retry(**chosen)
