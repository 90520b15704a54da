"""Launches Claude Code for a run.

In: a `LaunchRequest`. Out: a `Launch`. Below level `all` it runs in its restricted mode, which reads no settings file,
runs no hook or plugin and confines its file tools to the folder. It gets the user's settings for login, model and
refusals in a generated file. `claude` parses its output.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from toolcrib.coding_agents.client_spec import SERVER_NAME, Launch, LaunchRequest, without_command
from toolcrib.coding_agents.known.instructions import project_text
from toolcrib.config.paths import PROJECT_FOLDER, RUNS, home_of
from toolcrib.errors import ConfigError
from toolcrib.policy.profile import OwnTools

_ENTRY, _SETTINGS, _INSTRUCTIONS = "claude.json", "claude-settings.json", "claude-instructions.md"
_CALL_LIMIT_MS = 3_600_000
"""Toolcrib has its own limits, and a call that waits for approval may take long. By default, Claude Code gives up after
five minutes without a response."""

_OUR_TOOLS = f"mcp__{SERVER_NAME}"
_SERVERS = ("ToolSearch", "ListMcpResourcesTool", "ReadMcpResourceTool")
"""They query MCP servers, and Toolcrib is the only one. Without the search, Claude Code would list all tools in every
request."""
_READS = ("Read", "Glob", "Grep")
_EDITS = ("Edit", "Write", "NotebookEdit")
_OWN = {
    OwnTools.NONE: _SERVERS,
    OwnTools.READ: (*_SERVERS, *_READS),
    OwnTools.EDIT: (*_SERVERS, *_READS, *_EDITS),
}
_AS_ROOT = (
    *("Agent", "Bash", "Edit", "Monitor", "NotebookEdit", "Read", "Skill", "WebFetch", "WebSearch", "Workflow"),
    *("Write", _OUR_TOOLS),
)
"""As root, Claude Code's prompts cannot be disabled, but these tools can be allowed in advance."""

_HELPERS = (
    *("apiKeyHelper", "awsAuthRefresh", "awsCredentialExport", "gcpAuthRefresh"),
    *("otelHeadersHelper", "proxyAuthHelper"),
)
"""The user's commands for access to the model."""
_KEPT = (
    *_HELPERS,
    *("env", "forceLoginMethod", "forceLoginOrgUUID"),
    *("model", "availableModels", "modelOverrides", "fallbackModel", "advisorModel", "effortLevel", "fastMode"),
    *("alwaysThinkingEnabled", "showThinkingSummaries", "autoCompactEnabled", "language"),
    *("attribution", "includeCoAuthoredBy", "claudeMdExcludes", "respectGitignore"),
    # How long it keeps its sessions: without this it would delete them after its default time.
    "cleanupPeriodDays",
)
"""The user's settings that apply below `all`. Other keys may run commands or grant permissions."""
_REFUSALS = ("deny", "ask")

_SESSION = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def is_session(text: str) -> bool:
    return _SESSION.fullmatch(text) is not None


def launch(request: LaunchRequest) -> Launch:
    """Raises ConfigError if the user's settings cannot be read."""
    session = ("--resume", request.session) if request.session else ("--session-id", request.new_session)
    args = ["-p", "--output-format=stream-json", "--verbose", "--permission-prompts=none", *session]
    files = {}
    if request.url:
        args.append(f"--mcp-config={request.folder / _ENTRY}")
        files[_ENTRY] = json.dumps({"mcpServers": {SERVER_NAME: _entry(request)}}, indent=2)
    more = _unrestricted(request) if request.own_tools is OwnTools.ALL else _restricted(request)
    return Launch(
        args=(*args, *more.args, *request.extra),
        # It would read a file named with `@path`, even without a tool for it; a prompt often contains others' text.
        environ={**more.environ, "CLAUDE_CODE_DISABLE_FILE_MENTIONS": "1"},
        files={**files, **more.files},
        stdin=request.prompt if request.own_tools is OwnTools.ALL else without_command(request.prompt),
        governed=more.governed,
        ungoverned=more.ungoverned,
    )


def _entry(request: LaunchRequest) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {request.token}", **request.headers}
    return {"type": "http", "url": request.url, "headers": headers, "timeout": _CALL_LIMIT_MS}


def _unrestricted(request: LaunchRequest) -> Launch:
    # Without the flag it doesn't print the actions of nested subagents.
    args = ("--forward-subagent-text",)
    ungoverned = (
        "Claude Code may use all of its built-in tools without asking: files, commands, the network, subagents.",
        "Its settings, hooks, plugins, skills and MCP servers apply, both yours and the project's.",
    )
    if os.geteuid() == 0 and request.environ.get("IS_SANDBOX") != "1":
        kept = (
            "As root, Claude Code still refuses to write its own files and git's, and to use tools of other MCP "
            "servers that your settings do not allow. If this machine is a sandbox, set IS_SANDBOX=1 to lift that.",
        )
        allowed = f"--allowedTools={','.join(_AS_ROOT)}"
        return Launch(args=(*args, "--permission-mode=acceptEdits", allowed), governed=kept, ungoverned=ungoverned)
    allowed = f"--allowedTools={_OUR_TOOLS}"
    return Launch(args=(*args, "--permission-mode=bypassPermissions", allowed), ungoverned=ungoverned)


