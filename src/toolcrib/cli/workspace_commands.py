"""`workspace check|init`: the workspace tools of a folder and their settings.

In: command-line arguments. Out: an exit code: 3 if a settings file cannot be used, 11 if the workspace, or running code
in it, is refused.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from toolcrib.cli.options import AsJson
from toolcrib.cli.output import hint, printed, say, table
from toolcrib.cli.perform import perform
from toolcrib.cli.perform import root as project
from toolcrib.config.paths import PROJECT_FOLDER, WORKSPACE_NAMES, configs_in
from toolcrib.errors import ConfigError, NotFound, UsageError
from toolcrib.workspace.settings.example import EXAMPLE

CODE_REFUSED = 11
"""The exit code of `workspace check` if the sandbox isn't fully active."""

_SHOWN_ELSEWHERE = frozenset({"sandbox", "unsafe", "warning", "network", "git", "holds", "refusal", "probes"})

commands = typer.Typer(rich_markup_mode=None)
workspace = typer.Typer(help="Check and set up the workspace tools of a folder.")
commands.add_typer(workspace, name="workspace")

Root = Annotated[
    Path | None, typer.Option("--root", metavar="DIR", help="The workspace folder. Default: the current project.")
]


@workspace.command()
def check(*, root: Root = None, as_json: AsJson = False) -> int:
    """Show the workspace's tools, sandbox and settings, and what is refused and why.

    Exit code 3: a settings file cannot be used. Exit code 11: Toolcrib refuses the folder, or
    refuses to run code in it.
    """
    found = perform("workspace:check", {"root": str(_folder(root))})
    holds = found["sandbox"] and found["sandbox"]["holds"]
    code = ConfigError.exit_code if found["broken"] else 0 if holds else CODE_REFUSED
    _show(printed(found, as_json=as_json, exit_code=code))
    return code


@workspace.command()
def init(
    *,
    root: Root = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    as_json: AsJson = False,
) -> int:
    """Write .toolcrib/workspace.yml with every setting commented out."""
    folder = _folder(root) / PROJECT_FOLDER
    existing = configs_in(folder, WORKSPACE_NAMES)
    if existing and not force:
        raise UsageError(f"{existing[0]} already exists.", remedy="Edit it, or overwrite it with --force.")
    file = existing[0] if existing else folder / WORKSPACE_NAMES[0]
    if file.suffix == ".json":
        raise UsageError(f"{file} is JSON, which has no comments.", remedy="Remove it first.")
    _write(file, EXAMPLE)
    printed({"file": str(file)}, as_json=as_json)
    say(f"Written: {file}. Every setting is commented out; remove a `#` to change one.")
    return 0


def _folder(root: Path | None) -> Path:
    folder = Path(os.path.realpath(root.expanduser())) if root else project()
    if not folder.is_dir():
        raise NotFound(f"There is no folder {folder}.", remedy="Choose an existing folder.")
    return folder


def _write(file: Path, text: str) -> None:
    """Writes atomically, inside the project: replaces a link at `file` and refuses one at its folder."""
    try:
        file.parent.mkdir(exist_ok=True)
        if os.path.realpath(file.parent) != str(file.parent):
            raise UsageError(f"{file.parent} is a link.", remedy="Use a real folder inside the project.")
        fresh = file.with_name(f".{file.name}.new")
        with contextlib.suppress(FileNotFoundError):
            fresh.unlink()
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        with os.fdopen(descriptor, "w") as stream:
            stream.write(text)
        fresh.replace(file)
    except OSError as error:
        raise ConfigError(
            f"{file} cannot be written: {error.strerror}.", remedy="Check the folder's permissions."
        ) from error


def _show(found: Mapping[str, Any]) -> None:
    for problem in found["problems"]:
        hint(f"{problem['severity']}: {problem['text']}")
    if found["effects"]:
        hint("Once trusted, it also:")
        for effect in found["effects"]:
            hint(f"  {effect}")
    say(f"Folder:   {found['root']}")
    for file in found["files"]:
        say(f"Settings: {file['file']} ({file['trust']})")
    if not found["files"]:
        say("Settings: defaults; `toolcrib workspace init` creates a settings file.")
    if not found["offered"]:
        say("Daemon:   offers no workspace tools (`workspace: false` in your configuration).")
    if found["refusal"]:
        say(f"Refused:  {_text(found['refusal'])}")
        return
    _show_sandbox(found["sandbox"])
    say("")
    _show_tools(found)
    say("")
    table(["setting", "value", "set by"], list(_settings(found)))


def _show_sandbox(sandbox: Mapping[str, Any]) -> None:
    if sandbox["unsafe"]:
        say("Sandbox:  NONE: with --unsafe-no-sandbox, commands have all of your permissions.")
    elif sandbox["refusal"]:
        say(f"Sandbox:  inactive. {_text(sandbox['refusal'])}")
    else:
        say("Sandbox:  active.")
    for name, value in sandbox.items():
        if name not in _SHOWN_ELSEWHERE and value is not None:
            say(f"  {name.replace('_', ' ')}: {_shown(value)}")
    for probe in sandbox["probes"]:
        say(f"  {'✓' if probe['held'] else '✗'} {probe['name']}{': ' if probe['detail'] else ''}{probe['detail']}")


def _show_tools(found: Mapping[str, Any]) -> None:
    seconds = found["settings"]
    shown = (found["sandbox"]["refusal"] or {"message": ""})["message"]
    rows = [
        [tool["name"], tool["state"], f"{seconds['limits.seconds.' + tool['name']]:g} s", _why(tool, shown)]
        for tool in found["tools"]
    ]
    table(["tool", "state", "limit", "why"], rows)


def _why(tool: Mapping[str, Any], shown: str) -> str:
    """Doesn't repeat the sandbox's refusal, already shown, for each tool."""
    if tool["why"] and tool["why"] == shown:
        return "Needs the sandbox; see above."
    set_by = f"({tool['set_by']})" if tool["set_by"] else ""
    return " ".join(filter(None, [tool["why"], tool["remedy"], set_by]))


def _settings(found: Mapping[str, Any]) -> Iterator[list[str]]:
    """The settings that aren't in the table of tools."""
    for key, value in found["settings"].items():
        if not key.startswith(("tools.", "limits.seconds.")):
            yield [key, _shown(value), found["origins"].get(key, "")]


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(value) or "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    return "auto-detected" if value is None else str(value)


def _text(error: Mapping[str, str]) -> str:
    return f"{error['message']} {error['remedy']}".rstrip()
