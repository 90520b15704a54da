"""agent:* and session:* — agents and their conversations: list, show, add, rotate, remove, end.

A token is returned only once, when it is created. `agent:servers` streams an event with all servers, and another
whenever one of them changes, until the connection closes; `core.daemon_catalog` reads it.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from pydantic import Field

from toolcrib.commands.duration import parse_duration
from toolcrib.commands.permission import unjudged
from toolcrib.commands.registry import (
    Availability,
    CommandContext,
    CommandEffect,
    CommandScope,
    Parameters,
    PathText,
    ServersNeeded,
    registry,
)
from toolcrib.config.model import ListingMode
from toolcrib.config.paths import project_of
from toolcrib.core.project import Project, harmless_stand_in
from toolcrib.errors import Denied, NotFound, UsageError
from toolcrib.events import CatalogChanged, PermissionChanged, ServerStateChanged
from toolcrib.identity.agent import Agent, ErrorForm, MintedAgent
from toolcrib.identity.sessions import Session
from toolcrib.identity.usage import ANSWER_KINDS, TokenKind
from toolcrib.policy import Permission, Profile, Verdict, rule_data


def _described(context: CommandContext, agent: Agent, used_at: float | None) -> dict[str, Any]:
    return {
        "name": agent.name,
        "profile": agent.profile,
        "workdir": None if agent.workdir is None else str(agent.workdir),
        "parent": agent.parent,
        "errors": agent.errors,
        "listing": agent.listing,
        "created_at": agent.created_at,
        "expires_at": agent.expires_at,
        "used_at": used_at,
        "token_file": str(context.services.agents.folder.token_file(agent.name)),
        "fault": agent.fault,
    }


def _bounds(context: CommandContext, agent: Agent) -> dict[str, Any]:
    """The agent's other limits: its ancestors, and the rules that cannot be evaluated."""
    agents, above = context.services.agents, []
    parent = agent.parent
    # An ancestor may have expired by now; then the agent has expired too, but it was added.
    while parent is not None and agents.knows(parent):
        one = agents.find(parent)
        above.append({"agent": one.name, "profile": one.profile})
        parent = one.parent
    return {"limited_by": above, "unjudged": unjudged(agent.name, agent.permission, agent.permission.rules)}


def _last_uses(context: CommandContext) -> dict[str, float]:
    found: dict[str, float] = {}
    for session in context.services.sessions:
        found[session.agent] = max(session.used_at, found.get(session.agent, 0.0))
    return found


@registry.command("agent:list", CommandEffect.REVEALS, Availability.EVERYWHERE, scope=CommandScope.DAEMON)
async def list_agents(context: CommandContext, _: Parameters) -> dict[str, Any]:
    """List the agents: profile, folder, parent, expiry, last use."""
    uses = _last_uses(context)
    return {"agents": [_described(context, agent, uses.get(agent.name)) for agent in context.services.agents.agents]}


class AgentName(Parameters):
    name: str


@registry.command("agent:show", CommandEffect.REVEALS, Availability.EVERYWHERE, scope=CommandScope.DAEMON)
async def show(context: CommandContext, params: AgentName) -> dict[str, Any]:
    """Show an agent with its own rules and its children."""
    agents = context.services.agents
    agent = agents.find(params.name)
    rules = () if agent.fault else agents.rules(agent.name)
    return {
        **_described(context, agent, _last_uses(context).get(agent.name)),
        **_bounds(context, agent),
        "children": list(agents.children(agent.name)),
        "rules": [{"text": rule.text, "origin": rule.origin, **rule_data(rule)} for rule in rules],
    }


class AddAgent(Parameters):
    name: str = Field(description="up to 48 of a-z 0-9 _ . -")
    profile: str = "developer"
    workdir: PathText | None = Field(default=None, description="absolute path of its working folder")
    expires: str | None = Field(default=None, description="lifetime: 30m, 8h, 2d; default: until removed")
    parent: str | None = Field(default=None, description="the parent: its limits and end also apply")
    errors: ErrorForm = Field(default=ErrorForm.RESULT, description="http: failed calls are JSON-RPC errors")
    listing: ListingMode | None = Field(default=None, description="how its tools are listed")


