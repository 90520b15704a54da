"""A document → its servers, settings and tool rules, in any of the supported shapes.

In: a `ConfigDocument`. Out: a `Contribution`: the servers, settings, rules and problems of this source.

    servers: {NAME: entry, …}        servers: [{name: NAME, …}, …]
    mcpServers: (the same two)       {serverName: NAME, …} as the whole document

`layers.load` merges the contributions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolcrib.config.entries import DisabledServer, TimeUnit, check_name, read_server
from toolcrib.config.keys import ConfigField, normalized_key, report_unknown
from toolcrib.config.model import KeyPath, Layer, PinMode, Problem, ServerConfig
from toolcrib.config.paths import server_key
from toolcrib.config.problems import ProblemReport, describe, describe_type
from toolcrib.config.read import ConfigDocument
from toolcrib.config.settings import SETTINGS, TOP_KEYS, USER_ONLY_SETTINGS
from toolcrib.config.tool_rule import ToolRule
from toolcrib.config.tool_rules import read_tool_rules
from toolcrib.config.values import EntryContext, ValueReader

SECTIONS = {"servers": TimeUnit.SECONDS, "mcp_servers": TimeUnit.MILLISECONDS}


@dataclass(kw_only=True)
class Contribution:
    report: ProblemReport
    servers: dict[str, ServerConfig] = field(default_factory=dict)
    switched_off: dict[str, DisabledServer] = field(default_factory=dict)
    claimed: dict[str, str] = field(default_factory=dict)
    """By `server_key`: the name as written. An entry with an error claims its name too, so that a lower layer's server
    of the same name doesn't run in its place."""
    invalid: dict[str, KeyPath] = field(default_factory=dict)
    """Entries with an error, and the place of each."""
    settings: dict[str, Any] = field(default_factory=dict)
    unusable: dict[str, Problem] = field(default_factory=dict)
    """Settings with an invalid value, and the problem with each."""
    tools: tuple[ToolRule, ...] = ()
    inputs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ServerEntry:
    name: Any
    entry: Any
    path: KeyPath
    unit: TimeUnit = TimeUnit.SECONDS


def contribution_of(document: ConfigDocument, context: EntryContext) -> Contribution:
    document.report.inputs = _inputs(document.data)
    result = Contribution(report=document.report, inputs=document.report.inputs)
    for entry in entries_of(document.data, document.report):
        take_entry(entry, result, context, document.ambiguous)
    if not _is_single(document.data):
        fields = ConfigField(value=document.data, path=()).parts()
        top = [(normalized_key(key), given) for key, given in fields.items() if given.value is not None]
        _take_settings(top, result, context)
        for given in [given for name, given in top if name == "tools"]:
            result.tools += read_tool_rules(given, ValueReader(context, document.report), document.ambiguous)
    return result


def _inputs(data: Mapping[str, Any]) -> dict[str, str]:
    """The descriptions of secrets, by name, in the list that VS Code writes: `[{id, description, …}]`."""
    given = data.get("inputs")
    found = [one for one in given if isinstance(one, Mapping)] if isinstance(given, list) else []
    named = ((one.get("id"), one.get("description")) for one in found)
    return {name: about for name, about in named if isinstance(name, str) and isinstance(about, str)}


def entries_of(data: Mapping[str, Any], report: ProblemReport) -> Iterator[ServerEntry]:
    """All entries, valid or not. Also reports unknown keys of the document."""
    if _is_single(data):
        name = data.get("serverName", data.get("server_name", data.get("name")))
        yield ServerEntry(name=name, entry=data, path=())
        return
    for key, section in data.items():
        unit = SECTIONS.get(normalized_key(key))
        if unit is not None:
            yield from _section(section, (key,), unit, report)
        elif normalized_key(key) not in TOP_KEYS:
            report_unknown(key, (key,), TOP_KEYS, report)


def _is_single(data: Mapping[str, Any]) -> bool:
    words = {normalized_key(key) for key in data}
    named = bool(words & {"name", "server_name"})
    return named and bool(words & {"transport", "connection", "command", "url"}) and not words & SECTIONS.keys()


def _section(section: Any, path: KeyPath, unit: TimeUnit, report: ProblemReport) -> Iterator[ServerEntry]:
    if isinstance(section, Mapping):
        for name, entry in section.items():
            yield ServerEntry(name=name, entry=entry, path=(*path, name), unit=unit)
    elif isinstance(section, list):
        for position, entry in enumerate(section):
            here = (*path, position)
            if isinstance(entry, Mapping):
                name = next((entry[key] for key in entry if normalized_key(key) in ("name", "server_name")), None)
                yield ServerEntry(name=name, entry=entry, path=here, unit=unit)
            else:
                report.error(here, found=describe_type(entry), expected="a mapping with name and command or url")
    elif section is not None:
        report.error(path, found=describe_type(section), expected="a mapping of names, or a list")


def take_entry(
    entry: ServerEntry, result: Contribution, context: EntryContext, ambiguous: frozenset[KeyPath] = frozenset()
) -> None:
    report = result.report
    report.entry = entry.path, entry.name if isinstance(entry.name, str) else ""
    if not check_name(entry.name, entry.path, report):
        return
    if held := result.claimed.get(server_key(entry.name)):
        report.error(
            entry.path,
            found=f"{describe(entry.name)} after {describe(held)}",
            expected="names that differ in more than case or special characters",
            suggestion="The first one is used.",
        )
        return
    result.claimed[server_key(entry.name)] = entry.name
    server = read_server(entry.name, entry.entry, entry.path, unit=entry.unit, context=context, report=report)
    if entry.path in ambiguous:
        # It has a duplicate key, reported when the file was read, so its meaning is unclear.
        server = None
    if server is None:
        result.invalid[entry.name] = entry.path
    elif isinstance(server, DisabledServer):
        result.switched_off[entry.name] = server
    elif _is_our_bridge(server):
        found = "an entry that starts Toolcrib itself"
        report.warning(entry.path, found=found, expected="another server", suggestion="It is ignored.")
    else:
        _warn_of_other_name(entry, report)
        result.servers[entry.name] = server


def _is_our_bridge(server: ServerConfig) -> bool:
    """`toolcrib connect` writes such an entry for other clients, into files that Toolcrib reads too."""
    words = (server.command, *server.args)
    program = [Path(word).name for word in words]
    as_module = "-m" in words and "toolcrib" in program and words[-1] == "stdio"
    return as_module or program[:2] == ["toolcrib", "stdio"]


def _warn_of_other_name(entry: ServerEntry, report: ProblemReport) -> None:
    for key in entry.entry:
        if normalized_key(key) in ("name", "server_name") and entry.entry[key] != entry.name:
            expected = f"{describe(entry.name)}, which is used"
            report.warning((*entry.path, key), found=describe(entry.entry[key]), expected=expected)


def _take_settings(top: Iterable[tuple[str, ConfigField]], result: Contribution, context: EntryContext) -> None:
    for name, given in top:
        if name in USER_ONLY_SETTINGS and context.layer is Layer.PROJECT:
            result.report.error(
                given.path, found="this setting in a project's file", expected="it in your own file only"
            )
        elif name in SETTINGS:
            take_setting(name, given, result, ValueReader(context, result.report))
    if context.layer is Layer.PROJECT and result.settings.get("pins") is PinMode.WARN:
        # A project's file can only tighten it.
        del result.settings["pins"]


def take_setting(name: str, given: ConfigField, result: Contribution, values: ValueReader) -> None:
    checked = SETTINGS[name](given, values)
    if checked is None:
        result.unusable[name] = values.report.problems[-1]
    else:
        result.settings[name] = checked
