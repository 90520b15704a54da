"""profile:* — named sets of rules that agents share."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from toolcrib.commands.registry import Context, Effect, Parameters, Reach, registry
from toolcrib.policy import OwnTools, Profile, profile_data, profile_from


def _described(context: Context, profile: Profile) -> dict[str, Any]:
    return {
        "name": profile.name,
        "description": profile.description,
        "builtin": profile.builtin,
        "own_tools": str(profile.own_tools),
        "agents": sorted(agent.name for agent in context.crib.roster.agents if agent.profile == profile.name),
    }


@registry.command("profile:list", effect=Effect.REVEALS, reach=Reach.EVERYWHERE)
async def list_profiles(context: Context, _: Parameters) -> dict[str, Any]:
    """List the profiles: what each is for, how many rules it has, and which agents have it."""
    return {
        "profiles": [
            {**_described(context, profile), "rules": len(profile.rules)}
            for profile in context.crib.roster.profiles.values()
        ]
    }


class Named(Parameters):
    name: str


@registry.command("profile:show", parameters=Named, effect=Effect.REVEALS, reach=Reach.EVERYWHERE)
async def show(context: Context, params: Named) -> dict[str, Any]:
    """Show a profile with all its rules."""
    profile = context.crib.roster.profile(params.name)
    return {**_described(context, profile), **profile_data(profile)}


class Put(Parameters):
    name: str
    description: str = ""
    rules: list[Any] = Field(default_factory=list)
    """Each `{"allow" | "deny" | "ask": "server:tool", "annotations"?: {…}, "when"?: {…}}`."""
    own_tools: str = Field(
        default=OwnTools.NONE, description="what a coding agent may do by its own hands: none, read, edit or all"
    )


@registry.command("profile:put", parameters=Put, effect=Effect.CHANGES, reach=Reach.EVERYWHERE)
async def put(context: Context, params: Put) -> dict[str, Any]:
    """Make a profile, or give one of the owner's own new rules; its agents have them at once."""
    profile = profile_from(params.name, params.model_dump(exclude={"name"}))
    changed = await context.crib.roster.put_profile(profile)
    return {**_described(context, profile), "rules": len(profile.rules), "changed": changed}


@registry.command("profile:remove", parameters=Named, effect=Effect.CHANGES, reach=Reach.EVERYWHERE)
async def remove(context: Context, params: Named) -> dict[str, Any]:
    """Remove one of the owner's own profiles that no agent has."""
    await context.crib.roster.drop_profile(params.name)
    return {"profile": params.name}