@registry.command("agent:add", CommandEffect.CHANGES, Availability.EVERYWHERE, scope=CommandScope.DAEMON, cached=True)
async def add(context: CommandContext, params: AddAgent) -> dict[str, Any]:
    """Add an agent; its token is shown once, and kept in a file that only the owner can read."""
    minted = await context.services.agents.add(
        params.name,
        profile=params.profile,
        workdir=None if params.workdir is None else Path(params.workdir),
        lives=_lifetime(params.expires),
        parent=params.parent,
        errors=params.errors,
        listing=params.listing,
    )
    return {
        **_with_token(context, minted),
        **_bounds(context, minted.agent),
        "not_trusted": _untrusted_servers(context, context.services.agents.profile(params.profile)),
    }


def _lifetime(expires: str | None) -> float | None:
    if expires is None:
        return None
    lives = parse_duration(expires)
    if lives is None:
        raise UsageError(f"{expires[:40]!r} is not a duration.", remedy="Write 30m, 8h or 2d, for example.")
    return lives


def _with_token(context: CommandContext, minted: MintedAgent) -> dict[str, Any]:
    described = _described(context, minted.agent, None)
    return {"agent": minted.agent.name, "token": minted.token, **described, "token_file": str(minted.token_file)}


def _untrusted_servers(context: CommandContext, profile: Profile) -> list[str]:
    """Servers whose annotations are not trusted, if the profile allows tools by annotation."""
    if not any(rule.effect is Verdict.ALLOW and rule.annotations for rule in profile.rules):
        return []
    servers = context.project.config.servers
    return sorted(name for name, one in servers.items() if one.enabled and context.crib.trust.trusted(one) is None)


class SetListing(Parameters):
    name: str
    mode: ListingMode | None = Field(default=None, description="none: as its profile or the configuration says")


@registry.command(
    "agent:listing", CommandEffect.CHANGES, Availability.EVERYWHERE, scope=CommandScope.DAEMON, cached=True
)
async def set_listing(context: CommandContext, params: SetListing) -> dict[str, Any]:
    """Set how an agent's tools are listed."""
    return _described(context, await context.services.agents.set_listing(params.name, params.mode), None)


@registry.command(
    "agent:rotate", CommandEffect.CHANGES, Availability.EVERYWHERE, scope=CommandScope.DAEMON, cached=True
)
async def rotate(context: CommandContext, params: AgentName) -> dict[str, Any]:
    """Give an agent a new token, which is shown once; the old one stops working immediately."""
    return _with_token(context, await context.services.agents.rotate(params.name))


@registry.command(
    "agent:remove", CommandEffect.CHANGES, Availability.EVERYWHERE, scope=CommandScope.DAEMON, cached=True
)
async def remove(context: CommandContext, params: AgentName) -> dict[str, Any]:
    """Remove an agent and its children: their tokens stop working, their folders are deleted."""
    name, *children = await context.services.agents.remove(params.name)
    return {"agent": name, "children": children}


class AgentToken(Parameters):
    token: str


@registry.command(
    "agent:servers", CommandEffect.READS, Availability.SOCKET, scope=CommandScope.DAEMON, servers=ServersNeeded.ALL
)
async def servers(context: CommandContext, params: AgentToken) -> dict[str, Any]:
    """Report the state of the servers that a program's agent may use, and every change."""
    agents = context.services.agents
    agent = agents.authenticate(params.token)
    if agent is None:
        raise Denied("No agent has this token.", remedy="Run `toolcrib agent list` to see the agents.")
    changed = asyncio.Event()
    leave = context.crib.bus.subscribe(lambda _: changed.set(), ServerStateChanged, CatalogChanged, PermissionChanged)
    root = context.project.root if agent.workdir is None else project_of(agent.workdir)
    sent: list[dict[str, Any]] | None = None
    try:
        async with context.crib.projects.working_in(root) as project:
            while True:
                changed.clear()
                seen = _visible_servers(project, agents.find(agent.name).permission)
                if seen != sent:
                    await context.emit({"servers": seen})
                    sent = seen
                await changed.wait()
    finally:
        leave()


