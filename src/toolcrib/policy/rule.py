"""One rule: allow, deny or ask, for tools that match a glob, annotations and conditions on arguments.

In: a rule from a person or the store. Out: a frozen `Rule` that checks whether it covers a tool and applies to a call's
arguments. `profile` and `permission` hold rules; `permission` decides among them.

An allow is matched exactly. A deny or an ask matches every possible spelling: any case, and a `:` that is part of a
server's name.
"""

from __future__ import annotations

import difflib
import enum
import fnmatch
import functools
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any
from urllib.parse import unquote

from toolcrib.catalog.names import SHORT_NAMES
from toolcrib.catalog.offers import loose_spellings, spellings
from toolcrib.catalog.tool import OfferKind, Tool
from toolcrib.config.model import ANNOTATIONS
from toolcrib.errors import ConfigError
from toolcrib.policy.condition import LONGEST_WORD, Condition, ConditionTest, Matches, OneOf, Under
from toolcrib.policy.paths import PathContext

_PARTS = ("annotations", "when")
_TESTS = ("under", "one_of", "matches")


class Verdict(enum.StrEnum):
    """The effect of a rule, and the result of a decision."""

    ALLOW = "allow"
    DENY = "deny"
    ASK = "ask"


class RuleOrigin(enum.StrEnum):
    """Where a rule comes from."""

    PROFILE = "profile"
    AGENT = "agent"
    APPROVAL = "approval"
    """A person approved or refused a call with "always"."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    effect: Verdict
    tools: str
    """A glob over server and tool: `git:*`, `*:read_*`. `*` alone is `*:*`. `git:*` also covers the server's resources
    and prompts; narrower ones are named by their kind: `resource:files:file:///src/*`, `prompt:git:*`."""
    annotations: Mapping[str, bool] = field(default_factory=dict)
    """Required annotations of the tool (`ANNOTATIONS`), as `Tool.claims` has them."""
    when: tuple[Condition, ...] = ()
    """All must hold."""
    origin: RuleOrigin = RuleOrigin.PROFILE
    holder: str = ""
    """The profile's or the agent's name."""

    def __post_init__(self) -> None:
        tools = _checked_glob(self.tools)
        unknown = [name for name in self.annotations if name not in ANNOTATIONS]
        if unknown or not all(isinstance(value, bool) for value in self.annotations.values()):
            raise ConfigError(
                f"Annotations are {', '.join(ANNOTATIONS)}, each true or false.", remedy=_near(unknown, ANNOTATIONS)
            )
        if len({(c.argument, type(c.test)) for c in self.when}) < len(self.when):
            raise ConfigError("One argument has the same test twice.", remedy="Write two rules instead.")
        object.__setattr__(self, "tools", tools)
        object.__setattr__(self, "annotations", MappingProxyType(dict(sorted(self.annotations.items()))))
        object.__setattr__(self, "when", tuple(sorted(self.when, key=str)))

    def __hash__(self) -> int:
        return hash((self.effect, self.tools, self.when, self.origin, self.holder))

    def __str__(self) -> str:
        return self.text

    @functools.cached_property
    def text(self) -> str:
        """`agent reviewer: allow git:* when path under src`."""
        claims = " and ".join(name if value else f"not {name}" for name, value in self.annotations.items())
        conditions = " and ".join(map(str, self.when))
        text = f"{self.effect} {self.tools}"
        text += f" where {claims}" if claims else ""
        text += f" when {conditions}" if conditions else ""
        place = f"{self.origin} {self.holder}".rstrip()
        return f"{place}: {text}"

    @functools.cached_property
    def meaning(self) -> str:
        """Equal for rules with the same effect, whatever their holder."""
        return json.dumps([self.origin, rule_data(self)], sort_keys=True)

    @functools.cached_property
    def readings(self) -> tuple[tuple[str, str], ...]:
        """Pairs of globs for server and tool: one for an allow, otherwise one for each `:` that may separate them."""
        tools = kind_and_glob(self.tools)[1]
        splits = [(tools[:at], tools[at + 1 :]) for at, letter in enumerate(tools) if letter == ":"]
        if self.effect is Verdict.ALLOW:
            (server, tool), plain = splits[0], unquote(splits[0][1])
            encoded = self.kind is OfferKind.RESOURCE and plain != tool and _wildcards(plain) == _wildcards(tool)
            return ((server, tool), (server, plain)) if encoded else (splits[0],)
        return tuple((server.casefold(), tool.casefold()) for server, tool in splits if server and tool)

    @functools.cached_property
    def _matchers(self) -> tuple[tuple[Callable[[str], Any], Callable[[str], Any]], ...]:
        return tuple((glob(server), glob(tool)) for server, tool in self.readings)

    @functools.cached_property
    def kind(self) -> OfferKind:
        return kind_and_glob(self.tools)[0]

    def covers(self, tool: Tool) -> bool:
        """Whether it covers this tool, whatever the arguments."""
        if tool.kind is not self.kind and not (self.kind is OfferKind.TOOL and self._covers_whole_servers):
            return False
        # Servers read `a/../b` and `%61` in their own way.
        if tool.kind is OfferKind.RESOURCE and self.effect is not Verdict.ALLOW:
            if not any(self._matches(tool.server, uri) for uri in loose_spellings(tool.name)):
                return False
        elif tool.kind is OfferKind.RESOURCE and is_glob(self.tools):
            if not all(self._matches(tool.server, uri) for uri in spellings(tool.name)):
                return False
        elif not self._matches(tool.server, tool.name):
            return False
        return not self.annotations or self.annotations.items() <= tool.claims.items()

    @functools.cached_property
    def _covers_whole_servers(self) -> bool:
        return any(tool == "*" for _, tool in self.readings)

    def _matches(self, server: str, name: str) -> bool:
        if self.effect is not Verdict.ALLOW:
            server, name = server.casefold(), name.casefold()
        return any(of_tool(name) and of_server(server) for of_server, of_tool in self._matchers)

    def reaches(self, server: str) -> bool:
        """Whether it may cover a tool of this server."""
        name = server if self.effect is Verdict.ALLOW else server.casefold()
        return any(of_server(name) for of_server, _ in self._matchers)

    @property
    def from_folder(self) -> tuple[Condition, ...]:
        """The conditions relative to the agent's folder; for an agent without one, they cannot be checked."""
        return tuple(one for one in self.when if isinstance(one.test, Under) and one.test.relative)

    def surely(self, arguments: Any, paths: PathContext) -> bool:
        return all(condition.surely(arguments, paths) for condition in self.when)

    def maybe(self, arguments: Any, paths: PathContext) -> bool:
        return all(condition.maybe(arguments, paths) for condition in self.when)


