"""How Claude Code is started for a run.

In: a `LaunchRequest`. Out: a `Launch`. Below the level `all` it runs in its own restricted mode, which reads no
settings file, runs no hook or plugin and keeps its file tools in the folder; what the person has settled about login,
model and refusals is handed to it in a file of ours. `claude` reads what it prints.
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

_ENTRY, _SETTINGS, _WORDS = "claude.json", "claude-settings.json", "claude-words.md"
_CALL_LIMIT_MS = 3_600_000
"""Toolcrib has limits of its own, and a call that waits for a person's word may take long: by itself Claude Code gives
up on one that says nothing for five minutes."""

_OUR_TOOLS = f"mcp__{SERVER_NAME}"
_SERVERS = ("ToolSearch", "ListMcpResourcesTool", "ReadMcpResourceTool")
"""Ask servers, of which there is none but ours. Without the search Claude Code would put all tools before the model."""
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
"""Root may not switch Claude Code's questions off, but may answer them beforehand."""

_HELPERS = (
    *("apiKeyHelper", "awsAuthRefresh", "awsCredentialExport", "gcpAuthRefresh"),
    *("otelHeadersHelper", "proxyAuthHelper"),
)
"""Commands of the person's by which it reaches the model."""
_KEPT = (
    *_HELPERS,
    *("env", "forceLoginMethod", "forceLoginOrgUUID"),
    *("model", "availableModels", "modelOverrides", "fallbackModel", "advisorModel", "effortLevel", "fastMode"),
    *("alwaysThinkingEnabled", "showThinkingSummaries", "autoCompactEnabled", "language"),
    *("attribution", "includeCoAuthoredBy", "claudeMdExcludes", "respectGitignore"),
    # How long it keeps its sessions: without this it would clear away after its usual time.
    "cleanupPeriodDays",
)
"""Of the person's settings, below `all`: whatever another key may make it run or allow is left out."""
_REFUSALS = ("deny", "ask")

_SESSION = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def is_session(text: str) -> bool:
    return _SESSION.fullmatch(text) is not None


def launch(request: LaunchRequest) -> Launch:
    """Raises ConfigError where the person's settings cannot be read."""
    session = ("--resume", request.session) if request.session else ("--session-id", request.new_session)
    words = ["-p", "--output-format=stream-json", "--verbose", "--permission-prompts=none", *session]
    files = {}
    if request.url:
        words.append(f"--mcp-config={request.folder / _ENTRY}")
        files[_ENTRY] = json.dumps({"mcpServers": {SERVER_NAME: _entry(request)}}, indent=2)
    more = _freely(request) if request.own_tools is OwnTools.ALL else _restrictedly(request)
    return Launch(
        words=(*words, *more.words, *request.extra),
        # With `@path` in a prompt, which often holds text of others, it would read the file whatever its tools may.
        environ={**more.environ, "CLAUDE_CODE_DISABLE_FILE_MENTIONS": "1"},
        files={**files, **more.files},
        stdin=request.prompt if request.own_tools is OwnTools.ALL else without_command(request.prompt),
        governed=more.governed,
        ungoverned=more.ungoverned,
    )


def _entry(request: LaunchRequest) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {request.token}", **request.headers}
    return {"type": "http", "url": request.url, "headers": headers, "timeout": _CALL_LIMIT_MS}


def _freely(request: LaunchRequest) -> Launch:
    # Without the flag, what subagents of subagents do is not printed.
    words = ("--forward-subagent-text",)
    ungoverned = (
        "Claude Code may use all of its own tools without asking: files, commands, the network, subagents.",
        "Its settings, hooks, plugins, skills and MCP servers are in force, yours and the project's.",
    )
    if os.geteuid() == 0 and request.environ.get("IS_SANDBOX") != "1":
        kept = (
            "As root, Claude Code still refuses to write its own files and git's, and tools of other MCP servers that "
            "your settings do not allow. Where the machine is a sandbox, IS_SANDBOX=1 in the environment ends that.",
        )
        allowed = f"--allowedTools={','.join(_AS_ROOT)}"
        return Launch(words=(*words, "--permission-mode=acceptEdits", allowed), governed=kept, ungoverned=ungoverned)
    allowed = f"--allowedTools={_OUR_TOOLS}"
    return Launch(words=(*words, "--permission-mode=bypassPermissions", allowed), ungoverned=ungoverned)


