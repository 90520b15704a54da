"""A profile: a named set of rules that many agents may share.

In: a profile as a person or the store wrote it. Out: a frozen `Profile`. The built-in ones stand here; `permission`
makes of a profile and an agent's own rules what the agent may do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from toolcrib.errors import ConfigError
from toolcrib.policy.own_tools import OwnTools
from toolcrib.policy.rule import Effect, Origin, Rule, rule_data, rule_from

MOST_RULES = 10_000
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,47}")
_LONGEST_DESCRIPTION = 500


@dataclass(frozen=True, kw_only=True)
class Profile:
    name: str
    description: str = ""
    rules: tuple[Rule, ...] = ()
    own_tools: OwnTools = OwnTools.NONE
    """What a coding agent with this profile may do by its own hands, where Toolcrib runs it."""
    builtin: bool = False


def _builtin(
    name: str, description: str, *rules: tuple[Effect, str, dict[str, bool]], own_tools: OwnTools = OwnTools.NONE
) -> Profile:
    made = tuple(Rule(effect=effect, tools=tools, annotations=claims, holder=name) for effect, tools, claims in rules)
    return Profile(name=name, description=description, rules=made, own_tools=own_tools, builtin=True)


BUILTIN: Mapping[str, Profile] = MappingProxyType(
    {
        profile.name: profile
        for profile in (
            _builtin(
                "owner",
                "Everything, also what manages Toolcrib itself.",
                (Effect.ALLOW, "*:*", {}),
                own_tools=OwnTools.ALL,
            ),
            _builtin(
                "trusted",
                "Every tool, and Toolcrib's commands by their raw names.",
                (Effect.ALLOW, "*:*", {}),
                own_tools=OwnTools.ALL,
            ),
            _builtin(
                "developer",
                "Every tool of every server; of Toolcrib itself, what only reads, and jobs.",
                (Effect.ALLOW, "*:*", {}),
                # Of what does not only read, jobs alone reach beyond Toolcrib.
                (Effect.DENY, "crib:*", {"read_only": False, "open_world": False}),
                own_tools=OwnTools.EDIT,
            ),
            _builtin(
                "read-only",
                "Only tools that are believed to change nothing.",
                (Effect.ALLOW, "*:*", {"read_only": True}),
                own_tools=OwnTools.READ,
            ),
            _builtin("nothing", "Nothing, but for what an agent's own rules add."),
        )
    }
)


def profile_from(name: Any, data: Any) -> Profile:
    """The profile that `{"description": …, "rules": [{"allow": "git:*"}, …]}` says. Raises `ConfigError`."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} cannot be a profile's name.",
            remedy="Use up to 48 small letters, digits, and _ . - after the first.",
        )
    if name in BUILTIN:
        raise ConfigError(
            f"{name} is a built-in profile, which does not change.", remedy="Give your profile another name."
        )
    if not isinstance(data, Mapping) or not data.keys() <= {"description", "rules", "own_tools"}:
        raise ConfigError(
            f"profile {name}: it is an object with a description, rules and own_tools.",
            remedy='For instance {"description": "Reads git.", "rules": [{"allow": "git:*"}]}.',
        )
    description, rules = data.get("description", ""), data.get("rules", [])
    if not isinstance(description, str) or len(description) > _LONGEST_DESCRIPTION or not description.isprintable():
        raise ConfigError(
            f"profile {name}: its description is no text of one line.",
            remedy=f"Write at most {_LONGEST_DESCRIPTION} characters.",
        )
    if not isinstance(rules, list | tuple) or len(rules) > MOST_RULES:
        raise ConfigError(
            f"profile {name}: its rules are no list of at most {MOST_RULES}.",
            remedy='For instance [{"allow": "git:*"}, {"deny": "git:git_reset"}].',
        )
    made = tuple(
        rule_from(rule, where=f"profile {name}, rule {number}", origin=Origin.PROFILE, holder=name)
        for number, rule in enumerate(rules, start=1)
    )
    return Profile(name=name, description=description, rules=made, own_tools=_own_tools(name, data))


def _own_tools(name: str, data: Mapping[Any, Any]) -> OwnTools:
    given = data.get("own_tools", OwnTools.NONE)
    try:
        return OwnTools(given)
    except ValueError:
        raise ConfigError(
            f"profile {name}: own_tools is {str(given)[:40]!r}.", remedy=f"It is one of {', '.join(OwnTools)}."
        ) from None


def profile_data(profile: Profile) -> dict[str, Any]:
    """The inverse of `profile_from`; the name is not part of it."""
    data = {"description": profile.description, "rules": [rule_data(rule) for rule in profile.rules]}
    # What is the default is not written: profiles that were stored before there was one read and compare as ever.
    return data if profile.own_tools is OwnTools.NONE else {**data, "own_tools": str(profile.own_tools)}
