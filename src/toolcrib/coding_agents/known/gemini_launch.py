"""How Gemini CLI is started for a run.

In: a `LaunchRequest`. Out: a `Launch`. Gemini CLI takes servers from its settings file alone, and a system-wide file
of ours would count only if root owned it. So it gets a home of its own for the run, the private folder: a settings
file made of the person's and ours, links to the person's login, key and sessions, and at the level `all` to the rest
of theirs. Variables of the person's `.env` file stay; those of a project's are emptied, since they may name another
address for the person's key. `gemini_policy` has the rules.
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
from toolcrib.config.paths import PROJECT_FOLDER, RUNS, project_of
from toolcrib.errors import ConfigError, UsageError
from toolcrib.policy.profile import OwnTools

_BLANKS = "\t\n\v\f\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
"""What JavaScript takes for blank, in which Gemini CLI is written; Python has other ones."""
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
"""Whatever may be a variable's name, and more: between it and its sign may stand what anybody takes for blank."""
_LARGEST = 1024 * 1024
_MOST = 64 * 1024
"""Characters of names; a program with many more in its environment could not be started."""


def env_file_variables(request: LaunchRequest, home: Path) -> dict[str, str]:
    """Raises ConfigError where a file is too large to be looked through."""
    said = _variables(_text(home / ".gemini" / ".env") or _text(home / ".env"))
    named = {name for file in _of_projects(request.workdir.resolve(), home) for name in _named(file)}
    if sum(map(len, named)) > _MOST:
        raise ConfigError(
            f"The .env files in and above {request.workdir} name too many variables.",
            remedy="Gemini CLI would take them all: move the files out of the way.",
        )
    return {name: value for name, value in {**dict.fromkeys(named, ""), **said}.items() if name not in request.environ}


def _of_projects(workdir: Path, home: Path) -> Iterator[Path]:
    for folder in (workdir, *workdir.parents):
        if folder != home:
            yield folder / ".gemini" / ".env"
            yield folder / ".env"


def _named(file: Path) -> list[str]:
    return _NAMED.findall(_text(file))


def _text(file: Path) -> str:
    """Empty where it cannot be read: Gemini CLI cannot either, and goes on."""
    try:
        if not file.is_file():
            return ""
        if file.stat().st_size > _LARGEST:
            raise ConfigError(f"{file} is too large.", remedy="Gemini CLI would read it: move it out of the way.")
        # Unlike `read_text`, which takes some ends of lines for others.
        return file.read_bytes().decode(errors="replace")
    except OSError:
        return ""


def _variables(text: str) -> dict[str, str]:
    """What a `.env` file says, as Gemini CLI understands it."""
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
"""Toolcrib has limits of its own, and a call that waits for a person's word may take long."""

_SESSIONS = ("tmp", "history")
_PERSONS = (
    *("oauth_creds.json", "gemini-credentials.json", "google_accounts.json", "installation_id"),
    *("GEMINI.md", "policies"),
)
"""Of the person's `.gemini`, at every level: who they are, what they tell it, what they forbid it."""
_NEVER = (_SETTINGS, "projects.json", ".gemini", "token", "token.new", "store")
"""The first is made anew, the second would be replaced and not written through a link, the rest is the folder's own."""

_COMMANDS = ("discoveryCommand", "callCommand", "allowed")
_MCP = ("list_mcp_resources", "read_mcp_resource")
_READS = ("glob", "grep_search", "list_directory", "read_file", "write_todos")
_OWN = {OwnTools.NONE: _MCP, OwnTools.READ: (*_MCP, *_READS), OwnTools.EDIT: (*_MCP, *_READS, *EDITS)}
"""The tools that it is given below `all`; the first two ask Toolcrib."""
_GOVERNED = {
    OwnTools.NONE: "Its own tools: none. It has Toolcrib's alone.",
    OwnTools.READ: "Its own tools: those that look at files in the folder. None that writes, runs or fetches.",
    OwnTools.EDIT: "Its own tools: those that look at and change files in the folder, but not in .git, .gemini or "
    f"{PROJECT_FOLDER}, nor what other programs obey. None that runs or fetches.",
}
_REFUSES = (
    "It refuses to change build files (package.json, pyproject.toml, Makefile and the like) in runs that nobody "
    "watches, also by tools of Toolcrib's that are named write, edit, create and the like."
)
_EMPTIED = ("GEMINI_WRITE_SYSTEM_MD", "GEMINI_CLI_IDE_WORKSPACE_PATH")
"""Variables that would make it write a file in the project, or give it more folders than one."""
_READ_FIRST = (".gemini/.env", ".gemini/settings.json", ".geminiignore", ".gitignore", ".git/info/exclude")
_MODE = {OwnTools.EDIT: "auto_edit", OwnTools.ALL: "yolo"}

