"""agent:* — who may come in: list, show, add, rotate, remove. A token is in one answer only: when it was made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field

from toolcrib.agents.agent import Agent, Minted
from toolcrib.commands.reasons import unjudged
from toolcrib.commands.registry import Context, Effect, Parameters, PathText, Reach, registry
from toolcrib.commands.span import seconds_of
from toolcrib.errors import UsageError
from toolcrib.policy import Effect as RuleEffect
from toolcrib.policy import Profile, rule_data


def _described(context: Context, agent: Agent, used_at: float | None) -> dict[str, Any]:
    return {
        "name": agent.name,
        "profile": agent.profile,
        "workdir": None if agent.workdir is None else str(agent.workdir),
        "parent": agent.parent,
        "created_at": agent.created_at,
        "expires_at": agent.expires_at,
        "used_at": used_at,
        "token_file": str(context.crib.roster.folder.token_file(agent.name)),
        "fault": agent.fault,
    }


def _bounds(context: Context, agent: Agent) -> dict[str, Any]:
    """What else one must know to tell what it may do: who stands above it, and which rules cannot be judged."""
    roster, above = context.crib.roster, []
    parent = agent.parent
    # The time of one above may be over by now; that of the agent is, too, but it was added.
    while parent is not None and roster.knows(parent):
        one = roster.find(parent)
        above.append({"agent": one.name, "profile": one.profile})
        parent = one.parent
    return {"limited_by": above, "unjudged": unjudged(agent.name, agent.permission, agent.permission.rules)}


def _last_uses(context: Context) -> dict[str, float]:
    found: dict[str, float] = {}
    for session in context.crib.sessions:
        found[session.agent] = max(session.used_at, found.get(session.agent, 0.0))
    return found


@registry.command("agent:list", effect=Effect.REVEALS, reach=Reach.EVERYWHERE)
async def list_agents(context: Context, _: Parameters) -> dict[str, Any]:
    """List the agents: profile, folder, parent, end, last use."""
    uses = _last_uses(context)
    return {"agents": [_described(context, agent, uses.get(agent.name)) for agent in context.crib.roster.agents]}


class Named(Parameters):
    name: str


@registry.command("agent:show", parameters=Named, effect=Effect.REVEALS, reach=Reach.EVERYWHERE)
async def show(context: Context, params: Named) -> dict[str, Any]:
    """Show an agent with its own rules and its children."""
    roster = context.crib.roster
    agent = roster.find(params.name)
    rules = () if agent.fault else roster.rules(agent.name)
    return {
        **_described(context, agent, _last_uses(context).get(agent.name)),
        **_bounds(context, agent),
        "children": list(roster.children(agent.name)),
        "rules": [{"text": rule.text, "origin": rule.origin, **rule_data(rule)} for rule in rules],
    }


class Add(Parameters):
    name: str = Field(description="up to 48 of a-z 0-9 _ . -")
    profile: str = "developer"
    workdir: PathText | None = Field(default=None, description="the whole path of the folder it works in")
    expires: str | None = Field(default=None, description="how long it lives: 30m, 8h, 2d; without it, until removed")
    parent: str | None = Field(default=None, description="an agent that bounds what it may do, and ends with")


@registry.command("agent:add", parameters=Add, effect=Effect.CHANGES, reach=Reach.EVERYWHERE)
async def add(context: Context, params: Add) -> dict[str, Any]:
    """Add an agent; its token is told once, and is in a file that only the owner can read."""
    minted = await context.crib.roster.add(
        params.name,
        profile=params.profile,
        workdir=None if params.workdir is None else Path(params.workdir),
        lives=_life(params.expires),
        parent=params.parent,
    )
    return {
        **_minted(context, minted),
        **_bounds(context, minted.agent),
        "not_believed": _not_believed(context, context.crib.roster.profile(params.profile)),
    }


def _life(expires: str | None) -> float | None:
    if expires is None:
        return None
    lives = seconds_of(expires)
    if lives is None:
        raise UsageError(f"{expires[:40]!r} is no time to live.", remedy="Write for instance 30m, 8h or 2d.")
    return lives


def _minted(context: Context, minted: Minted) -> dict[str, Any]:
    described = _described(context, minted.agent, None)
    return {"agent": minted.agent.name, "token": minted.token, **described, "token_file": str(minted.token_file)}


def _not_believed(context: Context, profile: Profile) -> list[str]:
    """Servers whose word on their own tools does not count, where the profile allows tools by such words."""
    if not any(rule.effect is RuleEffect.ALLOW and rule.annotations for rule in profile.rules):
        return []
    servers = context.project.config.servers
    return sorted(name for name, one in servers.items() if one.enabled and context.crib.trust.trusted(one) is None)


@registry.command("agent:rotate", parameters=Named, effect=Effect.CHANGES, reach=Reach.EVERYWHERE)
async def rotate(context: Context, params: Named) -> dict[str, Any]:
    """Give an agent a new token, which is told once; the old one is void at once."""
    return _minted(context, await context.crib.roster.rotate(params.name))


@registry.command("agent:remove", parameters=Named, effect=Effect.CHANGES, reach=Reach.EVERYWHERE)
async def remove(context: Context, params: Named) -> dict[str, Any]:
    """End an agent and its children: their tokens are void at once, their folders go."""
    name, *children = await context.crib.roster.remove(params.name)
    return {"agent": name, "children": children}
