"""`workspace check|init`: what a folder's tools may do, and the file that says so.

In: words of the command line. Out: an exit code: 3 where a file of settings cannot be used, 11 where the workspace, or
running code in it, is refused.
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
"""The exit code of `workspace check` where not everything is in force."""

_SAID_ELSEWHERE = frozenset({"sandbox", "unsafe", "warning", "network", "git", "holds", "refusal", "probes"})

commands = typer.Typer(rich_markup_mode=None)
workspace = typer.Typer(help="Check and set up the tools that work in a folder.")
commands.add_typer(workspace, name="workspace")

Root = Annotated[
    Path | None, typer.Option("--root", metavar="DIR", help="The folder; the project that you are in otherwise.")
]


@workspace.command()
def check(*, root: Root = None, as_json: AsJson = False) -> int:
    """Show what is confined here, which sandbox is in force, and what is refused and why.

    Exit code 3: a file of settings cannot be used. 11: the folder, or running code in it, is refused.
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
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is there.")] = False,
    as_json: AsJson = False,
) -> int:
    """Write .toolcrib/workspace.yml, with every setting switched off."""
    folder = _folder(root) / PROJECT_FOLDER
    held = configs_in(folder, WORKSPACE_NAMES)
    if held and not force:
        raise UsageError(f"{held[0]} is there already.", remedy="Change it, or write over it with --force.")
    file = held[0] if held else folder / WORKSPACE_NAMES[0]
    if file.suffix == ".json":
        raise UsageError(f"{file} is JSON, which has no comments.", remedy="Remove it first.")
    _write(file, EXAMPLE)
    printed({"file": str(file)}, as_json=as_json)
    say(f"Written: {file}. As it is, it changes nothing: take a `#` away where it should.")
    return 0


def _folder(root: Path | None) -> Path:
    folder = Path(os.path.realpath(root.expanduser())) if root else project()
    if not folder.is_dir():
        raise NotFound(f"There is no folder {folder}.", remedy="Name one that exists.")
    return folder


def _write(file: Path, text: str) -> None:
    """Whole or not at all, and in the project itself: a link in its place is replaced, one on the way refused."""
    try:
        file.parent.mkdir(exist_ok=True)
        if os.path.realpath(file.parent) != str(file.parent):
            raise UsageError(f"{file.parent} is a link.", remedy="A project's settings belong into the project itself.")
        fresh = file.with_name(f".{file.name}.new")
        with contextlib.suppress(FileNotFoundError):
            fresh.unlink()
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        with os.fdopen(descriptor, "w") as stream:
            stream.write(text)
        fresh.replace(file)
    except OSError as error:
        raise ConfigError(
            f"{file} cannot be written: {error.strerror}.", remedy="Check the folder's rights."
        ) from error


def _show(found: Mapping[str, Any]) -> None:
    for problem in found["problems"]:
        hint(f"{problem['severity']}: {problem['text']}")
    if found["effects"]:
        hint("Once trusted, it also:")
        for effect in found["effects"]:
            hint(f"  {effect}")
    say(f"Folder:   {found['root']}")
    for one in found["files"]:
        say(f"Settings: {one['file']} ({one['trust']})")
    if not found["files"]:
        say("Settings: no file, so the built-in ones; `toolcrib workspace init` makes one.")
    if not found["offered"]:
        say("Daemon:   offers no workspace tools (`workspace: false` in your configuration).")
    if found["refusal"]:
        say(f"Refused:  {_text(found['refusal'])}")
        return
    _show_sandbox(found["sandbox"])
    say("")
    _show_tools(found)
    say("")
    table(["setting", "value", "said by"], list(_settings(found)))


def _show_sandbox(sandbox: Mapping[str, Any]) -> None:
    if sandbox["unsafe"]:
        say("Sandbox:  NONE: --unsafe-no-sandbox lets commands do whatever you can.")
    elif sandbox["refusal"]:
        say(f"Sandbox:  not in force. {_text(sandbox['refusal'])}")
    else:
        say("Sandbox:  in force.")
    for name, value in sandbox.items():
        if name not in _SAID_ELSEWHERE and value is not None:
            say(f"  {name.replace('_', ' ')}: {_shown(value)}")
    for probe in sandbox["probes"]:
        say(f"  {'✓' if probe['held'] else '✗'} {probe['name']}{': ' if probe['detail'] else ''}{probe['detail']}")


def _show_tools(found: Mapping[str, Any]) -> None:
    seconds = found["settings"]
    said = found["sandbox"]["refusal"] or {"message": ""}
    rows = [
        [tool["name"], tool["state"], f"{seconds['limits.seconds.' + tool['name']]:g} s", _why(tool, said["message"])]
        for tool in found["tools"]
    ]
    table(["tool", "state", "limit", "why"], rows)


def _why(tool: Mapping[str, Any], said: str) -> str:
    """What was said of the sandbox is not said again for each tool."""
    if tool["why"] and tool["why"] == said:
        return "It needs the sandbox: see above."
    set_by = f"({tool['set_by']})" if tool["set_by"] else ""
    return " ".join(filter(None, [tool["why"], tool["remedy"], set_by]))


def _settings(found: Mapping[str, Any]) -> Iterator[list[str]]:
    """Those that the table of tools does not show."""
    for key, value in found["settings"].items():
        if not key.startswith(("tools.", "limits.seconds.")):
            yield [key, _shown(value), found["origins"].get(key, "")]


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(value) or "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    return "found" if value is None else str(value)


def _text(error: Mapping[str, str]) -> str:
    return f"{error['message']} {error['remedy']}".rstrip()
