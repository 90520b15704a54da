"""session:* — who is in which conversation, and the end of it."""

from __future__ import annotations

import time
from typing import Any

from toolcrib.agents.session import Session
from toolcrib.commands.registry import Context, Effect, Parameters, Reach, registry
from toolcrib.errors import NotFound, UsageError


def describe_session(session: Session) -> dict[str, Any]:
    return {
        "id": session.id,
        "agent": session.agent,
        "conversation": session.conversation,
        "started_at": session.started_at,
        "used_at": session.used_at,
        "idle": max(0.0, time.time() - session.used_at),
        "under_way": len(session.under_way or ()),
        "legacy_clients": len(session.legacy),
        "catalog_version": session.catalog_version,
        "permission_version": session.permission_version,
        "mode": session.mode,
        "listings": session.listings,
        "calls": session.calls,
        "denied": session.denied,
        "failed": session.failed,
        "result_bytes": session.result_bytes,
        "tokens": session.tokens,
    }


class Listed(Parameters):
    agent: str | None = None


@registry.command("session:list", parameters=Listed, effect=Effect.REVEALS, reach=Reach.EVERYWHERE)
async def list_sessions(context: Context, params: Listed) -> dict[str, Any]:
    """List the sessions of all agents, or of one, with what was done in each."""
    found = [one for one in context.crib.sessions if params.agent in (None, one.agent)]
    found.sort(key=lambda one: one.used_at, reverse=True)
    return {"sessions": [describe_session(one) for one in found]}


class Ended(Parameters):
    id: str | None = None
    agent: str | None = None


@registry.command("session:end", parameters=Ended, effect=Effect.CHANGES, reach=Reach.EVERYWHERE)
async def end(context: Context, params: Ended) -> dict[str, Any]:
    """End one session, or all of an agent: what is under way in it stops, its legacy clients begin again."""
    sessions = context.crib.sessions
    if (params.id is None) == (params.agent is None):
        raise UsageError("Say which sessions end.", remedy="Give either an id or an agent.")
    if params.id is not None:
        session = sessions.by_id(params.id)
        await sessions.end(session)
        return {"ended": [describe_session(session)]}
    gone = [describe_session(one) for one in sessions if one.agent == params.agent]
    if not gone:
        raise NotFound(f"{params.agent} has no sessions.", remedy="`toolcrib sessions` lists all.")
    await sessions.end_agent(str(params.agent))
    return {"ended": gone}