def _restricted(request: LaunchRequest) -> Launch:
    folder = Path(request.environ.get("CLAUDE_CONFIG_DIR") or home_of(request.environ) / ".claude")
    settings = _settings(folder / "settings.json")
    instructions, environ = [_text(folder / "CLAUDE.md")], {}
    files = {_SETTINGS: json.dumps(settings, indent=2)}
    args = [
        *("--restricted", "--strict-mcp-config", f"--settings={request.folder / _SETTINGS}"),
        f"--tools={','.join(_OWN[request.own_tools])}",
        f"--allowedTools={_OUR_TOOLS}",
        f"--permission-mode={'acceptEdits' if request.own_tools is OwnTools.EDIT else 'dontAsk'}",
        f"--disallowedTools={','.join(_refused(request))}",
    ]
    # In restricted mode it does not read the project's CLAUDE.md.
    if request.own_tools is OwnTools.NONE:
        # If it read the file itself, it would also read imported files.
        instructions.append(project_text(request.workdir, ("CLAUDE.md",)))
    else:
        # From an added folder it reads CLAUDE.md and nothing else. Use `.` and not the path, which could become a link
        # before Claude Code reads it.
        args.append("--add-dir=.")
        environ["CLAUDE_CODE_ADDITIONAL_DIRECTORIES_CLAUDE_MD"] = "1"
    if text := "\n\n".join(text for text in instructions if text):
        files[_INSTRUCTIONS] = text
        args.append(f"--append-system-prompt-file={request.folder / _INSTRUCTIONS}")
    return Launch(
        args=tuple(args),
        environ=environ,
        files=files,
        governed=_governed(request),
        ungoverned=_ungoverned(request, folder, settings),
    )


def _refused(request: LaunchRequest) -> Iterator[str]:
    # Toolcrib's folder has the workspace's settings. A file HEAD can turn a folder into a git repository.
    yield from (f"Edit({name})" for name in (f"{PROJECT_FOLDER}/**", "HEAD", *request.guarded))
    # The logs contain the prompts of other runs, with other profiles.
    yield f"Read({PROJECT_FOLDER}/{RUNS}/**)"


def _settings(file: Path) -> dict[str, Any]:
    """The user's settings that apply to the run."""
    try:
        found = json.loads(_text(file) or "{}")
    except ValueError as error:
        raise ConfigError(
            f"{file} is not JSON: {error}.", remedy="Claude Code would ignore it: fix it, or move it away."
        ) from error
    users = found if isinstance(found, dict) else {}
    rules = users.get("permissions")
    refusals = {name: rules[name] for name in _REFUSALS if name in rules} if isinstance(rules, dict) else {}
    kept = {name: users[name] for name in _KEPT if name in users}
    return {**kept, "permissions": refusals} if refusals else kept


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig", errors="replace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise ConfigError(
            f"{file} cannot be read: {error.strerror}.", remedy="Check its permissions, or move it away."
        ) from error


def _governed(request: LaunchRequest) -> tuple[str, ...]:
    files = {
        OwnTools.NONE: "Claude Code has no built-in tools except the search for Toolcrib's tools.",
        OwnTools.READ: f"Claude Code can only read files in {request.workdir}.",
        OwnTools.EDIT: f"Claude Code can only read and change files in {request.workdir}. It cannot change git's "
        f"files, its own configuration, {PROJECT_FOLDER} or files that configure other programs.",
    }
    never = "write, " if request.own_tools is not OwnTools.EDIT else ""
    return (
        files[request.own_tools],
        f"Its built-in tools cannot {never}run commands, use the network or start subagents.",
        "Your and the project's hooks, plugins, skills, permissions and other MCP servers are off. "
        "Your login, your model, your deny and ask rules, and both CLAUDE.md files apply.",
        "It does not read files named with @ in the prompt, and a prompt with a leading slash runs no command.",
    )


def _ungoverned(request: LaunchRequest, folder: Path, settings: Mapping[str, Any]) -> tuple[str, ...]:
    helpers = [name for name in _HELPERS if name in settings]
    return (
        f"Claude Code keeps its sessions and other records in {folder}.",
        "Your organization's managed settings apply, including hooks.",
        *((f"These commands from your settings run: {', '.join(helpers)}.",) if helpers else ()),
        *(("Your own arguments for Claude Code may permit more.",) if request.extra else ()),
    )
