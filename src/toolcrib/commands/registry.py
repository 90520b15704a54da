"""Declares, finds and runs commands, and defines what they may use of their process.

In: a name (`server:add`) and its parameters as plain JSON. Out: a plain JSON object, or a `ToolcribError`.
A command declares its parameters (a pydantic model), its effect on the daemon, and its callers in one place.
`jobs.queue` is the `JobService` of a daemon.
"""

from __future__ import annotations

import difflib
import enum
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol, get_type_hints

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from toolcrib.core.crib import Crib
from toolcrib.core.project import Project
from toolcrib.core.services import Services
from toolcrib.daemon_client.lifetime import ActiveLeases
from toolcrib.errors import Denied, UnknownCommand, UsageError
from toolcrib.identity.principal import OWNER, Principal, RequestContext
from toolcrib.store.jobs import JobRow, JobStatus

if TYPE_CHECKING:
    from toolcrib.commands.job import SubmitJob


class JobService(Protocol):
    """A principal sees its own jobs and those of its children; the owner sees all."""

    async def submit(self, principal: Principal, root: Path, order: SubmitJob) -> JobRow:
        """The job is stored durably when this returns. `root` is the caller's project."""
        ...

    async def latest(
        self, principal: Principal, *, status: JobStatus | None, most: int
    ) -> tuple[tuple[JobRow, ...], int]:
        """The newest first, and the total number."""
        ...

    async def result(self, principal: Principal, job: str, *, wait: float) -> JobRow:
        """The job when it has ended, or after `wait` seconds."""
        ...

    async def cancel(self, principal: Principal, job: str) -> JobRow:
        """The job has ended when this returns; one that ended before is unchanged."""
        ...

    def running(self, job: str) -> JobRow:
        """For the process of a job, which requests its agent. Raises `Denied` if the job is not running."""
        ...


class CommandEffect(enum.StrEnum):
    READS = "reads"
    REVEALS = "reveals"
    """Reads data for the owner only: the permissions and actions of other agents."""
    CARRIES = "carries"
    """Runs another command, for callers that may use that one."""
    WORKS = "works"
    """Starts or ends work as the caller, with no more than the caller's permissions."""
    CHANGES = "changes"
    """Changes the daemon or permissions; for the owner only."""


class Availability(enum.StrEnum):
    EVERYWHERE = "everywhere"
    """Over the socket and, as a tool, over MCP."""
    SOCKET = "socket"
    """Over the socket only: MCP has its own method for it, or it is for a person at the machine."""


class CommandScope(enum.StrEnum):
    DAEMON = "daemon"
    """The same in every folder, so no project is opened."""
    PROJECT = "project"
    """Applies to the project of the current folder."""


class ServersNeeded(enum.StrEnum):
    """The servers that a process without a daemon starts for the command."""

    NONE = "none"
    NAMED = "named"
    """The one in its parameters, or else all."""
    ALL = "all"
    SETTLED = "settled"
    """All, and the command waits until each is connected or has failed."""


class Via(enum.StrEnum):
    """The way in which a command was called."""

    SOCKET = "socket"
    """By the user at the machine, or one of the user's programs."""
    MCP = "mcp"


VERBATIM = "verbatim"
"""Marks a field whose text is passed on unchanged: a prompt, or the arguments of another tool."""
LONGEST_TEXT = 128 * 1024
"""Characters in any other text: operating systems don't pass longer arguments to a program."""
_LONGEST_PATH, _LONGEST_NAME = 4095, 255
_SURROGATE = re.compile("[\ud800-\udfff]")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


class Parameters(BaseModel):
    """The base of every command's parameters. Rejects unknown fields and unusable text."""

    model_config = ConfigDict(extra="forbid")

    @field_validator("*", mode="before")
    @classmethod
    def _usable(cls, value: Any, info: ValidationInfo) -> Any:
        verbatim = VERBATIM in cls.model_fields[info.field_name or ""].metadata
        left: list[tuple[str, Any]] = [("", value)]
        while left:
            place, one = left.pop()
            if isinstance(one, str):
                # Another tool checks its own arguments; here they only have to be JSON.
                fault = _fault(one, verbatim=verbatim, inner=one is not value)
                if fault:
                    raise PydanticCustomError("text", "{place}{fault}", {"place": place, "fault": fault})
            elif isinstance(one, Mapping):
                for key, inner in one.items():
                    left += [(place, key), (f"{place}{ascii(key)[1:-1][:80]}: ", inner)]
            elif isinstance(one, list | tuple):
                left += [(f"{place}{number}: ", inner) for number, inner in enumerate(one)]
        return value


