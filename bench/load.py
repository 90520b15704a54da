"""The load client: callers that each keep one connection and ask again as soon as the answer is there.

In: one line of JSON on stdin, a job (`Job` below). Out: one line of JSON on stdout with latencies, rate and
failures. It runs as a process of its own, so that it shares no event loop with what is measured, and is
bounded in calls and in seconds. The job comes over stdin because it may hold a token. A job with
`until_closed` first writes a line `ready`, then runs until stdin is closed.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, Literal

import msgspec
import uvloop

from connection import HttpConnection, Pipe
from messages import (
    ECHO_TEXT,
    INITIALIZED,
    LEGACY,
    MODERN,
    body,
    call_params,
    http_head,
    http_headers,
    http_request,
    initialize_params,
    json_of,
    params,
)

FIRST_ID = 10_000_000


class Job(msgspec.Struct, frozen=True, kw_only=True):
    era: Literal["modern", "legacy"]
    operation: Literal["echo", "big", "list"]
    callers: int = 1
    calls: int = 1000
    """All callers together, after the warm-up."""
    warmup: int = 5
    """Calls of each caller that are not counted."""
    seconds: float = 20.0
    url: str = ""
    token: str = ""
    argv: list[str] = []
    """Instead of a url: the stdio server to start and call directly."""
    prefix: str = ""
    """What stands before the upstream's tool names here."""
    size: int = 0
    """Characters of a big result; tools that a list must at least have."""
    until_closed: bool = False


class CallFailed(Exception):
    pass


Ask = Callable[[], Awaitable[bytes]]
"""One operation of one caller, whole: a list with all its pages."""


def request_of(job: Job, cursor: str = "") -> tuple[str, str, bytes]:
    """The method, the tool and the params that a job asks for."""
    if job.operation == "list":
        return "tools/list", "", params(job.era, **({"cursor": cursor} if cursor else {}))
    arguments: dict[str, Any] = {"text": ECHO_TEXT} if job.operation == "echo" else {"size": job.size}
    tool = job.prefix + job.operation
    return "tools/call", tool, call_params(job.era, tool, arguments)


async def http_caller(job: Job) -> Ask:
    connection = await HttpConnection.open(job.url)
    session = await legacy_session(job, connection) if job.era == LEGACY else ""
    method, tool, raw = request_of(job)
    head = http_head(job.url, http_headers(job.era, method, tool=tool, token=job.token, session=session))
    number = FIRST_ID
    # Ids of one length, so that everything but the id is made once.
    before, after = http_request(head, body(method, raw, b"%d" % number)).split(b"%d" % number)

    async def post(request: bytes) -> bytes:
        response = await connection.post(request)
        if response.status != 200:
            raise CallFailed(f"HTTP {response.status}: {response.content[:200]!r}")
        return response.content

    async def ask() -> bytes:
        nonlocal number
        number += 1
        return await post(before + b"%d" % number + after)

    async def ask_all_pages() -> bytes:
        nonlocal number
        pages = [await ask()]
        while cursor := next_cursor(pages[-1]):
            number += 1
            pages.append(await post(http_request(head, body(method, request_of(job, cursor)[2], b"%d" % number))))
        return pages[0] if len(pages) == 1 else b"".join(pages)

    return ask_all_pages if job.operation == "list" else ask


def next_cursor(content: bytes) -> str:
    return str(json_of(content)["result"].get("nextCursor") or "") if b'"nextCursor"' in content else ""


async def legacy_session(job: Job, connection: HttpConnection) -> str:
    head = http_head(job.url, http_headers(LEGACY, "initialize", token=job.token))
    response = await connection.post(http_request(head, body("initialize", initialize_params())))
    if response.status != 200 or "result" not in json_of(response.content):
        raise CallFailed(f"initialize: HTTP {response.status}: {response.content[:200]!r}")
    headers = http_headers(LEGACY, "notifications/initialized", token=job.token, session=response.session)
    accepted = await connection.post(http_request(http_head(job.url, headers), INITIALIZED))
    if accepted.status not in (200, 202):
        raise CallFailed(f"notifications/initialized: HTTP {accepted.status}: {accepted.content[:200]!r}")
    return response.session


