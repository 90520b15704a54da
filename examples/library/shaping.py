"""Which tools a model is shown, and how: a filter and a transform of one's own, and what each provider gets.

python examples/library/shaping.py
"""

import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path

from toolcrib import (
    DefaultArguments,
    DescribeTools,
    Kit,
    OfferedTool,
    PrefixTools,
    ProviderOptions,
    StdioServer,
    Tools,
    destructive,
)

CLOCK = StdioServer("clock", command=sys.executable, args=[str(Path(__file__).parents[1] / "clock_server.py")])


def about_time(offer: OfferedTool) -> bool:
    """A filter is a function that says yes or no."""
    return "time" in offer.description


def first_sentence(offer: OfferedTool) -> OfferedTool | None:
    """A transform is one that gives another offer, or None."""
    if not offer.description:
        return None
    return replace(offer, description=offer.description.split(". ")[0])


def shaped(kit: Kit) -> Tools:
    return kit.tools(
        keep=["clock:*", about_time],
        drop=destructive,
        transform=[
            first_sentence,
            PrefixTools("my"),
            DescribeTools("[{server}] {description}"),
            DefaultArguments({"zone": "UTC"}),
            ProviderOptions(openai={"strict": True}, anthropic={"cache_control": {"type": "ephemeral"}}),
        ],
    )


async def main() -> None:
    async with Kit([CLOCK]) as kit:
        tools = shaped(kit)
        for definitions in (tools.to_openai(), tools.to_anthropic(), tools.to_google()):
            print(json.dumps(definitions))
        for provider in ("openai", "anthropic", "google"):
            for one in tools.adaptations(provider):
                print(f"{provider}: {one.tool} {one.path}: {one.what}, since {one.why}")
        print((await tools.call("my_now", {})).text)
        # What OpenAI's strict mode makes of an argument that is left out is taken back.
        print((await tools.call("my_now", {"zone": None})).text)


if __name__ == "__main__":
    asyncio.run(main())