_IMPORT = re.compile(r"(?:^|(?<=[ \t\n\r]))@([./A-Za-z][^ \t\n\r]*)")
_MENTION = re.compile(r"(?<!\\)@")
_MENTIONS = "\n\n(In this message, \\@ stands for an at sign.)"
_COMMENT = re.compile(r'("(?:\\.|[^"\\])*")|//[^\r\n]*|/\*.*?(?:\*/|\Z)', re.DOTALL)


def launch(request: LaunchRequest) -> Launch:
    """Raises ConfigError where the person's settings cannot be read, UsageError where the project is in the way."""
    free = request.own_tools is OwnTools.ALL
    theirs = _home(request.environ) / ".gemini"
    settings = _settings(request, _read(theirs / _SETTINGS))
    files = {_SETTINGS: json.dumps(settings, indent=2)}
    links = aliases(request.workdir) if request.own_tools is OwnTools.EDIT else LinkAliases()
    words = [
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
        words += ["--admin-policy", str(request.folder / _POLICY)]
    words += ["--resume", request.session] if request.session else ["--session-id", request.new_session]
    governed, ungoverned = _governance(request, links)
    return Launch(
        words=(*words, *request.extra),
        environ=_environ(request),
        files=files,
        links={".gemini": request.folder, **_links(theirs, everything=free)},
        stdin=_stdin(request),
        governed=governed,
        ungoverned=ungoverned,
    )


def _home(environ: Mapping[str, str]) -> Path:
    return Path(environ.get(_HOME) or environ.get("HOME") or Path.home())


def _links(theirs: Path, *, everything: bool) -> dict[str, Path]:
    there = [entry.name for entry in theirs.iterdir() if entry.exists()] if theirs.is_dir() else []
    linked = [name for name in there if (name not in _NEVER if everything else name in _PERSONS)]
    return {name: theirs / name for name in (*_SESSIONS, *linked)}


def _names(settings: Mapping[str, Any]) -> list[str]:
    """Of the files in which somebody tells it something."""
    names = _part(settings, "context").get("fileName")
    named = [name for name in (names if isinstance(names, list) else [names]) if isinstance(name, str) and name]
    # A person's own names come on top of its own.
    return [*named, "GEMINI.md"]


def _stdin(request: LaunchRequest) -> str:
    """The prompt as text: Gemini CLI would read files that are named with @, whatever its tools may, and take a first
    word with a slash for a command, a project's included. It has a way to write such an @, but leaves it so."""
    prompt = request.prompt if request.own_tools is OwnTools.ALL else without_command(request.prompt)
    written = _MENTION.sub(r"\\@", prompt)
    return prompt if written == prompt else written + _MENTIONS


def _settings(request: LaunchRequest, theirs: dict[str, Any]) -> dict[str, Any]:
    """The person's settings for this run, with our entry."""
    ours = {SERVER_NAME: _entry(request)} if request.url else {}
    # Another way to run without a person, which prints and asks otherwise.
    merged = _with(theirs, "experimental", adk={"agentSessionNoninteractiveEnabled": False})
    if request.own_tools is not OwnTools.ALL:
        return {**_confined(merged, request), "mcpServers": ours, "mcp": {"allowed": [SERVER_NAME]}}
    mcp = _part(merged, "mcp")
    if isinstance(mcp.get("allowed"), list):
        mcp["allowed"] = [*mcp["allowed"], SERVER_NAME]
    others = {name: entry for name, entry in _part(merged, "mcpServers").items() if name != SERVER_NAME}
    return {**merged, "mcpServers": {**others, **ours}, "mcp": mcp}


def _confined(settings: dict[str, Any], request: LaunchRequest) -> dict[str, Any]:
    """Without what runs commands by itself or reaches further than the folder, and with the tools of the level."""
    confined = {**settings, "hooks": {}, "hooksConfig": {"enabled": False}}
    confined = {**confined, "skills": {"enabled": False}, "ide": {"enabled": False}}
    confined = _with(confined, "experimental", enableAgents=False, autoMemory=False)
    # Asked to say what it is about, it would call a tool that is not there.
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
    """What its tools do not read: also the logs of runs, which hold what other profiles were asked."""
    filtering = _part(context, "fileFiltering")
    theirs = filtering.get("customIgnoreFilePaths")
    # It takes them from the folder that it works in, absolute ones too.
    ours = os.path.relpath((request.folder / _IGNORED).resolve(), request.workdir.resolve())
    paths = [*(theirs if isinstance(theirs, list) else []), ours]
    return {**filtering, "respectGeminiIgnore": True, "customIgnoreFilePaths": paths}


def _entry(request: LaunchRequest) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {request.token}", **request.headers}
    return {"httpUrl": request.url, "headers": headers, "trust": True, "timeout": _CALL_LIMIT_MS}


def _part(settings: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = settings.get(name)
    return dict(found) if isinstance(found, dict) else {}


def _with(settings: Mapping[str, Any], name: str, **said: Any) -> dict[str, Any]:
    return {**settings, name: {**_part(settings, name), **said}}


def _read(file: Path) -> dict[str, Any]:
    """A settings file of Gemini CLI's: JSON, with comments if need be."""
    try:
        if not file.is_file():
            return {}
        found = json.loads(_COMMENT.sub(lambda match: match[1] or "", file.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"{file} cannot be read: {error}.", remedy="Gemini CLI cannot use it either: put it right."
        ) from error
    return found if isinstance(found, dict) else {}


def _refuse_pipes(request: LaunchRequest, settings: Mapping[str, Any]) -> None:
    """Gemini CLI reads these before it does anything, and of a pipe it would wait for the end."""
    workdir, home = request.workdir.resolve(), _home(request.environ).resolve()
    for folder in (workdir, *workdir.parents):
        # What the person has at home is theirs: somebody may write into it.
        for name in (*_READ_FIRST, *_names(settings)) if folder != home else ():
            if _is_no_file(folder / name):
                raise UsageError(
                    f"{folder / name} is no file: Gemini CLI would wait for it without end.",
                    remedy="Move it out of the way.",
                )


def _refuse_reads(request: LaunchRequest, settings: Mapping[str, Any]) -> None:
    """Gemini CLI itself reads what the project tells it, wherever a link leads, and the files that this imports."""
    root, workdir = project_of(request.workdir), request.workdir.resolve()
    files = (folder / name for folder in (workdir, *workdir.parents) for name in _names(settings))
    for file in (file for file in files if file.is_relative_to(root) and os.path.isfile(file)):  # noqa: PTH113
        real = inside(file, root)
        if real is None:
            raise UsageError(
                f"{file} leads out of the project, or to a file of another kind, and Gemini CLI would read that.",
                remedy="Put the text itself there.",
            )
        for path in _imports(real, file.parent) if request.own_tools is OwnTools.NONE else ():
            raise UsageError(
                f"{file} imports {path}, and Gemini CLI would read it, which this run may not.",
                remedy="Take the @ away there. With a profile that may read, and where nothing is hidden, it can stay.",
            )


def _imports(file: Path, folder: Path) -> Iterator[str]:
    """What it names with @ and is there."""
    named = _IMPORT.findall(file.read_text(encoding="utf-8", errors="replace"))
    return (path for path in named if os.path.exists(folder / path))  # noqa: PTH110 - no name is an error to it.


def _is_no_file(path: Path) -> bool:
    """A pipe, a socket or a device; a folder does no harm."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def _environ(request: LaunchRequest) -> dict[str, str]:
    # One process instead of two, which a signal reaches.
    ours = {_HOME: str(request.folder), "GEMINI_CLI_NO_RELAUNCH": "true"}
    if request.own_tools is OwnTools.ALL:
        return {**ours, _TRUST: "false"} if _names_us(request.workdir) else ours
    # Its settings are read before `--skip-trust` is: so they are read as in a folder that nobody trusts, without the
    # project's, and the server, which it would not ask from such a folder, is asked all the same.
    off = {_TRUST: "false", "GEMINI_SANDBOX": "false", **dict.fromkeys(_EMPTIED, "")}
    return {**env_file_variables(request, _home(request.environ).resolve()), **off, **ours}


def _names_us(workdir: Path) -> bool:
    """Whether the project has an entry of our name, which would take the place of ours."""
    try:
        return SERVER_NAME in _part(_read(workdir / ".gemini" / _SETTINGS), "mcpServers")
    except ConfigError:
        return False


def _governance(request: LaunchRequest, links: LinkAliases) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """For the person: what is governed, and what is not."""
    refuses = () if request.own_tools is OwnTools.READ else (_REFUSES,)
    if request.own_tools is OwnTools.ALL:
        named = ("The project's own Gemini settings do not count: they have an entry toolcrib of their own.",)
        free = (
            "Its own tools: all of them, without asking.",
            "Your other MCP servers, hooks, extensions, skills and sub-agents.",
            "The project's .env files, which may name another address for your key; and where you trust the folder in "
            "Gemini CLI, all that the project's .gemini folder sets.",
        )
        return (*(named if _names_us(request.workdir) else ()), *refuses), free
    governed = (
        _GOVERNED[request.own_tools],
        "Off: its other MCP servers, hooks, extensions, skills and sub-agents, yours as well as the project's.",
        "The project's own Gemini settings and .env files do not count.",
        "No file is read because the prompt names it with @, and no command of its own runs for a prompt that begins "
        "with a slash.",
        *refuses,
    )
    linked = _of_links(links) if request.own_tools is OwnTools.EDIT else ()
    looks = (
        "It reads files of the project that GEMINI.md imports.",
        "Its glob tool shows names of files outside the folder, too.",
    )
    words = ("What your own words for Gemini CLI permit.",) if request.extra else ()
    return governed, (*(looks if request.own_tools is not OwnTools.NONE else ()), *linked, *words)


def _of_links(links: LinkAliases) -> tuple[str, ...]:
    folders = " or ".join(KEPT_FROM_IT)
    made = f"Through a link into {folders} that is made during the run, or lies elsewhere, it changes files there."
    many = f"The folder has too many files to look for links: through one into {folders} it changes files there."
    return (made,) if links.are_all else (many, made)
