"""`tasks`: calls that servers work on as tasks.

In: command-line arguments. Out: an exit code. Only the daemon knows tasks.
"""

from __future__ import annotations

from typing import Annotated

import typer

from toolcrib.cli.options import AsJson
from toolcrib.cli.output import ColumnPriorities, duration, hint, printed, say, table
from toolcrib.cli.perform import from_daemon
from toolcrib.config.show import visible

COLUMNS = ("task", "agent", "tool", "status", "age", "message")

commands = typer.Typer(rich_markup_mode=None)
tasks = typer.Typer(help="Show or cancel the tasks that servers work on.")
commands.add_typer(tasks, name="tasks")

_PRIORITIES = ColumnPriorities(text="message", cut={"agent": 12}, optional=("age",))


@tasks.callback(invoke_without_command=True)
def list_tasks(context: typer.Context, *, as_json: AsJson = False) -> int:
    """Show the tasks of all agents, oldest first; `tasks cancel` cancels one."""
    if context.invoked_subcommand is not None:
        return 0
    found = printed(from_daemon("task:list", {}), as_json=as_json)["tasks"]
    if not found:
        say("No tasks.")
        return 0
    rows = [
        (one["id"], one["agent"], one["tool"], one["status"], duration(one["age"]), visible(one["message"]))
        for one in found
    ]
    table(COLUMNS, rows, yielding=_PRIORITIES, state_column="status")
    return 0


@tasks.command()
def cancel(
    id: Annotated[str, typer.Argument(metavar="ID", help="The task's ID, as shown by `toolcrib tasks`.")],
    *,
    as_json: AsJson = False,
) -> int:
    """Ask a task's server to cancel it."""
    task = printed(from_daemon("task:cancel", {"id": id}), as_json=as_json)["task"]
    hint(f"{task['tool']} of {task['agent']} was asked to stop.")
    return 0
