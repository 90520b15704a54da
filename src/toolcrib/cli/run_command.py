"""`run`: a coding agent at work with Toolcrib's tools, as a person follows it.

In: words of the command line, or the prompt from a pipe. Out: the coding agent's answer on stdout, everything
else on stderr; `--json` gives one object. The exit code says how the run ended. `coding_agents` does the work.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from toolcrib.cli.options import AsJson, whole_prompt
from toolcrib.cli.output import TOOL_ERROR, error_data, hint, say_line
from toolcrib.cli.run_text import USUAL_PROFILES, EventDetail
from toolcrib.cli.run_view import RunJsonView, RunTextView, RunView, masked
from toolcrib.coding_agents.code_agent import LONGEST, CodeAgent, RunStream
from toolcrib.coding_agents.run_folder import LogSeals
from toolcrib.coding_agents.run_history import conversation_state
from toolcrib.coding_agents.run_result import ExecutionResult, RunStatus
from toolcrib.commands.duration import parse_duration
from toolcrib.config.paths import project_of
from toolcrib.errors import ToolcribError, UsageError
from toolcrib.signals import ending_signals

PROFILE = "developer"
STOPPED = 12
"""The exit code of a run that Toolcrib ended: too long, revoked, or without tools."""
INTERRUPTED = 130

_EXIT_CODES = {RunStatus.FINISHED: 0, RunStatus.FAILED: TOOL_ERROR, RunStatus.INTERRUPTED: INTERRUPTED}
_PARTS = re.compile(r"(?:[0-9.]+[a-z])+")


class ProgramWordsCommand(TyperCommand):
    """Keeps what stands after `--` apart: it is for the program, also where no prompt stands before it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        at = args.index("--") if "--" in args else len(args)
        ctx.obj = tuple(args[at + 1 :])
        return super().parse_args(ctx, args[:at])

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- WORDS...]"]


commands = typer.Typer(rich_markup_mode=None)


@commands.command(cls=ProgramWordsCommand)
def run(
    context: typer.Context,
    client: Annotated[str, typer.Argument(metavar="claude|codex|gemini", help="The coding agent.")],
    prompt: Annotated[
        str | None,
        typer.Argument(metavar="PROMPT", help="What it shall do, in quotes; with `-`, or none, it is read from stdin."),
    ] = None,
    *,
    profile: Annotated[
        str | None,
        typer.Option(
            metavar="PROFILE", help=f"What it may do: {PROFILE} by default, or as the conversation had it so far."
        ),
    ] = None,
    workdir: Annotated[Path, typer.Option(metavar="DIR", help="The folder that it works in.")] = Path(),
    conversation: Annotated[
        str, typer.Option(metavar="ID|last", help="Go on in a conversation, the program's own session included.")
    ] = "",
    timeout: Annotated[
        str, typer.Option(metavar="TIME", help="End it after so long: 90 (seconds), 30m, 1h30m; 7d at most.")
    ] = "2h",
    on_mcp_failure: Annotated[
        str, typer.Option(metavar="stop|continue", help="Where the tools cannot be had, or are lost.")
    ] = "stop",
    env: Annotated[
        list[str] | None,
        typer.Option(
            "--env",
            metavar="NAME",
            help="Pass this variable on, although Toolcrib's configuration uses it; may be repeated.",
        ),
    ] = None,
    env_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Variables for the program, NAME=VALUE a line.")
    ] = None,
    log_events: Annotated[
        bool, typer.Option("--log-events", help="Show every event but the answer, as it comes.")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Run a coding agent with Toolcrib's tools, under a profile and on the record.

    It keeps its own login, model and settings; WORDS after `--` are handed to the program itself. What is piped in
    beside a prompt stands after it: `git diff | toolcrib run codex "review this"`. The answer is on stdout, all else on
    stderr, also what a run said that was cut off; --json prints one object instead, --json --log-events each event
    before it.

    Exit code 10: the program failed. 12: Toolcrib ended it (time limit, revoked, no tools). 130: Ctrl-C, which ends the
    run in order; a second one ends it at once. 4: the program is missing or too old, or there is no such conversation.
    7: no daemon could be had.
    """
    try:
        coding_agent = CodeAgent(
            client,
            workdir=workdir,
            profile=_profile(profile, conversation, workdir, client),
            timeout=_seconds(timeout),
            on_mcp_failure=on_mcp_failure,
            env=tuple(env or ()),
            env_file=env_file,
            extra=context.obj,
        )
        detail = EventDetail.ALL if log_events else EventDetail.USUAL
        return _follow(
            coding_agent, whole_prompt(prompt), conversation, RunJsonView(detail) if as_json else RunTextView(detail)
        )
    except ToolcribError as error:
        if not as_json:
            raise
        # One line, as all that went before it.
        hint(f"Error: {error.text()}")
        data = error_data(error)
        say_line({"error": data})
        return int(data["exit_code"])


def exit_code(status: RunStatus) -> int:
    return _EXIT_CODES.get(status, STOPPED)


def _profile(given: str | None, conversation: str, workdir: Path, client: str) -> str:
    if given is not None or not conversation:
        return given or PROFILE
    root, seals = project_of(workdir.expanduser()), LogSeals.of_user(os.environ)
    before = conversation_state(root, conversation, client, seals).profile
    if before not in USUAL_PROFILES:
        raise UsageError(
            f"The conversation was run as {before}.", remedy=f"Say --profile {before} to go on so, or another."
        )
    return before


def _seconds(text: str) -> float:
    # Without a unit, seconds; `1h30m` is one part after the other.
    parts = re.findall("[0-9.]+[a-z]", text) if _PARTS.fullmatch(text) else [f"{text}s"]
    seconds = [parse_duration(part) or 0.0 for part in parts]
    if not all(seconds) or sum(seconds) > LONGEST:
        raise UsageError(
            f"--timeout {text!r} is no time limit.",
            remedy="Write seconds (90), or 90s, 30m, 2h, 1h30m; more than 0, at most 7d.",
        )
    return sum(seconds)


def _follow(coding_agent: CodeAgent, prompt: str, conversation: str, view: RunView) -> int:
    stream = coding_agent.stream(prompt, conversation=conversation)
    view.starting(coding_agent.client.title)
    try:
        result = asyncio.run(_watched(stream, view))
    finally:
        view.still()
    code = INTERRUPTED if result is None else exit_code(result.status)
    view.over(result, stream.mask, code)
    return code


async def _watched(stream: RunStream, view: RunView) -> ExecutionResult | None:
    """None: it was interrupted before it began."""
    with _signals(view):
        try:
            async with stream:
                async for event in stream:
                    view.event(masked(event, stream.mask), stream.metadata)
        except asyncio.CancelledError:
            if stream.metadata is None:
                return None
    return stream.result


@contextlib.contextmanager
def _signals(view: RunView) -> Iterator[None]:
    """The first ends the run in order, the second at once: what it started ends with this process."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    received: list[signal.Signals] = []

    def end(number: signal.Signals) -> None:
        received.append(number)
        if len(received) > 1:
            view.still()
            os._exit(INTERRUPTED)
        if task is not None:
            task.cancel()
        view.ending()

    heard = ending_signals()
    for one in heard:
        loop.add_signal_handler(one, end, one)
    try:
        yield
    finally:
        for one in heard:
            loop.remove_signal_handler(one)
