"""The decision about one caller and one tool.

The owner of the machine may do everything. A client that was pointed at Toolcrib works for the owner but is not the
owner: it may use every tool, except those that change Toolcrib itself. Nobody else is known, and may do anything.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from toolcrib.catalog.tool import Tool
from toolcrib.config.model import RESERVED_SERVER_NAMES


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
"""The person whose machine this is: the token file's reader, and whoever uses the command line."""

CLIENT = Caller(agent="client", profile="client")
"""A client that `toolcrib stdio` serves: a coding agent, started by the person, that needs no token."""


@dataclass(frozen=True, slots=True)
class Decision:
    verdict: Verdict
    rule: str


_OWNER_MAY = Decision(Verdict.ALLOW, "profile owner: everything")
_CLIENT_MAY = Decision(Verdict.ALLOW, "profile client: every tool but those that change Toolcrib")
_CLIENT_MAY_NOT = Decision(Verdict.DENY, "profile client: what changes Toolcrib is the owner's alone")
_NO_RULE = Decision(Verdict.DENY, "no rule allows it")


def decide(caller: Caller, tool: Tool) -> Decision:
    if caller.profile == OWNER.profile:
        return _OWNER_MAY
    if caller.profile == CLIENT.profile:
        return _CLIENT_MAY_NOT if _changes_toolcrib(tool) else _CLIENT_MAY
    return _NO_RULE


def _changes_toolcrib(tool: Tool) -> bool:
    """Our own commands' annotations are true; of other servers' they would be a mere claim."""
    return tool.server in RESERVED_SERVER_NAMES and tool.annotations.get("readOnlyHint") is not True
