"""The course of a run: what it needs is opened, the loop goes on, and all is closed again.

In: a `Plan`. Out: events in the feed, the last one when everything is closed. It lives in a task of its own, and is
ended by cancelling that; `run` holds both ends.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import traceback
from contextlib import AsyncExitStack
from types import ModuleType
from typing import TYPE_CHECKING, Any

from toolcrib.agent import coding, models
from toolcrib.agent.approving import Approving
from toolcrib.agent.calling import Calling
from toolcrib.agent.events import Ended, RunStarted
from toolcrib.agent.feed import Feed
from toolcrib.agent.models.loading import loaded
from toolcrib.agent.plan import Plan
from toolcrib.agent.supply import Missing, Shelf, supplied
from toolcrib.agent.teller import Standing, Teller
from toolcrib.catalog.tool import Tool
from toolcrib.catalog.toolbox import Tools
from toolcrib.errors import ToolcribError

if TYPE_CHECKING:
    from toolcrib.agent.loop import Loop

log = logging.getLogger(__name__)


class Course:
    def __init__(self, plan: Plan, feed: Feed, run_id: str) -> None:
        self._plan = plan
        self._feed = feed
        self._teller = Teller(run_id=run_id, provider=plan.place.provider.name, key=plan.place.key, feed=feed)
        self._loop: Loop | None = None
        self.closing = False
        """From here on it ends by itself, and shall not be disturbed."""

    async def run(self) -> None:
        """Raises only before its first event, where the coding tools cannot be had."""
        how: Ended | Exception
        stack = AsyncExitStack()
        try:
            own = await self._coding_tools(stack)
            self._teller.tell(RunStarted, model=self._plan.options.model, max_steps=self._plan.options.max_steps)
            how = await self._limited(stack, own)
        finally:
            self.closing = True
            await self._close(stack)
        self._tell_end(how)

    async def _coding_tools(self, stack: AsyncExitStack) -> Shelf | None:
        if self._plan.coding is None:
            return None
        builtins = await stack.enter_async_context(coding.coding_tools(self._plan.coding))

        async def call(tool: Tool, arguments: dict[str, Any], *, timeout: float | None) -> Any:
            async with asyncio.timeout(timeout):
                return await builtins.call(tool.name, arguments)

        return Shelf(
            tools=Tools(builtins.offers, call=call),
            check=lambda offer, arguments: builtins.checked(offer.tool.name, arguments),
        )

    async def _limited(self, stack: AsyncExitStack, own: Shelf | None) -> Ended | Exception:
        limit = asyncio.timeout(self._plan.options.timeout)
        try:
            async with limit:
                return await self._whole(stack, own)
        except Exception as error:
            return Ended.TIMEOUT if limit.expired() else error

    async def _whole(self, stack: AsyncExitStack, own: Shelf | None) -> Ended:
        plan = self._plan
        # The modules take a second to load the first time, in which the servers can connect.
        loading = asyncio.get_running_loop().run_in_executor(None, _load, plan.place.provider.module)
        try:
            missing = Missing(self._teller)
            if plan.kit is not None:
                with missing.told_at_once(plan.kit):
                    await stack.enter_async_context(plan.kit)
            tools = await supplied(plan, own, missing, self._teller)
            module = await loading
        finally:
            loading.cancel()
        loop: Loop = module.Loop(plan.prompt, plan.options, plan.past, teller=self._teller, feed=self._feed)
        self._loop = loop
        offers = {name: tool.offer for name, tool in tools.items()}
        model = await stack.enter_async_context(models.open_model(plan.options, offers, self._teller.retrying))
        return await loop.run(model, Calling(tools, Approving(plan.options.approve)), plan.place.provider.format)

    async def _close(self, stack: AsyncExitStack) -> None:
        try:
            await stack.aclose()
        except Exception as error:
            self._log("could not be closed", error)

    def _tell_end(self, how: Ended | Exception) -> None:
        far = self._loop.standing() if self._loop else Standing(messages=self._plan.options.history)
        if isinstance(how, Ended):
            self._teller.finished(how, far)
        elif isinstance(how, ToolcribError):
            self._teller.failed(how.message, how.remedy, far)
        else:
            explain = importlib.import_module("toolcrib.agent.explain")
            if not explain.is_known(how):
                self._log("failed", how)
            self._teller.failed(explain.error(how), explain.remedy(how), far)

    def _log(self, what: str, error: Exception) -> None:
        trace = "".join(traceback.format_exception(error))
        log.warning("run %s %s:\n%s", self._teller.run_id, what, self._teller.without_key(trace))


def _load(provider: str) -> ModuleType:
    loaded(f"toolcrib.agent.models.{provider}")
    return loaded("toolcrib.agent.loop")