def _restrictedly(request: LaunchRequest) -> Launch:
    folder = Path(request.environ.get("CLAUDE_CONFIG_DIR") or home_of(request.environ) / ".claude")
    settings = _settings(folder / "settings.json")
    instructions, environ = [_text(folder / "CLAUDE.md")], {}
    files = {_SETTINGS: json.dumps(settings, indent=2)}
    words = [
        *("--restricted", "--strict-mcp-config", f"--settings={request.folder / _SETTINGS}"),
        f"--tools={','.join(_OWN[request.own_tools])}",
        f"--allowedTools={_OUR_TOOLS}",
        f"--permission-mode={'acceptEdits' if request.own_tools is OwnTools.EDIT else 'dontAsk'}",
        f"--disallowedTools={','.join(_refused(request))}",
    ]
    # Restricted, it would not read the project's CLAUDE.md either.
    if request.own_tools is OwnTools.NONE:
        # It would also read what that imports.
        instructions.append(project_text(request.workdir, ("CLAUDE.md",)))
    else:
        # Of an added folder it reads it, and nothing else. Not by its path: a link may stand there by the time that
        # Claude Code looks.
        words.append("--add-dir=.")
        environ["CLAUDE_CODE_ADDITIONAL_DIRECTORIES_CLAUDE_MD"] = "1"
    if said := "\n\n".join(text for text in instructions if text):
        files[_WORDS] = said
        words.append(f"--append-system-prompt-file={request.folder / _WORDS}")
    return Launch(
        words=tuple(words),
        environ=environ,
        files=files,
        governed=_governed(request),
        ungoverned=_ungoverned(request, folder, settings),
    )


def _refused(request: LaunchRequest) -> Iterator[str]:
    # What the workspace may do is settled in our folder. HEAD is what makes a repository of a folder.
    yield from (f"Edit({name})" for name in (f"{PROJECT_FOLDER}/**", "HEAD", *request.guarded))
    # What other runs, of other profiles, were asked.
    yield f"Read({PROJECT_FOLDER}/{RUNS}/**)"


def _settings(file: Path) -> dict[str, Any]:
    """What is kept of the person's settings."""
    try:
        found = json.loads(_text(file) or "{}")
    except ValueError as error:
        raise ConfigError(
            f"{file} is not JSON: {error}.", remedy="Claude Code would pass it over: put it right, or move it away."
        ) from error
    theirs = found if isinstance(found, dict) else {}
    rules = theirs.get("permissions")
    refusals = {name: rules[name] for name in _REFUSALS if name in rules} if isinstance(rules, dict) else {}
    kept = {name: theirs[name] for name in _KEPT if name in theirs}
    return {**kept, "permissions": refusals} if refusals else kept


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig", errors="replace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise ConfigError(
            f"{file} cannot be read: {error.strerror}.", remedy="Let yourself read it, or move it away."
        ) from error


def _governed(request: LaunchRequest) -> tuple[str, ...]:
    hands = {
        OwnTools.NONE: "Claude Code has no tools of its own but the search for Toolcrib's.",
        OwnTools.READ: f"Claude Code may read files in {request.workdir}, and no others.",
        OwnTools.EDIT: f"Claude Code may read and change files in {request.workdir}, and no others; "
        f"git's, its own, {PROJECT_FOLDER} and what other programs obey it may not change.",
    }
    never = "write, " if request.own_tools is not OwnTools.EDIT else ""
    return (
        hands[request.own_tools],
        f"It cannot {never}run commands, fetch from the network or start subagents by itself.",
        "Hooks, plugins, skills, permissions and other MCP servers, yours and the project's, are left out; "
        "your login, model and refusals stay, and what CLAUDE.md says, yours and the project's.",
        "No file is read because the prompt names it with @, and no command of its own runs for a prompt that begins "
        "with a slash.",
    )


def _ungoverned(request: LaunchRequest, folder: Path, settings: Mapping[str, Any]) -> tuple[str, ...]:
    helpers = [name for name in _HELPERS if name in settings]
    return (
        f"Claude Code keeps its sessions and other records in {folder}.",
        "What your organization's managed settings say is in force, their hooks included.",
        *((f"Commands of your settings run: {', '.join(helpers)}.",) if helpers else ()),
        *(("What your own words for Claude Code permit.",) if request.extra else ()),
    )
