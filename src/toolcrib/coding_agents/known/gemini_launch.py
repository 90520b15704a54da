"""Launches Gemini CLI for a run.

In: a `LaunchRequest`. Out: a `Launch`. Gemini CLI reads servers only from its settings file, and it ignores a
system-wide file unless root owns it. So each run has its own home, the private folder: a settings file with the user's
settings and Toolcrib's, links to the user's login, key and sessions, and at level `all` links to the user's other
files. Variables from the user's `.env` file are kept. Those of a project's are emptied, because they may redirect the
user's key to another address. `gemini_policy` has the rules.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from toolcrib.coding_agents.client_spec import SERVER_NAME, Launch, LaunchRequest, without_command
from toolcrib.coding_agents.known.gemini_policy import EDITS, KEPT_FROM_IT, LinkAliases, aliases, policy
from toolcrib.coding_agents.known.instructions import inside
from toolcrib.coding_agents.own_equivalents import without_comments
from toolcrib.config.paths import PROJECT_FOLDER, RUNS, project_of
from toolcrib.errors import ConfigError, UsageError
from toolcrib.policy.profile import OwnTools

_BLANKS = "\t\n\v\f\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
"""Whitespace in JavaScript, the language of Gemini CLI; Python's differs."""
_BLANK = f"[{_BLANKS}]"
_BEGIN, _END = "(?<![^\n\u2028\u2029])", "(?![^\n\u2028\u2029])"
_VARIABLE = re.compile(
    rf"{_BEGIN}{_BLANK}*(?:export{_BLANK}+)?([\w.-]+)(?:{_BLANK}*={_BLANK}*?|:{_BLANK}+?)"
    rf"""({_BLANK}*'(?:\\'|[^'])*'|{_BLANK}*"(?:\\"|[^"])*"|{_BLANK}*`(?:\\`|[^`])*`|[^#\r\n]+)?"""
    rf"{_BLANK}*(?:#[^\n\r\u2028\u2029]*)?{_END}",
    re.ASCII,
)
_AROUND = re.compile(rf"^{_BLANK}+|{_BLANK}+\Z")
_QUOTED = re.compile(rf"{_BEGIN}(['\"`])(.*)\1{_END}", re.DOTALL)
_NAMED = re.compile(r"(?<![\w.-])[\w.-]++(?=[^\w.=:-]*+[=:])", re.ASCII)
"""Everything that may be a variable's name, and more: any kind of whitespace may separate it from its sign."""
_MAX_FILE_SIZE = 1024 * 1024
_MAX_NAMES_LENGTH = 64 * 1024
"""Characters; a program with many more in its environment cannot be started."""


def env_file_variables(request: LaunchRequest, home: Path) -> dict[str, str]:
    """Raises ConfigError if a file is too large."""
    given = _variables(_text(home / ".gemini" / ".env") or _text(home / ".env"))
    named = {name for file in _of_projects(request.workdir.resolve(), home) for name in _named(file)}
    if sum(map(len, named)) > _MAX_NAMES_LENGTH:
        raise ConfigError(
            f"The .env files in and above {request.workdir} name too many variables.",
            remedy="Gemini CLI would set them all: move the files away.",
        )
    return {name: value for name, value in {**dict.fromkeys(named, ""), **given}.items() if name not in request.environ}


def _of_projects(workdir: Path, home: Path) -> Iterator[Path]:
    for folder in (workdir, *workdir.parents):
        if folder != home:
            yield folder / ".gemini" / ".env"
            yield folder / ".env"


def _named(file: Path) -> list[str]:
    return _NAMED.findall(_text(file))


def _text(file: Path) -> str:
    """Empty if it cannot be read: Gemini CLI ignores it then, too."""
    try:
        if not file.is_file():
            return ""
        if file.stat().st_size > _MAX_FILE_SIZE:
            raise ConfigError(f"{file} is too large.", remedy="Gemini CLI would read it: move it away.")
        # `read_text` would convert line endings.
        return file.read_bytes().decode(errors="replace")
    except OSError:
        return ""


def _variables(text: str) -> dict[str, str]:
    """The variables in a `.env` file, parsed as Gemini CLI does."""
    found = {}
    for name, written in _VARIABLE.findall(re.sub("\r\n?", "\n", text)):
        value = _AROUND.sub("", written)
        bare = _QUOTED.sub(r"\2", value)
        found[name] = bare.replace("\\n", "\n").replace("\\r", "\r") if value.startswith('"') else bare
    return found


