"""The table of the workspace's tools, and their MCP definitions.

In: the tool functions of this package. Out: `TOOLS`, and the bytes of a definition. Descriptions cost tokens in every
conversation, so they don't repeat the schema.
"""

from __future__ import annotations

from types import MappingProxyType

import msgspec

from toolcrib.workspace.settings.model import WorkspaceSettings
from toolcrib.workspace.tool import SchemaFor, ToolNeeds, WorkspaceTool, schema_of
from toolcrib.workspace.tools import (
    files,
    lint,
    listing,
    project_diff,
    project_structure,
    run_tests,
    search_text,
    shell,
)

TOOLS: tuple[WorkspaceTool, ...] = (
    WorkspaceTool(
        name="read_file",
        title="Read a file",
        description="Read a text file, or a part of it.",
        parameters=files.ReadFileArguments,
        result=files.ReadFileResult,
        do=files.read_file,
    ),
    WorkspaceTool(
        name="write_file",
        title="Write a file",
        description="Write a whole file. To change a part of one, use edit_file.",
        parameters=files.WriteFileArguments,
        result=files.WriteFileResult,
        do=files.write_file,
        reads_only=False,
        destructive=True,
        idempotent=False,
    ),
    WorkspaceTool(
        name="edit_file",
        title="Edit a file",
        description="Replace exact text in a file.",
        parameters=files.EditFileArguments,
        result=files.EditFileResult,
        do=files.edit_file,
        reads_only=False,
        destructive=True,
        idempotent=False,
    ),
    WorkspaceTool(
        name="list_dir",
        title="List a folder",
        description="List a folder.",
        parameters=listing.ListDirArguments,
        result=listing.ListDirResult,
        do=listing.list_dir,
    ),
    WorkspaceTool(
        name="stat_file",
        title="Show file status",
        description="Kind, size, mode and time of a file or folder, and whether it can be written.",
        parameters=listing.StatFileArguments,
        result=listing.StatFileResult,
        do=listing.stat_file,
    ),
    WorkspaceTool(
        name="find_files",
        title="Find files",
        description="Find files by name.",
        parameters=listing.FindFilesArguments,
        result=listing.FindFilesResult,
        do=listing.find_files,
    ),
    WorkspaceTool(
        name="search_text",
        title="Search text",
        description="Search the contents of files.",
        parameters=search_text.SearchTextArguments,
        result=search_text.SearchTextResult,
        do=search_text.search_text,
    ),
    WorkspaceTool(
        name="run_tests",
        title="Run tests",
        description="Run pytest; failures are structured.",
        parameters=run_tests.RunTestsArguments,
        result=run_tests.RunTestsResult,
        do=run_tests.run_tests,
        needs=ToolNeeds.SANDBOX,
        reads_only=False,
        destructive=True,
        open_world=True,
        idempotent=False,
    ),
    WorkspaceTool(
        name="run_lint",
        title="Run linters",
        description="Run ruff and mypy if the project uses them. Changes nothing.",
        parameters=lint.RunLintArguments,
        result=lint.RunLintResult,
        do=lint.run_lint,
        needs=ToolNeeds.SANDBOX,
        reads_only=False,
        open_world=True,
    ),
    WorkspaceTool(
        name="run_shell_safe",
        title="Run a command",
        description=(
            "Run a command in a sandbox that contains only this folder and the system's programs. By default "
            "there is no network and .git is read-only."
        ),
        parameters=shell.RunShellArguments,
        result=shell.RunShellResult,
        do=shell.run_shell_safe,
        needs=ToolNeeds.SANDBOX,
        reads_only=False,
        open_world=True,
        destructive=True,
        idempotent=False,
    ),
    WorkspaceTool(
        name="project_diff",
        title="Show changes",
        description="git status and diff.",
        parameters=project_diff.ProjectDiffArguments,
        result=project_diff.ProjectDiffResult,
        do=project_diff.project_diff,
        needs=ToolNeeds.SANDBOX,
    ),
    WorkspaceTool(
        name="project_structure",
        title="Show the project",
        description="The folder tree, with languages, sizes and project types.",
        parameters=project_structure.ProjectStructureArguments,
        result=project_structure.ProjectStructureResult,
        do=project_structure.project_structure,
    ),
)
"""In the stable order in which clients get them."""

BY_NAME = MappingProxyType({tool.name: tool for tool in TOOLS})


def tool_definition(tool: WorkspaceTool, settings: WorkspaceSettings) -> bytes:
    return msgspec.json.encode(
        {
            "name": tool.name,
            "title": tool.title,
            "description": tool.description,
            "inputSchema": schema_of(tool.parameters, SchemaFor.ARGUMENTS),
            **({"outputSchema": schema_of(tool.result, SchemaFor.RESULT)} if tool.result is not None else {}),
            "annotations": {
                "readOnlyHint": tool.reads_only,
                "destructiveHint": tool.destructive,
                "idempotentHint": tool.idempotent,
                "openWorldHint": tool.open_world and settings.network,
            },
        }
    )
