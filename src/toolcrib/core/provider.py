"""The interface that `Crib`, `Kit` and `Connection` share: tools for a program and its model.

In: a catalog, the servers' status, a way to call. Out: `Tools` to offer to a model, results of calls, events.
`Crib` (a user's configuration), `Kit` (some given servers) and `Connection` (a running daemon) are providers, and
`run_agent` takes any of them. `AsyncResource` is their `async with`.
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
from toolcrib.catalog.schema_check import check_is_mapping
from toolcrib.catalog.snapshot import Catalog
from toolcrib.catalog.tool import Tool
from toolcrib.catalog.transforms import Transform, UnmatchedNames
from toolcrib.config.model import NameStyle
from toolcrib.core.results import Result
from toolcrib.errors import CallTimeout, InvalidArguments, ServerUnavailable, UnknownServer, UsageError
from toolcrib.events import Bus, CallFailed, CallFinished, CallIntended, CatalogChanged, Event, ServerStateChanged
from toolcrib.servers.model import ServerState, ServerStatus

if TYPE_CHECKING:
    from toolcrib.catalog.offered_tool import Filter
    from toolcrib.core.toolbox import Tools


class AsyncResource(ABC):
    @abstractmethod
    def _refuse_again(self) -> None:
        """Raises if it was entered before."""

    @abstractmethod
    async def _open(self) -> None: ...

    @abstractmethod
    async def _close(self) -> None:
        """Also of what is open only in part."""

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
    """Does the work whole, however often whoever waits for it is cancelled meanwhile."""
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
"""What a program can listen to. `CallFailed` is a `CallFinished` whose outcome is not ok."""


class ToolProvider(ABC):
    """Where tools are handed out: a `Crib`, a `Kit`, or what `Crib.connect()` gives. Used inside `async with`.

    `tools()` are what a model is offered, `call()` calls one, `status()` is how the servers are, `subscribe()` is for
    what happens.
    """

    bus: Bus

    @property
    @abstractmethod
    def catalog(self) -> Catalog:
        """All tools of this moment."""

    @abstractmethod
    def status(self) -> dict[str, ServerStatus]:
        """How each server does: whether it is there, why not, who it says it is."""

    @abstractmethod
    async def call(
        self, name: str, arguments: Mapping[str, Any] | None = None, *, timeout: float | None = None
    ) -> Result:
        """Calls a tool by any of its names: `read_file`, `files:read_file`, `files_read_file`.

        A tool's own failure is a result with `is_error`. Raises `UnknownTool`, `InvalidArguments`, `Denied`,
        `ServerFailure` where it could not be called; `timeout` counts seconds.
        """

    def tools(
        self,
        *,
        keep: Filter | None = None,
        drop: Filter | None = None,
        transform: Transform | Sequence[Transform] = (),
    ) -> Tools:
        """What is offered now. Who holds it keeps this moment; ask again after a `CatalogChanged`.

        A transform that names a tool or an argument which is not there raises `UsageError`; where a server is
        missing, it is a line in the log, for it may be meant for that one.
        """
        # A daemon is a provider too, and offers nothing to a model: it does without the providers' formats.
        from toolcrib.core.toolbox import Tools  # noqa: PLC0415

        whole = Tools(
            (OfferedTool.of(tool) for tool in self.catalog.tools if not tool.needs_task), call=self._call_tool
        )
        unmatched = UnmatchedNames.REFUSED if self.all_known else UnmatchedNames.TAKEN
        made = whole.transformed(keep=keep, drop=drop, transform=transform, unmatched=unmatched)
        for error in made.unmatched:
            log.warning("%s", error.text())
        return made

    @property
    def all_known(self) -> bool:
        """Whether every server is there, so that what no tool is called now is no tool's name."""
        return all(one.state is ServerState.READY for one in self.status().values())

    def server_info(self, server: str) -> ServerStatus:
        """How one server does, and who it says it is."""
        status = self.status()
        if server not in status:
            raise UnknownServer(
                f'There is no server "{server}".', remedy=f"There are: {', '.join(sorted(status)) or 'none'}."
            )
        return status[server]

    @overload
    def subscribe(self, handler: Callable[[Event], object]) -> Callable[[], None]: ...

    @overload
    def subscribe(self, handler: Callable[[EventT], object], *kinds: type[EventT]) -> Callable[[], None]: ...

    def subscribe(self, handler: Callable[[Any], object], *kinds: type[Event]) -> Callable[[], None]:
        """The handler gets every event of these kinds (by default of `PUBLIC_EVENTS`), at once, in the order they
        happen.

        It must be quick; what it raises is logged. Returns the call that ends the subscription.
        """
        if not callable(handler):
            raise UsageError(f"{handler!r} cannot handle events.", remedy="Give a function of one event.")
        for kind in kinds:
            if kind not in PUBLIC_EVENTS:
                names = ", ".join(one.__name__ for one in PUBLIC_EVENTS)
                raise UsageError(
                    f"{getattr(kind, '__name__', repr(kind))} is no kind of event here.",
                    remedy=f"There are, in toolcrib.events: {names}.",
                )
        return self.bus.subscribe(handler, *(kinds or PUBLIC_EVENTS))

    async def _call_tool(self, tool: Tool, arguments: Mapping[str, Any], *, timeout: float | None = None) -> Result:
        # A name alone may have become another tool's since the tools were asked for.
        unique = tool.display in self.catalog
        return await self.call(tool.display if unique else tool.names.server, arguments, timeout=timeout)

    @contextlib.contextmanager
    def _advising(self, timeout: float | None) -> Iterator[None]:
        """What a call raises says what this program can do, and not what an owner of a daemon could."""
        try:
            yield
        except CallTimeout as late:
            if timeout is not None:
                late.remedy = "Give a longer `timeout=` if it needs longer."
            raise
        except ServerUnavailable as error:
            if advice := self._advice(str(error.data.get("server", ""))):
                error.remedy = advice
            raise

    def _advice(self, server: str) -> str:
        """What a program can do about a server that is not there; empty: nothing but to wait."""
        return ""

    def _not_open(self) -> UsageError:
        return not_open(type(self).__name__)


def not_open(kind: str) -> UsageError:
    return UsageError(f"A {kind} is used inside its `async with`.", remedy=f"Enter the {kind}, or make another.")


def call_request(name: str, arguments: Mapping[str, Any] | None, timeout: float | None) -> CallRequest:
    """A program's call, as the door takes it."""
    if not isinstance(name, str):
        raise UsageError(f"A tool's name is a text, not {type(name).__name__}.", remedy="`tools().names` has them.")
    _check_timeout(timeout)
    check_is_mapping(name, arguments)
    try:
        encoded = msgspec.json.encode(dict(arguments or {}))
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise InvalidArguments(f"The arguments for {name} are no JSON: {error}") from error
    return CallRequest(tool=name, style=NameStyle.PLAIN, params={"arguments": msgspec.Raw(encoded)}, timeout=timeout)


def _check_timeout(timeout: Any) -> None:
    if timeout is not None and not (isinstance(timeout, int | float) and 0 < timeout < math.inf):
        raise UsageError(
            f"timeout: found {timeout!r}, expected seconds, more than 0.", remedy="Give a number, or None."
        )
