"""The table of the workspace's tools, and their definitions as MCP has them.

In: the tool functions of the rooms beside. Out: `TOOLS`, and the bytes of a definition. Every word of a description is
paid for in every conversation: what a schema says is not said again.
"""

from __future__ import annotations

from types import MappingProxyType

import msgspec

from toolcrib.workspace.files import files, status
from toolcrib.workspace.looking import look, search, structure
from toolcrib.workspace.running import diff, linting, shell, testing
from toolcrib.workspace.schemas import Of, schema_of
from toolcrib.workspace.settings.model import Settings
from toolcrib.workspace.tool import Runs, Tool

TOOLS: tuple[Tool, ...] = (
    Tool(
        name="read_file",
        title="Read a file",
        description="Read a text file, or a part of it.",
        parameters=files.ReadFile,
        result=files.FileText,
        do=files.read_file,
    ),
    Tool(
        name="write_file",
        title="Write a file",
        description="Write a whole file. To change a part of one, use edit_file.",
        parameters=files.WriteFile,
        result=files.FileWritten,
        do=files.write_file,
        reads_only=False,
        destructive=True,
        idempotent=False,
    ),
    Tool(
        name="edit_file",
        title="Edit a file",
        description="Replace exact text in a file.",
        parameters=files.EditFile,
        result=files.FileEdited,
        do=files.edit_file,
        reads_only=False,
        destructive=True,
        idempotent=False,
    ),
    Tool(
        name="list_dir",
        title="List a folder",
        description="List a folder.",
        parameters=look.ListDir,
        result=look.DirListed,
        do=look.list_dir,
    ),
    Tool(
        name="stat_file",
        title="Look at a file",
        description="Kind, size, mode and time of a file or folder, and whether it can be written.",
        parameters=status.StatFile,
        result=status.FileStatus,
        do=status.stat_file,
    ),
    Tool(
        name="find_files",
        title="Find files",
        description="Find files by name.",
        parameters=look.FindFiles,
        result=look.FilesFound,
        do=look.find_files,
    ),
    Tool(
        name="search_text",
        title="Search text",
        description="Search the contents of files.",
        parameters=search.SearchText,
        result=search.TextFound,
        do=search.search_text,
    ),
    Tool(
        name="run_tests",
        title="Run tests",
        description="Run pytest; the failures come structured.",
        parameters=testing.RunTests,
        result=testing.PytestRan,
        do=testing.run_tests,
        runs=Runs.CODE,
        reads_only=False,
        destructive=True,
        open_world=True,
        idempotent=False,
    ),
    Tool(
        name="run_lint",
        title="Run linters",
        description="Run ruff and mypy where the project uses them. Changes nothing.",
        parameters=linting.RunLint,
        result=linting.LintRan,
        do=linting.run_lint,
        runs=Runs.CODE,
        reads_only=False,
        open_world=True,
    ),
    Tool(
        name="run_shell_safe",
        title="Run a command",
        description=(
            "Run a command in a sandbox: it sees this folder and the system's programs, nothing else. Unless "
            "configured, there is no network, and .git is read-only."
        ),
        parameters=shell.RunShellSafe,
        result=shell.ShellRan,
        do=shell.run_shell_safe,
        runs=Runs.CODE,
        reads_only=False,
        open_world=True,
        destructive=True,
        idempotent=False,
    ),
    Tool(
        name="project_diff",
        title="Show changes",
        description="git status and diff.",
        parameters=diff.ProjectDiff,
        result=diff.Differs,
        do=diff.project_diff,
        runs=Runs.CODE,
    ),
    Tool(
        name="project_structure",
        title="Show the project",
        description="The tree of folders, with languages, sizes and kinds of project.",
        parameters=structure.ProjectStructure,
        result=structure.Structure,
        do=structure.project_structure,
    ),
)
"""In the order of the list that clients get, which never changes."""

BY_NAME = MappingProxyType({tool.name: tool for tool in TOOLS})


def definition(tool: Tool, settings: Settings) -> bytes:
    return msgspec.json.encode(
        {
            "name": tool.name,
            "title": tool.title,
            "description": tool.description,
            "inputSchema": schema_of(tool.parameters, Of.ARGUMENTS),
            **({"outputSchema": schema_of(tool.result, Of.RESULT)} if tool.result is not None else {}),
            "annotations": {
                "readOnlyHint": tool.reads_only,
                "destructiveHint": tool.destructive,
                "idempotentHint": tool.idempotent,
                "openWorldHint": tool.open_world and settings.network,
            },
        }
    )
