"""The interface that `Crib`, `Kit` and `Connection` share: tools, resources and prompts for a program.

In: a catalog, the servers' status, a way to call. Out: `Tools` for a model, results of calls, events. `Crib` (a user's
configuration), `Kit` (servers that a program names) and `Connection` (a running daemon) are providers, and `run_agent`
accepts all of them. `AsyncResource` implements their `async with`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

import msgspec

from toolcrib.calls import CallRequest
from toolcrib.catalog.offered_tool import OfferedTool
from toolcrib.catalog.offers import OfferCatalog
from toolcrib.catalog.schema_check import check_is_mapping
from toolcrib.catalog.snapshot import Catalog
from toolcrib.catalog.tool import Tool
from toolcrib.catalog.transforms import Transform, UnmatchedNames
from toolcrib.config.model import NameStyle
from toolcrib.core.answers import ProgramAsker, answering
from toolcrib.core.offer_source import PROMPT_METHOD, READ_METHOD
from toolcrib.core.resources import Prompt, PromptMessages, Resource, ResourceContents
from toolcrib.core.results import Result
from toolcrib.errors import CallTimeout, InvalidArguments, ServerUnavailable, UnknownOffer, UnknownServer, UsageError
from toolcrib.events import Bus, CallFailed, CallFinished, CallIntended, CatalogChanged, Event, ServerStateChanged
from toolcrib.servers.model import ServerAnswer, ServerState, ServerStatus

if TYPE_CHECKING:
    from toolcrib.catalog.offered_tool import Filter
    from toolcrib.core.toolbox import Tools


class AsyncResource(ABC):
    @abstractmethod
    def _refuse_again(self) -> None:
        """Raises if it has been entered before."""

    @abstractmethod
    async def _open(self) -> None: ...

    @abstractmethod
    async def _close(self) -> None:
        """Must also work if it is only partly open."""

    async def __aenter__(self) -> Self:
        self._refuse_again()
        try:
            await self._open()
        except BaseException:
            await run_to_completion(self._close())
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await run_to_completion(self._close())


async def run_to_completion(work: Coroutine[None, None, None]) -> None:
    """Completes the work even if the caller is cancelled, any number of times."""
    task = asyncio.create_task(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    task.result()


log = logging.getLogger(__name__)

EventT = TypeVar("EventT", bound=Event)

PUBLIC_EVENTS: tuple[type[Event], ...] = (ServerStateChanged, CatalogChanged, CallIntended, CallFinished, CallFailed)
"""The events that a program can subscribe to. `CallFailed` is a `CallFinished` whose outcome is not ok."""


HEALTH_LIMIT = 10.0
"""Seconds that a server has to answer `health`, by default."""


class ToolProvider(ABC):
    """Offers tools: a `Crib`, a `Kit`, or the result of `Crib.connect()`. Use it inside `async with`.

    `tools()` returns the tools for a model, `call()` calls one. `resources()` and `prompts()` return what else the
    servers offer, `read()` and `get_prompt()` get it. `status()` returns the servers' states, `subscribe()` delivers
    events.
    """

    bus: Bus
    _own_asker: ProgramAsker | None = None
    """Asks the program what servers ask during its calls."""

    @property
    def _asker(self) -> ProgramAsker | None:
        """The one of the run that the current task belongs to, otherwise our own."""
        return answering.get() or self._own_asker

    @property
    @abstractmethod
    def catalog(self) -> Catalog:
        """All current tools."""

    @abstractmethod
    def status(self) -> dict[str, ServerStatus]:
        """Each server's state, last error, name and version."""

    @abstractmethod
    async def call(
        self, name: str, arguments: Mapping[str, Any] | None = None, *, timeout: float | None = None
    ) -> Result:
        """Calls a tool by any of its names: `read_file`, `files:read_file`, `files_read_file`.

        A tool's own failure is a result with `is_error`. Raises `UnknownTool`, `InvalidArguments`, `Denied` or
        `ServerFailure` if it could not be called; `timeout` is in seconds.
        """

    def resources(self) -> tuple[Resource, ...]:
        """The current resources, then the templates for further ones."""
        listed = self._offers()
        return tuple(map(Resource.of, (*listed.resources, *listed.templates)))

    def prompts(self) -> tuple[Prompt, ...]:
        """The current prompts."""
        return tuple(map(Prompt.of, self._offers().prompts))

    async def read(self, uri: str, *, timeout: float | None = None) -> ResourceContents:
        """Reads a resource: one that is listed, one that a template describes, or one that a tool's result links to.

        Raises `UnknownOffer`, `Denied`, `ServerFailure`, or `ToolError` if the server refuses; `timeout` is in seconds.
        """
        return ResourceContents.of(await self._request(_offer_request(READ_METHOD, uri, {}, timeout)))

    async def get_prompt(
        self, name: str, arguments: Mapping[str, str] | None = None, *, timeout: float | None = None
    ) -> PromptMessages:
        """The messages of a prompt with these arguments, which are texts. It raises the same errors as `read`."""
        check_is_mapping(name, arguments)
        params = {"arguments": _encoded(name, arguments)} if arguments else {}
        return PromptMessages.of(await self._request(_offer_request(PROMPT_METHOD, name, params, timeout)))

    def _offers(self) -> OfferCatalog:
        """All current resources and prompts; none by default."""
        return OfferCatalog()

    async def _request(self, request: CallRequest) -> ServerAnswer:
        """Reads a resource or gets a prompt. Raises `UnknownOffer`, by default always."""
        raise UnknownOffer(f"There is no {request.tool[:200]!r}.")

    def tools(
        self,
        *,
        keep: Filter | None = None,
        drop: Filter | None = None,
        transform: Transform | Sequence[Transform] = (),
    ) -> Tools:
        """The current tools, as a snapshot; call it again after a `CatalogChanged`.

        A transform that names a missing tool or argument raises `UsageError`. If a server is missing, it logs a warning
        instead, because the name may belong to that server.
        """
        # Imported here because a daemon, which is also a provider, does not need the model formats.
        from toolcrib.core.toolbox import Tools  # noqa: PLC0415

        whole = Tools(map(OfferedTool.of, self.catalog.tools), call=self._call_tool)
        unmatched = UnmatchedNames.REFUSED if self.all_known else UnmatchedNames.TAKEN
        made = whole.transformed(keep=keep, drop=drop, transform=transform, unmatched=unmatched)
        for error in made.unmatched:
            log.warning("%s", error.text())
        return made

    @property
    def all_known(self) -> bool:
        """Whether every server is ready, so that an unknown name cannot be a tool's."""
        return all(one.state is ServerState.READY for one in self.status().values())

    def server_info(self, server: str) -> ServerStatus:
        """One server's state, name and version."""
        status = self.status()
        if server not in status:
            raise UnknownServer(
                f'There is no server "{server}".', remedy=f"Available: {', '.join(sorted(status)) or 'none'}."
            )
        return status[server]

    @overload
    def subscribe(self, handler: Callable[[Event], object]) -> Callable[[], None]: ...

    @overload
    def subscribe(self, handler: Callable[[EventT], object], *kinds: type[EventT]) -> Callable[[], None]: ...

    def subscribe(self, handler: Callable[[Any], object], *kinds: type[Event]) -> Callable[[], None]:
        """Calls the handler with every event of these kinds (by default `PUBLIC_EVENTS`), immediately and in order.

        It must be quick; its exceptions are logged. Returns a function that ends the subscription.
        """
        if not callable(handler):
            raise UsageError(f"{handler!r} cannot handle events.", remedy="Pass a function with one parameter.")
        for kind in kinds:
            if kind not in PUBLIC_EVENTS:
                names = ", ".join(one.__name__ for one in PUBLIC_EVENTS)
                raise UsageError(
                    f"You cannot subscribe to {getattr(kind, '__name__', repr(kind))}.",
                    remedy=f"Use one of these from toolcrib.events: {names}.",
                )
        return self.bus.subscribe(handler, *(kinds or PUBLIC_EVENTS))

    async def _call_tool(self, tool: Tool, arguments: Mapping[str, Any], *, timeout: float | None = None) -> Result:
        # A plain name may have become another tool's since the snapshot.
        unique = tool.display in self.catalog
        return await self.call(tool.display if unique else tool.names.server, arguments, timeout=timeout)

    @contextlib.contextmanager
    def _advising(self, timeout: float | None) -> Iterator[None]:
        """Replaces remedies for a daemon's owner with remedies for this program."""
        try:
            yield
        except CallTimeout as late:
            if timeout is not None:
                late.remedy = "Pass a longer `timeout=` if it needs more time."
            raise
        except ServerUnavailable as error:
            if advice := self._advice(str(error.data.get("server", ""))):
                error.remedy = advice
            raise

    def _advice(self, server: str) -> str:
        """What a program can do about a server that is not ready; empty if it can only wait."""
        return ""

    def _not_open(self) -> UsageError:
        return not_open(type(self).__name__)


