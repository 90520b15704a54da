"""`run`: runs a coding agent with Toolcrib's tools and shows its progress.

In: command-line arguments, or the prompt from a pipe. Out: the coding agent's answer on stdout, everything else on
stderr; `--json` prints one object. The exit code tells how the run ended. `coding_agents` does the work.
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

from toolcrib.cli.options import AsJson, Listing, whole_prompt
from toolcrib.cli.output import TOOL_ERROR, error_data, hint, say_line
from toolcrib.cli.run_text import USUAL_PROFILES, EventDetail
from toolcrib.cli.run_view import RunJsonView, RunTextView, RunView, masked
from toolcrib.coding_agents.code_agent import MAX_TIMEOUT, CodeAgent, RunStream
from toolcrib.coding_agents.run_folder import LogSeals
from toolcrib.coding_agents.run_history import conversation_state
from toolcrib.coding_agents.run_result import ExecutionResult, RunStatus
from toolcrib.commands.duration import parse_duration
from toolcrib.config.paths import project_of
from toolcrib.errors import ToolcribError, UsageError
from toolcrib.signals import ending_signals

PROFILE = "developer"
STOPPED = 12
"""The exit code of a run that Toolcrib stopped: too long, revoked, or without tools."""
INTERRUPTED = 130

_EXIT_CODES = {RunStatus.FINISHED: 0, RunStatus.FAILED: TOOL_ERROR, RunStatus.INTERRUPTED: INTERRUPTED}
_PARTS = re.compile(r"(?:[0-9.]+[a-z])+")


class ProgramArgumentsCommand(TyperCommand):
    """Separates the arguments after `--`, which are for the program, even if there is no prompt before it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        at = args.index("--") if "--" in args else len(args)
        ctx.obj = tuple(args[at + 1 :])
        return super().parse_args(ctx, args[:at])

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- ARGS...]"]


commands = typer.Typer(rich_markup_mode=None)


@commands.command(cls=ProgramArgumentsCommand)
def run(
    context: typer.Context,
    client: Annotated[str, typer.Argument(metavar="claude|codex|gemini", help="The coding agent to run.")],
    prompt: Annotated[
        str | None,
        typer.Argument(metavar="PROMPT", help="The task, in quotes. Without it, or with `-`, it is read from stdin."),
    ] = None,
    *,
    profile: Annotated[
        str | None,
        typer.Option(
            metavar="PROFILE",
            help=f"The profile that limits the run. Default: {PROFILE}, or the conversation's profile.",
        ),
    ] = None,
    workdir: Annotated[Path, typer.Option(metavar="DIR", help="Run the coding agent in this folder.")] = Path(),
    conversation: Annotated[
        str, typer.Option(metavar="ID|last", help="Continue a conversation, including the program's own session.")
    ] = "",
    timeout: Annotated[
        str, typer.Option(metavar="TIME", help="Stop the run after this time: 90 (seconds), 30m, 1h30m; at most 7d.")
    ] = "2h",
    on_mcp_failure: Annotated[
        str, typer.Option(metavar="stop|continue", help="What to do if Toolcrib's tools are unavailable.")
    ] = "stop",
    env: Annotated[
        list[str] | None,
        typer.Option(
            "--env",
            metavar="NAME",
            help="Pass this variable to the program even though Toolcrib's configuration uses it; repeatable.",
        ),
    ] = None,
    env_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Read variables for the program from this file of NAME=VALUE lines."),
    ] = None,
    listing: Listing = None,
    log_events: Annotated[
        bool, typer.Option("--log-events", help="Show every event as it happens, except the answer.")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Run a coding agent with Toolcrib's tools, limited by a profile and logged.

    The coding agent keeps its own login, model and settings; ARGS after `--` are passed to it. Text piped in along with
    a prompt is appended to it: `git diff | toolcrib run codex "review this"`. The answer is printed to stdout, and
    everything else to stderr, including the last text of a run that was cut off. --json prints one object instead;
    with --log-events, each event precedes it.

    Ctrl-C stops the run cleanly; a second Ctrl-C stops it immediately. Exit codes: 4 the program is missing or too old,
    or the conversation doesn't exist; 7 no daemon could be started; 10 the program failed; 12 Toolcrib stopped the run
    (time limit, revoked, no tools); 130 interrupted.
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
            listing=listing,
        )
        detail = EventDetail.ALL if log_events else EventDetail.USUAL
        return _follow(
            coding_agent, whole_prompt(prompt), conversation, RunJsonView(detail) if as_json else RunTextView(detail)
        )
    except ToolcribError as error:
        if not as_json:
            raise
        # On one line, like the events before it.
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
            f"The conversation used the profile {before}.",
            remedy=f"Add --profile {before} to keep it, or choose another.",
        )
    return before


def _seconds(text: str) -> float:
    # A number without a unit means seconds; `1h30m` is the sum of its parts.
    parts = re.findall("[0-9.]+[a-z]", text) if _PARTS.fullmatch(text) else [f"{text}s"]
    seconds = [parse_duration(part) or 0.0 for part in parts]
    if not all(seconds) or sum(seconds) > MAX_TIMEOUT:
        raise UsageError(
            f"--timeout {text!r} is not a valid time limit.",
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
    """Returns None if the run was interrupted before it began."""
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
    """The first signal stops the run cleanly. The second ends this process, which ends everything the run started."""
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

    handled = ending_signals()
    for number in handled:
        loop.add_signal_handler(number, end, number)
    try:
        yield
    finally:
        for number in handled:
            loop.remove_signal_handler(number)
