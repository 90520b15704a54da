"""One rule of `tools:`: which tools it selects, and what it does with them.

In: nothing (only types). `tool_rules` reads rules from a file, and the catalog applies them (`catalog.snapshot`).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any


class RuleAction(enum.StrEnum):
    KEEP = "keep"
    DROP = "drop"
    RENAME = "rename"
    PREFIX = "prefix"
    DESCRIBE = "describe"
    FIX = "fix"
    DEFAULT = "default"
    RENAME_ARGUMENTS = "rename_arguments"
    OPTIONS = "options"


@dataclass(frozen=True, kw_only=True)
class ToolSelector:
    """Selects the tools that match any of these."""

    names: tuple[str, ...] = ()
    """Names and globs, of tools (`*_status`) or with their servers (`git:*`)."""
    annotations: tuple[str, ...] = ()
    """Keys of `config.model.ANNOTATIONS`."""
    others: tuple[ToolSelector, ...] = ()
    """Each adds the tools that it does not select: `not`."""


@dataclass(frozen=True, kw_only=True)
class ToolRule:
    action: RuleAction
    value: Any = field(repr=False)
    """By action: a `ToolSelector` to keep or drop, a text, a table of names, arguments, or options by provider."""
    only: tuple[ToolSelector, ...] = ()
    """The rule applies to tools that match all of these."""
    written: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """As written in its file."""
    secrets: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), compare=False, repr=False)
    """Arguments that came from variables or have the name of a secret, and the owner of each. Literal values in a
    project's file have no owner."""
