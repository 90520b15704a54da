"""Who asks, and the one function that decides.

In: a `Caller` and a `Tool` of the catalog, with a call's arguments if they are known. Out: a `Decision`. Listing,
searching and calling all come here, so that what is shown and what may be called never differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from toolcrib.catalog.tool import Tool
from toolcrib.policy.permission import Decision, Permission, Verdict, permission
from toolcrib.policy.profile import BUILTIN

__all__ = ["CLIENT", "OWNER", "Caller", "Decision", "Verdict", "decide"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Caller:
    """Who asks. `agent` is proven by a credential, `conversation` is only a label."""

    agent: str
    permission: Permission = field(repr=False)
    conversation: str = "default"
    session: Any = field(default=None, compare=False, repr=False)
    """What the caller's calls are counted in."""

    @property
    def profile(self) -> str:
        return self.permission.profile


OWNER = Caller(agent="owner", permission=permission(BUILTIN["owner"], agent="owner"))
"""The person whose machine this is: the token file's reader, and whoever uses the command line."""

CLIENT = Caller(agent="client", permission=permission(BUILTIN["developer"], agent="client"))
"""A client that `toolcrib stdio` serves: a coding agent, started by the person, that needs no token."""


def decide(caller: Caller, tool: Tool, arguments: Mapping[str, Any] | None = None) -> Decision:
    """None: the arguments are not known yet."""
    return caller.permission.decide(tool, arguments)
