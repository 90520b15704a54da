"""What a tool of the workspace is, and what it works with.

In: nothing. Out: the words that the tools and the workspace share. `tools` has the table of all tools, `workspace`
calls them.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from toolcrib.workspace.confined.folder import Folder
    from toolcrib.workspace.sandbox import Sandbox
    from toolcrib.workspace.session import Session
    from toolcrib.workspace.settings.model import Settings


class Runs(enum.Enum):
    """What a tool needs: the files alone, or a sandbox for code that is not ours."""

    FILES = enum.auto()
    CODE = enum.auto()


@dataclass(frozen=True, slots=True)
class Done:
    """What a tool found or did: structured, and in a few words."""

    data: msgspec.Struct
    text: str
    failure: str = ""
    """In a few words, that what it ran failed: an exit code, failing tests. The call itself went well."""


@dataclass(frozen=True, kw_only=True)
class Scene:
    """All that one call may touch."""

    folder: Folder
    settings: Settings
    session: Session
    sandbox: Callable[[], Awaitable[Sandbox]]
    """Waits for the self-test; gives the sandbox also if it refuses to run anything."""
    environ: Mapping[str, str]
    """The server's own environment; commands get a scrubbed one."""
    progress: Callable[[str], None] | None = None
    """Tells the caller what happens, in between; None if nobody listens. May be called from any thread."""
    deadline: float = math.inf
    """By the monotonic clock: the caller has its answer then, so a file tool that loops looks at it and ends."""


@dataclass(frozen=True, kw_only=True)
class Tool:
    name: str
    title: str
    description: str
    parameters: type[msgspec.Struct]
    """No unions but those with None: some providers refuse them, others refuse a description beside them. msgspec wants
    constraints on the kind itself: `Annotated[int, Meta(ge=1)] | None`, not `Annotated[int | None, Meta(ge=1)]`."""
    result: type[msgspec.Struct] | None
    """None: it answers in words alone."""
    do: Callable[[Scene, Any], Done] | Callable[[Scene, Any], Awaitable[Done]]
    runs: Runs = Runs.FILES
    reads_only: bool = True
    destructive: bool = False
    idempotent: bool = True
    open_world: bool = False
    """Whether it reaches the network where the settings allow it."""
    like: str = ""
    """The tool of `TOOL_NAMES` whose limits and prohibitions hold for it, too; itself, unless named."""

    @property
    def ruled_as(self) -> str:
        return self.like or self.name
