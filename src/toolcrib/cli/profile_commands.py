"""`profile list|show|edit|remove`: sets of rules, edited as YAML with a guide at the top.

In: command-line arguments, an editor or a file. Out: an exit code. If the edited text has an error, the file is kept
and the message gives its path.
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
from toolcrib.cli.output import counted, hint, printed, say, table
from toolcrib.cli.perform import perform
from toolcrib.config.parse import Unreadable, parse_yaml
from toolcrib.errors import ConfigError, NotFound, ToolcribError, UsageError
from toolcrib.policy import OwnTools, profile_from
from toolcrib.signals import with_default_signals

commands = typer.Typer(rich_markup_mode=None)
profile = typer.Typer(help="Manage profiles: sets of rules that agents share.")
commands.add_typer(profile, name="profile")

GUIDE = """\
# Profile {name}. Deny rules always win. Tools that no rule allows are denied. The order doesn't matter.
#
# rules:
#   - allow: git:*                      # server:tool; * matches any text, ? any character
#   - deny: "*:delete_*"                # quote values that begin with *
#   - ask: git:push                     # each call needs your approval
#   - allow: "*"                        # every tool of every server ...
#     annotations: {{read_only: true}}    # ... that a trusted server declares read-only
#   - allow: files:*
#     when:                             # all must hold
#       path: {{under: src}}              # inside this folder, relative to the agent's workdir
#       mode: {{one_of: [read, list]}}
#       options.sql: {{matches: "select .*"}}
# own_tools: edit                       # what a coding agent's built-in tools may do: none, read, edit, all
# listing: thin                         # how tools are listed: auto, full, thin, search, handshake
"""


def profile_yaml(profile: Mapping[str, Any]) -> str:
    keys = ("description", "own_tools", "rules", *(("listing",) if profile.get("listing") else ()))
    content = {key: profile[key] for key in keys}
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=120)


def read_profile(name: str, text: str) -> dict[str, Any]:
    """Parses a profile into the parameters of `profile:put`. Raises `ConfigError` with the line."""
    try:
        parsed = parse_yaml(text)
    except Unreadable as error:
        place = "" if error.line is None else f", line {error.line}"
        raise ConfigError(
            f"profile {name}{place}: found {error.found}, expected {error.expected}.",
            remedy="Quote values that begin with *.",
        ) from None
    for path, line in parsed.duplicates:
        raise ConfigError(f"profile {name}, line {line}: {path[-1]} appears twice.", remedy="Remove one of them.")
    data = {} if parsed.data is None else parsed.data
    if not isinstance(data, dict) or data.keys() - {"description", "rules", "own_tools", "listing"}:
        raise ConfigError(
            f"profile {name}: only description, rules, own_tools and listing are allowed.",
            remedy="See the guide at its top.",
        )
    # `rules:` with nothing under it is null in YAML.
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
        error.remedy = f"{error.remedy} Your text is saved: correct {place}, then run `{again}`.".strip()
        raise
    file.unlink(missing_ok=True)
    return found


def _initial_text(name: str, copy: str | None) -> str:
    """The text to edit: the profile's current content, a copy of another profile, or an empty profile."""
    known = {row["name"]: row for row in perform("profile:list", {})["profiles"]}
    if name in known and known[name]["builtin"]:
        raise UsageError(
            f"{name} is built in and cannot be changed.",
            remedy=f"`toolcrib profile edit NAME --copy {name}` creates your own profile from its rules.",
        )
    if name in known and copy is not None:
        raise UsageError(f"The profile {name} already exists.", remedy=f"`toolcrib profile edit {name}` changes it.")
    if name not in known:
        # Rejects an invalid name before you have written rules for it.
        profile_from(name, {})
    start = copy or name
    content = {"description": "", "own_tools": str(OwnTools.NONE), "rules": []}
    if start in known or copy is not None:
        content = perform("profile:show", {"name": start})
    return GUIDE.format(name=name) + profile_yaml(content)


def _editor() -> list[str]:
    chosen = os.environ.get("VISUAL") or os.environ.get("EDITOR") or ""
    try:
        argv = shlex.split(chosen)
    except ValueError:
        argv = []
    if not argv:
        raise UsageError("No editor is set.", remedy="Set EDITOR, or pass the content with --file FILE (- for stdin).")
    return argv


def _run(editor: list[str], file: Path) -> None:
    try:
        done = subprocess.run(with_default_signals([*editor, str(file)]), check=False)
    except OSError as error:
        raise UsageError(
            f"The editor {editor[0]} cannot be started: {error.strerror}.", remedy="Set EDITOR, or use --file FILE."
        ) from error
    if done.returncode:
        raise UsageError(
            f"The editor exited with code {done.returncode}, so nothing was changed.",
            remedy="Edit again, or use --file FILE.",
        )


@profile.command("list")
def list_profiles(*, as_json: AsJson = False) -> int:
    """List the profiles and the agents that use them."""
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


ProfileName = Annotated[str, typer.Argument(metavar="NAME", help="The profile's name.")]


@profile.command()
def show(name: ProfileName, *, as_json: AsJson = False) -> int:
    """Show a profile's rules, in the format of `profile edit --file`."""
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
        str | None, typer.Option(metavar="FILE", help="Read the content from this file instead; - reads stdin.")
    ] = None,
    copy: Annotated[
        str | None, typer.Option(metavar="PROFILE", help="Start a new profile with the rules of this one.")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Create or change a profile in your editor ($VISUAL or $EDITOR). New rules apply immediately."""
    if file is not None and copy is not None:
        raise UsageError("--file and --copy can't be used together.", remedy="Use one of them.")
    found = printed(edit_profile(name, copy) if file is None else profile_from_file(name, file), as_json=as_json)
    if found["changed"]:
        count = counted(found["rules"], "rule")
        say(f"{name}: {count}; agents: {', '.join(found['agents']) or 'none yet'}.")
        if not found["agents"]:
            hint(f"Next: `toolcrib agent add AGENT --profile {name}`.")
    else:
        say("Nothing was changed.")
    return 0


@profile.command()
def remove(name: ProfileName, *, as_json: AsJson = False) -> int:
    """Remove one of your profiles. Fails if an agent uses it."""
    printed(perform("profile:remove", {"name": name}), as_json=as_json)
    say(f"Removed {name}.")
    return 0
