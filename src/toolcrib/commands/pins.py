"""pins:* — tools whose definitions differ from the accepted ones: list, accept, reject.

In: a server's name, a tool's own name, the digest of the difference that the person has seen. Out: the differences,
field by field, as the lines of a unified diff, and the flags with their reasons.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any
from weakref import WeakKeyDictionary

from pydantic import Field

from toolcrib.catalog.flags import look_alikes
from toolcrib.catalog.snapshot import Catalog
from toolcrib.catalog.tool import OfferKind, Tool, decode_definition
from toolcrib.commands.problems import describe_problems
from toolcrib.commands.registry import (
    Availability,
    CommandContext,
    CommandEffect,
    Parameters,
    ServersNeeded,
    registry,
)
from toolcrib.config.masking import storable
from toolcrib.config.model import RESERVED_SERVER_NAMES
from toolcrib.core.pins import PinReview, PinStatus
from toolcrib.core.project import Project
from toolcrib.errors import ServerUnavailable, UnknownServer, UnknownTool
from toolcrib.servers.server import Server
from toolcrib.store.pins import PinRow

SHORTEST_DIGEST = 32
"""Hexadecimal digits: too many for anyone to find a second definition with the same ones."""
_CONTEXT_LINES = 2
_NOT_COMPARED = frozenset({"name", "icons"})


@dataclass(frozen=True, kw_only=True)
class _Names:
    """The names of all tools in a project."""

    servers: Mapping[str, Collection[str]]
    alike: Mapping[str, str]
    """Names that look like another one."""


_names: WeakKeyDictionary[Catalog, _Names] = WeakKeyDictionary()
"""Computed once per catalog. A tool that is kept out or no longer so changes the catalog."""


def describe_pins(project: Project, server: str) -> dict[str, Any]:
    """The tools that await review, in short: names by status, flagged ones with their reasons."""
    alike = server_look_alikes(project).get(server)
    named = {} if alike is None else {"looks_like": alike}
    review = project.review(server)
    if review is None:
        return named
    by_status = {why.value: [name for name, one in review.status.items() if one is why] for why in PinStatus}
    by_status.pop(PinStatus.FLAGGED.value)
    found: dict[str, Any] = {**named, **{why: names for why, names in by_status.items() if names}}
    if held := sorted(project.kept_out(server)):
        found["kept_out"] = held
    if flagged := dict(_flagged(project, server, review)):
        found["flagged"] = flagged
    return found


def pin_status(project: Project, tool: Tool) -> str:
    """Why the tool awaits review: "new" or "changed". Empty if its definition is the accepted one."""
    review = project.review(tool.server) if tool.kind is OfferKind.TOOL else None
    status = None if review is None else review.status.get(storable(tool.name))
    return status.value if status in (PinStatus.NEW, PinStatus.CHANGED) else ""


def _flagged(project: Project, server: str, review: PinReview) -> Iterator[tuple[str, list[str]]]:
    """The flagged tools whose definitions no person has accepted, with the reasons."""
    names = _names_in(project)
    for name, tool in sorted(review.tools.items()):
        if tool.sha256 not in review.pinned.reviewed:
            looks = [f"has a name that looks like {names.alike[name]}"] if name in names.alike else []
            others = sorted(one for one in tool.ordered if names.servers.get(one, {server}) != {server})
            orders = [f"says when to use {one}, a tool of another server" for one in others if one not in review.tools]
            if reasons := [*looks, *orders, *tool.flags]:
                yield name, reasons


def _names_in(project: Project) -> _Names:
    found = _names.get(project.catalog)
    if found is None:
        kept_out = [(server, name) for server in project.servers for name in project.kept_out(server)]
        servers: dict[str, set[str]] = {}
        for server, name in [*((tool.server, tool.name) for tool in project.catalog.tools), *kept_out]:
            servers.setdefault(name, set()).add(server)
        found = _names[project.catalog] = _Names(servers=servers, alike=look_alikes(servers))
    return found


def server_look_alikes(project: Project) -> dict[str, str]:
    """Servers whose names look like another one's."""
    return look_alikes([*project.config.servers, *RESERVED_SERVER_NAMES])


class ListPins(Parameters):
    name: str | None = None
    tool: str = ""
    """Fails unless the server has it."""


@registry.command("pins:list", CommandEffect.REVEALS, Availability.SOCKET, servers=ServersNeeded.SETTLED)
async def list_pins(context: CommandContext, params: ListPins) -> dict[str, Any]:
    """Show the tools whose definitions differ from the accepted ones, and suspicious definitions."""
    project = context.project
    if params.name is not None and params.name not in project.servers:
        raise _unknown(project, params.name)
    review = project.review(params.name or "")
    if params.tool and review is not None and params.tool not in review.tools:
        remedy = f"`toolcrib tools {params.name}` lists its tools."
        raise UnknownTool(f"{params.name} has no tool {params.tool!r}.", remedy=remedy)
    names = sorted(project.servers) if params.name is None else [params.name]
    described = [await _described(context, name) for name in names]
    return {"servers": [row for row in described if row is not None], **await describe_problems(context)}


