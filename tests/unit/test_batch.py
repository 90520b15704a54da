"""A batch takes parts of earlier results, within limits, and each call has its own result."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from toolcrib.errors import InvalidArguments
from toolcrib.gateway.batch import BatchedCall, MadeCall, run_batch

pytestmark = pytest.mark.req("KSI-10")


class Calls:
    """Each tool returns the result under its name; others return nothing. Keeps the arguments of each."""

    def __init__(self, **results: Any) -> None:
        self.results = results
        self.arguments: dict[str, Any] = {}

    async def make(self, call: BatchedCall, share: int) -> MadeCall:
        self.arguments[call.tool] = json.loads(msgspec.json.encode(call.arguments))
        result = self.results.get(call.tool, {"content": []})
        if isinstance(result, Exception):
            raise result
        encoded = json.dumps(result).encode()
        return MadeCall(encoded, encoded)

    async def batch(self, *calls: tuple[str, Any]) -> Any:
        given = {"calls": [{"tool": tool, "arguments": arguments} for tool, arguments in calls]}
        return json.loads(await run_batch(json.dumps(given).encode(), self.make, lambda _: False))


def text(value: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": value}]}


@pytest.mark.parametrize(
    ("result", "path", "taken"),
    [
        ({"content": [], "structuredContent": {"n": [1, 2]}}, "$.n[1]", 2),
        (text('{"items": [{"id": 1}, {"id": 2}]}'), "$.items[*].id", [1, 2]),
        (text("42"), "$", 42),
        (text("a line"), "$", "a line"),
        (text("00042"), "$", "00042"),
        (text(f"[{'9' * 5000}]"), "$", f"[{'9' * 5000}]"),
        ({"content": []}, "$", ""),
    ],
)
async def test_a_call_takes_a_part_of_an_earlier_result(result: Any, path: str, taken: Any) -> None:
    calls = Calls(first=result)
    await calls.batch(("first", {}), ("second", {"x": [{"$from": 0, "path": path}]}))
    assert calls.arguments["second"] == {"x": [taken]}


async def test_a_short_batch_cannot_make_huge_arguments() -> None:
    calls = Calls(first=text("x" * 600_000))
    answer = await calls.batch(("first", {}), ("second", {"x": [{"$from": 0}] * 2}), ("third", {"x": {"$from": 0}}))
    assert list(calls.arguments) == ["first", "third"]
    assert "It did not run: Its arguments would take more than 1,048,576 bytes of earlier results." in json.dumps(
        answer
    )
    with pytest.raises(InvalidArguments, match="takes results in 101 places"):
        await calls.batch(("first", {}), ("second", {"x": [{"$from": 0}] * 60}), ("third", {"x": [{"$from": 0}] * 41}))


async def test_a_wrong_call_in_a_batch_gets_the_schema() -> None:
    wrong = InvalidArguments("The arguments do not match.", data={"schema": {"required": ["owner"]}})
    answer = await Calls(first=wrong).batch(("first", {}), ("second", {}))
    assert [block["text"] for block in answer["content"]] == [
        "# 0 first failed",
        'The arguments do not match.\nThe tool\'s schema: {"required":["owner"]}',
        "# 1 second",
    ]


async def test_a_defect_in_one_call_does_not_lose_the_results_of_the_others() -> None:
    answer = await Calls(first=text("done"), second=RuntimeError("a defect")).batch(("first", {}), ("second", {}))
    assert [block["text"] for block in answer["content"]] == [
        "# 0 first",
        "done",
        "# 1 second failed",
        "Toolcrib failed during this call, which may have run. Its log has the reason.",
    ]


async def test_a_result_without_content_is_shown_as_its_structured_content() -> None:
    answer = await Calls(first={"structuredContent": {"a": 1}}).batch(("first", {}))
    assert json.loads(answer["content"][1]["text"]) == {"a": 1}
