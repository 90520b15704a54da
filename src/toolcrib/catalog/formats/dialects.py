"""What each provider takes of JSON Schema, as data.

In: nothing. Out: one `Dialect` for each mode that takes only a part. The loose modes of OpenAI and Anthropic take
everything below the root and have none. Seen in the providers' documentation and in what their interfaces refuse.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Optional(Enum):
    """What becomes of a property that may be left out."""

    KEPT = "kept"
    NULL = "null"
    """It is required, and null says that it is left out."""


class Openness(Enum):
    """What becomes of objects with names that the schema does not know, and of places for any value."""

    KEPT = "kept"
    SPELLED = "spelled out"
    """As a list of entries, or as JSON text."""


@dataclass(frozen=True, kw_only=True)
class Dialect:
    title: str
    """For reasons: "<title> does not take …"."""
    words: frozenset[str]
    """Keywords besides the structural ones that it takes."""
    formats: frozenset[str]
    unions: frozenset[str]
    optional: Optional
    openness: Openness
    const: bool
    type_lists: bool
    tuples: bool
    lookaround: bool
    """Whether a pattern may look ahead, behind or back."""


_FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"})
_BOUNDS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})

OPENAI_STRICT = Dialect(
    title="OpenAI's strict mode",
    words=_BOUNDS | {"title", "description", "pattern", "minLength", "maxLength", "minItems", "maxItems"},
    formats=_FORMATS,
    unions=frozenset({"anyOf"}),
    optional=Optional.NULL,
    openness=Openness.SPELLED,
    const=True,
    type_lists=True,
    tuples=False,
    lookaround=False,
)
ANTHROPIC_STRICT = Dialect(
    title="Anthropic's strict mode",
    words=frozenset({"title", "description"}),
    formats=_FORMATS | {"uri"},
    unions=frozenset({"anyOf"}),
    optional=Optional.KEPT,
    openness=Openness.SPELLED,
    const=True,
    type_lists=False,
    tuples=False,
    lookaround=False,
)
GOOGLE = Dialect(
    title="Google's function declaration",
    words=frozenset(
        {"title", "description", "default", "minimum", "maximum", "minItems", "maxItems"}
        | {"minLength", "maxLength", "pattern", "minProperties", "maxProperties"}
    ),
    formats=frozenset({"date-time", "date", "time", "duration", "int32", "int64", "float", "double"}),
    unions=frozenset({"anyOf", "oneOf"}),
    optional=Optional.KEPT,
    openness=Openness.KEPT,
    const=False,
    type_lists=True,
    tuples=True,
    lookaround=True,
)
