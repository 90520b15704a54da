"""`pins`: what servers changed in their tools since you accepted them; accept it, or keep it out.

In: command-line arguments. Out: an exit code. Only exactly the definitions that were shown are accepted: their digest
goes with the answer. Texts from servers are shown with escapes in place of deceptive characters.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from toolcrib.cli.options import AsJson
from toolcrib.cli.output import confirmed, hint, moment, printed, say, terminal
from toolcrib.cli.perform import perform
from toolcrib.cli.server_commands import hint_problems
from toolcrib.config.show import visible
from toolcrib.daemon_client.command_client import RemoteError
from toolcrib.errors import NotFound, UsageError

commands = typer.Typer(rich_markup_mode=None)
pins = typer.Typer()
commands.add_typer(pins, name="pins")

_DIGITS = 32
_COLOURS = {"+": "green", "-": "red", "@": "cyan"}
_EXPLAINED = {
    "changed": "changed",
    "new": "new",
    "removed": "no longer listed",
    "flagged": "as first seen",
}

Target = Annotated[str, typer.Argument(metavar="NAME[:TOOL]", help="A server, or one of its tools.")]


class _WithServer(typer.core.TyperGroup):
    """`pins NAME` shows one server: a first word that is no subcommand is a server's name."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        known = args[0] in self.commands
        return super().resolve_command(ctx, args if known else ["show", *args])


pins.info.cls = _WithServer


@pins.callback(invoke_without_command=True)
def list_pins(context: typer.Context, *, as_json: AsJson = False) -> int:
    """Show what servers changed in their tools since you accepted them.

    Toolcrib remembers the tools that a server lists at first use. Later differences are shown here, field by field, and
    so are definitions that look deceptive. With `pins: hold` in the configuration, new and changed tools are kept out
    until you accept them.
    """
    return 0 if context.invoked_subcommand is not None else _show({}, as_json=as_json)


@pins.command()
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The server's name.")], *, as_json: AsJson = False
) -> int:
    """Show the differences of one server: also `toolcrib pins NAME`."""
    return _show({"name": name}, as_json=as_json)


def _show(params: dict[str, Any], *, as_json: bool) -> int:
    found = printed(perform("pins:list", params), as_json=as_json)
    for server in found["servers"]:
        _say_server(server, server["tools"])
    if not found["servers"]:
        say("All tools are as you accepted them.")
    else:
        hint(
            "`toolcrib pins accept NAME[:TOOL]` accepts what a server lists now; `pins reject` keeps new and changed "
            "tools out, `toolcrib disable NAME:TOOL` any tool."
        )
    hint_problems(found)
    return 0


@pins.command()
def accept(
    target: Target,
    *,
    digest: Annotated[
        str | None, typer.Option(help="Accept only if this is still the digest; don't ask for confirmation.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask for confirmation.")] = False,
    as_json: AsJson = False,
) -> int:
    """Accept a server's present definitions, or those of one tool.

    Shows the difference and asks for confirmation. Accepted tools of a trusted server are trusted again.
    """
    if digest is not None and not re.fullmatch(f"[0-9a-f]{{{_DIGITS},}}", digest):
        raise UsageError("This is no complete digest.", remedy=f"`toolcrib pins` shows its {_DIGITS} characters.")
    server, tools, tool = _found(target)
    whole = {"name": server["server"], "tool": tool}
    if digest is None:
        digest = server["digest"] if not tool else tools[0]["digest"]
        if not as_json:
            _say_server(server, tools)
        instead = "Review the difference, then add --digest with its digest, or --yes."
        if not yes and not confirmed("Accept this?", instead=instead):
            hint("Nothing was changed.")
            return 1
    try:
        done = perform("pins:accept", {**whole, "digest": digest})
    except RemoteError as error:
        if "digest" in error.data and not as_json:
            server, tools, _ = _found(target)
            _say_server(server, tools)
        raise
    _say_done("Accepted", printed(done, as_json=as_json)["accepted"], server)
    return 0


@pins.command()
def reject(target: Target, *, as_json: AsJson = False) -> int:
    """Keep a new or changed tool out, or all of a server's.

    It is not listed and calls are refused, until you accept its definition or the server returns to an accepted one.
    """
    server, _, tool = _found(target)
    done = perform("pins:reject", {"name": server["server"], "tool": tool})
    _say_done("Kept out", printed(done, as_json=as_json)["kept_out"], server)
    return 0


def _found(target: str) -> tuple[Mapping[str, Any], list[Mapping[str, Any]], str]:
    """The server, its tools that are meant, and the tool's name if the target names one. Raises `NotFound`."""
    for server in sorted(perform("pins:list")["servers"], key=lambda row: -len(row["server"])):
        name = server["server"]
        if target == name:
            return server, server["tools"], ""
        if target.startswith(f"{name}:"):
            tool = target.removeprefix(f"{name}:")
            if meant := [row for row in server["tools"] if row["tool"] == tool]:
                return server, meant, tool
    name, _, tool = target.partition(":")
    # Raises if there is no such server or tool.
    perform("pins:list", {"name": name, "tool": tool})
    raise NotFound(f"Nothing of {target} awaits review.", remedy="`toolcrib pins` lists what does.")


def _say_server(server: Mapping[str, Any], tools: list[Mapping[str, Any]]) -> None:
    name = server["server"]
    handled = "kept out until you accept them" if server["mode"] == "hold" else "offered, but not trusted"
    _line(f"{name}  (new and changed tools are {handled})  digest {server['digest'][:_DIGITS]}", "bold")
    if other := server["looks_like"]:
        _line(f"  flag: its name looks like {other}", "yellow")
    for tool in tools:
        _say_tool(tool)


def _say_tool(tool: Mapping[str, Any]) -> None:
    words = [_EXPLAINED[tool["status"]], "kept out" if tool["kept_out"] else ""]
    if tool["accepted_at"] is not None:
        by = tool["accepted_by"]
        words.append(f"accepted {moment(tool['accepted_at'])} {'at' if by == 'first use' else 'by'} {by}")
    digest = f"  digest {tool['digest'][:_DIGITS]}" if tool["digest"] else ""
    _line(f"  {tool['tool']}: {', '.join(filter(None, words))}{digest}")
    for reason in tool["flags"]:
        _line(f"    flag: it {reason}", "yellow")
    for field in tool["differences"]:
        _line(f"    {field['field']}:", "bold")
        for line in field["diff"]:
            _line(f"      {line}", _COLOURS.get(line[:1], ""))


def _line(text: str, style: str = "") -> None:
    shown = visible(text)
    if style and sys.stdout.isatty():
        terminal(sys.stdout).write([(shown, style)])
    else:
        say(shown)


def _say_done(what: str, tools: list[str], server: Mapping[str, Any]) -> None:
    names = [f"{server['server']}:{tool}" for tool in tools]
    say(visible(f"{what}: {', '.join(names)}."))
    if what == "Accepted" and not server["trusted"]:
        hint(f"{server['server']} is not trusted; `toolcrib trust --server {shlex.quote(server['server'])}` trusts it.")
