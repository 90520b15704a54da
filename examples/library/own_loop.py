"""A loop of one's own with the SDKs of Anthropic and OpenAI: tools out of a kit, results back into messages.

python examples/library/own_loop.py    # offline: the models follow a script
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from toolcrib import Kit, Result, StdioServer, ToolcribError, Tools
from toolcrib.core.results import together
from toolcrib.testing import Call, Say, Together, scripted

CLOCK = StdioServer("clock", command=sys.executable, args=[str(Path(__file__).parents[1] / "clock_server.py")])


async def ask_anthropic(client: AsyncAnthropic, tools: Tools, question: str) -> str:
    messages: list[Any] = [{"role": "user", "content": question}]

    async def answered(call: Any) -> dict[str, Any]:
        try:
            return (await tools.call(call.name, call.input)).to_anthropic(call.id)
        except ToolcribError as error:
            return Result.failed(error).to_anthropic(call.id)

    while True:
        answer = await client.messages.create(
            model="claude-sonnet-5-5", max_tokens=1000, messages=messages, tools=tools.to_anthropic()
        )
        calls = [block for block in answer.content if block.type == "tool_use"]
        if not calls:
            return "".join(block.text for block in answer.content if block.type == "text")
        messages.append({"role": "assistant", "content": answer.content})
        messages.append({"role": "user", "content": await asyncio.gather(*map(answered, calls))})


async def ask_openai(client: AsyncOpenAI, tools: Tools, question: str) -> str:
    messages: list[Any] = [{"role": "user", "content": question}]

    async def answered(call: Any) -> list[dict[str, Any]]:
        try:
            return (await tools.call(call.function.name, json.loads(call.function.arguments))).to_openai(call.id)
        except ToolcribError as error:
            return Result.failed(error).to_openai(call.id)
        except ValueError as error:
            return Result.failed(f"The arguments are no JSON: {error}.").to_openai(call.id)

    while True:
        answer = await client.chat.completions.create(model="gpt-5.5", messages=messages, tools=tools.to_openai())
        message = answer.choices[0].message
        if not message.tool_calls:
            return message.content or ""
        messages.append(message)
        messages += together(await asyncio.gather(*map(answered, message.tool_calls)))


async def main() -> None:
    def script() -> list[Call | Say | Together]:
        both = [Call("now", {"zone": "Europe/Lisbon"}), Call("now", {"zone": "Nowhere"})]
        return [Together(both), Call("now", {"zone": 3}), Say("Late in Lisbon.")]

    async with Kit([CLOCK]) as kit:
        tools = kit.tools()
        with scripted("anthropic", script()) as model:
            async with AsyncAnthropic(api_key="none", base_url=model.url) as client:
                print(await ask_anthropic(client, tools, "How late is it?"), model.results)
        with scripted("openai", script()) as model:
            async with AsyncOpenAI(api_key="none", base_url=model.url) as client:
                print(await ask_openai(client, tools, "How late is it?"), model.results)


if __name__ == "__main__":
    asyncio.run(main())
