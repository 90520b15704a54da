"""How Codex is started for a run.

In: a `LaunchRequest`. Out: a `Launch`. Codex keeps the person's home, login, model and settings; what differs in a run
is said by words (`-c key=value`), which stand above the person's file and a project's. The token goes by a variable,
for Codex has no other place of ours to read from. `instructions` has what the project tells it; `codex` parses what it
prints.
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
"""Our name where the person has an entry of ours already: Codex would make one entry of the two."""
SYSTEM_FILE = Path("/etc/codex/config.toml")
MANAGED_FILE = Path("/etc/codex/managed_config.toml")
"""Stands above the words of a command line."""

_STARTUP_SECONDS = 20
_CALL_SECONDS = 3600
"""Toolcrib has limits of its own, and a call that waits for a person's word may take long."""

_PROFILE = "toolcrib_run"

_OFF = (
    *("apps", "plugins", "remote_plugin", "hooks", "tool_suggest", "skill_mcp_dependency_install"),
    *("multi_agent", "multi_agent_v2", "memories", "image_generation"),
    *("browser_use", "browser_use_external", "computer_use", "in_app_browser"),
    *("request_permissions_tool", "exec_permission_approvals", "network_proxy"),
)
"""Features below `all`: what acts past the sandbox, what widens it, what brings tools of others."""
_OFF_WITHOUT_SHELL = ("shell_tool", "unified_exec")
_OFF_WITHOUT_TOOLS = (*_OFF_WITHOUT_SHELL, "view_image", "goals")
_OLD_SANDBOX = "use_legacy_landlock"
"""Confines less. Codex warns of it whenever it is named, be it off: so only where the person's file names it."""