def _wildcards(pattern: str) -> int:
    return pattern.count("*") + pattern.count("?")


_KINDS = {f"{kind}:": kind for kind in (OfferKind.RESOURCE, OfferKind.PROMPT)}


def kind_and_glob(tools: str) -> tuple[OfferKind, str]:
    """`prompt:git:*` is about prompts; `prompt:review` is the tool of a server named `prompt`."""
    prefix, _, rest = tools.partition(":")
    kind = _KINDS.get(f"{prefix}:")
    return (kind, rest) if kind is not None and ":" in rest else (OfferKind.TOOL, tools)


def glob(pattern: str) -> Callable[[str], Any]:
    """Returns a matcher. `*` matches any text, `?` any character; everything else is literal."""
    if not is_glob(pattern):
        return pattern.__eq__
    if pattern == "*":
        return _anything
    return re.compile(fnmatch.translate(pattern.replace("[", "[[]"))).match


def is_glob(pattern: str) -> bool:
    return "*" in pattern or "?" in pattern


def _anything(_: str) -> bool:
    return True


def _checked_glob(tools: Any) -> str:
    if tools == "*":
        return "*:*"
    if not isinstance(tools, str) or len(tools) > LONGEST_WORD or not tools.isprintable():
        raise ConfigError(
            "A rule's tools must be one printable line.",
            remedy='Write `server:tool`, for instance "git:*" or "*:read_*".',
        )
    if not tools.strip():
        raise ConfigError("The rule names no tools.", remedy='Write `server:tool`, for instance "git:*" or "*:read_*".')
    kind, pattern = kind_and_glob(tools)
    server, colon, tool = pattern.partition(":")
    if not colon:
        ours = next((f'"{":".join(pair)}"' for pair, short in SHORT_NAMES.items() if short == tools), None)
        remedy = f"Write {ours}." if ours else f'Write "{tools}:*" or "*:{tools}".'
        raise ConfigError(f"{tools!r} names no server.", remedy=remedy)
    if not server or not tool:
        raise ConfigError(f"{tools!r} names no tool.", remedy=f'Write "{server or "*"}:{tool or "*"}".')
    if tools != tools.strip() or server != server.strip() or tool != tool.strip():
        raise ConfigError(f"{tools!r} has extra spaces.", remedy=f'Write "{server.strip()}:{tool.strip()}".')
    if kind is not OfferKind.RESOURCE and set("[]{}") & set(tools):
        raise ConfigError(
            f"{tools!r} has brackets, which are not supported.", remedy="Only * and ? are special; write two rules."
        )
    return tools