async def _described(context: CommandContext, name: str) -> dict[str, Any] | None:
    """None if nothing of the server awaits review."""
    project = context.project
    review, server = project.review(name), project.servers[name]
    alike = server_look_alikes(project).get(name)
    if review is None:
        return None
    flagged = dict(_flagged(project, name, review))
    tools = sorted(review.status.keys() | flagged.keys())
    if not tools and alike is None:
        return None
    accepted = await context.crib.trust.accepted(server.config, tools)
    held = project.kept_out(name)
    rows = [
        {
            "tool": tool,
            "status": review.status.get(tool, PinStatus.FLAGGED),
            "digest": review.digest([tool]) if tool in review.status else "",
            "kept_out": tool in held,
            "flags": flagged.get(tool, []),
            "accepted_at": accepted[tool].accepted_at if tool in accepted else None,
            "accepted_by": (accepted[tool].accepted_by or "first use") if tool in accepted else None,
            "differences": _differences(review, tool, accepted.get(tool)),
        }
        for tool in tools
    ]
    return {
        "server": name,
        "mode": project.config.pins_of(project.config.servers.get(name, server.config)),
        "trusted": context.crib.trust.trusted(server.config) is not None,
        "digest": review.digest(review.status),
        "looks_like": alike or "",
        "tools": rows,
    }


def _differences(review: PinReview, tool: str, accepted: PinRow | None) -> list[dict[str, Any]]:
    now = review.tools.get(tool)
    if review.status.get(tool) in (None, PinStatus.REMOVED):
        return []
    before = {} if accepted is None or now is None or now.sha256 == accepted.sha256 else _fields(accepted.definition)
    after = {} if now is None else _fields(now.definition)
    return [
        {"field": field, "diff": lines}
        for field in sorted(before.keys() | after.keys())
        if (lines := _diff(before.get(field, ""), after.get(field, "")))
    ]


def _fields(definition: bytes) -> dict[str, str]:
    """Each field of the definition as text, with sorted keys."""
    _, fields = decode_definition(definition)
    return {name: _text(bytes(value)) for name, value in fields.items() if name not in _NOT_COMPARED}


def _text(value: bytes) -> str:
    try:
        decoded = json.loads(value)
    except (ValueError, RecursionError):
        # A number that Python cannot represent.
        return value.decode()
    return decoded if isinstance(decoded, str) else json.dumps(decoded, indent=2, ensure_ascii=False, sort_keys=True)


def _diff(before: str, after: str) -> list[str]:
    lines = difflib.unified_diff(before.split("\n"), after.split("\n"), n=_CONTEXT_LINES, lineterm="")
    # The first two lines name files.
    return list(lines)[2:]


class PinParameters(Parameters):
    name: str
    tool: str = ""
    """All that await review if empty."""


class AcceptPins(PinParameters):
    digest: Annotated[str, Field(min_length=SHORTEST_DIGEST, pattern="^[0-9a-f]+$")]


@registry.command("pins:accept", CommandEffect.CHANGES, Availability.SOCKET, servers=ServersNeeded.SETTLED, cached=True)
async def accept(context: CommandContext, params: AcceptPins) -> dict[str, Any]:
    """Accept a tool's present definition, or all of a server's, exactly as they were shown."""
    server, listed = _listing(context.project, params.name)
    done = await context.crib.trust.accept(
        server.config, server.root, listed, tool=params.tool, digest=params.digest, by=context.principal.name
    )
    return {"server": params.name, "accepted": list(done)}


@registry.command("pins:reject", CommandEffect.CHANGES, Availability.SOCKET, servers=ServersNeeded.SETTLED, cached=True)
async def reject(context: CommandContext, params: PinParameters) -> dict[str, Any]:
    """Keep a new or changed tool out, or all of a server's, until its definition is an accepted one."""
    server, listed = _listing(context.project, params.name)
    done = await context.crib.trust.reject(
        server.config, server.root, listed, tool=params.tool, by=context.principal.name
    )
    return {"server": params.name, "kept_out": list(done)}


def _listing(project: Project, name: str) -> tuple[Server, tuple[bytes, ...]]:
    server = project.servers.get(name)
    if server is None:
        raise _unknown(project, name)
    if server.tools is None:
        raise ServerUnavailable(f"{name} has not listed any tools yet.", remedy="Try again when it is connected.")
    return server, server.tools


def _unknown(project: Project, name: str) -> UnknownServer:
    known = ", ".join(sorted(project.servers)) or "none"
    return UnknownServer(f"There is no server {name!r}.", remedy=f"Servers in use: {known}.")
