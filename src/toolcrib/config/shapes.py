"""A document → its servers, settings and rules for tools, whatever shape they stand in.

In: a `Document`. Out: a `Contribution`: what this one source brings, and what is wrong with it.

    servers: {NAME: entry, …}        servers: [{name: NAME, …}, …]
    mcpServers: (the same two)       {serverName: NAME, …} as the whole document

`load` puts contributions on top of each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolcrib.config.entries import SwitchedOff, TimeUnit, check_name, read_server
from toolcrib.config.keys import TOP_KEYS, Field, plain, report_unknown
from toolcrib.config.model import KeyPath, Layer, Problem, ServerConfig, ToolRule
from toolcrib.config.problems import Report, describe, describe_type
from toolcrib.config.read import Document
from toolcrib.config.settings import SETTINGS, USERS_ALONE
from toolcrib.config.slug import same_name
from toolcrib.config.tool_rules import read_tool_rules
from toolcrib.config.values import Surroundings, Values

SECTIONS = {"servers": TimeUnit.SECONDS, "mcp_servers": TimeUnit.MILLISECONDS}


@dataclass(kw_only=True)
class Contribution:
    report: Report
    servers: dict[str, ServerConfig] = field(default_factory=dict)
    switched_off: dict[str, SwitchedOff] = field(default_factory=dict)
    claimed: dict[str, str] = field(default_factory=dict)
    """By `same_name`: the name as written. A name with an error is claimed too, so that no weaker layer's
    server of that name runs in its place."""
    settings: dict[str, Any] = field(default_factory=dict)
    unusable: dict[str, Problem] = field(default_factory=dict)
    """Settings that were given but cannot be used, and why."""
    tools: tuple[ToolRule, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Entry:
    name: Any
    entry: Any
    path: KeyPath
    unit: TimeUnit


def contribution_of(document: Document, around: Surroundings) -> Contribution:
    result = Contribution(report=document.report)
    for entry in entries_of(document.data, document.report):
        take_entry(entry, result, around, document.ambiguous)
    _take_settings(document.data, result, around)
    for given in rules_in(document.data):
        result.tools += read_tool_rules(given, Values(around, document.report), document.ambiguous)
    return result


def entries_of(data: Mapping[str, Any], report: Report) -> Iterator[Entry]:
    """Every entry, good or not; keys of the document that are not known are reported on the way."""
    if _is_single(data):
        name = data.get("serverName", data.get("server_name", data.get("name")))
        yield Entry(name=name, entry=data, path=(), unit=TimeUnit.SECONDS)
        return
    for key, section in data.items():
        unit = SECTIONS.get(plain(key))
        if unit is not None:
            yield from _section(section, (key,), unit, report)
        elif plain(key) not in TOP_KEYS:
            report_unknown(key, (key,), TOP_KEYS, report)


def _is_single(data: Mapping[str, Any]) -> bool:
    words = {plain(key) for key in data}
    named = bool(words & {"name", "server_name"})
    return named and bool(words & {"transport", "connection", "command", "url"}) and not words & SECTIONS.keys()


def _section(section: Any, path: KeyPath, unit: TimeUnit, report: Report) -> Iterator[Entry]:
    if isinstance(section, Mapping):
        for name, entry in section.items():
            yield Entry(name=name, entry=entry, path=(*path, name), unit=unit)
    elif isinstance(section, list):
        for position, entry in enumerate(section):
            here = (*path, position)
            if isinstance(entry, Mapping):
                name = next((entry[key] for key in entry if plain(key) in ("name", "server_name")), None)
                yield Entry(name=name, entry=entry, path=here, unit=unit)
            else:
                report.error(here, found=describe_type(entry), expected="a mapping with name and command or url")
    elif section is not None:
        report.error(path, found=describe_type(section), expected="a mapping of names, or a list")


def take_entry(
    entry: Entry, result: Contribution, around: Surroundings, ambiguous: frozenset[KeyPath] = frozenset()
) -> None:
    report = result.report
    if not check_name(entry.name, entry.path, report):
        return
    if held := result.claimed.get(same_name(entry.name)):
        report.error(
            entry.path,
            found=f"{describe(entry.name)} after {describe(held)}",
            expected="names that differ in more than case or special characters",
            suggestion="The first one stands.",
        )
        return
    result.claimed[same_name(entry.name)] = entry.name
    server = read_server(entry.name, entry.entry, entry.path, unit=entry.unit, around=around, report=report)
    if entry.path in ambiguous:
        # Two values for one key were reported when the file was read: nobody can say which was meant.
        return
    if isinstance(server, SwitchedOff):
        result.switched_off[entry.name] = server
    elif server is not None and _is_our_bridge(server):
        found = "an entry that starts Toolcrib itself"
        report.warning(entry.path, found=found, expected="another server", suggestion="It is left out.")
    elif server is not None:
        _warn_of_other_name(entry, report)
        result.servers[entry.name] = server


def _is_our_bridge(server: ServerConfig) -> bool:
    """What `toolcrib connect` wrote for another client, in a file that we read too: we are no server of our own."""
    words = (server.command, *server.args)
    program = [Path(word).name for word in words]
    as_module = "-m" in words and "toolcrib" in program and words[-1] == "stdio"
    return as_module or program[:2] == ["toolcrib", "stdio"]


def _warn_of_other_name(entry: Entry, report: Report) -> None:
    for key in entry.entry:
        if plain(key) in ("name", "server_name") and entry.entry[key] != entry.name:
            report.warning(
                (*entry.path, key), found=describe(entry.entry[key]), expected=f"{describe(entry.name)}, which stands"
            )


def rules_in(data: Mapping[str, Any]) -> Iterator[Field]:
    """The list of what is done to tools, if there is one."""
    if not _is_single(data):
        yield from (
            Field(value=value, path=(key,))
            for key, value in data.items()
            if plain(key) == "tools" and value is not None
        )


def _take_settings(data: Mapping[str, Any], result: Contribution, around: Surroundings) -> None:
    if _is_single(data):
        return
    for key, value in data.items():
        name = plain(key)
        if name not in SETTINGS or value is None:
            continue
        if name in USERS_ALONE and around.layer is Layer.PROJECT:
            result.report.error((key,), found="a project's word", expected="yours: only your own file may set it")
        else:
            take_setting(name, Field(value=value, path=(key,)), result, Values(around, result.report))


def take_setting(name: str, given: Field, result: Contribution, values: Values) -> None:
    checked = SETTINGS[name](given, values)
    if checked is None:
        result.unusable[name] = values.report.problems[-1]
    else:
        result.settings[name] = checked
