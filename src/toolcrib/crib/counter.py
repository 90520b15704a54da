"""The counter: where tools are handed out, whoever keeps them.

In: a catalog, the servers' status, a way to call. Out: `Tools` to offer to a model, results of calls, events. `Crib`
(a user's configuration), `Kit` (some given servers) and `Connection` (a running daemon) are counters, and `run_agent`
takes any of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from toolcrib.calls import Request
from toolcrib.catalog.offer import Offer
from toolcrib.catalog.snapshot import Catalog
from toolcrib.catalog.tool import Tool
from toolcrib.config.model import NameStyle
from toolcrib.crib.results import Result
from toolcrib.errors import InvalidArguments, UnknownServer
from toolcrib.events import Bus, CallFailed, CallFinished, CallIntended, CatalogChanged, Event, ServerStateChanged
from toolcrib.servers.model import ServerStatus

if TYPE_CHECKING:
    from toolcrib.catalog.filters import Filter
    from toolcrib.catalog.toolbox import Tools
    from toolcrib.catalog.transforms import Transform

TOLD: tuple[type[Event], ...] = (ServerStateChanged, CatalogChanged, CallIntended, CallFinished, CallFailed)
"""What a program can listen to. `CallFailed` is a `CallFinished` whose outcome is not ok."""


class Counter(ABC):
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
        """What is offered now. Who holds it keeps this moment; ask again after a `CatalogChanged`."""
        # The daemon is a counter too, and offers nothing to a model: it does without the providers' formats.
        from toolcrib.catalog.toolbox import Tools  # noqa: PLC0415

        whole = Tools(map(Offer.of, self.catalog.tools), call=self._call_tool)
        return whole.shaped(keep=keep, drop=drop, transform=transform)

    def server_info(self, server: str) -> ServerStatus:
        status = self.status()
        if server not in status:
            raise UnknownServer(
                f'There is no server "{server}".', remedy=f"There are: {', '.join(sorted(status)) or 'none'}."
            )
        return status[server]

    def subscribe(self, handler: Callable[[Event], None], *kinds: type[Event]) -> Callable[[], None]:
        """The handler gets every event of these kinds (of `TOLD`, unless said), at once, in the order they happen.

        It must be quick; what it raises is logged. Returns the call that ends the subscription.
        """
        return self.bus.subscribe(handler, *(kinds or TOLD))

    async def _call_tool(self, tool: Tool, arguments: Mapping[str, Any]) -> Result:
        # A name alone may have become another tool's since the tools were asked for.
        unique = tool.display in self.catalog
        return await self.call(tool.display if unique else tool.names.server, arguments)


def request(name: str, arguments: Mapping[str, Any] | None, timeout: float | None) -> Request:
    """A program's call, as the door takes it."""
    try:
        encoded = msgspec.json.encode(dict(arguments or {}))
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise InvalidArguments(f"The arguments for {name} are no JSON: {error}") from error
    return Request(tool=name, style=NameStyle.PLAIN, params={"arguments": msgspec.Raw(encoded)}, timeout=timeout)