def _fault(text: str, *, verbatim: bool, inner: bool) -> str:
    if _SURROGATE.search(text):
        return "This is not valid Unicode"
    if verbatim and (inner or "\0" not in text):
        return ""
    if found := _CONTROL.search(text):
        return f"The control character {found[0]!a} is not allowed"
    return f"At most {LONGEST_TEXT} characters are allowed" if len(text) > LONGEST_TEXT else ""


def usable_path(path: str) -> str:
    """The same path. Raises `ValueError` if no file system accepts it."""
    encoded = path.encode()
    if "\0" in path or len(encoded) > _LONGEST_PATH or any(len(name) > _LONGEST_NAME for name in encoded.split(b"/")):
        raise PydanticCustomError("path", "The path is too long or has a NUL character")
    return path


PathText = Annotated[str, AfterValidator(usable_path)]
"""A path in a command's parameters."""


class CommandHost(Protocol):
    """The process that the command runs in."""

    leases: ActiveLeases

    @property
    def jobs(self) -> JobService:
        """Raises `DaemonNotRunning` without a daemon."""
        ...

    def describe(self) -> dict[str, Any]:
        """Endpoint, pid and similar."""
        ...

    def stop(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class CommandContext:
    """What a command may use."""

    crib: Crib
    request: RequestContext[Project]
    host: CommandHost
    via: Via
    emit: Callable[[dict[str, Any]], Awaitable[None]]
    """Sends an event before the result, for commands that stream."""

    @property
    def principal(self) -> Principal:
        return self.request.principal

    @property
    def project(self) -> Project:
        return self.request.project

    @property
    def services(self) -> Services:
        return self.crib.services


CommandFunction = Callable[[CommandContext, Any], Awaitable[dict[str, Any]]]


@dataclass(frozen=True, kw_only=True)
class Command:
    name: str
    summary: str
    parameters: type[Parameters]
    effect: CommandEffect
    availability: Availability
    scope: CommandScope
    servers: ServersNeeded
    cached: bool
    """Changes data that a daemon caches in memory: without a daemon, it runs only while none can start."""
    run: CommandFunction

    @property
    def tool(self) -> str:
        """Its name inside the server `crib`; in the catalog it becomes `crib_<namespace>_<action>`."""
        return self.name.replace(":", "_")

    def open_to(self, principal: Principal) -> bool:
        """A limit that no permission can lift; for the other commands, the policy decides."""
        return (
            self.effect in (CommandEffect.READS, CommandEffect.CARRIES, CommandEffect.WORKS)
            or principal.profile == OWNER.profile
        )


class CommandRegistry:
    def __init__(self) -> None:
        self._commands: dict[str, Command] = {}

    def command(
        self,
        name: str,
        effect: CommandEffect,
        availability: Availability,
        *,
        scope: CommandScope = CommandScope.PROJECT,
        servers: ServersNeeded = ServersNeeded.NONE,
        cached: bool = False,
    ) -> Callable[[CommandFunction], CommandFunction]:
        """Declares the decorated function as a command.

        The type of its second argument defines the parameters; its docstring's first line is the summary.
        """

        def declare(run: CommandFunction) -> CommandFunction:
            _, parameters, *_ = get_type_hints(run).values()
            self._commands[name] = Command(
                name=name,
                summary=(run.__doc__ or "").strip().splitlines()[0],
                parameters=parameters,
                effect=effect,
                availability=availability,
                scope=scope,
                servers=servers,
                cached=cached,
                run=run,
            )
            return run

        return declare

    def all(self) -> tuple[Command, ...]:
        return tuple(self._commands.values())

    def find(self, name: str) -> Command:
        found = self._commands.get(name)
        if found is None:
            near = difflib.get_close_matches(name, self._commands, n=3)
            hint = f"Did you mean {', '.join(near)}?" if near else "Run `toolcrib --help` to see all commands."
            raise UnknownCommand(f"There is no command {name!r}.", remedy=hint)
        return found

    async def run(self, name: str, params: Mapping[str, Any], context: CommandContext) -> dict[str, Any]:
        command = self.find(name)
        if not command.open_to(context.principal):
            raise Denied(
                f"{context.principal.name} may not use {name}: it is for the owner only.",
                remedy="The owner can use it on the command line.",
            )
        try:
            parameters = command.parameters.model_validate(params)
        except ValidationError as error:
            raise UsageError(
                f"{name}: {_validation_text(error)}.",
                remedy=f"`{name}` takes: {_parameter_names(command.parameters)}.",
            ) from error
        return await command.run(context, parameters)


def _validation_text(error: ValidationError) -> str:
    return "; ".join(f"{'.'.join(map(str, e['loc'])) or 'parameters'}: {e['msg']}" for e in error.errors()[:5])


def _parameter_names(model: type[Parameters]) -> str:
    fields = model.model_fields.items()
    return ", ".join(f"{f.alias or n}{'' if f.is_required() else '?'}" for n, f in fields) or "nothing"


registry = CommandRegistry()