def not_open(kind: str) -> UsageError:
    return UsageError(f"A {kind} must be used inside its `async with`.", remedy=f"Enter the {kind}, or create another.")


def call_request(name: str, arguments: Mapping[str, Any] | None, timeout: float | None) -> CallRequest:
    """A program's call, for the door."""
    if not isinstance(name, str):
        raise UsageError(f"A tool's name is a string, not {type(name).__name__}.", remedy="See `tools().names`.")
    _check_timeout(timeout)
    check_is_mapping(name, arguments)
    return CallRequest(
        tool=name, style=NameStyle.PLAIN, params={"arguments": _encoded(name, arguments)}, timeout=timeout
    )


def _encoded(name: str, arguments: Mapping[str, Any] | None) -> msgspec.Raw:
    try:
        return msgspec.Raw(msgspec.json.encode(dict(arguments or {})))
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise InvalidArguments(f"The arguments for {name} are not valid JSON: {error}") from error


def _offer_request(method: str, name: str, params: Mapping[str, msgspec.Raw], timeout: float | None) -> CallRequest:
    if not isinstance(name, str):
        raise UsageError(
            f"The address of a resource or the name of a prompt is a string, not {type(name).__name__}.",
            remedy="See `resources()` and `prompts()`.",
        )
    _check_timeout(timeout)
    return CallRequest(tool=name, method=method, params=params, timeout=timeout)


def _check_timeout(timeout: Any) -> None:
    if timeout is not None and not (isinstance(timeout, int | float) and 0 < timeout < math.inf):
        raise UsageError(
            f"timeout: found {timeout!r}, expected seconds, more than 0.", remedy="Pass a number, or None."
        )
