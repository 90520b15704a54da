"""Who asks, and the request they make: two types for the gateway, the commands, the door and the library alike.

In: a credential that was checked. Out: a `Principal`, whose permission is looked up whenever it is used, and the
`RequestContext` of what it asks for. `gateway.auth` makes the principals of agents; `calls` and `commands` read them.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from toolcrib.policy import BUILTIN, Permission

if TYPE_CHECKING:
    from toolcrib.identity.sessions import Session

Project_co = TypeVar("Project_co", covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Principal:
    """Proven by a credential, and the same for as long as the credential is."""

    name: str
    permission: Callable[[], Permission] = field(repr=False)
    """As it is now: between two looks a request may have waited for long."""
    workdir: Path | None = None

    @classmethod
    def fixed(cls, name: str, held: Permission) -> Self:
        """One whose permission never changes."""
        return cls(name=name, permission=lambda: held)

    @property
    def profile(self) -> str:
        return self.permission().profile


OWNER = Principal.fixed("owner", Permission(BUILTIN["owner"], agent="owner"))
"""The person whose machine this is: the token file's reader, and whoever uses the command line."""

CLIENT = Principal.fixed("client", Permission(BUILTIN["developer"], agent="client"))
"""A client that `toolcrib stdio` serves: a coding agent, started by the person, that needs no token."""


class ReaderKind(enum.Enum):
    """Who reads the answers."""

    MODEL = "model"
    PROGRAM = "program"
    """It is told where each tool is from, and gets errors as such."""


@dataclass(frozen=True, slots=True, eq=False)
class RequestContext(Generic[Project_co]):
    """Where a request comes from, and what it is counted in."""

    principal: Principal
    project: Project_co
    """Where names are resolved: a project, or whatever else has tools."""
    session: Session | None = None
    conversation: str = "default"
    """A label only: it proves nothing."""
    reader: ReaderKind = ReaderKind.MODEL
