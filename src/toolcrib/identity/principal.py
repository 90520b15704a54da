"""The caller and the context of a request, shared by the gateway, the commands, the door and the library.

In: a verified credential. Out: a `Principal`, whose permission is looked up at each use, and the `RequestContext` of
its request. `gateway.auth` creates the principals of agents; `calls` and `commands` read them.
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


class ReaderKind(enum.Enum):
    """The reader of the answers."""

    MODEL = "model"
    PROGRAM = "program"
    """Our library: gets each tool's server, and errors as JSON-RPC errors."""
    HTTP = "http"
    """Another program: gets errors as JSON-RPC errors with their HTTP status."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Principal:
    """A caller, identified by a credential and valid as long as that credential."""

    name: str
    permission: Callable[[], Permission] = field(repr=False)
    """The current permission: it can change while a request waits."""
    workdir: Path | None = None
    reader: ReaderKind = ReaderKind.MODEL

    @classmethod
    def fixed(cls, name: str, held: Permission) -> Self:
        """A principal whose permission never changes."""
        return cls(name=name, permission=lambda: held)

    @property
    def profile(self) -> str:
        return self.permission().profile


OWNER = Principal.fixed("owner", Permission(BUILTIN["owner"], agent="owner"))
"""The person who runs the daemon: everyone who can read the token file, and the command line."""

CLIENT = Principal.fixed("client", Permission(BUILTIN["developer"], agent="client"))
"""A client of `toolcrib stdio`: a coding agent that the owner started, without a token."""


@dataclass(frozen=True, slots=True, eq=False)
class RequestContext(Generic[Project_co]):
    """The caller of a request, with the project and the session that count it."""

    principal: Principal
    project: Project_co
    """Resolves tool names: a project, or another tool source."""
    session: Session | None = None
    conversation: str = "default"
    """A label without authority."""
    reader: ReaderKind = ReaderKind.MODEL
    client: str = ""
    """The name with which the client introduced itself."""
    listing: str = ""
    """How the request wants its tools listed, a `ListingMode`; empty if it doesn't say."""
    without: frozenset[str] = frozenset()
    """Workspace tools to leave out of lists. They can be called like any other."""
    handshake: str = ""
    """What `handshake` lists for this connection, full or thin; empty if only the request can say it."""
