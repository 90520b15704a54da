"""`trust`, `untrust`: which files of a project count, and which servers are trusted in what they say of their tools.

In: words of the command line. Out: an exit code. A project's file is trusted as it stands: what the person was shown
is what is trusted, or nothing is.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from toolcrib.cli.config_commands import project_files
from toolcrib.cli.options import AsJson
from toolcrib.cli.output import hint, printed, say
from toolcrib.cli.perform import paths, perform, root
from toolcrib.config.layers import load
from toolcrib.errors import NotFound, UsageError
from toolcrib.workspace.settings.load import load_settings

commands = typer.Typer(rich_markup_mode=None)

ServerName = Annotated[
    str | None, typer.Option(metavar="NAME", help="Not a file, but what this server says of its own tools.")
]


@commands.command()
def trust(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="One file; all of this project's otherwise.")
    ] = None,
    *,
    server: ServerName = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> int:
    """Show what a project's file would do, and allow it after your yes; or trust what a server says of its tools.

    A file that changes needs your trust again. A server that you trust decides by what it calls its tools (read-only,
    destructive) who may use them. This counts for the tools that it lists now: one that it adds or changes later is not
    trusted, and neither is the server with another command or URL, until you run the command again.
    """
    if server is not None:
        return _trust_server("server:trust", server, file, as_json=as_json)
    named = _asking_for_trust(file)
    # Said by the process that will run it: its environment decides, and the digest covers these very lines.
    rows = {row["file"]: row for row in perform("config:check")["waiting"]}
    waiting = [rows[place] for place in named if place in rows]
    already = [place for place in named if place not in rows]
    if not as_json:
        for place in already:
            say(f"Already trusted, as it stands: {place}.")
    for one in waiting:
        hint(f"Once trusted, {one['file']}:")
        for line in one["effects"]:
            hint(f"  {line}")
    if waiting and not yes and not _agrees():
        hint("Nothing was changed.")
        return 1
    trusted = [perform("trust:add", {"file": one["file"], "digest": one["digest"]}) for one in waiting]
    printed({"trusted": trusted, "already": already}, as_json=as_json)
    for done in trusted:
        say(f"Trusted: {done['file']}. Any change to it asks again.")
    return 0


def _trust_server(command: str, name: str, file: Path | None, *, as_json: bool) -> int:
    if file is not None:
        raise UsageError("A file and --server exclude each other.", remedy="Give one of them.")
    found = printed(perform(command, {"name": name}), as_json=as_json)
    if not found["trusted"]:
        say(f"{name} is no longer trusted." if found["changed"] else f"{name} was not trusted.")
    else:
        say(f"{name} is trusted{'' if found['changed'] else ' already'}.")
        if found["tools"]:
            say(f"{found['read_only']} of its {found['tools']} tools say that they only read.")
    return 0


def _agrees() -> bool:
    if not sys.stdin.isatty():
        raise UsageError(
            "Trust needs a person's yes, and there is no terminal.", remedy="Add --yes once you have looked."
        )
    sys.stderr.write("Trust this? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def _asking_for_trust(file: Path | None) -> list[str]:
    """The project's files that need trust, also those that have it."""
    loaded = load(paths=paths(), root=root(), environ=os.environ)
    workspace = load_settings(root(), environ=os.environ)
    waiting = (*loaded.waiting, *filter(None, [workspace.waiting]))
    wanted = None if file is None else file.resolve()
    found = [one for one in waiting if wanted is None or one.file.resolve() == wanted]
    if not found:
        what = f"{file} asks for no trust" if file is not None else f"No file of the project {root()} asks for trust"
        raise NotFound(f"{what}.", remedy="`toolcrib config path` lists the files that are read here.")
    return [str(one.file) for one in found]


@commands.command()
def untrust(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="One file; all of this project's otherwise.")
    ] = None,
    *,
    server: ServerName = None,
    as_json: AsJson = False,
) -> int:
    """Take the trust in a project's file back, and what it started ends; or no longer trust a server."""
    if server is not None:
        return _trust_server("server:untrust", server, file, as_json=as_json)
    files = [file.resolve()] if file is not None else project_files()
    if not files:
        raise NotFound(f"The project {root()} has no configuration file.", remedy="Name the file to untrust.")
    done = [perform("trust:remove", {"file": str(one)}) for one in files]
    ended = [one for one in done if one.get("was_trusted", True)]
    if not ended:
        names = ", ".join(one["file"] for one in done)
        raise NotFound(f"Not trusted: {names}.", remedy="There is nothing to take back.")
    printed({"untrusted": ended}, as_json=as_json)
    for one in ended:
        say(f"No longer trusted: {one['file']}.")
    return 0
