"""A one-shot program that calls a tool of a remote server: `python one_shot.py URL when`.

It connects and prints `ready`, then waits for a line before the call, and prints the result's text. With the word
`late` it connects after the line.
"""

from __future__ import annotations

import asyncio
import sys

from toolcrib import HttpServer, Kit


async def main(url: str, when: str) -> None:
    if when == "late":
        await line()
    async with Kit([HttpServer("web", url=url)]) as kit:
        if when != "late":
            await line()
        result = await kit.call("whoami", {})
    print(result.text, flush=True)


async def line() -> None:
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
