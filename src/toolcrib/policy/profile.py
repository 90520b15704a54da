"""Named sets of rules, and what a coding agent may do with its own tools.

In: a profile as a person or the store wrote it; the settings of a folder's `workspace.yml`. Out: a frozen `Profile`;
an `OwnToolsLimit`. The built-in profiles are here; `permission` holds a profile's rules. A coding agent's own tools do
not pass our door, and no program understands `workspace.yml`: where one of its settings forbids something, the program
loses the tools that could do it. `coding_agents` knows what a level means for each program.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from toolcrib.errors import ConfigError
from toolcrib.policy.rule import Rule, RuleOrigin, Verdict, rule_data, rule_from
from toolcrib.workspace.settings.model import GUARDED, SHELL_TOOLS, WorkspaceSettings


class OwnTools(enum.StrEnum):
    NONE = "none"
    """Only what Toolcrib hands out."""
    READ = "read"
    """It may look at files; nothing that writes, runs or fetches."""
    EDIT = "edit"
    """It may also change files in its folder; commands only where its program confines them to that folder."""
    ALL = "all"
    """Whatever its program can do, without asking."""

    def exceeds(self, other: OwnTools) -> bool:
        order = list(OwnTools)
        return order.index(self) > order.index(other)


@dataclass(frozen=True, kw_only=True)
class OwnToolsLimit:
    """The most that a program may do by itself in a folder."""

    tools: OwnTools = OwnTools.ALL
    shell: bool = True
    """Whether it may run commands, confined or not."""
    guarded: tuple[str, ...] = ()
    """Names and `*.ending`s of files that it may not write, below `all`."""
    why: tuple[str, ...] = ()
    """What limits it, in words of `workspace.yml`."""

    def __and__(self, other: OwnToolsLimit) -> OwnToolsLimit:
        tools = other.tools if self.tools.exceeds(other.tools) else self.tools
        guarded = tuple(dict.fromkeys((*self.guarded, *other.guarded)))
        return OwnToolsLimit(
            tools=tools, shell=self.shell and other.shell, guarded=guarded, why=(*self.why, *other.why)
        )


_READS = frozenset({"read_file", "list_dir", "stat_file", "find_files", "search_text", "project_structure"})
_CHANGES = frozenset({"write_file", "edit_file"})


def own_tools_limit(settings: WorkspaceSettings, *, ci: str) -> OwnToolsLimit:
    """`ci`: the variable that says that the run is in CI, if any."""
    limit = OwnToolsLimit(guarded=tuple(one for one in settings.guarded if one in GUARDED))
    if settings.broken:
        return OwnToolsLimit(tools=OwnTools.NONE, shell=False, why=("workspace.yml cannot be used",))
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
    """What a coding agent with this profile may do with its own tools, where Toolcrib runs it."""
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
                "Everything, also what manages Toolcrib itself.",
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
                "Every tool of every server; of Toolcrib itself, what only reads, and jobs.",
                (Verdict.ALLOW, "*:*", {}),
                # Of what does not only read, jobs alone reach beyond Toolcrib.
                (Verdict.DENY, "crib:*", {"read_only": False, "open_world": False}),
                own_tools=OwnTools.EDIT,
            ),
            _builtin(
                "read-only",
                "Only tools that are trusted to change nothing.",
                (Verdict.ALLOW, "*:*", {"read_only": True}),
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
        rule_from(rule, where=f"profile {name}, rule {number}", origin=RuleOrigin.PROFILE, holder=name)
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