_HOME = "GEMINI_CLI_HOME"
_TRUST = "GEMINI_CLI_TRUST_WORKSPACE"
_SETTINGS = "settings.json"
_IGNORED = "ignored"
_POLICY = "own-tools.toml"
_CALL_LIMIT_MS = 3_600_000
"""Toolcrib has its own limits, and a call that waits for approval may take long."""

_SESSIONS = ("tmp", "history")
_LINKED = (
    *("oauth_creds.json", "gemini-credentials.json", "google_accounts.json", "installation_id"),
    *("GEMINI.md", "policies"),
)
"""Files in the user's `.gemini` that are linked at every level: login, instructions, restrictions."""
_NEVER_LINKED = (_SETTINGS, "projects.json", ".gemini", "token", "token.new", "store")
"""The first is generated, Gemini CLI would replace a link to the second, and the rest belong to the private folder."""

_COMMANDS = ("discoveryCommand", "callCommand", "allowed")
_MCP = ("list_mcp_resources", "read_mcp_resource")
_READS = ("glob", "grep_search", "list_directory", "read_file", "write_todos")
_OWN = {OwnTools.NONE: _MCP, OwnTools.READ: (*_MCP, *_READS), OwnTools.EDIT: (*_MCP, *_READS, *EDITS)}
"""Its built-in tools below `all`; the first two query Toolcrib."""
_GOVERNED = {
    OwnTools.NONE: "Its own tools: none. It has only Toolcrib's.",
    OwnTools.READ: "Its own tools can read files in the folder. They cannot write files, run commands or fetch URLs.",
    OwnTools.EDIT: "Its own tools can read and change files in the folder. They cannot change .git, .gemini, "
    f"{PROJECT_FOLDER} or files that configure other programs, run commands or fetch URLs.",
}
_REFUSES = (
    "In unattended runs it refuses to change build files (package.json, pyproject.toml, Makefile and the like), even "
    "with Toolcrib's tools that have names such as write, edit or create."
)
_EMPTIED = ("GEMINI_WRITE_SYSTEM_MD", "GEMINI_CLI_IDE_WORKSPACE_PATH")
"""Variables that would make it write a file in the project, or use more than one folder."""
_READ_FIRST = (".gemini/.env", ".gemini/settings.json", ".geminiignore", ".gitignore", ".git/info/exclude")
_MODE = {OwnTools.EDIT: "auto_edit", OwnTools.ALL: "yolo"}

_IMPORT = re.compile(r"(?:^|(?<=[ \t\n\r]))@([./A-Za-z][^ \t\n\r]*)")
_MENTION = re.compile(r"(?<!\\)@")
_MENTIONS = "\n\n(In this message, \\@ stands for an at sign.)"


def launch(request: LaunchRequest) -> Launch:
    """Raises ConfigError if the user's settings cannot be read, UsageError if the project prevents a safe run."""
    free = request.own_tools is OwnTools.ALL
    users = _home(request.environ) / ".gemini"
    settings = _settings(request, _read(users / _SETTINGS))
    files = {_SETTINGS: json.dumps(settings, indent=2)}
    links = aliases(request.workdir) if request.own_tools is OwnTools.EDIT else LinkAliases()
    args = [
        "--output-format",
        "stream-json",
        "--skip-trust",
        "--approval-mode",
        _MODE.get(request.own_tools, "default"),
    ]
    if not free:
        _refuse_pipes(request, settings)
        _refuse_reads(request, settings)
        files[_IGNORED] = f"/{PROJECT_FOLDER}/{RUNS}/\n"
        files[_POLICY] = policy(
            _OWN[request.own_tools], links.names, [name for name in request.guarded if "*" not in name]
        )
        args += ["--admin-policy", str(request.folder / _POLICY)]
    args += ["--resume", request.session] if request.session else ["--session-id", request.new_session]
    governed, ungoverned = _governance(request, links)
    return Launch(
        args=(*args, *request.extra),
        environ=_environ(request),
        files=files,
        links={".gemini": request.folder, **_links(users, everything=free)},
        stdin=_stdin(request),
        governed=governed,
        ungoverned=ungoverned,
    )


def _home(environ: Mapping[str, str]) -> Path:
    return Path(environ.get(_HOME) or environ.get("HOME") or Path.home())


def _links(users: Path, *, everything: bool) -> dict[str, Path]:
    existing = [entry.name for entry in users.iterdir() if entry.exists()] if users.is_dir() else []
    linked = [name for name in existing if (name not in _NEVER_LINKED if everything else name in _LINKED)]
    return {name: users / name for name in (*_SESSIONS, *linked)}


