"""Launches Codex for a run.

In: a `LaunchRequest`. Out: a `Launch`. Codex uses the user's home, login, model and settings. Arguments (`-c
key=value`) set the rest; they override the user's file and a project's. The token is in a variable, because Codex
cannot read it from a private file. `instructions` has the project's `AGENTS.md`; `codex` parses the output.
"""

from __future__ import annotations

import tomllib
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolcrib.coding_agents.client_spec import SERVER_NAME, TOKEN_VARIABLE, Launch, LaunchRequest
from toolcrib.coding_agents.known.instructions import before_prompt
from toolcrib.coding_agents.toml_entry import as_toml
from toolcrib.config.paths import PROJECT_FOLDER
from toolcrib.errors import ConfigError
from toolcrib.policy.profile import OwnTools

OTHER_NAME = "toolcrib_run"
"""The server's name if the user already has an entry for Toolcrib: Codex would merge the two."""
SYSTEM_FILE = Path("/etc/codex/config.toml")
MANAGED_FILE = Path("/etc/codex/managed_config.toml")
"""Overrides the command line."""

_STARTUP_SECONDS = 20
_CALL_SECONDS = 3600
"""Toolcrib has its own limits, and a call that waits for approval may take long."""

_PROFILE = "toolcrib_run"

_OFF = (
    *("apps", "plugins", "remote_plugin", "hooks", "tool_suggest", "skill_mcp_dependency_install"),
    *("multi_agent", "multi_agent_v2", "memories", "image_generation"),
    *("browser_use", "browser_use_external", "computer_use", "in_app_browser"),
    *("request_permissions_tool", "exec_permission_approvals", "network_proxy"),
)
"""Features that are off below `all`: they bypass the sandbox, widen it or add other tools."""
_OFF_WITHOUT_SHELL = ("shell_tool", "unified_exec")
_OFF_WITHOUT_TOOLS = (*_OFF_WITHOUT_SHELL, "view_image", "goals")
_OLD_SANDBOX = "use_legacy_landlock"
"""A weaker sandbox. Codex warns whenever a setting names it, so it is disabled only if the user's file names it."""


def launch(request: LaunchRequest) -> Launch:
    """Raises ConfigError if the user's settings cannot be read."""
    settings = _settings(request.environ)
    options = {**_server(request, settings), **_limits(request, settings), **_trust(request, settings)}
    rules = () if request.own_tools is OwnTools.ALL else ("--ignore-rules",)
    args = [arg for key, value in options.items() for arg in ("-c", f"{key}={as_toml(value)}")]
    resume = ("resume",) if request.session else ()
    # A dash: the prompt is on standard input.
    last = (request.session, "-") if request.session else ("-",)
    return Launch(
        args=("exec", *resume, "--json", "--skip-git-repo-check", *rules, *args, *request.extra, "--", *last),
        environ={TOKEN_VARIABLE: request.token} if request.url else {},
        stdin=_instructions(request, settings) + request.prompt,
        governed=_governed(request.own_tools, shell=request.own_shell),
        ungoverned=_ungoverned(request),
    )


