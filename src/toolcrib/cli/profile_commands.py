"""`profile list|show|edit|remove`: sets of rules, edited as YAML with the language explained at its head.

In: words of the command line, an editor or a file. Out: an exit code. A text with a mistake is kept, and the error
says where it is.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from toolcrib.cli.options import AsJson
from toolcrib.cli.output import hint, printed, say, table
from toolcrib.cli.perform import perform
from toolcrib.config.parse import Unreadable, parse_yaml
from toolcrib.errors import ConfigError, NotFound, ToolcribError, UsageError
from toolcrib.policy import OwnTools, profile_from
from toolcrib.signals import with_default_signals

commands = typer.Typer(rich_markup_mode=None)
profile = typer.Typer(help="Profiles: sets of rules that agents share.")
commands.add_typer(profile, name="profile")

GUIDE = """\
# The profile {name}. A deny wins, wherever it stands; what no rule allows is denied; the order never matters.
#
# rules:
#   - allow: git:*                      # server:tool; * is any text, ? any character
#   - deny: "*:delete_*"                # quote what begins with *
#   - ask: git:push                     # a person is asked at each call
#   - allow: "*"                        # every tool of every server ...
#     annotations: {{read_only: true}}    # ... that a trusted server declares read-only
#   - allow: files:*
#     when:                             # all must hold
#       path: {{under: src}}              # inside this folder, seen from the agent's own
#       mode: {{one_of: [read, list]}}
#       options.sql: {{matches: "select .*"}}
# own_tools: edit                       # what `toolcrib run` lets a program do by itself: none, read, edit, all
"""


def profile_yaml(profile: Mapping[str, Any]) -> str:
    content = {key: profile[key] for key in ("description", "own_tools", "rules")}
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=120)


def read_profile(name: str, text: str) -> dict[str, Any]:
    """The parameters of `profile:put`. Raises `ConfigError` with the line."""
    try:
        parsed = parse_yaml(text)
    except Unreadable as error:
        place = "" if error.line is None else f", line {error.line}"
        raise ConfigError(
            f"profile {name}{place}: found {error.found}, expected {error.expected}.",
            remedy="What begins with * wants quotes.",
        ) from None
    for path, line in parsed.duplicates:
        raise ConfigError(f"profile {name}, line {line}: {path[-1]} stands twice.", remedy="Leave one of them.")
    data = {} if parsed.data is None else parsed.data
    if not isinstance(data, dict) or data.keys() - {"description", "rules", "own_tools"}:
        raise ConfigError(
            f"profile {name}: it has a description, rules and own_tools, nothing else.", remedy="See its first lines."
        )
    # An empty word in YAML is null: `rules:` with nothing under it.
    return {"name": name} | {key: value for key, value in data.items() if value is not None}


def profile_from_file(name: str, file: str) -> dict[str, Any]:
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise NotFound(f"{file} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8 text.") from error
    return perform("profile:put", read_profile(name, text))


def edit_profile(name: str, copy: str | None) -> dict[str, Any]:
    before = _initial_text(name, copy)
    editor = _editor()
    handle, place = tempfile.mkstemp(prefix="toolcrib-profile-", suffix=".yml")
    file = Path(place)
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        stream.write(before)
    try:
        _run(editor, file)
        after = file.read_text(encoding="utf-8")
    except BaseException:
        file.unlink(missing_ok=True)
        raise
    if after == before and copy is None:
        file.unlink(missing_ok=True)
        return {"name": name, "changed": False}
    try:
        found = perform("profile:put", read_profile(name, after))
    except ToolcribError as error:
        again = shlex.join(["toolcrib", "profile", "edit", name, "--file", place])
        error.remedy = f"{error.remedy} Your text is kept: correct {place}, then `{again}`.".strip()
        raise
    file.unlink(missing_ok=True)
    return found


def _initial_text(name: str, copy: str | None) -> str:
    """What the editor shows first: the profile as it is, the rules of another one, or none yet."""
    known = {row["name"]: row for row in perform("profile:list", {})["profiles"]}
    if name in known and known[name]["builtin"]:
        raise UsageError(
            f"{name} is built in and does not change.",
            remedy=f"`toolcrib profile edit NAME --copy {name}` begins one of your own with its rules.",
        )
    if name in known and copy is not None:
        raise UsageError(f"There is a profile {name} already.", remedy=f"`toolcrib profile edit {name}` changes it.")
    if name not in known:
        # A name that cannot be is refused before somebody has written rules for it.
        profile_from(name, {})
    start = copy or name
    content = {"description": "", "own_tools": str(OwnTools.NONE), "rules": []}
    if start in known or copy is not None:
        content = perform("profile:show", {"name": start})
    return GUIDE.format(name=name) + profile_yaml(content)


def _editor() -> list[str]:
    chosen = os.environ.get("VISUAL") or os.environ.get("EDITOR") or ""
    try:
        words = shlex.split(chosen)
    except ValueError:
        words = []
    if not words:
        raise UsageError("No editor is set.", remedy="Set EDITOR, or give the content with --file FILE (- is stdin).")
    return words


def _run(editor: list[str], file: Path) -> None:
    try:
        done = subprocess.run(with_default_signals([*editor, str(file)]), check=False)
    except OSError as error:
        raise UsageError(
            f"The editor {editor[0]} cannot be started: {error.strerror}.", remedy="Set EDITOR, or use --file FILE."
        ) from error
    if done.returncode:
        raise UsageError(
            f"The editor ended with exit code {done.returncode}, so nothing was changed.",
            remedy="Edit again, or use --file FILE.",
        )


@profile.command("list")
def list_profiles(*, as_json: AsJson = False) -> int:
    """List the profiles, and which agents have them."""
    found = printed(perform("profile:list"), as_json=as_json)
    rows = [
        (
            row["name"],
            "built in" if row["builtin"] else "yours",
            row["rules"],
            row["own_tools"],
            ", ".join(row["agents"]),
            row["description"],
        )
        for row in found["profiles"]
    ]
    table(("profile", "whose", "rules", "own tools", "agents", "description"), rows)
    return 0


ProfileName = Annotated[str, typer.Argument(metavar="NAME", help="The profile.")]


@profile.command()
def show(name: ProfileName, *, as_json: AsJson = False) -> int:
    """Show a profile's rules, as `profile edit --file` takes them."""
    found = printed(perform("profile:show", {"name": name}), as_json=as_json)
    whose = "built in" if found["builtin"] else "yours"
    say(f"# {name}, {whose}; agents: {', '.join(found['agents']) or 'none'}")
    say(profile_yaml(found).rstrip())
    return 0


