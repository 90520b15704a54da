"""`crib_batch`: several calls in one, where one result may feed a later call.

In: the calls of a batch, and a function that makes one. Out: their results in one text, in the order of the calls.
Each call is decided, approved and recorded on its own. Calls that only read run at the same time; any other call
starts when all before it have ended, and those after it wait for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

from toolcrib.errors import InvalidArguments, ToolcribError
from toolcrib.gateway.messages import Rejected, error_as_tool_result
from toolcrib.gateway.result_text import NO_DATA, read_result
from toolcrib.listing.gateway_tools import MOST_IN_BATCH, GatewayTool
from toolcrib.listing.json_path import pick

log = logging.getLogger(__name__)

_FROM, _PATH = "$from", "path"
_MOST_DEPTH = 32
_MOST_AT_ONCE = 8
_MOST_SOURCES = 64
"""Parts of results in the arguments of a batch."""
_MOST_TAKEN = 1024 * 1024
"""Bytes of such parts in the arguments of one call: a short request could take a large result very often."""
_LONGEST_VALUE = 100
"""Characters of a text that can be a number or another plain value in JSON."""
_FAILED: Any = object()


class BatchedCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tool: str
    arguments: dict[str, Any] = {}


class _Batch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    calls: list[BatchedCall]


class _Result(msgspec.Struct):
    content: list[Raw] = []
    structured: Raw = msgspec.field(name="structuredContent", default=Raw())
    failed: bool = msgspec.field(name="isError", default=False)


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
    values: list[Any] = [_FAILED] * len(calls)
    shown: list[_Result] = [_Result()] * len(calls)
    open_slots = asyncio.Semaphore(_MOST_AT_ONCE)

    async def one(position: int) -> None:
        async with open_slots:
            values[position], shown[position] = await _made(calls[position], values, make)

    try:
        for group in _groups(calls, taken, reads_only):
            async with asyncio.TaskGroup() as tasks:
                for position in group:
                    tasks.create_task(one(position))
    except ExceptionGroup as failed:
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


async def _made(call: BatchedCall, values: Sequence[Any], make: MakeCall) -> tuple[Any, _Result]:
    """What paths of later calls refer to, and what the agent gets."""
    arguments = call.arguments
    try:
        if any(_sources(arguments)):
            arguments = await asyncio.to_thread(_Filler(values).filled, arguments)
    except InvalidArguments as error:
        return _FAILED, _failure(f"It did not run: {error.text()}")
    try:
        made = await make(BatchedCall(call.tool, arguments), len(values))
    except ToolcribError as error:
        return _FAILED, _decode_result(error_as_tool_result(error))
    except Rejected:
        # The agent's token expired, for instance.
        raise
    except Exception:
        # The other calls have run, or still run: their results must not be lost.
        log.exception("a call of %r in a batch failed", call.tool[:100])
        return _FAILED, _failure("Toolcrib failed during this call, which may have run. Its log has the reason.")
    try:
        return await asyncio.to_thread(_read, made)
    except (msgspec.MsgspecError, RecursionError):
        return _FAILED, _failure("It has run, but its result cannot be read.")


def _failure(text: str) -> _Result:
    return _Result(content=[_text(text)], failed=True)


def _text(text: str) -> Raw:
    return Raw(msgspec.json.encode({"type": "text", "text": text}))


def _read(made: MadeCall) -> tuple[Any, _Result]:
    """The value is the structured content, or the text, parsed if it is JSON."""
    shown = _decode_result(made.shown)
    if not all(bytes(block).lstrip().startswith(b"{") for block in shown.content):
        raise msgspec.ValidationError("a block of the content is not an object")
    if shown.failed:
        return _FAILED, shown
    found = read_result(made.result)
    text = "" if found is None else found.text
    if found is not None and found.data is not NO_DATA:
        return found.data, shown
    if len(text) <= _LONGEST_VALUE:
        with contextlib.suppress(msgspec.MsgspecError):
            return msgspec.json.decode(text), shown
    return text, shown


class _Filler:
    """Puts parts of earlier results in the places that refer to them."""

    def __init__(self, values: Sequence[Any]) -> None:
        self._values = values
        self._left = _MOST_TAKEN

    def filled(self, value: Any) -> Any:
        if not _is_source(value):
            if isinstance(value, dict):
                return {key: self.filled(inner) for key, inner in value.items()}
            return [self.filled(inner) for inner in value] if isinstance(value, list) else value
        source = self._values[value[_FROM]]
        if source is _FAILED:
            raise InvalidArguments(f"Call {value[_FROM]}, whose result it takes, failed.")
        part = msgspec.json.encode(pick(source, str(value.get(_PATH, "$"))))
        self._left -= len(part)
        if self._left < 0:
            raise InvalidArguments(
                f"Its arguments would take more than {_MOST_TAKEN:,} bytes of earlier results.",
                remedy="Take smaller parts of them by a path.",
            )
        return Raw(part)


def _combined(calls: Sequence[BatchedCall], results: Sequence[_Result]) -> bytes:
    content: list[Raw] = []
    for position, (call, result) in enumerate(zip(calls, results, strict=True)):
        failed = " failed" if result.failed else ""
        content.append(_text(f"# {position} {call.tool}{failed}"))
        structured = bytes(result.structured)
        content += result.content or ([_text(structured.decode())] if structured else [])
    return msgspec.json.encode({"content": content, "isError": all(result.failed for result in results)})