def _names(settings: Mapping[str, Any]) -> list[str]:
    """The names of instruction files."""
    names = _part(settings, "context").get("fileName")
    named = [name for name in (names if isinstance(names, list) else [names]) if isinstance(name, str) and name]
    # The user's names are added to its default.
    return [*named, "GEMINI.md"]


def _stdin(request: LaunchRequest) -> str:
    """The prompt as plain text. Gemini CLI would read files named with @, even without a tool for it, and run a leading
    slash command, even a project's. It has an escape for @, but doesn't unescape it."""
    prompt = request.prompt if request.own_tools is OwnTools.ALL else without_command(request.prompt)
    written = _MENTION.sub(r"\\@", prompt)
    return prompt if written == prompt else written + _MENTIONS


def _settings(request: LaunchRequest, users: dict[str, Any]) -> dict[str, Any]:
    """The user's settings for this run, with Toolcrib's entry."""
    ours = {SERVER_NAME: _entry(request)} if request.url else {}
    # Another headless mode, with different output and prompts.
    merged = _with(users, "experimental", adk={"agentSessionNoninteractiveEnabled": False})
    if request.own_tools is not OwnTools.ALL:
        return {**_confined(merged, request), "mcpServers": ours, "mcp": {"allowed": [SERVER_NAME]}}
    mcp = _part(merged, "mcp")
    if isinstance(mcp.get("allowed"), list):
        mcp["allowed"] = [*mcp["allowed"], SERVER_NAME]
    others = {name: entry for name, entry in _part(merged, "mcpServers").items() if name != SERVER_NAME}
    return {**merged, "mcpServers": {**others, **ours}, "mcp": mcp}


def _confined(settings: dict[str, Any], request: LaunchRequest) -> dict[str, Any]:
    """Removes everything that runs commands or reaches outside the folder, and sets the tools of the level."""
    confined = {**settings, "hooks": {}, "hooksConfig": {"enabled": False}}
    confined = {**confined, "skills": {"enabled": False}, "ide": {"enabled": False}}
    confined = _with(confined, "experimental", enableAgents=False, autoMemory=False)
    # It would call a tool that does not exist here.
    confined = _with(confined, "general", topicUpdateNarration=False)
    confined = _with(confined, "security", folderTrust={"enabled": True})
    confined = _with(confined, "advanced", ignoreLocalEnv=True)
    confined = _with(
        confined, "context", includeDirectories=[], fileFiltering=_ignoring(request, _part(confined, "context"))
    )
    if request.own_tools is OwnTools.NONE:
        confined = _with(confined, "context", includeDirectoryTree=False)
    tools = {key: value for key, value in _part(confined, "tools").items() if key not in _COMMANDS}
    return {**confined, "tools": {**tools, "core": list(_OWN[request.own_tools]), "sandbox": False}}


def _ignoring(request: LaunchRequest, context: Mapping[str, Any]) -> dict[str, Any]:
    """The files that its tools do not read, including the run logs, which hold the prompts of other profiles."""
    filtering = _part(context, "fileFiltering")
    users = filtering.get("customIgnoreFilePaths")
    # It resolves even absolute paths relative to its working folder.
    ours = os.path.relpath((request.folder / _IGNORED).resolve(), request.workdir.resolve())
    paths = [*(users if isinstance(users, list) else []), ours]
    return {**filtering, "respectGeminiIgnore": True, "customIgnoreFilePaths": paths}


def _entry(request: LaunchRequest) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {request.token}", **request.headers}
    return {"httpUrl": request.url, "headers": headers, "trust": True, "timeout": _CALL_LIMIT_MS}


