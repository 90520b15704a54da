"""The table of coding tools, and a workspace opened with them.

In: the requested access, the folder and its settings. Out: rows with the names and parameters that models know. Keep
descriptions short: they are sent with every request of a run.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

from toolcrib.agent_loop.coding import files, search
from toolcrib.agent_loop.options import CodingAccess, CodingTools
from toolcrib.errors import UsageError, WorkspaceError
from toolcrib.workspace.serving.main import open_workspace, without_token
from toolcrib.workspace.session import Overwriting, WorkspaceSession
from toolcrib.workspace.settings.model import GitMode, WorkspaceSettings
from toolcrib.workspace.tool import ToolNeeds, WorkspaceTool
from toolcrib.workspace.workspace import Workspace

_reading_tool = partial(WorkspaceTool, result=None)
_changing_tool = partial(WorkspaceTool, result=None, reads_only=False, destructive=True, idempotent=False)


def open_coding_workspace(choice: CodingTools) -> tuple[Workspace, WorkspaceSession]:
    """Raises `UsageError` if the folder cannot be used, and `ConfigError` if its settings are invalid."""
    try:
        workspace = open_workspace(
            choice.root,
            without_token(os.environ),
            read_only=choice.allowed is CodingAccess.READ_ONLY,
            tools=lambda settings: coding_tool_table(choice, settings),
        )
    except WorkspaceError as error:
        raise UsageError(f"coding_tools: {error.message}", remedy=error.remedy, data=error.data) from error
    return workspace, WorkspaceSession(workspace.settings.limits, Overwriting.KNOWN)


def coding_tool_table(choice: CodingTools, settings: WorkspaceSettings) -> tuple[WorkspaceTool, ...]:
    tools = (_bash(settings), _EDIT, _GLOB, _GREP, _read(choice.root.absolute()), _WRITE)
    return tools if choice.allowed is CodingAccess.ALL else tuple(tool for tool in tools if tool.reads_only)


def _read(root: Path) -> WorkspaceTool:
    return _reading_tool(
        name="Read",
        title="Read a file",
        description=f"Read a text file. Line format: number, tab, text. Relative paths start at {root}.",
        parameters=files.ReadArguments,
        do=files.read,
        like="read_file",
    )


_WRITE = _changing_tool(
    name="Write",
    title="Write a file",
    description="Write a whole file. Read all of an existing file first. To change a part, use Edit.",
    parameters=files.WriteArguments,
    do=files.write,
    like="write_file",
)

_EDIT = _changing_tool(
    name="Edit",
    title="Edit a file",
    description="Replace exact text in a file. old_string must be unique, without Read's line numbers.",
    parameters=files.EditArguments,
    do=files.edit,
    like="edit_file",
)

_GLOB = _reading_tool(
    name="Glob",
    title="Find files",
    description="Find files by name, newest first. Skips files in .gitignore.",
    parameters=search.GlobArguments,
    do=search.glob,
    like="find_files",
)

_GREP = _reading_tool(
    name="Grep",
    title="Search files",
    description="Search files with a regular expression (RE2), line by line. Skips files in .gitignore.",
    parameters=search.GrepArguments,
    do=search.grep,
    like="search_text",
)


def _bash(settings: WorkspaceSettings) -> WorkspaceTool:
    most = int(settings.limits.seconds["run_shell_safe"] * 1000)
    network = "" if settings.network else " no network,"
    git = "commits work" if settings.git is GitMode.COMMIT else ".git is read-only"
    return _changing_tool(
        name="Bash",
        title="Run a command",
        description=(
            f"Run a command in a sandbox with this folder and the system's programs;{network} {git}. Each call "
            f"is a new shell in the folder. Stops after {most} ms, or timeout if shorter."
        ),
        parameters=files.BashArguments,
        do=files.bash,
        needs=ToolNeeds.SANDBOX,
        open_world=True,
        like="run_shell_safe",
    )
