"""The decision about one caller and one tool.

The owner of the machine may do everything. Nobody else is known yet, and nobody else may do anything.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from toolcrib.catalog.tool import Tool


class Verdict(enum.StrEnum):
    ALLOW = "allow"
    DENY = "deny"


@dataclass(frozen=True, kw_only=True, slots=True)
class Caller:
    """Who asks. `agent` is proven by a credential, `conversation` is only a label."""

    agent: str
    profile: str
    conversation: str = "default"


OWNER = Caller(agent="owner", profile="owner")
"""The person whose machine this is: the token file's reader, and whoever may open the socket."""


@dataclass(frozen=True, slots=True)
class Decision:
    verdict: Verdict
    rule: str


_OWNER_MAY = Decision(Verdict.ALLOW, "profile owner: everything")
_NO_RULE = Decision(Verdict.DENY, "no rule allows it")


def decide(caller: Caller, tool: Tool) -> Decision:
    return _OWNER_MAY if caller.profile == OWNER.profile else _NO_RULE