def is_session(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False


def _settings(environ: Mapping[str, str]) -> list[dict[str, Any]]:
    """The settings that Codex reads in every folder: the machine's file and the user's."""
    home = Path(environ.get("CODEX_HOME") or Path(environ.get("HOME") or Path.home()) / ".codex")
    return [_read(SYSTEM_FILE), _read(home / "config.toml")]


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        # The file may name other servers, which have to be disabled.
        raise ConfigError(f"{file} cannot be read: {error}.", remedy="Fix the file; Codex reads it, too.") from error


def _server(request: LaunchRequest, settings: list[dict[str, Any]]) -> dict[str, Any]:
    """Toolcrib's entry for the run. The user's servers are disabled: all of them below `all`, otherwise only a Toolcrib
    entry."""
    users = {name for layer in settings for name in _table(layer, "mcp_servers")}
    disabled = users if request.own_tools is not OwnTools.ALL else users & {SERVER_NAME}
    servers: dict[str, Any] = {name: {"enabled": False} for name in sorted(disabled)}
    if request.url:
        servers[OTHER_NAME if SERVER_NAME in users else SERVER_NAME] = {
            "url": request.url,
            "bearer_token_env_var": TOKEN_VARIABLE,
            "http_headers": dict(request.headers),
            "default_tools_approval_mode": "approve",
            "required": True,
            "startup_timeout_sec": _STARTUP_SECONDS,
            "tool_timeout_sec": _CALL_SECONDS,
        }
    # Commands that Codex runs do not get the token. The user's other settings for variables stay unchanged.
    return {"mcp_servers": servers, f"shell_environment_policy.set.{TOKEN_VARIABLE}": ""}


def _limits(request: LaunchRequest, settings: list[dict[str, Any]]) -> dict[str, Any]:
    limits: dict[str, Any] = {"approval_policy": "never"}
    if request.own_tools is OwnTools.ALL:
        return {**limits, "sandbox_mode": "danger-full-access"}
    limits |= _sandbox(request)
    off = [*_OFF]
    if request.own_tools is OwnTools.NONE:
        off += _OFF_WITHOUT_TOOLS
    elif not request.own_shell:
        off += _OFF_WITHOUT_SHELL
    off += [_OLD_SANDBOX] if any(_OLD_SANDBOX in _table(layer, "features") for layer in settings) else []
    limits |= {"web_search": "disabled", "agents.enabled": False, "notify": []}
    return {**limits, **{f"features.{feature}": False for feature in off}}


def _sandbox(request: LaunchRequest) -> dict[str, Any]:
    """A profile in arguments overrides every mode and profile in the user's file."""
    files: dict[str, Any] = {":root": "read"}
    private = {path for folder in request.private for path in (folder, folder.resolve())}
    # Codex cannot create its sandbox if one of them contains another.
    files |= {str(path): "none" for path in sorted(private) if private.isdisjoint(path.parents)}
    if request.own_tools is OwnTools.EDIT:
        # Not writable: Toolcrib's folder, which has the workspace's settings, files that configure other programs, and
        # HEAD, which could turn the folder into a git repository. Codex itself protects git's folder and its own.
        kept = (PROJECT_FOLDER, "HEAD", *(name for name in request.guarded if "*" not in name))
        files[":workspace_roots"] = {".": "write", **dict.fromkeys(kept, "read")}
    profile = {"filesystem": files, "network": {"enabled": False}}
    return {"default_permissions": _PROFILE, "permissions": {_PROFILE: profile}}


def _trust(request: LaunchRequest, settings: list[dict[str, Any]]) -> dict[str, Any]:
    """Whether Codex uses settings, servers and hooks from the project.

    By default, Codex trusts a folder that it may write to, and notes that in the user's file.
    """
    workdir = request.workdir.resolve()
    folders = [str(folder) for folder in (workdir, *workdir.parents)]
    if request.own_tools is not OwnTools.ALL:
        return {"projects": {folder: {"trust_level": "untrusted"} for folder in folders}}
    known = {folder for layer in settings for folder in _table(layer, "projects")}
    return {} if known.intersection(folders) else {"projects": {folders[0]: {"trust_level": "trusted"}}}


def _instructions(request: LaunchRequest, settings: list[dict[str, Any]]) -> str:
    """The instructions that Codex would read in a trusted project. A continued session already has them."""
    if request.session or request.own_tools is OwnTools.ALL:
        return ""
    return before_prompt(request.workdir, settings)


def _table(settings: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = settings.get(name)
    return found if isinstance(found, dict) else {}


def _governed(own: OwnTools, *, shell: bool) -> tuple[str, ...]:
    if own is OwnTools.ALL:
        return ()
    nothing = "Codex has no shell, and its patches are refused."
    writers = "Codex's commands and patches" if shell else "Codex has no shell; its patches"
    files = {
        OwnTools.NONE: nothing,
        OwnTools.READ: "Codex's commands run in its sandbox: they can read, but cannot write or use the network."
        if shell
        else nothing,
        OwnTools.EDIT: f"{writers} can write only in the folder, except in .git, .codex, .agents and {PROJECT_FOLDER} "
        "and to top-level files that configure other programs. They have no network access.",
    }
    return (
        files[own],
        "Web search, sub-agents, plugins, apps, hooks, command rules and other MCP servers are off.",
        "The project's Codex settings are ignored; its AGENTS.md is read.",
    )


def _ungoverned(request: LaunchRequest) -> tuple[str, ...]:
    if request.own_tools is OwnTools.ALL:
        return ("Codex's built-in tools: commands, files, network; your other MCP servers, the project's hooks.",)
    lines = []
    if request.own_tools is not OwnTools.NONE and request.own_shell:
        lines.append(
            "Codex's commands can read all files that you can read, even outside the folder, except Toolcrib's folders."
        )
    if request.own_tools is OwnTools.EDIT:
        lines.append(f"If the folder has a hard link to a file in {PROJECT_FOLDER}, Codex can change that file.")
    if request.extra:
        lines.append("Your own arguments for Codex may permit more.")
    if MANAGED_FILE.exists():
        lines.append(f"{MANAGED_FILE} overrides all this.")
    return tuple(lines)
