"""An agent that knows the time anywhere."""

import sys
from pathlib import Path

from toolcrib import AgentOptions, StdioServer, run_agent

CLOCK = StdioServer("clock", command=sys.executable, args=[str(Path(__file__).parents[1] / "clock_server.py")])


async def answer(
    question: str, model: str = "anthropic:claude-sonnet-5-5", *, api_key: str = "", base_url: str = ""
) -> str:
    options = AgentOptions(model=model, api_key=api_key, base_url=base_url, mcp_servers=[CLOCK], max_steps=5)
    text = ""
    async for event in run_agent(question, options):
        if event.type == "run_failed":
            raise RuntimeError(event.error)
        if event.type == "run_finished":
            text = event.text
    return text