def _part(settings: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = settings.get(name)
    return dict(found) if isinstance(found, dict) else {}


def _with(settings: Mapping[str, Any], name: str, **values: Any) -> dict[str, Any]:
    return {**settings, name: {**_part(settings, name), **values}}


def _read(file: Path) -> dict[str, Any]:
    """Reads a settings file: JSON that may contain comments."""
    try:
        if not file.is_file():
            return {}
        found = json.loads(without_comments(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"{file} cannot be read: {error}.", remedy="Gemini CLI cannot use it either: fix it."
        ) from error
    return found if isinstance(found, dict) else {}


def _refuse_pipes(request: LaunchRequest, settings: Mapping[str, Any]) -> None:
    """Gemini CLI reads these files first, and would wait forever on a pipe."""
    workdir, home = request.workdir.resolve(), _home(request.environ).resolve()
    for folder in (workdir, *workdir.parents):
        # A pipe in the home folder belongs to the user and may have a writer.
        for name in (*_READ_FIRST, *_names(settings)) if folder != home else ():
            if _is_no_file(folder / name):
                raise UsageError(
                    f"{folder / name} is not a regular file: Gemini CLI would wait for it forever.",
                    remedy="Move it away.",
                )


def _refuse_reads(request: LaunchRequest, settings: Mapping[str, Any]) -> None:
    """Gemini CLI reads the project's instruction files itself, follows links, and reads the files that they import."""
    root, workdir = project_of(request.workdir), request.workdir.resolve()
    files = (folder / name for folder in (workdir, *workdir.parents) for name in _names(settings))
    for file in (file for file in files if file.is_relative_to(root) and os.path.isfile(file)):  # noqa: PTH113
        real = inside(file, root)
        if real is None:
            raise UsageError(
                f"{file} is a link out of the project or to another type of file, and Gemini CLI would follow it.",
                remedy="Replace the link with a copy of the file.",
            )
        for path in _imports(real, file.parent) if request.own_tools is OwnTools.NONE else ():
            raise UsageError(
                f"{file} imports {path}. Gemini CLI would read it, but this run must not read files.",
                remedy="Remove the @ before it, or use a profile that allows reading (and hide nothing in "
                "workspace.yml).",
            )


def _imports(file: Path, folder: Path) -> Iterator[str]:
    """The existing files that it names with @."""
    named = _IMPORT.findall(file.read_text(encoding="utf-8", errors="replace"))
    return (path for path in named if os.path.exists(folder / path))  # noqa: PTH110 - it accepts any name.


def _is_no_file(path: Path) -> bool:
    """Whether it is a pipe, a socket or a device. A folder does no harm."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def _environ(request: LaunchRequest) -> dict[str, str]:
    # One process instead of two, so that signals reach it.
    ours = {_HOME: str(request.folder), "GEMINI_CLI_NO_RELAUNCH": "true"}
    if request.own_tools is OwnTools.ALL:
        return {**ours, _TRUST: "false"} if _names_us(request.workdir) else ours
    # It reads its settings before `--skip-trust`, so it reads them as in an untrusted folder, without the project's.
    # Yet it connects to the server, which it would not do in an untrusted folder.
    off = {_TRUST: "false", "GEMINI_SANDBOX": "false", **dict.fromkeys(_EMPTIED, "")}
    return {**env_file_variables(request, _home(request.environ).resolve()), **off, **ours}


def _names_us(workdir: Path) -> bool:
    """Whether the project has an entry with Toolcrib's name, which would replace Toolcrib's."""
    try:
        return SERVER_NAME in _part(_read(workdir / ".gemini" / _SETTINGS), "mcpServers")
    except ConfigError:
        return False


def _governance(request: LaunchRequest, links: LinkAliases) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What is governed and what is not, as text for the user."""
    refuses = () if request.own_tools is OwnTools.READ else (_REFUSES,)
    if request.own_tools is OwnTools.ALL:
        named = ("The project's Gemini settings are ignored, because they contain an entry named toolcrib.",)
        free = (
            "Its own tools: all of them, without asking.",
            "Your other MCP servers, hooks, extensions, skills and sub-agents.",
            "The project's .env files, which may redirect your key to another address; and if you trust the folder in "
            "Gemini CLI, everything in the project's .gemini folder.",
        )
        return (*(named if _names_us(request.workdir) else ()), *refuses), free
    governed = (
        _GOVERNED[request.own_tools],
        "Off: its other MCP servers, hooks, extensions, skills and sub-agents, yours and the project's.",
        "The project's Gemini settings and .env files are ignored.",
        "It does not read files named with @ in the prompt, and a prompt with a leading slash runs no command.",
        *refuses,
    )
    linked = _of_links(links) if request.own_tools is OwnTools.EDIT else ()
    looks = (
        "It reads the project's files that GEMINI.md imports.",
        "Its glob tool also shows names of files outside the folder.",
    )
    args = ("Your own arguments for Gemini CLI may permit more.",) if request.extra else ()
    return governed, (*(looks if request.own_tools is not OwnTools.NONE else ()), *linked, *args)


def _of_links(links: LinkAliases) -> tuple[str, ...]:
    folders = " or ".join(KEPT_FROM_IT)
    made = f"If a link into {folders} is created during the run or elsewhere, Gemini CLI can change files there."
    many = (
        f"The folder has too many files to check for links. If one leads into {folders}, Gemini CLI can change files "
        "there."
    )
    return (made,) if links.are_all else (many, made)