def launch(request: LaunchRequest) -> Launch:
    """Raises ConfigError where the person's settings cannot be read."""
    settings = _settings(request.environ)
    said = {**_server(request, settings), **_limits(request, settings), **_trust(request, settings)}
    rules = () if request.own_tools is OwnTools.ALL else ("--ignore-rules",)
    words = [word for key, value in said.items() for word in ("-c", f"{key}={as_toml(value)}")]
    resume = ("resume",) if request.session else ()
    # The prompt is read from standard input where a dash stands for it.
    last = (request.session, "-") if request.session else ("-",)
    return Launch(
        words=("exec", *resume, "--json", "--skip-git-repo-check", *rules, *words, *request.extra, "--", *last),
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
    """What Codex itself will read, whatever the folder: the machine's file and the person's."""
    home = Path(environ.get("CODEX_HOME") or Path(environ.get("HOME") or Path.home()) / ".codex")
    return [_read(SYSTEM_FILE), _read(home / "config.toml")]


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        # Without it nobody knows which other servers Codex would start.
        raise ConfigError(
            f"{file} cannot be read: {error}.", remedy="Put the file right; Codex reads it, too."
        ) from error


def _server(request: LaunchRequest, settings: list[dict[str, Any]]) -> dict[str, Any]:
    """Our entry, and the person's own switched off: all below `all`, else the one of ours that the person has."""
    theirs = {name for one in settings for name in _table(one, "mcp_servers")}
    unwanted = theirs if request.own_tools is not OwnTools.ALL else theirs & {SERVER_NAME}
    servers: dict[str, Any] = {name: {"enabled": False} for name in sorted(unwanted)}
    if request.url:
        servers[OTHER_NAME if SERVER_NAME in theirs else SERVER_NAME] = {
            "url": request.url,
            "bearer_token_env_var": TOKEN_VARIABLE,
            "http_headers": dict(request.headers),
            "default_tools_approval_mode": "approve",
            "required": True,
            "startup_timeout_sec": _STARTUP_SECONDS,
            "tool_timeout_sec": _CALL_SECONDS,
        }
    # The commands that Codex runs do not get the token; this leaves the person's own policy for variables as it is.
    return {"mcp_servers": servers, f"shell_environment_policy.set.{TOKEN_VARIABLE}": ""}


def _limits(request: LaunchRequest, settings: list[dict[str, Any]]) -> dict[str, Any]:
    said: dict[str, Any] = {"approval_policy": "never"}
    if request.own_tools is OwnTools.ALL:
        return {**said, "sandbox_mode": "danger-full-access"}
    said |= _sandbox(request)
    off = [*_OFF]
    if request.own_tools is OwnTools.NONE:
        off += _OFF_WITHOUT_TOOLS
    elif not request.own_shell:
        off += _OFF_WITHOUT_SHELL
    off += [_OLD_SANDBOX] if any(_OLD_SANDBOX in _table(one, "features") for one in settings) else []
    said |= {"web_search": "disabled", "agents.enabled": False, "notify": []}
    return {**said, **{f"features.{feature}": False for feature in off}}


def _sandbox(request: LaunchRequest) -> dict[str, Any]:
    """Said by words, a profile stands above every mode and profile of the person's file."""
    files: dict[str, Any] = {":root": "read"}
    private = {path for folder in request.private for path in (folder, folder.resolve())}
    # Codex cannot make its sandbox where one of them lies in another.
    files |= {str(path): "none" for path in sorted(private) if private.isdisjoint(path.parents)}
    if request.own_tools is OwnTools.EDIT:
        # Without our folder, where it is settled what the workspace may do, and what other programs obey at the top;
        # HEAD would make a repository of it. Git's and its own Codex leaves out.
        kept = (PROJECT_FOLDER, "HEAD", *(name for name in request.guarded if "*" not in name))
        files[":workspace_roots"] = {".": "write", **dict.fromkeys(kept, "read")}
    profile = {"filesystem": files, "network": {"enabled": False}}
    return {"default_permissions": _PROFILE, "permissions": {_PROFILE: profile}}


def _trust(request: LaunchRequest, settings: list[dict[str, Any]]) -> dict[str, Any]:
    """Whether Codex takes settings, servers and hooks from the project.

    Where nobody has said so, Codex trusts a folder that it may write in, and notes that in the person's file.
    """
    workdir = request.workdir.resolve()
    folders = [str(folder) for folder in (workdir, *workdir.parents)]
    if request.own_tools is not OwnTools.ALL:
        return {"projects": {folder: {"trust_level": "untrusted"} for folder in folders}}
    known = {folder for one in settings for folder in _table(one, "projects")}
    return {} if known.intersection(folders) else {"projects": {folders[0]: {"trust_level": "trusted"}}}


def _instructions(request: LaunchRequest, settings: list[dict[str, Any]]) -> str:
    """What Codex would read of a project that it trusts. A session that goes on has it already."""
    if request.session or request.own_tools is OwnTools.ALL:
        return ""
    return before_prompt(request.workdir, settings)


def _table(settings: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = settings.get(name)
    return found if isinstance(found, dict) else {}


def _governed(own: OwnTools, *, shell: bool) -> tuple[str, ...]:
    if own is OwnTools.ALL:
        return ()
    nothing = "Codex has no shell, and its own patches are refused."
    writers = "Codex's commands and patches" if shell else "Codex has no shell; its patches"
    files = {
        OwnTools.NONE: nothing,
        OwnTools.READ: "Codex's commands run in its sandbox: they read, but cannot write or reach the network."
        if shell
        else nothing,
        OwnTools.EDIT: f"{writers} write in the folder alone, not in its .git, .codex, .agents and {PROJECT_FOLDER}, "
        "nor what other programs obey at its top; no network.",
    }
    return (
        files[own],
        "Web search, sub-agents, plugins, apps, hooks, command rules and other MCP servers are off.",
        "The project's own Codex settings do not count; its AGENTS.md is read.",
    )


def _ungoverned(request: LaunchRequest) -> tuple[str, ...]:
    if request.own_tools is OwnTools.ALL:
        return (
            "Whatever Codex does by itself: commands, files, network, your other MCP servers, the project's hooks.",
        )
    lines = []
    if request.own_tools is not OwnTools.NONE and request.own_shell:
        lines.append(
            "Codex's commands read whatever you may read, outside the folder, too; but not Toolcrib's own folders."
        )
    if request.own_tools is OwnTools.EDIT:
        lines.append(f"Where the folder has a hard link to a file in {PROJECT_FOLDER}, they change that file.")
    if request.extra:
        lines.append("What your own words for Codex permit.")
    if MANAGED_FILE.exists():
        lines.append(f"What {MANAGED_FILE} says: it stands above all this.")
    return tuple(lines)
