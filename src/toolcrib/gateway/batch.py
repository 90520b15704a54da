"""`crib_batch`: several calls in one, where one result may feed a later call.

In: the calls of a batch, and a function that makes one. Out: their results in one text, in the order of the calls.
Each call is decided, approved and recorded on its own. Calls that only read run at the same time; any other call
starts when all before it have ended, and those after it wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from toolcrib.errors import InvalidArguments, ToolcribError
from toolcrib.gateway.messages import error_as_tool_result
from toolcrib.listing.gateway_tools import MOST_IN_BATCH, GatewayTool
from toolcrib.listing.json_path import pick

_FROM, _PATH = "$from", "path"
_MOST_DEPTH = 32
_MOST_AT_ONCE = 8
_MOST_SOURCES = 64
"""References to results in a batch: each may search a large result."""
_MOST_TAKEN = 1024 * 1024
"""Bytes of earlier results in the arguments of one call. A small batch could multiply a result without limit."""
_LARGE = 64 * 1024
"""Bytes above which a result is read off the event loop."""


class BatchedCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tool: str
    arguments: dict[str, Any] = {}


class _Batch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    calls: list[BatchedCall]


class _Result(msgspec.Struct):
    content: list[dict[str, Any]] = []
    structured: Any = msgspec.field(name="structuredContent", default=None)
    failed: bool = msgspec.field(name="isError", default=False)

    @property
    def value(self) -> Any:
        """What a path refers to: the structured content, or the text, parsed if it is JSON."""
        if self.structured is not None:
            return self.structured
        text = "\n".join(str(block["text"]) for block in self.content if isinstance(block.get("text"), str))
        try:
            return msgspec.json.decode(text)
        except (msgspec.MsgspecError, RecursionError):
            return text


_decode_result = msgspec.json.Decoder(_Result).decode


class MadeCall(NamedTuple):
    result: bytes
    shown: bytes
    """The result as the agent gets it, shortened if it is long."""


MakeCall = Callable[[BatchedCall, int], Awaitable[MadeCall]]
"""Makes one call, whose result gets one of so many shares of the answer. Raises `ToolcribError`."""


async def run_batch(arguments: bytes, make: MakeCall, reads_only: Callable[[str], bool]) -> bytes:
    """The combined result. `reads_only`: whether a call of this tool can run beside others."""
    calls, taken = await asyncio.to_thread(_checked, arguments)
    results: list[_Result | None] = [None] * len(calls)
    shown: list[_Result] = [_Result()] * len(calls)
    open_slots = asyncio.Semaphore(_MOST_AT_ONCE)

    async def one(position: int) -> None:
        async with open_slots:
            results[position], shown[position] = await _made(
                calls[position], make, len(calls), results if taken[position] else None
            )

    try:
        for group in _groups(calls, taken, reads_only):
            async with asyncio.TaskGroup() as tasks:
                for position in group:
                    tasks.create_task(one(position))
    except ExceptionGroup as failed:
        # The agent's token expired, for instance.
        raise failed.exceptions[0] from None
    return await asyncio.to_thread(_combined, calls, shown)


def _checked(arguments: bytes) -> tuple[Sequence[BatchedCall], Sequence[frozenset[int]]]:
    """The calls, and whose results each of them takes."""
    try:
        calls = msgspec.json.decode(arguments, type=_Batch).calls
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidArguments(
            f"The arguments do not match {GatewayTool.BATCH.display}: {error}.",
            remedy='Write {"calls": [{"tool": "NAME", "arguments": {…}}, …]}.',
        ) from None
    if not 0 < len(calls) <= MOST_IN_BATCH:
        raise InvalidArguments(
            f"A batch of {len(calls)} calls is not possible.", remedy=f"Make 1 to {MOST_IN_BATCH} calls."
        )
    sources = [[source[_FROM] for source in _sources(call.arguments)] for call in calls]
    if (count := sum(map(len, sources))) > _MOST_SOURCES:
        raise InvalidArguments(
            f"The batch takes results in {count} places.", remedy=f"Take them in at most {_MOST_SOURCES}."
        )
    for position, numbers in enumerate(sources):
        for number in numbers:
            if type(number) is not int or not 0 <= number < position:
                raise InvalidArguments(
                    f"Call {position} takes the result of {number!r:.40}.",
                    remedy="Give the number of an earlier call; the first is 0.",
                )
    return calls, [frozenset(numbers) for numbers in sources]


def _is_source(value: Any) -> bool:
    return isinstance(value, dict) and _FROM in value and value.keys() <= {_FROM, _PATH}


def _sources(value: Any, depth: int = 0) -> Iterator[dict[str, Any]]:
    if depth > _MOST_DEPTH:
        raise InvalidArguments("The arguments of a call are nested too deeply.", remedy="Make this call on its own.")
    if _is_source(value):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _sources(inner, depth + 1)


def _groups(
    calls: Sequence[BatchedCall], taken: Sequence[frozenset[int]], reads_only: Callable[[str], bool]
) -> Iterator[list[int]]:
    """Positions of calls that may run at the same time."""
    group: list[int] = []
    for position, call in enumerate(calls):
        together = reads_only(call.tool) and taken[position].isdisjoint(group)
        if group and not (together and reads_only(calls[group[0]].tool)):
            yield group
            group = []
        group.append(position)
    yield group


async def _made(
    call: BatchedCall, make: MakeCall, shares: int, results: Sequence[_Result | None] | None
) -> tuple[_Result, _Result]:
    """The result, and what the agent gets of it. `results`: the earlier ones, if the call takes some."""
    try:
        if results is not None:
            call = BatchedCall(call.tool, await asyncio.to_thread(_with_results, call.arguments, results))
        made = await make(call, shares)
        result = await _read(made.result)
        return result, result if made.shown is made.result else await _read(made.shown)
    except ToolcribError as error:
        failed = _decode_result(error_as_tool_result(error))
    except (msgspec.MsgspecError, RecursionError):
        text = "It has run, but its result cannot be read."
        failed = _Result(content=[{"type": "text", "text": text}], failed=True)
    return failed, failed


async def _read(result: bytes) -> _Result:
    return _decode_result(result) if len(result) <= _LARGE else await asyncio.to_thread(_decode_result, result)


def _with_results(arguments: dict[str, Any], results: Sequence[_Result | None]) -> Any:
    try:
        return _filled(arguments, results, [_MOST_TAKEN])
    except InvalidArguments as error:
        raise InvalidArguments(f"It did not run: {error.message}", remedy=error.remedy) from None


def _filled(value: Any, results: Sequence[_Result | None], room: list[int]) -> Any:
    """The arguments with parts of earlier results in the places that refer to them. `room`: bytes that are left."""
    if _is_source(value):
        source = results[value[_FROM]]
        if source is None or source.failed:
            raise InvalidArguments(f"Call {value[_FROM]}, whose result it takes, failed.")
        picked = pick(source.value, str(value.get(_PATH, "$")))
        room[0] -= len(msgspec.json.encode(picked))
        if room[0] < 0:
            raise InvalidArguments(
                f"Its arguments would take more than {_MOST_TAKEN:,} bytes of earlier results.",
                remedy="Take smaller parts of them by a path.",
            )
        return picked
    if isinstance(value, dict):
        return {key: _filled(inner, results, room) for key, inner in value.items()}
    return [_filled(inner, results, room) for inner in value] if isinstance(value, list) else value


def _combined(calls: Sequence[BatchedCall], results: Sequence[_Result]) -> bytes:
    content: list[dict[str, Any]] = []
    for position, (call, result) in enumerate(zip(calls, results, strict=True)):
        failed = " failed" if result.failed else ""
        content.append({"type": "text", "text": f"# {position} {call.tool}{failed}"})
        blocks = result.content
        if not blocks and result.structured is not None:
            blocks = [{"type": "text", "text": msgspec.json.encode(result.structured).decode()}]
        content += blocks
    return msgspec.json.encode({"content": content, "isError": all(result.failed for result in results)})
