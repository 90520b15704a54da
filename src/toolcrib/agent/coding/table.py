"""The table of the coding tools, as the workspace takes it.

In: which are wanted, where, and the settings that hold there. Out: rows with the names and parameters that models know.
Every word of a description is paid for in every request of a run.
"""

from __future__ import annotations

from pathlib import Path

from toolcrib.agent.coding import bash, editing, glob, grep, reading
from toolcrib.agent.options import Allowed, CodingTools
from toolcrib.workspace.settings.model import GitMode, Settings
from toolcrib.workspace.tool import Runs, Tool


def table(choice: CodingTools, settings: Settings) -> tuple[Tool, ...]:
    tools = (_bash(settings), _EDIT, _GLOB, _GREP, _read(choice.root.absolute()), _WRITE)
    return tools if choice.allowed is Allowed.ALL else tuple(tool for tool in tools if tool.reads_only)


def _read(root: Path) -> Tool:
    return Tool(
        name="Read",
        title="Read a file",
        description=f"Read a text file. Lines come as number, tab, text. Relative paths start at {root}.",
        parameters=reading.Read,
        result=None,
        do=reading.read,
        like="read_file",
    )


_WRITE = Tool(
    name="Write",
    title="Write a file",
    description="Write a whole file. One that exists must have been read whole. To change a part, use Edit.",
    parameters=editing.Write,
    result=None,
    do=editing.write,
    reads_only=False,
    destructive=True,
    idempotent=False,
    like="write_file",
)

_EDIT = Tool(
    name="Edit",
    title="Edit a file",
    description="Replace exact text in a file. old_string must be unique there, and hold no line numbers of Read.",
    parameters=editing.Edit,
    result=None,
    do=editing.edit,
    reads_only=False,
    destructive=True,
    idempotent=False,
    like="edit_file",
)

_GLOB = Tool(
    name="Glob",
    title="Find files",
    description="Find files by name, the newest first. What .gitignore names is left out.",
    parameters=glob.Glob,
    result=None,
    do=glob.glob,
    like="find_files",
)

_GREP = Tool(
    name="Grep",
    title="Search files",
    description="Search files with a regular expression (RE2), line by line. What .gitignore names is left out.",
    parameters=grep.Grep,
    result=None,
    do=grep.grep,
    like="search_text",
)


def _bash(settings: Settings) -> Tool:
    most = int(settings.limits.seconds["run_shell_safe"] * 1000)
    network = "" if settings.network else " no network,"
    git = "commits work" if settings.git is GitMode.COMMIT else ".git is read-only"
    return Tool(
        name="Bash",
        title="Run a command",
        description=(
            f"Run a command in a sandbox: it sees this folder and the system's programs;{network} {git}. Each call "
            f"starts in the folder, anew. Ended after {most} ms, or timeout if that is less."
        ),
        parameters=bash.Bash,
        result=None,
        do=bash.bash,
        runs=Runs.CODE,
        reads_only=False,
        destructive=True,
        idempotent=False,
        open_world=True,
        like="run_shell_safe",
    )
