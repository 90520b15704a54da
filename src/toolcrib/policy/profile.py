"""Profiles: named sets of rules, and limits on a coding agent's own tools.

In: a profile from a person or the store; the settings of a folder's `workspace.yml`. Out: a frozen `Profile`; an
`OwnToolsLimit`. The built-in profiles are here; `permission` uses a profile's rules. A coding agent's own tools bypass
the door, and no coding agent understands `workspace.yml`: if one of its settings forbids an action, the coding agent
loses the tools for it. `coding_agents` maps each level to each program.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

from toolcrib.config.model import ListingMode
from toolcrib.errors import ConfigError
from toolcrib.policy.rule import Rule, RuleOrigin, Verdict, rule_data, rule_from
from toolcrib.workspace.settings.model import GUARDED, SHELL_TOOLS, WorkspaceSettings


class OwnTools(enum.StrEnum):
    NONE = "none"
    """Only the tools that Toolcrib offers."""
    READ = "read"
    """It may read files, but not write, run or fetch."""
    EDIT = "edit"
    """It may also change files in its folder, and run commands if its program confines them to that folder."""
    ALL = "all"
    """Everything its program can do, without asking."""

    def exceeds(self, other: OwnTools) -> bool:
        order = list(OwnTools)
        return order.index(self) > order.index(other)


@dataclass(frozen=True, kw_only=True)
class OwnToolsLimit:
    """The limit on a program's own tools in a folder."""

    tools: OwnTools = OwnTools.ALL
    shell: bool = True
    """Whether it may run commands, confined or not."""
    guarded: tuple[str, ...] = ()
    """Names and `*.ext` patterns of files that it may not write, at levels below `all`."""
    why: tuple[str, ...] = ()
    """The settings of `workspace.yml` behind the limit."""

    def __and__(self, other: OwnToolsLimit) -> OwnToolsLimit:
        tools = other.tools if self.tools.exceeds(other.tools) else self.tools
        guarded = tuple(dict.fromkeys((*self.guarded, *other.guarded)))
        return OwnToolsLimit(
            tools=tools, shell=self.shell and other.shell, guarded=guarded, why=(*self.why, *other.why)
        )


_READS = frozenset({"read_file", "list_dir", "stat_file", "find_files", "search_text", "project_structure"})
_CHANGES = frozenset({"write_file", "edit_file"})


def own_tools_limit(settings: WorkspaceSettings, *, ci: str) -> OwnToolsLimit:
    """`ci` is the variable that indicates a run in CI, if any."""
    limit = OwnToolsLimit(guarded=tuple(one for one in settings.guarded if one in GUARDED))
    if settings.broken:
        return OwnToolsLimit(tools=OwnTools.NONE, shell=False, why=("workspace.yml is invalid",))
    if settings.hidden:
        limit &= OwnToolsLimit(tools=OwnTools.NONE, shell=False, why=("`hidden` in workspace.yml",))
    if settings.read_only:
        limit &= OwnToolsLimit(tools=OwnTools.READ, shell=False, why=("`read_only` in workspace.yml",))
    if not set(settings.guarded) <= set(GUARDED):
        limit &= OwnToolsLimit(tools=OwnTools.READ, shell=False, why=("`guarded` in workspace.yml",))
    for name in sorted(settings.off & (_READS | _CHANGES | SHELL_TOOLS)):
        limit &= _without(name, f"{name} is off in workspace.yml")
    if settings.forbid_shell_in_ci and ci:
        limit &= OwnToolsLimit(tools=OwnTools.EDIT, shell=False, why=(f"no shell in CI, and {ci} is set",))
    return limit


def _without(name: str, why: str) -> OwnToolsLimit:
    if name in _READS:
        return OwnToolsLimit(tools=OwnTools.NONE, shell=False, why=(why,))
    if name in _CHANGES:
        return OwnToolsLimit(tools=OwnTools.READ, why=(why,))
    return OwnToolsLimit(tools=OwnTools.EDIT, shell=False, why=(why,))


MOST_RULES = 10_000
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,47}")
_LONGEST_DESCRIPTION = 500


@dataclass(frozen=True, kw_only=True)
class Profile:
    name: str
    description: str = ""
    rules: tuple[Rule, ...] = ()
    own_tools: OwnTools = OwnTools.NONE
    """The limit on a coding agent's own tools when Toolcrib runs it with this profile."""
    listing: ListingMode | None = None
    """How its agents' tools are listed; None: as the configuration says."""
    builtin: bool = False


