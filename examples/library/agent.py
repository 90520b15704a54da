"""An agent with a server, tools for a folder, and somebody who is asked before anything is changed.

python examples/library/agent.py       # offline: the model follows a script
"""

import asyncio
import sys
import tempfile
from pathlib import Path

from toolcrib import AgentOptions, CodingTools, StdioServer, ToolRequest, run_agent
from toolcrib.testing import Call, Say, Together, scripted

CLOCK = StdioServer("clock", command=sys.executable, args=[str(Path(__file__).parents[1] / "clock_server.py")])


def approve(request: ToolRequest) -> bool | str:
    """Here a person could be asked."""
    if request.server == "clock":
        return True
    return request.arguments.get("file_path") == "notes.txt" or "only notes.txt may be written"


async def work(prompt: str, model: str, folder: Path, *, api_key: str = "", base_url: str = "") -> str:
    options = AgentOptions(
        model=model,
        api_key=api_key,
        base_url=base_url,
        instructions="Be brief.",
        mcp_servers=[CLOCK],
        coding_tools=CodingTools.all(folder),
        approve=approve,
        max_steps=10,
        timeout=60,
    )
    text = ""
    async for event in run_agent(prompt, options):
        print(event)
        if event.type == "run_finished":
            text = event.text
    return text


def main() -> None:
    script = [
        Together([Call("now", {"zone": "UTC"}), Call("Write", {"file_path": "passwords.txt", "content": "…"})]),
        Call("Write", {"file_path": "notes.txt", "content": "It is late.\n"}),
        Say("I wrote it down."),
    ]
    with scripted("anthropic", script) as model, tempfile.TemporaryDirectory() as folder:
        there = work("Note how late it is.", "anthropic:any", Path(folder), api_key="none", base_url=model.url)
        asyncio.run(there)
        print(sorted(file.name for file in Path(folder).iterdir()))


if __name__ == "__main__":
    main()
