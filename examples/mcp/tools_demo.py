"""Runs a coding agent with Toolcrib's tools from Python.

    tools_demo.py [claude|codex|gemini]              with your own login; defaults to claude
    tools_demo.py [claude|codex|gemini] --scripted   offline, with a scripted model

`CodeAgent.run` runs to the end and returns a result; `CodeAgent.stream` yields events as they happen. Everything is in
a temporary folder with a separate Toolcrib, and is removed at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import sys
import tempfile
from pathlib import Path

from toolcrib import CodeAgent, ExecutionResult, ToolcribError

HERE = Path(__file__).resolve().parent


def read_and_comment(agent: CodeAgent) -> ExecutionResult:
    result = agent.run("Read tetris.py with the read_file tool of toolcrib. What do you think of it? Be brief.")
    print(f"{result.status}: {result.text}")
    print(f"called: {result.metadata['tools']}")
    print(f"tokens: {result.usage.input} in, {result.usage.output} out")
    return result


async def write_and_test(agent: CodeAgent, conversation: str) -> ExecutionResult:
    prompt = "Write score.py with points(lines, level), and test_score.py; run the tests. Use toolcrib."
    # When the block exits, for whatever reason, the run has ended and is cleaned up.
    async with agent.stream(prompt, conversation=conversation) as stream:
        async for event in stream:
            if event.kind == "tool" and event.tool_status != "started":
                source = f"{event.server}, {event.decision}" if event.server else "built-in"
                print(f"  {event.tool_name} ({source}): {event.tool_status}")
            elif event.kind == "message":
                print(event.text)
    return stream.result


def demo(client: str, folder: Path) -> None:
    project = folder / "project"
    shutil.copytree(HERE / "project", project)
    environ = {**os.environ, "TOOLCRIB_HOME": str(folder / "t")}

    print("\nrun, as read-only:")
    reader = CodeAgent(client, workdir=project, profile="read-only", environ=environ)
    first = read_and_comment(reader)

    print("\nstream, as developer, in the same conversation:")
    writer = CodeAgent(client, workdir=project, profile="developer", environ=environ, timeout=600)
    second = asyncio.run(write_and_test(writer, first.metadata["conversation"]))

    print(f"\n{second.status}; files: {', '.join(sorted(file.name for file in project.glob('*.py')))}")
    print(f"The log was {second.log}; it held {len(second.raw_events)} events.")


def main() -> None:
    parser = argparse.ArgumentParser(description="Runs a coding agent with Toolcrib's tools from Python.")
    parser.add_argument("client", nargs="?", choices=("claude", "codex", "gemini"), default="claude")
    parser.add_argument("--scripted", action="store_true", help="offline, with a scripted model")
    args = parser.parse_args()
    if args.scripted:
        sys.stdout.flush()
        program = str(HERE / "offline.sh")
        os.execv(program, [program, args.client, sys.executable, str(HERE / "tools_demo.py"), args.client])  # noqa: S606
    with tempfile.TemporaryDirectory(prefix="toolcrib-demo.") as folder:
        demo(args.client, Path(folder))


if __name__ == "__main__":
    try:
        main()
    except ToolcribError as error:
        sys.exit(error.text())