def _builtin(
    name: str, description: str, *rules: tuple[Verdict, str, dict[str, bool]], own_tools: OwnTools = OwnTools.NONE
) -> Profile:
    made = tuple(Rule(effect=effect, tools=tools, annotations=claims, holder=name) for effect, tools, claims in rules)
    return Profile(name=name, description=description, rules=made, own_tools=own_tools, builtin=True)


BUILTIN: Mapping[str, Profile] = MappingProxyType(
    {
        profile.name: profile
        for profile in (
            _builtin(
                "owner",
                "Everything, including managing Toolcrib.",
                (Verdict.ALLOW, "*:*", {}),
                own_tools=OwnTools.ALL,
            ),
            _builtin(
                "trusted",
                "Every tool, and Toolcrib's commands by their raw names.",
                (Verdict.ALLOW, "*:*", {}),
                own_tools=OwnTools.ALL,
            ),
            _builtin(
                "developer",
                "Every tool of every server, and Toolcrib's read-only and job tools.",
                (Verdict.ALLOW, "*:*", {}),
                # Of the tools that are not read-only, only those for jobs are open-world.
                (Verdict.DENY, "crib:*", {"read_only": False, "open_world": False}),
                own_tools=OwnTools.EDIT,
            ),
            _builtin(
                "read-only",
                "Only tools that are trusted to be read-only.",
                (Verdict.ALLOW, "*:*", {"read_only": True}),
                own_tools=OwnTools.READ,
            ),
            _builtin("nothing", "Nothing, except what an agent's own rules add."),
        )
    }
)


def profile_from(name: Any, data: Any) -> Profile:
    """Parses `{"description": …, "rules": [{"allow": "git:*"}, …]}`. Raises `ConfigError`."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} cannot be a profile's name.",
            remedy="Use up to 48 lowercase letters and digits, and _ . - after the first character.",
        )
    if name in BUILTIN:
        raise ConfigError(
            f"{name} is a built-in profile and cannot be changed.", remedy="Give your profile another name."
        )
    if not isinstance(data, Mapping) or not data.keys() <= {"description", "rules", "own_tools", "listing"}:
        raise ConfigError(
            f"profile {name}: it must be an object with a description, rules, own_tools and listing.",
            remedy='For instance {"description": "Reads git.", "rules": [{"allow": "git:*"}]}.',
        )
    description, rules = data.get("description", ""), data.get("rules", [])
    if not isinstance(description, str) or len(description) > _LONGEST_DESCRIPTION or not description.isprintable():
        raise ConfigError(
            f"profile {name}: its description must be one line of text.",
            remedy=f"Write at most {_LONGEST_DESCRIPTION} characters.",
        )
    if not isinstance(rules, list | tuple) or len(rules) > MOST_RULES:
        raise ConfigError(
            f"profile {name}: its rules must be a list of at most {MOST_RULES}.",
            remedy='For instance [{"allow": "git:*"}, {"deny": "git:git_reset"}].',
        )
    made = tuple(
        rule_from(rule, where=f"profile {name}, rule {number}", origin=RuleOrigin.PROFILE, holder=name)
        for number, rule in enumerate(rules, start=1)
    )
    listing = data.get("listing")
    return Profile(
        name=name,
        description=description,
        rules=made,
        own_tools=_one_of(OwnTools, "own_tools", name, data.get("own_tools", OwnTools.NONE)),
        listing=None if listing is None else _one_of(ListingMode, "listing", name, listing),
    )


E = TypeVar("E", bound=enum.StrEnum)


def _one_of(words: type[E], key: str, name: str, given: Any) -> E:
    try:
        return words(given)
    except ValueError:
        raise ConfigError(
            f"profile {name}: {key} is {str(given)[:40]!r}.", remedy=f"It is one of {', '.join(words)}."
        ) from None


def profile_data(profile: Profile) -> dict[str, Any]:
    """The inverse of `profile_from`; the name is not part of it."""
    data: dict[str, Any] = {"description": profile.description, "rules": [rule_data(rule) for rule in profile.rules]}
    # Defaults are left out, so that profiles stored before these keys existed still compare equal.
    if profile.own_tools is not OwnTools.NONE:
        data["own_tools"] = str(profile.own_tools)
    if profile.listing is not None:
        data["listing"] = str(profile.listing)
    return data
