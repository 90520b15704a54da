"""`connect`: the entry that points a client at Toolcrib, shown, written or taken out.

In: a client's name, who it shall be, and what to do. Out: an exit code. What the clients look like is `coding_agents`'
knowledge, who they are `connect_agent`'s; this only finds the command or endpoint that the entry has to name.
"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolcrib.cli.options import AsJson
from toolcrib.cli.output import hint, say, say_json
from toolcrib.cli.reach import daemon_runs, from_daemon, paths, root
from toolcrib.errors import ToolcribError, UsageError

if TYPE_CHECKING:
    from toolcrib.cli.connect_agent import Identity
    from toolcrib.coding_agents.client import Client, Scope
    from toolcrib.coding_agents.connect import Connection, Outcome

DEFAULT_ENDPOINT = "http://127.0.0.1:8665/mcp"


@dataclass(frozen=True, kw_only=True)
class _Wish:
    """What the person asked for."""

    client: Client
    scope: Scope
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
class _Done:
    outcome: Outcome
    who: Identity | None = None
    ended: tuple[str, ...] = ()
    generated: Path | None = None


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
    from toolcrib.coding_agents.clients import client_named  # noqa: PLC0415
    from toolcrib.coding_agents.connect import Connection  # noqa: PLC0415

    if write and remove:
        raise UsageError("--write and --remove are opposites.", remedy="Choose one.")
    if not (conversation.isascii() and conversation.isprintable() and len(conversation) <= 200):
        raise UsageError("A conversation's label is plain text.", remedy="Use up to 200 ASCII characters.")
    wish = _Wish(
        client=client_named(client), scope=_scope(scope), http=http, agent=agent, conversation=conversation.strip()
    )
    entry = _entry(wish)
    connection = Connection(client=wish.client, scope=wish.scope, entry=entry, environ=os.environ, root=root())
    done = _written(wish, connection) if write else _removed(connection) if remove else _shown(wish)
    if as_json:
        say_json(_described(wish, connection, done))
    else:
        _tell(wish, connection, done)
    return 0


def _scope(word: str) -> Scope:
    from toolcrib.coding_agents.client import Scope  # noqa: PLC0415

    try:
        return Scope(word)
    except ValueError as error:
        raise UsageError(f"--scope is user or project, not {word!r}.") from error


def _entry(wish: _Wish) -> dict[str, Any]:
    from toolcrib.coding_agents.client import labels  # noqa: PLC0415

    if wish.http:
        return wish.client.http(url=_endpoint(), labels=labels(wish.name, wish.conversation))
    bridge = _bridge(wish.scope.value == "project")
    args = [*bridge["args"], *(["--agent", wish.name] if wish.name else [])]
    env = {**bridge["env"], **({"TOOLCRIB_CONVERSATION": wish.conversation} if wish.conversation else {})}
    return wish.client.stdio(command=bridge["command"], args=args, env=env)


def _shown(wish: _Wish) -> _Done:
    from toolcrib.coding_agents.connect import Outcome  # noqa: PLC0415

    if not wish.agent:
        return _Done(outcome=Outcome.SHOWN)
    from toolcrib.cli.connect_agent import folders, known  # noqa: PLC0415
    from toolcrib.coding_agents.generated import generate  # noqa: PLC0415

    who = known(wish.agent)
    url = _endpoint()
    file = generate(folders(), who.name, wish.client, url=url, conversation=wish.conversation)
    return _Done(outcome=Outcome.SHOWN, who=who, generated=file)


def _written(wish: _Wish, connection: Connection) -> _Done:
    from toolcrib.cli import connect_agent  # noqa: PLC0415

    file = connection.known_file()
    if not wish.holder:
        return _Done(outcome=connection.write(), ended=connect_agent.leave(file))
    who = connect_agent.known(wish.agent) if wish.agent else connect_agent.ensured(wish.holder)
    try:
        outcome = connection.write()
    except ToolcribError:
        if who.new:
            connect_agent.end(who.name)
        raise
    return _Done(outcome=outcome, who=who, ended=connect_agent.take(who, file))


def _removed(connection: Connection) -> _Done:
    from toolcrib.cli import connect_agent  # noqa: PLC0415

    return _Done(outcome=connection.remove(), ended=connect_agent.leave(connection.known_file()))


def _described(wish: _Wish, connection: Connection, done: _Done) -> dict[str, Any]:
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


def _backup(connection: Connection, done: _Done) -> str | None:
    return str(connection.backup) if done.outcome.value == "written" and connection.backup is not None else None


def _tell(wish: _Wish, connection: Connection, done: _Done) -> None:
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


def _about_agents(wish: _Wish, done: _Done) -> list[str]:
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


def _notes(wish: _Wish) -> tuple[str, ...]:
    client = wish.client
    notes = (*client.http_notes, _token_note(wish)) if wish.http else client.stdio_notes
    if wish.scope.value != "project":
        return notes
    if wish.name:
        notes = (*notes, f"Whoever else uses this file needs an agent {wish.name} of their own.")
    return (*notes, *client.project_notes)


def _token_note(wish: _Wish) -> str:
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
