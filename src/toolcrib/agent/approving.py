"""Whether a call may run: the program is asked.

In: the program's `approve`, an offer and the arguments of a call. Out: why the call may not run, or nothing. `calling`
asks, one call at a time, so that a person who is asked sees one question.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
from collections.abc import Mapping
from typing import Any

from toolcrib.agent.options import Approve, ToolRequest
from toolcrib.catalog.offer import Offer


class Approving:
    def __init__(self, approve: Approve | None) -> None:
        self._approve = approve
        self._one_at_a_time = asyncio.Lock()

    async def refusal(self, offer: Offer, arguments: Mapping[str, Any], call: str) -> str:
        """Empty if the call may run."""
        if self._approve is None or offer.tool.reads_only:
            return ""
        request = ToolRequest(
            name=offer.name,
            server=offer.server,
            arguments=copy.deepcopy(dict(arguments)),
            annotations=offer.annotations,
            call=call,
        )
        async with self._one_at_a_time:
            try:
                answer = self._approve(request)
                if inspect.isawaitable(answer):
                    answer = await answer
            except Exception as error:
                return f"whoever should have approved it failed ({type(error).__name__}: {error})"
        if answer is True:
            return ""
        return answer if isinstance(answer, str) and answer else "it was not approved"
