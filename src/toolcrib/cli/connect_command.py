"""`connect`: the entry that points a client at Toolcrib, shown, written or removed.

In: a client's name, the agent its entry names, and what to do. Out: an exit code. An agent that `connect` creates for
an entry is removed with that entry; no other agent is. `coding_agents` knows the clients' files.
"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from toolcrib.cli.connected_agents import (
    ConnectedAgent,
    agent_folders,
    assign_file,
    get_or_create_agent,
    known_agent,
    release_file,
    remove_agent,
)
from toolcrib.cli.options import AsJson
from toolcrib.cli.output import hint, say, say_json
from toolcrib.cli.perform import daemon_runs, from_daemon, paths, root
from toolcrib.coding_agents.client_files import ClientEntry, EntryOutcome, write_private_file
from toolcrib.coding_agents.client_spec import ClientScope, ClientSpec, labels
from toolcrib.coding_agents.clients import client_named
from toolcrib.errors import ToolcribError, UsageError

DEFAULT_ENDPOINT = "http://127.0.0.1:8665/mcp"


@dataclass(frozen=True, kw_only=True)
class _ConnectRequest:
    """What the person asked for."""

    client: ClientSpec
    scope: ClientScope
    http: bool
    agent: str
    conversation: str

    @property
    def name(self) -> str:
        """The agent that the entry names. A project's file goes to other machines, which have other agents: an entry
        there names one only if the person says so."""
        return self.agent or ("" if self.scope.value == "project" else self._own)

    @property
    def holder(self) -> str:
        """The agent that whoever uses the entry here is: over HTTP a token is needed, also where none is named."""
        return self.name or (self._own if self.http else "")

    @property
    def _own(self) -> str:
        """The agent that --write makes for the client; where nothing can be written, none."""
        return self.client.name if self.client.places else ""


@dataclass(frozen=True, kw_only=True)
class _ConnectResult:
    outcome: EntryOutcome
    who: ConnectedAgent | None = None
    ended: tuple[str, ...] = ()
    generated: Path | None = None


commands = typer.Typer(rich_markup_mode=None)


@commands.command()
def connect(
    client: Annotated[str, typer.Argument(metavar="claude|codex|gemini|generic", help="The client.")],
    *,
    agent: Annotated[
        str, typer.Option(metavar="NAME", help="Who the client is. Without it --write makes an agent for the client.")
    ] = "",
    write: Annotated[bool, typer.Option("--write", help="Write the entry into the client's file.")] = False,
    remove: Annotated[bool, typer.Option("--remove", help="Take the entry out of it again.")] = False,
    http: Annotated[
        bool, typer.Option("--http", help="An entry with the endpoint's URL; the token stays in TOOLCRIB_TOKEN.")
    ] = False,
    conversation: Annotated[
        str, typer.Option(metavar="LABEL", help="Which conversation the client's calls belong to.")
    ] = "",
    scope: Annotated[str, typer.Option(metavar="user|project", help="Whose file.")] = "user",
    as_json: AsJson = False,
) -> int:
    """Show the entry that points a client at Toolcrib; write it, or take it out again.

    With --agent and nothing to write, a file for runs of that agent is made in its private folder: it holds the agent's
    token, and goes with the agent. An agent that --write made ends when --remove takes its entry out.
    """
    if write and remove:
        raise UsageError("--write and --remove are opposites.", remedy="Choose one.")
    if not (conversation.isascii() and conversation.isprintable() and len(conversation) <= 200):
        raise UsageError("A conversation's label is plain text.", remedy="Use up to 200 ASCII characters.")
    wish = _ConnectRequest(
        client=client_named(client), scope=_scope(scope), http=http, agent=agent, conversation=conversation.strip()
    )
    entry = _entry(wish)
    connection = ClientEntry(client=wish.client, scope=wish.scope, entry=entry, environ=os.environ, root=root())
    done = _written(wish, connection) if write else _removed(connection) if remove else _shown(wish)
    if as_json:
        say_json(_described(wish, connection, done))
    else:
        _say_result(wish, connection, done)
    return 0


def _scope(word: str) -> ClientScope:
    try:
        return ClientScope(word)
    except ValueError as error:
        raise UsageError(f"--scope is user or project, not {word!r}.") from error


def _entry(wish: _ConnectRequest) -> dict[str, Any]:
    if wish.http:
        return wish.client.http(url=_endpoint(), labels=labels(wish.name, wish.conversation))
    bridge = _bridge(wish.scope.value == "project")
    args = [*bridge["args"], *(["--agent", wish.name] if wish.name else [])]
    env = {**bridge["env"], **({"TOOLCRIB_CONVERSATION": wish.conversation} if wish.conversation else {})}
    return wish.client.stdio(command=bridge["command"], args=args, env=env)


def _shown(wish: _ConnectRequest) -> _ConnectResult:
    if not wish.agent:
        return _ConnectResult(outcome=EntryOutcome.SHOWN)
    # dropped import
    who = known_agent(wish.agent)
    url = _endpoint()
    file = write_private_file(agent_folders(), who.name, wish.client, url=url, conversation=wish.conversation)
    return _ConnectResult(outcome=EntryOutcome.SHOWN, who=who, generated=file)


def _written(wish: _ConnectRequest, connection: ClientEntry) -> _ConnectResult:
    # dropped import

    file = connection.known_file()
    if not wish.holder:
        return _ConnectResult(outcome=connection.write(), ended=release_file(file))
    who = known_agent(wish.agent) if wish.agent else get_or_create_agent(wish.holder)
    try:
        outcome = connection.write()
    except ToolcribError:
        if who.new:
            remove_agent(who.name)
        raise
    return _ConnectResult(outcome=outcome, who=who, ended=assign_file(who, file))


def _removed(connection: ClientEntry) -> _ConnectResult:
    # dropped import

    return _ConnectResult(outcome=connection.remove(), ended=release_file(connection.known_file()))


def _described(wish: _ConnectRequest, connection: ClientEntry, done: _ConnectResult) -> dict[str, Any]:
    return {
        "client": wish.client.name,
        "scope": wish.scope.value,
        "file": None if connection.file is None else str(connection.file),
        "entry": connection.entry,
        "text": connection.text,
        "outcome": done.outcome.value,
        "backup": _backup(connection, done),
        "agent": wish.holder or None,
        "made": done.who is not None and done.who.new,
        "ended": list(done.ended),
        "generated": None if done.generated is None else str(done.generated),
        "notes": list(_notes(wish)),
    }


def _backup(connection: ClientEntry, done: _ConnectResult) -> str | None:
    return str(connection.backup) if done.outcome.value == "written" and connection.backup is not None else None


def _say_result(wish: _ConnectRequest, connection: ClientEntry, done: _ConnectResult) -> None:
    file, outcome = connection.file, done.outcome.value
    if outcome == "shown":
        hint(
            f"This goes into {file} (--write puts it there):"
            if file
            else "This goes into the client's file of servers:"
        )
        say(connection.text)
    else:
        said = {
            "written": f"Written to {file}.",
            "unchanged": f"{file} holds it already.",
            "removed": f"Taken out of {file}.",
            "absent": f"{file} has no such entry.",
        }
        say(said[outcome])
    if backup := _backup(connection, done):
        hint(f"The file as it was: {backup}.")
    for line in _about_agents(wish, done):
        hint(line)
    if outcome in ("shown", "written"):
        for note in _notes(wish):
            hint(note)


def _about_agents(wish: _ConnectRequest, done: _ConnectResult) -> list[str]:
    lines = []
    if done.who is not None:
        what = "was made for it, with the profile" if done.who.new else "has the profile"
        lines.append(f"{wish.client.title} is the agent {done.who.name} there, which {what} {done.who.profile}.")
    elif done.outcome.value == "shown" and wish.holder:
        lines.append(f"--write makes the agent {wish.holder} with the profile developer, unless there is one already.")
    lines += [f"The agent {name} is ended: it was made for this entry." for name in done.ended]
    if done.generated is not None:
        use = wish.client.private_use.format(file=done.generated)
        lines.append(f"For runs as {wish.agent}: {use}")
        lines.append("That file holds the agent's token, is yours alone (0600), and goes with the agent.")
    return lines


def _notes(wish: _ConnectRequest) -> tuple[str, ...]:
    client = wish.client
    notes = (*client.http_notes, _token_note(wish)) if wish.http else client.stdio_notes
    if wish.scope.value != "project":
        return notes
    if wish.name:
        notes = (*notes, f"Whoever else uses this file needs an agent {wish.name} of their own.")
    return (*notes, *client.project_notes)


def _token_note(wish: _ConnectRequest) -> str:
    if not wish.holder:
        return "The client needs the token of an agent: `toolcrib agent add NAME`, then connect with --agent NAME."
    file = paths().agents / wish.holder / "token"
    return f"The client needs TOOLCRIB_TOKEN in its environment: export TOOLCRIB_TOKEN=\"$(cat '{file}')\""


def _endpoint() -> str:
    if daemon_runs():
        return str(from_daemon("system:status")["endpoint"])
    hint("No daemon runs; this is its default endpoint.")
    return DEFAULT_ENDPOINT


def _bridge(shared: bool) -> dict[str, Any]:  # noqa: FBT001 - one caller, beside it
    """The command that starts the bridge, and what it must be told about where our files are.

    A project's file is shared with other machines, so it names the command alone. A user's file gets the absolute path:
    clients start with another PATH than a shell does.
    """
    if shared:
        if shutil.which("toolcrib") is None:
            hint("`toolcrib` is not on your PATH, and a project's file names it so: add it there.")
        return {"command": "toolcrib", "args": ["stdio"], "env": {}}
    env = {"TOOLCRIB_HOME": str(paths().config_dir)} if os.environ.get("TOOLCRIB_HOME") else {}
    script = Path(sys.executable).with_name("toolcrib")
    if script.is_file() and os.access(script, os.X_OK):
        return {"command": str(script), "args": ["stdio"], "env": env}
    # -P: without it a file in the client's project could stand in for one of ours.
    return {"command": sys.executable, "args": ["-P", "-m", "toolcrib", "stdio"], "env": env}