@profile.command()
def edit(
    name: ProfileName,
    *,
    file: Annotated[
        str | None, typer.Option(metavar="FILE", help="Take the content from there instead of an editor; - is stdin.")
    ] = None,
    copy: Annotated[
        str | None, typer.Option(metavar="PROFILE", help="Begin a new profile with the rules of this one.")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Change a profile, or make one, in your editor ($VISUAL or $EDITOR). Its agents have the new rules at once."""
    if file is not None and copy is not None:
        raise UsageError("--file and --copy exclude each other.", remedy="Give one of them.")
    found = printed(edit_profile(name, copy) if file is None else profile_from_file(name, file), as_json=as_json)
    if found["changed"]:
        count = f"{found['rules']} {'rule' if found['rules'] == 1 else 'rules'}"
        say(f"{name}: {count}; agents: {', '.join(found['agents']) or 'none yet'}.")
        if not found["agents"]:
            hint(f"Next: `toolcrib agent add AGENT --profile {name}`.")
    else:
        say("Nothing was changed.")
    return 0


@profile.command()
def remove(name: ProfileName, *, as_json: AsJson = False) -> int:
    """Remove a profile of yours that no agent has."""
    printed(perform("profile:remove", {"name": name}), as_json=as_json)
    say(f"Removed {name}.")
    return 0
