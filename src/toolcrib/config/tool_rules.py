"""`tools:` in a file: which tools are offered, and how.

In: a list of rules as written. Out: `ToolRule`s; a rule with a mistake is reported and ignored, the others apply.
`contribution` finds the list, `trust` and `show` display it, and the catalog applies the rules (`catalog.snapshot`).

    tools:
      - keep: ["git:*", "files:read_*"]
      - drop: {annotation: destructive}
      - rename: {git_status: status}
        only: "git:*"
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from toolcrib.config.keys import ConfigField, nearest_key, normalized_key, strict_fields
from toolcrib.config.masking import HIDDEN, mask_spelling, mask_text, names_a_secret, printable
from toolcrib.config.model import ANNOTATIONS, KeyPath, Layer
from toolcrib.config.problems import describe, describe_type
from toolcrib.config.tool_rule import RuleAction, ToolRule, ToolSelector
from toolcrib.config.values import ValueReader

PLACES = ("server", "name", "description")
"""The placeholders in a description."""
PROVIDERS = ("openai", "anthropic", "google")

_PLACE = re.compile(r"\{(\w+)\}")
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


RULE_KEYS = {word.value: word.value for word in RuleAction} | {"only": "only"}
FILTER_KEYS = {"annotation": "annotation", "not": "not"}
ARGUMENT_KEYS = {"tool": "tool", "tools": "tool", "arguments": "arguments"}


_WHOSE = "a rule under tools:"


class _Reader(ValueReader):
    """Reads the values of one rule and remembers which of them are secrets."""

    def __init__(self, values: ValueReader) -> None:
        super().__init__(values.context, values.report)
        self.secrets: dict[str, str] = {}


def unknown_places(template: str) -> list[str]:
    return [place for place in _PLACE.findall(template) if place not in PLACES]


def filled(template: str, words: Mapping[str, str]) -> str:
    return _PLACE.sub(lambda place: words[place[1]], template)


def read_tool_rules(
    given: ConfigField, values: ValueReader, ambiguous: frozenset[KeyPath] = frozenset()
) -> tuple[ToolRule, ...]:
    """`ambiguous` are the mappings with a duplicate key, which is already reported; rules in them are ignored."""
    if not isinstance(given.value, list):
        values.report.error(given.path, found=describe_type(given.value), expected="a list of rules")
        return ()
    found = [(one.path, _rule(one, values)) for one in given.parts().values()]
    return tuple(rule for path, rule in found if rule is not None and path not in ambiguous)


def _rule(given: ConfigField, values: ValueReader) -> ToolRule | None:
    report = values.report
    if not isinstance(given.value, Mapping):
        report.error(
            given.path, found=describe(given.value), expected="a rule, such as drop: {annotation: destructive}"
        )
        return None
    before = report.errors
    fields = strict_fields(given.value, given.path, RULE_KEYS, values.report)
    words = [word for word in RuleAction if word in fields]
    if len(words) != 1 and report.errors == before:
        found = " and ".join(words) or "a rule that does nothing"
        report.error(given.path, found=found, expected=f"one of {', '.join(RuleAction)}")
    if report.errors > before:
        return None
    reader = _Reader(values)
    value, tools = _READERS[words[0]](fields[words[0]], reader)
    if "only" in fields:
        tools = (*tools, _which(fields["only"], reader))
    if report.errors > before:
        return None
    written = MappingProxyType(dict(given.value))
    secrets = reader.secrets | {held: f"{name} of {_WHOSE}" for name, held in reader.supplied.items()}
    return ToolRule(action=words[0], value=value, only=tools, written=written, secrets=MappingProxyType(secrets))


def _which(given: ConfigField, values: ValueReader) -> ToolSelector:
    match given.value:
        case str():
            return ToolSelector(names=(values.text(given, into=()) or "",))
        case list() if given.value:
            parts = [_which(one, values) for one in given.parts().values()]
            return ToolSelector(
                names=tuple(name for part in parts for name in part.names),
                annotations=tuple(name for part in parts for name in part.annotations),
                others=tuple(other for part in parts for other in part.others),
            )
        case Mapping():
            before = values.report.errors
            fields = strict_fields(given.value, given.path, FILTER_KEYS, values.report)
            if values.report.errors > before:
                return ToolSelector()
            if len(fields) == 1:
                if claim := fields.get("annotation"):
                    return _claim(claim, values)
                return ToolSelector(others=(_which(fields["not"], values),))
    expected = "a name or glob such as git:*, {annotation: …}, {not: …}, or a list of these"
    values.report.error(given.path, found=describe(given.value), expected=expected)
    return ToolSelector()


def _claim(given: ConfigField, values: ValueReader) -> ToolSelector:
    word = normalized_key(given.value) if isinstance(given.value, str) else ""
    if word in ANNOTATIONS:
        return ToolSelector(annotations=(word,))
    expected = f"one of {', '.join(ANNOTATIONS)}"
    nearest = nearest_key(word, ANNOTATIONS)
    suggestion = f"Did you mean {nearest}?" if nearest else ""
    values.report.error(given.path, found=describe(given.value), expected=expected, suggestion=suggestion)
    return ToolSelector()


def _choice(given: ConfigField, reader: _Reader) -> tuple[ToolSelector, tuple[()]]:
    return _which(given, reader), ()


def _names(given: ConfigField, reader: _Reader) -> tuple[Mapping[str, str], tuple[()]]:
    table = reader.table(given, into="names") or {}
    for old, new in table.items():
        _check_name(new, ConfigField(value=new, path=(*given.path, old)), reader)
    return MappingProxyType(table), ()


def _prefix(given: ConfigField, reader: _Reader) -> tuple[str, tuple[()]]:
    text = reader.text(given, into=("prefix",))
    if text is not None:
        _check_name(text, given, reader)
    return text or "", ()


def _check_name(name: str, given: ConfigField, reader: _Reader) -> None:
    if not _NAME.fullmatch(name):
        expected = "1 to 64 letters, digits, _ and -"
        reader.report.error(given.path, found=describe(given.value), expected=expected)


def _describe(given: ConfigField, reader: _Reader) -> tuple[str, tuple[()]]:
    text = reader.text(given, into=("describe",)) or ""
    for place in unknown_places(text):
        nearest = nearest_key(place, dict.fromkeys(PLACES, ""))
        reader.report.error(
            given.path,
            found=f"{{{printable(place)}}}",
            expected=f"{{{'}, {'.join(PLACES)}}}",
            suggestion=f"Did you mean {{{nearest}}}?" if nearest else "",
        )
    return text, ()


def _argument_names(given: ConfigField, reader: _Reader) -> tuple[Mapping[str, str], tuple[()]]:
    table = reader.table(given, into="names") or {}
    if len(set(table.values())) < len(table):
        reader.report.error(given.path, found="one new name for two arguments", expected="a different name for each")
    return MappingProxyType(table), ()


def _arguments(given: ConfigField, reader: _Reader) -> tuple[Mapping[str, Any], tuple[ToolSelector, ...]]:
    report = reader.report
    if not isinstance(given.value, Mapping):
        report.error(given.path, found=describe_type(given.value), expected="a mapping with arguments")
        return {}, ()
    fields = strict_fields(given.value, given.path, ARGUMENT_KEYS, reader.report)
    table = fields.get("arguments")
    if table is None or not isinstance(table.value, Mapping) or not table.value:
        expected = "arguments: a mapping of names to values"
        report.error(given.path, found="no arguments" if table is None else describe(table.value), expected=expected)
        return {}, ()
    tools = (_which(fields["tool"], reader),) if "tool" in fields else ()
    return MappingProxyType({name: _value(one, reader) for name, one in table.parts().items()}), tools


def _options(given: ConfigField, reader: _Reader) -> tuple[Mapping[str, Any], tuple[()]]:
    if not isinstance(given.value, Mapping):
        reader.report.error(
            given.path, found=describe_type(given.value), expected=f"a mapping of {', '.join(PROVIDERS)}"
        )
        return {}, ()
    fields = strict_fields(given.value, given.path, {name: name for name in PROVIDERS}, reader.report)
    for one in fields.values():
        if not isinstance(one.value, Mapping):
            reader.report.error(one.path, found=describe(one.value), expected="a mapping of the provider's options")
    return MappingProxyType({name: _value(one, reader) for name, one in fields.items()}), ()


def _value(given: ConfigField, reader: _Reader) -> Any:
    """Any JSON value, with variables in its texts expanded."""
    match given.value:
        case str():
            text = reader.text(given, into=given.path, secret=True)
            if text and (given.path in reader.spelled or any(names_a_secret(str(part)) for part in given.path[-2:])):
                reader.secrets[text] = "" if reader.context.layer is Layer.PROJECT else _WHOSE
            return text
        case list():
            return [_value(one, reader) for one in given.parts().values()]
        case Mapping():
            return {name: _value(one, reader) for name, one in given.parts().items()}
        case other:
            return other


_READERS: Mapping[RuleAction, Callable[[ConfigField, _Reader], tuple[Any, tuple[ToolSelector, ...]]]] = {
    RuleAction.KEEP: _choice,
    RuleAction.DROP: _choice,
    RuleAction.RENAME: _names,
    RuleAction.PREFIX: _prefix,
    RuleAction.DESCRIBE: _describe,
    RuleAction.FIX: _arguments,
    RuleAction.DEFAULT: _arguments,
    RuleAction.RENAME_ARGUMENTS: _argument_names,
    RuleAction.OPTIONS: _options,
}
"""Each returns the rule's value, and the tools that the value selects."""


def shown_rule(written: Any, name: str = "") -> Any:
    """The rule as written, for display: values that are secrets by name or pattern are hidden."""
    match written:
        case str():
            return mask_spelling(written) if names_a_secret(name) else mask_text(written)
        case list():
            return [shown_rule(one, name) for one in written]
        case Mapping():
            return {mask_text(key): shown_rule(one, key) for key, one in written.items()}
        case other:
            return HIDDEN if other is not None and names_a_secret(name) else other
