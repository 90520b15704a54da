"""`trust`, `untrust`: which project files are used, and which servers' annotations are believed.

In: command-line arguments. Out: an exit code. Trust covers exactly the content that was shown; if the file has changed
since, nothing is trusted.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from toolcrib.cli.config_commands import project_files
from toolcrib.cli.options import AsJson
from toolcrib.cli.output import confirmed, hint, printed, say
from toolcrib.cli.perform import paths, perform, root
from toolcrib.cli.secret_commands import offer_missing
from toolcrib.cli.server_commands import hint_pins
from toolcrib.config.layers import load
from toolcrib.errors import NotFound, UsageError
from toolcrib.workspace.settings.load import load_settings

commands = typer.Typer(rich_markup_mode=None)

ServerName = Annotated[
    str | None, typer.Option(metavar="NAME", help="Apply to this server's tool annotations instead of a file.")
]


@commands.command()
def trust(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="The file. Default: all of this project's files.")
    ] = None,
    *,
    server: ServerName = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask for confirmation.")] = False,
    as_json: AsJson = False,
) -> int:
    """Review and trust a project's configuration files, or a server.

    Shows what a file would do and asks for confirmation. If a file changes, you must trust it again.

    If you trust a server, its annotations (read-only, destructive) decide which agents may use its tools. This covers
    the tools that it lists now. Tools that it adds or changes later are not trusted until you accept them (`toolcrib
    pins`) or run this command again, nor is the server after its command or URL changes.
    """
    if server is not None:
        return _trust_server("server:trust", server, file, as_json=as_json)
    named = _asking_for_trust(file)
    # The daemon describes the effects, because its environment matters. The digest covers exactly these lines.
    rows = {row["file"]: row for row in perform("config:check")["waiting"]}
    waiting = [rows[place] for place in named if place in rows]
    already = [place for place in named if place not in rows]
    if not as_json:
        for place in already:
            say(f"Already trusted: {place}.")
    for untrusted in waiting:
        hint(f"Once trusted, {untrusted['file']}:")
        for line in untrusted["effects"]:
            hint(f"  {line}")
    instead = "Review the effects, then add --yes."
    if waiting and not yes and not confirmed("Trust this?", instead=instead):
        hint("Nothing was changed.")
        return 1
    trusted = [perform("trust:add", {"file": row["file"], "digest": row["digest"]}) for row in waiting]
    printed({"trusted": trusted, "already": already}, as_json=as_json)
    for done in trusted:
        say(f"Trusted: {done['file']}. If it changes, you have to trust it again.")
    if trusted:
        offer_missing()
    return 0


def _trust_server(command: str, name: str, file: Path | None, *, as_json: bool) -> int:
    if file is not None:
        raise UsageError("A file and --server can't be used together.", remedy="Use one of them.")
    found = printed(perform(command, {"name": name}), as_json=as_json)
    hint_pins({"name": name, "pins": {"flagged": found.get("flagged", {})}})
    if not found["trusted"]:
        say(f"{name} is no longer trusted." if found["changed"] else f"{name} was not trusted.")
    else:
        say(f"{name} is {'now' if found['changed'] else 'already'} trusted.")
        if found["tools"]:
            say(f"Tools marked read-only: {found['read_only']} of {found['tools']}.")
    return 0


def _asking_for_trust(file: Path | None) -> list[str]:
    """The project's files that need trust, including those already trusted."""
    loaded = load(paths=paths(), root=root(), environ=os.environ)
    workspace = load_settings(root(), environ=os.environ)
    waiting = (*loaded.waiting, *filter(None, [workspace.waiting]))
    wanted = None if file is None else file.resolve()
    found = [row for row in waiting if wanted is None or row.file.resolve() == wanted]
    if not found:
        one = f"{file} does not need to be trusted"
        what = one if file is not None else f"No file in the project {root()} needs to be trusted"
        raise NotFound(f"{what}.", remedy="`toolcrib config path` lists the files used here.")
    return [str(row.file) for row in found]


@commands.command()
def untrust(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="The file. Default: all of this project's files.")
    ] = None,
    *,
    server: ServerName = None,
    as_json: AsJson = False,
) -> int:
    """Stop trusting a project's configuration files, or a server. Servers that a file started are stopped."""
    if server is not None:
        return _trust_server("server:untrust", server, file, as_json=as_json)
    files = [file.resolve()] if file is not None else project_files()
    if not files:
        raise NotFound(f"The project {root()} has no configuration file.", remedy="Name the file to untrust.")
    done = [perform("trust:remove", {"file": str(path)}) for path in files]
    ended = [row for row in done if row.get("was_trusted", True)]
    if not ended:
        names = ", ".join(row["file"] for row in done)
        raise NotFound(f"Not trusted: {names}.", remedy="There is nothing to undo.")
    printed({"untrusted": ended}, as_json=as_json)
    for row in ended:
        say(f"No longer trusted: {row['file']}.")
    return 0