def _visible_servers(project: Project, permission: Permission) -> list[dict[str, Any]]:
    """The servers with a tool that this permission shows, or might show if the tools were known."""
    found = []
    for name, server in sorted(project.servers.items()):
        tools = project.catalog.of_server(name) if server.tools is not None else (harmless_stand_in(name, name),)
        if any(map(permission.shows, tools)):
            found.append({"name": name, "state": server.status.state.value})
    return found


_SESSION_FIELDS = (
    *("id", "agent", "conversation", "started_at", "used_at", "catalog_version", "permission_version", "mode"),
    *("listings", "calls", "denied", "failed", "result_bytes"),
)


def describe_session(session: Session) -> dict[str, Any]:
    return {
        **{name: getattr(session, name) for name in _SESSION_FIELDS},
        "tokens": session.usage.total,
        "tokens_estimated": session.usage.estimated,
        "idle": max(0.0, time.time() - session.used_at),
        "open_requests": len(session.open_requests or ()),
        "legacy_clients": len(session.legacy),
    }


class ListSessions(Parameters):
    agent: str | None = None


@registry.command("session:list", CommandEffect.REVEALS, Availability.EVERYWHERE, scope=CommandScope.DAEMON)
async def list_sessions(context: CommandContext, params: ListSessions) -> dict[str, Any]:
    """List the sessions of all agents, or of one, with the activity in each."""
    found = [one for one in context.services.sessions if params.agent in (None, one.agent)]
    found.sort(key=lambda one: one.used_at, reverse=True)
    return {"sessions": [describe_session(one) for one in found]}


class SessionId(Parameters):
    id: str


@registry.command("session:show", CommandEffect.REVEALS, Availability.SOCKET, scope=CommandScope.DAEMON)
async def show_session(context: CommandContext, params: SessionId) -> dict[str, Any]:
    """Show what a session cost in tokens, by kind, and the ranks of the called tools in its searches."""
    session = context.services.sessions.by_id(params.id)
    usage = session.usage
    return {
        **describe_session(session),
        **{kind.value: usage.answers.get(kind, 0) for kind in ANSWER_KINDS},
        "tokens_by_kind": {kind.value: usage.tokens.get(kind, 0) for kind in TokenKind},
        "ranks": {str(rank): times for rank, times in sorted(usage.ranks.items())},
        "mean_rank": usage.mean_rank,
    }


class NextListing(Parameters):
    agent: str
    conversation: str = Field(default="default", description="its label")
    listing: ListingMode | None = Field(default=None, description="instead of the agent's own setting")


@registry.command("session:listing", CommandEffect.READS, Availability.SOCKET, scope=CommandScope.DAEMON)
async def next_listing(context: CommandContext, params: NextListing) -> dict[str, Any]:
    """Report what the next completion of a conversation must say about its list of tools."""
    return {
        "listing": context.services.listing_for(
            params.agent, params.conversation, context.project.config.settings.listing, params.listing
        )
    }


class EndSessions(Parameters):
    id: str | None = None
    agent: str | None = None


@registry.command("session:end", CommandEffect.CHANGES, Availability.EVERYWHERE, scope=CommandScope.DAEMON, cached=True)
async def end_sessions(context: CommandContext, params: EndSessions) -> dict[str, Any]:
    """End one session, or all of an agent: open requests stop, and legacy clients must reconnect."""
    sessions = context.services.sessions
    if (params.id is None) == (params.agent is None):
        raise UsageError("It is not clear which sessions to end.", remedy="Give either an id or an agent.")
    if params.id is not None:
        session = sessions.by_id(params.id)
        await sessions.end(session)
        return {"ended": [describe_session(session)]}
    gone = [describe_session(one) for one in sessions if one.agent == params.agent]
    if not gone:
        raise NotFound(f"{params.agent} has no sessions.", remedy="Run `toolcrib sessions` to see all.")
    await sessions.end_agent(str(params.agent))
    return {"ended": gone}