def rule_from(data: Any, *, where: str, origin: RuleOrigin = RuleOrigin.PROFILE, holder: str = "") -> Rule:
    """Parses `{"allow": "files:*", "annotations": {…}, "when": {"path": {"under": "."}}}`."""
    try:
        return _rule(data, origin, holder)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error.message}", remedy=error.remedy, data={"where": where}) from None


def _rule(data: Any, origin: RuleOrigin, holder: str) -> Rule:
    if not isinstance(data, Mapping):
        raise ConfigError("A rule must be an object.", remedy='For instance {"allow": "git:*"}.')
    effects = [effect for effect in Verdict if effect in data]
    unknown = [str(key) for key in data if key not in (*Verdict, *_PARTS)]
    if unknown:
        raise ConfigError(f"A rule has no key {unknown[0]!r}.", remedy=_near(unknown, (*Verdict, *_PARTS)))
    if len(effects) != 1:
        raise ConfigError("A rule needs exactly one of allow, deny and ask.", remedy='For instance {"allow": "git:*"}.')
    annotations = data.get("annotations", {})
    when = data.get("when", {})
    if not isinstance(annotations, Mapping) or not isinstance(when, Mapping):
        raise ConfigError(
            "`annotations` and `when` must be objects.",
            remedy='For instance {"annotations": {"read_only": true}, "when": {"path": {"under": "src"}}}.',
        )
    conditions = tuple(
        Condition(argument=argument, test=test) for argument, tests in when.items() for test in _tests(tests)
    )
    (effect,) = effects
    return Rule(
        effect=effect, tools=data[effect], annotations=annotations, when=conditions, origin=origin, holder=holder
    )


def _tests(data: Any) -> Iterable[ConditionTest]:
    if not isinstance(data, Mapping) or not data:
        raise ConfigError("A condition needs a test.", remedy='For instance {"path": {"under": "src"}}.')
    for name, value in data.items():
        match name:
            case "under":
                yield Under(value)
            case "matches":
                yield Matches(value)
            case "one_of":
                if not isinstance(value, list | tuple):
                    raise ConfigError("one_of takes a list.", remedy='For instance ["read", "list"].')
                yield OneOf(tuple(value))
            case _:
                raise ConfigError(f"There is no test {name!r}.", remedy=_near([str(name)], _TESTS))


def rule_data(rule: Rule) -> dict[str, Any]:
    """The inverse of `rule_from`; the holder is not part of it."""
    data: dict[str, Any] = {str(rule.effect): rule.tools}
    if rule.annotations:
        data["annotations"] = dict(rule.annotations)
    for condition in rule.when:
        tests = data.setdefault("when", {}).setdefault(condition.argument, {})
        match condition.test:
            case Under(path):
                tests["under"] = path
            case OneOf(values):
                tests["one_of"] = list(values)
            case Matches(pattern):
                tests["matches"] = pattern
    return data


def _near(wrong: Iterable[str], known: Iterable[str]) -> str:
    words = [str(word) for word in known]
    near = [best for word in wrong for best in difflib.get_close_matches(word, words, n=1)]
    return f"Did you mean {near[0]}?" if near else f"Known: {', '.join(words)}."