async def stdio_callers(job: Job) -> list[Ask]:
    """All callers share the one child, as they would behind a gateway."""
    pipe = await Pipe.open(job.argv)
    method, _, raw = request_of(job)
    if job.era == LEGACY:
        await pipe.request("initialize", initialize_params())
        pipe.notify(INITIALIZED)
    else:
        await pipe.request("server/discover", params(MODERN))

    async def ask() -> bytes:
        reply = await pipe.request(method, raw)
        if reply.error:
            raise CallFailed(f"error {bytes(reply.error)[:200]!r}")
        return bytes(reply.result)

    return [ask] * job.callers


def is_good(job: Job, content: bytes) -> bool:
    """A glance at bytes, cheap enough to be given to every answer."""
    if b'"isError":true' in content[:200] or b'"isError":true' in content[-200:] or b'"error":' in content[:200]:
        return False
    if job.operation == "echo":
        return ECHO_TEXT.encode() in content
    return len(content) > job.size


def check_closely(job: Job, content: bytes) -> None:
    if not is_good(job, content):
        raise CallFailed(f"no good answer: {content[:300]!r}")
    if job.operation == "list" and (found := content.count(b'"inputSchema"')) < job.size:
        raise CallFailed(f"{found} tools listed instead of {job.size}")
    if job.operation == "echo":
        answer = json_of(content)
        result = answer.get("result", answer)
        if result.get("isError") or result["content"][0]["text"] != ECHO_TEXT:
            raise CallFailed(f"another answer than asked for: {content[:300]!r}")


class Run:
    """The counted part: callers take calls from one heap until it is empty, the time is over, or stdin closes."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._left = job.calls
        self.latencies: list[float] = []
        self.stopped = False

    async def caller(self, ask: Ask, deadline: float) -> None:
        clock, job, latencies = time.perf_counter, self._job, self.latencies
        while not self.stopped and (self._left > 0 or job.until_closed):
            self._left -= 1
            begun = clock()
            content = await ask()
            ended = clock()
            latencies.append(ended - begun)
            if not is_good(job, content):
                raise CallFailed(f"no good answer: {content[:300]!r}")
            if ended > deadline:
                return


async def run(job: Job) -> dict[str, Any]:
    asks = [await http_caller(job) for _ in range(job.callers)] if job.url else await stdio_callers(job)
    first = await asks[0]()
    check_closely(job, first)
    for _ in range(job.warmup):
        await asyncio.gather(*(ask() for ask in asks))
    counted = Run(job)
    if job.until_closed:
        asyncio.get_running_loop().add_reader(0, setattr, counted, "stopped", True)
        print("ready", flush=True)
    gc.disable()
    begun = time.perf_counter()
    await asyncio.gather(*(counted.caller(ask, begun + job.seconds) for ask in asks))
    elapsed = time.perf_counter() - begun
    ordered = sorted(counted.latencies)
    return {
        "p50_ms": ordered[len(ordered) // 2] * 1000,
        "p95_ms": ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))] * 1000,
        "calls_per_s": len(ordered) / elapsed,
        "calls": len(ordered),
        "calls_in_all": len(ordered) + 1 + job.warmup * job.callers,
        "answer_bytes": len(first),
    }


async def bounded(job: Job) -> dict[str, Any]:
    try:
        async with asyncio.timeout(job.seconds + 30):
            return await run(job)
    except TimeoutError:
        return {"failed": f"not finished {job.seconds + 30:.0f} s after its start"}
    except (CallFailed, OSError, ValueError, KeyError) as problem:
        return {"failed": f"{type(problem).__name__}: {problem}"}


def main() -> None:
    job = msgspec.json.decode(sys.stdin.buffer.readline(), type=Job)
    print(json.dumps(uvloop.run(bounded(job))))


if __name__ == "__main__":
    main()
